//! The client's stream in the form of HTTP/1.1.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Half, NoBypass, Prefixed, StreamConn};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::carrier::head::{MAX_HEAD, Response};
use crate::handshake::EndOfHead;

/// A stream whose head leaves with the first data, or with a flush, and which is transparent once it has been answered.
pub(super) struct Http1Conn {
    /// Behind the answer, what was read too far stands in front of it.
    conn: Prefixed,
    /// The head, as far as it has not been written, and the first data.
    head: BufChain,
    /// Data has been put behind the head.
    has_begun: bool,
    answer: Option<Answer>,
}

/// What has come of the answer.
#[derive(Default)]
struct Answer {
    read: BufChain,
    end: EndOfHead,
}

impl Http1Conn {
    pub(super) fn new(conn: BoxStream, head: String) -> Self {
        Self {
            conn: Prefixed::new(BufChain::new(), conn),
            head: BufChain::copied(head.as_bytes()),
            has_begun: false,
            answer: Some(Answer::default()),
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.head.is_empty() {
            Poll::Ready(Ok(()))
        } else {
            self.conn.poll_write_chain(cx, &mut self.head)
        }
    }

    /// Reads until the answer is there.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(answer) = &mut self.answer {
            if answer.end.is_in(answer.read.contiguous()) {
                let mut r = Reader::new(answer.read.contiguous());
                match Response::decode(&mut r) {
                    Ok(Response { status: 200, .. }) => {
                        let used = r.position();
                        answer.read.advance(used);
                        self.conn.put_back(std::mem::take(&mut answer.read));
                        self.answer = None;
                        return Poll::Ready(Ok(()));
                    }
                    Ok(Response { status, .. }) => {
                        let error = format!("server answered with status {status}");
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, error)));
                    }
                    Err(DecodeError::Incomplete) => {}
                    Err(error) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
                }
            }
            if answer.read.len() >= MAX_HEAD {
                let error = DecodeError::Invalid("HTTP response");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
            // Whoever reads first waits for an answer to what must have been sent.
            ready!(self.poll_head(cx))?;
            ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
            let mut more = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            if let Some(answer) = &mut self.answer {
                answer.read.append(&mut more);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl StreamConn for Http1Conn {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        ready!(self.poll_answer(cx))?;
        self.conn.poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.has_begun {
            // In one write with the head.
            self.has_begun = true;
            self.head.append(data);
        }
        ready!(self.poll_head(cx))?;
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let is_transparent = match half {
            Half::Read => self.answer.is_none(),
            Half::Write => self.head.is_empty(),
        };
        if is_transparent { self.conn.kernel_socket(half) } else { None }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        self.conn.bypass(half)
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

impl AsyncRead for Http1Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.conn).poll_read(cx, to)
    }
}

impl AsyncWrite for Http1Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_head(cx))?;
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_head(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_head(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
