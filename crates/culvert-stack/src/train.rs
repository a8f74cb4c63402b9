//! Trains of packets for links that carry single ones: cut on their way out, joined on their way in.
//!
//! ```text
//! head | payload of 60 KiB        ─ lay_out ─▶   before | head | 1368 | behind · before | head | 1368 | behind · ...
//! head | 1368 · head | 1368 · ... ─ join ─▶      head | 1368 | 1368 | ...
//! ```
//!
//! [`lay_out`] copies each byte once, to where a link that seals wants it. [`join`] moves payload together in the memory
//! that it came in; what it makes has no right TCP or UDP checksum, so it is for those who have no need of one.
//!
//! Sources: Linux's `Documentation/networking/segmentation-offloads.rst` for what may be joined.

use std::ops::Range;

use crate::checksum::{Sum, pseudo};
use crate::ip::{self, protocol};
use crate::stack::Outgoing;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;
const CWR: u8 = 128;

/// Longest packet that is made by joining.
const LONGEST: usize = 65_535;

/// What a link wants around packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    /// Bytes before each.
    pub before: usize,
    /// Bytes behind each.
    pub behind: usize,
    /// Packets are filled up with zeros to a multiple of this.
    pub multiple: usize,
    /// But not beyond this length.
    pub mtu: usize,
}

impl Layout {
    /// Bytes that a packet of this length takes.
    #[must_use]
    pub fn space(&self, packet: usize) -> usize {
        let filled = packet.next_multiple_of(self.multiple).min(self.mtu.max(packet));
        self.before + filled + self.behind
    }
}

/// How packets lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Laid {
    /// Bytes from one to the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
    /// Bytes that all take together; the last one may take less than the others.
    pub len: usize,
}

/// How the packets of a train will lie.
#[must_use]
pub fn plan(out: &Outgoing<'_>, layout: &Layout) -> Laid {
    let payload: usize = out.payload.iter().map(|slice| slice.len()).sum();
    let each = if out.segment == 0 { payload } else { usize::from(out.segment) };
    let count = if each == 0 { 1 } else { payload.div_ceil(each).max(1) };
    let stride = layout.space(out.head.len() + each.min(payload));
    let last = layout.space(out.head.len() + payload - each * (count - 1));
    Laid { stride, count, len: stride * (count - 1) + last }
}

/// Lays the packets of a train into memory, as [`plan`] says: each with a head of its own, and checksums where they were
/// left to the device.
///
/// # Panics
/// If `memory` is shorter than planned, or `out` has heads that are not what it says.
pub fn lay_out(out: &Outgoing<'_>, layout: &Layout, laid: &Laid, memory: &mut [u8]) {
    let head = out.head.len();
    let mut pieces = out.payload.iter().map(|slice| &**slice);
    let mut piece: &[u8] = &[];
    let each = if out.segment == 0 { usize::MAX } else { usize::from(out.segment) };
    for number in 0..laid.count {
        let start = number * laid.stride;
        let end = if number + 1 == laid.count { laid.len } else { start + laid.stride };
        let place = &mut memory[start + layout.before..end - layout.behind];
        place[..head].copy_from_slice(out.head);
        let mut at = head;
        let mut rest = each;
        while rest > 0 {
            if piece.is_empty() {
                match pieces.next() {
                    Some(next) => piece = next,
                    None => break,
                }
                continue;
            }
            let (now, later) = piece.split_at(piece.len().min(rest));
            place[at..at + now.len()].copy_from_slice(now);
            at += now.len();
            rest -= now.len();
            piece = later;
        }
        place[at..].fill(0);
        let packet = &mut place[..at];
        if out.segment > 0 {
            own_head(packet, head, number, number + 1 == laid.count, each, out.checksum);
        }
        if let Some((at, field)) = out.checksum {
            complete(packet, at.into(), field.into());
        }
    }
}

/// Makes the copy of a train's head that of one of its packets.
fn own_head(
    packet: &mut [u8],
    head: usize,
    number: usize,
    last: bool,
    each: usize,
    checksum: Option<(u16, u16)>,
) {
    set_len(packet);
    if packet[0] >> 4 == 4 {
        let ident = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(number as u16);
        packet[4..6].copy_from_slice(&ident.to_be_bytes());
        set_head_checksum(packet);
    }
    let Some((at, field)) = checksum else { return };
    let (at, len) = (usize::from(at), packet.len());
    if field == 6 {
        packet[at + 4..at + 6].copy_from_slice(&((len - at) as u16).to_be_bytes());
        return;
    }
    debug_assert!(head >= at + 20);
    let seq = u32::from_be_bytes([packet[at + 4], packet[at + 5], packet[at + 6], packet[at + 7]]);
    let seq = seq.wrapping_add((number * each) as u32);
    packet[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
    if !last {
        packet[at + 13] &= !(FIN | PSH);
    }
    if number > 0 {
        packet[at + 13] &= !CWR; // said once
    }
}

/// Writes the length of a packet into its IP head.
fn set_len(packet: &mut [u8]) {
    let len = packet.len();
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&u16::try_from(len).unwrap_or(0).to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&u16::try_from(len - 40).unwrap_or(0).to_be_bytes());
    }
}

fn set_head_checksum(packet: &mut [u8]) {
    let head = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = Sum::default().bytes(&packet[..head]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Makes the checksum whole that stands `field` bytes behind `at`.
fn complete(packet: &mut [u8], at: usize, field: usize) {
    let Ok(head) = ip::parse(packet) else { return };
    packet[at + field..at + field + 2].fill(0);
    let inside = &packet[at..];
    let sum = pseudo(head.source, head.target, head.protocol, inside.len()).bytes(inside).finish();
    // A UDP checksum of zero says that there is none.
    let sum = if sum == 0 && field == 6 { 0xffff } else { sum };
    packet[at + field..at + field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A packet, or a train, of a device that does offloads, as [`lay_out`] takes it: where its payload begins. `checksum` says
/// where the TCP or UDP head begins, and where in that the checksum is. `None` if it is not what that says.
#[must_use]
pub fn payload_at(packet: &[u8], checksum: Option<(u16, u16)>) -> Option<usize> {
    let Some((at, field)) = checksum else { return Some(packet.len()) };
    let at = usize::from(at);
    let end = match field {
        16 => at + usize::from(packet.get(at + 12)? >> 4) * 4,
        6 => at + 8,
        field => at + usize::from(field) + 2,
    };
    (end <= packet.len() && end >= at + usize::from(field) + 2 && at >= 20).then_some(end)
}

/// Leaves the checksum of a joined train to a device that completes checksums, and says where it is.
pub fn leave_checksum(packet: &mut [u8], joined: &Joined) -> Option<(u16, u16)> {
    let head = ip::parse(packet).ok()?;
    let (at, len) = (head.payload.start, head.payload.len());
    let field = if joined.udp { 6 } else { 16 };
    if joined.udp {
        packet[at + 4..at + 6].copy_from_slice(&(len as u16).to_be_bytes());
    }
    let sum = pseudo(head.source, head.target, head.protocol, len).partial();
    packet[at + field..at + field + 2].copy_from_slice(&sum.to_be_bytes());
    Some((at as u16, field as u16))
}

/// Packets that lie one behind the other as one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Joined {
    /// Where it lies.
    pub range: Range<usize>,
    /// Of several that were joined: how long the payload of each is, the last of which may be shorter. Else 0.
    pub segment: u16,
    /// Length of all its heads, if it was joined.
    pub head: u16,
    /// Whether its inside is UDP.
    pub udp: bool,
}

/// What is known about a packet that others may be joined to.
struct Train {
    shape: Shape,
    range: Range<usize>,
    segment: usize,
    next: u32,
    open: bool,
    count: usize,
}

struct Shape {
    v6: bool,
    udp: bool,
    /// Where the TCP or UDP head begins, and where it ends.
    inner: usize,
    head: usize,
    flags: u8,
    seq: u32,
}

/// Joins the packets that lie at `packets` in `memory`, in order, those that belong together and follow each other. The
/// lengths that their heads say have to be those of the ranges.
pub fn join(memory: &mut [u8], packets: &[Range<usize>], done: &mut Vec<Joined>) {
    let mut train: Option<Train> = None;
    for range in packets {
        let shape = shape(&memory[range.clone()]);
        if let (Some(train), Some(shape)) = (&mut train, &shape)
            && extend(memory, train, shape, range)
        {
            continue;
        }
        if let Some(train) = train.take() {
            done.push(finish(memory, train));
        }
        match shape {
            Some(shape) => {
                let segment = range.len() - shape.head;
                train = Some(Train {
                    next: shape.seq.wrapping_add(segment as u32),
                    open: segment > 0 && (shape.udp || shape.flags & PSH == 0),
                    segment,
                    range: range.clone(),
                    count: 1,
                    shape,
                });
            }
            None => done.push(Joined { range: range.clone(), segment: 0, head: 0, udp: false }),
        }
    }
    if let Some(train) = train {
        done.push(finish(memory, train));
    }
}

/// `None` for what is never joined.
fn shape(packet: &[u8]) -> Option<Shape> {
    let (v6, inner, number) = match packet.first()? {
        0x45 if packet.len() >= 20 && packet[6] & 0x3f == 0 && packet[7] == 0 => (false, 20, packet[9]),
        first if first >> 4 == 6 && packet.len() >= 40 => (true, 40, packet[6]),
        _ => return None,
    };
    let rest = &packet[inner..];
    match number {
        protocol::UDP if rest.len() > 8 => {
            let len = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
            (len == rest.len()).then_some(Shape { v6, udp: true, inner, head: inner + 8, flags: 0, seq: 0 })
        }
        protocol::TCP if rest.len() >= 20 => {
            let head = inner + usize::from(rest[12] >> 4) * 4;
            let flags = rest[13];
            let plain = flags & (FIN | SYN | RST | URG) == 0 && flags & ACK != 0;
            let seq = u32::from_be_bytes([rest[4], rest[5], rest[6], rest[7]]);
            (plain && head >= inner + 20 && head < packet.len()).then_some(Shape {
                v6,
                udp: false,
                inner,
                head,
                flags,
                seq,
            })
        }
        _ => None,
    }
}

fn extend(memory: &mut [u8], train: &mut Train, shape: &Shape, range: &Range<usize>) -> bool {
    let payload = range.len() - shape.head;
    let fits = train.range.len() + payload <= LONGEST && payload <= train.segment;
    if !train.open
        || !fits
        || (shape.head, shape.v6, shape.udp) != (train.shape.head, train.shape.v6, train.shape.udp)
    {
        return false;
    }
    let (ours, theirs) = (&memory[train.range.clone()], &memory[range.clone()]);
    let at = shape.inner;
    let same = |part: Range<usize>| ours[part.clone()] == theirs[part];
    // The addresses with what stands before them but length, name and checksum; ports.
    let ip = if shape.v6 { same(0..4) && same(6..40) } else { same(0..2) && same(6..10) && same(12..20) };
    if !ip || !same(at..at + 4) {
        return false;
    }
    if !shape.udp {
        // Acknowledgement, length of the head, window, options.
        let same = same(at + 8..at + 13) && same(at + 14..at + 16) && same(at + 20..shape.head);
        if !same || shape.seq != train.next || (shape.flags ^ train.shape.flags) & !PSH != 0 {
            return false;
        }
    }
    let from = range.start + shape.head;
    memory.copy_within(from..range.end, train.range.end);
    train.range.end += payload;
    train.next = train.next.wrapping_add(payload as u32);
    train.shape.flags |= shape.flags;
    train.count += 1;
    train.open = payload == train.segment && shape.flags & PSH == 0;
    true
}

fn finish(memory: &mut [u8], train: Train) -> Joined {
    let Train { shape, range, segment, count, .. } = train;
    if count == 1 {
        return Joined { range, segment: 0, head: 0, udp: shape.udp };
    }
    let packet = &mut memory[range.clone()];
    set_len(packet);
    if !shape.v6 {
        set_head_checksum(packet);
    }
    if !shape.udp {
        packet[shape.inner + 13] = shape.flags;
    }
    Joined { range, segment: segment as u16, head: shape.head as u16, udp: shape.udp }
}

/// Joins packets that are cut out of `bytes`; for fuzzing. No byte of a payload may get lost.
pub fn fuzz_join(bytes: &[u8]) {
    let mut memory = bytes.to_vec();
    let mut packets = Vec::new();
    let mut at = 0;
    while let Some(len) = bytes.get(at).map(|byte| usize::from(*byte)) {
        let end = (at + len.max(1)).min(bytes.len());
        packets.push(at..end);
        at = end;
    }
    let mut done = Vec::new();
    join(&mut memory, &packets, &mut done);
    assert!(done.len() <= packets.len());
    let before: usize = packets.iter().map(Range::len).sum();
    let after: usize = done.iter().map(|joined| joined.range.len()).sum();
    assert!(after <= before && done.iter().all(|joined| joined.range.end <= memory.len()));
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::tcp::Seq;
    use crate::tcp::segment::{Flags, MAX_HEAD, Segment};
    use crate::udp;

    const LAYOUT: Layout = Layout { before: 16, behind: 16, multiple: 16, mtu: 1408 };

    fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
        let at = |text: &str| text.parse().unwrap();
        if v6 { (at("[fd00::1]:80"), at("[fd00::2]:4000")) } else { (at("10.0.0.1:80"), at("10.0.0.2:4000")) }
    }

    /// The heads of a train of segments.
    fn tcp_head(v6: bool, payload: usize) -> (Vec<u8>, u16) {
        let (source, target) = ends(v6);
        let segment = Segment {
            source: source.port(),
            target: target.port(),
            seq: Seq(u32::MAX - 2000),
            ack: Seq(77),
            flags: Flags::ACK.and(Flags(PSH)).and(Flags::FIN),
            window: 500,
            ..Segment::default()
        };
        let mut head = vec![0; ip::MAX_HEAD + MAX_HEAD];
        let at = ip::encode(source.ip(), target.ip(), protocol::TCP, 20 + payload, 9, &mut head);
        let end = at + segment.encode(&mut head[at..]);
        head.truncate(end);
        (head, at as u16)
    }

    fn packets(out: &Outgoing<'_>) -> (Vec<u8>, Vec<Range<usize>>) {
        let laid = plan(out, &LAYOUT);
        let mut memory = vec![0xee; laid.len];
        lay_out(out, &LAYOUT, &laid, &mut memory);
        let ranges = (0..laid.count).map(|number| {
            let start = number * laid.stride + LAYOUT.before;
            let packet = &memory[start..];
            let len = match packet[0] >> 4 {
                4 => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
                _ => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
            };
            start..start + len
        });
        let ranges = ranges.collect();
        (memory, ranges)
    }

    #[test]
    fn a_train_is_cut_into_packets_that_are_right_in_themselves() {
        for v6 in [false, true] {
            let payload: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
            let (head, at) = tcp_head(v6, payload.len());
            let none: &[u8] = &[];
            let parts = [IoSlice::new(&payload[..3001]), IoSlice::new(none), IoSlice::new(&payload[3001..])];
            let out = Outgoing { head: &head, payload: &parts[..], segment: 1300, checksum: Some((at, 16)) };
            let (memory, ranges) = packets(&out);
            assert_eq!(ranges.len(), 8);
            let mut collected: Vec<u8> = Vec::new();
            let mut seq = u32::MAX - 2000;
            for (number, range) in ranges.iter().enumerate() {
                let packet = &memory[range.clone()];
                let parsed = ip::parse(packet).unwrap();
                let inside = &packet[parsed.payload.clone()];
                let sum = pseudo(parsed.source, parsed.target, protocol::TCP, inside.len()).bytes(inside);
                assert_eq!(sum.finish(), 0, "the checksum of packet {number}");
                let (segment, len) = Segment::parse(inside).unwrap();
                assert_eq!(segment.seq, Seq(seq));
                assert_eq!(segment.flags.has(Flags::FIN), number == 7, "the end is at the end");
                collected.extend(&inside[len..]);
                seq = seq.wrapping_add((inside.len() - len) as u32);
            }
            assert_eq!(collected, payload);
        }
    }

    #[test]
    fn packets_are_filled_up_with_zeros_but_not_beyond_the_mtu() {
        let (head, at) = tcp_head(false, 5);
        let out = Outgoing {
            head: &head,
            payload: &[IoSlice::new(b"hello")],
            segment: 0,
            checksum: Some((at, 16)),
        };
        let laid = plan(&out, &LAYOUT);
        assert_eq!((laid.stride, laid.count, laid.len), (16 + 48 + 16, 1, 80));
        let mut memory = vec![0xee; laid.len];
        lay_out(&out, &LAYOUT, &laid, &mut memory);
        assert_eq!(memory[16 + 45..16 + 48], [0, 0, 0]);
        assert_eq!(LAYOUT.space(1407), 16 + 1408 + 16);
        assert_eq!(Layout { mtu: 1407, ..LAYOUT }.space(1400), 16 + 1407 + 16);
        assert_eq!(LAYOUT.space(1500), 16 + 1500 + 16, "what is longer stays what it is");
    }

    #[test]
    fn what_was_cut_is_joined_again() {
        for v6 in [false, true] {
            let payload: Vec<u8> = (0..20_000u32).map(|at| (at * 13) as u8).collect();
            let (head, at) = tcp_head(v6, payload.len());
            let parts = [IoSlice::new(&payload)];
            let out = Outgoing { head: &head, payload: &parts, segment: 1340, checksum: Some((at, 16)) };
            let (mut memory, ranges) = packets(&out);
            let mut done = Vec::new();
            join(&mut memory, &ranges, &mut done);
            // The last one says that it is the end, and stays alone.
            assert_eq!(done.len(), 2);
            assert_eq!((done[0].segment, usize::from(done[0].head)), (1340, head.len()));
            let parsed = ip::parse(&memory[done[0].range.clone()]).unwrap();
            assert_eq!(parsed.payload.len(), done[0].range.len() - usize::from(at));
            let first = &memory[done[0].range.clone()][head.len()..];
            let last = &memory[done[1].range.clone()][head.len()..];
            assert_eq!([first, last].concat(), payload);
        }
    }

    #[test]
    fn datagrams_of_one_size_are_joined_and_one_that_is_shorter_ends_it() {
        let (source, target) = ends(false);
        let mut memory = Vec::new();
        let mut ranges = Vec::new();
        for size in [100usize, 100, 100, 40, 40, 100] {
            let data = vec![size as u8; size];
            let mut head = [0; 48];
            let len = udp::encode(source, target, &data, 1, true, &mut head);
            let start = memory.len() + 16;
            memory.resize(start, 0);
            memory.extend(&head[..len]);
            memory.extend(data);
            ranges.push(start..memory.len());
        }
        let mut done = Vec::new();
        join(&mut memory, &ranges, &mut done);
        let shown: Vec<_> =
            done.iter().map(|joined| (joined.range.len(), joined.segment, joined.udp)).collect();
        assert_eq!(shown, [(28 + 340, 100, true), (28 + 40, 0, true), (28 + 100, 0, true)]);
    }

    #[test]
    fn what_does_not_belong_together_stays_apart() {
        let payload = [1u8; 100];
        let (head, at) = tcp_head(false, 100);
        let head = {
            let mut head = head;
            head[usize::from(at) + 13] = ACK;
            head
        };
        let changes = [
            ("a gap", 27, 1),
            ("another port", 21, 1),
            ("another address", 19, 1),
            ("another acknowledgement", 31, 1),
            ("another window", 35, 1),
            ("a reset", 33, RST),
            ("a fragment", 7, 1),
        ];
        for (what, at, bits) in changes {
            let first = [&head[..], &payload].concat();
            let mut second = first.clone();
            let seq = (u32::MAX - 2000).wrapping_add(100);
            second[24..28].copy_from_slice(&seq.to_be_bytes());
            second[at] ^= bits;
            let mut memory = [first.clone(), second].concat();
            let ranges = [0..first.len(), first.len()..2 * first.len()];
            let mut done = Vec::new();
            join(&mut memory, &ranges, &mut done);
            assert_eq!(done.len(), 2, "{what}");
        }
    }

    proptest! {
        #[test]
        fn nothing_gets_lost_in_any_noise(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            fuzz_join(&bytes);
        }
    }
}
