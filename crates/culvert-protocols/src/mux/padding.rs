//! Padding of the first writes of a session, each way:
//!
//! ```text
//! length of data: 2   length of padding: 2   data   padding                (16 of them, after that bare data)
//! ```
//!
//! It has nothing to do with frames and streams: what was written at once is cut off here, wherever that is.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::rand;
use culvert_core::conn::copy_in;
use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How many writes are padded.
const PADDED: usize = 16;
/// Most bytes of data in one of ours; the format takes 65535.
const MOST: usize = 32 << 10;

/// A random number of zeros to pad with.
pub(super) fn amount() -> u16 {
    let mut random = [0; 2];
    // Without randomness, which the system never lacks, padding is merely less varied.
    let _ = rand::fill(&mut random);
    256 + u16::from_be_bytes(random) % 512
}

/// A carrier with padding.
pub(super) struct Padded {
    conn: BoxStream,
    reading: Reading,
    /// Taken apart and not yet read, for those who read into memory of their own.
    plain: BufChain,
    /// Padded writes that are still to be made.
    writes: usize,
    out: BufChain,
}

impl Padded {
    /// `conn` with padding; `read` has come already. `owed` leaves before the first write, without padding.
    pub(super) fn new(conn: BoxStream, read: BufChain, owed: &[u8]) -> Self {
        let reading = Reading { raw: read, left: PADDED, data: 0, padding: 0 };
        let Room { head, tail, .. } = conn.room();
        let mut first = Buf::new(owed.len(), head, tail);
        first.append(owed);
        Self { conn, reading, plain: BufChain::new(), writes: PADDED, out: first.into() }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.conn.poll_write_chain(cx, &mut self.out)
    }

    fn pad(&mut self, data: &mut BufChain) {
        let Room { head, tail, .. } = self.conn.room();
        let mut part = data.take_front(data.len().min(MOST));
        let padding = amount();
        let mut first = Buf::new(4, head, tail);
        first.append(&(part.len() as u16).to_be_bytes());
        first.append(&padding.to_be_bytes());
        // Nobody is to tell data from padding by the sizes of pieces: small data shares one with both.
        let mut last = Buf::new(usize::from(padding), head, tail);
        last.append(&[0; 768][..usize::from(padding)]);
        if part.len() <= 1024 {
            let mut whole = Buf::new(4 + part.len() + last.len(), head, tail);
            whole.append(&first);
            part.iter().for_each(|piece| whole.append(piece));
            whole.append(&last);
            self.out.push_back(whole);
        } else {
            self.out.push_back(first);
            self.out.append(&mut part);
            self.out.push_back(last);
        }
        self.writes -= 1;
    }
}

/// What of the stream that comes is data.
struct Reading {
    raw: BufChain,
    /// Padded writes that are still to come.
    left: usize,
    /// Of the one that is coming.
    data: usize,
    padding: usize,
}

impl Reading {
    fn is_bare(&self) -> bool {
        self.left == 0 && self.data == 0 && self.padding == 0 && self.raw.is_empty()
    }

    /// The data at hand.
    fn take(&mut self) -> BufChain {
        let mut data = BufChain::new();
        loop {
            let count = self.data.min(self.raw.len());
            data.append(&mut self.raw.take_front(count));
            self.data -= count;
            let count = if self.data == 0 { self.padding.min(self.raw.len()) } else { 0 };
            self.raw.advance(count);
            self.padding -= count;
            if self.data > 0 || self.padding > 0 {
                return data;
            }
            if self.left == 0 {
                data.append(&mut self.raw);
                return data;
            }
            let mut head = [0; 4];
            if self.raw.peek(&mut head) < head.len() {
                return data;
            }
            self.raw.advance(head.len());
            let [a, b, c, d] = head;
            self.data = u16::from_be_bytes([a, b]).into();
            self.padding = u16::from_be_bytes([c, d]).into();
            self.left -= 1;
        }
    }
}

impl StreamConn for Padded {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !self.plain.is_empty() {
            return copy_in(self, cx, room);
        }
        if self.reading.is_bare() {
            return self.conn.poll_read_chain(cx, room);
        }
        loop {
            let mut data = self.reading.take();
            if !data.is_empty() {
                data.fit(room);
                return Poll::Ready(Ok(data));
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, room))?;
            if more.is_empty() {
                return Poll::Ready(Ok(more));
            }
            self.reading.raw.append(&mut more);
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        while self.writes > 0 && !data.is_empty() {
            if self.out.len() >= MOST {
                ready!(self.poll_drain(cx))?;
            }
            self.pad(data);
        }
        let drained = self.poll_drain(cx)?;
        if data.is_empty() {
            return Poll::Ready(Ok(())); // all of it was taken
        }
        ready!(drained);
        self.conn.poll_write_chain(cx, data)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn.outermost_socket()
    }
}

impl AsyncRead for Padded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.plain.is_empty() {
            if this.reading.is_bare() {
                return Pin::new(&mut this.conn).poll_read(cx, to);
            }
            this.plain = ready!(this.poll_read_chain(cx, Room::NONE))?;
        }
        let count = this.plain.front().len().min(to.remaining());
        to.put_slice(&this.plain.front()[..count]);
        this.plain.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Padded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx))?;
        if this.writes == 0 {
            return Pin::new(&mut this.conn).poll_write(cx, from);
        }
        let count = from.len().min(MOST);
        this.pad(&mut BufChain::copied(&from[..count]));
        let _ = this.poll_drain(cx)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

/// Fed with random bytes: cut anywhere, the same data comes out.
pub(super) fn fuzz_padding(bytes: &[u8]) {
    let read = |cut: usize| {
        let mut reading = Reading { raw: BufChain::new(), left: PADDED, data: 0, padding: 0 };
        let mut data = BufChain::new();
        for part in bytes.chunks(cut) {
            reading.raw.append_copy(part);
            data.append(&mut reading.take());
        }
        data.to_vec()
    };
    let whole = read(bytes.len().max(1));
    assert!(whole.len() <= bytes.len());
    assert_eq!(read(1), whole);
    assert_eq!(read(3), whole);
}
