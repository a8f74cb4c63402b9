//! The rules of the `dns` section.
//!
//! Rules run from first to last, as route rules do. In a configuration without `evaluate`, `match_response`, `query_type` and
//! `ip_version`, a rule with conditions on addresses asks its server first, and keeps the answer only if an address in it
//! passes (probed with sing-box 1.14.4).
//! Evaluated queries are asked one after the other, where sing-box asks them at the same time: the answers are the same.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::dns::record::Record;
use culvert_config::options::dns::rule::{
    DnsAction, DnsMatch, DnsPredefined, DnsQueryOptions, MatchResponse,
};
use culvert_config::options::rule::{Condition, RejectMethod, Rule as RuleOption};
use culvert_config::value::List;
use culvert_core::Strategy;
use culvert_dns::message::records::{Predefined, RawRecord};
use culvert_dns::{
    Answer, Asker, ClientSubnet, DnsError, DnsPolicy, DnsRouter, Query, QueryOptions, Rcode, RecordType,
    Reply,
};
use culvert_protocols::fields::dial::strategy;
use culvert_rules::ip::Prefix;
use culvert_rules::rule::{self as rules, Facts, IpVersion, RuleSets};
use culvert_wire::Domain;
use tracing::debug;

use super::QueryChanges;
use super::answer::{Answers, Evaluated, addresses, has_meaning};
use crate::instance::BuildErrors;
use crate::router::rule::matcher;
use crate::router::{Refusal, RuleSetStore, session_facts};

/// The rules, made ready.
pub(super) struct Policy {
    rules: Vec<Rule>,
    rule_sets: Arc<RuleSetStore>,
    /// Tags of the servers of type `fakeip`, which only clients get answers from.
    fake: Vec<String>,
    /// Whether conditions on addresses stand for themselves: no rule evaluates answers or looks at the type of a query.
    filters: bool,
}

struct Rule {
    matcher: rules::Rule,
    action: Action,
    /// Whether it has conditions on addresses by itself, or may have some by a rule-set.
    filters: Filters,
}

#[derive(Clone, Copy, PartialEq)]
enum Filters {
    No,
    ByRuleSet,
    Yes,
}

enum Action {
    Route {
        server: String,
        changes: QueryChanges,
    },
    Evaluate {
        server: String,
        tag: Option<String>,
        changes: QueryChanges,
    },
    /// Gives the answer of this tag, or the latest without one.
    Respond(Option<String>),
    SetOptions(QueryChanges),
    Reject(Refusal),
    Predefined(Predefined),
}

impl Policy {
    /// Builds the rules. What is not built yet or can never work is noted in `errors`.
    pub(super) fn build(
        options: &[RuleOption<DnsMatch, DnsAction>],
        fake: Vec<String>,
        rule_sets: Arc<RuleSetStore>,
        errors: &mut BuildErrors,
    ) -> Self {
        let evaluates = options.iter().any(|one| {
            let is_newer = |fields: &DnsMatch| {
                asked_response(fields).is_some() || fields.ip_version != 0 || !fields.query_type.is_empty()
            };
            matches!(one.action, DnsAction::Evaluate(_) | DnsAction::Respond(_))
                || any(&one.condition, &is_newer)
        });
        let mut rules = Vec::with_capacity(options.len());
        for (index, one) in options.iter().enumerate() {
            let place = format!("dns.rules[{index}]");
            check(one, evaluates, &place, errors);
            let matcher = matcher(&one.condition, &place, &rule_sets, errors);
            let Some((matcher, action)) = matcher.zip(action(one, &place, errors)) else { continue };
            let filters = if any(&one.condition, &DnsMatch::is_address_filter) {
                Filters::Yes
            } else if any(&one.condition, &|fields| !fields.rule_set.is_empty()) {
                Filters::ByRuleSet
            } else {
                Filters::No
            };
            rules.push(Rule { matcher, action, filters });
        }
        Self { rules, rule_sets, fake, filters: !evaluates }
    }

    async fn answer(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError> {
        if self.rules.is_empty() {
            return dns.default.exchange(query, &dns.options).await;
        }
        let sets = self.rule_sets.snapshot();
        let name = query.domain();
        let (mut options, mut answers) = (dns.options.clone(), Answers::default());
        for rule in &self.rules {
            let filters = self.filters && rule.filters(&sets);
            if filters && !has_addresses(query.kind()) {
                continue;
            }
            // The addresses are those of an answer, where the rule waits for one.
            let matches = |answers: &Answers, addresses: Option<&[IpAddr]>| {
                let facts = Facts {
                    domain: name.as_ref().map(Domain::as_str),
                    responses: Some(answers),
                    addresses_pending: filters && addresses.is_none(),
                    addresses: addresses.unwrap_or_default(),
                    ..facts(query, asker)
                };
                rule.matcher.matches(&facts, &sets)
            };
            if !matches(&answers, None) {
                continue;
            }
            match &rule.action {
                Action::SetOptions(changes) => changes.apply(&mut options),
                Action::Route { server, changes } => {
                    let Some(client) = self.client(dns, server, asker) else { continue };
                    let mut asked = options.clone();
                    changes.apply(&mut asked);
                    let answer = client.exchange(query, &asked).await?;
                    if !filters {
                        return Ok(answer);
                    }
                    if has_meaning(&answer.reply) && matches(&answers, Some(&addresses(&answer.reply))) {
                        return Ok(answer);
                    }
                    debug!(%query, server, "answer does not pass the rule");
                    // sing-box forgets with the answer what earlier rules have set.
                    options.clone_from(&dns.options);
                }
                Action::Evaluate { server, tag, changes } => {
                    let Some(client) = self.client(dns, server, asker) else { continue };
                    let mut asked = options.clone();
                    changes.apply(&mut asked);
                    let answer = client.exchange(query, &asked).await;
                    if let Err(error) = &answer {
                        debug!(%query, server, %error, "evaluated query failed");
                    }
                    answers.keep(tag.clone(), answer.ok().map(Evaluated::new));
                }
                Action::Respond(tag) => {
                    let answer = answers.find(tag.as_deref()).map(|found| found.answer.clone());
                    return Ok(answer.unwrap_or_else(|| Answer::fresh(Reply::empty(query, Rcode::SERVFAIL))));
                }
                Action::Reject(refusal) if refusal.drops() => return Err(DnsError::Dropped),
                Action::Reject(_) => return Ok(Answer::fresh(Reply::refused(query))),
                Action::Predefined(predefined) => {
                    let reply = predefined.reply(query);
                    return Ok(Answer::fresh(reply.unwrap_or_else(|| Reply::empty(query, Rcode::SERVFAIL))));
                }
            }
        }
        dns.default.exchange(query, &options).await
    }

    /// The server of a rule, if it exists and may be asked.
    fn client<'a>(
        &self,
        dns: &'a DnsRouter,
        server: &str,
        asker: Asker<'_>,
    ) -> Option<&'a culvert_dns::Client> {
        if matches!(asker, Asker::Lookup(_)) && self.fake.iter().any(|fake| fake == server) {
            return None;
        }
        let client = dns.client(server);
        if client.is_none() {
            tracing::error!("DNS server not found: {server}; the rule is passed over");
        }
        client
    }
}

#[async_trait]
impl DnsPolicy for Policy {
    async fn decide(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError> {
        self.answer(dns, query, asker).await
    }
}

/// The rules, for several routers.
pub(super) struct Shared(pub(super) Arc<Policy>);

#[async_trait]
impl DnsPolicy for Shared {
    async fn decide(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError> {
        self.0.answer(dns, query, asker).await
    }
}

impl Rule {
    fn filters(&self, sets: &RuleSets) -> bool {
        match self.filters {
            Filters::No => false,
            Filters::Yes => true,
            Filters::ByRuleSet => self.matcher.needs(sets).destination_addresses,
        }
    }
}

/// What rules look at, but for the name.
fn facts<'a>(query: &Query, asker: Asker<'a>) -> Facts<'a> {
    let session = match asker {
        Asker::Client(session) => Some(session),
        Asker::Lookup(session) => session,
    };
    let subnet = query.subnet().and_then(|subnet| Prefix::new(subnet.address(), subnet.prefix()).ok());
    Facts {
        ip_version: match query.kind() {
            RecordType::A => Some(IpVersion::V4),
            RecordType::AAAA => Some(IpVersion::V6),
            _ => None,
        },
        query: Some(rules::Query { kind: query.kind().0, dnssec: query.dnssec_ok(), client_subnet: subnet }),
        protocol: session.and_then(|session| session.sniffed.as_ref()).map(|sniffed| sniffed.protocol),
        ..session.map(session_facts).unwrap_or_default()
    }
}

fn has_addresses(kind: RecordType) -> bool {
    matches!(kind, RecordType::A | RecordType::AAAA | RecordType::HTTPS)
}

fn any(condition: &Condition<DnsMatch>, asked: &dyn Fn(&DnsMatch) -> bool) -> bool {
    match condition {
        Condition::Fields(fields) => asked(fields),
        Condition::Logical(logical) => logical.rules.iter().any(|part| any(part, asked)),
    }
}

fn asked_response(fields: &DnsMatch) -> Option<&MatchResponse> {
    fields.match_response.as_ref().filter(|which| **which != MatchResponse::No)
}

fn check(one: &RuleOption<DnsMatch, DnsAction>, evaluates: bool, place: &str, errors: &mut BuildErrors) {
    if one.action.is_race() {
        errors.not_built(format!("`race` in {place}"));
    }
    if any(&one.condition, &|fields| fields.rule_set_ip_cidr_accept_empty) {
        errors.not_built(format!("`rule_set_ip_cidr_accept_empty` in {place}"));
    }
    if evaluates && any(&one.condition, &DnsMatch::is_address_filter) {
        errors.invalid(
            place,
            "conditions on addresses need `match_response` beside `evaluate`, `query_type` or `ip_version`",
        );
    }
}

fn action(one: &RuleOption<DnsMatch, DnsAction>, place: &str, errors: &mut BuildErrors) -> Option<Action> {
    Some(match &one.action {
        DnsAction::Route(to) => {
            Action::Route { server: to.server.0.clone(), changes: QueryChanges::from(&to.options) }
        }
        DnsAction::Evaluate(evaluate) => Action::Evaluate {
            server: evaluate.server.0.clone(),
            tag: Some(evaluate.tag.clone()).filter(|tag| !tag.is_empty()),
            changes: QueryChanges::from(&evaluate.options),
        },
        DnsAction::Respond(_) => Action::Respond(match &one.condition {
            Condition::Fields(fields) => match asked_response(fields) {
                Some(MatchResponse::Tag(tag)) => Some(tag.clone()),
                Some(MatchResponse::Latest | MatchResponse::No) | None => None,
            },
            Condition::Logical(_) => None,
        }),
        DnsAction::RouteOptions(set) => Action::SetOptions(QueryChanges::from(&set.options)),
        DnsAction::Reject(reject) => {
            if reject.method == RejectMethod::Reply {
                errors.invalid(place, "method `reply` is no answer to a DNS query");
            }
            Action::Reject(Refusal::new(reject.method, reject.no_drop))
        }
        DnsAction::Predefined(fixed) => Action::Predefined(predefined(fixed)),
    })
}

impl From<&DnsQueryOptions> for QueryChanges {
    fn from(options: &DnsQueryOptions) -> Self {
        let removed = options.remove_client_subnet.then_some(ClientSubnet::Remove);
        Self {
            timeout: options.timeout.get(),
            disable_cache: options.disable_cache,
            disable_optimistic_cache: options.disable_optimistic_cache,
            rewrite_ttl: options.rewrite_ttl,
            client_subnet: options.client_subnet.as_ref().map(Self::subnet).or(removed),
            strategy: Some(strategy(options.strategy)).filter(|strategy| *strategy != Strategy::AsIs),
        }
    }
}

fn predefined(fixed: &DnsPredefined) -> Predefined {
    let records = |list: &List<Record>| {
        let raw = |one: &Record| RawRecord {
            owner: one.owner.clone(),
            kind: one.record_type.0,
            class: one.class,
            ttl: one.ttl,
            data: one.data.clone(),
        };
        list.iter().map(raw).collect()
    };
    let sections = [records(&fixed.answer), records(&fixed.ns), records(&fixed.extra)];
    Predefined { rcode: fixed.rcode.map_or(0, |code| code.0), sections }
}

/// What holds for all queries.
pub(super) fn query_options(options: &culvert_config::options::dns::DnsOptions) -> QueryOptions {
    let mut all = QueryOptions { strategy: strategy(options.strategy), ..QueryOptions::default() };
    all.timeout = options.timeout.or(all.timeout);
    if let Some(subnet) = &options.client_subnet {
        all.client_subnet = QueryChanges::subnet(subnet);
    }
    all
}
