//! From the options of a route rule to the rule that is matched and the action that follows.

use std::sync::Mutex;
use std::time::Duration;

use culvert_config::options::dial::InterfaceType;
use culvert_config::options::rule::{
    Condition, LogicalMode, Reject, RejectMethod, RouteAction, RouteActionOptions, RouteMatch,
};
use culvert_config::value::{Cidr, List};
use culvert_rules::rule::{
    self as rules, DefaultRule, IpVersion, LogicalRule, Mode, NetworkType, RuleOptions,
};
use culvert_wire::Host;
use tokio::time::Instant;

use super::sniff::Settings;
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
    /// Is refused.
    Reject(Refusal),
}

/// Options that a rule sets for the connections it matches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) override_host: Option<Host>,
    pub(super) override_port: Option<u16>,
    pub(super) udp_timeout: Option<Duration>,
}

/// Builds one rule; `place` is its path in the configuration. `None` if something of it is not built yet, which is
/// then noted in `errors`.
pub(super) fn build(
    condition: &Condition<RouteMatch>,
    action: &RouteAction,
    place: &str,
    errors: &mut BuildErrors,
) -> Option<Rule> {
    let before = errors.len();
    let options = conditions(condition, place, errors);
    let action = build_action(action, place, errors);
    if errors.len() > before {
        return None;
    }
    match rules::Rule::new(options, &mut |_| None) {
        Ok(matcher) => {
            let action = action?;
            let text = format!("{matcher} => {action}").into();
            Some(Rule { matcher, action, text })
        }
        Err(error) => {
            errors.invalid(place, error);
            None
        }
    }
}

fn conditions(condition: &Condition<RouteMatch>, place: &str, errors: &mut BuildErrors) -> RuleOptions {
    match condition {
        Condition::Fields(fields) => default_rule(fields, place, errors).into(),
        Condition::Logical(logical) => {
            let mode = match logical.mode {
                LogicalMode::And => Mode::And,
                LogicalMode::Or => Mode::Or,
            };
            let rules = logical.rules.iter().map(|part| conditions(part, place, errors)).collect();
            LogicalRule { mode, rules, invert: logical.invert }.into()
        }
    }
}

fn default_rule(fields: &RouteMatch, place: &str, errors: &mut BuildErrors) -> DefaultRule {
    for (key, used) in unbuilt(fields) {
        if used {
            errors.not_built(format!("rule item `{key}` in {place}"));
        }
    }
    let texts = |list: &List<String>| list.0.clone();
    let cidrs = |list: &List<Cidr>| list.0.iter().map(|cidr| cidr.prefix.to_string()).collect();
    DefaultRule {
        inbound: fields.inbound.0.iter().map(|tag| tag.0.clone()).collect(),
        ip_version: match fields.ip_version {
            4 => Some(IpVersion::V4),
            6 => Some(IpVersion::V6),
            _ => None,
        },
        network: texts(&fields.network),
        auth_user: texts(&fields.auth_user),
        protocol: texts(&fields.protocol),
        client: texts(&fields.client),
        domain: texts(&fields.domain),
        domain_suffix: texts(&fields.domain_suffix),
        domain_keyword: texts(&fields.domain_keyword),
        domain_regex: fields.domain_regex.0.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
        source_ip_cidr: cidrs(&fields.source_ip_cidr),
        source_ip_is_private: fields.source_ip_is_private,
        ip_cidr: cidrs(&fields.ip_cidr),
        ip_is_private: fields.ip_is_private,
        source_port: fields.source_port.0.clone(),
        source_port_range: fields.source_port_range.0.iter().map(ToString::to_string).collect(),
        port: fields.port.0.clone(),
        port_range: fields.port_range.0.iter().map(ToString::to_string).collect(),
        process_name: texts(&fields.process_name),
        process_path: texts(&fields.process_path),
        process_path_regex: fields
            .process_path_regex
            .0
            .iter()
            .map(|pattern| pattern.as_str().to_owned())
            .collect(),
        package_name: texts(&fields.package_name),
        user: texts(&fields.user),
        user_id: fields.user_id.0.iter().map(|id| i64::from(*id)).collect(),
        clash_mode: Some(fields.clash_mode.clone()).filter(|mode| !mode.is_empty()),
        network_type: fields.network_type.0.iter().map(network_type).collect(),
        network_is_expensive: fields.network_is_expensive,
        network_is_constrained: fields.network_is_constrained,
        wifi_ssid: texts(&fields.wifi_ssid),
        wifi_bssid: texts(&fields.wifi_bssid),
        source_mac_address: texts(&fields.source_mac_address),
        source_hostname: texts(&fields.source_hostname),
        rule_set: fields.rule_set.0.iter().map(|tag| tag.0.clone()).collect(),
        rule_set_ip_cidr_match_source: fields.rule_set_ip_cidr_match_source,
        invert: fields.invert,
        ..DefaultRule::default()
    }
}

/// Items whose facts nobody finds yet. Such a rule would silently never match, so it is refused instead.
fn unbuilt(fields: &RouteMatch) -> [(&'static str, bool); 19] {
    [
        ("process_name", !fields.process_name.0.is_empty()),
        ("process_path", !fields.process_path.0.is_empty()),
        ("process_path_regex", !fields.process_path_regex.0.is_empty()),
        ("package_name", !fields.package_name.0.is_empty()),
        ("package_name_regex", !fields.package_name_regex.0.is_empty()),
        ("user", !fields.user.0.is_empty()),
        ("user_id", !fields.user_id.0.is_empty()),
        ("network_type", !fields.network_type.0.is_empty()),
        ("network_is_expensive", fields.network_is_expensive),
        ("network_is_constrained", fields.network_is_constrained),
        ("wifi_ssid", !fields.wifi_ssid.0.is_empty()),
        ("wifi_bssid", !fields.wifi_bssid.0.is_empty()),
        ("interface_address", !fields.interface_address.0.is_empty()),
        ("network_interface_address", !fields.network_interface_address.0.is_empty()),
        ("default_interface_address", !fields.default_interface_address.0.is_empty()),
        ("source_mac_address", !fields.source_mac_address.0.is_empty()),
        ("source_hostname", !fields.source_hostname.0.is_empty()),
        ("preferred_by", !fields.preferred_by.0.is_empty()),
        ("rule_set", !fields.rule_set.0.is_empty()),
    ]
}

fn network_type(kind: &InterfaceType) -> NetworkType {
    match kind {
        InterfaceType::Wifi => NetworkType::Wifi,
        InterfaceType::Cellular => NetworkType::Cellular,
        InterfaceType::Ethernet => NetworkType::Ethernet,
        InterfaceType::Other => NetworkType::Other,
    }
}

fn build_action(action: &RouteAction, place: &str, errors: &mut BuildErrors) -> Option<Action> {
    let not_built = |errors: &mut BuildErrors| {
        errors.not_built(format!("rule action `{}` in {place}", action.name()));
        None
    };
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
        RouteAction::Reject(reject) => Some(Action::Reject(Refusal::new(reject))),
        RouteAction::Sniff(sniff) => Some(Action::Sniff(Settings::new(sniff))),
        RouteAction::HijackDns(_) | RouteAction::Resolve(_) => not_built(errors),
    }
}

fn route_options(options: &RouteActionOptions, place: &str, errors: &mut BuildErrors) -> Option<Options> {
    let unbuilt = [
        ("network_strategy", options.network_strategy.is_some()),
        ("fallback_delay", options.fallback_delay > 0),
        ("udp_connect", options.udp_connect),
        ("tls_fragment", options.tls_fragment),
        ("tls_record_fragment", options.tls_record_fragment),
        ("tls_spoof", !options.tls_spoof.is_empty()),
    ];
    let before = errors.len();
    for (key, used) in unbuilt {
        if used {
            errors.not_built(format!("rule option `{key}` in {place}"));
        }
    }
    let override_host = match options.override_address.as_str() {
        "" => None,
        text => Host::parse(text).map_err(|error| errors.invalid(place, error)).ok(),
    };
    (errors.len() == before).then_some(Options {
        override_host,
        override_port: Some(options.override_port).filter(|port| *port > 0),
        udp_timeout: options.udp_timeout.get(),
    })
}

/// `reject`: tells the client, until one that keeps asking is simply left waiting.
pub(super) struct Refusal {
    method: RejectMethod,
    no_drop: bool,
    /// The current window's start and hits.
    window: Mutex<(Instant, u32)>,
}

/// After this many hits in this time a `reject` without `no_drop` turns into a drop (sing-box 1.14.4).
const DROP_AFTER: u32 = 50;
const DROP_WINDOW: Duration = Duration::from_secs(30);

impl Refusal {
    fn new(options: &Reject) -> Self {
        Self { method: options.method, no_drop: options.no_drop, window: Mutex::new((Instant::now(), 0)) }
    }

    /// Counts a hit and says whether this one is to be dropped silently.
    pub(super) fn drops(&self) -> bool {
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
        let refusal = Refusal::new(&Reject::default());
        assert_eq!((0..60).filter(|_| refusal.drops()).count(), 10);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(!refusal.drops(), "a new window begins");
        let patient = Refusal::new(&Reject { no_drop: true, ..Reject::default() });
        assert!((0..100).all(|_| !patient.drops()));
        let silent = Refusal::new(&Reject { method: RejectMethod::Drop, ..Reject::default() });
        assert!(silent.drops());
    }
}
