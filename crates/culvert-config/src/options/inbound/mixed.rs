//! Inbounds `mixed`, `socks` and `http`: the proxies that programs and browsers speak to.

use crate::options::dial::DomainResolver;
use crate::options::listen::ListenOptions;
use crate::options::tls::InboundTls;
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
    }
}
