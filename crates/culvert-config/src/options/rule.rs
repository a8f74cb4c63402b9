//! `route.rules`: conditions and actions. The shape (default or logical, conditions beside an action) is shared with
//! DNS rules and rule-sets.

use super::dial::{DomainStrategy, InterfaceType, NetworkStrategy};
use super::tls::SpoofMethod;
use crate::cx::Cx;
use crate::json::{Entry, Node, Value};
use crate::nearest::did_you_mean;
use crate::schema::Schema;
use crate::table::{self, FieldMut, Keys, Kind, Table, UnknownKeys, kinds, options};
use crate::value::{
    Cidr, Dur, List, LooseDnsServerTag, LooseInboundTag, LooseOutboundTag, Map, OptionValue, Pattern,
    PortRange, RuleSetTag, Subnet, choices,
};

/// A rule: what it matches, and what happens then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule<M, A> {
    /// What the rule matches.
    pub condition: Condition<M>,
    /// What happens to what it matches.
    pub action: A,
}

/// What a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition<M> {
    /// All fields that are set.
    Fields(Box<M>),
    /// Other conditions taken together.
    Logical(Logical<M>),
}

/// Conditions taken together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logical<M> {
    /// Whether all of them or one of them must match.
    pub mode: LogicalMode,
    /// The conditions, at least one.
    pub rules: Vec<Condition<M>>,
    /// Matches when they do not.
    pub invert: bool,
}

choices! {
    /// How conditions are taken together.
    pub enum LogicalMode: "logical mode" {
        /// All must match.
        And = "and",
        /// One must match.
        Or = "or",
    }

    /// What `reject` does.
    pub enum RejectMethod: "reject method" {
        /// Tells the client.
        Default = "default" | "",
        /// Says nothing.
        Drop = "drop",
        /// Answers pings itself.
        Reply = "reply",
    }

    /// Protocol that sniffing can tell.
    pub enum Sniffer: "sniffer" {
        /// TLS.
        Tls = "tls",
        /// HTTP.
        Http = "http",
        /// QUIC.
        Quic = "quic",
        /// DNS.
        Dns = "dns",
        /// STUN.
        Stun = "stun",
        /// BitTorrent.
        BitTorrent = "bittorrent",
        /// DTLS.
        Dtls = "dtls",
        /// SSH.
        Ssh = "ssh",
        /// Remote desktop.
        Rdp = "rdp",
        /// Time.
        Ntp = "ntp",
    }
}

options! {
    /// Conditions of a route rule. Items of one list are alternatives, different fields must all match; but the
    /// destination fields (`domain*`, `ip_cidr`, `ip_is_private`) are alternatives of each other, as are `port` and
    /// `port_range`, the two source address fields, and the two source port fields.
    pub struct RouteMatch {
        /// Inbounds the connection came in by.
        inbound: List<LooseInboundTag>,
        /// IP version of the destination: 4 or 6.
        ip_version: u8,
        /// `tcp`, `udp` or `icmp`.
        network: List<String>,
        /// Users that the inbound has authenticated.
        auth_user: List<String>,
        /// Sniffed protocols.
        protocol: List<String>,
        /// Sniffed clients: `chromium`, `safari`, `firefox`, `quic-go`.
        client: List<String>,
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
        /// Destination addresses.
        ip_cidr: List<Cidr>,
        /// Destination is not a public address.
        ip_is_private: bool,
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
        /// Outbounds that claim the destination.
        preferred_by: List<LooseOutboundTag>,
        /// Rule-sets.
        rule_set: List<RuleSetTag>,
        /// Tests the addresses of the rule-sets against the source.
        rule_set_ip_cidr_match_source: bool,
        /// Ignored, kept for old files.
        rule_set_ipcidr_match_source: bool [hidden],
        /// Matches when the conditions do not.
        invert: bool,
    }
    check = RouteMatch::check_values;
}

impl RouteMatch {
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
    }
}

/// An empty text would match everything, or nothing; nobody means that.
pub(crate) fn check_no_empty_item<'a>(
    lists: impl IntoIterator<Item = (&'static str, &'a List<String>)>,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    for (key, items) in lists {
        if items.iter().any(String::is_empty) {
            cx.error(node.place_of(key), format!("an empty text is not allowed in `{key}`"));
        }
    }
}

kinds! {
    /// What happens to a connection that matches a route rule.
    pub enum RouteAction: "rule" in [] {
        /// Goes to an outbound. Ends the rules.
        Route(RouteTo) = "route",
        /// Sets options and goes on.
        RouteOptions(SetRouteOptions) = "route-options",
        /// Leaves it to the kernel in pre-match; elsewhere goes to an outbound, if one is named. Ends the rules.
        Bypass(Bypass) = "bypass",
        /// Refuses. Ends the rules.
        Reject(Reject) = "reject",
        /// Answers as a DNS server. Ends the rules.
        HijackDns(HijackDns) = "hijack-dns",
        /// Looks for protocol and domain, and goes on.
        Sniff(Sniff) = "sniff",
        /// Resolves the domain of the destination, and goes on.
        Resolve(Resolve) = "resolve",
    }
}

options! {
    /// Sends a connection to an outbound.
    pub struct RouteTo {
        /// The outbound.
        outbound: LooseOutboundTag,
        /// How to go there.
        options: RouteActionOptions = ..,
    }

    /// Sets options for the connection.
    pub struct SetRouteOptions {
        /// The options.
        options: RouteActionOptions = ..,
    }

    /// Leaves a connection to the kernel where that is possible.
    pub struct Bypass {
        /// The outbound where it is not possible; the rule is skipped when absent.
        outbound: LooseOutboundTag,
        /// How to go there.
        options: RouteActionOptions = ..,
    }

    /// How a connection is dialed.
    pub struct RouteActionOptions {
        /// Destination address in place of the one asked for.
        override_address: String,
        /// Destination port in place of the one asked for.
        override_port: u16,
        /// How to use several network interfaces.
        network_strategy: Option<NetworkStrategy>,
        /// Wait before the next interface is tried as well, in milliseconds.
        fallback_delay: u32,
        /// Answers datagrams from the address rather than from the domain asked for.
        udp_disable_domain_unmapping: bool,
        /// Ties datagrams to the first destination.
        udp_connect: bool,
        /// Idle time after which a UDP session ends.
        udp_timeout: Dur,
        /// Splits the first TLS message over TCP segments.
        tls_fragment: bool,
        /// How long to wait between segments where the system cannot tell; 500ms when absent.
        tls_fragment_fallback_delay: Dur,
        /// Splits the first TLS message over TLS records.
        tls_record_fragment: bool,
        /// Sends a forged first message with this server name ahead of the real one.
        tls_spoof: String,
        /// How the forged message is kept from the server.
        tls_spoof_method: Option<SpoofMethod>,
    }
    check = RouteActionOptions::check_conflicts;

    /// Refuses a connection.
    pub struct Reject {
        /// How.
        method: RejectMethod,
        /// Keeps telling the client, also after many refusals in a short time.
        no_drop: bool,
    }
    check = Reject::check_no_drop;
    unknown_keys = Warn;

    /// Answers as a DNS server; no options.
    pub struct HijackDns {}

    /// Looks at the first bytes of a connection.
    pub struct Sniff {
        /// Protocols to look for; all when absent.
        sniffer: List<Sniffer>,
        /// How long to wait for the first bytes; 300ms when absent.
        timeout: Dur,
        /// Dials the domain found in place of the address asked for. Only old inbound options lead to this.
        override_destination: bool [hidden],
    }

    /// Resolves the domain of the destination.
    pub struct Resolve {
        /// DNS server; chosen by the DNS rules when absent.
        server: LooseDnsServerTag,
        /// How long a query may take.
        timeout: Dur,
        /// Which address family to prefer.
        strategy: DomainStrategy,
        /// Always asks, and keeps no answer.
        disable_cache: bool,
        /// Never takes an expired answer.
        disable_optimistic_cache: bool,
        /// Time to live of answers in seconds.
        rewrite_ttl: Option<u32>,
        /// Client subnet sent along with the query.
        client_subnet: Option<Subnet>,
    }
}

impl RouteActionOptions {
    fn check_conflicts(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.tls_fragment && self.tls_record_fragment {
            let place = node.place_of("tls_record_fragment");
            cx.error(place, "`tls_fragment` and `tls_record_fragment` exclude each other");
        }
        if self.tls_spoof_method.is_some() && self.tls_spoof.is_empty() {
            cx.error(node.place_of("tls_spoof_method"), "`tls_spoof_method` needs `tls_spoof`");
        }
        let sets_options = node.get("action").and_then(Node::as_str) == Some("route-options");
        if sets_options && *self == Self::default() {
            cx.error(node.place_of("action"), "this `route-options` action sets no option");
        }
    }
}

impl Reject {
    fn check_no_drop(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.no_drop && self.method == RejectMethod::Drop {
            cx.error(node.place_of("no_drop"), "`no_drop` cannot be used with the method `drop`");
        }
    }
}

/// Conditions that can stand in a rule.
pub(crate) trait Match: Table + Default {
    /// What messages call such a rule.
    const NOUN: &'static str;
    /// Name of the schema definition of a condition without an action.
    const SCHEMA_NAME: &'static str;
    /// Keys that show that somebody gave a nested rule an action.
    const ACTION_KEYS: &'static [&'static str];
    /// Whether keys in another letter case are unknown.
    const EXACT_KEYS: bool;
}

impl Match for RouteMatch {
    const NOUN: &'static str = "rule";
    const SCHEMA_NAME: &'static str = "NestedRule";
    const ACTION_KEYS: &'static [&'static str] = &["action", "outbound"];
    const EXACT_KEYS: bool = true;
}

impl<M: Default> Default for Condition<M> {
    fn default() -> Self {
        Self::Fields(Box::default())
    }
}

#[expect(private_bounds, reason = "only this crate decodes rules")]
impl<M: Match> Condition<M> {
    /// Takes the form that `type` asks for.
    fn take_form(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(form) = node.get("type") else { return };
        match form.as_str() {
            Some("" | "default") => *self = Self::default(),
            Some("logical") => {
                *self = Self::Logical(Logical { mode: LogicalMode::And, rules: vec![], invert: false });
                if node.get("mode").is_none() {
                    cx.error(node.place, "a logical rule needs a `mode`: `and` or `or`");
                }
            }
            Some(other) => {
                let hint = did_you_mean(other, ["default", "logical"]);
                cx.error(
                    form.place,
                    format!("unknown {} type `{other}`{hint}; `default` or `logical`", M::NOUN),
                );
            }
            None => cx.expected("a string", form),
        }
    }

    fn fields_mut<'a>(&'a mut self, out: &mut Vec<FieldMut<'a>>) {
        match self {
            Self::Fields(fields) => fields.fields_mut(out),
            Self::Logical(logical) => out.extend([
                FieldMut { key: "mode", value: &mut logical.mode as &mut dyn OptionValue },
                FieldMut { key: "rules", value: &mut logical.rules },
                FieldMut { key: "invert", value: &mut logical.invert },
            ]),
        }
    }

    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        match self {
            Self::Fields(fields) => fields.check(node, cx),
            Self::Logical(logical) if logical.rules.is_empty() => {
                cx.error(node.place_of("rules"), "a logical rule needs at least one rule in `rules`");
            }
            Self::Logical(_) => {}
        }
    }

    /// Whether it matches everything, or inverted nothing.
    fn is_empty(&self) -> bool {
        self.encode_entries().iter().all(|entry| entry.key == "invert")
    }

    fn encode_entries(&self) -> Vec<Entry> {
        match self {
            Self::Fields(fields) => table::encode_fields(&**fields),
            Self::Logical(logical) => {
                let mut entries = vec![
                    Entry::new("type", Node::string("logical")),
                    Entry::new("mode", logical.mode.encode()),
                    Entry::new("rules", logical.rules.encode()),
                ];
                entries.extend(logical.invert.then(|| Entry::new("invert", Node::bool(true))));
                entries
            }
        }
    }

    /// Properties of both forms, in the schema.
    fn schema_forms(schema: &mut Schema) -> [Vec<Entry>; 2] {
        let mut fields = vec![Entry::new("type", Schema::one_of_words(["default", ""]))];
        fields.extend(table::schema_properties(&M::default(), schema));
        let nested = Self::default().schema(schema);
        let logical = vec![
            Entry::new("type", Schema::constant("logical")),
            Entry::new("mode", LogicalMode::And.schema(schema)),
            Entry::new("rules", Schema::list(nested)),
            Entry::new("invert", Schema::typed("boolean")),
        ];
        [fields, logical]
    }
}

/// A condition without an action: inside a logical rule, or in a rule-set.
impl<M: Match> OptionValue for Condition<M> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(entry) = M::ACTION_KEYS.iter().find_map(|key| node.entry(key)) {
            let message = format!("`{}` is an action; a nested {} only has conditions", entry.key, M::NOUN);
            cx.error(entry.key_place, message);
            return;
        }
        let errors = cx.report.errors();
        self.take_form(node, cx);
        let mut fields = Vec::new();
        self.fields_mut(&mut fields);
        let exact = if M::EXACT_KEYS { Keys::ALL } else { 0 };
        let keys = Keys { elsewhere: &["type"], unknown: UnknownKeys::Refuse, exact };
        cx.without_empties(|cx| table::decode_fields(&mut fields, keys, node, cx));
        if cx.is_checking() && cx.report.errors() == errors {
            if self.is_empty() {
                cx.error(node.place, "this rule has no conditions");
            }
            self.check(node, cx);
        }
    }

    fn decode_item(&mut self, node: &Node, _index: Option<usize>, cx: &mut Cx<'_>) {
        self.decode(node, cx);
    }

    fn encode(&self) -> Node {
        Value::Object(self.encode_entries()).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.define(M::SCHEMA_NAME, |schema| {
            let forms = Self::schema_forms(schema);
            Schema::one_of(forms.map(|properties| Schema::object(properties, None, [])))
        })
    }
}

impl<M: Match, A: Kind> OptionValue for Rule<M, A> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let errors = cx.report.errors();
        let named = node.get("action").is_some_and(|action| action.as_str() != Some(""));
        if named || node.as_object().is_none() {
            let Some(action) = table::kind_of::<A>(node, "action", cx) else { return };
            self.action = action;
        }
        self.condition.take_form(node, cx);
        let unknown = self.action.table().unknown_keys();
        let mut fields = Vec::new();
        self.condition.fields_mut(&mut fields);
        let exact = fields.len();
        self.action.table_mut().fields_mut(&mut fields);
        let keys = Keys { elsewhere: &["type", "action"], unknown, exact };
        let unknown = node.as_object().into_iter().flatten().find(|entry| {
            let key = entry.key.as_str();
            !keys.elsewhere.contains(&key)
                && !fields.iter().any(|field| field.key.eq_ignore_ascii_case(key))
                && !cx.counts_as_absent(&entry.node)
        });
        cx.without_empties(|cx| table::decode_fields(&mut fields, keys, node, cx));
        if cx.is_checking() && cx.report.errors() == errors {
            if let Some(entry) = unknown.filter(|_| self.condition.is_empty()) {
                // Only rules that refuse come here, as sing-box ignores unknown fields in those.
                let message =
                    format!("without `{}` this rule has no condition: it would refuse everything", entry.key);
                cx.error(entry.key_place, message);
            }
            self.condition.check(node, cx);
            self.action.table().check(node, cx);
        }
    }

    fn decode_item(&mut self, node: &Node, _index: Option<usize>, cx: &mut Cx<'_>) {
        self.decode(node, cx);
    }

    fn encode(&self) -> Node {
        let mut entries = self.condition.encode_entries();
        if self.action.name() != A::default().name() {
            entries.push(Entry::new("action", Node::string(self.action.name())));
        }
        entries.extend(table::encode_fields(self.action.table()));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    /// One form of condition beside one action.
    fn schema(&self, schema: &mut Schema) -> Node {
        let conditions = Condition::<M>::schema_forms(schema);
        let conditions = conditions.map(|properties| Schema::open_object(properties, None, []));
        let default = A::default();
        let actions: Vec<Node> = A::all()
            .iter()
            .map(|action| {
                let mut properties = vec![Entry::new("action", Schema::constant(action.name()))];
                properties.extend(table::schema_properties(action.table(), schema));
                let required = (action.name() != default.name()).then_some("action");
                Schema::open_object(properties, None, required)
            })
            .collect();
        Schema::all_of([Schema::any_of(conditions), Schema::any_of(actions)])
    }
}
