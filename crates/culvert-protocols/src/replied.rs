//! A stream whose first bytes from the server are its reply.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Half, StreamConn};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Reads a reply: what the server says against the connection, if it does.
pub(crate) type DecodeReply = fn(&mut Reader<'_>) -> Result<Result<(), String>, DecodeError>;

/// See the module. A refusal is an error of the first read: the client's application has sent its first bytes by then.
pub(crate) struct Replied {
    conn: BoxStream,
    decode: DecodeReply,
    /// Longest reply.
    most: usize,
    /// The reply is still to come.
    waiting: bool,
    /// What has come and was not given out.
    held: BufChain,
}

impl Replied {
    /// `conn`, by which a reply of at most `most` bytes comes first.
    pub(crate) fn new(conn: BoxStream, decode: DecodeReply, most: usize) -> Self {
        Self { conn, decode, most, waiting: true, held: BufChain::new() }
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting {
            let mut more = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.held.append(&mut more);
            let mut reader = Reader::new(self.held.contiguous());
            match (self.decode)(&mut reader) {
                Ok(Ok(())) => {
                    let used = reader.position();
                    self.held.advance(used);
                    self.waiting = false;
                }
                Ok(Err(reason)) => {
                    let error =
                        io::Error::new(io::ErrorKind::ConnectionRefused, format!("server refused: {reason}"));
                    return Poll::Ready(Err(error));
                }
                Err(DecodeError::Incomplete) if self.held.len() <= self.most => {}
                Err(_) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "invalid reply of the server",
                    )));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Replied {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_reply(cx))?;
        if self.held.is_empty() {
            return Pin::new(&mut self.conn).poll_read(cx, to);
        }
        let front = self.held.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.held.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replied {
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

impl StreamConn for Replied {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        ready!(self.poll_reply(cx))?;
        if self.held.is_empty() {
            return self.conn.poll_read_chain(cx, room);
        }
        let mut held = std::mem::take(&mut self.held);
        held.fit(room);
        Poll::Ready(Ok(held))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        self.conn.kernel_socket(half)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }
}
