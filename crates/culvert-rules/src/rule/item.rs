//! One condition of a rule, compiled: what it tests, and how it is written.

use std::{fmt, net::IpAddr};

use super::{
    facts::{Facts, Interface, IpVersion, Network, NetworkType, Process, Response, Section},
    options::MatchResponse,
};
use crate::{
    domain::{AdGuardSet, DomainSet, FewDomains, Keywords, Patterns},
    ip::{IpSet, Prefix, is_private},
};

/// One condition: all values under one key of a rule (`domain` and `domain_suffix` together).
#[derive(Clone, Debug)]
pub struct Item {
    pub(super) test: Test,
    /// Where sing-box prints it among the items of a rule.
    pub(super) rank: u8,
    text: Box<str>,
}

impl Item {
    pub(super) fn new(test: Test, rank: u8, text: String) -> Self {
        Self { test, rank, text: text.into() }
    }

    /// Heap bytes held.
    pub(super) fn heap_size(&self) -> usize {
        self.text.len() + self.test.heap_size()
    }
}

/// As sing-box writes it: `domain=a.example domain_suffix=[b.example .c.example]`, long lists cut.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What an item looks at besides the facts: what its rule chose.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) facts: &'a Facts<'a>,
    /// The destination addresses, or those of the answer that the rule refers to.
    pub(super) addresses: &'a [IpAddr],
    pub(super) response: Option<&'a dyn Response>,
    /// Whether `ip_cidr` tests the source (`rule_set_ip_cidr_match_source`).
    pub(super) match_source: bool,
    /// Whether `ip_cidr` passes an answer without addresses (`rule_set_ip_cidr_accept_empty`).
    pub(super) accept_empty: bool,
}

impl<'a> View<'a> {
    pub(super) fn new(facts: &'a Facts<'a>) -> Self {
        let addresses = match &facts.destination {
            Some(addr) => std::slice::from_ref(addr),
            None => facts.addresses,
        };
        Self { facts, addresses, response: None, match_source: false, accept_empty: false }
    }

    /// Turns to the answer that a rule asks for; `None` when there is no such answer.
    pub(super) fn of_response(self, which: &MatchResponse) -> Option<Self> {
        let tag = match which {
            MatchResponse::Latest => None,
            MatchResponse::Tagged(tag) => Some(tag.as_str()),
        };
        let response = self.facts.responses?.response(tag)?;
        Some(View { addresses: response.addresses(), response: Some(response), ..self })
    }
}

#[derive(Clone, Debug)]
pub(super) enum Test {
    Inbound(Names),
    IpVersion(IpVersion),
    QueryType(Box<[u16]>),
    QueryClientSubnet(IpSet),
    QueryDnssec,
    Network(Names),
    AuthUser(Names),
    Protocol(Names),
    Client(Names),
    FewDomains(FewDomains),
    Domain(DomainSet),
    DomainKeyword(Keywords),
    DomainRegex(Patterns),
    AdGuard(AdGuardSet),
    SourceIp(IpSet),
    SourceIpIsPrivate,
    Ip(IpSet),
    IpIsPrivate,
    IpAcceptAny,
    SourcePort(Box<[u16]>),
    SourcePortRange(Box<[(u16, u16)]>),
    Port(Box<[u16]>),
    PortRange(Box<[(u16, u16)]>),
    ProcessName(Names),
    ProcessPath(Names),
    ProcessPathRegex(Patterns),
    PackageName(Names),
    PackageNameRegex(Patterns),
    User(Names),
    UserId(Box<[i64]>),
    Outbound(Names),
    ClashMode(Box<str>),
    NetworkType(Box<[NetworkType]>),
    NetworkIsExpensive,
    NetworkIsConstrained,
    WifiSsid(Names),
    WifiBssid(Names),
    InterfaceAddress(Box<[Addressed<Box<str>>]>),
    NetworkInterfaceAddress(Box<[Addressed<NetworkType>]>),
    DefaultInterfaceAddress(Box<[Prefix]>),
    SourceMac(Box<[[u8; 6]]>),
    SourceHostname(Names),
    PreferredBy(Box<[Box<str>]>),
    ResponseRcode(u16),
    ResponseRecord(Section, Box<[Box<[u8]>]>),
}

/// Something and the prefixes wanted of it.
pub(super) type Addressed<T> = (T, Box<[Prefix]>);

impl Test {
    /// The verdict on one connection. Allocates nothing, but for the first searches with a pattern on each thread.
    pub(super) fn matches(&self, view: &View<'_>) -> bool {
        let facts = view.facts;
        match self {
            Self::Inbound(names) => names.contains(facts.inbound),
            Self::IpVersion(version) => {
                facts.ip_version == Some(*version)
                    || facts
                        .destination
                        .is_some_and(|addr| addr.to_canonical().is_ipv4() == (*version == IpVersion::V4))
            }
            Self::QueryType(types) => {
                facts.query.is_some_and(|query| query.kind != 0 && types.binary_search(&query.kind).is_ok())
            }
            Self::QueryClientSubnet(set) => facts
                .query
                .and_then(|query| query.client_subnet)
                .is_some_and(|subnet| set.contains(subnet.addr())),
            Self::QueryDnssec => facts.query.is_some_and(|query| query.dnssec),
            Self::Network(names) => names.contains(facts.network.map_or("", Network::as_str)),
            // A rule that lists "" means connections without the thing, as in sing-box.
            Self::AuthUser(names) => names.contains(facts.user.unwrap_or_default()),
            Self::Protocol(names) => names.contains(facts.protocol.unwrap_or_default()),
            Self::Client(names) => names.contains(facts.client.unwrap_or_default()),
            Self::FewDomains(few) => facts.domain.is_some_and(|name| few.contains(name)),
            Self::Domain(set) => facts.domain.is_some_and(|name| set.contains(name)),
            Self::DomainKeyword(keywords) => facts.domain.is_some_and(|name| keywords.is_match(name)),
            Self::DomainRegex(patterns) => {
                facts.domain.is_some_and(|name| !name.is_empty() && patterns.is_match(name))
            }
            Self::AdGuard(set) => facts.domain.is_some_and(|name| set.contains(name)),
            Self::SourceIp(set) => facts.source.is_some_and(|addr| set.contains(addr)),
            Self::SourceIpIsPrivate => facts.source.is_some_and(is_private),
            Self::Ip(set) if view.match_source => facts.source.is_some_and(|addr| set.contains(addr)),
            Self::Ip(_) if view.addresses.is_empty() => view.accept_empty,
            Self::Ip(set) => view.addresses.iter().any(|&addr| set.contains(addr)),
            Self::IpIsPrivate => view.addresses.iter().copied().any(is_private),
            Self::IpAcceptAny => !view.addresses.is_empty(),
            Self::SourcePort(ports) => ports.binary_search(&facts.source_port).is_ok(),
            Self::SourcePortRange(ranges) => in_ranges(ranges, facts.source_port),
            Self::Port(ports) => ports.binary_search(&facts.port).is_ok(),
            Self::PortRange(ranges) => in_ranges(ranges, facts.port),
            Self::ProcessName(names) => process_path(facts)
                .is_some_and(|path| names.contains(path.rsplit('/').next().unwrap_or(path))),
            Self::ProcessPath(names) => process_path(facts).is_some_and(|path| names.contains(path)),
            Self::ProcessPathRegex(patterns) => {
                process_path(facts).is_some_and(|path| patterns.is_match(path))
            }
            Self::PackageName(names) => packages(facts).iter().any(|name| names.contains(name)),
            Self::PackageNameRegex(patterns) => packages(facts).iter().any(|name| patterns.is_match(name)),
            Self::User(names) => {
                facts.process.is_some_and(|process| !process.user.is_empty() && names.contains(&process.user))
            }
            Self::UserId(ids) => facts
                .process
                .and_then(|process| process.user_id)
                .is_some_and(|id| ids.binary_search(&i64::from(id)).is_ok()),
            Self::Outbound(names) => facts
                .outbound
                .is_some_and(|tag| !tag.is_empty() && (names.contains("any") || names.contains(tag))),
            Self::ClashMode(mode) => facts
                .environment
                .and_then(|environment| environment.clash_mode.as_deref())
                .is_some_and(|current| equal_fold(current, mode)),
            Self::NetworkType(kinds) => default_interface(facts).is_some_and(|it| kinds.contains(&it.kind)),
            Self::NetworkIsExpensive => default_interface(facts).is_some_and(|it| it.expensive),
            Self::NetworkIsConstrained => default_interface(facts).is_some_and(|it| it.constrained),
            Self::WifiSsid(names) => names.contains(facts.environment.map_or("", |it| &it.wifi_ssid)),
            // People write it in either case; the second look alone allocates.
            Self::WifiBssid(names) => {
                let bssid = facts.environment.map_or("", |it| &it.wifi_bssid);
                names.contains(bssid) || (!bssid.is_empty() && names.contains(&bssid.to_ascii_lowercase()))
            }
            Self::InterfaceAddress(wanted) => wanted.iter().all(|(name, prefixes)| {
                let found = interfaces(facts).iter().find(|interface| *interface.name == **name);
                found.is_some_and(|interface| any_overlap(prefixes, &interface.addresses))
            }),
            Self::NetworkInterfaceAddress(wanted) => wanted.iter().all(|(kind, prefixes)| {
                let mut found = interfaces(facts).iter().filter(|interface| interface.kind == *kind);
                found.any(|interface| any_overlap(prefixes, &interface.addresses))
            }),
            // Unlike the two above: every listed prefix must be there.
            Self::DefaultInterfaceAddress(prefixes) => default_interface(facts).is_some_and(|interface| {
                prefixes.iter().all(|prefix| any_overlap(std::slice::from_ref(prefix), &interface.addresses))
            }),
            Self::SourceMac(addresses) => facts.source_mac.is_some_and(|mac| addresses.contains(&mac)),
            Self::SourceHostname(names) => {
                facts.source_hostname.is_some_and(|name| !name.is_empty() && names.contains(name))
            }
            Self::PreferredBy(outbounds) => facts.preferences.is_some_and(|preferences| {
                outbounds.iter().any(|tag| {
                    facts.domain.is_some_and(|name| preferences.prefers_domain(tag, name))
                        || facts.destination.is_some_and(|addr| preferences.prefers_address(tag, addr))
                        || facts.addresses.iter().any(|&addr| preferences.prefers_address(tag, addr))
                })
            }),
            Self::ResponseRcode(rcode) => view.response.is_some_and(|response| response.rcode() == *rcode),
            Self::ResponseRecord(section, records) => view
                .response
                .is_some_and(|response| records.iter().any(|record| response.has_record(*section, record))),
        }
    }

    fn heap_size(&self) -> usize {
        match self {
            Self::FewDomains(few) => few.heap_size(),
            Self::Domain(set) => set.heap_size(),
            Self::AdGuard(set) => set.heap_size(),
            Self::SourceIp(set) | Self::Ip(set) | Self::QueryClientSubnet(set) => set.heap_size(),
            // Lists of a few values; patterns and keyword automata do not say.
            _ => 0,
        }
    }
}

fn in_ranges(ranges: &[(u16, u16)], port: u16) -> bool {
    ranges.iter().any(|&(first, last)| (first..=last).contains(&port))
}

fn process_path<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    facts.process.map(|process| process.path.as_str()).filter(|path| !path.is_empty())
}

fn packages<'a>(facts: &Facts<'a>) -> &'a [String] {
    let process: Option<&'a Process> = facts.process;
    process.map_or(&[], |process| &process.packages)
}

fn interfaces<'a>(facts: &Facts<'a>) -> &'a [Interface] {
    facts.environment.map_or(&[], |environment| &environment.interfaces)
}

fn default_interface<'a>(facts: &Facts<'a>) -> Option<&'a Interface> {
    facts.environment?.default_interface()
}

fn any_overlap(wanted: &[Prefix], present: &[Prefix]) -> bool {
    wanted.iter().any(|wanted| present.iter().any(|present| wanted.overlaps(*present)))
}

fn equal_fold(a: &str, b: &str) -> bool {
    a.chars().flat_map(char::to_lowercase).eq(b.chars().flat_map(char::to_lowercase))
}

/// A set of strings to compare with whole.
#[derive(Clone, Debug)]
pub(super) struct Names(Box<[Box<str>]>);

impl Names {
    pub(super) fn new(names: Vec<String>) -> Self {
        let mut names: Vec<Box<str>> = names.into_iter().map(String::into_boxed_str).collect();
        names.sort_unstable();
        names.dedup();
        Self(names.into())
    }

    fn contains(&self, name: &str) -> bool {
        match &*self.0 {
            [only] => **only == *name,
            names => names.binary_search_by(|probe| (**probe).cmp(name)).is_ok(),
        }
    }
}
