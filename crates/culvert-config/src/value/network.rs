//! Addresses, prefixes, ports and transport protocols.

use std::fmt;
use std::net::IpAddr;

use super::OptionValue;
use crate::cx::Cx;
use crate::json::Node;
use crate::nearest::did_you_mean;
use crate::schema::Schema;

/// An IP address, with the zone a link-local one may carry (`fe80::1%eth0`).
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Name of the interface; empty without one.
    pub zone: String,
}

/// An address with the length of its mask: `192.0.2.0/24`. Host bits are kept.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Prefix {
    /// The address before the slash.
    pub ip: IpAddr,
    /// How many leading bits count.
    pub length: u8,
}

impl Prefix {
    /// The same without host bits.
    #[must_use]
    pub fn network(self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length.min(32))).unwrap_or(0);
                IpAddr::from((u32::from(ip) & mask).to_be_bytes())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length.min(128))).unwrap_or(0);
                IpAddr::from((u128::from(ip) & mask).to_be_bytes())
            }
        };
        Self { ip, ..self }
    }
}

/// A [`Prefix`] that may also be written as a bare address; output keeps the text of the file.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Cidr {
    /// The prefix meant.
    pub prefix: Prefix,
    text: String,
}

/// A [`Prefix`] that may also be written as a bare address; output writes a single address bare.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Subnet(pub Prefix);

/// A range of ports, `"1000:2000"`, `":2000"` or `"1000:"`. A reversed range contains nothing.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct PortRange {
    start: Option<u16>,
    end: Option<u16>,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The transport protocols something is for; written as one word or a list, both when absent.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Networks {
    only: Option<Network>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = if self.zone.is_empty() { "" } else { "%" };
        write!(f, "{}{percent}{}", self.ip, self.zone)
    }
}

impl Default for Address {
    fn default() -> Self {
        Self { ip: IpAddr::from([0, 0, 0, 0]), zone: String::new() }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self { ip, zone: String::new() }
    }
}

impl OptionValue for Address {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("an IP address", node);
            return;
        };
        let (ip, zone) = text.split_once('%').unwrap_or((text, ""));
        match ip.parse::<IpAddr>() {
            Ok(ip) if !text.contains('%') || (ip.is_ipv6() && !zone.is_empty()) => {
                *self = Self { ip, zone: zone.to_owned() };
            }
            _ => cx.error(node.place, format!("`{text}` is not an IP address")),
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

impl Prefix {
    const MAX_V4: u8 = 32;
    const MAX_V6: u8 = 128;

    /// Reads `address/length`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((ip, length)) = text.split_once('/') else {
            return Err(format!("`{text}` lacks the length of its mask; write for example `{text}/24`"));
        };
        let ip = ip.parse().map_err(|_| format!("`{ip}` is not an IP address"))?;
        let digits =
            length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
        let length = length.parse().ok().filter(|_| digits);
        let max = if matches!(ip, IpAddr::V4(_)) { Self::MAX_V4 } else { Self::MAX_V6 };
        match length {
            Some(length) if length <= max => Ok(Self { ip, length }),
            _ => Err(format!("the mask length of `{text}` is not a number from 0 to {max}")),
        }
    }

    /// Reads `address/length`, or an address alone as the prefix that has just it.
    fn parse_or_host(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Self::parse(text);
        }
        text.parse().map(Self::host).map_err(|_| format!("`{text}` is not an IP address or prefix"))
    }

    /// The prefix that contains just one address.
    #[must_use]
    pub const fn host(ip: IpAddr) -> Self {
        let length = if ip.is_ipv4() { Self::MAX_V4 } else { Self::MAX_V6 };
        Self { ip, length }
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self { ip: IpAddr::from([0, 0, 0, 0]), length: 0 }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.length)
    }
}

impl OptionValue for Prefix {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("an address with its mask, such as \"192.0.2.0/24\"", node);
            return;
        };
        match Self::parse(text) {
            Ok(prefix) => *self = prefix,
            Err(message) => cx.error(node.place, message),
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

impl Cidr {
    /// Reads an address or `address/length`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Prefix::parse_or_host(text).map(|prefix| Self { prefix, text: text.to_owned() })
    }
}

impl From<Prefix> for Cidr {
    fn from(prefix: Prefix) -> Self {
        Self { prefix, text: prefix.to_string() }
    }
}

impl OptionValue for Cidr {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("an IP address or prefix", node);
            return;
        };
        match Self::parse(text) {
            Ok(cidr) => *self = cidr,
            Err(message) => cx.error(node.place, message),
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.text.as_str())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

impl OptionValue for Subnet {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("an IP address or prefix", node);
            return;
        };
        match Prefix::parse_or_host(text) {
            Ok(prefix) => self.0 = prefix,
            Err(message) => cx.error(node.place, message),
        }
    }

    fn encode(&self) -> Node {
        if self.0 == Prefix::host(self.0.ip) { Node::string(self.0.ip.to_string()) } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

impl PortRange {
    /// The lowest port of the range.
    #[must_use]
    pub fn start(self) -> u16 {
        self.start.unwrap_or(0)
    }

    /// The highest port of the range.
    #[must_use]
    pub fn end(self) -> u16 {
        self.end.unwrap_or(u16::MAX)
    }

    /// Whether the range has that port.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.start()..=self.end()).contains(&port)
    }

    fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once(':')?;
        let bound = |text: &str| {
            if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
        };
        Some(Self { start: bound(start)?, end: bound(end)? })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |port: Option<u16>| port.map(|port| port.to_string()).unwrap_or_default();
        write!(f, "{}:{}", bound(self.start), bound(self.end))
    }
}

impl OptionValue for PortRange {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a port range such as \"1000:2000\"", node);
            return;
        };
        match Self::parse(text) {
            Some(range) => *self = range,
            None => {
                let help = "write for example \"1000:2000\", \":2000\" or \"1000:\"";
                cx.error(node.place, format!("bad port range `{text}`; {help}"));
            }
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Node::object([("type", Node::string("string")), ("pattern", Node::string("^[0-9]*:[0-9]*$"))])
    }
}

impl Networks {
    /// Both protocols.
    pub const BOTH: Self = Self { only: None };

    /// Just one protocol.
    #[must_use]
    pub const fn only(network: Network) -> Self {
        Self { only: Some(network) }
    }

    /// Whether streams are meant.
    #[must_use]
    pub fn tcp(self) -> bool {
        self.only != Some(Network::Udp)
    }

    /// Whether datagrams are meant.
    #[must_use]
    pub fn udp(self) -> bool {
        self.only != Some(Network::Tcp)
    }
}

impl OptionValue for Networks {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let items = node.as_array().unwrap_or(std::slice::from_ref(node));
        let (mut tcp, mut udp) = (false, false);
        for item in items {
            match item.as_str() {
                Some("tcp") => tcp = true,
                Some("udp") => udp = true,
                Some(other) => {
                    let hint = did_you_mean(other, ["tcp", "udp"]);
                    cx.error(item.place, format!("unknown network `{other}`; known are tcp and udp{hint}"));
                }
                None => cx.expected("\"tcp\", \"udp\" or a list of them", item),
            }
        }
        self.only = match (tcp, udp) {
            (true, false) => Some(Network::Tcp),
            (false, true) => Some(Network::Udp),
            _ => None,
        };
    }

    /// Both protocols are the default, so the word is left out then. (sing-box itself writes a list of both in a
    /// form that it then refuses to read.)
    fn encode(&self) -> Node {
        Node::string(if self.tcp() { "tcp" } else { "udp" })
    }

    fn is_zero(&self) -> bool {
        self.only.is_none()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        let word = Schema::one_of_words(["tcp", "udp"]);
        Schema::any_of([word.clone(), Schema::list(word)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_open_on_either_side() {
        let range = |text| PortRange::parse(text).expect("a range");
        assert!(range("1000:2000").contains(2000) && !range("1000:2000").contains(2001));
        assert!(range(":10").contains(0) && range("10:").contains(65535) && range(":").contains(7));
        assert!(!range("20:10").contains(15));
        assert_eq!(range(":10").to_string(), ":10");
        assert_eq!(PortRange::parse("443"), None);
        assert_eq!(PortRange::parse("1-2"), None);
        assert_eq!(PortRange::parse("a:b"), None);
        assert_eq!(PortRange::parse("1:70000"), None);
    }

    #[test]
    fn masks_are_needed_in_prefixes_and_optional_in_cidrs() {
        assert!(Prefix::parse("172.19.0.1/30").is_ok());
        assert!(Prefix::parse("172.19.0.1").is_err());
        assert!(Prefix::parse("192.0.2.0/33").is_err());
        assert!(Prefix::parse("192.0.2.0/08").is_err());
        assert_eq!(Cidr::parse("2001:DB8::1").map(|cidr| cidr.prefix.length), Ok(128));
        assert!(Cidr::parse("lan").is_err());
    }
}
