//! Heads of IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::checksum::Sum;

/// Numbers of the protocols that are spoken here.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Longest head that is made here.
pub const MAX_HEAD: usize = 40;

/// Hop limit of packets that are made here.
const HOP_LIMIT: u8 = 64;

/// What forbids routers to cut a packet.
const DONT_FRAGMENT: u8 = 0x40;

/// Most extension heads that an IPv6 packet may have; more are an attack on whoever walks them.
const MAX_EXTENSIONS: usize = 8;

/// What a packet's head says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub target: IpAddr,
    /// What is inside.
    pub protocol: u8,
    /// How many hops it had left.
    pub hop_limit: u8,
    /// Where the inside lies in the packet.
    pub payload: Range<usize>,
    /// If it is one of several pieces: which.
    pub fragment: Option<Piece>,
}

/// Which piece of a larger packet one is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// What the pieces of one packet have in common.
    pub ident: u32,
    /// Where its payload begins in the whole.
    pub offset: usize,
    /// Whether more follow.
    pub more: bool,
}

/// Not an IP packet that anything could be done with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed;

/// Reads the head of a packet.
///
/// # Errors
/// Too short, lengths that contradict each other, a wrong header checksum, or addresses nobody can answer to.
pub fn parse(packet: &[u8]) -> Result<Head, Malformed> {
    let head = match packet.first().ok_or(Malformed)? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => Err(Malformed),
    }?;
    let answerable = match head.source {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
    };
    if answerable { Ok(head) } else { Err(Malformed) }
}

fn parse_v4(packet: &[u8]) -> Result<Head, Malformed> {
    let fixed: &[u8; 20] = packet.first_chunk().ok_or(Malformed)?;
    let head_len = usize::from(fixed[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    // A train of segments may be longer than the field can say; the device then says 0.
    let total = if total == 0 { packet.len() } else { total };
    if head_len < 20 || total < head_len || packet.len() < total {
        return Err(Malformed);
    }
    if Sum::default().bytes(&packet[..head_len]).finish() != 0 {
        return Err(Malformed);
    }
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let (offset, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
    let ident = u32::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    Ok(Head {
        source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
        target: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        protocol: fixed[9],
        hop_limit: fixed[8],
        payload: head_len..total,
        fragment: (offset > 0 || more).then_some(Piece { ident, offset, more }),
    })
}

fn parse_v6(packet: &[u8]) -> Result<Head, Malformed> {
    let fixed: &[u8; 40] = packet.first_chunk().ok_or(Malformed)?;
    let len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    let total = if len == 0 { packet.len() } else { 40 + len };
    if packet.len() < total {
        return Err(Malformed);
    }
    let address = |at: usize| -> Result<Ipv6Addr, Malformed> {
        let octets: [u8; 16] = *fixed[at..].first_chunk().ok_or(Malformed)?;
        Ok(octets.into())
    };
    let (mut protocol, mut at, mut fragment) = (fixed[6], 40, None);
    for _ in 0..=MAX_EXTENSIONS {
        let rest = &packet[at..total];
        match protocol {
            // Hop-by-hop options, routing, destination options: a length in units of eight bytes.
            0 | 43 | 60 => {
                let len = 8 + usize::from(*rest.get(1).ok_or(Malformed)?) * 8;
                if rest.len() < len {
                    return Err(Malformed);
                }
                (protocol, at) = (rest[0], at + len);
            }
            44 => {
                let head: &[u8; 8] = rest.first_chunk().ok_or(Malformed)?;
                let field = u16::from_be_bytes([head[2], head[3]]);
                let (offset, more) = (usize::from(field & 0xfff8), field & 1 != 0);
                let ident = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                // One that is a whole packet by itself (RFC 6946).
                fragment = (offset > 0 || more).then_some(Piece { ident, offset, more });
                (protocol, at) = (head[0], at + 8);
                if fragment.is_some() {
                    break; // what follows is readable in the first piece only
                }
            }
            _ => break,
        }
    }
    Ok(Head {
        source: address(8)?.into(),
        target: address(24)?.into(),
        protocol,
        hop_limit: fixed[7],
        payload: at..total,
        fragment,
    })
}

/// Length of a head for this family.
#[must_use]
pub fn head_len(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// Writes a head for `len` bytes of payload to the front of `out` and returns its length.
///
/// A length that its field cannot hold is left to the device, which cuts the train into packets.
///
/// Only TCP forbids that its packets are cut on the way, as it alone makes shorter ones when it is told of a link that is too
/// narrow.
///
/// # Panics
/// If `out` is shorter than the head.
pub fn encode(source: IpAddr, target: IpAddr, protocol: u8, len: usize, ident: u16, out: &mut [u8]) -> usize {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let head = &mut out[..20];
            head.fill(0);
            head[0] = 0x45;
            head[2..4].copy_from_slice(&u16::try_from(len + 20).unwrap_or(0).to_be_bytes());
            head[4..6].copy_from_slice(&ident.to_be_bytes());
            head[6] = if protocol == protocol::TCP { DONT_FRAGMENT } else { 0 };
            head[8] = HOP_LIMIT;
            head[9] = protocol;
            head[12..16].copy_from_slice(&source.octets());
            head[16..20].copy_from_slice(&target.octets());
            let sum = Sum::default().bytes(head).finish();
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            20
        }
        (source, target) => {
            let v6 = |address: IpAddr| match address {
                IpAddr::V6(address) => address,
                IpAddr::V4(address) => address.to_ipv6_mapped(),
            };
            let head = &mut out[..40];
            head.fill(0);
            head[0] = 0x60;
            head[4..6].copy_from_slice(&u16::try_from(len).unwrap_or(0).to_be_bytes());
            head[6] = protocol;
            head[7] = HOP_LIMIT;
            head[8..24].copy_from_slice(&v6(source).octets());
            head[24..40].copy_from_slice(&v6(target).octets());
            40
        }
    }
}

/// Gives a packet of IPv4 that may be cut on the way a number, by which its pieces are told from those of others.
///
/// # Panics
/// If it is shorter than the head that it claims to have.
pub(crate) fn number(packet: &mut [u8], ident: u16) {
    if packet[0] >> 4 == 4 && packet[6] & DONT_FRAGMENT == 0 {
        packet[4..6].copy_from_slice(&ident.to_be_bytes());
        packet[10..12].fill(0);
        let sum = Sum::default().bytes(&packet[..20]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: &str, target: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; MAX_HEAD];
        let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
        let len = encode(source, target, protocol::UDP, payload.len(), 7, &mut packet);
        packet.truncate(len);
        packet.extend(payload);
        packet
    }

    #[test]
    fn what_is_written_is_read() {
        for (source, target, head) in [("192.0.2.1", "198.51.100.2", 20), ("2001:db8::1", "2001:db8::2", 40)]
        {
            let parsed = parse(&packet(source, target, b"hello")).unwrap();
            assert_eq!((parsed.source, parsed.target), (source.parse().unwrap(), target.parse().unwrap()));
            assert_eq!(parsed.payload, head..head + 5);
            assert_eq!((parsed.protocol, parsed.hop_limit, parsed.fragment), (17, 64, None));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = packet("192.0.2.1", "198.51.100.2", b"hello");
        for cut in 0..good.len() {
            assert!(parse(&good[..cut]).is_err(), "{cut} bytes");
        }
        let mut padded = good.clone();
        padded.extend([0; 6]);
        assert_eq!(parse(&padded).unwrap().payload, 20..25, "padding of a link is no payload");
        for at in 0..20 {
            let mut damaged = good.clone();
            damaged[at] ^= 0x55;
            assert!(parse(&damaged).is_err(), "byte {at}");
        }
        for source in ["224.0.0.1", "255.255.255.255", "0.0.0.0"] {
            assert!(parse(&packet(source, "198.51.100.2", b"")).is_err(), "{source}");
        }
    }

    #[test]
    fn extension_heads_are_walked_and_bounded() {
        let with_extensions = |count: usize| {
            let mut payload = Vec::new();
            for left in (0..count).rev() {
                payload.extend([if left == 0 { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            payload.extend(b"data");
            let mut packet = packet("2001:db8::1", "2001:db8::2", &payload);
            packet[6] = if count == 0 { 17 } else { 60 };
            packet
        };
        let parsed = parse(&with_extensions(3)).unwrap();
        assert_eq!((parsed.protocol, parsed.payload), (17, 64..68));
        assert_ne!(parse(&with_extensions(20)).unwrap().protocol, 17, "nobody walks for ever");
        let mut long = with_extensions(1);
        long[41] = 200;
        assert!(parse(&long).is_err());
    }

    #[test]
    fn pieces_say_where_they_belong() {
        let mut v4 = packet("192.0.2.1", "198.51.100.2", &[0; 16]);
        v4[6..8].copy_from_slice(&0x2002u16.to_be_bytes());
        v4[10..12].fill(0);
        let sum = Sum::default().bytes(&v4[..20]).finish();
        v4[10..12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse(&v4).unwrap().fragment, Some(Piece { ident: 7, offset: 16, more: true }));
        let mut v6 = packet("2001:db8::1", "2001:db8::2", &[17, 0, 0, 0x11, 0, 0, 0, 9, 1, 2]);
        v6[6] = 44;
        let parsed = parse(&v6).unwrap();
        assert_eq!(parsed.fragment, Some(Piece { ident: 9, offset: 16, more: true }));
        assert_eq!((parsed.protocol, parsed.payload), (17, 48..50));
    }
}
