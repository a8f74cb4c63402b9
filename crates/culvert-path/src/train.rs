//! What a TUN device hands over, cut into the packets that a wire would carry, and joined again.
//!
//! A device with offloads gives a whole train at once: one pair of heads and up to 64 KiB of payload that becomes packets of
//! `segment` bytes. Each of them must have a fate of its own on a path. Where neighbours arrive together nevertheless, they
//! are given to the other device as one train: one system call for many.

use std::io::{self, IoSlice};
use std::rc::Rc;

use culvert_os::tun::{Incoming, Outgoing, Tun};

const TCP: u8 = 6;
const UDP: u8 = 17;
const UDP_HEAD: usize = 8;

/// Where the parts of a TCP or UDP packet are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Layout {
    v6: bool,
    udp: bool,
    /// Length of the IP head.
    network: usize,
    /// Length of both heads.
    heads: usize,
}

impl Layout {
    fn of(packet: &[u8]) -> Option<Self> {
        let (v6, protocol, network) = match packet.first()? >> 4 {
            4 => (false, *packet.get(9)?, usize::from(packet[0] & 15) * 4),
            6 => (true, *packet.get(6)?, 40),
            _ => return None,
        };
        let transport = match protocol {
            TCP => usize::from(packet.get(network + 12)? >> 4) * 4,
            UDP => UDP_HEAD,
            _ => return None,
        };
        let heads = network + transport;
        (packet.len() >= heads && network >= 20).then_some(Self { v6, udp: protocol == UDP, network, heads })
    }
}

/// One packet of a train, or a packet by itself.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    train: Rc<Train>,
    at: u32,
}

#[derive(Debug)]
struct Train {
    bytes: Vec<u8>,
    /// `None`: a packet that is passed on as it is.
    layout: Option<Layout>,
    segment: usize,
    pieces: u32,
}

impl Piece {
    /// The packets of what a device has given, each with its length on the wire.
    pub(crate) fn cut(packet: &[u8], what: Incoming) -> impl Iterator<Item = (Self, usize)> {
        // A packet with a complete checksum is passed on untouched.
        let layout = if what.checked { Layout::of(packet) } else { None };
        let heads = layout.map_or(0, |layout| layout.heads);
        let payload = packet.len() - heads;
        let segment = match usize::from(what.train) {
            0 => payload.max(1),
            _ if layout.is_none() => payload.max(1),
            train => train,
        };
        let pieces = payload.div_ceil(segment).max(1) as u32;
        let train = Rc::new(Train { bytes: packet.to_vec(), layout, segment, pieces });
        (0..pieces).map(move |at| {
            let piece = Self { train: Rc::clone(&train), at };
            let len = heads + piece.payload(1).len();
            (piece, len)
        })
    }

    /// Whether `next` is the packet behind the last of `count` that begin with this one, in the same train.
    pub(crate) fn goes_on(&self, count: u32, next: &Self) -> bool {
        Rc::ptr_eq(&self.train, &next.train) && self.at + count == next.at
    }

    /// The payload of `count` packets from this one on.
    fn payload(&self, count: u32) -> &[u8] {
        let heads = self.train.layout.map_or(0, |layout| layout.heads);
        let payload = &self.train.bytes[heads..];
        let from = self.at as usize * self.train.segment;
        let to = from + count as usize * self.train.segment;
        &payload[from.min(payload.len())..to.min(payload.len())]
    }

    /// Gives `count` packets of the train from this one on to a device.
    pub(crate) fn send(&self, count: u32, tun: &Tun) -> io::Result<()> {
        let Some(layout) = self.train.layout else {
            return tun.send(Outgoing::default(), &[], &[IoSlice::new(&self.train.bytes)]);
        };
        let payload = self.payload(count);
        let head = self.heads(layout, count, payload.len());
        let what = Outgoing {
            segment: if count > 1 { self.train.segment as u16 } else { 0 },
            udp: layout.udp,
            v6: layout.v6,
            head: layout.heads as u16,
            checksum: Some((layout.network as u16, if layout.udp { 6 } else { 16 })),
        };
        tun.send(what, &head, &[IoSlice::new(payload)])
    }

    /// The heads for `count` packets from this one on.
    fn heads(&self, layout: Layout, count: u32, payload: usize) -> Vec<u8> {
        let mut head = self.train.bytes[..layout.heads].to_vec();
        let (ip, transport) = head.split_at_mut(layout.network);
        let transport_len = transport.len() + payload;
        let addresses = if layout.v6 {
            put(ip, 4, transport_len as u16);
            &ip[8..40]
        } else {
            put(ip, 2, (layout.network + transport_len) as u16);
            let number = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(self.at as u16);
            put(ip, 4, number);
            put(ip, 10, 0);
            let sum = !folded(sum(ip));
            put(ip, 10, sum);
            &ip[12..20]
        };
        // The kernel completes the checksum, from that of the pseudo head.
        let protocol = if layout.udp { UDP } else { TCP };
        let pseudo = folded(sum(addresses) + u32::from(protocol) + transport_len as u32);
        if layout.udp {
            put(transport, 4, transport_len as u16);
            put(transport, 6, pseudo);
        } else {
            let before = self.at.wrapping_mul(self.train.segment as u32);
            let number = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            transport[4..8].copy_from_slice(&number.wrapping_add(before).to_be_bytes());
            const FIN_PUSH: u8 = 0x09;
            const WINDOW_REDUCED: u8 = 0x80;
            if self.at + count < self.train.pieces {
                transport[13] &= !FIN_PUSH;
            }
            if self.at > 0 {
                transport[13] &= !WINDOW_REDUCED;
            }
            put(transport, 16, pseudo);
        }
        head
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of 16-bit words, of an even number of bytes.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet with TCP, of this payload.
    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0x12, 0xff, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0, 80, 1, 2, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    fn train(payload: usize, segment: u16) -> Vec<(Piece, usize)> {
        let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
        let packet = packet(&bytes);
        let what = Incoming { len: packet.len(), checked: true, segment: 0, train: segment, checksum: None };
        Piece::cut(&packet, what).collect()
    }

    #[test]
    fn a_train_becomes_its_packets() {
        let pieces = train(2500, 1000);
        assert_eq!(pieces.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [1040, 1040, 540]);
        let layout = pieces[0].0.train.layout.unwrap();
        let heads: Vec<Vec<u8>> =
            (0..3).map(|at| pieces[at].0.heads(layout, 1, pieces[at].0.payload(1).len())).collect();
        for (at, head) in heads.iter().enumerate() {
            assert_eq!(folded(sum(&head[..20])), 0xffff, "checksum of the IP head");
            assert_eq!(u16::from_be_bytes([head[2], head[3]]), [1040, 1040, 540][at]);
            assert_eq!(u16::from_be_bytes([head[4], head[5]]), 0x12ff + at as u16);
            let number = u32::from_be_bytes(head[24..28].try_into().unwrap());
            assert_eq!(number, 0xffff_ff00u32.wrapping_add(1000 * at as u32));
            // CWR with the first, PSH and FIN with the last.
            assert_eq!(head[33], [0x90, 0x10, 0x19][at]);
        }
    }

    #[test]
    fn neighbours_are_joined_and_others_are_not() {
        let pieces: Vec<Piece> = train(5000, 1000).into_iter().map(|(piece, _)| piece).collect();
        assert!(pieces[1].goes_on(1, &pieces[2]) && pieces[1].goes_on(2, &pieces[3]));
        assert!(!pieces[1].goes_on(1, &pieces[3]) && !pieces[1].goes_on(1, &pieces[1]));
        assert!(!pieces[1].goes_on(1, &train(5000, 1000)[2].0), "of another train");
        assert_eq!(pieces[1].payload(3).len(), 3000);
        assert_eq!(pieces[4].payload(1)[..2], [4000u16 as u8, 4001u16 as u8]);
    }

    #[test]
    fn what_is_no_tcp_or_udp_is_passed_on_as_it_is() {
        for bytes in [&b""[..], b"\x45", b"\x60junk", &[0x45; 19], &[0; 100]] {
            let what = Incoming { len: bytes.len(), checked: true, segment: 0, train: 1000, checksum: None };
            let pieces: Vec<_> = Piece::cut(bytes, what).collect();
            assert_eq!((pieces.len(), pieces[0].1), (1, bytes.len()));
            assert_eq!(pieces[0].0.payload(1), bytes);
        }
    }
}
