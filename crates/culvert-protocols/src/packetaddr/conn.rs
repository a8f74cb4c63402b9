//! The heads put on and taken off, for either end.

use std::io;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxPackets, Packet, PacketBatch, PacketConn, Replayed};
use culvert_wire::{Buf, Reader, Room, Target};

use super::codec::{HEAD, decode, encode};

/// Datagrams with addresses, on an association whose own peer means nothing.
pub struct PacketAddrConn {
    conn: BoxPackets,
    /// Packets at the front of the batch being sent that have their heads.
    framed: usize,
}

/// Bytes in the longest datagram that the protocols below can say the length of.
const LONGEST: usize = 0xffff;

impl PacketAddrConn {
    /// Works on an association that was asked for with [`magic_target`](super::magic_target).
    #[must_use]
    pub fn new(conn: BoxPackets) -> Self {
        Self { conn, framed: 0 }
    }
}

/// Waits for the first packet, which stays to be received, and says where it goes: an inbound's association has no target
/// before.
///
/// # Errors
/// Those of the conn.
pub async fn first(mut conn: BoxPackets) -> io::Result<(Target, BoxPackets)> {
    // Nobody knows yet where it leaves; this much space does for most.
    const ROOM: Room = Room { head: 128, tail: 64, max: usize::MAX };
    let mut batch = PacketBatch::new();
    std::future::poll_fn(|cx| conn.poll_recv(cx, ROOM, &mut batch)).await?;
    let target = batch.front().map(|packet| packet.peer.clone());
    let target = target.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((target, Replayed::wrap(batch, conn)))
}

impl PacketConn for PacketAddrConn {
    fn room(&self) -> Room {
        self.conn.room().around(Room { head: HEAD, ..Room::NONE })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let old = batch.len();
        // The heads come off, so what is asked for below is there above all the more.
        ready!(self.conn.poll_recv(cx, room, batch))?;
        for packet in batch.iter_mut().skip(old) {
            let mut r = Reader::new(&packet.data);
            let peer = decode(&mut r);
            let peer = peer.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let head = r.position();
            packet.data.advance(head);
            packet.peer = peer.into();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        encapsulate(batch, self.framed);
        let sent = self.conn.poll_send(cx, batch);
        self.framed = batch.len();
        sent
    }
}

/// Puts a head before each packet of `batch` behind the first `done` ones, which have theirs already. In place where the
/// packet has the room that was asked for; trains are copied, as each datagram of one needs its head. Packets to names
/// are dropped.
fn encapsulate(batch: &mut PacketBatch, done: usize) {
    let mut head = Vec::with_capacity(HEAD);
    // One full turn of the queue: each packet is taken from the front, and what it became is put at the end.
    for index in 0..batch.len() {
        let Some(mut packet) = batch.pop() else { return };
        if index < done {
            batch.push(packet);
            continue;
        }
        let Some(peer) = packet.peer.socket_addr() else { continue };
        head.clear();
        encode(peer, &mut head);
        let longest = if packet.segment == 0 { packet.data.len() } else { packet.segment.into() };
        if longest + head.len() > LONGEST {
            continue;
        }
        if packet.segment == 0 {
            prepend(&mut packet.data, &head);
        } else {
            packet = encapsulate_train(&packet, &head);
        }
        batch.push(packet);
    }
}

fn prepend(data: &mut Buf, head: &[u8]) {
    if data.head() < head.len() {
        let mut copy = Buf::new(data.len(), head.len(), 0);
        copy.append(data);
        *data = copy;
    }
    data.prepend(head);
}

fn encapsulate_train(packet: &Packet, head: &[u8]) -> Packet {
    let mut data = Buf::new(packet.data.len() + packet.datagrams() * head.len(), 0, 0);
    for payload in packet.payloads() {
        data.append(head);
        data.append(payload);
    }
    let segment = packet.segment + head.len() as u16; // both together are no longer than `LONGEST`
    Packet { data, segment, peer: packet.peer.clone() }
}
