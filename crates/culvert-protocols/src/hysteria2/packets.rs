//! Associations: packets in datagrams of the connection.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use culvert_core::udp::PacketQueue;
use culvert_core::{Packet, PacketBatch, PacketConn};
use culvert_quic::{Connection, DatagramError};
use culvert_wire::{Buf, Room, Target};
use tokio::sync::mpsc;

use super::codec::{Head, MAX_PAYLOAD};
use crate::fragments::{Fragments, Place};

/// Sends the packets of one association.
pub(super) struct Sender {
    connection: Connection,
    session: u32,
    /// Counts the packets that come in fragments.
    packet: u16,
    /// The address of the last packet, as text.
    address: (Option<Target>, String),
}

impl Sender {
    pub(super) fn new(connection: Connection, session: u32) -> Self {
        Self { connection, session, packet: 0, address: (None, String::new()) }
    }

    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        while let Some(packet) = batch.front() {
            ready!(self.connection.poll_datagram_room(cx, packet.data.len() + 2048))?;
            let Some(packet) = batch.pop() else { break };
            self.send(&packet)?;
        }
        Poll::Ready(Ok(()))
    }

    fn send(&mut self, packet: &Packet) -> io::Result<()> {
        if self.address.0.as_ref() != Some(&packet.peer) {
            self.address = (Some(packet.peer.clone()), packet.peer.to_string());
        }
        let Some(most) = self.connection.max_datagram() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        for payload in packet.payloads().filter(|payload| payload.len() <= MAX_PAYLOAD) {
            match self.send_one(payload, most) {
                // The path has become narrower meanwhile.
                Err(DatagramError::TooLarge(most)) => match self.send_one(payload, most) {
                    Ok(()) | Err(DatagramError::TooLarge(_)) => {}
                    Err(error) => return Err(broken(error)),
                },
                Ok(()) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    fn send_one(&mut self, payload: &[u8], most: usize) -> Result<(), DatagramError> {
        let address = &self.address.1;
        let head = Head::len(address.len());
        if head + payload.len() <= most {
            let mut message = Vec::with_capacity(head + payload.len());
            Head::put(self.session, 0, [0, 1], address, &mut message);
            message.extend(payload);
            return self.connection.send_datagram(Bytes::from(message));
        }
        let part = most.saturating_sub(head);
        let count = payload.len().div_ceil(part.max(1));
        let Some(count) = u8::try_from(count).ok().filter(|_| part > 0) else { return Ok(()) };
        self.packet = self.packet.wrapping_add(1).max(1);
        for (fragment, data) in payload.chunks(part).enumerate() {
            let mut message = Vec::with_capacity(head + data.len());
            Head::put(self.session, self.packet, [fragment as u8, count], address, &mut message);
            message.extend(data);
            self.connection.send_datagram(Bytes::from(message))?;
        }
        Ok(())
    }
}

fn broken(error: DatagramError) -> io::Error {
    match error {
        DatagramError::Ended(error) => error.into(),
        other => io::Error::other(other),
    }
}

/// A client's association, at the server.
pub(super) struct ServerPackets {
    pub(super) queue: PacketQueue,
    pub(super) sender: Sender,
}

impl PacketConn for ServerPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        self.sender.poll_send(cx, batch)
    }
}

/// An association through a server.
pub(super) struct ClientPackets<L> {
    pub(super) queue: mpsc::Receiver<Packet>,
    pub(super) sender: Sender,
    /// Taken out of the table when this goes.
    pub(super) _lease: L,
}

impl<L: Send + Unpin> PacketConn for ClientPackets<L> {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let Some(first) = ready!(self.queue.poll_recv(cx)) else {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        };
        batch.push(first.with_room(room));
        while batch.len() < PacketBatch::MAX
            && let Ok(packet) = self.queue.try_recv()
        {
            batch.push(packet.with_room(room));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        self.sender.poll_send(cx, batch)
    }
}

/// The packet that a datagram with this head carries or completes.
pub(super) fn complete(fragments: &mut Fragments, head: Head, data: &[u8], now: Instant) -> Option<Packet> {
    if head.count == 1 {
        return (data.len() <= MAX_PAYLOAD).then(|| Packet::new(Buf::copied(data), head.peer));
    }
    let place = Place { association: head.session, id: head.packet, total: head.count, index: head.fragment };
    let (peer, data) = fragments.add(&place, Some(head.peer), data, now)?;
    Some(Packet::new(Buf::from(data), peer))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn take(
        fragments: &mut Fragments,
        [session, packet]: [u16; 2],
        [fragment, count]: [u8; 2],
        data: &str,
        now: Instant,
    ) -> Option<String> {
        let peer = Target::parse("a.test:53", None).unwrap();
        let head = Head { session: session.into(), packet, fragment, count, peer: peer.clone() };
        let whole = complete(fragments, head, data.as_bytes(), now)?;
        assert_eq!(whole.peer, peer);
        Some(String::from_utf8(whole.data.to_vec()).unwrap())
    }

    #[test]
    fn any_order_will_do_and_duplicates_count_once() {
        let (mut fragments, now) = (Fragments::at_most(MAX_PAYLOAD), Instant::now());
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
        let (mut fragments, now) = (Fragments::at_most(MAX_PAYLOAD), Instant::now());
        assert_eq!(take(&mut fragments, [1, 7], [0, 3], "a", now), None);
        assert_eq!(take(&mut fragments, [1, 7], [1, 2], "B", now), None);
        assert_eq!(take(&mut fragments, [1, 7], [0, 2], "A", now).as_deref(), Some("AB"));
    }

    #[test]
    fn what_stays_incomplete_goes() {
        let (mut fragments, now) = (Fragments::at_most(MAX_PAYLOAD), Instant::now());
        assert_eq!(take(&mut fragments, [1, 7], [0, 2], "a", now), None);
        let later = now + Duration::from_secs(11);
        assert_eq!(take(&mut fragments, [1, 7], [1, 2], "b", later), None, "the first part is forgotten");
        for packet in 100..228 {
            assert_eq!(take(&mut fragments, [1, packet], [0, 2], "z", later), None);
        }
        assert_eq!(take(&mut fragments, [1, 163], [1, 2], "y", later), None, "one more than are kept");
        assert_eq!(take(&mut fragments, [1, 227], [1, 2], "y", later).as_deref(), Some("zy"));
    }

    #[test]
    fn no_packet_is_larger_than_the_limit() {
        let (mut fragments, now) = (Fragments::at_most(MAX_PAYLOAD), Instant::now());
        let half = "x".repeat(MAX_PAYLOAD / 2);
        assert_eq!(take(&mut fragments, [1, 1], [0, 2], &half, now), None);
        assert_eq!(
            take(&mut fragments, [1, 1], [1, 2], &half, now).map(|whole| whole.len()),
            Some(MAX_PAYLOAD)
        );
        assert_eq!(take(&mut fragments, [1, 2], [0, 3], &half, now), None);
        assert_eq!(take(&mut fragments, [1, 2], [1, 3], &half, now), None);
        assert_eq!(take(&mut fragments, [1, 2], [2, 3], "y", now), None);
        assert_eq!(take(&mut fragments, [1, 2], [0, 3], "a", now), None, "it was forgotten as a whole");
        assert_eq!(take(&mut fragments, [1, 3], [0, 1], &"x".repeat(MAX_PAYLOAD + 1), now), None);
    }
}
