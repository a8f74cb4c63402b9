//! `dns.servers`: the types of DNS server.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::tls::{Need, OutboundTls};
use crate::options::transport::has_bad_escape;
use crate::table::{kinds, options};
use crate::value::{Address, EndpointTag, Headers, List, Map, Prefix, ServiceTag};

kinds! {
    /// The types of DNS server with their options.
    pub enum DnsServerKind: "DNS server" in [DnsServer] {
        /// The resolver of the system.
        Local(LocalDnsServer) = "local",
        /// Files in the form of `/etc/hosts`.
        Hosts(HostsDnsServer) = "hosts",
        /// DNS over UDP.
        Udp(UdpDnsServer) = "udp",
        /// DNS over TCP.
        Tcp(TcpDnsServer) = "tcp",
        /// DNS over TLS.
        Tls(TlsDnsServer) = "tls",
        /// DNS over QUIC.
        Quic(QuicDnsServer) = "quic",
        /// DNS over HTTPS.
        Https(HttpsDnsServer) = "https",
        /// DNS over HTTP/3.
        H3(H3DnsServer) = "h3",
        /// Made-up addresses that stand for names.
        FakeIp(FakeIpDnsServer) = "fakeip",
        /// Multicast DNS.
        Mdns(MdnsDnsServer) = "mdns",
        /// The servers that DHCP names.
        Dhcp(DhcpDnsServer) = "dhcp",
        /// The servers that systems tell a `resolved` service.
        Resolved(ResolvedDnsServer) = "resolved",
        /// The resolvers of a Tailscale network.
        Tailscale(TailscaleDnsServer) = "tailscale",
        /// The resolvers an OpenVPN server names.
        OpenVpn(OpenVpnDnsServer) = "openvpn",
        /// The resolvers an OpenConnect server names.
        OpenConnect(OpenConnectDnsServer) = "openconnect",
    }
}

options! {
    /// Options of a `local` DNS server: the resolver of the system.
    pub struct LocalDnsServer {
        /// How to dial.
        dial: DialOptions = ..,
        /// How to resolve.
        local: LocalResolverOptions = ..,
    }

    /// How the system is asked.
    pub struct LocalResolverOptions {
        /// Resolves without the functions of the system.
        prefer_go: bool,
        /// Domains, each with a leading dot, whose names come from DHCP leases.
        neighbor_domain: List<String>,
    }
    check = LocalResolverOptions::check_domains;

    /// Options of a `hosts` DNS server.
    pub struct HostsDnsServer {
        /// Files in the form of `/etc/hosts`; that one when absent.
        path: List<String>,
        /// Names with their addresses; they come before the files.
        predefined: Map<List<Address>>,
    }

    /// Options of a `udp` DNS server; truncated answers are asked for again over TCP.
    pub struct UdpDnsServer {
        /// The server; port 53 when absent.
        remote: RemoteDnsServer = ..,
    }

    /// Options of a `tcp` DNS server.
    pub struct TcpDnsServer {
        /// The server; port 53 when absent.
        remote: RemoteDnsServer = ..,
    }

    /// Options of a `tls` DNS server.
    pub struct TlsDnsServer {
        /// The server; port 853 when absent.
        remote: RemoteDnsServer = ..,
        /// TLS, which is on whatever `enabled` says.
        tls: Option<Box<OutboundTls>>,
    }
    check = TlsDnsServer::check_tls;

    /// Options of a `quic` DNS server.
    pub struct QuicDnsServer {
        /// The server; port 853 when absent.
        server: TlsDnsServer = ..,
    }

    /// Options of an `https` DNS server.
    pub struct HttpsDnsServer {
        /// The server; port 443 when absent.
        server: TlsDnsServer = ..,
        /// Path of the request; `/dns-query` when absent.
        path: String,
        /// Without effect: requests are always POST.
        method: String,
        /// Further request headers.
        headers: Headers,
    }
    check = HttpsDnsServer::check_path;

    /// Options of an `h3` DNS server.
    pub struct H3DnsServer {
        /// The server; port 443 when absent.
        https: HttpsDnsServer = ..,
    }

    /// A DNS server somewhere else.
    pub struct RemoteDnsServer {
        /// How to dial.
        dial: DialOptions = ..,
        /// Its address.
        server: ServerOptions = ..,
    }
    check = RemoteDnsServer::check_address;

    /// Options of a `fakeip` DNS server.
    pub struct FakeIpDnsServer {
        /// Range of IPv4 addresses to give out.
        inet4_range: Option<Prefix>,
        /// Range of IPv6 addresses to give out.
        inet6_range: Option<Prefix>,
    }
    check = FakeIpDnsServer::check_ranges;

    /// Options of an `mdns` DNS server.
    pub struct MdnsDnsServer {
        /// How to dial and resolve.
        local: LocalDnsServer = ..,
        /// Network interfaces; every one that can when absent.
        interface: List<String>,
    }

    /// Options of a `dhcp` DNS server.
    pub struct DhcpDnsServer {
        /// How to dial and resolve.
        local: LocalDnsServer = ..,
        /// Network interface; the default one when absent or `auto`.
        interface: String,
    }

    /// Options of a `resolved` DNS server.
    pub struct ResolvedDnsServer {
        /// The service that systems tell their servers.
        service: ServiceTag,
        /// Also uses the default servers of the system.
        accept_default_resolvers: bool,
    }

    /// Options of a `tailscale` DNS server.
    pub struct TailscaleDnsServer {
        /// Where the resolvers come from.
        source: EndpointResolverOptions = ..,
    }

    /// Options of an `openvpn` DNS server.
    pub struct OpenVpnDnsServer {
        /// Where the resolvers come from.
        source: EndpointResolverOptions = ..,
    }

    /// Options of an `openconnect` DNS server.
    pub struct OpenConnectDnsServer {
        /// Where the resolvers come from.
        source: EndpointResolverOptions = ..,
    }

    /// Resolvers that a network names to those who join it.
    pub struct EndpointResolverOptions {
        /// The endpoint that joins it.
        endpoint: EndpointTag,
        /// Also uses the default servers of that network.
        accept_default_resolvers: bool,
        /// Completes names with the search domains of that network.
        accept_search_domain: bool,
    }
}

impl LocalResolverOptions {
    fn check_domains(&self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(domain) = self.neighbor_domain.iter().find(|domain| !domain.starts_with('.')) {
            cx.error(node.place_of("neighbor_domain"), format!("`{domain}` must begin with a dot"));
        }
    }
}

impl RemoteDnsServer {
    fn check_address(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.server.server.is_empty() {
            cx.error(node.place, "this DNS server has no `server`");
        }
    }
}

impl TlsDnsServer {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Implied, &self.remote.server.server, node, cx);
    }
}

impl HttpsDnsServer {
    fn check_path(&self, node: &Node, cx: &mut Cx<'_>) {
        if has_bad_escape(&self.path) {
            cx.error(node.place_of("path"), "`path` has a `%` without two hexadecimal digits behind it");
        }
    }
}

impl FakeIpDnsServer {
    fn check_ranges(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.inet4_range.is_none() && self.inet6_range.is_none() {
            cx.error(node.place, "a fakeip server needs `inet4_range` or `inet6_range`");
        }
    }
}
