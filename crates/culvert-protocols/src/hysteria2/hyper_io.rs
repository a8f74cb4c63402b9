//! A stream as hyper wants it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{BufChain, Room};
use hyper::rt::ReadBufCursor;
use tokio::io::AsyncWrite;

/// See the module.
pub(super) struct Adapter {
    conn: BoxStream,
    /// Read and not taken yet.
    rest: BufChain,
}

impl Adapter {
    pub(super) fn new(conn: BoxStream) -> Self {
        Self { conn, rest: BufChain::new() }
    }
}

impl hyper::rt::Read for Adapter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            self.rest = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
        }
        let front = self.rest.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Adapter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
