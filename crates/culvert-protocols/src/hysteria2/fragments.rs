//! Packets too large for one datagram, put together again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use culvert_wire::{Buf, Target};

use super::codec::{Head, MAX_PAYLOAD};

/// Packets of a connection that may be incomplete at once; the oldest one makes room.
const MAX_PACKETS: usize = 64;
/// How long a packet waits for what is missing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Incomplete packets of one connection.
#[derive(Default)]
pub(super) struct Fragments {
    /// Oldest first.
    packets: VecDeque<Packet>,
}

struct Packet {
    session: u32,
    packet: u16,
    parts: Vec<Option<Bytes>>,
    missing: u8,
    bytes: usize,
    since: Instant,
}

impl Fragments {
    /// Takes what a datagram carries and returns the packet that this completes: its payload, and where it goes.
    pub(super) fn take(&mut self, head: Head, data: Bytes, now: Instant) -> Option<(Buf, Target)> {
        if head.count == 1 {
            return (data.len() <= MAX_PAYLOAD).then(|| (Buf::copied(&data), head.peer));
        }
        while self
            .packets
            .front()
            .is_some_and(|packet| now.saturating_duration_since(packet.since) > PATIENCE)
        {
            self.packets.pop_front();
        }
        let same = |packet: &Packet| packet.session == head.session && packet.packet == head.packet;
        let mut at = self.packets.iter().position(same);
        if let Some(found) = at
            && self.packets[found].parts.len() != usize::from(head.count)
        {
            // Another packet with the same number.
            self.packets.remove(found);
            at = None;
        }
        let at = at.unwrap_or_else(|| {
            if self.packets.len() == MAX_PACKETS {
                self.packets.pop_front();
            }
            self.packets.push_back(Packet {
                session: head.session,
                packet: head.packet,
                parts: vec![None; head.count.into()],
                missing: head.count,
                bytes: 0,
                since: now,
            });
            self.packets.len() - 1
        });
        let packet = &mut self.packets[at];
        let part = packet.parts.get_mut(usize::from(head.fragment)).filter(|part| part.is_none())?;
        packet.bytes += data.len();
        packet.missing -= 1;
        // It may be a small piece of a large buffer, and who knows how long it waits.
        *part = Some(Bytes::copy_from_slice(&data));
        if packet.bytes > MAX_PAYLOAD {
            self.packets.remove(at);
            return None;
        }
        if packet.missing > 0 {
            return None;
        }
        let packet = self.packets.remove(at)?;
        let mut whole = Buf::new(packet.bytes, 0, 0);
        packet.parts.iter().flatten().for_each(|part| whole.append(part));
        Some((whole, head.peer))
    }
}

/// No order of fragments makes more of them than there is.
pub(super) fn fuzz_fragments(bytes: &[u8]) {
    let mut fragments = Fragments::default();
    let now = Instant::now();
    let peer = Target::new(std::net::IpAddr::from([127, 0, 0, 1]), 53);
    for (at, step) in bytes.chunks_exact(4).enumerate() {
        let &[session, fragment, count, len] = step else { continue };
        let (session, packet) = (u32::from(session & 3), u16::from(session >> 6));
        if fragment >= count {
            continue;
        }
        let head = Head { session, packet, fragment, count, peer: peer.clone() };
        let data = Bytes::from(vec![at as u8; usize::from(len) * 8]);
        if let Some((whole, _)) = fragments.take(head, data, now + Duration::from_millis(at as u64)) {
            assert!(whole.len() <= MAX_PAYLOAD);
        }
        assert!(fragments.packets.len() <= MAX_PACKETS);
        for packet in &fragments.packets {
            let held: usize = packet.parts.iter().flatten().map(Bytes::len).sum();
            assert!(held == packet.bytes && held <= MAX_PAYLOAD && packet.missing > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        fragments: &mut Fragments,
        [session, packet]: [u16; 2],
        [fragment, count]: [u8; 2],
        data: &str,
        now: Instant,
    ) -> Option<String> {
        let peer = Target::parse("a.test:53", None).unwrap();
        let head = Head { session: session.into(), packet, fragment, count, peer };
        let (whole, _) = fragments.take(head, Bytes::copy_from_slice(data.as_bytes()), now)?;
        Some(String::from_utf8(whole.to_vec()).unwrap())
    }

    #[test]
    fn any_order_will_do_and_duplicates_count_once() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert_eq!(take(&mut fragments, [1, 7], [2, 3], "c", now), None);
        assert_eq!(take(&mut fragments, [1, 8], [0, 2], "x", now), None, "another packet between them");
        assert_eq!(take(&mut fragments, [2, 7], [0, 3], "y", now), None, "another session");
        assert_eq!(take(&mut fragments, [1, 7], [2, 3], "C", now), None, "a duplicate, whatever it says");
        assert_eq!(take(&mut fragments, [1, 7], [0, 3], "a", now), None);
        assert_eq!(take(&mut fragments, [1, 7], [1, 3], "b", now).as_deref(), Some("abc"));
        assert_eq!(take(&mut fragments, [1, 7], [1, 3], "b", now), None, "that packet is done");
        assert_eq!(take(&mut fragments, [1, 0], [0, 1], "whole", now).as_deref(), Some("whole"));
    }

    #[test]
    fn another_count_begins_anew() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert_eq!(take(&mut fragments, [1, 7], [0, 3], "a", now), None);
        assert_eq!(take(&mut fragments, [1, 7], [1, 2], "B", now), None);
        assert_eq!(take(&mut fragments, [1, 7], [0, 2], "A", now).as_deref(), Some("AB"));
    }

    #[test]
    fn what_stays_incomplete_goes() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert_eq!(take(&mut fragments, [1, 7], [0, 2], "a", now), None);
        let later = now + PATIENCE + Duration::from_secs(1);
        assert_eq!(take(&mut fragments, [1, 7], [1, 2], "b", later), None, "the first part is forgotten");
        for packet in 100..100 + 2 * MAX_PACKETS as u16 {
            assert_eq!(take(&mut fragments, [1, packet], [0, 255], "z", later), None);
        }
        assert_eq!(fragments.packets.len(), MAX_PACKETS);
    }

    #[test]
    fn no_packet_is_larger_than_the_limit() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        let half = "x".repeat(MAX_PAYLOAD / 2);
        assert_eq!(take(&mut fragments, [1, 1], [0, 2], &half, now), None);
        assert_eq!(
            take(&mut fragments, [1, 1], [1, 2], &half, now).map(|whole| whole.len()),
            Some(MAX_PAYLOAD)
        );
        assert_eq!(take(&mut fragments, [1, 2], [0, 3], &half, now), None);
        assert_eq!(take(&mut fragments, [1, 2], [1, 3], &half, now), None);
        assert_eq!(take(&mut fragments, [1, 2], [2, 3], "y", now), None);
        assert_eq!(take(&mut fragments, [1, 3], [0, 1], &"x".repeat(MAX_PAYLOAD + 1), now), None);
        assert!(fragments.packets.is_empty());
    }
}
