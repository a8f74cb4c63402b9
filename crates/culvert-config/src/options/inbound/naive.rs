//! Inbound `naive`: HTTP/2 over TCP and HTTP/3 over UDP, made to look like a web server.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::LoginUser;
use crate::table::options;
use crate::value::{Networks, Word, choices};

options! {
    /// Options of a naive inbound.
    pub struct NaiveInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it, at least one.
        users: Vec<LoginUser>,
        /// What to listen for; both when absent.
        network: Networks,
        /// Congestion control of HTTP/3; `bbr` when absent.
        quic_congestion_control: Word<NaiveCongestionControl>,
        /// TLS towards the clients; without, something in front must do it.
        tls: Option<Box<InboundTls>>,
    }
    check = NaiveInbound::check_users_and_tls;
}

choices! {
    /// Congestion control of a naive connection.
    pub enum NaiveCongestionControl: "congestion control algorithm" {
        /// BBR.
        Bbr = "bbr",
        /// CUBIC.
        Cubic = "cubic",
        /// Reno.
        Reno = "reno",
        /// BBR 2, for outbounds only.
        Bbr2 = "bbr2",
    }
}

impl NaiveInbound {
    fn check_users_and_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.users.is_empty() {
            cx.error(node.place_of("users"), "a naive inbound needs `users`, or anybody could use it");
        }
        self.quic_congestion_control.check_leniently("quic_congestion_control", node, cx);
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
        let has_tls = self.tls.as_ref().is_some_and(|tls| tls.enabled);
        if self.network.udp() && !has_tls {
            let message = "HTTP/3 needs TLS; add `\"tls\": {\"enabled\": true}`, or `\"network\": \"tcp\"`";
            cx.error(node.place_of("tls"), message);
        }
    }
}
