//! Inbound `cloudflared`: a Cloudflare tunnel.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DialOptions;
use crate::table::options;
use crate::value::{Dur, Secret, Word, choices};

options! {
    /// Options of a Cloudflare tunnel.
    pub struct CloudflaredInbound {
        /// Token of the tunnel.
        token: Secret<String>,
        /// How many connections to keep; 4 when absent.
        ha_connections: i64,
        /// Protocol towards Cloudflare; `auto` when absent.
        protocol: Word<CloudflaredProtocol>,
        /// Insists on post-quantum key exchange.
        post_quantum: bool,
        /// IP version to connect with: 4 or 6; both when absent.
        edge_ip_version: u8,
        /// Version of the UDP protocol; `v2` when absent.
        datagram_version: Word<CloudflaredDatagrams>,
        /// How long connections may go on when the tunnel ends; 30s when absent.
        grace_period: Dur,
        /// Region to connect to; all when absent.
        region: String,
        /// How to dial for control requests.
        control_dialer: Option<Box<DialOptions>>,
        /// How to dial the connections of the tunnel.
        tunnel_dialer: Option<Box<DialOptions>>,
    }
    check = CloudflaredInbound::check_values;
}

choices! {
    /// Protocol of a Cloudflare tunnel.
    pub enum CloudflaredProtocol: "tunnel protocol" {
        /// QUIC, or HTTP/2 where that does not get through.
        Auto = "auto",
        /// QUIC.
        Quic = "quic",
        /// HTTP/2.
        Http2 = "http2",
        /// The protocol before HTTP/2.
        H2Mux = "h2mux",
    }

    /// Version of the UDP protocol of a Cloudflare tunnel.
    pub enum CloudflaredDatagrams: "datagram version" {
        /// Version 2.
        V2 = "v2",
        /// Version 3.
        V3 = "v3",
    }
}

impl CloudflaredInbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.token.is_empty() {
            cx.error(node.place_of("token"), "the token of the tunnel is missing; add `token`");
        }
        self.protocol.check("protocol", node, cx);
        self.datagram_version.check("datagram_version", node, cx);
        if !matches!(self.edge_ip_version, 0 | 4 | 6) {
            let message = format!("unknown IP version {}; 4 or 6", self.edge_ip_version);
            cx.error(node.place_of("edge_ip_version"), message);
        }
    }
}
