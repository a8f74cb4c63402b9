//! Outbound `naive`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::inbound::naive::NaiveCongestionControl;
use crate::options::outbound::socks::UdpOverTcp;
use crate::options::tls::{Need, OutboundTls, check_unused};
use crate::table::options;
use crate::value::{Headers, MemorySize, OptionValue, Secret, Word};

options! {
    /// Options of a naive outbound.
    pub struct NaiveOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Name to log in with.
        username: String,
        /// Password.
        password: Secret<String>,
        /// How many connections to use at once, which is easier to tell from a browser; 1 when absent.
        insecure_concurrency: i64,
        /// Further request headers.
        extra_headers: Headers,
        /// How much the server may send ahead on one stream.
        stream_receive_window: Option<MemorySize>,
        /// Sends datagrams over streams.
        udp_over_tcp: Option<UdpOverTcp>,
        /// Uses HTTP/3 in place of HTTP/2.
        quic: bool,
        /// Congestion control of HTTP/3; `bbr` when absent.
        quic_congestion_control: Word<NaiveCongestionControl>,
        /// How much the server may send ahead on all streams together.
        quic_session_receive_window: Option<MemorySize>,
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
    }
    check = NaiveOutbound::check_tls;
}

impl NaiveOutbound {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        self.quic_congestion_control.check("quic_congestion_control", node, cx);
        OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
        let (Some(tls), Some(node)) = (self.tls.as_deref(), node.get("tls")) else { return };
        let foreign = [
            ("disable_sni", tls.disable_sni),
            ("insecure", tls.insecure),
            ("alpn", !tls.alpn.is_empty()),
            ("min_version", !tls.min_version.is_zero()),
            ("max_version", !tls.max_version.is_zero()),
            ("cipher_suites", !tls.cipher_suites.is_empty()),
            ("curve_preferences", !tls.curve_preferences.is_empty()),
            ("client_certificate", !tls.client_certificate.is_empty()),
            ("client_certificate_path", !tls.client_certificate_path.is_empty()),
            ("fragment", tls.fragment),
            ("record_fragment", tls.record_fragment),
            ("kernel_tx", tls.kernel_tx),
            ("kernel_rx", tls.kernel_rx),
            ("utls", tls.utls.as_ref().is_some_and(|utls| utls.enabled)),
            ("reality", tls.reality.as_ref().is_some_and(|reality| reality.enabled)),
        ];
        check_unused(foreign, "would tell a naive outbound from the browser it looks like", node, cx);
    }
}
