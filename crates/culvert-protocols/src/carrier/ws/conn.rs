//! The stream inside frames.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::rand;
use culvert_core::conn::copy_in;
use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::codec::{self, MAX_HEAD, NORMAL, Parser};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    /// Masks what it sends.
    Client,
    Server,
}

/// A stream inside the frames of another. All that is written at once is one frame.
///
/// Frames are taken out of the pieces they were read in, and written with their heads in the room of the pieces they are
/// made of, so payload is masked in place and not copied; of several frames in one piece the payload is moved together.
/// Nothing is held while it idles.
pub(super) struct WsConn {
    lower: BoxStream,
    side: Side,
    parser: Parser,
    /// Read from the lower stream before this one was made.
    held: BufChain,
    /// Data that has not been taken.
    plain: BufChain,
    /// Frames that have not been written.
    out: BufChain,
    /// The stream below has not passed on all that it took.
    blocked: bool,
    /// Our end has been sent, or waits in `out`.
    closed: bool,
    /// The end of the lower stream has been sent.
    shut: bool,
}

impl WsConn {
    /// `held` was read from `lower` behind the request or the response, `plain` came with it.
    pub(super) fn new(lower: BoxStream, side: Side, held: BufChain, plain: BufChain) -> Self {
        let parser = match side {
            Side::Client => Parser::default(),
            Side::Server => Parser::of_server(),
        };
        let out = BufChain::new();
        Self { lower, side, parser, held, plain, out, blocked: false, closed: false, shut: false }
    }

    fn key(&self) -> io::Result<Option<[u8; 4]>> {
        if self.side == Side::Server {
            return Ok(None);
        }
        let mut key = [0; 4];
        rand::fill(&mut key).map_err(|_| io::Error::other("no random bytes"))?;
        Ok(Some(key))
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() && !self.blocked {
            return Poll::Ready(Ok(()));
        }
        self.blocked = true;
        ready!(self.lower.poll_write_chain(cx, &mut self.out))?;
        self.blocked = false;
        Poll::Ready(Ok(()))
    }

    /// Takes data out of the frames that come. An empty chain is the end.
    fn poll_frames(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        loop {
            if self.parser.has_ended() {
                return Poll::Ready(self.ended());
            }
            let mut raw = std::mem::take(&mut self.held);
            if raw.is_empty() {
                raw = ready!(self.lower.poll_read_chain(cx, room))?;
                if raw.is_empty() {
                    return Poll::Ready(self.end_of_lower());
                }
            }
            let mut data = BufChain::new();
            while let Some(mut piece) = raw.pop_front() {
                self.parser.take(&mut piece).map_err(invalid)?;
                data.push_back(piece);
            }
            self.answer(cx)?;
            if !data.is_empty() {
                return Poll::Ready(Ok(data));
            }
        }
    }

    fn ended(&self) -> io::Result<BufChain> {
        if self.parser.ended_well() {
            return Ok(BufChain::new());
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "WebSocket: the peer has ended with a fault"))
    }

    fn end_of_lower(&self) -> io::Result<BufChain> {
        if self.parser.is_answered() {
            return Ok(BufChain::new());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "WebSocket: cut off"))
    }

    /// Sends what reading has made necessary, as far as that goes without waiting.
    fn answer(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(payload) = self.parser.take_ping()
            && self.out.is_empty()
            && !self.closed
        {
            self.out.push_back(codec::pong(&payload, self.key()?));
            if let Poll::Ready(Ok(())) = self.poll_drain(cx) {
                let _ = Pin::new(&mut self.lower).poll_flush(cx);
            }
        }
        if self.parser.is_answered() && !self.shut && self.out.is_empty() {
            // Both have said that nothing more comes of them, whatever this peer still sends.
            self.shut = Pin::new(&mut self.lower).poll_shutdown(cx).is_ready();
        }
        Ok(())
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl StreamConn for WsConn {
    fn room(&self) -> Room {
        self.lower.room().around(Room { head: MAX_HEAD, ..Room::NONE })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.plain.is_empty() && !self.held.is_empty() {
            // These pieces have not the room that is asked for.
            self.plain = ready!(self.poll_frames(cx, room))?;
            if self.plain.is_empty() {
                return Poll::Ready(Ok(BufChain::new()));
            }
        }
        if self.plain.is_empty() {
            return self.poll_frames(cx, room);
        }
        if room.is_none() {
            return Poll::Ready(Ok(std::mem::take(&mut self.plain)));
        }
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_drain(cx))?;
            if data.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.closed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let key = self.key()?;
            codec::frame(data, key, &mut self.out);
        }
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

impl AsyncRead for WsConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.plain.is_empty() {
            self.plain = ready!(self.poll_frames(cx, Room::NONE))?;
        }
        while to.remaining() > 0 && !self.plain.is_empty() {
            let count = self.plain.front().len().min(to.remaining());
            to.put_slice(&self.plain.front()[..count]);
            self.plain.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WsConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        const MOST: usize = 64 << 10;
        ready!(self.poll_drain(cx))?;
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = &from[..from.len().min(MOST)];
        if taken.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = self.room();
        let mut data = BufChain::new();
        for part in taken.chunks(room.max) {
            let mut piece = Buf::new(part.len(), room.head, room.tail);
            piece.append(part);
            data.push_back(piece);
        }
        let key = self.key()?;
        codec::frame(&mut data, key, &mut self.out);
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = self.poll_drain(cx);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed {
            self.closed = true;
            let key = self.key()?;
            self.out.push_back(codec::close(NORMAL, key));
            if !self.parser.has_ended() {
                self.parser.await_answer();
            }
        }
        ready!(self.poll_drain(cx))?;
        ready!(Pin::new(&mut self.lower).poll_flush(cx))?;
        if self.parser.has_ended() && !self.shut {
            ready!(Pin::new(&mut self.lower).poll_shutdown(cx))?;
            self.shut = true;
        }
        Poll::Ready(Ok(()))
    }
}
