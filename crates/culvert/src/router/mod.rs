//! The router: asks the rules of the configuration in order and names the outbound.

mod rule;
mod sniff;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::route::RouteOptions;
use culvert_core::flow::Way;
use culvert_core::{Decision, DialError, Incoming, Network, Outbound, Session};
use culvert_rules::rule::{Facts, Network as RuleNetwork, RuleSets};

use crate::instance::BuildErrors;
use rule::{Action, Options, Rule};

/// The rules and the outbounds they name.
pub(crate) struct Router {
    rules: Vec<Rule>,
    outbounds: HashMap<String, Arc<dyn Outbound>>,
    default: Arc<dyn Outbound>,
    rule_sets: RuleSets,
}

impl Router {
    /// Builds the rules. What is not built yet or invalid is noted in `errors`.
    pub(crate) fn new(
        options: &RouteOptions,
        outbounds: HashMap<String, Arc<dyn Outbound>>,
        default: Arc<dyn Outbound>,
        errors: &mut BuildErrors,
    ) -> Self {
        let rules = options.rules.iter().enumerate();
        let rules = rules
            .filter_map(|(index, one)| {
                rule::build(&one.condition, &one.action, &format!("route.rules[{index}]"), errors)
            })
            .collect();
        Self { rules, outbounds, default, rule_sets: RuleSets::default() }
    }

    fn dial(&self, outbound: &Arc<dyn Outbound>, rule: Arc<str>, options: Options) -> Decision {
        let way = Way { rule, chain: vec![Arc::clone(&outbound.tag().name)] };
        Decision::Dial { outbound: Arc::clone(outbound), way, udp_idle: options.udp_timeout }
    }
}

#[async_trait]
impl culvert_core::Router for Router {
    async fn decide(&self, incoming: &mut Incoming) -> Decision {
        let mut options = Options::default();
        for rule in &self.rules {
            if !rule.matcher.matches(&facts(&incoming.session), &self.rule_sets) {
                continue;
            }
            match &rule.action {
                Action::SetOptions(more) => options.merge(more),
                Action::Sniff(settings) => sniff::sniff(incoming, settings).await,
                Action::Route { outbound, options: more } => {
                    options.merge(more);
                    options.apply(&mut incoming.session);
                    return match self.outbounds.get(outbound) {
                        Some(outbound) => self.dial(outbound, Arc::clone(&rule.text), options),
                        None => refuse(rule, DialError::UnknownOutbound(outbound.clone())),
                    };
                }
                Action::Reject(refusal) if refusal.drops() => {
                    return refuse(rule, DialError::Dropped("rule"));
                }
                Action::Reject(_) => return refuse(rule, DialError::Rejected("rule")),
            }
        }
        options.apply(&mut incoming.session);
        self.dial(&self.default, "final".into(), options)
    }
}

fn refuse(rule: &Rule, error: DialError) -> Decision {
    Decision::Refuse { error, way: Way { rule: Arc::clone(&rule.text), chain: Vec::new() } }
}

impl Options {
    /// What a later rule sets counts more.
    fn merge(&mut self, later: &Self) {
        let Self { override_host, override_port, udp_timeout } = later.clone();
        self.override_host = override_host.or(self.override_host.take());
        self.override_port = override_port.or(self.override_port);
        self.udp_timeout = udp_timeout.or(self.udp_timeout);
    }

    fn apply(&self, session: &mut Session) {
        if let Some(host) = &self.override_host {
            session.target.host = host.clone();
        }
        if let Some(port) = self.override_port {
            session.target.port = port;
        }
    }
}

/// What rules look at.
fn facts(session: &Session) -> Facts<'_> {
    let sniffed = session.sniffed.as_ref();
    let sniffed_domain = sniffed.and_then(|sniffed| sniffed.domain.as_ref());
    Facts {
        network: Some(match session.network {
            Network::Tcp => RuleNetwork::Tcp,
            Network::Udp => RuleNetwork::Udp,
        }),
        inbound: &session.inbound.name,
        user: session.user.as_deref(),
        protocol: sniffed.map(|sniffed| sniffed.protocol),
        client: sniffed.and_then(|sniffed| sniffed.client.as_deref()),
        domain: session.target.host.domain().or(sniffed_domain).map(culvert_wire::Domain::as_str),
        destination: session.target.host.ip(),
        port: session.target.port,
        source: Some(session.source.ip()),
        source_port: session.source.port(),
        ..Facts::default()
    }
}
