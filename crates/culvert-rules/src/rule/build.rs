//! From rules as written to rules that match: parses values, sorts items into their groups, words errors as sing-box.

use std::{fmt::Display, net::IpAddr};

use thiserror::Error;

use super::{
    RuleSetId,
    facts::{IpVersion, Section},
    item::{Item, Names, Test},
    matcher::{Default, Groups, Kind, Logical, Rule, SetReference},
    options::{DefaultRule, LogicalRule, MatchResponse, Record, RuleOptions},
};
use crate::{
    domain::{AdGuardSet, DomainSet, FewDomains, Keywords, PatternError, Patterns},
    ip::{IpSet, IpSetBuilder, Prefix},
};

/// Why a rule could not be built.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum RuleError {
    /// A headless rule or part of a rule without any condition, or a logical rule without parts.
    #[error("missing conditions")]
    MissingConditions,
    /// A value that means nothing. `field` is sing-box's word for the key, empty where it has none.
    #[error("{}{reason}", prefix(.field))]
    Item {
        /// The key, nearly always.
        field: &'static str,
        /// What is wrong with which value.
        reason: String,
    },
    /// A rule-set that is not defined.
    #[error("rule-set not found: {0}")]
    UnknownRuleSet(String),
    /// An error in part `index` of a logical rule.
    #[error("sub rule[{index}]: {error}")]
    Part {
        /// Which part, from 0.
        index: usize,
        /// What is wrong with it.
        error: Box<Self>,
    },
}

fn prefix(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

/// How to build: what kind of rule it is, and how rule-sets are found.
pub(super) struct Builder<'a> {
    /// Headless rules need conditions and name the key in one more error.
    pub(super) headless: bool,
    /// Whether conditions on interfaces and Wi-Fi count; `rule-set match` leaves them out.
    pub(super) environment: bool,
    pub(super) rule_set: &'a mut dyn FnMut(&str) -> Option<RuleSetId>,
}

impl Builder<'_> {
    pub(super) fn rule(&mut self, options: RuleOptions) -> Result<Rule, RuleError> {
        // A route or DNS rule without conditions is a catch-all, but only at the top.
        let catch_all = !self.headless && matches!(options, RuleOptions::Default(_));
        if !catch_all && lacks_conditions(&options) {
            return Err(RuleError::MissingConditions);
        }
        self.checked_rule(options)
    }

    fn checked_rule(&mut self, options: RuleOptions) -> Result<Rule, RuleError> {
        Ok(Rule(match options {
            RuleOptions::Default(options) => Kind::Default(self.default(*options)?.into()),
            RuleOptions::Logical(options) => Kind::Logical(self.logical(options)?),
        }))
    }

    fn logical(&mut self, options: LogicalRule) -> Result<Logical, RuleError> {
        let mut parts = Vec::with_capacity(options.rules.len());
        for (index, part) in options.rules.into_iter().enumerate() {
            let part = self.checked_rule(part);
            parts.push(part.map_err(|error| RuleError::Part { index, error: Box::new(error) })?);
        }
        Ok(Logical { mode: options.mode, parts: parts.into(), invert: options.invert })
    }

    fn default(&mut self, o: DefaultRule) -> Result<Default, RuleError> {
        let mut items = Items::default();
        let list = &mut items;
        list.names("inbound", o.inbound, Test::Inbound);
        list.flag(
            o.ip_version.is_some_and(|it| it == IpVersion::V4),
            "ip_version=4",
            Test::IpVersion(IpVersion::V4),
        );
        list.flag(
            o.ip_version.is_some_and(|it| it == IpVersion::V6),
            "ip_version=6",
            Test::IpVersion(IpVersion::V6),
        );
        if !o.query_type.is_empty() {
            let text = all("query_type", o.query_type.iter().map(|&kind| query_type_name(kind)));
            list.push(Test::QueryType(sorted(o.query_type)), text);
        }
        if !o.query_client_subnet.is_empty() {
            let text = first_three("query_client_subnet", &o.query_client_subnet);
            list.push(Test::QueryClientSubnet(ip_set("query_client_subnet", &o.query_client_subnet)?), text);
        }
        list.flag(o.query_dnssec, "query_dnssec=true", Test::QueryDnssec);
        list.names("network", o.network, Test::Network);
        list.names("auth_user", o.auth_user, Test::AuthUser);
        list.names("protocol", o.protocol, Test::Protocol);
        list.names("client", o.client, Test::Client);

        if !o.domain.is_empty() || !o.domain_suffix.is_empty() {
            if o.domain.iter().any(String::is_empty) {
                return Err(item("", "domain: empty item is not allowed"));
            }
            let test = if o.domain.len() + o.domain_suffix.len() <= FewDomains::MOST {
                FewDomains::new(&o.domain, &o.domain_suffix).map(Test::FewDomains)
            } else {
                DomainSet::new(&o.domain, &o.domain_suffix).map(Test::Domain)
            };
            let test = test.map_err(|error| item("", error))?;
            let parts = [("domain", &o.domain), ("domain_suffix", &o.domain_suffix)];
            let texts =
                parts.into_iter().filter(|part| !part.1.is_empty()).map(|(key, list)| first_three(key, list));
            list.destination_address(test, texts.collect::<Vec<_>>().join(" "));
        } else if let Some(set) = o.domain_set {
            list.destination_address(Test::Domain(set), "domain/domain_suffix=<binary>".into());
        }
        if !o.domain_keyword.is_empty() {
            let text = first_three("domain_keyword", &o.domain_keyword);
            list.destination_address(Test::DomainKeyword(Keywords::new(&o.domain_keyword)), text);
        }
        if !o.domain_regex.is_empty() {
            let field = if self.headless { "domain_regex" } else { "" };
            let patterns = patterns(field, &o.domain_regex)?;
            list.destination_address(
                Test::DomainRegex(patterns),
                patterns_text("domain_regex", &o.domain_regex),
            );
        }
        if !o.source_ip_cidr.is_empty() {
            let text = first_three("source_ip_cidr", &o.source_ip_cidr);
            list.source_address(Test::SourceIp(ip_set("source_ip_cidr", &o.source_ip_cidr)?), text);
        } else if let Some(set) = o.source_ip_set {
            list.source_address(Test::SourceIp(set), "source_ip_cidr=<binary>".into());
        }
        if o.source_ip_is_private {
            list.source_address(Test::SourceIpIsPrivate, "source_ip_is_private=true".into());
        }
        if !o.ip_cidr.is_empty() {
            let text = first_three("ip_cidr", &o.ip_cidr);
            list.destination_ip(Test::Ip(ip_set("ipcidr", &o.ip_cidr)?), text);
        } else if let Some(set) = o.ip_set {
            list.destination_ip(Test::Ip(set), "ip_cidr=<binary>".into());
        }
        if o.ip_is_private {
            list.destination_ip(Test::IpIsPrivate, "ip_is_private=true".into());
        }
        if o.ip_accept_any {
            list.destination_ip(Test::IpAcceptAny, "ip_accept_any=true".into());
        }
        if !o.source_port.is_empty() {
            let text = all("source_port", &o.source_port);
            list.source_port(Test::SourcePort(sorted(o.source_port)), text);
        }
        if !o.source_port_range.is_empty() {
            let text = all("source_port_range", &o.source_port_range);
            list.source_port(
                Test::SourcePortRange(port_ranges("source_port_range", &o.source_port_range)?),
                text,
            );
        }
        if !o.port.is_empty() {
            let text = all("port", &o.port);
            list.destination_port(Test::Port(sorted(o.port)), text);
        }
        if !o.port_range.is_empty() {
            let text = all("port_range", &o.port_range);
            list.destination_port(Test::PortRange(port_ranges("port_range", &o.port_range)?), text);
        }

        list.names("process_name", o.process_name, Test::ProcessName);
        list.names("process_path", o.process_path, Test::ProcessPath);
        list.patterns("process_path_regex", &o.process_path_regex, Test::ProcessPathRegex)?;
        list.names("package_name", o.package_name, Test::PackageName);
        list.patterns("package_name_regex", &o.package_name_regex, Test::PackageNameRegex)?;
        list.names("user", o.user, Test::User);
        if !o.user_id.is_empty() {
            let text = all("user_id", &o.user_id);
            list.push(Test::UserId(sorted(o.user_id)), text);
        }
        list.names("outbound", o.outbound, Test::Outbound);
        if let Some(mode) = o.clash_mode.filter(|mode| !mode.is_empty()) {
            let text = format!("clash_mode={mode}");
            list.push(Test::ClashMode(mode.into()), text);
        }
        if self.environment {
            if !o.network_type.is_empty() {
                let text = all("network_type", o.network_type.iter().map(|kind| kind.as_str()));
                list.push(Test::NetworkType(sorted(o.network_type)), text);
            }
            list.flag(o.network_is_expensive, "network_is_expensive=true", Test::NetworkIsExpensive);
            list.flag(o.network_is_constrained, "network_is_constrained=true", Test::NetworkIsConstrained);
            list.names("wifi_ssid", o.wifi_ssid, Test::WifiSsid);
            list.names("wifi_bssid", o.wifi_bssid, Test::WifiBssid);
            if !o.interface_address.is_empty() {
                let text = addresses_text(
                    "interface_address",
                    o.interface_address.iter().map(|(k, v)| (k.as_str(), v)),
                );
                let wanted = o.interface_address.into_iter().map(|(name, list)| (name.into(), list.into()));
                list.push(Test::InterfaceAddress(wanted.collect()), text);
            }
            if !o.network_interface_address.is_empty() {
                let by_kind = o.network_interface_address.iter().map(|(kind, list)| (kind.as_str(), list));
                let text = addresses_text("network_interface_address", by_kind);
                let wanted = o.network_interface_address.into_iter().map(|(kind, list)| (kind, list.into()));
                list.push(Test::NetworkInterfaceAddress(wanted.collect()), text);
            }
            if !o.default_interface_address.is_empty() {
                let text = first_three("default_interface_address", &o.default_interface_address);
                list.push(Test::DefaultInterfaceAddress(o.default_interface_address.into()), text);
            }
        }
        if !o.source_mac_address.is_empty() {
            let text = all("source_mac_address", &o.source_mac_address);
            let addresses = o.source_mac_address.iter().filter_map(|text| parse_mac(text));
            list.push(Test::SourceMac(addresses.collect()), text);
        }
        list.names("source_hostname", o.source_hostname, Test::SourceHostname);
        if !o.preferred_by.is_empty() {
            let text = all("preferred_by", &o.preferred_by);
            let tags = o.preferred_by.into_iter().map(String::into_boxed_str);
            list.push(Test::PreferredBy(tags.collect()), text);
        }
        if !o.adguard_domain.is_empty() {
            list.adguard(AdGuardSet::new(&o.adguard_domain));
        } else if let Some(set) = o.adguard_set {
            list.adguard(set);
        }
        if let Some(rcode) = o.response_rcode {
            list.push(Test::ResponseRcode(rcode), format!("response_rcode={rcode}"));
        }
        list.records("response_answer", o.response_answer, Section::Answer);
        list.records("response_ns", o.response_ns, Section::Authority);
        list.records("response_extra", o.response_extra, Section::Additional);

        let views = (o.rule_set_ip_cidr_match_source, o.rule_set_ip_cidr_accept_empty);
        let rule_sets = self.set_reference(o.rule_set, views)?;
        Ok(items.finish(rule_sets, o.match_response, o.invert))
    }

    fn set_reference(
        &mut self,
        tags: Vec<String>,
        (match_source, accept_empty): (bool, bool),
    ) -> Result<Option<Box<SetReference>>, RuleError> {
        if tags.is_empty() {
            return Ok(None);
        }
        let text = all("rule_set", &tags);
        let mut sets = Vec::with_capacity(tags.len());
        for tag in tags {
            let id = (self.rule_set)(&tag).ok_or(RuleError::UnknownRuleSet(tag))?;
            sets.push(id);
        }
        let (sets, text) = (sets.into(), text.into());
        Ok(Some(Box::new(SetReference { sets, match_source, accept_empty, text })))
    }
}

/// sing-box looks at the whole tree before it builds any of it.
fn lacks_conditions(options: &RuleOptions) -> bool {
    match options {
        RuleOptions::Default(rule) => **rule == DefaultRule { invert: rule.invert, ..DefaultRule::default() },
        RuleOptions::Logical(rule) => rule.rules.is_empty() || rule.rules.iter().any(lacks_conditions),
    }
}

/// Items on their way into groups.
#[derive(Default)]
struct Items {
    source_address: Vec<Item>,
    source_port: Vec<Item>,
    destination_address: Vec<Item>,
    destination_ip: Vec<Item>,
    destination_port: Vec<Item>,
    others: Vec<Item>,
    count: u8,
}

impl Items {
    fn item(&mut self, test: Test, text: String) -> Item {
        let rank = self.count;
        self.count += 1;
        Item::new(test, rank, text)
    }

    fn push(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.others.push(item);
    }

    fn source_address(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.source_address.push(item);
    }

    fn source_port(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.source_port.push(item);
    }

    fn destination_address(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.destination_address.push(item);
    }

    fn destination_ip(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.destination_ip.push(item);
    }

    fn destination_port(&mut self, test: Test, text: String) {
        let item = self.item(test, text);
        self.destination_port.push(item);
    }

    fn flag(&mut self, set: bool, text: &str, test: Test) {
        if set {
            self.push(test, text.to_owned());
        }
    }

    fn names(&mut self, key: &str, names: Vec<String>, test: fn(Names) -> Test) {
        if !names.is_empty() {
            let text = all(key, &names);
            self.push(test(Names::new(names)), text);
        }
    }

    fn patterns(
        &mut self,
        key: &'static str,
        list: &[String],
        test: fn(Patterns) -> Test,
    ) -> Result<(), RuleError> {
        if !list.is_empty() {
            self.push(test(patterns(key, list)?), patterns_text(key, list));
        }
        Ok(())
    }

    fn adguard(&mut self, set: AdGuardSet) {
        self.destination_address(Test::AdGuard(set), "!adguard_domain_rules=<binary>".into());
    }

    fn records(&mut self, key: &str, records: Vec<Record>, section: Section) {
        if !records.is_empty() {
            let text = all(key, records.iter().map(|record| &record.text));
            let data = records.into_iter().map(|record| record.data.into_boxed_slice());
            self.push(Test::ResponseRecord(section, data.collect()), text);
        }
    }

    fn finish(
        self,
        rule_sets: Option<Box<SetReference>>,
        response: Option<MatchResponse>,
        invert: bool,
    ) -> Default {
        let groups = Groups {
            source_address: self.source_address.into(),
            source_port: self.source_port.into(),
            destination_address: self.destination_address.into(),
            destination_ip: self.destination_ip.into(),
            destination_port: self.destination_port.into(),
        };
        Default { groups, others: self.others.into(), rule_sets, response: response.map(Box::new), invert }
    }
}

fn item(field: &'static str, reason: impl Display) -> RuleError {
    RuleError::Item { field, reason: reason.to_string() }
}

fn patterns(field: &'static str, list: &[String]) -> Result<Patterns, RuleError> {
    Patterns::new(list).map_err(|error: PatternError| item(field, error))
}

/// Parses addresses and prefixes into a set; errors read as those of sing-box.
pub(crate) fn ip_set(field: &'static str, list: &[String]) -> Result<IpSet, RuleError> {
    let mut builder = IpSetBuilder::default();
    for (index, text) in list.iter().enumerate() {
        match text.parse::<Prefix>() {
            Ok(prefix) => builder.add(prefix),
            // An address with a zone is an address to Go, and belongs to no set.
            Err(_) if is_zoned(text) => {}
            Err(error) => return Err(item(field, format_args!("parse [{index}]: {error}"))),
        }
    }
    Ok(builder.build())
}

fn is_zoned(text: &str) -> bool {
    let zoned = text.split_once('%').filter(|(_, zone)| !zone.is_empty());
    zoned.is_some_and(|(addr, _)| addr.parse::<IpAddr>().is_ok_and(|addr| addr.is_ipv6()))
}

fn port_ranges(field: &'static str, list: &[String]) -> Result<Box<[(u16, u16)]>, RuleError> {
    list.iter().map(|text| parse_port_range(text).map_err(|reason| item(field, reason))).collect()
}

/// `a:b`, `a:`, `:b` or `:`, both ends inside.
///
/// # Errors
/// In the words of sing-box.
fn parse_port_range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once(':').ok_or_else(|| format!("bad port range: {text}"))?;
    let end = |digits: &str, default: u16| {
        if digits.is_empty() {
            return Ok(default);
        }
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| plain).ok_or_else(|| {
            let why = if plain { "value out of range" } else { "invalid syntax" };
            format!("bad port range: {text}: strconv.ParseUint: parsing \"{digits}\": {why}")
        })
    };
    Ok((end(first, 0)?, end(last, u16::MAX)?))
}

/// Six bytes in hexadecimal: with colons, with dashes, or four digits and dots.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let separator = text.chars().find(|c| !c.is_ascii_hexdigit())?;
    let width = match separator {
        ':' | '-' => 2,
        '.' => 4,
        _ => return None,
    };
    let mut digits = String::with_capacity(12);
    for part in text.split(separator) {
        if part.len() != width {
            return None;
        }
        digits.push_str(part);
    }
    if digits.len() != 12 {
        return None;
    }
    let mut bytes = [0; 6];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Box<[T]> {
    list.sort_unstable();
    list.dedup();
    list.into()
}

/// `key=value` or `key=[all values]`.
fn all<T: Display>(key: &str, list: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = list.into_iter().map(|value| value.to_string()).collect();
    match &*values {
        [only] => format!("{key}={only}"),
        many => format!("{key}=[{}]", many.join(" ")),
    }
}

/// `key=value`, or up to three values, then dots.
fn first_three<T: Display>(key: &str, list: &[T]) -> String {
    match list {
        [a, b, c, _, ..] => format!("{key}=[{a} {b} {c}...]"),
        few => all(key, few),
    }
}

/// As [`first_three`], but sing-box cuts patterns without dots.
fn patterns_text(key: &str, list: &[String]) -> String {
    all(key, &list[..list.len().min(3)])
}

fn addresses_text<'a>(key: &str, list: impl Iterator<Item = (&'a str, &'a Vec<Prefix>)>) -> String {
    let entries: Vec<String> = list
        .map(|(name, prefixes)| {
            let prefixes: Vec<String> = prefixes.iter().map(Prefix::to_string).collect();
            format!("{name}={}", prefixes.join(","))
        })
        .collect();
    format!("{key}=[{}]", entries.join(" "))
}

/// The name of a record type where it has one in sing-box's table, else its number.
fn query_type_name(kind: u16) -> String {
    crate::rule::query_type::name(kind).map_or_else(|| kind.to_string(), str::to_owned)
}
