//! The two ends of a stream inside a session, above what the session itself does: the request in front of the first bytes
//! one way, the answer in front of the first bytes the other way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::codec::{MAX_TEXT, Response};

/// A stream as the client has it. The request leaves with the first bytes; the answer is waited for only by reads.
pub(super) struct Asking {
    conn: BoxStream,
    request: BufChain,
    answered: bool,
    /// Read and not yet given on.
    read: BufChain,
}

impl Asking {
    pub(super) fn new(conn: BoxStream, request: &[u8]) -> Self {
        let mut owed = BufChain::new();
        prefix(&mut owed, request, conn.room());
        Self { conn, request: owed, answered: false, read: BufChain::new() }
    }

    /// Reads the answer. Not there is what a target that said nothing leaves behind.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.answered {
            let mut more = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                if !self.read.is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                self.answered = true;
                break;
            }
            self.read.append(&mut more);
            if self.read.front()[0] == 0 {
                self.read.advance(1);
                self.answered = true;
                break;
            }
            match Response::decode(&mut Reader::new(self.read.contiguous())) {
                Ok(Response::Failed(reason)) => {
                    let error = io::Error::new(io::ErrorKind::ConnectionRefused, format!("server: {reason}"));
                    return Poll::Ready(Err(error));
                }
                Ok(Response::Connected) => {}
                Err(DecodeError::Incomplete) if self.read.len() <= MAX_TEXT + 3 => {}
                Err(error) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.request.is_empty() {
            ready!(self.conn.poll_write_chain(cx, &mut self.request))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Puts `bytes` in front of `data`: into the first piece if it has room, else into one of their own, which a small first
/// piece joins.
fn prefix(data: &mut BufChain, bytes: &[u8], room: Room) {
    const SMALL: usize = 2 << 10;
    let first = data.pop_front();
    if let Some(mut piece) = first {
        if piece.head() >= bytes.len() + room.head {
            piece.prepend(bytes);
            data.push_front(piece);
            return;
        }
        if piece.len() > SMALL {
            data.push_front(piece);
        } else {
            let mut front = Buf::new(bytes.len() + piece.len(), room.head, room.tail);
            front.append(bytes);
            front.append(&piece);
            data.push_front(front);
            return;
        }
    }
    let mut front = Buf::new(bytes.len(), room.head, room.tail);
    front.append(bytes);
    data.push_front(front);
}

impl StreamConn for Asking {
    fn room(&self) -> Room {
        let room = self.conn.room();
        Room { head: room.head + self.request.len(), ..room }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        ready!(self.poll_answer(cx))?;
        if self.read.is_empty() {
            return self.conn.poll_read_chain(cx, room);
        }
        let mut read = std::mem::take(&mut self.read);
        read.fit(room);
        Poll::Ready(Ok(read))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.request.is_empty() && !data.is_empty() {
            prefix(data, self.request.front(), self.conn.room());
            self.request = BufChain::new();
        }
        self.conn.poll_write_chain(cx, data)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }
}

impl AsyncRead for Asking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_answer(cx))?;
        if this.read.is_empty() {
            return Pin::new(&mut this.conn).poll_read(cx, to);
        }
        let count = this.read.front().len().min(to.remaining());
        to.put_slice(&this.read.front()[..count]);
        this.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Asking {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_request(cx))?;
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_request(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_request(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

/// A stream as the server has it. That the target is reached is said with the target's first bytes.
pub(super) struct Answering {
    conn: BoxStream,
    answer: Answer,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    /// The first thing that is written is the answer.
    Expected,
    /// It is good and leaves with the first bytes.
    Owed,
    Given,
}

impl Answering {
    /// The answer is what is written first.
    pub(super) fn to_be_told(conn: BoxStream) -> Self {
        Self { conn, answer: Answer::Expected }
    }

    /// The answer is good.
    pub(super) fn good(conn: BoxStream) -> Self {
        Self { conn, answer: Answer::Owed }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.answer == Answer::Owed {
            let mut chain = BufChain::new();
            prefix(&mut chain, &[0], self.conn.room());
            ready!(self.conn.poll_write_chain(cx, &mut chain))?;
            self.answer = Answer::Given;
        }
        Poll::Ready(Ok(()))
    }
}

impl StreamConn for Answering {
    fn room(&self) -> Room {
        let room = self.conn.room();
        let own = usize::from(self.answer != Answer::Given);
        Room { head: room.head + own, ..room }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        self.conn.poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if self.answer == Answer::Expected && !data.is_empty() {
            self.answer = if data.front()[0] == 0 { Answer::Owed } else { Answer::Given };
            if self.answer == Answer::Owed {
                data.advance(1);
            }
        }
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.answer == Answer::Owed {
            prefix(data, &[0], self.conn.room());
            self.answer = Answer::Given;
        }
        self.conn.poll_write_chain(cx, data)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }
}

impl AsyncRead for Answering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_read(cx, to)
    }
}

impl AsyncWrite for Answering {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if self.answer == Answer::Expected
            && let Some(status) = from.first()
        {
            self.answer = if *status == 0 { Answer::Owed } else { Answer::Given };
            if self.answer == Answer::Owed {
                return Poll::Ready(Ok(1));
            }
        }
        if !from.is_empty() {
            ready!(self.poll_answer(cx))?;
        }
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
