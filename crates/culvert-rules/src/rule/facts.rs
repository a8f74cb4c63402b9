//! What rules look at: a borrowed view of one connection or one DNS query, filled in by the router.

use std::net::IpAddr;

use crate::ip::Prefix;

/// The facts one verdict is made from. Plain borrowed data: building one costs nothing.
///
/// What is unknown is `None` or empty, and a condition on it does not match.
#[derive(Clone, Copy, Default)]
pub struct Facts<'a> {
    /// TCP, UDP or ICMP.
    pub network: Option<Network>,
    /// Tag of the inbound.
    pub inbound: &'a str,
    /// 4 for a question of type A, 6 for AAAA. A connection needs none: its destination address says it.
    pub ip_version: Option<IpVersion>,
    /// The user that authenticated at the inbound (`auth_user`).
    pub user: Option<&'a str>,
    /// Sniffed protocol, by its name in rules.
    pub protocol: Option<&'a str>,
    /// Sniffed client program, by its name in rules.
    pub client: Option<&'a str>,
    /// The name asked for or sniffed, in [canonical](crate::domain::canonical_name) form.
    pub domain: Option<&'a str>,
    /// The destination, where it is an address.
    pub destination: Option<IpAddr>,
    /// What an earlier `resolve` found for a destination that is a name.
    pub addresses: &'a [IpAddr],
    /// Destination port.
    pub port: u16,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Source port.
    pub source_port: u16,
    /// Hardware address of the source, from the neighbour table.
    pub source_mac: Option<[u8; 6]>,
    /// Host name of the source, from DHCP leases.
    pub source_hostname: Option<&'a str>,
    /// The program behind the connection, when it was looked up and found.
    pub process: Option<&'a Process>,
    /// The DNS question, for DNS rules.
    pub query: Option<Query>,
    /// Tag of the outbound whose server is being resolved (deprecated DNS condition `outbound`).
    pub outbound: Option<&'a str>,
    /// DNS answers that earlier `evaluate` actions left, for rules with `match_response`.
    pub responses: Option<&'a dyn Responses>,
    /// Whether conditions on destination addresses wait for an answer that is not there yet. Such conditions are then
    /// taken as fulfilled, and the rule is asked again later (DNS rules without `evaluate`).
    pub addresses_pending: bool,
    /// Interfaces, Wi-Fi, the Clash mode: what is the same for all connections of a moment.
    pub environment: Option<&'a Environment>,
    /// Which destinations outbounds ask for (`preferred_by`).
    pub preferences: Option<&'a dyn Preferences>,
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
    /// Echo requests.
    Icmp,
}

impl Network {
    /// The name in rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// Version of the internet protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum IpVersion {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

/// The program that opened a connection on this machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Process {
    /// Path of the executable, or empty.
    pub path: String,
    /// Android packages that share the user id.
    pub packages: Vec<String>,
    /// Name of the user, or empty.
    pub user: String,
    /// Number of the user.
    pub user_id: Option<u32>,
}

/// A DNS question.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Query {
    /// Record type number; 0 is no type and matches nothing.
    pub kind: u16,
    /// Whether DNSSEC records were asked for (the DO bit).
    pub dnssec: bool,
    /// The client subnet option of the query.
    pub client_subnet: Option<Prefix>,
}

/// Answers kept by `evaluate` actions.
pub trait Responses: Sync {
    /// The latest answer with this tag, or the latest one without a tag.
    fn response(&self, tag: Option<&str>) -> Option<&dyn Response>;
}

/// One DNS answer, as far as rules look at it.
pub trait Response: Sync {
    /// The addresses in it.
    fn addresses(&self) -> &[IpAddr];
    /// The response code, extended bits included.
    fn rcode(&self) -> u16;
    /// Whether a section has this record; `record` is what the rule was built with.
    fn has_record(&self, section: Section, record: &[u8]) -> bool;
}

/// Section of a DNS message.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Section {
    /// Answer section.
    Answer,
    /// Authority section.
    Authority,
    /// Additional section.
    Additional,
}

/// Knows which names and addresses an outbound wants (Tailscale, WireGuard and the like).
pub trait Preferences: Sync {
    /// Whether the outbound with this tag prefers the name.
    fn prefers_domain(&self, outbound: &str, domain: &str) -> bool;
    /// Whether the outbound with this tag prefers the address.
    fn prefers_address(&self, outbound: &str, address: IpAddr) -> bool;
}

/// The machine around the connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Environment {
    /// All interfaces.
    pub interfaces: Vec<Interface>,
    /// Which of them carries the default route.
    pub default_interface: Option<usize>,
    /// Name of the Wi-Fi network, or empty.
    pub wifi_ssid: String,
    /// Address of the Wi-Fi access point, or empty.
    pub wifi_bssid: String,
    /// Mode of the Clash API; `None` without that API.
    pub clash_mode: Option<String>,
}

impl Environment {
    pub(super) fn default_interface(&self) -> Option<&Interface> {
        self.interfaces.get(self.default_interface?)
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub kind: NetworkType,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
    /// Whether traffic over it costs money.
    pub expensive: bool,
    /// Whether it is in a data-saving mode.
    pub constrained: bool,
}

/// Kind of a network. The numbers are those of `.srs` files.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum NetworkType {
    /// Wireless LAN.
    Wifi = 0,
    /// Mobile network.
    Cellular = 1,
    /// Wired LAN.
    Ethernet = 2,
    /// Anything else.
    #[default]
    Other = 3,
}

impl NetworkType {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Wifi, Self::Cellular, Self::Ethernet, Self::Other];

    /// The name in rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Ethernet => "ethernet",
            Self::Other => "other",
        }
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}
