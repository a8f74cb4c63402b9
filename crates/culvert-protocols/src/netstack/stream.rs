//! A connection of the stack as a stream.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use culvert_core::{DialError, DialOutcome, StreamConn};
use culvert_stack::icmp::Unreachable;
use culvert_stack::tcp::conn::Broken;
use culvert_stack::{ConnId, ReadOutcome, Refusal};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::engine::{Engine, Wait};

/// Bytes of one piece where pieces have to be made anew.
const PIECE: usize = 16 << 10;
/// Longest piece that is asked for: one train. Longer ones would wait as a whole until their last byte is acknowledged.
const TRAIN: usize = 64 << 10;

/// A connection: a client's, or one that was opened from here. A client's is not answered before the dial has ended, see [`StreamConn::answer`].
pub(crate) struct NetStream {
    id: ConnId,
    engine: Arc<Engine>,
    answered: bool,
    /// Where it was opened from.
    local: Option<SocketAddr>,
    /// Read by whoever takes bytes one by one, and not taken yet.
    held: BufChain,
}

impl NetStream {
    pub(crate) fn knocking(id: ConnId, engine: Arc<Engine>) -> Self {
        Self { id, engine, answered: false, local: None, held: BufChain::new() }
    }

    /// One that was opened from `local`.
    pub(crate) fn opened(id: ConnId, engine: Arc<Engine>, local: SocketAddr) -> Self {
        Self { id, engine, answered: true, local: Some(local), held: BufChain::new() }
    }

    /// The client has been let in already; how its dial ends will show as the end of the stream.
    pub(crate) fn set_answered(&mut self) {
        self.answered = true;
    }

    /// Waits until the peer has answered.
    pub(crate) fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.id;
        self.engine.with(|inner, _| match inner.stack.opened(id) {
            Some(outcome) => Poll::Ready(outcome.map_err(error)),
            None => {
                inner.wait(id, Wait::Write, cx.waker());
                Poll::Pending
            }
        })
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BufChain>> {
        let id = self.id;
        self.engine.with(|inner, now| match inner.stack.read(id, now) {
            ReadOutcome::Data(data) => Poll::Ready(Ok(data)),
            ReadOutcome::End => Poll::Ready(Ok(BufChain::new())),
            ReadOutcome::Broken(why) => Poll::Ready(Err(error(why))),
            ReadOutcome::Blocked => {
                inner.wait(id, Wait::Read, cx.waker());
                Poll::Pending
            }
        })
    }
}

fn error(why: Broken) -> io::Error {
    match why {
        Broken::Reset => io::ErrorKind::ConnectionReset,
        Broken::Refused => io::ErrorKind::ConnectionRefused,
        Broken::TimedOut => io::ErrorKind::TimedOut,
    }
    .into()
}

/// Pieces with `room` around each: the very pieces where they have it.
fn with_room(mut data: BufChain, room: Room) -> BufChain {
    if room.is_none() {
        return data;
    }
    let mut out = BufChain::new();
    while let Some(piece) = data.pop_front() {
        if piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max {
            out.push_back(piece);
            continue;
        }
        for part in piece.chunks(room.max.min(PIECE)) {
            let mut made = Buf::new(part.len(), room.head, room.tail);
            made.append(part);
            out.push_back(made);
        }
    }
    out
}

impl StreamConn for NetStream {
    fn room(&self) -> Room {
        Room { max: TRAIN, ..Room::NONE }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let data =
            if self.held.is_empty() { ready!(self.poll_take(cx))? } else { std::mem::take(&mut self.held) };
        Poll::Ready(Ok(with_room(data, room)))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        let id = self.id;
        self.engine.with(|inner, now| match inner.stack.write(id, data, now) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => {
                inner.wait(id, Wait::Write, cx.waker());
                Poll::Pending
            }
            Err(why) => Poll::Ready(Err(error(why))),
        })
    }

    fn abort(&mut self) {
        let id = self.id;
        self.engine.with(|inner, now| inner.stack.abort(id, now));
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let id = self.id;
        self.engine.with(|inner, now| match outcome {
            DialOutcome::Connected(_) => inner.stack.accept(id, now),
            DialOutcome::Failed(error) => inner.stack.refuse(id, refusal(error), now),
        });
    }
}

/// What a client is told whose dial failed: what it would have been told without a proxy in between.
pub(super) fn refusal(error: &DialError) -> Refusal {
    match error {
        DialError::Outbound { source, .. } => refusal(source),
        DialError::Dropped(_) => Refusal::Drop,
        DialError::Rejected(_) => Refusal::Reset,
        other => match other.kind() {
            io::ErrorKind::NetworkUnreachable => Refusal::Unreachable(Unreachable::Network),
            io::ErrorKind::HostUnreachable | io::ErrorKind::TimedOut => {
                Refusal::Unreachable(Unreachable::Host)
            }
            _ => Refusal::Reset,
        },
    }
}

impl AsyncRead for NetStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            self.held = ready!(self.poll_take(cx))?;
        }
        while to.remaining() > 0 && !self.held.is_empty() {
            let front = self.held.front();
            let count = front.len().min(to.remaining());
            to.put_slice(&front[..count]);
            self.held.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NetStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let part = &from[..from.len().min(PIECE)];
        let mut data = BufChain::copied(part);
        match self.poll_write_chain(cx, &mut data) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(part.len())),
            // Whole pieces are taken, and this was one.
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.id;
        self.engine.with(|inner, now| inner.stack.shut_down(id, now));
        Poll::Ready(Ok(()))
    }
}

impl Drop for NetStream {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.with(|inner, now| {
            inner.forget(id);
            inner.stack.release(id, now);
        });
    }
}
