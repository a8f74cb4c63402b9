//! Outbounds `hysteria` and `hysteria2`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::http_fields::QuicOptions;
use crate::options::hysteria::{Obfuscation, Realm, bytes_per_second};
use crate::options::quic::BbrProfile;
use crate::options::tls::{Need, OutboundTls};
use crate::table::options;
use crate::value::{Bandwidth, Base64, Dur, List, Networks, PortRange, Secret, Word};

options! {
    /// Options of a Hysteria outbound.
    pub struct HysteriaOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Ports of the server to hop between.
        server_ports: List<PortRange>,
        /// Time between hops; 30s when absent.
        hop_interval: Dur,
        /// Upload speed; or `up_mbps`.
        up: Option<Bandwidth>,
        /// Upload speed in megabits per second.
        up_mbps: i64,
        /// Download speed; or `down_mbps`.
        down: Option<Bandwidth>,
        /// Download speed in megabits per second.
        down_mbps: i64,
        /// Password to disguise packets with.
        obfs: Secret<String>,
        /// Password as bytes in base64; it counts before `auth_str`.
        auth: Secret<Base64>,
        /// Password as text.
        auth_str: Secret<String>,
        /// What to send there; both when absent.
        network: Networks,
        /// The old name of `stream_receive_window`, in bytes.
        recv_window_conn: u64 [hidden],
        /// The old name of `connection_receive_window`, in bytes.
        recv_window: u64 [hidden],
        /// The old name of `disable_path_mtu_discovery`.
        disable_mtu_discovery: bool [hidden],
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
        /// Limits of the connection.
        quic: QuicOptions = ..,
    }
    check = HysteriaOutbound::check_tls_and_speeds;

    /// Options of a Hysteria 2 outbound.
    pub struct Hysteria2Outbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Ports of the server to hop between.
        server_ports: List<PortRange>,
        /// Time between hops; 30s when absent.
        hop_interval: Dur,
        /// Greatest time between hops, if it is to vary.
        hop_interval_max: Dur,
        /// Upload speed in megabits per second; BBR finds it when absent.
        up_mbps: i64,
        /// Download speed in megabits per second; BBR finds it when absent.
        down_mbps: i64,
        /// How packets are disguised.
        obfs: Obfuscation,
        /// Password.
        password: Secret<String>,
        /// What to send there; both when absent.
        network: Networks,
        /// TLS, which is required.
        tls: Option<Box<OutboundTls>>,
        /// Limits of the connection.
        quic: QuicOptions = ..,
        /// How hard BBR tries; `standard` when absent.
        bbr_profile: Word<BbrProfile>,
        /// Logs what the Brutal congestion control does.
        brutal_debug: bool,
        /// Does not look like Chrome.
        disable_chrome_parrot: bool,
        /// Meets the server at a meeting point, in place of an address.
        realm: Option<Box<Realm>>,
    }
    check = Hysteria2Outbound::check_values;
}

impl HysteriaOutbound {
    /// Below this many bytes per second the congestion control does not work.
    const LEAST_SPEED: i64 = 16 * 1024;

    /// Upload speed in bytes per second.
    #[must_use]
    pub fn upload(&self) -> i64 {
        bytes_per_second(self.up.as_ref(), self.up_mbps)
    }

    /// Download speed in bytes per second.
    #[must_use]
    pub fn download(&self) -> i64 {
        bytes_per_second(self.down.as_ref(), self.down_mbps)
    }

    /// The password as bytes.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        if self.auth.0.0.is_empty() { self.auth_str.as_bytes() } else { &self.auth.0.0 }
    }

    fn check_tls_and_speeds(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
        for (key, speed) in [("up", self.upload()), ("down", self.download())] {
            if speed == 0 {
                cx.error(node.place_of(key), format!("no speed is given; add `{key}` or `{key}_mbps`"));
            } else if (1..Self::LEAST_SPEED).contains(&speed) {
                let message =
                    format!("{speed} bytes per second are too slow; the least is {}", Self::LEAST_SPEED);
                cx.error(node.place_of(key), message);
            }
        }
    }
}

impl Hysteria2Outbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        self.bbr_profile.check("bbr_profile", node, cx);
        let Some(realm) = self.realm.as_deref() else {
            OutboundTls::check(self.tls.as_deref(), Need::Required, &self.server.server, node, cx);
            return;
        };
        let host = realm.server_url.split_once("://").map_or("", |(_, rest)| rest);
        OutboundTls::check(self.tls.as_deref(), Need::Required, host, node, cx);
        if self.server != ServerOptions::default() || !self.server_ports.is_empty() {
            let message = "`realm` excludes `server`, `server_port` and `server_ports`";
            cx.error(node.place_of("realm"), message);
        }
        let node = node.get("realm").unwrap_or(node);
        realm.check(node, cx);
        if host.is_empty() {
            cx.error(node.place_of("server_url"), "`server_url` is not a URL with a host");
        }
    }
}
