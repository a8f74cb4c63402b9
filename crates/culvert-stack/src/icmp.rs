//! ICMP for both families: pings, errors that are sent, errors that come.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::{Sum, pseudo};
use crate::ip::{self, protocol};
use crate::tcp::Seq;
use crate::udp;

/// Why a packet could not be delivered, in the words of both families.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreachable {
    /// There is no way to the network.
    Network,
    /// There is no way to the host.
    Host,
    /// Nobody listens.
    Port,
    /// A rule forbids it.
    Prohibited,
}

impl Unreachable {
    /// Type and code.
    fn code(self, v4: bool) -> [u8; 2] {
        match (self, v4) {
            (Self::Network, true) => [3, 0],
            (Self::Host, true) => [3, 1],
            (Self::Port, true) => [3, 3],
            (Self::Prohibited, true) => [3, 13],
            (Self::Network, false) => [1, 0],
            (Self::Host, false) => [1, 3],
            (Self::Port, false) => [1, 4],
            (Self::Prohibited, false) => [1, 1],
        }
    }
}

/// What an ICMP message says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// A ping; the message lies at this place in the packet.
    EchoRequest,
    /// Packets to this place, from this one, must be no longer than so many bytes. Of TCP, `seq` is the number of the one
    /// that was too long.
    TooBig { source: SocketAddr, target: SocketAddr, protocol: u8, seq: Seq, mtu: u16 },
    /// Something that nobody here waits for.
    Other,
}

/// Reads a message. `None` if it is damaged.
pub(crate) fn parse(head: &ip::Head, packet: &[u8], checked: bool) -> Option<Message> {
    let bytes = &packet[head.payload.clone()];
    if bytes.len() < 8 {
        return None;
    }
    let v4 = head.source.is_ipv4();
    if !checked && sum(head.source, head.target, bytes).finish() != 0 {
        return None;
    }
    Some(match (v4, bytes[0], bytes[1]) {
        (true, 8, 0) | (false, 128, 0) => Message::EchoRequest,
        (true, 3, 4) => too_big(&bytes[8..], u32::from(u16::from_be_bytes([bytes[6], bytes[7]])))?,
        (false, 2, 0) => too_big(&bytes[8..], u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]))?,
        _ => Message::Other,
    })
}

/// What the cut-off packet inside an error was.
fn too_big(inner: &[u8], mtu: u32) -> Option<Message> {
    let (source, target, protocol, at): (IpAddr, IpAddr, u8, usize) = match inner.first()? >> 4 {
        4 => {
            let fixed: &[u8; 20] = inner.first_chunk()?;
            let address = |at: usize| IpAddr::from([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
            (address(12), address(16), fixed[9], usize::from(fixed[0] & 0xf) * 4)
        }
        6 => {
            let fixed: &[u8; 40] = inner.first_chunk()?;
            let address = |at: usize| fixed[at..].first_chunk::<16>().map(|octets| IpAddr::from(*octets));
            (address(8)?, address(24)?, fixed[6], 40)
        }
        _ => return None,
    };
    // As much as every error quotes (RFC 792).
    let quoted: &[u8; 8] = inner.get(at..)?.first_chunk()?;
    let port = |at: usize| u16::from_be_bytes([quoted[at], quoted[at + 1]]);
    Some(Message::TooBig {
        source: SocketAddr::new(source, port(0)),
        target: SocketAddr::new(target, port(2)),
        protocol,
        seq: Seq(u32::from_be_bytes([quoted[4], quoted[5], quoted[6], quoted[7]])),
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
    })
}

fn sum(source: IpAddr, target: IpAddr, bytes: &[u8]) -> Sum {
    let sum = match source {
        IpAddr::V4(_) => Sum::default(),
        IpAddr::V6(_) => pseudo(source, target, protocol::ICMPV6, bytes.len()),
    };
    sum.bytes(bytes)
}

/// The packet that answers a ping: `request` is the whole packet that asked.
#[must_use]
pub fn echo_reply(request: &[u8]) -> Option<Vec<u8>> {
    let head = ip::parse(request).ok()?;
    let message = &request[head.payload];
    let mut reply = message.to_vec();
    *reply.first_mut()? = if head.source.is_ipv4() { 0 } else { 129 };
    Some(packet(head.target, head.source, reply))
}

/// The packet that tells the sender of `offending` why it was not delivered.
#[must_use]
pub fn unreachable(offending: &[u8], why: Unreachable) -> Option<Vec<u8>> {
    let head = ip::parse(offending).ok()?;
    let [kind, code] = why.code(head.source.is_ipv4());
    error(offending, &head, [kind, code], [0; 4])
}

/// The packet that tells `source` that a datagram of its to `target` could not be delivered.
#[must_use]
pub fn datagram_unreachable(source: SocketAddr, target: SocketAddr, why: Unreachable) -> Option<Vec<u8>> {
    let mut offending = vec![0; ip::MAX_HEAD + udp::HEAD];
    let len = udp::encode(source, target, &[], 0, true, &mut offending);
    offending.truncate(len);
    unreachable(&offending, why)
}

/// The packet that tells the sender of `offending` how long its packets may be.
#[must_use]
pub fn too_long(offending: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let head = ip::parse(offending).ok()?;
    let [high, low] = mtu.to_be_bytes();
    let kind = if head.source.is_ipv4() { [3, 4] } else { [2, 0] };
    error(offending, &head, kind, [0, 0, high, low])
}

fn error(offending: &[u8], head: &ip::Head, kind: [u8; 2], field: [u8; 4]) -> Option<Vec<u8>> {
    // Nobody is told of an error in an error, in a piece but the first, or in what went to many (RFC 1122 3.2.2).
    let to_many = match head.target {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    let is_error = match (head.protocol, offending.get(head.payload.start)) {
        (protocol::ICMP, Some(kind)) => !matches!(kind, 0 | 8),
        (protocol::ICMPV6, Some(kind)) => *kind < 128,
        _ => false,
    };
    if to_many || is_error || head.fragment.is_some_and(|piece| piece.offset > 0) {
        return None;
    }
    // As much as fits in the least packet that every network carries.
    let most = if head.source.is_ipv4() { 576 - 28 } else { 1280 - 48 };
    let mut message = vec![kind[0], kind[1], 0, 0];
    message.extend(field);
    message.extend(&offending[..offending.len().min(most)]);
    Some(packet(head.target, head.source, message))
}

/// Puts a head before a whole message, and completes its checksum. A message has at least eight bytes.
#[must_use]
pub fn packet(source: IpAddr, target: IpAddr, mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let sum = sum(source, target, &message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let protocol = if source.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
    let mut packet = vec![0; ip::MAX_HEAD];
    let len = ip::encode(source, target, protocol, message.len(), 0, &mut packet);
    packet.truncate(len);
    packet.extend(message);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(source: &str, target: &str) -> Vec<u8> {
        let mut packet = vec![0; 48];
        let len =
            udp::encode(source.parse().unwrap(), target.parse().unwrap(), b"data", 1, true, &mut packet);
        packet.truncate(len);
        packet.extend(b"data");
        packet
    }

    #[test]
    fn pings_are_answered_with_what_they_brought() {
        for (source, target, kinds) in
            [("192.0.2.1", "198.51.100.2", [8, 0]), ("2001:db8::1", "2001:db8::2", [128, 129])]
        {
            let request = packet(
                source.parse().unwrap(),
                target.parse().unwrap(),
                vec![kinds[0], 0, 0, 0, 1, 2, 3, 4, 9, 9],
            );
            let head = ip::parse(&request).unwrap();
            assert_eq!(parse(&head, &request, false), Some(Message::EchoRequest));
            let reply = echo_reply(&request).unwrap();
            let head = ip::parse(&reply).unwrap();
            assert_eq!((head.source, head.target), (target.parse().unwrap(), source.parse().unwrap()));
            let message = &reply[head.payload.clone()];
            assert_eq!((message[0], &message[4..]), (kinds[1], &[1, 2, 3, 4, 9, 9][..]));
            assert_eq!(sum(head.source, head.target, message).finish(), 0);
        }
    }

    #[test]
    fn errors_name_the_packet_they_are_about() {
        for (source, target) in
            [("192.0.2.1:1000", "198.51.100.2:53"), ("[2001:db8::1]:1000", "[2001:db8::2]:53")]
        {
            let offending = udp(source, target);
            let error = too_long(&offending, 1280).unwrap();
            let head = ip::parse(&error).unwrap();
            let Some(Message::TooBig { source: from, target: to, protocol: 17, mtu: 1280, .. }) =
                parse(&head, &error, false)
            else {
                panic!("not what it is");
            };
            assert_eq!((from, to), (source.parse().unwrap(), target.parse().unwrap()));
            assert_eq!(unreachable(&error, Unreachable::Port), None, "no error about an error");
            assert!(unreachable(&offending, Unreachable::Port).is_some());
        }
        assert_eq!(unreachable(&udp("192.0.2.1:1", "224.0.0.251:5353"), Unreachable::Port), None);
    }
}
