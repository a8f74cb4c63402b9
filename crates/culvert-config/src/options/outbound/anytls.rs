//! Outbound `anytls`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::tls::{Need, OutboundTls};
use crate::table::options;
use crate::value::{Dur, Secret};

options! {
    /// Options of an AnyTLS outbound.
    pub struct AnyTlsOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
        /// Password.
        password: Secret<String>,
        /// Time between looks for idle connections; 30s when absent.
        idle_session_check_interval: Dur,
        /// Idle time after which a connection is closed; 30s when absent.
        idle_session_timeout: Dur,
        /// How many idle connections to keep.
        min_idle_session: i64,
        /// What the client says it is.
        client_metadata: String,
    }
    check = AnyTlsOutbound::check_tls_and_fast_open;
}

impl AnyTlsOutbound {
    fn check_tls_and_fast_open(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
        if self.dial.tcp_fast_open {
            let message =
                "an AnyTLS outbound keeps connections open ahead, so `tcp_fast_open` cannot be used";
            cx.error(node.place_of("tcp_fast_open"), message);
        }
    }
}
