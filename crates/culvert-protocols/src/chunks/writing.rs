//! The half of a conn that seals.

use std::io;
use std::task::{Context, Poll, ready};

use culvert_core::StreamConn;
use culvert_wire::{Buf, BufChain, Room};

use super::Seal;

/// Bytes sealed before they are written: one vectored write of as many chunks as one long read brings.
const BATCH: usize = 256 << 10;
/// Pieces below this many bytes are put together with their neighbours, where that costs no more than copying them.
const SMALL: usize = 1 << 10;

/// The half of a conn that seals.
pub(crate) struct Writing<S> {
    sealer: S,
    /// Sealed and not written yet.
    sealed: BufChain,
    /// The lower stream has not passed on all that it took, so it is asked again even where nothing is left here.
    blocked: bool,
}

impl<S: Seal> Writing<S> {
    /// Begins with `lead`, which is not sealed any more and leaves in front of the first chunk.
    pub(crate) fn new(sealer: S, lead: BufChain) -> Self {
        Self { sealer, sealed: lead, blocked: false }
    }

    /// What this layer and the one below want around data.
    pub(crate) fn room(&self, lower: Room) -> Room {
        lower.around(self.sealer.room())
    }

    /// See [`StreamConn::poll_write_chain`]. Takes at most one batch more than the lower stream does. Where that was the last
    /// of `data` this is pending too, until it is written: a source that is faster than the peer is not read meanwhile.
    pub(crate) fn poll_write_chain<C: StreamConn + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut C,
        data: &mut BufChain,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.blocked {
                ready!(self.poll_drain(cx, lower))?;
            }
            self.seal(lower.room(), data);
            ready!(self.poll_drain(cx, lower))?;
            if data.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// See [`tokio::io::AsyncWrite::poll_write`].
    pub(crate) fn poll_write<C: StreamConn + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut C,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.sealed.len() >= BATCH {
            ready!(self.poll_drain(cx, lower))?;
        }
        let taken = &from[..from.len().min(BATCH)];
        let room = self.room(lower.room());
        taken.chunks(room.max).for_each(|part| self.seal_copy(part, room));
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = self.poll_drain(cx, lower);
        Poll::Ready(Ok(taken.len()))
    }

    /// Writes all that is sealed.
    pub(crate) fn poll_drain<C: StreamConn + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut C,
    ) -> Poll<io::Result<()>> {
        if self.sealed.is_empty() && !self.blocked {
            return Poll::Ready(Ok(()));
        }
        self.blocked = true;
        ready!(lower.poll_write_chain(cx, &mut self.sealed))?;
        self.blocked = false;
        Poll::Ready(Ok(()))
    }

    /// Seals from the front of `data` until a batch waits to be written.
    fn seal(&mut self, lower: Room, data: &mut BufChain) {
        let room = self.room(lower);
        while self.sealed.len() < BATCH
            && let Some(piece) = next_piece(data, room)
        {
            self.seal_piece(piece, room);
        }
    }

    /// Makes `piece` one chunk or, if it is long, several.
    fn seal_piece(&mut self, mut piece: Buf, room: Room) {
        if piece.len() <= room.max && piece.head() >= room.head && piece.spare() >= room.tail {
            self.sealer.seal(&mut piece);
            self.sealed.push_back(piece);
        } else {
            piece.chunks(room.max).for_each(|part| self.seal_copy(part, room));
        }
    }

    /// Makes a chunk of a copy of `data`. `room` is what both layers want.
    fn seal_copy(&mut self, data: &[u8], room: Room) {
        let mut piece = Buf::new(data.len(), room.head, room.tail);
        piece.append(data);
        self.sealer.seal(&mut piece);
        self.sealed.push_back(piece);
    }

    /// Whether nothing is held.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }
}

/// Takes the next piece to seal. Small ones, such as the header of a protocol before its payload, are joined with what
/// follows where there is room: a chunk of its own would cost more.
fn next_piece(data: &mut BufChain, room: Room) -> Option<Buf> {
    let mut piece = data.pop_front()?;
    while piece.len() < SMALL
        && let Some(mut next) = data.pop_front()
    {
        let fits = piece.len() + next.len() <= room.max;
        if fits && next.head() >= room.head + piece.len() {
            next.prepend(&piece);
            piece = next;
        } else if fits && next.len() < SMALL && piece.spare() >= room.tail + next.len() {
            piece.append(&next);
        } else {
            data.push_front(next);
            break;
        }
    }
    Some(piece)
}
