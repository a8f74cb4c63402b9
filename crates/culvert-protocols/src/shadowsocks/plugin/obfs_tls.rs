//! simple-obfs as TLS: what looks like records, with nothing sealed in them.
//!
//! ```text
//! first write   ClientHello with the bytes in place of a session ticket
//! later         17 0303 | length 2 | bytes     at most 16384 each
//! reading       105 bytes that look like a ServerHello and what follows it, the last 5 of them the head of a record
//! ```

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::chunks::{Fault, Open, Reading, Seal, Writing};
use crate::shadowsocks::codec::fill_random;
use crate::shadowsocks::conn::unix_now;

/// Bytes of a record before what it carries.
const HEAD: usize = 5;
/// Most bytes that one carries.
const MAX: usize = 1 << 14;
/// Bytes before the server's first record: its hello, and the word that it changes ciphers.
const GREETING: usize = 96 + 6;

const SUITES: [u8; 56] = [
    0xc0, 0x2c, 0xc0, 0x30, 0x00, 0x9f, 0xcc, 0xa9, 0xcc, 0xa8, 0xcc, 0xaa, 0xc0, 0x2b, 0xc0, 0x2f, 0x00,
    0x9e, 0xc0, 0x24, 0xc0, 0x28, 0x00, 0x6b, 0xc0, 0x23, 0xc0, 0x27, 0x00, 0x67, 0xc0, 0x0a, 0xc0, 0x14,
    0x00, 0x39, 0xc0, 0x09, 0xc0, 0x13, 0x00, 0x33, 0x00, 0x9d, 0x00, 0x9c, 0x00, 0x3d, 0x00, 0x3c, 0x00,
    0x35, 0x00, 0x2f, 0x00, 0xff,
];

/// Point formats, groups, signature algorithms, encrypt-then-MAC, extended master secret.
const EXTENSIONS: [u8; 66] = [
    0x00, 0x0b, 0x00, 0x04, 0x03, 0x01, 0x00, 0x02, 0x00, 0x0a, 0x00, 0x0a, 0x00, 0x08, 0x00, 0x1d, 0x00,
    0x17, 0x00, 0x19, 0x00, 0x18, 0x00, 0x0d, 0x00, 0x20, 0x00, 0x1e, 0x06, 0x01, 0x06, 0x02, 0x06, 0x03,
    0x05, 0x01, 0x05, 0x02, 0x05, 0x03, 0x04, 0x01, 0x04, 0x02, 0x04, 0x03, 0x03, 0x01, 0x03, 0x02, 0x03,
    0x03, 0x02, 0x01, 0x02, 0x02, 0x02, 0x03, 0x00, 0x16, 0x00, 0x00, 0x00, 0x17, 0x00, 0x00,
];

/// A record that carries bytes as they are.
struct Bare;

impl Seal for Bare {
    fn room(&self) -> Room {
        Room { head: HEAD, tail: 0, max: MAX }
    }

    fn seal(&mut self, piece: &mut Buf) {
        let [high, low] = (piece.len() as u16).to_be_bytes();
        piece.prepend(&[0x17, 3, 3, high, low]);
    }
}

impl Open for Bare {
    const HEAD: usize = HEAD;

    fn head(&mut self, head: &mut [u8]) -> Result<usize, Fault> {
        match *head {
            [_, _, _, high, low] => Ok(u16::from_be_bytes([high, low]).into()),
            _ => Err(Fault::Length),
        }
    }

    fn space_for(&self, len: usize) -> usize {
        len
    }

    fn open(&mut self, body: &mut [u8]) -> Result<Range<usize>, Fault> {
        Ok(0..body.len())
    }

    fn open_into(&mut self, body: &mut [u8], to: &mut [u8]) -> Result<usize, Fault> {
        to.copy_from_slice(body);
        Ok(body.len())
    }
}

/// A stream in what looks like TLS.
pub(super) struct ObfsTls {
    lower: BoxStream,
    /// The name that the hello asks for, until it has.
    host: Option<String>,
    /// Bytes of the server's greeting that are still to come.
    greeting: usize,
    reading: Reading<Bare>,
    writing: Writing<Bare>,
}

impl ObfsTls {
    /// `host` has fewer than 256 bytes.
    pub(super) fn new(lower: BoxStream, host: String) -> Self {
        Self {
            lower,
            host: Some(host),
            greeting: GREETING,
            reading: Reading::new(Bare, BufChain::new()),
            writing: Writing::new(Bare, BufChain::new()),
        }
    }

    /// Puts the hello, if it is still to be sent, in front of what is written, and as much of `data` into it as it takes.
    fn greet(&mut self, data: &mut BufChain) {
        if let Some(host) = self.host.take() {
            let hello = client_hello(&host, data, self.lower.room());
            self.writing = Writing::new(Bare, hello.into());
        }
    }

    /// Reads the server's greeting. `Ready(false)` is the end of the stream before a byte of it.
    fn poll_greeting(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.greeting > 0 {
            let mut more = ready!(self.lower.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                let none = self.greeting == GREETING;
                return Poll::Ready(if none { Ok(false) } else { Err(Fault::Cut.into()) });
            }
            let count = more.len().min(self.greeting);
            more.advance(count);
            self.greeting -= count;
            self.reading.take_in(more);
        }
        Poll::Ready(Ok(true))
    }
}

/// The first message, which takes bytes off the front of `data`.
fn client_hello(host: &str, data: &mut BufChain, around: Room) -> Buf {
    let len = data.len().min(MAX - 512);
    let (n, s) = (len as u16, host.len() as u16);
    let mut hello = Vec::with_capacity(217 + len + host.len());
    let mut random = [0; 28 + 32];
    fill_random(&mut random);
    hello.extend([0x16, 3, 1]);
    hello.extend((212 + n + s).to_be_bytes());
    hello.extend([1, 0]);
    hello.extend((208 + n + s).to_be_bytes());
    hello.extend([3, 3]);
    hello.extend((unix_now() as u32).to_be_bytes());
    hello.extend(&random[..28]);
    hello.push(32);
    hello.extend(&random[28..]);
    hello.extend((SUITES.len() as u16).to_be_bytes());
    hello.extend(SUITES);
    hello.extend([1, 0]);
    hello.extend((79 + n + s).to_be_bytes());
    hello.extend([0, 0x23]);
    hello.extend(n.to_be_bytes());
    let at = hello.len();
    hello.resize(at + len, 0);
    data.peek(&mut hello[at..]);
    data.advance(len);
    hello.extend([0, 0]);
    hello.extend((s + 5).to_be_bytes());
    hello.extend((s + 3).to_be_bytes());
    hello.push(0);
    hello.extend(s.to_be_bytes());
    hello.extend(host.as_bytes());
    hello.extend(EXTENSIONS);
    let mut buf = Buf::new(hello.len(), around.head, around.tail);
    buf.append(&hello);
    buf
}

impl StreamConn for ObfsTls {
    fn room(&self) -> Room {
        self.writing.room(self.lower.room())
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !ready!(self.poll_greeting(cx))? {
            return Poll::Ready(Ok(BufChain::new()));
        }
        self.reading.poll_read_chain(cx, &mut self.lower, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !data.is_empty() {
            self.greet(data);
        }
        self.writing.poll_write_chain(cx, &mut self.lower, data)
    }

    fn abort(&mut self) {
        self.lower.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.lower.local_addr()
    }

    fn outermost_socket(&self) -> Option<&tokio::net::TcpStream> {
        self.lower.outermost_socket()
    }
}

impl AsyncRead for ObfsTls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !ready!(this.poll_greeting(cx))? {
            return Poll::Ready(Ok(()));
        }
        this.reading.poll_read(cx, &mut this.lower, to)
    }
}

impl AsyncWrite for ObfsTls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if from.is_empty() || this.host.is_none() {
            return this.writing.poll_write(cx, &mut this.lower, from);
        }
        let mut data = BufChain::copied(&from[..from.len().min(MAX / 2)]);
        let offered = data.len();
        this.greet(&mut data);
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = this.writing.poll_drain(cx, &mut this.lower);
        Poll::Ready(Ok(offered - data.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_drain(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_drain(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_shutdown(cx)
    }
}
