//! Outbound `shadowtls`: a handshake for others to see, to be used as `detour` of another outbound.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::inbound::shadowtls::check_version;
use crate::options::tls::{Need, OutboundTls};
use crate::table::options;
use crate::value::Secret;

options! {
    /// Options of a ShadowTLS outbound.
    pub struct ShadowTlsOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Version of the protocol: 1 (default), 2 or 3.
        version: u8,
        /// Password, for versions 2 and 3.
        password: Secret<String>,
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
    }
    check = ShadowTlsOutbound::check_version_and_tls;
}

impl ShadowTlsOutbound {
    /// The version, with its default.
    #[must_use]
    pub const fn version(&self) -> u8 {
        if self.version == 0 { 1 } else { self.version }
    }

    fn check_version_and_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        check_version(self.version, node, cx);
        OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
    }
}
