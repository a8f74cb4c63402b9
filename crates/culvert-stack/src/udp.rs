//! UDP heads.

use std::net::SocketAddr;

use crate::checksum::pseudo;
use crate::ip::{self, protocol};

/// Length of a UDP head.
pub const HEAD: usize = 8;

/// Ports and where the data lies in the payload of an IP packet. `None` if the lengths contradict each other or, unless
/// `checked` says that somebody has looked already, the checksum is wrong.
#[must_use]
pub(crate) fn parse(
    head: &ip::Head,
    packet: &[u8],
    checked: bool,
) -> Option<(u16, u16, std::ops::Range<usize>)> {
    let payload = &packet[head.payload.clone()];
    let fixed: &[u8; HEAD] = payload.first_chunk()?;
    let len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    // In a train the field is that of one datagram, or nothing.
    let len = if checked && len < payload.len() { payload.len() } else { len };
    if len < HEAD || len > payload.len() {
        return None;
    }
    let no_checksum = fixed[6..8] == [0, 0];
    // Only IPv4 may do without (RFC 8200 section 8.1).
    if no_checksum && head.source.is_ipv6() && !checked {
        return None;
    }
    if !checked && !no_checksum {
        let sum = pseudo(head.source, head.target, protocol::UDP, len).bytes(&payload[..len]);
        if sum.finish() != 0 {
            return None;
        }
    }
    let ports = (u16::from_be_bytes([fixed[0], fixed[1]]), u16::from_be_bytes([fixed[2], fixed[3]]));
    Some((ports.0, ports.1, head.payload.start + HEAD..head.payload.start + len))
}

/// Writes the heads of a datagram to the front of `out`, and returns their length. With `complete`, the checksum is whole;
/// else the device makes it so.
pub(crate) fn encode(
    source: SocketAddr,
    target: SocketAddr,
    data: &[u8],
    ident: u16,
    complete: bool,
    out: &mut [u8],
) -> usize {
    let at = encode_for_device(source, target, data.len(), ident, out);
    if complete {
        let head = &mut out[at - HEAD..at];
        head[6..8].fill(0);
        let sum = pseudo(source.ip(), target.ip(), protocol::UDP, HEAD + data.len()).bytes(head).bytes(data);
        let sum = match sum.finish() {
            0 => 0xffff, // 0 says that there is none
            sum => sum,
        };
        head[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    at
}

/// Writes the heads of a datagram of `len` bytes, or of a train of so many, for a device that completes the checksum.
pub(crate) fn encode_for_device(
    source: SocketAddr,
    target: SocketAddr,
    len: usize,
    ident: u16,
    out: &mut [u8],
) -> usize {
    let len = HEAD + len;
    let at = ip::encode(source.ip(), target.ip(), protocol::UDP, len, ident, out);
    let head = &mut out[at..at + HEAD];
    head[0..2].copy_from_slice(&source.port().to_be_bytes());
    head[2..4].copy_from_slice(&target.port().to_be_bytes());
    head[4..6].copy_from_slice(&u16::try_from(len).unwrap_or(0).to_be_bytes());
    head[6..8].copy_from_slice(&pseudo(source.ip(), target.ip(), protocol::UDP, len).partial().to_be_bytes());
    at + HEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_noticed() {
        for (source, target) in
            [("192.0.2.1:53", "198.51.100.2:5353"), ("[2001:db8::1]:53", "[2001:db8::2]:5353")]
        {
            let mut packet = vec![0; 48];
            let len =
                encode(source.parse().unwrap(), target.parse().unwrap(), b"hello", 1, true, &mut packet);
            packet.truncate(len);
            packet.extend(b"hello");
            let head = ip::parse(&packet).unwrap();
            assert_eq!(parse(&head, &packet, false), Some((53, 5353, len..len + 5)));
            for at in head.payload.clone() {
                let mut damaged = packet.clone();
                damaged[at] ^= 1;
                assert_eq!(parse(&head, &damaged, false), None, "byte {at}");
            }
        }
    }
}
