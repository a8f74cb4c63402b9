//! Between the frames of HTTP/2 and the stream they travel on: large reads, writes gathered into pieces that the stream can
//! seal in place.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::traffic::Traffic;

/// Bytes gathered before they are written without being flushed.
const BATCH: usize = 128 << 10;
/// Bytes of one gathered piece, at most.
const PIECE: usize = 16 << 10;

/// A stream for the `h2` crate. Copies each byte once each way; holds nothing while it idles.
pub(super) struct Io {
    conn: BoxStream,
    /// Read and not taken.
    read: BufChain,
    /// Gathered and not written.
    out: BufChain,
    /// The last piece of what is gathered.
    filling: Option<Buf>,
    traffic: Arc<Traffic>,
}

impl Io {
    /// `early` was read from `conn` before.
    pub(super) fn new(conn: BoxStream, early: BufChain, traffic: Arc<Traffic>) -> Self {
        Self { conn, read: early, out: BufChain::new(), filling: None, traffic }
    }

    fn gather(&mut self, mut bytes: &[u8]) {
        let room = self.conn.room();
        let most = PIECE.min(room.max);
        while !bytes.is_empty() {
            let piece = self.filling.get_or_insert_with(|| Buf::new(most, room.head, room.tail));
            let count = (most - piece.len()).min(bytes.len());
            piece.append(&bytes[..count]);
            bytes = &bytes[count..];
            if piece.len() == most {
                self.out.extend(self.filling.take());
            }
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.out.extend(self.filling.take());
        if self.out.is_empty() { Poll::Ready(Ok(())) } else { self.conn.poll_write_chain(cx, &mut self.out) }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read.is_empty() {
            this.read = ready!(this.conn.poll_read_chain(cx, Room::NONE))?;
            this.traffic.hear();
        }
        while to.remaining() > 0 && !this.read.is_empty() {
            let count = this.read.front().len().min(to.remaining());
            to.put_slice(&this.read.front()[..count]);
            this.read.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.out.len() >= BATCH {
            ready!(self.poll_drain(cx))?;
        }
        from.iter().for_each(|slice| self.gather(slice));
        Poll::Ready(Ok(from.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
