//! `dns.servers`: the types of DNS server.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::table::{kinds, options};
use crate::value::List;

kinds! {
    /// The types of DNS server with their options.
    pub enum DnsServerKind: "DNS server" in [DnsServer] {
        /// The resolver of the system.
        Local(LocalDnsServer) = "local",
        /// DNS over UDP.
        Udp(UdpDnsServer) = "udp",
        /// DNS over TCP.
        Tcp(TcpDnsServer) = "tcp",
    }
}

options! {
    /// The resolver of the system.
    pub struct LocalDnsServer {
        /// How to dial.
        dial: DialOptions = ..,
        /// Resolves without the functions of the system.
        prefer_go: bool,
        /// Domains, each with a leading dot, whose names come from DHCP leases.
        neighbor_domain: List<String>,
    }
    check = LocalDnsServer::check_domains;

    /// DNS over UDP, with TCP where an answer is cut off; port 53.
    pub struct UdpDnsServer {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
    }

    /// DNS over TCP; port 53.
    pub struct TcpDnsServer {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
    }
}

impl LocalDnsServer {
    fn check_domains(&self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(domain) = self.neighbor_domain.iter().find(|domain| !domain.starts_with('.')) {
            let message = format!("`{domain}` must begin with a dot");
            cx.error(node.place_of("neighbor_domain"), message);
        }
    }
}
