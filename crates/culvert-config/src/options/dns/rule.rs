//! `dns.rules`: conditions on DNS queries and answers, and what happens then.

use super::record::Record;
use super::types::{QueryType, ResponseCode};
use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DomainStrategy, InterfaceType};
use crate::options::rule::{Match, RejectMethod, check_no_empty_item};
use crate::schema::Schema;
use crate::table::{kinds, options};
use crate::value::{
    Cidr, Dur, List, LooseDnsServerTag, LooseInboundTag, LooseOutboundTag, Map, OptionValue, Pattern,
    PortRange, RuleSetTag, Subnet,
};

options! {
    /// Conditions of a DNS rule. They combine as in a route rule.
    pub struct DnsMatch {
        /// Inbounds the query came in by.
        inbound: List<LooseInboundTag>,
        /// 4 for queries of type A, 6 for AAAA.
        ip_version: u8,
        /// Types of query.
        query_type: List<QueryType>,
        /// Client subnets the query carries.
        query_client_subnet: List<Subnet>,
        /// The query asks for DNSSEC.
        query_dnssec: bool,
        /// `tcp` or `udp`.
        network: List<String>,
        /// Users that the inbound has authenticated.
        auth_user: List<String>,
        /// Sniffed protocols.
        protocol: List<String>,
        /// Whole domain names.
        domain: List<String>,
        /// Ends of domain names; with a leading dot only names below.
        domain_suffix: List<String>,
        /// Parts of domain names.
        domain_keyword: List<String>,
        /// Regular expressions on domain names.
        domain_regex: List<Pattern>,
        /// Source addresses.
        source_ip_cidr: List<Cidr>,
        /// Source is not a public address.
        source_ip_is_private: bool,
        /// Source ports.
        source_port: List<u16>,
        /// Ranges of source ports.
        source_port_range: List<PortRange>,
        /// Destination ports.
        port: List<u16>,
        /// Ranges of destination ports.
        port_range: List<PortRange>,
        /// Names of programs.
        process_name: List<String>,
        /// Paths of programs.
        process_path: List<String>,
        /// Regular expressions on paths of programs.
        process_path_regex: List<Pattern>,
        /// Android packages.
        package_name: List<String>,
        /// Regular expressions on Android packages.
        package_name_regex: List<Pattern>,
        /// Names of system users.
        user: List<String>,
        /// Numbers of system users.
        user_id: List<i32>,
        /// Mode chosen through the Clash API.
        clash_mode: String,
        /// Kinds of the default network interface.
        network_type: List<InterfaceType>,
        /// The default network is metered.
        network_is_expensive: bool,
        /// The default network is in data saving mode.
        network_is_constrained: bool,
        /// Names of wireless networks.
        wifi_ssid: List<String>,
        /// Addresses of wireless access points.
        wifi_bssid: List<String>,
        /// Addresses of interfaces, by interface name.
        interface_address: Map<List<Subnet>>,
        /// Addresses of interfaces, by kind of network.
        network_interface_address: Map<List<Subnet>>,
        /// Addresses of the default interface.
        default_interface_address: List<Subnet>,
        /// Hardware addresses of the source device.
        source_mac_address: List<String>,
        /// Host names of the source device.
        source_hostname: List<String>,
        /// Outbounds that claim the name.
        preferred_by: List<LooseOutboundTag>,
        /// Rule-sets.
        rule_set: List<RuleSetTag>,
        /// Tests the addresses of the rule-sets against the source.
        rule_set_ip_cidr_match_source: bool,
        /// Also looks at the answer an `evaluate` rule before this one has got.
        match_response: Option<MatchResponse>,
        /// Addresses in the answer.
        ip_cidr: List<Cidr>,
        /// The answer has an address that is not public.
        ip_is_private: bool,
        /// The answer has an address.
        ip_accept_any: bool,
        /// Response code of the answer.
        response_rcode: Option<ResponseCode>,
        /// Records in the answer section.
        response_answer: List<Record>,
        /// Records in the authority section.
        response_ns: List<Record>,
        /// Records in the additional section.
        response_extra: List<Record>,
        /// Matches when the conditions do not.
        invert: bool,
        /// Lets addresses of the rule-sets pass an empty answer; goes with `match_response` in its place.
        rule_set_ip_cidr_accept_empty: bool [hidden],
        /// Ignored, kept for old files.
        rule_set_ipcidr_match_source: bool [hidden],
    }
    check = DnsMatch::check_values;
}

impl DnsMatch {
    /// Whether the rule looks at addresses of an answer without saying which one. Its query is then sent first, and
    /// the answer counts only if it passes.
    #[must_use]
    pub fn is_address_filter(&self) -> bool {
        self.match_response.is_none()
            && (!self.ip_cidr.is_empty() || self.ip_is_private || self.ip_accept_any)
    }

    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if !matches!(self.ip_version, 0 | 4 | 6) {
            cx.error(node.place_of("ip_version"), format!("unknown IP version {}; 4 or 6", self.ip_version));
        }
        let texts = [
            ("domain", &self.domain),
            ("domain_suffix", &self.domain_suffix),
            ("domain_keyword", &self.domain_keyword),
        ];
        check_no_empty_item(texts, node, cx);
        if self.rule_set_ip_cidr_accept_empty {
            let message =
                "`rule_set_ip_cidr_accept_empty` is old; use `match_response` with an `evaluate` rule before";
            cx.warn(node.place_of("rule_set_ip_cidr_accept_empty"), message);
        }
    }
}

impl Match for DnsMatch {
    const NOUN: &'static str = "DNS rule";
    const SCHEMA_NAME: &'static str = "NestedDNSRule";
    const ACTION_KEYS: &'static [&'static str] = &["action", "server"];
    const EXACT_KEYS: bool = true;
}

/// Which evaluated answer a rule looks at.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub enum MatchResponse {
    /// None: `false`.
    #[default]
    No,
    /// The latest one without a tag: `true`.
    Latest,
    /// The one of that tag.
    Tag(String),
}

impl OptionValue for MatchResponse {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        *self = match (node.as_bool(), node.as_str()) {
            (Some(false), _) => Self::No,
            (Some(true), _) => Self::Latest,
            (None, Some(tag)) if !tag.is_empty() => Self::Tag(tag.to_owned()),
            _ => return cx.expected("true, false or the tag of an `evaluate` rule", node),
        };
    }

    fn encode(&self) -> Node {
        match self {
            Self::No => Node::bool(false),
            Self::Latest => Node::bool(true),
            Self::Tag(tag) => Node::string(tag.as_str()),
        }
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::any_of([Schema::typed("boolean"), Schema::typed("string")])
    }
}

kinds! {
    /// What happens to a query that matches a DNS rule.
    pub enum DnsAction: "DNS rule" in [] {
        /// Asks a server. Ends the rules.
        Route(DnsRoute) = "route",
        /// Asks a server, keeps the answer for later rules, and goes on.
        Evaluate(DnsEvaluate) = "evaluate",
        /// Gives the evaluated answer. Ends the rules.
        Respond(DnsRespond) = "respond",
        /// Sets options and goes on.
        RouteOptions(SetDnsOptions) = "route-options",
        /// Refuses. Ends the rules.
        Reject(DnsReject) = "reject",
        /// Gives a fixed answer. Ends the rules.
        Predefined(DnsPredefined) = "predefined",
    }
}

options! {
    /// Asks a server.
    pub struct DnsRoute {
        /// Lets later rules be judged at the same time.
        race: bool,
        /// The server.
        server: LooseDnsServerTag,
        /// Starts the query while earlier rules are still being judged.
        speculative: bool,
        /// How to ask.
        options: DnsQueryOptions = ..,
    }
    check = DnsRoute::check_server;

    /// Asks a server and keeps the answer.
    pub struct DnsEvaluate {
        /// Lets later rules be judged at the same time.
        race: bool,
        /// The server.
        server: LooseDnsServerTag,
        /// Name of the answer for `match_response`.
        tag: String,
        /// Starts the query while earlier rules are still being judged.
        speculative: bool,
        /// How to ask.
        options: DnsQueryOptions = ..,
    }
    check = DnsEvaluate::check_server;

    /// Gives the evaluated answer.
    pub struct DnsRespond {
        /// Lets later rules be judged at the same time.
        race: bool,
    }

    /// Sets options for the query.
    pub struct SetDnsOptions {
        /// Lets later rules be judged at the same time.
        race: bool,
        /// The options.
        options: DnsQueryOptions = ..,
    }
    check = SetDnsOptions::check_not_empty;
    unknown_keys = Warn;

    /// How a query is asked.
    pub struct DnsQueryOptions {
        /// How long it may take.
        timeout: Dur,
        /// Which address family is used.
        strategy: DomainStrategy [hidden],
        /// Always asks, and keeps no answer.
        disable_cache: bool,
        /// Never takes an expired answer.
        disable_optimistic_cache: bool,
        /// Time to live of answers in seconds.
        rewrite_ttl: Option<u32>,
        /// Client subnet sent along.
        client_subnet: Option<Subnet>,
        /// Removes the client subnet from the query.
        remove_client_subnet: bool,
    }
    check = DnsQueryOptions::check_subnet;

    /// Refuses a query.
    pub struct DnsReject {
        /// Lets later rules be judged at the same time.
        race: bool,
        /// How: REFUSED, or no answer at all.
        method: RejectMethod,
        /// Keeps answering, also after many refusals in a short time.
        no_drop: bool,
    }
    check = DnsReject::check_method;
    unknown_keys = Warn;

    /// Gives a fixed answer, whatever type was asked for.
    pub struct DnsPredefined {
        /// Lets later rules be judged at the same time.
        race: bool,
        /// Response code; NOERROR when absent.
        rcode: Option<ResponseCode>,
        /// Records of the answer section.
        answer: List<Record>,
        /// Records of the authority section.
        ns: List<Record>,
        /// Records of the additional section.
        extra: List<Record>,
    }
}

impl DnsAction {
    /// Whether its query may go out before it is known to be wanted.
    #[must_use]
    pub fn is_speculative(&self) -> bool {
        match self {
            Self::Route(action) => action.speculative,
            Self::Evaluate(action) => action.speculative,
            _ => false,
        }
    }

    /// Whether the rule takes part in a race.
    #[must_use]
    pub fn is_race(&self) -> bool {
        match self {
            Self::Route(action) => action.race,
            Self::Evaluate(action) => action.race,
            Self::Respond(action) => action.race,
            Self::RouteOptions(action) => action.race,
            Self::Reject(action) => action.race,
            Self::Predefined(action) => action.race,
        }
    }

    /// How the query is asked, for actions that ask or set options.
    #[must_use]
    pub fn query_options(&self) -> Option<&DnsQueryOptions> {
        match self {
            Self::Route(action) => Some(&action.options),
            Self::Evaluate(action) => Some(&action.options),
            Self::RouteOptions(action) => Some(&action.options),
            Self::Respond(_) | Self::Reject(_) | Self::Predefined(_) => None,
        }
    }
}

impl DnsRoute {
    fn check_server(&self, node: &Node, cx: &mut Cx<'_>) {
        check_has_server(&self.server, node, cx);
        check_race(self.race, self.speculative, node, cx);
    }
}

impl DnsEvaluate {
    fn check_server(&self, node: &Node, cx: &mut Cx<'_>) {
        check_has_server(&self.server, node, cx);
        check_race(self.race, self.speculative, node, cx);
    }
}

fn check_has_server(server: &LooseDnsServerTag, node: &Node, cx: &mut Cx<'_>) {
    if server.get().is_none() {
        cx.error(node.place, "this DNS rule has no `server`");
    }
}

fn check_race(race: bool, speculative: bool, node: &Node, cx: &mut Cx<'_>) {
    if race && speculative {
        cx.error(node.place_of("speculative"), "`race` and `speculative` exclude each other in one rule");
    }
}

impl SetDnsOptions {
    fn check_not_empty(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.options == DnsQueryOptions::default() {
            cx.error(node.place_of("action"), "this `route-options` action sets no option");
        }
    }
}

impl DnsQueryOptions {
    fn check_subnet(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.client_subnet.is_some() && self.remove_client_subnet {
            let place = node.place_of("remove_client_subnet");
            cx.error(place, "`client_subnet` and `remove_client_subnet` exclude each other");
        }
    }
}

impl DnsReject {
    fn check_method(&self, node: &Node, cx: &mut Cx<'_>) {
        match self.method {
            RejectMethod::Default => {}
            RejectMethod::Drop if self.no_drop => {
                cx.error(node.place_of("no_drop"), "`no_drop` cannot be used with the method `drop`");
            }
            RejectMethod::Drop => {}
            RejectMethod::Reply => {
                cx.error(
                    node.place_of("method"),
                    "the reject method `reply` is for pings, not for DNS rules",
                );
            }
        }
    }
}
