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
        /// DNS server for the names clients ask for; without effect, as in sing-box 1.14.4.
        domain_resolver: Option<DomainResolver>,
        /// Makes this inbound the proxy of the system while it runs.
        set_system_proxy: bool,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }
    check = MixedInbound::check;

    /// Options of a SOCKS inbound.
    pub struct SocksInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it; everybody when empty.
        users: Vec<LoginUser>,
        /// DNS server for the names clients ask for; without effect, as in sing-box 1.14.4.
        domain_resolver: Option<DomainResolver>,
    }
    check = SocksInbound::check;

    /// Options of an HTTP proxy inbound.
    pub struct HttpInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it; everybody when empty.
        users: Vec<LoginUser>,
        /// DNS server for the names clients ask for; without effect, as in sing-box 1.14.4.
        domain_resolver: Option<DomainResolver>,
        /// Makes this inbound the proxy of the system while it runs.
        set_system_proxy: bool,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }
    check = HttpInbound::check;
}

/// What all three of them may have.
fn check_resolver(resolver: Option<&DomainResolver>, node: &Node, cx: &mut Cx<'_>) {
    if resolver.is_some() {
        let message = "`domain_resolver` of an inbound has no effect, as outbounds look up names: put it there, or use a rule \
                       with the action `resolve`";
        cx.warn(node.place_of("domain_resolver"), message);
    }
}

impl MixedInbound {
    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        check_resolver(self.domain_resolver.as_ref(), node, cx);
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}

impl SocksInbound {
    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        check_resolver(self.domain_resolver.as_ref(), node, cx);
    }
}

impl HttpInbound {
    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        check_resolver(self.domain_resolver.as_ref(), node, cx);
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}
