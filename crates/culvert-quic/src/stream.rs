//! A stream of a connection, as the rest of the program knows streams.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use culvert_core::StreamConn;
use culvert_wire::{Buf, BufChain, Room};
use quinn_proto::{FinishError, ReadError, StreamId, VarInt, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{Connection, State};
use crate::writers::SHARE;

/// What one read takes at most.
const MAX_READ: usize = 64 << 10;
/// Shorter pieces are copied, so that they do not keep a large buffer until the peer has acknowledged them.
const COPY_BELOW: usize = 2 << 10;

/// A stream, in one direction or both. Dropping it ends what it sends in order, unless it was told to abort, and tells the
/// peer that nothing more is read.
pub struct QuicStream {
    connection: Connection,
    id: StreamId,
    /// Still to be read; `false` after the end.
    readable: bool,
    /// Still to be written; `false` after the end was sent.
    writable: bool,
    /// Taken over from a chain and not taken by the connection yet.
    pending: Bytes,
    /// Bytes written since it waited, or let others run.
    in_a_row: usize,
    aborting: bool,
}

impl QuicStream {
    pub(crate) fn new(connection: Connection, id: StreamId, readable: bool, writable: bool) -> Self {
        connection.conn().streams.fetch_add(1, Ordering::Relaxed);
        Self { connection, id, readable, writable, pending: Bytes::new(), in_a_row: 0, aborting: false }
    }

    /// Its number in the connection.
    #[must_use]
    pub fn id(&self) -> u64 {
        VarInt::from(self.id).into_inner()
    }

    /// The connection it belongs to.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Breaks off what is sent, with a code for the peer.
    pub fn reset(&mut self, code: u64) {
        if std::mem::take(&mut self.writable) {
            let _ = self.connection.conn().lock().proto.send_stream(self.id).reset(var(code));
            self.connection.conn().post();
        }
    }

    /// Tells the peer that nothing more is read, with a code.
    pub fn stop(&mut self, code: u64) {
        if std::mem::take(&mut self.readable) {
            let _ = self.connection.conn().lock().proto.recv_stream(self.id).stop(var(code));
            self.connection.conn().post();
        }
    }

    /// Reads what is there, at most `most` bytes, into pieces of the connection's own (`State::chunks`). The number of
    /// bytes; zero is the end.
    fn read(&mut self, cx: &mut Context<'_>, state: &mut State, most: usize) -> Poll<io::Result<usize>> {
        let State { proto, chunks: pieces, readers, ended, .. } = state;
        let mut recv = proto.recv_stream(self.id);
        let Ok(mut chunks) = recv.read(true) else {
            // It was read to its end, or stopped.
            self.readable = false;
            return Poll::Ready(Ok(0));
        };
        let mut total = 0;
        let end = loop {
            if total == most {
                break None;
            }
            match chunks.next(most - total) {
                Ok(Some(chunk)) => {
                    total += chunk.bytes.len();
                    pieces.push(chunk.bytes);
                }
                Ok(None) => break Some(Ok(())),
                Err(error) => break Some(Err(error)),
            }
        };
        if chunks.finalize().should_transmit() {
            self.connection.conn().post();
        }
        if total > 0 {
            return Poll::Ready(Ok(total));
        }
        match end {
            Some(Ok(())) => {
                self.readable = false;
                Poll::Ready(Ok(0))
            }
            Some(Err(ReadError::Reset(_))) => {
                self.readable = false;
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            Some(Err(ReadError::Blocked)) | None => match ended {
                Some(error) => Poll::Ready(Err(error.clone().into())),
                None => {
                    readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }

    /// Writes from the front of `data` until it is empty.
    fn write(&mut self, cx: &mut Context<'_>, state: &mut State, data: &mut Bytes) -> Poll<io::Result<()>> {
        while !data.is_empty() {
            let written = ready!(self.offer(cx, state, |mut send| {
                let written = send.write_chunks(std::slice::from_mut(data))?;
                if written.chunks == 1 {
                    *data = Bytes::new();
                }
                Ok(written.bytes)
            }));
            written?;
        }
        Poll::Ready(Ok(()))
    }

    /// Has the connection take something, when it is this stream's turn. The number of bytes it took.
    fn offer(
        &mut self,
        cx: &mut Context<'_>,
        state: &mut State,
        write: impl FnOnce(quinn_proto::SendStream<'_>) -> Result<usize, WriteError>,
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone().into()));
        }
        if self.in_a_row >= SHARE && state.writers.others(self.id) {
            self.in_a_row = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match write(state.proto.send_stream(self.id)) {
            Ok(count) => {
                state.writers.leave(self.id);
                self.in_a_row += count;
                Poll::Ready(Ok(count))
            }
            Err(WriteError::Blocked) => {
                self.in_a_row = 0;
                state.writers.wait(self.id, cx.waker());
                Poll::Pending
            }
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                state.writers.leave(self.id);
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    /// Gives the connection what was taken over from a chain before.
    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut pending = std::mem::take(&mut self.pending);
        let before = pending.len();
        let connection = self.connection.clone();
        let result = self.write(cx, &mut connection.conn().lock(), &mut pending);
        let moved = pending.len() < before;
        self.pending = pending;
        if moved {
            self.connection.conn().post();
        }
        result
    }
}

fn var(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

impl AsyncRead for QuicStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.readable || to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let connection = stream.connection.clone();
        let mut state = connection.conn().lock();
        ready!(stream.read(cx, &mut state, to.remaining()))?;
        for piece in state.chunks.drain(..) {
            to.put_slice(&piece);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if !stream.writable {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(stream.poll_pending(cx))?;
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let connection = stream.connection.clone();
        let result = stream.offer(cx, &mut connection.conn().lock(), |mut send| send.write(from));
        if matches!(result, Poll::Ready(Ok(_))) {
            connection.conn().post();
        }
        result
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_pending(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.writable {
            return Poll::Ready(Ok(()));
        }
        ready!(stream.poll_pending(cx))?;
        stream.writable = false;
        let finished = stream.connection.conn().lock().proto.send_stream(stream.id).finish();
        stream.connection.conn().post();
        match finished {
            // A peer that wants nothing more has got all it wanted.
            Ok(()) | Err(FinishError::Stopped(_) | FinishError::ClosedStream) => Poll::Ready(Ok(())),
        }
    }
}

impl StreamConn for QuicStream {
    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !self.readable {
            return Poll::Ready(Ok(BufChain::new()));
        }
        let connection = self.connection.clone();
        let mut state = connection.conn().lock();
        let most = MAX_READ.min(room.max);
        let total = ready!(self.read(cx, &mut state, most))?;
        let mut pieces = std::mem::take(&mut state.chunks);
        drop(state);
        let mut buf = Buf::new(total, room.head, room.tail);
        for piece in pieces.drain(..) {
            buf.append(&piece);
        }
        if pieces.capacity() <= 128 {
            connection.conn().lock().chunks = pieces;
        }
        Poll::Ready(Ok(buf.into()))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.writable {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_pending(cx))?;
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let connection = self.connection.clone();
        let mut state = connection.conn().lock();
        let mut result = Poll::Ready(Ok(()));
        while let Some(piece) = data.pop_front() {
            // Memory that is mostly empty is not kept until the peer has acknowledged what is in it, either.
            let wasted = piece.head() + piece.spare() > piece.len();
            let mut bytes = if piece.len() < COPY_BELOW || wasted {
                Bytes::copy_from_slice(&piece)
            } else {
                Bytes::from_owner(piece)
            };
            result = self.write(cx, &mut state, &mut bytes);
            if !matches!(result, Poll::Ready(Ok(()))) {
                self.pending = bytes;
                break;
            }
        }
        drop(state);
        connection.conn().post();
        result
    }

    fn abort(&mut self) {
        self.aborting = true;
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        let conn = self.connection.conn();
        conn.streams.fetch_sub(1, Ordering::Relaxed);
        let mut state = conn.lock();
        state.readers.remove(&self.id);
        state.writers.leave(self.id);
        if self.readable {
            let _ = state.proto.recv_stream(self.id).stop(VarInt::from_u32(0));
        }
        if self.writable {
            let mut send = state.proto.send_stream(self.id);
            if self.aborting || !self.pending.is_empty() || send.finish().is_err() {
                let _ = send.reset(VarInt::from_u32(0));
            }
        }
        drop(state);
        conn.post();
    }
}
