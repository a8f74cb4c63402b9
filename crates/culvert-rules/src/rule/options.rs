//! Rules as they are written: plain lists under the keys of sing-box, for the router and the rule-set readers to fill.

use super::facts::{IpVersion, NetworkType};
use crate::{
    domain::{AdGuardSet, DomainSet},
    ip::{IpSet, Prefix},
};

/// A route rule, DNS rule or headless rule without its action.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleOptions {
    /// Conditions on one connection.
    Default(Box<DefaultRule>),
    /// Rules joined.
    Logical(LogicalRule),
}

impl From<DefaultRule> for RuleOptions {
    fn from(rule: DefaultRule) -> Self {
        Self::Default(Box::new(rule))
    }
}

impl From<LogicalRule> for RuleOptions {
    fn from(rule: LogicalRule) -> Self {
        Self::Logical(rule)
    }
}

/// `type: "logical"`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogicalRule {
    /// How the parts are joined.
    pub mode: Mode,
    /// The parts, each judged by itself.
    pub rules: Vec<RuleOptions>,
    /// Turns the result around.
    pub invert: bool,
}

/// `mode` of a logical rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All parts must match.
    And,
    /// One part must match.
    Or,
}

impl Mode {
    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::And => "and",
            Self::Or => "or",
        }
    }
}

/// `type: "default"`: the conditions of route rules, DNS rules and headless rules, under their keys.
///
/// An empty list, `false` and `None` are no condition. Fields say their key where it is another.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // each is the key of the same name in the documentation of sing-box
pub struct DefaultRule {
    pub inbound: Vec<String>,
    pub ip_version: Option<IpVersion>,
    pub query_type: Vec<u16>,
    pub query_client_subnet: Vec<String>,
    pub query_dnssec: bool,
    pub network: Vec<String>,
    pub auth_user: Vec<String>,
    pub protocol: Vec<String>,
    pub client: Vec<String>,
    pub domain: Vec<String>,
    pub domain_suffix: Vec<String>,
    /// `domain` and `domain_suffix` of a binary rule-set; used when both lists are empty.
    pub domain_set: Option<DomainSet>,
    pub domain_keyword: Vec<String>,
    pub domain_regex: Vec<String>,
    /// AdGuard rules (`||name^`), which have no key: only binary rule-sets hold them.
    pub adguard_domain: Vec<String>,
    /// The same, compiled; used when the list is empty.
    pub adguard_set: Option<AdGuardSet>,
    pub source_ip_cidr: Vec<String>,
    /// `source_ip_cidr` of a binary rule-set; used when the list is empty.
    pub source_ip_set: Option<IpSet>,
    pub source_ip_is_private: bool,
    pub ip_cidr: Vec<String>,
    /// `ip_cidr` of a binary rule-set; used when the list is empty.
    pub ip_set: Option<IpSet>,
    pub ip_is_private: bool,
    pub ip_accept_any: bool,
    pub source_port: Vec<u16>,
    pub source_port_range: Vec<String>,
    pub port: Vec<u16>,
    pub port_range: Vec<String>,
    pub process_name: Vec<String>,
    pub process_path: Vec<String>,
    pub process_path_regex: Vec<String>,
    pub package_name: Vec<String>,
    pub package_name_regex: Vec<String>,
    pub user: Vec<String>,
    pub user_id: Vec<i64>,
    pub outbound: Vec<String>,
    pub clash_mode: Option<String>,
    pub network_type: Vec<NetworkType>,
    pub network_is_expensive: bool,
    pub network_is_constrained: bool,
    pub wifi_ssid: Vec<String>,
    pub wifi_bssid: Vec<String>,
    pub interface_address: Vec<(String, Vec<Prefix>)>,
    pub network_interface_address: Vec<(NetworkType, Vec<Prefix>)>,
    pub default_interface_address: Vec<Prefix>,
    pub source_mac_address: Vec<String>,
    pub source_hostname: Vec<String>,
    pub preferred_by: Vec<String>,
    pub rule_set: Vec<String>,
    pub rule_set_ip_cidr_match_source: bool,
    pub rule_set_ip_cidr_accept_empty: bool,
    pub match_response: Option<MatchResponse>,
    pub response_rcode: Option<u16>,
    /// Records in whatever form [`Response::has_record`](super::Response::has_record) takes, each with its text for
    /// people.
    pub response_answer: Vec<Record>,
    pub response_ns: Vec<Record>,
    pub response_extra: Vec<Record>,
    pub invert: bool,
}

/// `match_response`: which answer the response conditions look at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MatchResponse {
    /// `true`: the latest answer of an `evaluate` without a tag.
    Latest,
    /// The answer of the `evaluate` with this tag.
    Tagged(String),
}

/// A DNS record to look for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// How the rule's author wrote it.
    pub text: String,
    /// What is handed to [`Response::has_record`](super::Response::has_record).
    pub data: Vec<u8>,
}
