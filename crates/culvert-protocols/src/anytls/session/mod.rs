//! One connection to a server, and the streams in it.
//!
//! ```text
//! stream ─▶ frames, put around the data in its own memory ─▶ out ─▶ Driver ─▶ conn        stream ◀─ inbox ◀─ Driver ◀─ conn
//! ```
//!
//! The connection belongs to one task, which runs the [`Driver`]. A [`Stream`] shares with it only what stands in
//! [`Shared`], under a lock that is never held for longer than it takes to move a few pieces.
//!
//! # Bounds
//!
//! The protocol has no windows: what has come must be kept or must hold up everything behind it. The driver reads when
//! all that came is taken, or while some stream waits for data; so for a connection with one stream (the rule with clients
//! of today) it reads once ahead. With several, a slow one may leave [`BUFFERED`] bytes behind before the others have to
//! wait for it. In the other
//! direction a stream hands over one batch and waits until it is written; what the peer can make us say is bounded by not
//! reading on ([`REPLIES`]).
//!
//! # Ends
//!
//! `Finish` closes a stream, both ways: the protocol has no half-close. Two Culverts find each other by the setting
//! `half-close=1`, which other programs ignore, and then `Finish` ends one direction, and with one byte of data it says
//! that the stream broke. Towards other programs a server tells the end of its direction at once, which is the end of
//! both, as in sing-box; a client that ends first is given some time for its answer before that is told.

mod driver;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use culvert_core::timeouts;
use culvert_wire::{AddressCodec, Buf, BufChain, Room, Target};
use tokio::sync::Notify;

pub(super) use self::driver::{Driver, Fault};
pub(super) use self::stream::{FAILED, OPENED, Stream};
use super::codec::{Command, HEAD, Head, MAX_DATA, frame};

/// Bytes that all streams together may leave unread.
const BUFFERED: usize = 1 << 20;
/// Bytes of answers to the peer's frames that may wait to be written.
const REPLIES: usize = 64 << 10;
/// Most streams at once that a client may have open.
const STREAMS: usize = 1024;

/// The version of the protocol spoken here.
pub(super) const VERSION: u32 = 2;
/// The setting of two Culverts.
const HALF_CLOSE: &str = "half-close";
/// Data of a `Finish` that says that the stream broke.
const BROKEN: &[u8] = &[1];

/// What a session's streams and its driver share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// What a stream wants around data so that it can be framed, and sealed below, in its own memory.
    room: Room,
    /// Told when the peer has said anything, and when the session ends.
    heard: Notify,
}

#[derive(Default)]
struct State {
    streams: HashMap<u32, Slot>,
    /// To be written, in this order.
    out: VecDeque<Packet>,
    /// Bytes in `out` that frames of the peer have caused.
    replies: usize,
    /// Bytes in all inboxes.
    buffered: usize,
    /// Streams that wait for data.
    waiting: usize,
    /// The driver does not read until [`State::may_read`] says otherwise.
    paused: bool,
    /// What the peer has said it can do.
    peer: Peer,
    /// Of a client: the next stream's number, less one.
    last: u32,
    /// Of a client: the peer has been asked something and has said nothing since.
    owed: bool,
    /// The session is to end.
    ending: bool,
    /// Why it has ended.
    ended: Option<Ended>,
    driver: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    version: u32,
    /// The directions of a stream end apart.
    half_close: bool,
}

/// One write: what a padding scheme counts.
struct Packet {
    frames: BufChain,
    /// The stream whose data it is.
    of: Option<u32>,
}

/// Why a session is over.
#[derive(Clone, Debug)]
struct Ended(Arc<str>);

impl Ended {
    fn error(&self) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, format!("anytls session: {}", self.0))
    }
}

/// A stream, as the driver sees it. It is in the table for as long as there is a [`Stream`].
#[derive(Default)]
struct Slot {
    inbox: BufChain,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// A batch of its data is not written yet.
    queued: bool,
    /// No more is to be written.
    shut: bool,
    /// The peer was told so.
    finished: bool,
    /// What the peer said last.
    end: Option<End>,
}

enum End {
    Finished,
    Broken,
    /// The dial failed, in the peer's words.
    Refused(Arc<str>),
}

impl Shared {
    fn new(room: Room) -> Arc<Self> {
        let room = room.around(Room { head: HEAD, tail: 0, max: MAX_DATA });
        Arc::new(Self { state: Mutex::default(), room, heard: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream of a client's, with what is there of its payload. `None` if the session has ended.
    ///
    /// `settings` come first in the first stream's packet. Later ones ask whether anybody is there.
    pub(super) fn open(
        self: &Arc<Self>,
        settings: Option<&str>,
        target: &Target,
        early: &mut BufChain,
    ) -> Option<Stream> {
        let mut state = self.lock();
        if !state.is_open() {
            return None;
        }
        let id = state.last.checked_add(1)?;
        state.last = id;
        let mut first = Vec::new();
        if let Some(settings) = settings {
            frame(Command::Settings, 0, settings.as_bytes(), &mut first);
        } else if state.peer.version >= VERSION {
            frame(Command::HeartRequest, 0, &[], &mut first);
            state.owed = true;
        }
        frame(Command::Open, id, &[], &mut first);
        let mut address = Vec::new();
        AddressCodec::SOCKS.encode(target, &mut address);
        frame(Command::Push, id, &address, &mut first);
        state.push(copied(&first, self.room), None);
        let mut slot = Slot::default();
        if !early.is_empty() {
            state.out.push_back(Packet { frames: framed(early, id, self.room), of: Some(id) });
            slot.queued = true;
        }
        state.streams.insert(id, slot);
        state.wake_driver();
        drop(state);
        Some(Stream::new(Arc::clone(self), id))
    }

    /// Whether the peer answers: asked over a connection on which nothing has happened for a while.
    pub(super) async fn is_alive(&self) -> bool {
        let heard = self.heard.notified();
        tokio::pin!(heard);
        {
            let mut state = self.lock();
            if !state.is_open() {
                return false;
            }
            if state.peer.version < VERSION {
                return true; // it has no way to answer
            }
            heard.as_mut().enable();
            let mut question = Vec::new();
            frame(Command::HeartRequest, 0, &[], &mut question);
            state.push(copied(&question, self.room), None);
            state.owed = true;
            state.wake_driver();
        }
        let heard = tokio::time::timeout(timeouts::SESSION_PROBE, heard).await.is_ok();
        heard && self.is_open()
    }

    /// Whether streams can still be opened.
    pub(super) fn is_open(&self) -> bool {
        self.lock().is_open()
    }

    /// Lets the session end, orderly.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.ending = true;
        state.wake_driver();
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.ended.is_none() && !self.ending
    }

    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    fn note_driver(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    fn push(&mut self, frames: Buf, of: Option<u32>) {
        self.out.push_back(Packet { frames: frames.into(), of });
    }

    /// Says something because of what the peer has said.
    fn reply(&mut self, command: Command, stream: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        frame(command, stream, data, &mut bytes);
        self.replies += bytes.len();
        self.push(bytes.into(), None);
    }

    /// Whether more may be read from the peer.
    fn may_read(&self) -> bool {
        self.may_take_in() && (self.buffered == 0 || self.waiting > 0 || self.owed)
    }

    /// Lets the driver read again, if it does not and may.
    fn resume(&mut self) {
        if self.paused && self.may_read() {
            self.paused = false;
            self.wake_driver();
        }
    }

    /// Whether there is room for more of what was read.
    fn may_take_in(&self) -> bool {
        self.buffered < BUFFERED && self.replies < REPLIES
    }

    /// Gives data to its stream; what comes for one that is gone is dropped.
    fn deliver(&mut self, stream: u32, data: Buf) {
        let Some(slot) = self.streams.get_mut(&stream) else { return };
        if slot.end.is_some() {
            return;
        }
        self.buffered += data.len();
        slot.inbox.push_back(data);
        self.wake_reader(stream);
    }

    /// Notes that a stream waits for data; the driver reads while one does.
    fn wait(&mut self, stream: u32, waker: &Waker) {
        let Some(slot) = self.streams.get_mut(&stream) else { return };
        if slot.reader.replace(waker.clone()).is_none() {
            self.waiting += 1;
            self.resume();
        }
    }

    fn wake_reader(&mut self, stream: u32) {
        if let Some(reader) = self.streams.get_mut(&stream).and_then(|slot| slot.reader.take()) {
            self.waiting -= 1;
            reader.wake();
        }
    }

    /// The peer will send no more on this stream.
    fn end_stream(&mut self, stream: u32, end: End) {
        let Some(slot) = self.streams.get_mut(&stream) else { return };
        if slot.end.is_some() && !matches!(end, End::Broken) {
            return;
        }
        slot.end = Some(end);
        if let Some(writer) = slot.writer.take() {
            writer.wake();
        }
        self.wake_reader(stream);
    }

    /// Tells the peer, once, that a stream will send no more. Who was told that it is over does not answer.
    fn finish(&mut self, stream: u32) {
        let half_close = self.peer.half_close;
        let over = |slot: &Slot| slot.end.is_some() && !half_close;
        if self.ended.is_none()
            && let Some(slot) = self.streams.get_mut(&stream).filter(|slot| !slot.finished && !over(slot))
        {
            slot.finished = true;
            self.push_finish(stream, &[]);
        }
    }

    fn push_finish(&mut self, stream: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        frame(Command::Finish, stream, data, &mut bytes);
        self.push(bytes.into(), None);
        self.wake_driver();
    }

    /// Takes a stream that nobody holds any more out of the table, and tells the peer what it must know.
    fn remove(&mut self, stream: u32, aborted: bool) {
        let Some(slot) = self.streams.remove(&stream) else { return };
        self.buffered -= slot.inbox.len();
        self.waiting -= usize::from(slot.reader.is_some());
        if self.ended.is_none() {
            let ended = slot.end.is_some();
            match self.peer.half_close {
                true if (aborted || !ended) && !matches!(slot.end, Some(End::Broken)) => {
                    self.push_finish(stream, BROKEN);
                }
                true if !slot.finished => self.push_finish(stream, &[]),
                // Who was told does not answer.
                false if !ended && !slot.finished => self.push_finish(stream, &[]),
                _ => {}
            }
        }
        self.resume();
    }

    /// Wakes everybody: nothing goes any more.
    fn end(&mut self, why: Arc<str>) {
        self.ended.get_or_insert(Ended(why));
        self.out.clear();
        self.waiting = 0;
        for slot in self.streams.values_mut() {
            slot.queued = false;
            slot.reader.take().into_iter().chain(slot.writer.take()).for_each(Waker::wake);
        }
    }
}

/// A piece with these bytes and room around.
fn copied(bytes: &[u8], room: Room) -> Buf {
    let mut piece = Buf::new(bytes.len(), room.head, room.tail);
    piece.append(bytes);
    piece
}

/// Puts heads around all of `data`, in its own memory where there is room.
fn framed(data: &mut BufChain, stream: u32, room: Room) -> BufChain {
    let mut frames = BufChain::new();
    while let Some(mut piece) = data.pop_front() {
        let head = |len: usize| Head { command: Command::Push, stream, len: len as u16 }.encode();
        if piece.len() <= room.max && piece.head() >= HEAD {
            let head = head(piece.len());
            piece.prepend(&head);
            frames.push_back(piece);
            continue;
        }
        for part in piece.chunks(room.max) {
            let mut copy = copied(part, room);
            copy.prepend(&head(part.len()));
            frames.push_back(copy);
        }
    }
    frames
}
