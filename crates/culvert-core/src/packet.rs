//! Datagrams, many at a time.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use culvert_wire::{Buf, Room, Target};

use crate::dispatch::DialOutcome;

/// A boxed packet conn.
pub type BoxPackets = Box<dyn PacketConn>;

/// One datagram, or a train of equally long ones with one peer, as the kernel's GRO and GSO carry them.
#[derive(Debug)]
pub struct Packet {
    /// The payload; of a train, the payloads back to back.
    pub data: Buf,
    /// 0: one datagram. Else a train: every datagram has this many bytes, only the last may have fewer.
    pub segment: u16,
    /// Where it goes, or where it came from.
    pub peer: Target,
}

impl Packet {
    /// One datagram.
    #[must_use]
    pub fn new(data: Buf, peer: Target) -> Self {
        Self { data, segment: 0, peer }
    }

    /// The same packet with this room around its payload: copied if it has not got it.
    #[must_use]
    pub fn with_room(self, room: Room) -> Self {
        if self.data.head() >= room.head && self.data.spare() >= room.tail {
            return self;
        }
        let mut data = Buf::new(self.data.len(), room.head, room.tail);
        data.append(&self.data);
        Self { data, ..self }
    }

    /// The same packet in memory of about its own size, for one that has to wait: a receive buffer takes many times that.
    #[must_use]
    pub fn snug(self) -> Self {
        let len = self.data.len();
        if self.data.head() + len + self.data.spare() <= 2 * len {
            return self;
        }
        Self { data: Buf::from(self.data.to_vec()), ..self }
    }

    /// How many datagrams this is.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        match self.segment {
            0 => 1,
            segment => self.data.len().div_ceil(segment.into()).max(1),
        }
    }

    /// The payloads of the single datagrams, in order; an empty datagram is one empty payload.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let whole = (self.segment == 0 || self.data.is_empty()).then_some(&self.data[..]);
        let segment = usize::from(self.segment).max(1);
        let parts = if whole.is_some() { &[] } else { &self.data[..] };
        whole.into_iter().chain(parts.chunks(segment))
    }
}

/// Packets on their way, in order. Empty it holds no memory.
#[derive(Debug, Default)]
pub struct PacketBatch {
    packets: VecDeque<Packet>,
}

impl PacketBatch {
    /// Most packets that one receive puts into a batch.
    pub const MAX: usize = 64;

    /// A batch without packets; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { packets: VecDeque::new() }
    }

    /// How many packets there are; a train counts as one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Puts a packet at the end.
    pub fn push(&mut self, packet: Packet) {
        self.packets.push_back(packet);
    }

    /// Takes the first packet.
    pub fn pop(&mut self) -> Option<Packet> {
        self.packets.pop_front()
    }

    /// Puts a packet back at the front.
    pub fn put_back(&mut self, packet: Packet) {
        self.packets.push_front(packet);
    }

    /// The first packet.
    #[must_use]
    pub fn front(&self) -> Option<&Packet> {
        self.packets.front()
    }

    /// The packets in order.
    pub fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter()
    }

    /// The packets in order, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets.iter_mut()
    }

    /// Keeps only the packets that `keep` says yes to.
    pub fn retain(&mut self, keep: impl FnMut(&Packet) -> bool) {
        self.packets.retain(keep);
    }

    /// Drops the first `count` packets.
    pub fn advance(&mut self, count: usize) {
        self.packets.drain(..count);
    }

    /// Bytes of payload in all packets.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.data.len()).sum()
    }
}

/// Datagrams between two hops. Each packet carries its peer: the destination when sent, the source when received.
pub trait PacketConn: Send + Unpin {
    /// Space this layer wants around each payload given to it.
    fn room(&self) -> Room {
        Room::NONE
    }

    /// Puts what has arrived at the end of `batch`, with `room` around each payload: at least one packet and at most
    /// [`PacketBatch::MAX`]. Memory is taken only once something is ready.
    ///
    /// # Errors
    /// The conn has ended or is broken; [`io::ErrorKind::UnexpectedEof`] is the orderly end.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>>;

    /// Sends from the front of `batch` until it is empty. Packets that cannot be sent for reasons of their own (too
    /// large, no route) are dropped, as a network would. On `Pending` what is left must be offered again.
    ///
    /// # Errors
    /// The conn has ended or is broken.
    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>>;

    /// Tells a client that is answered by something else than bytes how its dial ended: a packet stack sends an error.
    fn answer(&mut self, _outcome: &DialOutcome<'_>) {}
}

impl<C: PacketConn + ?Sized> PacketConn for Box<C> {
    fn room(&self) -> Room {
        (**self).room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        (**self).poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        (**self).poll_send(cx, batch)
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        (**self).answer(outcome);
    }
}

/// A packet conn in front of which packets are put back that were looked at.
pub struct Replayed {
    held: PacketBatch,
    conn: BoxPackets,
}

impl Replayed {
    /// `conn` with `held` to be received first.
    #[must_use]
    pub fn wrap(held: PacketBatch, conn: BoxPackets) -> BoxPackets {
        if held.is_empty() { conn } else { Box::new(Self { held, conn }) }
    }
}

impl PacketConn for Replayed {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            return self.conn.poll_recv(cx, room, batch);
        }
        while batch.len() < PacketBatch::MAX
            && let Some(packet) = self.held.pop()
        {
            batch.push(packet.with_room(room));
        }
        if self.held.is_empty() {
            self.held = PacketBatch::new(); // gives its memory back
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        self.conn.poll_send(cx, batch)
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        self.conn.answer(outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_train_is_its_datagrams() {
        let peer = Target::new(std::net::IpAddr::from(Ipv4Addr::LOCALHOST), 53);
        let mut packet = Packet::new(Buf::copied(b"aabbc"), peer);
        assert_eq!((packet.datagrams(), packet.payloads().collect::<Vec<_>>()), (1, vec![&b"aabbc"[..]]));
        packet.segment = 2;
        assert_eq!(packet.datagrams(), 3);
        assert_eq!(packet.payloads().collect::<Vec<_>>(), [&b"aa"[..], b"bb", b"c"]);
        packet.data.truncate(0);
        assert_eq!((packet.datagrams(), packet.payloads().count()), (1, 1));
    }
}
