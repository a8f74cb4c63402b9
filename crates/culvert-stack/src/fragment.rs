//! Packets put together from pieces, within limits: pieces cost whoever collects them, not whoever sends them. And packets
//! cut into pieces.
//!
//! Pieces that overlap end the packet (RFC 8200 section 4.5 for IPv6; nobody honest does it in IPv4 either).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::checksum::Sum;
use crate::ip::{self, Head, Piece};

/// How long the pieces of a packet may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Most packets that wait for pieces, and most bytes of all of them.
const MOST_PACKETS: usize = 64;
const MOST_BYTES: usize = 1 << 20;
/// Most pieces of one packet: 64 KiB in pieces of the least MTU, and some.
const MOST_PIECES: usize = 128;
/// Longest payload that IP can carry.
const LONGEST: usize = 65_535;

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key {
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    ident: u32,
}

struct Packet {
    since: Instant,
    /// Offset and bytes, in order, without overlaps.
    pieces: Vec<(usize, Vec<u8>)>,
    /// Known once the last piece has come.
    len: Option<usize>,
}

/// The packets that wait for pieces.
#[derive(Default)]
pub struct Reassembly {
    packets: HashMap<Key, Packet>,
    bytes: usize,
}

impl Reassembly {
    /// Takes one piece, and returns the whole payload of its packet if that was the last one missing.
    pub fn add(&mut self, head: &Head, piece: Piece, payload: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.forget_late(now);
        let key =
            Key { source: head.source, target: head.target, protocol: head.protocol, ident: piece.ident };
        let end = piece.offset + payload.len();
        // All pieces but the last are whole units of eight bytes.
        if payload.is_empty() || end > LONGEST || (piece.more && !payload.len().is_multiple_of(8)) {
            self.remove(&key);
            return None;
        }
        if !self.packets.contains_key(&key) {
            self.make_room();
        }
        let packet = self.packets.entry(key.clone()).or_insert_with(|| Packet {
            since: now,
            pieces: Vec::new(),
            len: None,
        });
        let at = packet.pieces.partition_point(|(offset, _)| *offset < piece.offset);
        if packet.pieces.get(at).is_some_and(|(offset, bytes)| *offset == piece.offset && bytes == payload) {
            return None; // the same once more
        }
        let overlaps = at.checked_sub(1).is_some_and(|before| {
            let (offset, bytes) = &packet.pieces[before];
            offset + bytes.len() > piece.offset
        }) || packet.pieces.get(at).is_some_and(|(offset, _)| *offset < end);
        let contradicts = packet.len.is_some_and(|len| end > len || (!piece.more && end != len));
        if overlaps || contradicts || packet.pieces.len() >= MOST_PIECES {
            self.remove(&key);
            return None;
        }
        packet.pieces.insert(at, (piece.offset, payload.to_vec()));
        self.bytes += payload.len();
        if !piece.more {
            packet.len = Some(end);
        }
        let have: usize = packet.pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        if packet.len != Some(have) {
            return None;
        }
        let packet = self.remove(&key)?;
        Some(packet.pieces.into_iter().flat_map(|(_, bytes)| bytes).collect())
    }

    fn remove(&mut self, key: &Key) -> Option<Packet> {
        let packet = self.packets.remove(key)?;
        self.bytes -= packet.pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        Some(packet)
    }

    fn forget_late(&mut self, now: Instant) {
        let late = |packet: &Packet| now.saturating_duration_since(packet.since) > PATIENCE;
        let keys: Vec<_> =
            self.packets.iter().filter(|(_, packet)| late(packet)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// The oldest go where there are too many, or where they hold too much.
    fn make_room(&mut self) {
        while self.packets.len() >= MOST_PACKETS || self.bytes >= MOST_BYTES {
            let oldest =
                self.packets.iter().min_by_key(|(_, packet)| packet.since).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }
}

/// Length of the head that pieces have in IPv6, behind the packet's own.
const EXTENSION: usize = 8;
/// Its number.
const FRAGMENT: u8 = 44;

/// A packet that is longer than a link takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long<'a> {
    pub source: IpAddr,
    pub target: IpAddr,
    pub protocol: u8,
    pub ident: u16,
    pub payload: &'a [u8],
}

impl Long<'_> {
    /// Cuts it into packets of at most `mtu` bytes, and gives head and payload of each to `sink`. `false` as soon as that
    /// takes no more.
    pub(crate) fn cut(&self, mtu: u16, sink: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        let v4 = self.target.is_ipv4();
        let (own, protocol) = if v4 { (0, self.protocol) } else { (EXTENSION, FRAGMENT) };
        let room = (usize::from(mtu) - ip::head_len(self.target) - own) / 8 * 8;
        self.payload.chunks(room).enumerate().all(|(number, part)| {
            let offset = number * room;
            let more = offset + part.len() < self.payload.len();
            let mut head = [0; ip::MAX_HEAD + EXTENSION];
            let mut len =
                ip::encode(self.source, self.target, protocol, own + part.len(), self.ident, &mut head);
            if v4 {
                let field = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
                head[6..8].copy_from_slice(&field.to_be_bytes());
                head[10..12].fill(0);
                let sum = Sum::default().bytes(&head[..len]).finish();
                head[10..12].copy_from_slice(&sum.to_be_bytes());
            } else {
                head[len] = self.protocol;
                head[len + 2..len + 4].copy_from_slice(&(offset as u16 | u16::from(more)).to_be_bytes());
                head[len + 4..len + 8].copy_from_slice(&u32::from(self.ident).to_be_bytes());
                len += EXTENSION;
            }
            sink(&head[..len], part)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(ident: u32) -> (Head, u32) {
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let head = Head {
            source: address(1),
            target: address(2),
            protocol: 17,
            hop_limit: 64,
            payload: 0..0,
            fragment: None,
        };
        (head, ident)
    }

    fn add(
        all: &mut Reassembly,
        (head, ident): &(Head, u32),
        offset: usize,
        more: bool,
        payload: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        all.add(head, Piece { ident: *ident, offset, more }, payload, now)
    }

    #[test]
    fn an_overlap_ends_the_packet() {
        let (mut all, now, one) = (Reassembly::default(), Instant::now(), head(1));
        assert_eq!(add(&mut all, &one, 0, true, &[1; 16], now), None);
        assert_eq!(add(&mut all, &one, 8, true, &[2; 16], now), None);
        assert_eq!((all.packets.len(), all.bytes), (0, 0));
        assert_eq!(add(&mut all, &one, 24, false, &[2; 4], now), None);
        assert_eq!(all.packets.len(), 1, "a new packet of that name, which will never be whole");
    }

    #[test]
    fn nobody_can_make_it_keep_much() {
        let (mut all, now) = (Reassembly::default(), Instant::now());
        for ident in 0..10_000 {
            add(&mut all, &head(ident), 8, true, &[0; 60_000], now);
            assert!(all.packets.len() <= MOST_PACKETS && all.bytes <= MOST_BYTES + 60_000);
        }
        let later = now + PATIENCE + Duration::from_secs(1);
        add(&mut all, &head(0), 8, true, &[0; 8], later);
        assert_eq!((all.packets.len(), all.bytes), (1, 8), "late ones are forgotten");
    }

    proptest! {
        #[test]
        fn what_is_cut_is_put_together_again(len in 1usize..65_000, mtu in 1280u16..9000, v4 in any::<bool>()) {
            let payload: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            let address = |last: u8| if v4 { [192, 0, 2, last].into() } else { IpAddr::from([last; 16]) };
            let long = Long { source: address(1), target: address(2), protocol: 17, ident: 7, payload: &payload };
            let (mut all, mut whole) = (Reassembly::default(), None);
            long.cut(mtu, &mut |head, part| {
                let packet = [head, part].concat();
                assert!(packet.len() <= usize::from(mtu));
                let head = ip::parse(&packet).unwrap();
                assert_eq!((head.source, head.target, head.protocol), (address(1), address(2), 17));
                whole = match head.fragment {
                    Some(piece) => all.add(&head, piece, &packet[head.payload.clone()], Instant::now()),
                    None => Some(packet[head.payload].to_vec()),
                };
                true
            });
            prop_assert_eq!(whole, Some(payload));
        }

        #[test]
        fn any_order_gives_the_whole(len in 1usize..4000, size in 1usize..60, order in any::<u64>()) {
            let whole: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            let size = size * 8;
            let mut pieces: Vec<_> = whole.chunks(size).enumerate().map(|(at, bytes)| (at * size, bytes)).collect();
            let mut seed = order | 1;
            for at in (1..pieces.len()).rev() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(at, (seed >> 33) as usize % (at + 1));
            }
            prop_assume!(pieces.len() <= MOST_PIECES);
            let (mut all, now) = (Reassembly::default(), Instant::now());
            let last = pieces.len() - 1;
            for (at, (offset, bytes)) in pieces.into_iter().enumerate() {
                let done = add(&mut all, &head(1), offset, offset + bytes.len() < len, bytes, now);
                prop_assert_eq!(done.is_some(), at == last);
                if let Some(done) = done {
                    prop_assert_eq!(&done, &whole);
                }
            }
            prop_assert_eq!(all.bytes, 0);
        }
    }
}
