//! One stream of a session.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use culvert_core::{StreamConn, timeouts};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::super::codec::Command;
use super::super::pool::Lease;
use super::{End, Packet, Shared, State, VERSION, copied, framed};

/// First byte of an answer (see [`Stream::answering`]): connected.
pub(in super::super) const OPENED: u8 = 0;
/// The same: not connected; the reason follows.
pub(in super::super) const FAILED: u8 = 1;

/// Most of a plain write that is taken at once.
const WRITE: usize = 64 << 10;

/// One stream of a session.
pub(in super::super) struct Stream {
    shared: Arc<Shared>,
    id: u32,
    /// What is written first is the answer to the client.
    answers: bool,
    aborts: bool,
    /// The end of what is written is told at once, though it is the end of all.
    ends_at_once: bool,
    /// Runs while a peer that knows only the end of all may still answer.
    grace: Option<Pin<Box<Sleep>>>,
    /// Of a client: the session goes back where it came from.
    _lease: Option<Lease>,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, id: u32) -> Self {
        Self { shared, id, answers: false, aborts: false, ends_at_once: false, grace: None, _lease: None }
    }

    /// The same for a server: the first write says how the dial went, as [`OPENED`] or [`FAILED`], and becomes a frame of
    /// its own kind.
    pub(super) fn answering(shared: Arc<Shared>, id: u32) -> Self {
        let mut this = Self::new(shared, id);
        (this.answers, this.ends_at_once) = (true, true);
        this
    }

    /// The same for a client.
    pub(in super::super) fn leased(self, lease: Lease) -> Self {
        let mut this = self;
        this._lease = Some(lease);
        this
    }

    /// Tells the client how its dial went.
    fn answer(&mut self, answer: &[u8]) {
        self.answers = false;
        let mut state = self.shared.lock();
        if state.ended.is_some() || state.peer.version < VERSION {
            return;
        }
        let (&verdict, text) = answer.split_first().unwrap_or((&OPENED, &[]));
        let text = if verdict == OPENED { &[] } else { text };
        let mut bytes = Vec::new();
        super::frame(Command::Opened, self.id, text, &mut bytes);
        let frames = BufChain::from(copied(&bytes, self.shared.room));
        state.out.push_back(Packet { frames, of: None });
        state.wake_driver();
    }

    /// Ready when a batch can be handed over.
    fn poll_writable(&self, state: &mut State, waker: &Waker) -> Poll<io::Result<()>> {
        let half_close = state.peer.half_close;
        let Some(slot) = state.streams.get_mut(&self.id) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if let Some(ended) = &state.ended {
            return Poll::Ready(Err(ended.error()));
        }
        match &slot.end {
            _ if slot.shut => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(End::Refused(text)) => return Poll::Ready(Err(refused(text))),
            Some(End::Finished) if !half_close => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(End::Broken) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(End::Finished) | None => {}
        }
        if slot.queued {
            slot.writer = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn hand_over(&self, state: &mut State, frames: BufChain) {
        if let Some(slot) = state.streams.get_mut(&self.id) {
            slot.queued = true;
        }
        state.out.push_back(Packet { frames, of: Some(self.id) });
        state.wake_driver();
    }
}

impl StreamConn for Stream {
    fn room(&self) -> Room {
        self.shared.room
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let Some(slot) = state.streams.get_mut(&self.id) else { return Poll::Ready(Ok(BufChain::new())) };
        if !slot.inbox.is_empty() {
            let data = std::mem::take(&mut slot.inbox);
            state.buffered -= data.len();
            state.resume();
            self.grace = None;
            return Poll::Ready(Ok(fitting(data, room)));
        }
        match (&slot.end, &state.ended) {
            (Some(End::Finished), _) => return Poll::Ready(Ok(BufChain::new())),
            (Some(End::Broken), _) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            (Some(End::Refused(text)), _) => return Poll::Ready(Err(refused(text))),
            (None, Some(ended)) => return Poll::Ready(Err(ended.error())),
            (None, None) => {}
        }
        if slot.shut && !state.peer.half_close {
            if !slot.finished {
                let grace =
                    self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeouts::LAST_ANSWER)));
                if grace.as_mut().poll(cx).is_pending() {
                    state.wait(self.id, cx.waker());
                    return Poll::Pending;
                }
                state.finish(self.id);
            }
            return Poll::Ready(Ok(BufChain::new()));
        }
        state.wait(self.id, cx.waker());
        Poll::Pending
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if self.answers && !data.is_empty() {
            self.answer(&std::mem::take(data).to_vec());
            return Poll::Ready(Ok(()));
        }
        let mut state = self.shared.lock();
        match self.poll_writable(&mut state, cx.waker()) {
            Poll::Ready(Ok(())) if !data.is_empty() => {}
            other => return other,
        }
        let frames = framed(data, self.id, self.shared.room);
        self.hand_over(&mut state, frames);
        // Pending until it is written, so that a source that is faster than the peer is not read meanwhile.
        self.poll_writable(&mut state, cx.waker())
    }

    fn abort(&mut self) {
        self.aborts = true;
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let this = &mut *self;
            let mut state = this.shared.lock();
            let state = &mut *state;
            if let Some(slot) = state.streams.get_mut(&this.id)
                && !slot.inbox.is_empty()
            {
                while to.remaining() > 0 && !slot.inbox.is_empty() {
                    let count = slot.inbox.front().len().min(to.remaining());
                    to.put_slice(&slot.inbox.front()[..count]);
                    slot.inbox.advance(count);
                    state.buffered -= count;
                }
                state.resume();
                this.grace = None;
                return Poll::Ready(Ok(()));
            }
        }
        match self.poll_read_chain(cx, Room::NONE) {
            // An end or an error: the inbox was empty.
            Poll::Ready(outcome) => Poll::Ready(outcome.map(drop)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if self.answers && !from.is_empty() {
            self.answer(from);
            return Poll::Ready(Ok(from.len()));
        }
        let mut state = self.shared.lock();
        match self.poll_writable(&mut state, cx.waker()) {
            Poll::Ready(Ok(())) if !from.is_empty() => {}
            other => return other.map_ok(|()| 0),
        }
        let taken = &from[..from.len().min(WRITE)];
        let room = self.shared.room;
        let mut pieces: BufChain = BufChain::new();
        pieces.extend(taken.chunks(room.max.min(16 << 10)).map(|part| copied(part, room)));
        let frames = framed(&mut pieces, self.id, room);
        self.hand_over(&mut state, frames);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let Some(slot) = state.streams.get_mut(&self.id) else { return Poll::Ready(Ok(())) };
        if slot.queued {
            slot.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if let Some(slot) = state.streams.get_mut(&self.id) {
            slot.shut = true;
        }
        if self.ends_at_once || state.peer.half_close {
            state.finish(self.id);
        }
        // What is read may have its end by this.
        state.wake_reader(self.id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.lock().remove(self.id, self.aborts);
    }
}

fn refused(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, format!("remote: {text}"))
}

/// Copies the pieces that do not have `room` around them into ones that do. Those that a session reads have some.
fn fitting(mut pieces: BufChain, room: Room) -> BufChain {
    let fits =
        |piece: &Buf| piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max;
    if room.is_none() || pieces.iter().all(fits) {
        return pieces;
    }
    let mut fitting = BufChain::new();
    while let Some(piece) = pieces.pop_front() {
        if fits(&piece) {
            fitting.push_back(piece);
        } else {
            fitting.extend(piece.chunks(room.max).map(|part| copied(part, room)));
        }
    }
    fitting
}
