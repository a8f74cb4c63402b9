//! Outbound `tuic`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::http_fields::QuicOptions;
use crate::options::quic::CongestionControl;
use crate::options::tls::{Need, OutboundTls};
use crate::table::options;
use crate::value::{Dur, Networks, OptionValue, Secret, Uuid, Word, choices};

options! {
    /// Options of a TUIC outbound.
    pub struct TuicOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Id of the user.
        uuid: Secret<Uuid>,
        /// Password.
        password: Secret<String>,
        /// Congestion control; `cubic` when absent.
        congestion_control: Word<CongestionControl>,
        /// How datagrams travel; `native` when absent.
        udp_relay_mode: Word<UdpRelayMode>,
        /// Sends datagrams over one stream, in a way only sing-box and Culvert know.
        udp_over_stream: bool,
        /// Sends data before the handshake is done, which others can repeat.
        zero_rtt_handshake: bool,
        /// Time between signs of life; 10s when absent.
        heartbeat: Dur,
        /// What to send there; both when absent.
        network: Networks,
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
        /// Limits of the connection.
        quic: QuicOptions = ..,
    }
    check = TuicOutbound::check_values;
}

choices! {
    /// How TUIC carries datagrams.
    pub enum UdpRelayMode: "UDP relay mode" {
        /// As QUIC datagrams, which may get lost.
        Native = "native",
        /// Each on a stream of its own.
        Quic = "quic",
    }
}

impl TuicOutbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
        if self.uuid.is_zero() {
            cx.error(node.place, "this TUIC outbound has no `uuid`");
        }
        self.congestion_control.check("congestion_control", node, cx);
        self.udp_relay_mode.check_leniently("udp_relay_mode", node, cx);
        if self.udp_over_stream && !self.udp_relay_mode.is_zero() {
            let message = "`udp_over_stream` and `udp_relay_mode` exclude each other";
            cx.error(node.place_of("udp_over_stream"), message);
        }
    }
}
