//! `multiplex`: many connections inside one.

use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Word, choices};

options! {
    /// Multiplexing on an outbound.
    pub struct OutboundMux {
        /// Whether it is used.
        enabled: bool,
        /// Protocol; `h2mux` when absent.
        protocol: Word<MuxProtocol>,
        /// How many connections to use at most; not together with `max_streams`.
        max_connections: i64,
        /// How many streams a connection has before another one is opened; not together with `max_streams`.
        min_streams: i64,
        /// How many streams a connection has at most.
        max_streams: i64,
        /// Adds random padding.
        padding: bool,
        /// Sends at a fixed speed.
        brutal: Option<Brutal>,
    }
    check = OutboundMux::check_values;

    /// Multiplexing on an inbound.
    pub struct InboundMux {
        /// Whether it is used.
        enabled: bool,
        /// Refuses clients without padding.
        padding: bool,
        /// Sends at a fixed speed.
        brutal: Option<Brutal>,
    }
    check = InboundMux::check_values;

    /// Sending at a fixed speed by TCP Brutal (Linux, with its kernel module).
    pub struct Brutal {
        /// Whether it is used.
        enabled: bool,
        /// Upload speed in megabits per second.
        up_mbps: i64,
        /// Download speed in megabits per second.
        down_mbps: i64,
    }
}

choices! {
    /// A multiplexing protocol.
    pub enum MuxProtocol: "multiplex protocol" {
        /// HTTP/2.
        H2Mux = "h2mux",
        /// smux.
        Smux = "smux",
        /// yamux.
        Yamux = "yamux",
    }
}

impl OutboundMux {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.enabled {
            self.protocol.check("protocol", node, cx);
            Brutal::check(self.brutal.as_ref(), node, cx);
        }
    }
}

impl InboundMux {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.enabled {
            Brutal::check(self.brutal.as_ref(), node, cx);
        }
    }
}

impl Brutal {
    fn check(brutal: Option<&Self>, parent: &Node, cx: &mut Cx<'_>) {
        let Some(brutal) = brutal.filter(|brutal| brutal.enabled) else { return };
        let node = parent.get("brutal").unwrap_or(parent);
        for (key, speed) in [("up_mbps", brutal.up_mbps), ("down_mbps", brutal.down_mbps)] {
            if speed <= 0 {
                cx.error(node.place_of(key), format!("`brutal` needs a speed in `{key}`"));
            }
        }
    }
}
