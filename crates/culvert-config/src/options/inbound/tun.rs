//! Inbound `tun`: a network interface whose packets are taken in.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::ServerOptions;
use crate::options::nat::NatOptions;
use crate::schema::Schema;
use crate::table::options;
use crate::value::{
    Address, DurOrSeconds, List, Mark, NamespaceTag, OptionValue, Prefix, RuleSetTag, Word, choices,
};

options! {
    /// Options of a TUN inbound.
    pub struct TunInbound {
        /// Name of the interface; chosen when absent.
        interface_name: String,
        /// Network namespace the interface is in: a tag, a name or a path (Linux).
        netns: NamespaceTag,
        /// Greatest size of a packet in bytes; 65535 on most systems when absent.
        mtu: u32,
        /// Addresses of the interface.
        address: List<Prefix>,
        /// How DNS gets into the interface; `hijack` when absent.
        dns_mode: Word<TunDnsMode>,
        /// Addresses of DNS servers; derived from `address` when absent.
        dns_address: List<Address>,
        /// Makes routes into the interface.
        auto_route: bool,
        /// Routing table for them; 2022 when absent (Linux).
        iproute2_table_index: i64,
        /// First routing rule for them; 9000 when absent (Linux).
        iproute2_rule_index: i64,
        /// Diverts TCP by nftables, which is faster; needs `auto_route` (Linux).
        auto_redirect: bool,
        /// Firewall mark of what comes in; 0x2023 when absent.
        auto_redirect_input_mark: Mark,
        /// Firewall mark of what goes out; 0x2024 when absent.
        auto_redirect_output_mark: Mark,
        /// Firewall mark of what is reset; 0x2025 when absent.
        auto_redirect_reset_mark: Mark,
        /// Queue that first packets wait in; 100 when absent.
        auto_redirect_nfqueue: u16,
        /// Routing rule for what is not diverted; 32768 when absent.
        auto_redirect_iproute2_fallback_rule_index: i64,
        /// Lets Multipath TCP pass by the interface, where it is refused without.
        exclude_mptcp: bool,
        /// Addresses that lead back to where a connection comes from.
        loopback_address: List<Address>,
        /// Lets nothing get around the routes.
        strict_route: bool,
        /// Destinations to route; all when absent.
        route_address: List<Prefix>,
        /// Rule-sets with further destinations to route.
        route_address_set: List<RuleSetTag>,
        /// Destinations not to route.
        route_exclude_address: List<Prefix>,
        /// Rule-sets with further destinations not to route.
        route_exclude_address_set: List<RuleSetTag>,
        /// Interfaces to take packets from; all when absent (Linux).
        include_interface: List<String>,
        /// Interfaces to take no packets from (Linux).
        exclude_interface: List<String>,
        /// Numbers of users to take packets from; all when absent (Linux).
        include_uid: List<u32>,
        /// Ranges of such numbers.
        include_uid_range: List<UidRange>,
        /// Numbers of users to take no packets from (Linux).
        exclude_uid: List<u32>,
        /// Ranges of such numbers.
        exclude_uid_range: List<UidRange>,
        /// Profiles to take packets from (Android).
        include_android_user: List<i64>,
        /// Packages to take packets from (Android).
        include_package: List<String>,
        /// Packages to take no packets from (Android).
        exclude_package: List<String>,
        /// Devices to take packets from, with `auto_redirect` (Linux).
        include_mac_address: List<MacAddress>,
        /// Devices to take no packets from, with `auto_redirect` (Linux).
        exclude_mac_address: List<MacAddress>,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: DurOrSeconds,
        /// How UDP sessions are told apart.
        nat: NatOptions = ..,
        /// What turns packets into connections; `mixed` when absent.
        stack: Word<TunStack>,
        /// Answers a client before its connection is made: less waiting, but a closed port looks open (not in sing-box).
        early_accept: bool,
        /// For programs with a window.
        platform: Option<TunPlatform>,
        /// Ignored, since that is how UDP sessions are told apart anyway.
        endpoint_independent_nat: bool [hidden],
    }
    check = TunInbound::check_values;

    /// Options for programs with a window.
    pub struct TunPlatform {
        /// HTTP proxy of the system.
        http_proxy: Option<TunHttpProxy>,
    }

    /// An HTTP proxy of the system.
    pub struct TunHttpProxy {
        /// Whether it is set.
        enabled: bool,
        /// Its address.
        server: ServerOptions = ..,
        /// Domains it is not used for.
        bypass_domain: List<String>,
        /// Domains it is used for; all when absent.
        match_domain: List<String>,
    }
}

choices! {
    /// How DNS gets into a TUN interface.
    pub enum TunDnsMode: "DNS mode" {
        /// By taking everything on port 53, besides setting the DNS servers of the interface.
        Hijack = "hijack",
        /// By setting the DNS servers of the interface.
        Native = "native",
        /// Not at all.
        Disabled = "disabled",
    }

    /// What turns packets into connections.
    pub enum TunStack: "TUN stack" {
        /// The system for TCP, our own stack for UDP.
        Mixed = "mixed",
        /// The system.
        System = "system",
        /// Our own stack.
        Own = "gvisor",
    }
}

/// A range of user numbers, `"1000:2000"`, with both ends in it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct UidRange {
    /// The lowest number.
    pub start: u32,
    /// The highest number.
    pub end: u32,
}

/// A hardware address of 6, 8 or 20 bytes; output keeps the text of the file.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct MacAddress {
    /// The address.
    pub bytes: Vec<u8>,
    text: String,
}

impl TunInbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.address.is_empty() {
            cx.error(
                node.place_of("address"),
                "a TUN interface needs an `address`, such as \"172.19.0.1/30\"",
            );
        }
        self.dns_mode.check_leniently("dns_mode", node, cx);
        self.stack.check("stack", node, cx);
        if self.auto_redirect && !self.auto_route {
            cx.error(node.place_of("auto_redirect"), "`auto_redirect` needs `auto_route`");
        }
    }
}

impl UidRange {
    fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once(':')?;
        Some(Self { start: start.parse().ok()?, end: end.parse().ok()? })
    }
}

impl OptionValue for UidRange {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a range of user numbers such as \"1000:2000\"", node);
            return;
        };
        match Self::parse(text) {
            Some(range) => *self = range,
            None => {
                let message = format!("bad range `{text}`; write both ends, for example \"1000:2000\"");
                cx.error(node.place, message);
            }
        }
    }

    fn encode(&self) -> Node {
        Node::string(format!("{}:{}", self.start, self.end))
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Node::object([("type", Node::string("string")), ("pattern", Node::string("^[0-9]+:[0-9]+$"))])
    }
}

impl MacAddress {
    /// Reads pairs of digits with colons or dashes between them, or groups of four with dots.
    fn parse(text: &str) -> Option<Self> {
        const LENGTHS: [usize; 3] = [6, 8, 20];
        let (separator, group) = match (text.contains(':'), text.contains('-')) {
            (true, false) => (':', 2),
            (false, true) => ('-', 2),
            _ => ('.', 4),
        };
        let mut bytes = Vec::new();
        for digits in text.split(separator) {
            if digits.len() != group || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            let number = u16::from_str_radix(digits, 16).ok()?;
            let [high, low] = number.to_be_bytes();
            bytes.extend((group == 4).then_some(high));
            bytes.push(low);
        }
        LENGTHS.contains(&bytes.len()).then(|| Self { bytes, text: text.to_owned() })
    }
}

impl OptionValue for MacAddress {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a hardware address", node);
            return;
        };
        match Self::parse(text) {
            Some(address) => *self = address,
            None => {
                let message =
                    format!("bad hardware address `{text}`; write for example \"02:00:5e:10:00:01\"");
                cx.error(node.place, message);
            }
        }
    }

    fn encode(&self) -> Node {
        self.text.encode()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_users_need_both_ends() {
        assert_eq!(UidRange::parse("1000:2000"), Some(UidRange { start: 1000, end: 2000 }));
        for text in ["1000", ":", "1000:", ":2000", "a:5"] {
            assert_eq!(UidRange::parse(text), None, "{text}");
        }
    }

    #[test]
    fn hardware_addresses_have_three_notations() {
        for text in ["02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001"] {
            let bytes = MacAddress::parse(text).map(|address| address.bytes);
            assert_eq!(bytes, Some(vec![0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]), "{text}");
        }
        assert!(MacAddress::parse("02:00:5e:10:00:01:00:02").is_some());
        for text in ["", "zz:zz", "02:00:5e:10:00", "02:00-5e:10:00:01", "2:0:5e:10:0:1"] {
            assert_eq!(MacAddress::parse(text), None, "{text}");
        }
    }
}
