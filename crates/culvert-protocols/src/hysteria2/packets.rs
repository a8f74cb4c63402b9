//! Associations: packets in datagrams of the connection.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use culvert_core::udp::PacketQueue;
use culvert_core::{Packet, PacketBatch, PacketConn};
use culvert_quic::{Connection, DatagramError};
use culvert_wire::{Room, Target};
use tokio::sync::mpsc;

use super::codec::{Head, MAX_PAYLOAD};

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
