//! The half of a conn that opens.

use std::io;
use std::task::{Context, Poll, ready};

use culvert_core::StreamConn;
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::ReadBuf;

use super::{Fault, Open};

/// Memory of a piece of which so little is left that it is better moved, in bytes.
const WASTED: usize = 32 << 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Open,
    Ended,
    Failed,
}

/// The half of a conn that opens.
pub(crate) struct Reading<O> {
    state: State,
    opener: O,
    /// Read and not opened. After [`Reading::open`] it is empty or the beginning of a chunk in one piece.
    raw: BufChain,
    /// Bytes of the body whose head has been read.
    body: Option<usize>,
    /// What will be reported once the data in front of it is taken.
    later: Option<Fault>,
    /// Opened and not taken, where a reader took less than there was.
    plain: BufChain,
}

impl<O: Open> Reading<O> {
    /// Goes on with `raw`, which was read already.
    pub(crate) fn new(opener: O, raw: BufChain) -> Self {
        Self { state: State::Open, opener, raw, body: None, later: None, plain: BufChain::new() }
    }

    /// The same where the head of the first chunk stood elsewhere: its body has `len` bytes.
    pub(crate) fn within(opener: O, raw: BufChain, len: usize) -> Self {
        Self { body: Some(len), ..Self::new(opener, raw) }
    }

    /// Takes bytes in that were read from the lower stream.
    pub(crate) fn take_in(&mut self, mut more: BufChain) {
        self.raw.append(&mut more);
    }

    /// Opens the whole chunks among the raw bytes. An empty chain without an error means that more must come.
    ///
    /// Data in front of a fault comes out first, and the fault with the next call.
    pub(crate) fn open(&mut self, room: Room) -> Result<BufChain, Fault> {
        let mut opened = BufChain::new();
        let outcome = match (self.later.take(), self.state) {
            (Some(fault), _) => Err(fault),
            (None, State::Failed) => Err(Fault::Failed),
            (None, State::Open | State::Ended) => self.open_all(room, &mut opened),
        };
        match outcome {
            Ok(()) => Ok(opened),
            Err(fault) if !opened.is_empty() => {
                self.later = Some(fault);
                Ok(opened)
            }
            Err(fault) => {
                self.state = State::Failed;
                self.raw = BufChain::new();
                Err(fault)
            }
        }
    }

    /// See [`StreamConn::poll_read_chain`].
    pub(crate) fn poll_read_chain<C: StreamConn + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut C,
        room: Room,
    ) -> Poll<io::Result<BufChain>> {
        if !self.plain.is_empty() {
            return Poll::Ready(Ok(self.take_plain(room)));
        }
        loop {
            let opened = self.open(room)?;
            if !opened.is_empty() || self.state == State::Ended {
                return Poll::Ready(Ok(opened));
            }
            let raw = ready!(lower.poll_read_chain(cx, Room::NONE))?;
            if raw.is_empty() {
                self.end_of_lower()?;
            }
            self.take_in(raw);
        }
    }

    /// See [`tokio::io::AsyncRead::poll_read`].
    pub(crate) fn poll_read<C: StreamConn + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        lower: &mut C,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.plain.is_empty() && to.remaining() > 0 {
            self.plain = ready!(self.poll_read_chain(cx, lower, Room::NONE))?;
        }
        while to.remaining() > 0 && !self.plain.is_empty() {
            let front = self.plain.front();
            let count = front.len().min(to.remaining());
            to.put_slice(&front[..count]);
            self.plain.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Whether nothing is held.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.plain.is_empty()
    }

    /// How much memory what was read and not opened takes.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.raw.iter().map(|piece| piece.head() + piece.len() + piece.spare()).sum()
    }

    fn take_plain(&mut self, room: Room) -> BufChain {
        if room.is_none() {
            return std::mem::take(&mut self.plain);
        }
        let count = self.plain.front().len().min(room.max);
        let mut piece = Buf::new(count, room.head, room.tail);
        piece.append(&self.plain.front()[..count]);
        self.plain.advance(count);
        piece.into()
    }

    fn end_of_lower(&mut self) -> Result<(), Fault> {
        if self.raw.is_empty() && self.body.is_none() {
            self.state = State::Ended;
            return Ok(());
        }
        self.state = State::Failed;
        self.raw = BufChain::new();
        Err(Fault::Cut)
    }

    fn open_all(&mut self, room: Room, opened: &mut BufChain) -> Result<(), Fault> {
        let mut joined = Joined { room, expected: self.raw.len(), current: None };
        let outcome = self.open_into(&mut joined, opened);
        opened.extend(joined.current);
        outcome
    }

    fn open_into(&mut self, joined: &mut Joined, opened: &mut BufChain) -> Result<(), Fault> {
        while let Some(mut piece) = self.raw.pop_front() {
            let Some(len) = self.body else {
                if piece.len() < O::HEAD {
                    if self.gather(piece, O::HEAD, Room::NONE) { continue } else { return Ok(()) }
                }
                self.body = Some(self.opener.head(&mut piece[..O::HEAD])?);
                piece.advance(O::HEAD);
                self.raw.push_front(piece);
                continue;
            };
            if piece.len() < len {
                if self.gather(piece, len, joined.room) { continue } else { return Ok(()) }
            }
            self.body = None;
            let space = self.opener.space_for(len);
            if piece.len() == len && joined.current.is_none() && has_room(&piece, space, joined.room) {
                let data = self.opener.open(&mut piece)?;
                piece.truncate(data.end);
                piece.advance(data.start);
                opened.push_back(piece);
                continue;
            }
            let to = joined.with_space(space, opened);
            let count = self.opener.open_into(&mut piece[..len], &mut to.spare_mut()[..space])?;
            to.grow(count);
            piece.advance(len);
            self.raw.push_front(piece);
        }
        Ok(())
    }

    /// Makes the first piece `need` bytes long with what follows it. If that is not enough all of it is kept, and nothing
    /// more than it. Whether it was enough.
    fn gather(&mut self, part: Buf, need: usize, room: Room) -> bool {
        let memory = part.head() + part.len() + part.spare();
        let fits = part.len() + part.spare() >= need && memory <= need + WASTED;
        let mut part = if fits { part } else { moved(&part, need, room) };
        while part.len() < need && !self.raw.is_empty() {
            let front = self.raw.front();
            let count = front.len().min(need - part.len());
            part.append(&front[..count]);
            self.raw.advance(count);
        }
        let whole = part.len() >= need;
        self.raw.push_front(part);
        whole
    }
}

/// Whether the data of the body in `piece`, at most `space` bytes, can stay where it is.
fn has_room(piece: &Buf, space: usize, room: Room) -> bool {
    let behind = piece.len() - space + piece.spare();
    room.is_none() || (piece.head() >= room.head && behind >= room.tail && space <= room.max)
}

/// The same bytes in memory for `capacity`.
fn moved(bytes: &[u8], capacity: usize, room: Room) -> Buf {
    let mut buf = Buf::new(capacity, room.head, room.tail);
    buf.append(bytes);
    buf
}

/// Where the data of several chunks is put together.
struct Joined {
    room: Room,
    /// At most this many bytes will come in all.
    expected: usize,
    current: Option<Buf>,
}

impl Joined {
    /// A piece whose spare takes `space` bytes and leaves the tail that is wanted.
    fn with_space(&mut self, space: usize, opened: &mut BufChain) -> &mut Buf {
        let Room { head, tail, max } = self.room;
        let full = |piece: &mut Buf| piece.spare() < space + tail || piece.len() + space > max;
        if let Some(full) = self.current.take_if(full) {
            self.expected = self.expected.saturating_sub(full.len());
            opened.push_back(full);
        }
        // A long read and what was left of the one before are more than the pool has in one piece.
        let pooled = Buf::LARGEST.saturating_sub(head + tail);
        let capacity = self.expected.min(max).min(pooled).max(space);
        self.current.get_or_insert_with(|| Buf::new(capacity, head, tail))
    }
}
