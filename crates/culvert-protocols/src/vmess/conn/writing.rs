//! The half of a connection that seals.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::AsyncWrite;

use crate::vmess::chunk::{Form, Sealer};

/// Bytes sealed before they are written: one vectored write of sixteen full chunks, as much as one long read brings.
const BATCH: usize = 240 << 10;
/// Pieces below this many bytes are put together with their neighbours, where that costs no more than copying them.
const SMALL: usize = 1 << 10;
/// Bytes behind a header for a layer below to put the first chunk there.
const BEHIND_HEAD: usize = 1 << 10;

/// The header that goes in front of everything.
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    /// It leaves with the first payload, or with the end; not before. (A server's, as the field has it. A client's leaves
    /// with a flush, so that the server can connect.)
    pub(crate) waits: bool,
}

/// Takes payload and sends it.
pub(crate) struct Writing {
    form: Form<Sealer>,
    head: Option<Head>,
    /// Sealed and not written yet.
    sealed: BufChain,
    closed: bool,
    /// The task that writes waits for the lower stream. Its place there must not be taken by a task that reads.
    blocked: bool,
}

impl Writing {
    pub(crate) fn new(form: Form<Sealer>, head: Head) -> Self {
        Self { form, head: Some(head), sealed: BufChain::new(), closed: false, blocked: false }
    }

    /// What this layer and the one below want around payload.
    pub(crate) fn room(&self, lower: Room) -> Room {
        match &self.form {
            Form::Chunks(sealer) => lower.around(sealer.room()),
            Form::Raw | Form::Stream(_) => lower,
        }
    }

    /// Whether there is nothing between the holder and the lower stream.
    pub(crate) fn is_transparent(&self) -> bool {
        matches!(self.form, Form::Raw) && self.head.is_none() && self.sealed.is_empty() && !self.closed
    }

    /// Takes at most one batch more than the lower stream does. Where that was the last of `data` this is pending too, until
    /// it is written: a source that is faster than the peer is not read meanwhile.
    pub(crate) fn poll_write_chain(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut BoxStream,
        data: &mut BufChain,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_drain(cx, lower))?;
            if data.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.closed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if self.is_transparent() {
                return lower.poll_write_chain(cx, data);
            }
            self.seal(data, lower.room());
        }
    }

    /// Seals a batch off the front of `data`, behind the header if that is still to be sent.
    fn seal(&mut self, data: &mut BufChain, around: Room) {
        self.release_head(around);
        let room = self.room(around);
        match &mut self.form {
            Form::Raw => self.sealed.append(data),
            Form::Stream(cfb) => {
                while let Some(mut piece) = data.pop_front() {
                    cfb.encrypt(&mut piece);
                    self.sealed.push_back(piece);
                }
            }
            Form::Chunks(sealer) => {
                while self.sealed.len() < BATCH
                    && let Some(piece) = next_piece(data, room)
                {
                    seal_piece(sealer, piece, room, around, &mut self.sealed);
                }
            }
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut BoxStream,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx, lower))?;
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.is_transparent() {
            return Pin::new(lower).poll_write(cx, from);
        }
        let taken = &from[..from.len().min(BATCH)];
        match &mut self.form {
            Form::Raw | Form::Stream(_) => self.seal(&mut BufChain::copied(taken), lower.room()),
            Form::Chunks(_) => {
                let around = lower.room();
                self.release_head(around);
                let max = self.room(around).max;
                let Form::Chunks(sealer) = &mut self.form else { return Poll::Ready(Ok(0)) };
                self.sealed.extend(taken.chunks(max).map(|part| sealer.seal_copy(part, around)));
            }
        }
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = self.poll_drain(cx, lower);
        Poll::Ready(Ok(taken.len()))
    }

    /// Makes a chunk of each datagram; too long ones are dropped. Nothing is written.
    pub(crate) fn seal_datagram(&mut self, mut datagram: Buf, around: Room) {
        self.release_head(around);
        let room = self.room(around);
        let Form::Chunks(sealer) = &mut self.form else { return };
        if datagram.is_empty() || datagram.len() > sealer.most() {
            return;
        }
        if datagram.head() >= room.head && datagram.spare() >= room.tail {
            sealer.seal(&mut datagram);
            self.sealed.push_back(datagram);
        } else {
            self.sealed.push_back(sealer.seal_copy(&datagram, around));
        }
    }

    /// The same for a payload in the caller's memory.
    pub(crate) fn seal_datagram_copy(&mut self, datagram: &[u8], around: Room) {
        self.release_head(around);
        let Form::Chunks(sealer) = &mut self.form else { return };
        if !datagram.is_empty() && datagram.len() <= sealer.most() {
            self.sealed.push_back(sealer.seal_copy(datagram, around));
        }
    }

    /// Whether there is something to be written.
    pub(crate) fn holds_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Writes all that is sealed.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        let drained = lower.poll_write_chain(cx, &mut self.sealed);
        self.blocked = drained.is_pending();
        drained
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        if self.head.as_ref().is_some_and(|head| !head.waits) {
            self.release_head(lower.room());
        }
        ready!(self.poll_drain(cx, lower))?;
        Pin::new(lower).poll_flush(cx)
    }

    /// Sees everything off, and ends the direction.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        self.closed = true;
        self.release_head(lower.room());
        ready!(self.poll_drain(cx, lower))?;
        Pin::new(lower).poll_shutdown(cx)
    }

    /// Called while reading: who waits for an answer must have asked. What the lower stream does not take goes in front of
    /// the next payload; an error comes back there, too.
    pub(crate) fn drain_awaited(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) {
        if !self.blocked && self.head.as_ref().is_some_and(|head| !head.waits) {
            self.release_head(lower.room());
            if lower.poll_write_chain(cx, &mut self.sealed).is_ready() {
                let _ = Pin::new(lower).poll_flush(cx);
            }
        }
    }

    /// Puts the header in front, if that has not been done.
    fn release_head(&mut self, around: Room) {
        let Some(head) = self.head.take() else { return };
        let mut piece = Buf::new(head.bytes.len(), around.head, around.tail + BEHIND_HEAD);
        piece.append(&head.bytes);
        self.sealed.push_back(piece);
    }
}

/// Makes `piece` one chunk or, if it is long, several. `room` is what both layers want, `around` the lower one.
fn seal_piece(sealer: &mut Sealer, mut piece: Buf, room: Room, around: Room, sealed: &mut BufChain) {
    if piece.len() <= room.max && piece.head() >= room.head && piece.spare() >= room.tail {
        sealer.seal(&mut piece);
        sealed.push_back(piece);
    } else {
        sealed.extend(piece.chunks(room.max).map(|part| sealer.seal_copy(part, around)));
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
