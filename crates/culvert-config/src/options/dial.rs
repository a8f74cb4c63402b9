//! Options shared by all that dials.

use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;
use crate::table::{self, options};
use crate::value::{
    Address, DnsServerTag, Dur, List, Mark, NamespaceTag, OptionValue, OutboundTag, Subnet, choices,
};

options! {
    /// How to dial.
    pub struct DialOptions {
        /// Outbound to dial through; the other dial options are then ignored.
        detour: OutboundTag,
        /// Network interface to leave by.
        bind_interface: String,
        /// Local IPv4 address.
        inet4_bind_address: Option<Address>,
        /// Local IPv6 address.
        inet6_bind_address: Option<Address>,
        /// Leaves the choice of the local port to the moment of connecting (Linux).
        bind_address_no_port: bool,
        /// Socket of the Android VPN service that protects connections.
        protect_path: String,
        /// Firewall mark of the sockets (Linux).
        routing_mark: Mark,
        /// Lets several sockets share the local port.
        reuse_addr: bool,
        /// Network namespace to dial in: a tag, a name or a path (Linux).
        netns: NamespaceTag,
        /// How long a TCP connection may take; 5s when absent.
        connect_timeout: Dur,
        /// Sends data in the opening packet (TCP Fast Open).
        tcp_fast_open: bool,
        /// Uses Multipath TCP.
        tcp_multi_path: bool,
        /// Switches off TCP keep-alive.
        disable_tcp_keep_alive: bool,
        /// Idle time before the first keep-alive probe; 5m when absent.
        tcp_keep_alive: Dur,
        /// Time between keep-alive probes; 75s when absent.
        tcp_keep_alive_interval: Dur,
        /// Lets datagrams be fragmented; the protocol decides when absent.
        udp_fragment: Option<bool>,
        /// DNS server for the name of the server; on a direct outbound, for the destinations.
        domain_resolver: Option<DomainResolver>,
        /// How to use several network interfaces.
        network_strategy: Option<NetworkStrategy>,
        /// Kinds of interface to use first.
        network_type: List<InterfaceType>,
        /// Kinds of interface to use when the first ones fail.
        fallback_network_type: List<InterfaceType>,
        /// Wait before the next address or interface is tried as well; 300ms when absent.
        fallback_delay: Dur,
    }
    check = DialOptions::check_conflicts;
}

impl DialOptions {
    fn check_conflicts(&self, node: &Node, cx: &mut Cx<'_>) {
        let binds = !self.bind_interface.is_empty()
            || self.inet4_bind_address.is_some()
            || self.inet6_bind_address.is_some()
            || self.tcp_fast_open;
        if self.network_strategy.is_some() && binds {
            let others = "`bind_interface`, `inet4_bind_address`, `inet6_bind_address` or `tcp_fast_open`";
            cx.error(
                node.place_of("network_strategy"),
                format!("`network_strategy` cannot be used with {others}"),
            );
        }
    }
}

options! {
    /// Address of a remote server.
    pub struct ServerOptions {
        /// Domain name or IP address.
        server: String [keep],
        /// Port.
        server_port: u16,
    }
}

/// A DNS server, with options of its own for what is asked of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainResolver(pub DomainResolverOptions);

options! {
    /// A DNS server and how to ask it.
    pub struct DomainResolverOptions {
        /// The DNS server.
        server: DnsServerTag,
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
    unknown_keys = Warn;
}

impl OptionValue for DomainResolver {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if node.as_str().is_some() {
            self.0.server.decode(node, cx);
        } else if node.as_object().is_some() {
            self.0.decode(node, cx);
            if node.get("server").is_none() {
                cx.error(node.place, "`domain_resolver` has no `server`");
            }
        } else {
            cx.expected("the tag of a DNS server or an object", node);
        }
    }

    /// An object with nothing but the server is written as its tag.
    fn encode(&self) -> Node {
        match table::encode_fields(&self.0).as_slice() {
            [server] if server.key == "server" => server.node.clone(),
            _ => self.0.encode(),
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [self.0.server.schema(schema), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}

choices! {
    /// Which address family of a domain is used.
    pub enum DomainStrategy: "domain strategy" {
        /// As the answers come.
        AsIs = "as_is" | "",
        /// IPv4 first.
        PreferIpv4 = "prefer_ipv4",
        /// IPv6 first.
        PreferIpv6 = "prefer_ipv6",
        /// IPv4 alone.
        Ipv4Only = "ipv4_only",
        /// IPv6 alone.
        Ipv6Only = "ipv6_only",
    }

    /// How several network interfaces are used.
    pub enum NetworkStrategy: "network strategy" {
        /// The default interface, or the first of the kinds given.
        Default = "default",
        /// Others when the first fails.
        Fallback = "fallback",
        /// All at once.
        Hybrid = "hybrid",
    }

    /// Kind of a network interface.
    pub enum InterfaceType: "interface type" {
        /// Wireless LAN.
        Wifi = "wifi",
        /// Mobile network.
        Cellular = "cellular",
        /// Cable.
        Ethernet = "ethernet",
        /// Anything else.
        Other = "other",
    }
}
