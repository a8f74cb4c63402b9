//! The half of a conn that seals.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, NoBypass, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::AsyncWrite;

use crate::record::{ContentType, RecordError, Sealer};

/// Bytes sealed before they are written: one vectored write of sixteen full records, as much as one long read brings.
/// A quarter of that costs a third more CPU time, in system calls and wake-ups (see `examples/throughput.rs`).
const BATCH: usize = 256 << 10;
/// Pieces below this many bytes are put together with their neighbours, where that costs no more than copying them.
const SMALL: usize = 1 << 10;

/// `KeyUpdate` that asks for nothing (RFC 8446 section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const WARNING: u8 = 1;
const FATAL: u8 = 2;
const CLOSE_NOTIFY: u8 = 0;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Open,
    /// The peer was told that there is no more, or that the stream is broken.
    Closed,
    /// Bytes go to the lower stream as they are.
    Bypassed,
}

pub(super) struct Writing {
    state: State,
    sealer: Sealer,
    /// Sealed and not written yet.
    sealed: BufChain,
    /// The peer waits for `sealed`, so reading writes it too.
    awaited: bool,
    /// The task that writes waits for the lower stream. Its place there must not be taken by a task that reads.
    blocked: bool,
    /// The peer wants new keys from us.
    owes_update: bool,
    /// Set by [`Writing::fail`]: goes out behind what is sealed.
    alert: Option<u8>,
}

impl Writing {
    pub(super) fn new(sealer: Sealer, last_flight: BufChain, awaited: bool) -> Self {
        let awaited = awaited && !last_flight.is_empty();
        Self {
            state: State::Open,
            sealer,
            sealed: last_flight,
            awaited,
            blocked: false,
            owes_update: false,
            alert: None,
        }
    }

    /// What this layer and the one below want around data.
    pub(super) fn room(&self, lower: Room) -> Room {
        if self.state == State::Bypassed { lower } else { lower.around(self.sealer.room()) }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }

    #[cfg(test)]
    pub(super) fn is_worn(&self) -> bool {
        self.sealer.is_worn()
    }

    pub(super) fn is_transparent(&self) -> bool {
        self.state == State::Bypassed && self.sealed.is_empty()
    }

    pub(super) fn owe_update(&mut self) {
        self.owes_update = true;
    }

    /// The stream is broken; nothing but the alert leaves any more.
    pub(super) fn fail(&mut self, alert: u8) {
        if self.state == State::Open {
            self.state = State::Closed;
            self.alert = Some(alert);
        }
    }

    /// What is sealed already still leaves first.
    pub(super) fn bypass(&mut self) -> Result<(), NoBypass> {
        match self.state {
            State::Open => {
                self.state = State::Bypassed;
                Ok(())
            }
            State::Bypassed => Ok(()),
            State::Closed => Err(NoBypass),
        }
    }

    /// Takes at most one batch more than the lower stream does. Where that was the last of `data` this is pending too, until
    /// it is written: a source that is faster than the peer is not read meanwhile.
    pub(super) fn poll_write_chain(
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
            match self.state {
                State::Open => {}
                State::Closed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                State::Bypassed => return lower.poll_write_chain(cx, data),
            }
            let room = self.room(lower.room());
            while !data.is_empty() && self.sealed.len() < BATCH {
                let piece = next_piece(data, room);
                self.seal_piece(piece, room)?;
            }
        }
    }

    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut BoxStream,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx, lower))?;
        match self.state {
            State::Open => {}
            State::Closed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            State::Bypassed => return Pin::new(lower).poll_write(cx, from),
        }
        let taken = &from[..from.len().min(BATCH)];
        let room = self.room(lower.room());
        for part in taken.chunks(room.max) {
            self.seal_copy(part, room)?;
        }
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = self.poll_drain(cx, lower);
        Poll::Ready(Ok(taken.len()))
    }

    /// Writes all that is sealed, and what is owed to the peer behind it.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        let drained = self.drain(cx, lower);
        self.blocked = drained.is_pending();
        drained
    }

    /// Called while reading: lets out what the peer waits for, if the lower stream takes it. If not, it goes in front
    /// of the next data; an error comes back there too, and what the peer has sent is still worth reading.
    pub(super) fn drain_awaited(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) {
        if !self.blocked && (self.awaited || self.has_news()) {
            self.awaited = true;
            let _ = self.drain(cx, lower);
        }
    }

    fn drain(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        loop {
            ready!(lower.poll_write_chain(cx, &mut self.sealed))?;
            if self.has_news() {
                self.seal_news(lower.room())?;
            } else if self.awaited {
                ready!(Pin::new(&mut *lower).poll_flush(cx))?;
                self.awaited = false;
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Whether there is something to say that no data brings along.
    fn has_news(&self) -> bool {
        self.owes_update || self.alert.is_some()
    }

    /// Says goodbye once and sees everything off.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>, lower: &mut BoxStream) -> Poll<io::Result<()>> {
        if self.state == State::Open {
            self.state = State::Closed;
            self.alert = Some(CLOSE_NOTIFY);
        }
        self.poll_drain(cx, lower)
    }

    fn seal_news(&mut self, around: Room) -> io::Result<()> {
        if std::mem::take(&mut self.owes_update) && self.state == State::Open && self.sealer.is_tls13() {
            self.update_keys(around)?;
        }
        if let Some(alert) = self.alert.take() {
            let level = if alert == CLOSE_NOTIFY { WARNING } else { FATAL };
            let record = self.sealer.seal_copy(ContentType::Alert, &[level, alert], around);
            self.sealed.push_back(record.map_err(io::Error::other)?);
        }
        Ok(())
    }

    /// Makes `piece` one record or, if it is long, several.
    fn seal_piece(&mut self, mut piece: Buf, room: Room) -> io::Result<()> {
        if piece.len() <= room.max && piece.head() >= room.head && piece.spare() >= room.tail {
            self.refresh_keys(room)?;
            self.sealer.seal(ContentType::Data, &mut piece).map_err(io::Error::other)?;
            self.sealed.push_back(piece);
            return Ok(());
        }
        piece.chunks(room.max).try_for_each(|part| self.seal_copy(part, room))
    }

    /// `room` is what both layers want, as [`Writing::room`] gives it.
    fn seal_copy(&mut self, data: &[u8], room: Room) -> io::Result<()> {
        self.refresh_keys(room)?;
        let own = self.sealer.room();
        let around = Room { head: room.head - own.head, tail: room.tail - own.tail, max: usize::MAX };
        let record = self.sealer.seal_copy(ContentType::Data, data, around);
        self.sealed.push_back(record.map_err(io::Error::other)?);
        Ok(())
    }

    fn refresh_keys(&mut self, around: Room) -> Result<(), io::Error> {
        if self.sealer.is_worn() { self.update_keys(around) } else { Ok(()) }
    }

    fn update_keys(&mut self, around: Room) -> io::Result<()> {
        let told: Result<Buf, RecordError> =
            self.sealer.seal_copy(ContentType::Handshake, &KEY_UPDATE, around);
        self.sealed.push_back(told.map_err(io::Error::other)?);
        self.sealer.update_keys();
        Ok(())
    }
}

/// Takes the next piece to seal. Small ones, such as the header of a protocol before its payload, are joined with what
/// follows where there is room: a record of its own would cost more.
fn next_piece(data: &mut BufChain, room: Room) -> Buf {
    let mut piece = data.pop_front().expect("the caller saw that there is data");
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
    piece
}
