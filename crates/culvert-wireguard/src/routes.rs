//! Which peer an address belongs to: the longest prefix that holds it. It is asked for the target of what is sent, and for
//! the source of what has come.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::PeerId;

/// The prefixes of all peers.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    v4: Family,
    v6: Family,
}

#[derive(Clone, Debug, Default)]
struct Family {
    /// The lengths there are, longest first.
    lengths: Vec<u8>,
    peers: HashMap<(u8, u128), PeerId>,
}

impl Routes {
    /// The prefixes, each with whom it belongs to. Of equal ones the last counts.
    pub fn new(prefixes: impl IntoIterator<Item = (IpAddr, u8, PeerId)>) -> Self {
        let mut routes = Self::default();
        for (ip, len, peer) in prefixes {
            let (family, bits, most) = match ip {
                IpAddr::V4(ip) => (&mut routes.v4, u128::from(ip.to_bits()) << 96, 32),
                IpAddr::V6(ip) => (&mut routes.v6, ip.to_bits(), 128),
            };
            let len = len.min(most);
            family.peers.insert((len, bits & mask(len)), peer);
            if let Err(at) = family.lengths.binary_search_by(|other| len.cmp(other)) {
                family.lengths.insert(at, len);
            }
        }
        routes
    }

    /// Whose address this is.
    #[must_use]
    pub fn find(&self, ip: IpAddr) -> Option<PeerId> {
        let (family, bits) = match ip {
            IpAddr::V4(ip) => (&self.v4, u128::from(ip.to_bits()) << 96),
            IpAddr::V6(ip) => (&self.v6, ip.to_bits()),
        };
        family.lengths.iter().find_map(|len| family.peers.get(&(*len, bits & mask(*len))).copied())
    }
}

fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// The source address of a packet and its length, by its own head. `None` if it has no sound one.
#[must_use]
pub fn source(packet: &[u8]) -> Option<(IpAddr, usize)> {
    let half = |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    let (source, len) = match packet.first()? >> 4 {
        4 => (v4(packet, 12)?, half(2)?),
        6 => (v6(packet, 8)?, half(4)? + 40),
        _ => return None,
    };
    (len >= 20 && len <= packet.len()).then_some((source, len))
}

/// The target address of a packet whose head begins like this.
#[must_use]
pub fn target(head: &[u8]) -> Option<IpAddr> {
    match head.first()? >> 4 {
        4 => v4(head, 16),
        6 => v6(head, 24),
        _ => None,
    }
}

fn v4(packet: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

fn v6(packet: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_prefix_counts_and_of_equal_ones_the_last() {
        let routes = Routes::new(
            [
                ("0.0.0.0", 0, 0),
                ("10.0.0.77", 8, 1),
                ("10.1.2.0", 24, 2),
                ("10.1.2.3", 32, 3),
                ("::", 0, 4),
                ("fd00::1", 64, 5),
                ("10.0.0.0", 8, 6),
            ]
            .map(|(text, len, peer)| (ip(text), len, PeerId(peer))),
        );
        let find = |text: &str| routes.find(ip(text)).map(|peer| peer.0);
        assert_eq!(find("192.0.2.1"), Some(0));
        assert_eq!(find("10.200.0.1"), Some(6));
        assert_eq!(find("10.1.2.4"), Some(2));
        assert_eq!(find("10.1.2.3"), Some(3));
        assert_eq!(find("2001:db8::1"), Some(4));
        assert_eq!(find("fd00::ffff"), Some(5));
        assert_eq!(Routes::default().find(ip("10.0.0.1")), None);
        assert_eq!(Routes::new([(ip("10.0.0.0"), 8, PeerId(0))]).find(ip("fd00::1")), None);
    }

    #[test]
    fn addresses_are_read_only_where_they_are_sound() {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[3] = 36;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(source(&packet), Some((ip("10.0.0.1"), 36)));
        assert_eq!(target(&packet), Some(ip("10.0.0.2")));
        packet[3] = 41;
        assert_eq!(source(&packet), None, "longer than there is");
        packet[3] = 19;
        assert_eq!(source(&packet), None, "shorter than a head");
        assert_eq!(source(&[0x45; 19]), None);
        assert_eq!(source(&[0x60; 39]), None);
        assert_eq!(source(&[]), None);
        assert_eq!(source(&[0x70; 60]), None);
    }
}
