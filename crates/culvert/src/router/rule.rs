//! From the options of a route rule to the rule that is matched and the action that follows.

use std::sync::Mutex;
use std::time::Duration;

use culvert_config::options::rule::{
    Condition, RejectMethod, Resolve, RouteAction, RouteActionOptions, RouteMatch,
};
use culvert_core::Strategy;
use culvert_protocols::fields::dial::strategy;
use culvert_rules::rule as rules;
use culvert_tls::settings::Fragment;
use culvert_wire::Host;
use tokio::time::Instant;

use super::RuleSetStore;
use super::condition::{Conditions, rule_options, unmatched};
use super::sniff::Settings;
use crate::dns::{Dns, QueryChanges, Scope};
use crate::instance::BuildErrors;

/// A rule and what happens to what it matches.
pub(super) struct Rule {
    pub(super) matcher: rules::Rule,
    pub(super) action: Action,
    /// The rule in words: its conditions, then its action.
    pub(super) text: std::sync::Arc<str>,
}

/// What happens to a connection that matches.
pub(super) enum Action {
    /// Goes to the outbound of this tag.
    Route { outbound: String, options: Options },
    /// Changes options, and the next rule is asked.
    SetOptions(Options),
    /// The first bytes are looked at, and the next rule is asked.
    Sniff(Settings),
    /// The addresses of the destination are looked up, and the next rule is asked.
    Resolve(Lookup),
    /// Is answered by the DNS servers of the configuration.
    HijackDns,
    /// Is refused.
    Reject(Refusal),
}

/// How a destination is looked up.
pub(super) struct Lookup {
    pub(super) scope: Scope,
    pub(super) strategy: Strategy,
}

/// Options that a rule sets for the connections it matches.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) override_host: Option<Host>,
    pub(super) override_port: Option<u16>,
    pub(super) udp_timeout: Option<Duration>,
    /// Datagrams come from the address that was dialled, not from what the client asked for.
    pub(super) keep_peers: bool,
    /// Datagrams go to the first destination only, and come from it.
    pub(super) udp_connect: bool,
    /// How a client's first TLS message is taken apart.
    pub(super) fragment: Fragment,
}

/// Builds one rule; `place` is its path in the configuration. `None` if something of it is not built yet, which is
/// then noted in `errors`.
pub(super) fn build(
    condition: &Condition<RouteMatch>,
    action: &RouteAction,
    place: &str,
    dns: &Dns,
    rule_sets: &RuleSetStore,
    errors: &mut BuildErrors,
) -> Option<Rule> {
    let before = errors.len();
    let matcher = matcher(condition, place, rule_sets, errors);
    let action = build_action(action, place, dns, errors);
    if errors.len() > before {
        return None;
    }
    let (matcher, action) = (matcher?, action?);
    let text = format!("{matcher} => {action}").into();
    Some(Rule { matcher, action, text })
}

/// Builds the conditions of a rule at `place`; `None` if they cannot be, which is then noted in `errors`.
pub(crate) fn matcher<M: Conditions>(
    condition: &Condition<M>,
    place: &str,
    rule_sets: &RuleSetStore,
    errors: &mut BuildErrors,
) -> Option<rules::Rule> {
    let options = rule_options(condition);
    for key in unmatched(&options) {
        tracing::warn!("{place}: `{key}` matches on phones and tablets only, and never here");
    }
    let built = rules::Rule::new(options, &mut |tag| rule_sets.id(tag));
    built.map_err(|error| errors.invalid(place, error)).ok()
}

fn build_action(action: &RouteAction, place: &str, dns: &Dns, errors: &mut BuildErrors) -> Option<Action> {
    match action {
        RouteAction::Route(to) => {
            let options = route_options(&to.options, place, errors)?;
            Some(Action::Route { outbound: to.outbound.0.clone(), options })
        }
        RouteAction::RouteOptions(set) => route_options(&set.options, place, errors).map(Action::SetOptions),
        // Without the kernel's help there is nothing to bypass: it goes to the outbound, if one is named.
        RouteAction::Bypass(bypass) => {
            let options = route_options(&bypass.options, place, errors)?;
            Some(match bypass.outbound.get() {
                Some(outbound) => Action::Route { outbound: outbound.to_owned(), options },
                None => Action::SetOptions(Options::default()),
            })
        }
        RouteAction::Reject(reject) => Some(Action::Reject(Refusal::new(reject.method, reject.no_drop))),
        RouteAction::Sniff(sniff) => Some(Action::Sniff(Settings::new(sniff))),
        RouteAction::Resolve(options) => {
            let strategy = strategy(options.strategy);
            let scope = dns.scope(options.server.get(), &QueryChanges::from(&**options));
            Some(Action::Resolve(Lookup { scope, strategy }))
        }
        RouteAction::HijackDns(_) => Some(Action::HijackDns),
    }
}

impl From<&Resolve> for QueryChanges {
    fn from(options: &Resolve) -> Self {
        Self {
            timeout: options.timeout.get(),
            disable_cache: options.disable_cache,
            disable_optimistic_cache: options.disable_optimistic_cache,
            rewrite_ttl: options.rewrite_ttl,
            client_subnet: options.client_subnet.as_ref().map(Self::subnet),
            strategy: None,
        }
    }
}

fn route_options(options: &RouteActionOptions, place: &str, errors: &mut BuildErrors) -> Option<Options> {
    let before = errors.len();
    for (key, used) in [
        ("network_strategy", options.network_strategy.is_some()),
        ("fallback_delay", options.fallback_delay > 0),
    ] {
        if used {
            // As in sing-box 1.14.4, where only its apps know which interface is what.
            tracing::warn!("`{key}` in {place} has no effect: interfaces have no type on this system");
        }
    }
    if !options.tls_spoof.is_empty() {
        errors.not_built(format!("rule option `tls_spoof` in {place}"));
    }
    let override_host = match options.override_address.as_str() {
        "" => None,
        text => Host::parse(text).map_err(|error| errors.invalid(place, error)).ok(),
    };
    (errors.len() == before).then_some(Options {
        override_host,
        override_port: Some(options.override_port).filter(|port| *port > 0),
        udp_timeout: options.udp_timeout.get(),
        keep_peers: options.udp_disable_domain_unmapping,
        udp_connect: options.udp_connect,
        fragment: Fragment {
            segments: options.tls_fragment,
            records: options.tls_record_fragment,
            fallback_delay: options.tls_fragment_fallback_delay.get(),
        },
    })
}

/// `reject`: tells the client, until one that keeps asking is simply left waiting.
pub(crate) struct Refusal {
    method: RejectMethod,
    no_drop: bool,
    /// The current window's start and hits.
    window: Mutex<(Instant, u32)>,
}

/// After this many hits in this time a `reject` without `no_drop` turns into a drop (sing-box 1.14.4).
const DROP_AFTER: u32 = 50;
const DROP_WINDOW: Duration = Duration::from_secs(30);

impl Refusal {
    pub(crate) fn new(method: RejectMethod, no_drop: bool) -> Self {
        Self { method, no_drop, window: Mutex::new((Instant::now(), 0)) }
    }

    /// Counts a hit and says whether this one is to be dropped silently.
    pub(crate) fn drops(&self) -> bool {
        if self.method == RejectMethod::Drop {
            return true;
        }
        if self.no_drop {
            return false;
        }
        let mut window = self.window.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if window.0.elapsed() > DROP_WINDOW {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        window.1 > DROP_AFTER
    }
}

/// As the API prints actions.
impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Route { outbound, .. } => write!(f, "route({outbound})"),
            Self::SetOptions(_) => f.write_str("route-options"),
            Self::Sniff(_) => f.write_str("sniff"),
            Self::Resolve(_) => f.write_str("resolve"),
            Self::HijackDns => f.write_str("hijack-dns"),
            Self::Reject(refusal) if refusal.method == RejectMethod::Drop => f.write_str("reject(drop)"),
            Self::Reject(_) => f.write_str("reject"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reject_becomes_drop_for_those_who_keep_asking() {
        let refusal = Refusal::new(RejectMethod::Default, false);
        assert_eq!((0..60).filter(|_| refusal.drops()).count(), 10);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(!refusal.drops(), "a new window begins");
        let patient = Refusal::new(RejectMethod::Default, true);
        assert!((0..100).all(|_| !patient.drops()));
        let silent = Refusal::new(RejectMethod::Drop, false);
        assert!(silent.drops());
    }
}
