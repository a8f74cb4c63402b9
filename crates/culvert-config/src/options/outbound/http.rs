//! Outbound `http`: HTTP CONNECT through a proxy.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::tls::{Need, OutboundTls};
use crate::table::options;
use crate::value::{Headers, Secret};

options! {
    /// Options of an HTTP proxy outbound.
    pub struct HttpOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The proxy.
        server: ServerOptions = ..,
        /// Name to log in with.
        username: String,
        /// Password.
        password: Secret<String>,
        /// TLS towards the proxy.
        tls: Option<Box<OutboundTls>>,
        /// Path of the request.
        path: String,
        /// Further request headers.
        headers: Headers,
    }    check = HttpOutbound::check_tls;
}

impl HttpOutbound {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Optional, &self.server.server, node, cx);
    }
}
