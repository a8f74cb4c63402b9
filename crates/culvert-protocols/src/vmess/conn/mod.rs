//! [`VmessConn`]: the bytes of a connection inside VMess, and [`Ends`], which it shares with the conn for datagrams.
//!
//! ```text
//! lower ─▶ raw (read, not opened) ─▶ Reading ─▶ plain (opened, not taken) ─▶ holder
//! lower ◀─ sealed (not written yet) ◀─ Writing ◀─────────────────────────── holder
//! ```
//!
//! All queues are empty while the conn idles, except for a chunk of which only a part has come. Chunks that lie one
//! behind the other are opened into one piece of memory by the cipher itself, so no byte is copied besides; only a chunk
//! cut in two by a read is first put together. Where the body is not encrypted and has no chunks, the conn is transparent
//! once both headers are through.
//!
//! # Ends
//!
//! An end of the lower stream between two chunks is the end, and so is an empty chunk, which Xray and v2ray send. None is
//! sent: sing-box sends none, its server does not take it for the end, and it is a tell. An end inside a chunk is an error.

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

pub(super) use self::reading::{Answer, Reading};
pub(super) use self::writing::{Head, Writing};
use super::chunk::Fault;

/// Both directions of a connection whose headers are made or read.
pub(super) struct Ends {
    pub(super) lower: BoxStream,
    pub(super) reading: Reading,
    pub(super) writing: Writing,
}

/// A byte stream inside VMess.
pub(super) struct VmessConn {
    ends: Ends,
    /// Opened and not taken.
    plain: BufChain,
}

impl VmessConn {
    pub(super) fn new(ends: Ends) -> Self {
        Self { ends, plain: BufChain::new() }
    }

    #[cfg(test)]
    pub(super) fn ends_for_test(&mut self) -> &mut Ends {
        &mut self.ends
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.plain.is_empty() && self.ends.reading.is_empty() && !self.ends.writing.holds_sealed()
    }

    /// What has come already, opened, without reading more.
    pub(super) fn take_early(&mut self) -> BufChain {
        self.ends.reading.open_early()
    }

    /// Opens what is at hand, and reads more until there is data, an end or an error.
    fn poll_open(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let Ends { lower, reading, writing } = &mut self.ends;
        writing.drain_awaited(cx, lower);
        loop {
            let opened = reading.open(room)?;
            if !opened.is_empty() || reading.has_ended() {
                return Poll::Ready(Ok(opened));
            }
            if reading.is_raw() {
                return lower.poll_read_chain(cx, room);
            }
            let raw = ready!(lower.poll_read_chain(cx, reading.wanted_room(room)))?;
            if raw.is_empty() {
                return Poll::Ready(
                    reading.end_of_lower().map(|()| BufChain::new()).map_err(io::Error::from),
                );
            }
            reading.take_in(raw);
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Cut => io::ErrorKind::UnexpectedEof,
            Fault::Length | Fault::Changed | Fault::Answer => io::ErrorKind::InvalidData,
            Fault::Failed => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, fault)
    }
}

/// Shows no more than that it is one: keys and payload never reach a log.
impl fmt::Debug for VmessConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VmessConn")
    }
}

impl StreamConn for VmessConn {
    fn room(&self) -> Room {
        self.ends.writing.room(self.ends.lower.room())
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !self.plain.is_empty() {
            return if room.is_none() {
                Poll::Ready(Ok(std::mem::take(&mut self.plain)))
            } else {
                copy_in(self, cx, room)
            };
        }
        self.poll_open(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.ends.writing.poll_write_chain(cx, &mut self.ends.lower, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let is_transparent = match half {
            Half::Read => self.ends.reading.is_transparent() && self.plain.is_empty(),
            Half::Write => self.ends.writing.is_transparent(),
        };
        if is_transparent { self.ends.lower.kernel_socket(half) } else { None }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        // Only where there is nothing of ours around the bytes, and nothing of ours on the way.
        let is_transparent = match half {
            Half::Read => self.ends.reading.is_transparent(),
            Half::Write => self.ends.writing.is_transparent(),
        };
        if is_transparent { self.ends.lower.bypass(half) } else { Err(NoBypass) }
    }

    fn abort(&mut self) {
        self.ends.lower.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.ends.lower.local_addr()
    }
}

impl AsyncRead for VmessConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if this.plain.is_empty() {
            this.plain = ready!(this.poll_open(cx, Room::NONE))?;
        }
        while to.remaining() > 0 && !this.plain.is_empty() {
            let front = this.plain.front();
            let count = front.len().min(to.remaining());
            to.put_slice(&front[..count]);
            this.plain.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for VmessConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let Ends { lower, writing, .. } = &mut self.ends;
        writing.poll_write(cx, lower, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Ends { lower, writing, .. } = &mut self.ends;
        writing.poll_flush(cx, lower)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Ends { lower, writing, .. } = &mut self.ends;
        writing.poll_close(cx, lower)
    }
}
