//! A stream of a smux or yamux session, between the task that uses it and the one that drives the session.
//!
//! What has come and is not read, and what is to go and is not sent, waits in pieces of pooled memory; a stream that
//! waits for its peer has none. A stream with something to send stands in the session's line, once.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use culvert_core::StreamConn;
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame::{Flags, Header, Kind, Wire};
use super::gather::{Gather, SMALL};
use super::life::Life;

/// Bytes of one stream that wait to be sent; with more, its writes wait. A write that begins below is taken whole.
const QUEUE: usize = 64 << 10;
/// Most bytes that one read takes, so that what a slow reader holds counts as unread for as long as possible.
const MOST_READ: usize = 256 << 10;
/// What yamux lets each side send at first.
const WINDOW: u32 = 256 << 10;
/// What a window grows to while its reader keeps up: enough for 160 Mbit/s over 100 ms.
const WINDOW_MAX: u32 = 2 << 20;
/// Windows do not grow while so much of the session is unread.
const UNREAD_TO_GROW: usize = 1 << 20;

/// What the streams of a session and its driver share.
pub(super) struct Link {
    pub(super) wire: Wire,
    client: bool,
    line: Mutex<Line>,
    /// Bytes of all streams that have come and are not read.
    unread: AtomicUsize,
    pub(super) life: Life,
}

struct Line {
    ready: VecDeque<Arc<Cell>>,
    driver: Option<Waker>,
    /// The next stream that is opened here.
    next: u32,
    /// Streams in use.
    live: usize,
    /// No stream can be opened any more.
    closed: bool,
    /// The session is to end as soon as it has no streams.
    closing: bool,
    /// What the carrier wants around what it is given.
    room: Room,
    /// What readers want around what they are given.
    wanted: Room,
}

impl Link {
    /// Most bytes that may be unread before the carrier is not read any more.
    ///
    /// smux has no windows: whoever does not read stops all the others once so much has come, as it does in sing-box. In
    /// yamux each stream has its window, and this stops only a peer that fills very many of them.
    pub(super) const fn most_unread(wire: Wire) -> usize {
        match wire {
            Wire::Smux => 4 << 20,
            Wire::Yamux => 32 << 20,
        }
    }

    pub(super) fn new(wire: Wire, client: bool) -> Arc<Self> {
        let line = Line {
            ready: VecDeque::new(),
            driver: None,
            next: wire.first_stream(),
            live: 0,
            closed: false,
            closing: false,
            room: Room::NONE,
            wanted: Room::NONE,
        };
        Arc::new(Self {
            wire,
            client,
            line: Mutex::new(line),
            unread: AtomicUsize::new(0),
            life: Life::new(),
        })
    }

    pub(super) fn is_client(&self) -> bool {
        self.client
    }

    /// Opens a stream. `None` if the session has come to its end.
    pub(super) fn open(self: &Arc<Self>) -> Option<Stream> {
        let mut line = self.line();
        if line.closed {
            return None;
        }
        let id = line.next;
        match id.checked_add(2) {
            Some(next) => line.next = next,
            None => line.closed = true,
        }
        line.live += 1;
        drop(line);
        // It gets into the line with its first bytes, and makes itself known together with them.
        let cell = Cell::new(self, id, Flags::SYN);
        self.life.expect();
        Some(Stream { cell, aborts: false })
    }

    /// A stream that the peer has opened.
    pub(super) fn accept(self: &Arc<Self>, id: u32) -> (Arc<Cell>, Stream) {
        let cell = Cell::new(self, id, Flags::ACK);
        let mut line = self.line();
        line.live += 1;
        line.ready.push_back(Arc::clone(&cell));
        (Arc::clone(&cell), Stream { cell, aborts: false })
    }

    /// Streams in use.
    pub(super) fn live(&self) -> usize {
        self.line().live
    }

    /// Whether a stream may be opened: not where the session has ended, or a sign of life has been due for `patience`.
    pub(super) fn can_open(&self, patience: Duration) -> bool {
        !self.life.is_late(patience) && !self.line().closed
    }

    pub(super) fn is_closed(&self) -> bool {
        self.line().closed
    }

    /// Lets no stream be opened any more.
    pub(super) fn close(&self) {
        self.line().closed = true;
    }

    /// Ends the session as soon as it has no streams.
    pub(super) fn close_when_idle(&self) {
        let mut line = self.line();
        line.closed = true;
        line.closing = true;
        wake(&mut line.driver);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.line().closing
    }

    /// Names the task to wake when there is something to do.
    pub(super) fn register(&self, waker: &Waker) {
        let mut line = self.line();
        if !line.driver.as_ref().is_some_and(|driver| driver.will_wake(waker)) {
            line.driver = Some(waker.clone());
        }
    }

    /// Notes what the carrier wants, and says what the readers want.
    pub(super) fn exchange_rooms(&self, room: Room) -> Room {
        let mut line = self.line();
        line.room = room;
        line.wanted
    }

    /// The next stream in the line.
    pub(super) fn pop_ready(&self) -> Option<Arc<Cell>> {
        let mut line = self.line();
        let cell = line.ready.pop_front();
        if line.ready.is_empty() && line.ready.capacity() > 64 {
            line.ready = VecDeque::new();
        }
        cell
    }

    pub(super) fn push_ready(&self, cell: Arc<Cell>) {
        self.line().ready.push_back(cell);
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.line().ready.is_empty()
    }

    pub(super) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    fn add_unread(&self, count: usize) {
        self.unread.fetch_add(count, Ordering::Relaxed);
    }

    /// Wakes the driver where it had stopped reading.
    fn take_unread(&self, count: usize) {
        let before = self.unread.fetch_sub(count, Ordering::AcqRel);
        let most = Self::most_unread(self.wire);
        if before >= most && before - count < most {
            wake(&mut self.line().driver);
        }
    }

    /// Puts a stream into the line and wakes the driver.
    fn line_up(&self, cell: Arc<Cell>) {
        let mut line = self.line();
        line.ready.push_back(cell);
        wake(&mut line.driver);
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// How the peer's direction has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Orderly,
    Broken,
}

/// One stream's state.
pub(super) struct Cell {
    pub(super) id: u32,
    link: Arc<Link>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Stands in the line.
    in_line: bool,
    /// To be said in the next frame: that it is opened, or accepted.
    greeting: Flags,

    received: BufChain,
    reader: Option<Waker>,
    end: Option<End>,
    /// What the peer may send before it hears of more, the size of the window, and what was read of it.
    may_receive: u32,
    window: u32,
    consumed: u32,
    /// What the reader wants around what it gets.
    wanted: Room,

    queue: BufChain,
    writer: Option<Waker>,
    may_send: u32,
    /// Nothing more will be written.
    shut: bool,
    /// The peer takes nothing more, so what is written is dropped (smux has only ends of both directions).
    deaf: bool,
    /// Writes fail.
    broken: bool,

    dropped: bool,
    /// The stream is to break off.
    reset: bool,
    /// An end has been sent.
    ended: bool,
}

/// What is to become of a stream after its turn.
pub(super) enum Turn {
    /// It waits.
    Waits,
    /// It has more to send.
    Again,
    /// It is over for both sides.
    Over,
    /// Nobody uses it here any more, but it is not over.
    Lingers,
}

impl Cell {
    fn new(link: &Arc<Link>, id: u32, greeting: Flags) -> Arc<Self> {
        let inner = Inner {
            in_line: greeting.ack,
            greeting,
            received: BufChain::new(),
            reader: None,
            end: None,
            may_receive: WINDOW,
            window: WINDOW,
            consumed: 0,
            wanted: Room::NONE,
            queue: BufChain::new(),
            writer: None,
            may_send: WINDOW,
            shut: false,
            deaf: false,
            broken: false,
            dropped: false,
            reset: false,
            ended: false,
        };
        Arc::new(Self { id, link: Arc::clone(link), inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the stream's turn: what is to be said, and at most one frame of data.
    pub(super) fn take_turn(&self, out: &mut Gather) -> Turn {
        let wire = self.link.wire;
        let mut inner = self.lock();
        inner.in_line = false;
        if inner.ended && inner.end.is_some() {
            return Turn::Over;
        }
        let mut say = |kind, flags| out.put(&wire.encode(Header { kind, flags, stream: self.id }));
        if inner.reset {
            // Whoever has not heard of the stream need not hear of its end.
            match wire {
                _ if inner.greeting == Flags::SYN => {}
                Wire::Smux if inner.ended => {}
                Wire::Smux => say(Kind::Window(0), Flags::FIN),
                Wire::Yamux => say(Kind::Window(0), Flags::RST),
            }
            inner.ended = true;
            inner.end = Some(End::Broken);
            return Turn::Over;
        }
        let greeting = std::mem::replace(&mut inner.greeting, Flags::NONE);
        match wire {
            Wire::Smux if greeting.syn => say(Kind::Window(0), greeting),
            Wire::Smux => {}
            Wire::Yamux => {
                let delta = inner.enlarge_window(self.link.unread());
                if delta > 0 || greeting != Flags::NONE {
                    say(Kind::Window(delta), greeting);
                }
            }
        }
        inner.send_data(wire, self.id, out);
        if inner.queue.len() < QUEUE {
            wake(&mut inner.writer);
        }
        // In smux an end is one of both directions. A client's must not cut off the answer; what is to be sent to a server
        // that has ended is of little use.
        let cuts_off = wire == Wire::Smux && self.link.client && inner.end.is_none() && !inner.dropped;
        if inner.shut && inner.queue.is_empty() && !cuts_off && !inner.ended {
            inner.ended = true;
            out.put(&wire.encode(Header { kind: Kind::Window(0), flags: Flags::FIN, stream: self.id }));
        }
        if wire == Wire::Smux && inner.ended && inner.dropped {
            inner.end.get_or_insert(End::Broken); // what still comes is nobody's
        }
        inner.turn()
    }

    /// Data has come; the bytes were announced before and fit.
    pub(super) fn deliver(&self, mut pieces: BufChain) {
        let mut inner = self.lock();
        if inner.dropped || inner.end.is_some() {
            return;
        }
        let waited = inner.reader.is_some() && inner.received.is_empty();
        self.link.add_unread(pieces.len());
        if waited {
            inner.received.append(&mut pieces);
        } else {
            // It may wait for long: memory that is mostly empty is not kept.
            while let Some(piece) = pieces.pop_front() {
                if piece.len() * 2 >= piece.head() + piece.len() + piece.spare() {
                    inner.received.push_back(piece);
                } else {
                    inner.received.append_copy(&piece);
                }
            }
        }
        wake(&mut inner.reader);
    }

    /// Whether a frame with so much data is within the window; takes it out of it.
    pub(super) fn expect_data(&self, len: u32) -> bool {
        if self.link.wire == Wire::Smux {
            return true;
        }
        let mut inner = self.lock();
        match inner.may_receive.checked_sub(len) {
            Some(left) => {
                inner.may_receive = left;
                true
            }
            None => false,
        }
    }

    /// Nobody reads here any more and there is data: the peer had better stop. Whether it is to be told.
    pub(super) fn is_unwanted(&self) -> bool {
        self.link.wire == Wire::Yamux && self.lock().dropped
    }

    /// The peer may be sent more.
    pub(super) fn widen(self: &Arc<Self>, delta: u32) {
        let mut inner = self.lock();
        inner.may_send = inner.may_send.saturating_add(delta);
        let lines_up = !inner.queue.is_empty() && !std::mem::replace(&mut inner.in_line, true);
        drop(inner);
        if lines_up {
            self.link.push_ready(Arc::clone(self));
        }
    }

    /// The peer has ended its direction, and in smux the other one too. False if it had before.
    pub(super) fn finish(self: &Arc<Self>) -> bool {
        let mut inner = self.lock();
        if inner.end.is_some() {
            return false;
        }
        inner.end = Some(End::Orderly);
        wake(&mut inner.reader);
        if self.link.wire == Wire::Smux {
            inner.deaf = true;
            inner.queue = BufChain::new();
            wake(&mut inner.writer);
        }
        // An end of ours may have waited for this one.
        let lines_up = !std::mem::replace(&mut inner.in_line, true);
        drop(inner);
        if lines_up {
            self.link.push_ready(Arc::clone(self));
        }
        true
    }

    /// The peer has broken the stream off, or the session is gone.
    pub(super) fn break_off(&self) {
        let mut inner = self.lock();
        inner.end.get_or_insert(End::Broken);
        inner.broken = !inner.deaf;
        inner.ended = true;
        inner.queue = BufChain::new();
        wake(&mut inner.reader);
        wake(&mut inner.writer);
    }

    /// Is to break off in its next turn.
    pub(super) fn reset(self: &Arc<Self>) {
        let mut inner = self.lock();
        inner.reset = true;
        inner.queue = BufChain::new();
        let lines_up = !std::mem::replace(&mut inner.in_line, true);
        drop(inner);
        if lines_up {
            self.link.push_ready(Arc::clone(self));
        }
    }

    /// Whether both sides know that it is over.
    pub(super) fn is_over(&self) -> bool {
        let inner = self.lock();
        inner.ended && inner.end.is_some()
    }
}

impl Inner {
    fn turn(&self) -> Turn {
        match (self.ended && self.end.is_some(), self.dropped) {
            (true, _) => Turn::Over,
            (false, _) if !self.queue.is_empty() && self.may_send > 0 => Turn::Again,
            (false, true) => Turn::Lingers,
            (false, false) => Turn::Waits,
        }
    }

    /// How much more the peer may send: what was read, told in halves of the window, and more while the reader keeps up.
    fn enlarge_window(&mut self, unread: usize) -> u32 {
        if self.consumed < self.window / 2 || self.end.is_some() || self.dropped {
            return 0;
        }
        let mut delta = std::mem::take(&mut self.consumed);
        if self.received.is_empty() && unread < UNREAD_TO_GROW && self.window < WINDOW_MAX {
            delta += self.window;
            self.window *= 2;
        }
        self.may_receive += delta;
        delta
    }

    fn send_data(&mut self, wire: Wire, id: u32, out: &mut Gather) {
        let mut most = Wire::MAX_DATA.min(out.room().max.saturating_sub(wire.head())).max(1);
        if wire == Wire::Yamux {
            most = most.min(self.may_send as usize);
        }
        if most == 0 {
            return;
        }
        let Some(mut piece) = self.queue.pop_front() else { return };
        if piece.len() > most {
            let room = out.room();
            let mut part = Buf::new(most, room.head + wire.head(), room.tail);
            part.append(&piece[..most]);
            piece.advance(most);
            self.queue.push_front(piece);
            piece = part;
        }
        // A small piece takes the small ones behind it along.
        let mut along = 0;
        if piece.len() <= SMALL {
            let most = most.min(2 * SMALL) - piece.len();
            for next in self.queue.iter().map(|next| next.len()) {
                if next > SMALL || along + next > most {
                    break;
                }
                along += next;
            }
        }
        let len = (piece.len() + along) as u32; // at most `MAX_DATA`
        if wire == Wire::Yamux {
            self.may_send -= len;
        }
        let header = Header { kind: Kind::Data(len), flags: Flags::NONE, stream: id };
        out.put_framed(&wire.encode(header), piece);
        while along > 0 {
            let Some(next) = self.queue.pop_front() else { break };
            along -= next.len();
            out.put(&next);
        }
    }
}

/// A stream as its user has it.
pub(super) struct Stream {
    cell: Arc<Cell>,
    aborts: bool,
}

impl Stream {
    /// Has something to send or to say.
    fn line_up(&self, inner: MutexGuard<'_, Inner>) {
        let mut inner = inner;
        if !std::mem::replace(&mut inner.in_line, true) {
            drop(inner);
            self.cell.link.line_up(Arc::clone(&self.cell));
        }
    }

    /// What was read counts for the window.
    fn consume(&self, mut inner: MutexGuard<'_, Inner>, count: usize) {
        let tells = self.cell.link.wire == Wire::Yamux && {
            inner.consumed += count as u32; // never more than the window
            inner.consumed >= inner.window / 2 && inner.end.is_none()
        };
        if tells {
            self.line_up(inner);
        } else {
            drop(inner);
        }
        self.cell.link.take_unread(count);
    }

    fn poll_readable<'a>(&'a self, cx: &Context<'_>, room: Room) -> Poll<io::Result<MutexGuard<'a, Inner>>> {
        let mut inner = self.cell.lock();
        match inner.end {
            _ if !inner.received.is_empty() => Poll::Ready(Ok(inner)),
            Some(End::Orderly) => Poll::Ready(Ok(inner)),
            Some(End::Broken) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                inner.reader = Some(cx.waker().clone());
                if inner.wanted != room {
                    inner.wanted = room;
                    self.cell.link.line().wanted = room;
                }
                Poll::Pending
            }
        }
    }

    /// Whether data may be queued; `None` if it is to be dropped.
    fn poll_writable<'a>(&'a self, cx: &Context<'_>) -> Poll<io::Result<Option<MutexGuard<'a, Inner>>>> {
        let mut inner = self.cell.lock();
        if inner.deaf {
            return Poll::Ready(Ok(None));
        }
        if inner.broken || inner.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if inner.queue.len() >= QUEUE {
            inner.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(Some(inner)))
    }
}

impl StreamConn for Stream {
    fn room(&self) -> Room {
        let head = self.cell.link.wire.head();
        self.cell.link.line().room.around(Room { head, tail: 0, max: Wire::MAX_DATA })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let mut inner = std::task::ready!(self.poll_readable(cx, room))?;
        let mut taken = if inner.received.len() <= MOST_READ {
            std::mem::take(&mut inner.received)
        } else {
            let mut taken = BufChain::new();
            while taken.len() < MOST_READ {
                let Some(piece) = inner.received.pop_front() else { break };
                taken.push_back(piece);
            }
            taken
        };
        self.consume(inner, taken.len());
        taken.fit(room);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match std::task::ready!(self.poll_writable(cx))? {
            Some(mut inner) => {
                inner.queue.append(data);
                self.line_up(inner);
            }
            None => *data = BufChain::new(),
        }
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        self.aborts = true;
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut inner = std::task::ready!(self.poll_readable(cx, Room::NONE))?;
        let before = to.filled().len();
        while to.remaining() > 0 && !inner.received.is_empty() {
            let count = inner.received.front().len().min(to.remaining());
            to.put_slice(&inner.received.front()[..count]);
            inner.received.advance(count);
        }
        self.consume(inner, to.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let Some(mut inner) = std::task::ready!(self.poll_writable(cx))? else {
            return Poll::Ready(Ok(from.len()));
        };
        let count = from.len().min(QUEUE - inner.queue.len());
        inner.queue.append_copy(&from[..count]);
        self.line_up(inner);
        Poll::Ready(Ok(count))
    }

    /// The driver sends what is queued as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.cell.lock();
        if !std::mem::replace(&mut inner.shut, true) {
            self.line_up(inner);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// What was written still goes out, then the end; unless the stream is to break off.
    fn drop(&mut self) {
        let link = &self.cell.link;
        let mut inner = self.cell.lock();
        inner.dropped = true;
        inner.reader = None;
        inner.writer = None;
        inner.shut = true;
        let unknown = inner.greeting.syn && inner.queue.is_empty();
        if self.aborts || unknown {
            inner.reset = true;
            inner.queue = BufChain::new();
        }
        let unread = std::mem::take(&mut inner.received).len();
        let lines_up = !std::mem::replace(&mut inner.in_line, true);
        drop(inner);
        link.take_unread(unread);
        let mut line = link.line();
        line.live -= 1;
        if lines_up {
            line.ready.push_back(Arc::clone(&self.cell));
        }
        wake(&mut line.driver);
    }
}
