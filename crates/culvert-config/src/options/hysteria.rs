//! What both sides of Hysteria and Hysteria 2 share.

use super::dial::DomainResolver;
use super::http_client::HttpClientReference;
use crate::cx::Cx;
use crate::json::Node;
use crate::table::{kinds, options};
use crate::value::{Bandwidth, Dur, List, Secret, Typed};

/// How Hysteria 2 packets are disguised.
pub type Obfuscation = Typed<ObfuscationKind>;

kinds! {
    /// The ways to disguise Hysteria 2 packets.
    pub enum ObfuscationKind: "obfuscation" in [] {
        /// Every packet looks random.
        Salamander(Salamander) = "salamander",
        /// Also the sizes look random.
        Gecko(Gecko) = "gecko",
    }
}

options! {
    /// Packets that look random.
    pub struct Salamander {
        /// Password that both sides know.
        password: Secret<String>,
    }
    check = Salamander::check_password;
    unknown_keys = Warn;

    /// Packets that look random, and whose sizes do.
    pub struct Gecko {
        /// Password that both sides know.
        password: Secret<String>,
        /// Least size of a packet in bytes; 512 when absent.
        min_packet_size: i64,
        /// Greatest size of a packet in bytes, at most 2048; 1200 when absent.
        max_packet_size: i64,
    }
    check = Gecko::check_values;
    unknown_keys = Warn;

    /// A meeting point through which a Hysteria 2 server without a public address is found.
    pub struct Realm {
        /// URL of the meeting point.
        server_url: String [keep],
        /// Token to log in with.
        token: Secret<String>,
        /// Name of the place where server and clients meet.
        realm_id: String [keep],
        /// STUN servers that tell the own address.
        stun_servers: List<String> [keep],
        /// IP version to meet over: 4 or 6; both when absent.
        ip_version: u8,
        /// Asks the router at home to open a port.
        port_mapping: Option<PortMapping>,
        /// HTTP client to speak to the meeting point.
        http_client: HttpClientReference,
    }

    /// A meeting point, seen from the server.
    pub struct InboundRealm {
        /// The meeting point.
        realm: Realm = ..,
        /// DNS server for the names of STUN servers.
        stun_domain_resolver: Option<DomainResolver>,
    }

    /// A port opened at the router at home.
    pub struct PortMapping {
        /// Whether one is asked for.
        enabled: bool,
        /// How long asking may take.
        timeout: Dur,
        /// How long the port stays open before it is asked for again.
        lifetime: Dur,
    }
}

impl Salamander {
    fn check_password(&self, node: &Node, cx: &mut Cx<'_>) {
        check_password(&self.password, node, cx);
    }
}

impl Gecko {
    /// Least size of a packet when none is given.
    pub const DEFAULT_MIN_PACKET_SIZE: i64 = 512;
    /// Greatest size of a packet when none is given.
    pub const DEFAULT_MAX_PACKET_SIZE: i64 = 1200;
    /// No packet can be made larger than this.
    const LIMIT: i64 = 2048;

    /// Least and greatest size of a packet in bytes.
    #[must_use]
    pub fn packet_sizes(&self) -> (i64, i64) {
        let or = |size: i64, default| if size == 0 { default } else { size };
        (
            or(self.min_packet_size, Self::DEFAULT_MIN_PACKET_SIZE),
            or(self.max_packet_size, Self::DEFAULT_MAX_PACKET_SIZE),
        )
    }

    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        check_password(&self.password, node, cx);
        let (min, max) = self.packet_sizes();
        if min <= 0 || min > max || max > Self::LIMIT {
            let message =
                format!("packet sizes from {min} to {max} are no range inside 1 to {}", Self::LIMIT);
            cx.error(node.place, message);
        }
    }
}

fn check_password(password: &str, node: &Node, cx: &mut Cx<'_>) {
    if password.is_empty() {
        cx.error(node.place, "the obfuscation has no `password`");
    }
}

impl Realm {
    pub(crate) fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        if !matches!(self.ip_version, 0 | 4 | 6) {
            cx.error(node.place_of("ip_version"), format!("unknown IP version {}; 4 or 6", self.ip_version));
        }
        let maps_port = self.port_mapping.as_ref().is_some_and(|mapping| mapping.enabled);
        if maps_port && self.ip_version == 6 {
            cx.error(node.place_of("port_mapping"), "`port_mapping` works for IPv4 only");
        }
    }
}

/// A speed in bytes per second out of its two options; `speed` counts before `mbps`. 0 when neither is given.
pub(crate) fn bytes_per_second(speed: Option<&Bandwidth>, mbps: i64) -> i64 {
    const BYTES_PER_MEGABIT: i64 = 1_000_000 / 8;
    match speed.map_or(0, |speed| i64::try_from(speed.bytes_per_second).unwrap_or(i64::MAX)) {
        0 => mbps.saturating_mul(BYTES_PER_MEGABIT),
        speed => speed,
    }
}
