//! The router: asks the rules of the configuration in order and names the outbound.
//!
//! | module | holds |
//! |---|---|
//! | [`rule`] | a rule: conditions, made ready, and its action |
//! | [`condition`] | conditions of route rules, DNS rules and rule-sets in the matcher's words |
//! | [`rule_sets`] | the rule-sets, read again when their files change |
//! | [`remote`] | those that are fetched |
//! | [`sniff`] | the action of that name |
//! | [`surroundings`], `leases` | the program behind a connection, interfaces, neighbours |
//! | [`explain`] | a decision in words |
//! | [`preferred`] | which destinations endpoints ask for |
//! | [`shaped`] | an outbound whose first TLS message is taken apart, or whose datagrams go to one target only |
//! | [`redirect`] | an outbound that dials something else than the client named |

pub(crate) mod condition;
pub(crate) mod explain;
mod leases;
mod preferred;
mod redirect;
pub(crate) mod remote;
pub(crate) mod rule;
mod rule_sets;
mod shaped;
mod sniff;
pub(crate) mod surroundings;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::route::RouteOptions;
use culvert_core::flow::Way;
use culvert_core::{Decision, DialError, Handler, Incoming, Network, ResolveError, Session, Sniffed};
use culvert_rules::rule::{Facts, IpVersion, Needs, Network as RuleNetwork, Process, RuleIndex, RuleSets};
use culvert_wire::{Domain, Host, Target};

use crate::dns::Dns;
use crate::groups::Member;
use crate::instance::BuildErrors;
use redirect::Redirected;
pub(crate) use rule::Refusal;
use rule::{Action, Options, Rule};
pub(crate) use rule_sets::RuleSetStore;
use shaped::Shape;
use surroundings::{Around, Surroundings};

/// The rules and the outbounds they name.
pub(crate) struct Router {
    rules: Vec<Rule>,
    /// Finds those of them that may match.
    index: RuleIndex,
    outbounds: HashMap<String, Member>,
    default: Member,
    dns: Arc<Dns>,
    hijack: Arc<dyn Handler>,
    rule_sets: Arc<RuleSetStore>,
    surroundings: Arc<Surroundings>,
    /// What the rules by themselves look at.
    needs: Needs,
}

impl Router {
    /// Builds the rules. What is not built yet or invalid is noted in `errors`.
    pub(crate) fn new(
        options: &RouteOptions,
        outbounds: HashMap<String, Member>,
        default: Member,
        dns: Arc<Dns>,
        rule_sets: Arc<RuleSetStore>,
        surroundings: Arc<Surroundings>,
        errors: &mut BuildErrors,
    ) -> Self {
        let mut rules = Vec::with_capacity(options.rules.len());
        for (index, one) in options.rules.iter().enumerate() {
            let place = format!("route.rules[{index}]");
            rules.extend(rule::build(&one.condition, &one.action, &place, &dns, &rule_sets, errors));
        }
        let hijack = dns.handler();
        let mut needs = needs_of(rules.iter().map(|rule| &rule.matcher));
        needs.process |= options.find_process;
        needs.neighbor |= options.find_neighbor;
        let index = RuleIndex::new(rules.iter().map(|rule| &rule.matcher));
        Self { rules, index, outbounds, default, dns, hijack, rule_sets, surroundings, needs }
    }

    /// The decision, with `watch` looking on. The data path looks on with `()`, which the compiler removes.
    async fn judge(&self, incoming: &mut Incoming, watch: &mut impl Watch) -> Decision {
        let rule_sets = self.rule_sets.snapshot();
        let mut journey = Journey::begin(&incoming.session.target);
        let mut needs = self.needs;
        needs.process |= self.rule_sets.needs_process();
        journey.around = self.surroundings.around(Some(&incoming.session), needs, watch.process()).await;
        if let Err(error) = self.name_destination(&mut incoming.session, &mut journey) {
            return Decision::Refuse { error, way: Way { rule: "fakeip".into(), chain: Vec::new() } };
        }
        journey.ip_version = incoming.session.target.host.ip().map(|ip| match ip {
            IpAddr::V4(_) => IpVersion::V4,
            IpAddr::V6(_) => IpVersion::V6,
        });
        let mut from = 0;
        // What rules look at changes only where one has matched.
        while let Some(index) = watch.first(self, from, &journey.facts(&incoming.session), &rule_sets) {
            from = index + 1;
            let rule = &self.rules[index];
            match &rule.action {
                Action::SetOptions(options) => journey.set(options, &mut incoming.session),
                Action::Sniff(settings) => {
                    // Only the first one on a connection looks (sing-box 1.14.4).
                    if !std::mem::replace(&mut journey.sniffed, true) {
                        match watch.sniffed(settings) {
                            Some(found) => incoming.session.sniffed = found,
                            None => sniff::sniff(incoming, settings).await,
                        }
                    }
                }
                Action::Resolve(lookup) => {
                    let Host::Domain(name) = &incoming.session.target.host else { continue };
                    let found = lookup.scope.lookup(name, lookup.strategy, &incoming.session).await;
                    watch.resolved(name, &found);
                    match found {
                        Ok(addresses) => journey.addresses = addresses,
                        Err(source) => {
                            let error = DialError::Resolve { name: name.clone(), source };
                            return refuse(&rule.text, error);
                        }
                    }
                }
                Action::Route { outbound, options } => {
                    journey.set(options, &mut incoming.session);
                    return match self.outbounds.get(outbound) {
                        Some(member) => self.dial(member, &rule.text, journey, &incoming.session),
                        None => refuse(&rule.text, DialError::UnknownOutbound(outbound.clone())),
                    };
                }
                Action::HijackDns => {
                    let way = Way { rule: Arc::clone(&rule.text), chain: Vec::new() };
                    return Decision::Serve { handler: Arc::clone(&self.hijack), way };
                }
                Action::Reject(refusal) if refusal.drops() => {
                    return refuse(&rule.text, DialError::Dropped("rule"));
                }
                Action::Reject(_) => return refuse(&rule.text, DialError::Rejected("rule")),
            }
        }
        self.dial(&self.default, &"final".into(), journey, &incoming.session)
    }

    /// Finds the name behind an address: a fake one's is dialled in its place, any other's is known to the rules.
    fn name_destination(&self, session: &mut Session, journey: &mut Journey) -> Result<(), DialError> {
        let Some(ip) = session.target.host.ip() else { return Ok(()) };
        match self.dns.name_of(ip) {
            Ok(None) => {}
            Ok(Some(name)) if self.dns.is_fake(ip) => session.target.host = Host::Domain(name),
            Ok(Some(name)) => journey.name = Some(name),
            Err(reason) => return Err(DialError::Target { target: session.target.clone(), reason }),
        }
        Ok(())
    }

    fn dial(&self, member: &Member, rule: &Arc<str>, journey: Journey, session: &Session) -> Decision {
        let Some(picked) = member.pick(session.network, Some(session)) else {
            return refuse(rule, DialError::Network(session.network));
        };
        let way = Way { rule: Arc::clone(rule), chain: picked.chain };
        let udp_idle = journey.udp_timeout;
        let shape = journey.shape;
        let asked = journey.asked.clone();
        let outbound = Redirected::wrap(picked.outbound, journey, session, &self.dns);
        let outbound = shape.wrap(outbound, &asked, session.network);
        Decision::Dial { outbound, way, udp_idle }
    }
}

#[async_trait]
impl culvert_core::Router for Router {
    async fn decide(&self, incoming: &mut Incoming) -> Decision {
        self.judge(incoming, &mut ()).await
    }
}

fn refuse(rule: &Arc<str>, error: DialError) -> Decision {
    Decision::Refuse { error, way: Way { rule: Arc::clone(rule), chain: Vec::new() } }
}

/// Judges rules, and may tell what it sees.
trait Watch: Send {
    /// The program behind the connection, if it is not to be found out.
    fn process(&self) -> Option<Arc<Process>> {
        None
    }

    /// What sniffing finds, if it is not to be found out.
    fn sniffed(&mut self, _settings: &sniff::Settings) -> Option<Option<Sniffed>> {
        None
    }

    /// What a `resolve` action has found.
    fn resolved(&mut self, _name: &Domain, _found: &Result<Vec<IpAddr>, ResolveError>) {}

    /// The first rule from `from` on that matches.
    fn first(&mut self, router: &Router, from: usize, facts: &Facts<'_>, sets: &RuleSets) -> Option<usize>;
}

impl Watch for () {
    fn first(&mut self, router: &Router, from: usize, facts: &Facts<'_>, sets: &RuleSets) -> Option<usize> {
        let mut candidates = router.index.candidates(facts, from);
        candidates.find(|index| router.rules[*index].matcher.matches(facts, sets))
    }
}

/// What the rules have found out and set so far.
struct Journey {
    /// The target as the client named it.
    asked: Target,
    /// What kind of address the client named; another target set later does not change it.
    ip_version: Option<IpVersion>,
    /// The name behind an address, from an answer given before.
    name: Option<Domain>,
    /// What `resolve` found for a destination that is a name.
    addresses: Vec<IpAddr>,
    sniffed: bool,
    udp_timeout: Option<Duration>,
    keep_peers: bool,
    shape: Shape,
    around: Around,
}

impl Journey {
    fn begin(target: &Target) -> Self {
        Self {
            asked: target.clone(),
            ip_version: None,
            name: None,
            addresses: Vec::new(),
            sniffed: false,
            udp_timeout: None,
            keep_peers: false,
            shape: Shape::default(),
            around: Around::default(),
        }
    }

    /// Sets options; what a later rule sets counts more.
    fn set(&mut self, options: &Options, session: &mut Session) {
        if let Some(host) = &options.override_host {
            session.target.host = host.clone();
            self.addresses.clear();
        }
        if let Some(port) = options.override_port {
            session.target.port = port;
        }
        self.udp_timeout = options.udp_timeout.or(self.udp_timeout);
        self.keep_peers |= options.keep_peers;
        self.shape.set(options);
    }

    /// What rules look at.
    fn facts<'a>(&'a self, session: &'a Session) -> Facts<'a> {
        let sniffed = session.sniffed.as_ref();
        let sniffed_domain = sniffed.and_then(|sniffed| sniffed.domain.as_ref());
        Facts {
            ip_version: self.ip_version,
            protocol: sniffed.map(|sniffed| sniffed.protocol),
            client: sniffed.and_then(|sniffed| sniffed.client.as_deref()),
            // What a client really asks for weighs more than what its resolver made of it.
            domain: sniffed_domain
                .or(self.name.as_ref())
                .or(session.target.host.domain())
                .map(Domain::as_str),
            destination: session.target.host.ip(),
            addresses: &self.addresses,
            port: session.target.port,
            ..self.around.complete(session_facts(session))
        }
    }
}

/// What rules by themselves look at, without their rule-sets.
pub(crate) fn needs_of<'a>(rules: impl Iterator<Item = &'a culvert_rules::rule::Rule>) -> Needs {
    let mut all = Needs::default();
    for rule in rules {
        let needs = rule.needs(&RuleSets::default());
        all.process |= needs.process;
        all.neighbor |= needs.neighbor;
    }
    all
}

/// The facts that do not change on the way.
pub(crate) fn session_facts(session: &Session) -> Facts<'_> {
    Facts {
        network: Some(match session.network {
            Network::Tcp => RuleNetwork::Tcp,
            Network::Udp => RuleNetwork::Udp,
            Network::Icmp => RuleNetwork::Icmp,
        }),
        inbound: &session.inbound.name,
        user: session.user.as_deref(),
        source: Some(session.source.ip()),
        source_port: session.source.port(),
        ..Facts::default()
    }
}
