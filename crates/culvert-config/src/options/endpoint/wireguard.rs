//! Endpoint `wireguard`.

use std::collections::HashMap;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DialOptions;
use crate::options::nat::NatOptions;
use crate::table::options;
use crate::value::{Base64, Dur, List, OptionValue, Prefix, Secret, WireGuardKey};

options! {
    /// Options of a WireGuard endpoint.
    pub struct WireGuardEndpoint {
        /// Uses a network interface of the system (Linux).
        system: bool,
        /// Name of the network interface; chosen when absent.
        name: String,
        /// Greatest size of a packet in bytes; 1408 when absent.
        mtu: u32,
        /// Addresses inside the tunnel.
        address: List<Prefix> [keep],
        /// The own key.
        private_key: Secret<WireGuardKey> [keep],
        /// Port to listen on; a free one when absent.
        listen_port: u16,
        /// The other ends.
        peers: Vec<WireGuardPeer>,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: Dur,
        /// How UDP sessions are told apart.
        nat: NatOptions = ..,
        /// How many threads encrypt; one for each processor when absent.
        workers: i64,
        /// How to dial.
        dial: DialOptions = ..,
    }
    check = WireGuardEndpoint::check_keys_and_peers;

    /// The other end of a tunnel.
    pub struct WireGuardPeer {
        /// Its domain name or IP address; without, it has to begin.
        address: String,
        /// Its port.
        port: u16,
        /// Its key.
        public_key: WireGuardKey,
        /// A further key that both ends know.
        pre_shared_key: Secret<WireGuardKey>,
        /// What is routed to it, and what it may send from.
        allowed_ips: List<Prefix>,
        /// Seconds between signs of life; none when absent.
        persistent_keepalive_interval: u16,
        /// Three bytes that stand in place of zeros in every packet.
        reserved: Base64,
    }
}

impl WireGuardEndpoint {
    fn check_keys_and_peers(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.private_key.is_zero() {
            cx.error(node.place_of("private_key"), "this WireGuard endpoint has no `private_key`");
        }
        if self.listen_port != 0 && self.dial.detour.get().is_some() {
            cx.error(node.place_of("listen_port"), "`listen_port` and `detour` exclude each other");
        }
        let items = node.get("peers").and_then(Node::as_array).unwrap_or_default();
        let (mut keys, mut owners) = (HashMap::new(), HashMap::new());
        for (at, (peer, item)) in self.peers.iter().zip(items).enumerate() {
            peer.check(item, cx);
            let first = *keys.entry(peer.public_key.bytes).or_insert(at);
            if first != at && !peer.public_key.is_zero() {
                cx.error(item.place_of("public_key"), format!("`peers[{first}]` has this `public_key` too"));
            }
            for prefix in peer.allowed_ips.iter() {
                let owner = *owners.entry(prefix.network()).or_insert(at);
                if owner != at {
                    cx.error(
                        item.place_of("allowed_ips"),
                        format!(
                            "{}/{} is among the `allowed_ips` of `peers[{owner}]` too, so one of them \
                             could never be reached",
                            prefix.ip, prefix.length
                        ),
                    );
                }
            }
        }
    }
}

impl WireGuardPeer {
    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.public_key.is_zero() {
            cx.error(node.place_of("public_key"), "this peer has no `public_key`");
        }
        if self.allowed_ips.is_empty() {
            cx.error(
                node.place_of("allowed_ips"),
                "this peer has no `allowed_ips`, so nothing could reach it",
            );
        }
        let reserved = self.reserved.0.len();
        if !matches!(reserved, 0 | 3) {
            cx.error(node.place_of("reserved"), format!("`reserved` has 3 bytes, not {reserved}"));
        }
    }
}
