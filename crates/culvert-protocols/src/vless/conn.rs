//! The client's end of a stream: the server's header comes before what it sends. Once that is read it is transparent.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::conn::copy_in;
use culvert_core::{BoxStream, Half, NoBypass, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::codec::{MAX_RESPONSE, decode_response};

pub(super) struct Answered {
    conn: BoxStream,
    /// The server's header is still to come.
    awaits: bool,
    /// Read with it, or a part of it.
    read: BufChain,
    /// Somebody writes, and sees to it that our own header leaves.
    writes: bool,
}

impl Answered {
    /// A stream on which our header is sent, or owed with the first bytes.
    pub(super) fn new(conn: BoxStream) -> Self {
        Self { conn, awaits: true, read: BufChain::new(), writes: false }
    }

    /// Reads the server's header. Ready with `false` if the stream ended in place of it.
    fn poll_header(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<bool>> {
        if !self.writes {
            // Whoever reads first waits for an answer to our header. An error comes back with the first write.
            let _ = Pin::new(&mut self.conn).poll_flush(cx);
        }
        loop {
            let mut window = [0; MAX_RESPONSE];
            let seen = self.read.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            match decode_response(&mut r) {
                Ok(()) => {
                    let len = r.position();
                    self.read.advance(len);
                    self.awaits = false;
                    return Poll::Ready(Ok(true));
                }
                Err(DecodeError::Incomplete) => {}
                Err(error) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, room))?;
            if more.is_empty() {
                // A server has nothing to say where the target had not; it ends without a header then.
                return Poll::Ready(match self.read.is_empty() {
                    true => Ok(false),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
            self.read.append(&mut more);
        }
    }
}

impl StreamConn for Answered {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.awaits && !ready!(self.poll_header(cx, room))? {
            return Poll::Ready(Ok(BufChain::new()));
        }
        if self.read.is_empty() {
            return self.conn.poll_read_chain(cx, room);
        }
        let fits =
            |piece: &Buf| piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max;
        if room.is_none() || self.read.iter().all(fits) {
            return Poll::Ready(Ok(std::mem::take(&mut self.read)));
        }
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.writes = true;
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let held = half == Half::Read && (self.awaits || !self.read.is_empty());
        if held { None } else { self.conn.kernel_socket(half) }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        if half == Half::Read && self.awaits { Err(NoBypass) } else { self.conn.bypass(half) }
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

impl AsyncRead for Answered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.awaits && !ready!(self.poll_header(cx, Room::NONE))? {
            return Poll::Ready(Ok(()));
        }
        if self.read.is_empty() {
            return Pin::new(&mut self.conn).poll_read(cx, to);
        }
        let front = self.read.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Answered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.writes = true;
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes = true;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes = true;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
