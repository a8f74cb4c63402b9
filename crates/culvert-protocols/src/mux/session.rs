//! A session of smux or yamux: many streams on one carrier, driven by one task.
//!
//! The driver owns the carrier. It takes the streams that stand in the line in turn, one frame of data each, gathers their
//! frames to one write, and hands what comes to the streams. It looks again when a stream or the carrier wakes it.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_core::timeouts::{MUX_LINGER, MUX_PING, MUX_PING_ANSWER};
use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep};

use super::Event;
use super::frame::{Flags, Header, Kind, Wire};
use super::gather::Gather;
use super::stream::{Cell, Link, Stream, Turn};

/// Most bytes, and most pieces, that one write gathers.
const GATHER: usize = 128 << 10;
const PIECES: usize = 16;
/// Most bytes in one piece that is read. A frame is often as long as two, so most pieces belong to one stream as they are.
const PIECE: usize = 16 << 10;
/// Rounds of writing and reading before other tasks have the worker.
const BUDGET: usize = 16;
/// Most bytes of answers to a peer that does not read them.
const MOST_SAID: usize = 16 << 10;
/// Most streams that nobody uses any more and whose peers have not ended them.
const MOST_LINGERING: usize = 1024;

/// The driver.
pub(super) struct Driver {
    link: Arc<Link>,
    conn: BoxStream,
    streams: HashMap<u32, Arc<Cell>>,
    /// Read and not yet taken apart.
    read: BufChain,
    /// What the readers of streams want around what they get.
    wanted: Room,
    /// The frame whose data is coming.
    coming: Option<Coming>,
    /// Answers to the peer.
    said: Vec<u8>,
    out: Gather,
    unflushed: bool,
    idle: bool,
    /// Not used any more and not over, since when.
    lingering: VecDeque<(Instant, Arc<Cell>)>,
    /// When a sign of life was asked for.
    pinged: Option<Instant>,
    /// Most streams in use that the peer may have opened.
    most: usize,
    idle_limit: Duration,
    idle_since: Instant,
    timer: Pin<Box<Sleep>>,
}

struct Coming {
    /// `None` if there is no such stream any more.
    cell: Option<Arc<Cell>>,
    left: usize,
    /// The frame says also that it was the last.
    fin: bool,
}

impl Driver {
    /// A session on `conn`. `owed` leaves before its first frame, `read` has come already.
    pub(super) fn new(
        link: Arc<Link>,
        conn: BoxStream,
        owed: &[u8],
        read: BufChain,
        most: usize,
        idle_limit: Duration,
    ) -> Self {
        let room = conn.room();
        link.exchange_rooms(room);
        let mut out = Gather::new(room);
        out.put(owed);
        let now = Instant::now();
        Self {
            link,
            conn,
            streams: HashMap::new(),
            read,
            wanted: Room::NONE,
            coming: None,
            said: Vec::new(),
            out,
            unflushed: false,
            idle: true,
            lingering: VecDeque::new(),
            pinged: None,
            most,
            idle_limit,
            idle_since: now,
            timer: Box::pin(tokio::time::sleep(MUX_PING.min(idle_limit))),
        }
    }

    /// Drives the session until something happens that its owner must know of. Nothing is lost if this is dropped.
    pub(super) async fn next(&mut self) -> Event {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Says good-bye; for a session without streams.
    pub(super) async fn close(mut self) {
        if self.link.wire == Wire::Yamux {
            self.say(Kind::GoAway(0), Flags::NONE, 0);
        }
        let ending = std::future::poll_fn(|cx| {
            ready!(self.poll_write(cx))?;
            Pin::new(&mut self.conn).poll_shutdown(cx)
        });
        let _ = tokio::time::timeout(Duration::from_secs(1), ending).await;
    }

    /// How many streams it knows.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        self.link.register(cx.waker());
        match ready!(self.poll_rounds(cx)) {
            Ok(event) => Poll::Ready(event),
            Err(error) => {
                self.end(cx, &error);
                Poll::Ready(Event::Ended(error))
            }
        }
    }

    fn poll_rounds(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        if let Some(event) = self.look_at_clock(cx)? {
            return Poll::Ready(Ok(event));
        }
        for _ in 0..BUDGET {
            let written = self.poll_write(cx)?;
            if let Some(event) = self.look_at_use() {
                return Poll::Ready(Ok(event));
            }
            match self.poll_read(cx)? {
                Poll::Ready(Some(stream)) => return Poll::Ready(Ok(Event::Opened(Box::new(stream)))),
                Poll::Ready(None) => {}
                // What reading has made necessary has to be written, if the carrier takes it.
                Poll::Pending if written.is_ready() && self.has_to_write() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn has_to_write(&self) -> bool {
        !self.said.is_empty() || self.link.has_ready()
    }

    /// Writes what there is, one round of it. Ready if the carrier took it all.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            self.gather();
        }
        if !self.out.is_empty() {
            self.unflushed = true;
            ready!(self.conn.poll_write_chain(cx, self.out.whole()))?;
        }
        if self.unflushed && !self.has_to_write() {
            ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// One frame of each stream in the line, over and over, until it is enough for one write.
    fn gather(&mut self) {
        let room = self.conn.room();
        self.link.exchange_rooms(room);
        self.out.set_room(room);
        self.out.put(&self.said);
        self.said = Vec::new();
        while self.out.len() < GATHER && self.out.pieces() < PIECES {
            let Some(cell) = self.link.pop_ready() else { break };
            // Streams that were opened here make themselves known like this.
            if self.link.is_client() {
                self.streams.entry(cell.id).or_insert_with(|| Arc::clone(&cell));
            }
            match cell.take_turn(&mut self.out) {
                Turn::Waits => {}
                Turn::Again => self.link.push_ready(cell),
                Turn::Over => {
                    self.streams.remove(&cell.id);
                }
                Turn::Lingers => self.linger(cell),
            }
        }
    }

    fn linger(&mut self, cell: Arc<Cell>) {
        self.lingering.retain(|(_, other)| !Arc::ptr_eq(other, &cell) && !other.is_over());
        self.lingering.push_back((Instant::now(), cell));
        if self.lingering.len() > MOST_LINGERING
            && let Some((_, oldest)) = self.lingering.pop_front()
        {
            oldest.reset();
        }
    }

    /// Takes apart what has been read, and reads more. `None` if that is to be called again.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Stream>>> {
        if let Some(stream) = self.take_apart()? {
            return Poll::Ready(Ok(Some(stream)));
        }
        // The driver is woken when streams have read enough, or when the carrier takes the answers.
        if self.link.unread() >= Link::most_unread(self.link.wire) || self.said.len() >= MOST_SAID {
            return Poll::Pending;
        }
        self.wanted = self.link.exchange_rooms(self.conn.room());
        let room = Room { max: self.wanted.max.min(PIECE), ..self.wanted };
        let mut pieces = ready!(self.conn.poll_read_chain(cx, room))?;
        if pieces.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.pinged = None;
        self.link.life.hear();
        self.read.append(&mut pieces);
        Poll::Ready(self.take_apart())
    }

    /// Goes through the frames at hand, up to one that opens a stream.
    fn take_apart(&mut self) -> io::Result<Option<Stream>> {
        loop {
            if let Some(coming) = &mut self.coming {
                let count = coming.left.min(self.read.len());
                coming.left -= count;
                match &coming.cell {
                    Some(cell) => cell.deliver(take(&mut self.read, count, self.wanted)),
                    None => self.read.advance(count),
                }
                if coming.left > 0 {
                    return Ok(None);
                }
                let Coming { cell, fin, .. } = self.coming.take().expect("looked at above");
                if let Some(cell) = cell.filter(|_| fin) {
                    self.finish(&cell)?;
                }
            }
            let mut head = [0; 12];
            let seen = self.read.peek(&mut head);
            let header = match self.link.wire.decode(&mut Reader::new(&head[..seen])) {
                Ok(header) => header,
                Err(DecodeError::Incomplete) => return Ok(None),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            };
            self.read.advance(self.link.wire.head());
            if let Some(stream) = self.handle(header)? {
                return Ok(Some(stream));
            }
        }
    }

    fn handle(&mut self, header: Header) -> io::Result<Option<Stream>> {
        let Header { kind, flags, stream: id } = header;
        match kind {
            Kind::Nothing => return Ok(None),
            Kind::Ping(_) if flags.ack => return Ok(None),
            Kind::Ping(value) => {
                self.say(Kind::Ping(value), Flags::ACK, 0);
                return Ok(None);
            }
            Kind::GoAway(0) => {
                self.link.close();
                return Ok(None);
            }
            Kind::GoAway(_) => return Err(io::Error::other("peer ended the session")),
            Kind::Data(_) | Kind::Window(_) => {}
        }
        let opened = if flags.syn { self.accept(id)? } else { None };
        let cell = self.streams.get(&id).cloned();
        if flags.rst
            && let Some(cell) = &cell
        {
            cell.break_off();
            self.streams.remove(&id);
        }
        let cell = cell.filter(|_| !flags.rst);
        match (kind, &cell) {
            (Kind::Data(len), Some(cell)) if !cell.expect_data(len) => {
                return Err(violation("more data than its window allows"));
            }
            (Kind::Window(delta), Some(cell)) => cell.widen(delta),
            _ => {}
        }
        match kind {
            Kind::Data(len) => {
                if let Some(cell) = cell.as_ref().filter(|cell| len > 0 && cell.is_unwanted()) {
                    cell.reset();
                }
                self.coming = Some(Coming { cell, left: len as usize, fin: flags.fin });
            }
            _ if flags.fin => {
                if let Some(cell) = cell {
                    self.finish(&cell)?;
                }
            }
            _ => {}
        }
        Ok(opened)
    }

    /// The peer opens a stream. `None` if it has too many.
    fn accept(&mut self, id: u32) -> io::Result<Option<Stream>> {
        if self.link.is_client() {
            return Err(violation("a stream that the server opens"));
        }
        if self.streams.contains_key(&id) {
            return Err(violation("a stream that is open already"));
        }
        if self.link.live() >= self.most {
            let flags = if self.link.wire == Wire::Smux { Flags::FIN } else { Flags::RST };
            self.say(Kind::Window(0), flags, id);
            return Ok(None);
        }
        let (cell, stream) = self.link.accept(id);
        self.streams.insert(id, cell);
        Ok(Some(stream))
    }

    fn finish(&mut self, cell: &Arc<Cell>) -> io::Result<()> {
        if !cell.finish() && self.link.wire == Wire::Yamux && !cell.is_over() {
            return Err(violation("a second end of one stream"));
        }
        if cell.is_over() {
            self.streams.remove(&cell.id);
        }
        Ok(())
    }

    fn say(&mut self, kind: Kind, flags: Flags, stream: u32) {
        self.said.extend_from_slice(&self.link.wire.encode(Header { kind, flags, stream }));
    }

    /// Tells when the last stream is gone.
    fn look_at_use(&mut self) -> Option<Event> {
        let idle = self.link.live() == 0;
        if idle && !self.idle {
            self.idle_since = Instant::now();
        }
        if idle && self.link.is_closing() && self.out.is_empty() && !self.link.has_ready() {
            return Some(Event::Unused);
        }
        if idle == std::mem::replace(&mut self.idle, idle) || !idle {
            return None;
        }
        Some(Event::Idle)
    }

    /// Asks for a sign of life, misses it, or ends a session that nobody uses.
    fn look_at_clock(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Event>> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            while self.lingering.front().is_some_and(|(since, _)| now >= *since + MUX_LINGER) {
                let Some((_, cell)) = self.lingering.pop_front() else { break };
                cell.reset();
            }
            if self.link.live() == 0 && now >= self.idle_since + self.idle_limit {
                self.link.close_when_idle();
                return Ok(Some(Event::Unused));
            }
            let next = match (self.link.wire, self.pinged) {
                (Wire::Smux, _) => now + MUX_PING,
                (Wire::Yamux, Some(pinged)) if now >= pinged + MUX_PING_ANSWER => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "peer gave no sign of life"));
                }
                (Wire::Yamux, Some(pinged)) => pinged + MUX_PING_ANSWER,
                (Wire::Yamux, None) if now >= self.link.life.heard() + MUX_PING => {
                    self.say(Kind::Ping(0), Flags::SYN, 0);
                    self.pinged = Some(now);
                    now + MUX_PING_ANSWER
                }
                (Wire::Yamux, None) => self.link.life.heard() + MUX_PING,
            };
            self.timer.as_mut().reset(next.min(now + self.idle_limit));
        }
        Ok(None)
    }

    /// All streams break off. A peer that broke the rules is told, if the carrier takes it at once.
    fn end(&mut self, cx: &mut Context<'_>, error: &io::Error) {
        if self.link.wire == Wire::Yamux && error.kind() == io::ErrorKind::InvalidData {
            self.say(Kind::GoAway(1), Flags::NONE, 0);
            let _ = self.poll_write(cx);
        }
        self.break_off_all();
    }

    fn break_off_all(&mut self) {
        self.link.close();
        self.streams.drain().for_each(|(_, cell)| cell.break_off());
        while let Some(cell) = self.link.pop_ready() {
            cell.break_off();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.break_off_all();
    }
}

fn violation(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The first `count` bytes. Pieces are moved; of the one at the cut the shorter part is copied.
fn take(read: &mut BufChain, count: usize, room: Room) -> BufChain {
    let copy = |bytes: &[u8]| {
        let mut copy = Buf::new(bytes.len(), room.head, room.tail);
        copy.append(bytes);
        copy
    };
    let mut taken = BufChain::new();
    while taken.len() < count {
        let Some(mut piece) = read.pop_front() else { break };
        let left = count - taken.len();
        if piece.len() > left {
            if left <= piece.len() / 2 {
                taken.push_back(copy(&piece[..left]));
                piece.advance(left);
                read.push_front(piece);
                break;
            }
            read.push_front(copy(&piece[left..]));
            piece.truncate(left);
        }
        taken.push_back(piece);
    }
    taken
}

/// Fed with random bytes as what a client sends: the session ends, and nothing that came is left behind.
pub(super) fn fuzz_session(bytes: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let wire = if choice & 1 == 0 { Wire::Smux } else { Wire::Yamux };
    runtime.block_on(async {
        let (mut near, far) = culvert_core::duplex::duplex(1 << 20);
        let link = Link::new(wire, false);
        let idle = Duration::from_secs(60);
        let mut driver = Driver::new(Arc::clone(&link), Box::new(far), &[], BufChain::new(), 8, idle);
        let mut data = BufChain::copied(bytes);
        let written = culvert_core::conn::write_chain(&mut near, &mut data).await;
        assert!(written.is_ok(), "it fits");
        let _ = std::future::poll_fn(|cx| Pin::new(&mut near).poll_shutdown(cx)).await;
        let mut streams = Vec::new();
        loop {
            match driver.next().await {
                Event::Opened(stream) => streams.push(stream),
                Event::Idle | Event::Unused => {}
                Event::Ended(_) => break,
            }
            if choice & 2 != 0 {
                streams.pop();
            }
        }
        assert!(link.unread() <= bytes.len());
        for stream in &mut streams {
            while let Ok(read) = culvert_core::conn::read_chain(stream, Room::NONE).await
                && !read.is_empty()
            {}
        }
        assert_eq!(link.unread(), 0);
        drop(streams);
        assert_eq!(link.live(), 0);
    });
}
