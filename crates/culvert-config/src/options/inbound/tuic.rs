//! Inbound `tuic`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::http_fields::QuicOptions;
use crate::options::listen::ListenOptions;
use crate::options::quic::CongestionControl;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::TuicUser;
use crate::table::options;
use crate::value::{Dur, Word};

options! {
    /// Options of a TUIC inbound.
    pub struct TuicInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it.
        users: Vec<TuicUser>,
        /// Congestion control; `cubic` when absent.
        congestion_control: Word<CongestionControl>,
        /// How long a client may take to log in; 3s when absent.
        auth_timeout: Dur,
        /// Accepts data before the handshake is done, which others can repeat.
        zero_rtt_handshake: bool,
        /// Time between signs of life; 10s when absent.
        heartbeat: Dur,
        /// TLS, which is required.
        tls: Option<Box<InboundTls>>,
        /// Limits of connections.
        quic: QuicOptions = ..,
    }
    check = TuicInbound::check_values;
}

impl TuicInbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Required, node, cx);
        self.congestion_control.check("congestion_control", node, cx);
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        for (user, item) in self.users.iter().zip(items) {
            if *user != TuicUser::default() && item.get("uuid").is_none() {
                cx.error(item.place, "this user has no `uuid`");
            }
        }
    }
}
