//! Outbound `http`: HTTP CONNECT through a proxy.

use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::tls::OutboundTls;
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
    }
}
