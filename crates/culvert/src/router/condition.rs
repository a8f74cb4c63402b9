//! From conditions as configured to conditions that are matched: route rules, DNS rules, rules of rule-sets.

use culvert_config::options::dial::InterfaceType;
use culvert_config::options::dns::record::Record as ConfigRecord;
use culvert_config::options::dns::rule::{DnsMatch, MatchResponse as ConfigResponse};
use culvert_config::options::rule::{Condition, LogicalMode, RouteMatch};
use culvert_config::options::rule_set::HeadlessMatch;
use culvert_config::value::{Cidr, List, Map, Pattern, Prefix as ConfigPrefix, Subnet};
use culvert_rules::ip::Prefix;
use culvert_rules::rule::{
    DefaultRule, IpVersion, LogicalRule, MatchResponse, Mode, NetworkType, Record, RuleOptions,
};

/// Conditions that can be matched.
pub(crate) trait Conditions {
    /// The same in the matcher's words.
    fn default_rule(&self) -> DefaultRule;
}

/// The whole tree in the matcher's words.
pub(crate) fn rule_options<M: Conditions>(condition: &Condition<M>) -> RuleOptions {
    match condition {
        Condition::Fields(fields) => fields.default_rule().into(),
        Condition::Logical(logical) => {
            let mode = match logical.mode {
                LogicalMode::And => Mode::And,
                LogicalMode::Or => Mode::Or,
            };
            let rules = logical.rules.iter().map(rule_options).collect();
            LogicalRule { mode, rules, invert: logical.invert }.into()
        }
    }
}

/// Calls `visit` with every default rule of the tree.
pub(crate) fn for_each_default(options: &RuleOptions, visit: &mut dyn FnMut(&DefaultRule)) {
    match options {
        RuleOptions::Default(rule) => visit(rule),
        RuleOptions::Logical(rule) => rule.rules.iter().for_each(|part| for_each_default(part, visit)),
    }
}

/// The keys in use that nothing on this system ever matches (sing-box: its apps only).
pub(crate) fn unmatched(options: &RuleOptions) -> Vec<&'static str> {
    let mut keys = Vec::new();
    for_each_default(options, &mut |rule| {
        let items = [
            ("package_name", !rule.package_name.is_empty()),
            ("package_name_regex", !rule.package_name_regex.is_empty()),
            ("network_type", !rule.network_type.is_empty()),
            ("network_is_expensive", rule.network_is_expensive),
            ("network_is_constrained", rule.network_is_constrained),
            ("network_interface_address", !rule.network_interface_address.is_empty()),
        ];
        keys.extend(items.into_iter().filter(|(_, used)| *used).map(|(key, _)| key));
    });
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What all three kinds of rule have.
macro_rules! headless {
    ($from:expr) => {
        DefaultRule {
            network: texts(&$from.network),
            domain: texts(&$from.domain),
            domain_suffix: texts(&$from.domain_suffix),
            domain_keyword: texts(&$from.domain_keyword),
            domain_regex: patterns(&$from.domain_regex),
            source_ip_cidr: cidrs(&$from.source_ip_cidr),
            ip_cidr: cidrs(&$from.ip_cidr),
            source_port: $from.source_port.0.clone(),
            source_port_range: $from.source_port_range.iter().map(ToString::to_string).collect(),
            port: $from.port.0.clone(),
            port_range: $from.port_range.iter().map(ToString::to_string).collect(),
            process_name: texts(&$from.process_name),
            process_path: texts(&$from.process_path),
            process_path_regex: patterns(&$from.process_path_regex),
            package_name: texts(&$from.package_name),
            package_name_regex: patterns(&$from.package_name_regex),
            network_type: $from.network_type.iter().map(network_type).collect(),
            network_is_expensive: $from.network_is_expensive,
            network_is_constrained: $from.network_is_constrained,
            wifi_ssid: texts(&$from.wifi_ssid),
            wifi_bssid: texts(&$from.wifi_bssid),
            network_interface_address: by_type(&$from.network_interface_address),
            default_interface_address: prefixes(&$from.default_interface_address),
            invert: $from.invert,
            ..DefaultRule::default()
        }
    };
}

/// What route rules and DNS rules have besides.
macro_rules! complete {
    ($from:expr) => {
        DefaultRule {
            inbound: $from.inbound.iter().map(|tag| tag.0.clone()).collect(),
            ip_version: match $from.ip_version {
                4 => Some(IpVersion::V4),
                6 => Some(IpVersion::V6),
                _ => None,
            },
            auth_user: texts(&$from.auth_user),
            protocol: texts(&$from.protocol),
            source_ip_is_private: $from.source_ip_is_private,
            ip_is_private: $from.ip_is_private,
            user: texts(&$from.user),
            user_id: $from.user_id.iter().map(|id| i64::from(*id)).collect(),
            clash_mode: Some($from.clash_mode.clone()).filter(|mode| !mode.is_empty()),
            interface_address: by_name(&$from.interface_address),
            source_mac_address: texts(&$from.source_mac_address),
            source_hostname: texts(&$from.source_hostname),
            preferred_by: $from.preferred_by.iter().map(|tag| tag.0.clone()).collect(),
            rule_set: $from.rule_set.iter().map(|tag| tag.0.clone()).collect(),
            rule_set_ip_cidr_match_source: $from.rule_set_ip_cidr_match_source,
            ..headless!($from)
        }
    };
}

impl Conditions for HeadlessMatch {
    fn default_rule(&self) -> DefaultRule {
        let query_type = self.query_type.iter().map(|kind| kind.0).collect();
        DefaultRule { query_type, ..headless!(self) }
    }
}

impl Conditions for RouteMatch {
    fn default_rule(&self) -> DefaultRule {
        DefaultRule { client: texts(&self.client), ..complete!(self) }
    }
}

impl Conditions for DnsMatch {
    fn default_rule(&self) -> DefaultRule {
        let subnet = |subnet: &Subnet| prefix(&subnet.0).map(|prefix| prefix.to_string());
        DefaultRule {
            query_type: self.query_type.iter().map(|kind| kind.0).collect(),
            query_client_subnet: self.query_client_subnet.iter().filter_map(subnet).collect(),
            query_dnssec: self.query_dnssec,
            ip_accept_any: self.ip_accept_any,
            rule_set_ip_cidr_accept_empty: self.rule_set_ip_cidr_accept_empty,
            match_response: match &self.match_response {
                None | Some(ConfigResponse::No) => None,
                Some(ConfigResponse::Latest) => Some(MatchResponse::Latest),
                Some(ConfigResponse::Tag(tag)) => Some(MatchResponse::Tagged(tag.clone())),
            },
            response_rcode: self.response_rcode.map(|code| code.0),
            response_answer: records(&self.response_answer),
            response_ns: records(&self.response_ns),
            response_extra: records(&self.response_extra),
            ..complete!(self)
        }
    }
}

/// What a record is compared by: owner, type, class and data; the time to live is left out.
pub(crate) fn record_key(owner: &[u8], kind: u16, class: u16, data: &[u8]) -> Vec<u8> {
    let mut key = owner.to_ascii_lowercase();
    key.extend(kind.to_be_bytes());
    key.extend(class.to_be_bytes());
    key.extend(data);
    key
}

fn records(list: &List<ConfigRecord>) -> Vec<Record> {
    let record = |one: &ConfigRecord| Record {
        text: format!("{} {}", one.owner.escape_ascii(), one.record_type.0),
        data: record_key(&one.owner, one.record_type.0, one.class, &one.data),
    };
    list.iter().map(record).collect()
}

fn texts(list: &List<String>) -> Vec<String> {
    list.0.clone()
}

fn patterns(list: &List<Pattern>) -> Vec<String> {
    list.iter().map(|pattern| pattern.as_str().to_owned()).collect()
}

fn cidrs(list: &List<Cidr>) -> Vec<String> {
    list.iter().map(|cidr| cidr.prefix.to_string()).collect()
}

/// Lengths were checked when the configuration was read.
fn prefix(option: &ConfigPrefix) -> Option<Prefix> {
    Prefix::new(option.ip, option.length).ok()
}

fn prefixes(list: &List<Subnet>) -> Vec<Prefix> {
    list.iter().filter_map(|subnet| prefix(&subnet.0)).collect()
}

fn by_name(map: &Map<List<Subnet>>) -> Vec<(String, Vec<Prefix>)> {
    map.iter().map(|(name, list)| (name.clone(), prefixes(list))).collect()
}

fn by_type(map: &Map<List<Subnet>>) -> Vec<(NetworkType, Vec<Prefix>)> {
    map.iter().filter_map(|(name, list)| Some((NetworkType::from_name(name)?, prefixes(list)))).collect()
}

fn network_type(kind: &InterfaceType) -> NetworkType {
    match kind {
        InterfaceType::Wifi => NetworkType::Wifi,
        InterfaceType::Cellular => NetworkType::Cellular,
        InterfaceType::Ethernet => NetworkType::Ethernet,
        InterfaceType::Other => NetworkType::Other,
    }
}
