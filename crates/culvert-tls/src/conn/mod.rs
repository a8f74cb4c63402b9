//! [`TlsConn`]: a byte stream inside TLS, after the handshake.
//!
//! ```text
//! lower ─▶ raw (read, not opened) ─▶ Reading ─▶ plain (opened, not taken) ─▶ holder
//! lower ◀─ sealed (not written yet) ◀─ Writing ◀─────────────────────────── holder
//! ```
//!
//! All three queues are empty while the conn idles, except for a record of which only a part has come, and on the side
//! of a server for the session ticket, which waits for the first data. A piece that is
//! exactly one record is opened in its own memory and given away; of several in one piece the data is joined in a new
//! one by the cipher itself, so no byte is copied besides. Only a record cut in two by a read is first put together.
//!
//! # Cost
//!
//! Measured by `examples/throughput.rs` on two cores of a cloud Xeon, TLS 1.3 with AES-128-GCM. Sealing and opening a
//! byte, records alone: 5.6 GB per second of CPU time (rustls' own record layer 2.8). A download over loopback, both ends
//! and the kernel in one figure: 0.44 CPU-s/GB (tokio-rustls 0.58, plain TCP 0.22). An idle end holds 1.5 KB more than a
//! plain socket (`examples/idle.rs`): this struct and two keys with their schedules.
//!
//! # Ends
//!
//! As in Go, and so in sing-box: `close_notify` ends the stream, and so does an end of the lower stream between two
//! records, since many peers forget to say goodbye. An end inside a record is [`io::ErrorKind::UnexpectedEof`].
//! Whoever must know a whole transfer from a cut one has to count, as HTTP does.
//!
//! After `close_notify` nothing is read any more. A peer that sends only records without data is refused after
//! [`reading::MAX_USELESS`] of them, and a record is refused by its header where its length cannot be.

mod reading;
mod writing;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::conn::copy_in;
use culvert_core::{BoxStream, Half, NoBypass, StreamConn};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::record::{Opener, Sealer};
use crate::tickets::Tickets;

use reading::Reading;
use writing::Writing;

/// What a handshake hands over to the conn.
pub(crate) struct Handover {
    pub(crate) opener: Opener,
    pub(crate) sealer: Sealer,
    /// Read from the lower stream behind the handshake.
    pub(crate) raw: BufChain,
    /// The end of the handshake that has not been written: it leaves with the first data, or with the first flush.
    pub(crate) last_flight: BufChain,
    /// Whether the peer waits for `last_flight`, so that reading must send it too.
    pub(crate) awaited: bool,
    /// Where session tickets go.
    pub(crate) tickets: Option<Tickets>,
}

/// A byte stream inside TLS.
pub struct TlsConn {
    lower: BoxStream,
    reading: Reading,
    writing: Writing,
}

impl TlsConn {
    pub(crate) fn new(lower: BoxStream, handover: Handover) -> Self {
        let Handover { opener, sealer, raw, last_flight, awaited, tickets } = handover;
        Self {
            lower,
            reading: Reading::new(opener, raw, tickets),
            writing: Writing::new(sealer, last_flight, awaited),
        }
    }

    /// The stream below.
    #[must_use]
    pub fn lower(&self) -> &dyn StreamConn {
        &*self.lower
    }

    /// Leaves TLS: the stream below, and what opens the records of the peer, if there can be more. Nothing may have been read
    /// besides the handshake; what was written must have been flushed.
    #[must_use]
    pub fn into_parts(self) -> (BoxStream, Option<Opener>) {
        (self.lower, self.reading.into_opener())
    }

    /// Opens what is at hand, and reads more until there is data, an end or an error.
    fn poll_open(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        self.writing.drain_awaited(cx, &mut self.lower);
        loop {
            let opened = self.reading.open(room);
            self.answer(cx, opened.as_ref().err().and_then(reading::Fault::alert));
            let opened = opened.map_err(io::Error::from)?;
            if !opened.is_empty() || self.reading.has_ended() {
                return Poll::Ready(Ok(opened));
            }
            let raw = ready!(self.lower.poll_read_chain(cx, Room::NONE))?;
            if raw.is_empty() {
                return Poll::Ready(
                    self.reading.end_of_lower().map(|()| BufChain::new()).map_err(io::Error::from),
                );
            }
            self.reading.take_in(raw);
        }
    }

    /// Sends what reading has made necessary: a new key of ours, or the word that the stream is broken.
    fn answer(&mut self, cx: &mut Context<'_>, alert: Option<u8>) {
        if self.reading.take_update_request() {
            self.writing.owe_update();
        }
        if let Some(alert) = alert {
            self.writing.fail(alert);
        }
        self.writing.drain_awaited(cx, &mut self.lower);
    }
}

/// Shows no more than that it is one: keys and payload never reach a log.
impl fmt::Debug for TlsConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConn")
    }
}

impl StreamConn for TlsConn {
    fn room(&self) -> Room {
        self.writing.room(self.lower.room())
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.reading.holds_plain() {
            return if room.is_none() {
                Poll::Ready(Ok(self.reading.take_plain()))
            } else {
                copy_in(self, cx, room)
            };
        }
        if self.reading.is_bypassed() {
            return self.lower.poll_read_chain(cx, room);
        }
        self.poll_open(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.writing.poll_write_chain(cx, &mut self.lower, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let is_transparent = match half {
            Half::Read => self.reading.is_bypassed() && !self.reading.holds_plain(),
            Half::Write => self.writing.is_transparent(),
        };
        if is_transparent { self.lower.kernel_socket(half) } else { None }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        match half {
            Half::Read => self.reading.bypass(),
            Half::Write => self.writing.bypass(),
        }
    }

    fn abort(&mut self) {
        self.lower.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.lower.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.lower.outermost_socket()
    }
}

impl AsyncRead for TlsConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.reading.holds_plain() {
            if this.reading.is_bypassed() {
                return Pin::new(&mut this.lower).poll_read(cx, to);
            }
            let opened = ready!(this.poll_open(cx, Room::NONE))?;
            this.reading.keep_plain(opened);
        }
        this.reading.read_plain(to);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.writing.poll_write(cx, &mut this.lower, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_drain(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_close(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
