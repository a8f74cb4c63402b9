//! Inbounds `mixed`, `socks` and `http`: the proxies that programs and browsers speak to.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DomainResolver;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::LoginUser;
use crate::table::options;

options! {
    /// Options of a mixed inbound: SOCKS and HTTP on one port, told apart by the first byte.
    pub struct MixedInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it; everybody when empty.
        users: Vec<LoginUser>,
        /// DNS server for the names clients ask for.
        domain_resolver: Option<DomainResolver>,
        /// Makes this inbound the proxy of the system while it runs.
        set_system_proxy: bool,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }
    check = MixedInbound::check_tls;

    /// Options of a SOCKS inbound.
    pub struct SocksInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it; everybody when empty.
        users: Vec<LoginUser>,
        /// DNS server for the names clients ask for.
        domain_resolver: Option<DomainResolver>,
    }

    /// Options of an HTTP proxy inbound.
    pub struct HttpInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it; everybody when empty.
        users: Vec<LoginUser>,
        /// DNS server for the names clients ask for.
        domain_resolver: Option<DomainResolver>,
        /// Makes this inbound the proxy of the system while it runs.
        set_system_proxy: bool,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }    check = HttpInbound::check_tls;
}

impl MixedInbound {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}

impl HttpInbound {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}
