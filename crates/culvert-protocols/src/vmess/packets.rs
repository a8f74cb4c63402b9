//! [`VmessPackets`]: the datagrams of a connection inside VMess, one in each chunk. Chunks do not say whom they are from or to:
//! that is the target of the connection, or stands in the datagram (see `packetaddr`).

use std::io;
use std::task::{Context, Poll, ready};

use culvert_core::{Packet, PacketBatch, PacketConn};
use culvert_wire::{Buf, Room, Target};

use super::conn::Ends;

/// Datagrams inside VMess.
pub(super) struct VmessPackets {
    ends: Ends,
    /// Whom what comes is from.
    peer: Target,
    /// What is for somebody else is dropped: the server would send it to the peer.
    only_to_peer: bool,
    /// Packets at the front of the batch being sent that are sealed. They stay in the batch, empty, until they are written,
    /// so that the caller offers the batch again.
    taken: usize,
    /// Written and not yet flushed.
    unflushed: bool,
}

impl VmessPackets {
    pub(super) fn new(ends: Ends, peer: Target) -> Self {
        Self { ends, peer, only_to_peer: false, taken: 0, unflushed: false }
    }

    /// The same, but that what is for somebody else than the peer is dropped.
    pub(super) fn only_to_peer(self) -> Self {
        Self { only_to_peer: true, ..self }
    }

    /// Opens what is whole, up to a full batch.
    fn open(&mut self, room: Room, batch: &mut PacketBatch) -> io::Result<()> {
        while batch.len() < PacketBatch::MAX
            && let Some(data) = self.ends.reading.open_datagram(room)?
        {
            batch.push(Packet::new(data, self.peer.clone()));
        }
        Ok(())
    }

    fn seal(&mut self, packet: &mut Packet) {
        let data = std::mem::replace(&mut packet.data, Buf::from(Vec::new()));
        let segment = std::mem::take(&mut packet.segment);
        if self.only_to_peer && packet.peer != self.peer {
            return;
        }
        let (around, writing) = (self.ends.lower.room(), &mut self.ends.writing);
        if segment == 0 {
            writing.seal_datagram(data, around);
        } else {
            data.chunks(segment.into()).for_each(|data| writing.seal_datagram_copy(data, around));
        }
    }
}

impl PacketConn for VmessPackets {
    fn room(&self) -> Room {
        Room { max: usize::MAX, ..self.ends.writing.room(self.ends.lower.room()) }
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let old = batch.len();
        loop {
            let opened = self.open(room, batch);
            if batch.len() > old {
                return Poll::Ready(Ok(())); // a fault is found again with the next call
            }
            opened?;
            let raw = ready!(self.ends.lower.poll_read_chain(cx, Room::NONE))?;
            if raw.is_empty() {
                let end = self.ends.reading.end_of_lower();
                return Poll::Ready(
                    end.map_err(io::Error::from).and(Err(io::ErrorKind::UnexpectedEof.into())),
                );
            }
            self.ends.reading.take_in(raw);
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let taken = self.taken;
        batch.iter_mut().skip(taken).for_each(|packet| self.seal(packet));
        self.taken = batch.len();
        let Ends { lower, writing, .. } = &mut self.ends;
        if writing.holds_sealed() {
            self.unflushed = true;
            ready!(writing.poll_drain(cx, lower))?;
        }
        if self.unflushed {
            ready!(writing.poll_flush(cx, lower))?;
            self.unflushed = false;
        }
        batch.advance(self.taken);
        self.taken = 0;
        Poll::Ready(Ok(()))
    }
}
