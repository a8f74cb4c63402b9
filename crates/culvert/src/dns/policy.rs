//! The rules of the `dns` section.
//!
//! Rules run from first to last, as route rules do. In a configuration without `evaluate`, `match_response`, `query_type` and
//! `ip_version`, a rule with conditions on addresses asks its server first, and keeps the answer only if an address in it
//! passes (probed with sing-box 1.14.4).
//!
//! Evaluated queries are under way at the same time; a rule waits only for the answers it refers to. One with `race` is put
//! aside meanwhile, and rules after it are judged if they race too, or are held back until it has been judged. Of rules
//! that race the first one to match decides. `speculative` lets a query go out while others still race.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use culvert_config::options::dns::record::Record;
use culvert_config::options::dns::rule::{
    DnsAction, DnsMatch, DnsPredefined, DnsQueryOptions, MatchResponse,
};
use culvert_config::options::rule::{Condition, RejectMethod, Rule as RuleOption};
use culvert_config::value::List;
use culvert_core::{Session, Strategy};
use culvert_dns::message::records::{Predefined, RawRecord};
use culvert_dns::{
    Answer, Asker, ClientSubnet, DnsError, DnsPolicy, DnsRouter, Query, QueryOptions, Rcode, RecordType,
    Reply,
};
use culvert_protocols::fields::dial::strategy;
use culvert_rules::ip::Prefix;
use culvert_rules::rule::{self as rules, Facts, IpVersion, Needs, RuleIndex, RuleSets};
use culvert_wire::Domain;
use tracing::debug;

use super::QueryChanges;
use super::answer::{Answers, Before, Evaluated, addresses, has_meaning};
use super::rejected::Rejected;
use crate::instance::BuildErrors;
use crate::router::explain::explained;
use crate::router::rule::matcher;
use crate::router::surroundings::{Around, Surroundings};
use crate::router::{Refusal, RuleSetStore, needs_of, session_facts};

/// The rules, made ready.
pub(super) struct Policy {
    rules: Vec<Rule>,
    /// Finds those of them that may match, by the name asked for.
    index: RuleIndex,
    rule_sets: Arc<RuleSetStore>,
    surroundings: Arc<Surroundings>,
    /// What the rules by themselves look at.
    needs: Needs,
    /// Tags of the servers of type `fakeip`, which only clients get answers from.
    fake: Vec<String>,
    /// What has not passed conditions on addresses.
    pub(super) rejected: Rejected,
    /// Whether conditions on addresses stand for themselves: no rule evaluates answers or looks at the type of a query.
    filters: bool,
    /// What the rules make of questions, where somebody wants to know (`culvert explain`).
    pub(super) told: OnceLock<Mutex<Vec<String>>>,
}

struct Rule {
    /// Its place in the configuration.
    place: usize,
    matcher: rules::Rule,
    action: Action,
    /// Whether it has conditions on addresses by itself, or may have some by a rule-set.
    filters: Filters,
    /// Tags of the evaluated answers that it refers to, none for the latest one without a tag.
    refers: Vec<Option<String>>,
    /// Whether it is judged when its answers come, and others meanwhile.
    race: bool,
    /// Whether its query goes out while others race.
    speculative: bool,
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

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Route { server, .. } => write!(f, "route({server})"),
            Self::Evaluate { server, .. } => write!(f, "evaluate({server})"),
            Self::Respond(_) => f.write_str("respond"),
            Self::SetOptions(_) => f.write_str("route-options"),
            Self::Reject(_) => f.write_str("reject"),
            Self::Predefined(_) => f.write_str("predefined"),
        }
    }
}

fn by_default(dns: &DnsRouter, query: &Query) -> String {
    format!("no DNS rule decides for {query}: {} is asked", dns.default.server().tag())
}

impl Policy {
    /// Builds the rules. What is not built yet or can never work is noted in `errors`.
    pub(super) fn build(
        options: &[RuleOption<DnsMatch, DnsAction>],
        fake: Vec<String>,
        rule_sets: &Arc<RuleSetStore>,
        surroundings: &Arc<Surroundings>,
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
            let matcher = matcher(&one.condition, &place, rule_sets, errors);
            let Some((matcher, action)) = matcher.zip(action(one, &place, errors)) else { continue };
            let filters = if any(&one.condition, &DnsMatch::is_address_filter) {
                Filters::Yes
            } else if any(&one.condition, &|fields| !fields.rule_set.is_empty()) {
                Filters::ByRuleSet
            } else {
                Filters::No
            };
            let mut refers = Vec::new();
            note_references(&one.condition, &mut refers);
            if let Action::Respond(tag) = &action {
                refers.push(tag.clone());
            }
            let (race, speculative) = (one.action.is_race(), one.action.is_speculative());
            rules.push(Rule { place: index, matcher, action, filters, refers, race, speculative });
        }
        Self {
            needs: needs_of(rules.iter().map(|rule| &rule.matcher)),
            index: RuleIndex::new(rules.iter().map(|rule| &rule.matcher)),
            rules,
            rule_sets: Arc::clone(rule_sets),
            surroundings: Arc::clone(surroundings),
            fake,
            rejected: Rejected::default(),
            filters: !evaluates,
            told: OnceLock::new(),
        }
    }

    /// Tells, where somebody wants to know; the data path pays one look.
    fn tell(&self, lines: impl FnOnce() -> Vec<String>) {
        if let Some(told) = self.told.get() {
            told.lock().unwrap_or_else(PoisonError::into_inner).extend(lines());
        }
    }

    async fn answer(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError> {
        if self.rules.is_empty() {
            self.tell(|| vec![by_default(dns, query)]);
            return dns.default.exchange(query, &dns.options).await;
        }
        let mut needs = self.needs;
        needs.process |= self.rule_sets.needs_process();
        let mut run = Run {
            policy: self,
            dns,
            query,
            asker,
            sets: self.rule_sets.snapshot(),
            around: self.surroundings.around(session(asker), needs, None).await,
            name: query.domain(),
            options: dns.options.clone(),
            answers: Answers::default(),
        };
        run.decide().await
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

/// The rules over one query.
struct Run<'a> {
    policy: &'a Policy,
    dns: &'a DnsRouter,
    query: &'a Query,
    asker: Asker<'a>,
    sets: Arc<RuleSets>,
    around: Around,
    name: Option<Domain>,
    options: QueryOptions,
    answers: Answers<'a>,
}

type Outcome = Result<Answer, DnsError>;

/// A rule that waits for answers while others are judged, and how many answers were asked for before it.
type Racing<'a> = (&'a Rule, usize);

impl<'a> Run<'a> {
    async fn decide(&mut self) -> Outcome {
        let mut racing: Vec<Racing<'a>> = Vec::new();
        let policy = self.policy;
        let candidates = {
            let domain = self.name.as_ref().map(Domain::as_str);
            // Which of the rules wait for addresses is seen one by one.
            let asked = Facts { domain, addresses_pending: true, ..Facts::default() };
            policy.index.candidates(&asked, 0)
        };
        // Whoever wants to know is told of all.
        let told = policy.told.get().is_some();
        let all = if told { policy.rules.len() } else { 0 };
        for index in (0..all).chain(candidates.take_while(|_| !told)) {
            let rule = &policy.rules[index];
            let until = self.answers.len();
            if rule.race && !self.answers.has_come(&rule.refers, until) {
                racing.push((rule, until));
                continue;
            }
            if !racing.is_empty() && !rule.race {
                if rule.speculative && self.answers.has_come(&rule.refers, until) {
                    if let Some(outcome) = self.speculate(rule, until, &mut racing).await {
                        return outcome;
                    }
                    continue;
                }
                if let Some(outcome) = self.finish(&mut racing).await {
                    return outcome;
                }
            }
            self.answers.wait(&rule.refers, until).await;
            if let Some(outcome) = self.judge(rule, until).await {
                return outcome;
            }
        }
        if let Some(outcome) = self.finish(&mut racing).await {
            return outcome;
        }
        policy.tell(|| vec![by_default(self.dns, self.query)]);
        self.dns.default.exchange(self.query, &self.options).await
    }

    /// Judges the rules that race, in the order in which their answers come.
    async fn finish(&mut self, racing: &mut Vec<Racing<'a>>) -> Option<Outcome> {
        while !racing.is_empty() {
            let ready = racing.iter().position(|(rule, until)| self.answers.has_come(&rule.refers, *until));
            let Some(ready) = ready else {
                self.answers.progress().await;
                continue;
            };
            let (rule, until) = racing.remove(ready);
            if let Some(outcome) = self.judge(rule, until).await {
                return Some(outcome);
            }
        }
        None
    }

    /// Sends the query of a rule that matches while others still race. Its answer counts if none of them matches.
    async fn speculate(
        &mut self,
        rule: &'a Rule,
        until: usize,
        racing: &mut Vec<Racing<'a>>,
    ) -> Option<Outcome> {
        let Action::Route { server, changes } = &rule.action else { return self.judge(rule, until).await };
        let client = self.policy.client(self.dns, server, self.asker);
        if self.filters(rule) || client.is_none() || !self.matches(rule, until, None) {
            return match self.finish(racing).await {
                Some(outcome) => Some(outcome),
                None => self.judge(rule, until).await,
            };
        }
        let (query, mut asked) = (self.query, self.options.clone());
        changes.apply(&mut asked);
        let mut ours = pin!(async move { Some(client?.exchange(query, &asked).await) });
        let mut answered: Option<Outcome> = None;
        {
            let mut others = pin!(self.finish(racing));
            loop {
                tokio::select! {
                    outcome = &mut others => match outcome {
                        Some(outcome) => return Some(outcome),
                        None => break,
                    },
                    outcome = &mut ours, if answered.is_none() => answered = outcome,
                }
            }
        }
        match answered {
            Some(answered) => Some(answered),
            None => ours.await,
        }
    }

    /// Whether the rule asks first, and then looks at the addresses.
    fn filters(&self, rule: &Rule) -> bool {
        self.policy.filters && rule.filters(&self.sets)
    }

    /// The addresses are those of an answer, where the rule waits for one.
    fn matches(&self, rule: &Rule, until: usize, addresses: Option<&[IpAddr]>) -> bool {
        let before = Before { answers: &self.answers, until };
        let facts = Facts {
            domain: self.name.as_ref().map(Domain::as_str),
            responses: Some(&before),
            addresses_pending: self.filters(rule) && addresses.is_none(),
            addresses: addresses.unwrap_or_default(),
            ..self.around.complete(facts(self.query, self.asker))
        };
        let Self { policy, query, .. } = self;
        if policy.told.get().is_none() {
            return rule.matcher.matches(&facts, &self.sets);
        }
        let with = if addresses.is_some() { ", with the answer's addresses" } else { "" };
        let head =
            format!("dns.rules[{}] for {query}{with}: {} => {}", rule.place, rule.matcher, rule.action);
        let (matched, lines) = explained(head, &rule.matcher, &facts, &self.sets);
        policy.tell(|| lines);
        matched
    }

    /// Judges a rule, and does what it says if it matches. `None`: the next one is to be asked.
    async fn judge(&mut self, rule: &'a Rule, until: usize) -> Option<Outcome> {
        let (dns, query, filters) = (self.dns, self.query, self.filters(rule));
        if (filters && !has_addresses(query.kind())) || !self.matches(rule, until, None) {
            return None;
        }
        match &rule.action {
            Action::SetOptions(changes) => changes.apply(&mut self.options),
            Action::Route { server, changes } => {
                let client = self.policy.client(dns, server, self.asker)?;
                let mut asked = self.options.clone();
                changes.apply(&mut asked);
                if !(filters && !asked.disable_cache && self.policy.rejected.contains(server, query)) {
                    let answer = match client.exchange(query, &asked).await {
                        Ok(answer) if filters => answer,
                        outcome => return Some(outcome),
                    };
                    let found = addresses(&answer.reply);
                    if has_meaning(&answer.reply) && self.matches(rule, until, Some(&found)) {
                        return Some(Ok(answer));
                    }
                    self.policy.rejected.insert(server, query);
                }
                debug!(%query, server, "answer does not pass the rule");
                // sing-box forgets with the answer what earlier rules have set.
                self.options.clone_from(&dns.options);
            }
            Action::Evaluate { server, tag, changes } => {
                let client = self.policy.client(dns, server, self.asker)?;
                let mut asked = self.options.clone();
                changes.apply(&mut asked);
                self.answers.begin(tag.clone(), async move {
                    let answer = client.exchange(query, &asked).await;
                    if let Err(error) = &answer {
                        debug!(%query, server, %error, "evaluated query failed");
                    }
                    answer.ok().map(Evaluated::new)
                });
            }
            Action::Respond(tag) => {
                let answer = self.answers.find(tag.as_deref(), until).map(|found| found.answer.clone());
                let none = || Answer::fresh(Reply::empty(query, Rcode::SERVFAIL));
                return Some(Ok(answer.unwrap_or_else(none)));
            }
            Action::Reject(refusal) if refusal.drops() => return Some(Err(DnsError::Dropped)),
            Action::Reject(_) => return Some(Ok(Answer::fresh(Reply::refused(query)))),
            Action::Predefined(predefined) => {
                let reply = predefined.reply(query);
                let reply = reply.unwrap_or_else(|| Reply::empty(query, Rcode::SERVFAIL));
                return Some(Ok(Answer::fresh(reply)));
            }
        }
        None
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

fn session(asker: Asker<'_>) -> Option<&Session> {
    match asker {
        Asker::Client(session) => Some(session),
        Asker::Lookup(session) => session,
    }
}

/// What rules look at, but for the name.
fn facts<'a>(query: &Query, asker: Asker<'a>) -> Facts<'a> {
    let session = session(asker);
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

/// Collects the answers that conditions refer to.
fn note_references(condition: &Condition<DnsMatch>, refers: &mut Vec<Option<String>>) {
    match condition {
        Condition::Fields(fields) => match asked_response(fields) {
            Some(MatchResponse::Tag(tag)) => refers.push(Some(tag.clone())),
            Some(MatchResponse::Latest) => refers.push(None),
            Some(MatchResponse::No) | None => {}
        },
        Condition::Logical(logical) => logical.rules.iter().for_each(|part| note_references(part, refers)),
    }
}

fn check(one: &RuleOption<DnsMatch, DnsAction>, evaluates: bool, place: &str, errors: &mut BuildErrors) {
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
