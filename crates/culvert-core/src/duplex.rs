//! A byte stream in memory, for parts of the program that speak to each other as if over a socket.
//!
//! Pieces written to one end come out of the other as they are, without a copy, if they have the room that the reader
//! asks for; to that end each end's [`StreamConn::room`] is what the other end's reader has last asked for.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::conn::StreamConn;

/// One end of a stream in memory. Dropping it ends the direction it writes, as closing a socket does, and makes the
/// other end's writes fail.
pub struct Duplex {
    read: Arc<Mutex<Pipe>>,
    write: Arc<Mutex<Pipe>>,
    /// Bytes under way in one direction above which writes wait. A write that begins below it is taken whole.
    capacity: usize,
    aborts: bool,
}

/// Two ends of a stream; each direction holds about `capacity` bytes.
#[must_use]
pub fn duplex(capacity: usize) -> (Duplex, Duplex) {
    let (a, b) = (Arc::<Mutex<Pipe>>::default(), Arc::<Mutex<Pipe>>::default());
    let one = Duplex { read: Arc::clone(&a), write: Arc::clone(&b), capacity, aborts: false };
    (one, Duplex { read: b, write: a, capacity, aborts: false })
}

impl Duplex {
    /// Whether nothing more will be written to the other end, though bytes may still wait here.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        lock(&self.read).end.is_some()
    }
}

/// One direction.
#[derive(Default)]
struct Pipe {
    pieces: BufChain,
    /// What the reader wants around each piece.
    room: Room,
    end: Option<End>,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How the writer has ended.
#[derive(Clone, Copy, Eq, PartialEq)]
enum End {
    Orderly,
    Aborted,
}

impl Pipe {
    fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
        wake(&mut self.reader);
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.end {
            _ if !self.pieces.is_empty() => {}
            Some(End::Orderly) => {}
            Some(End::Aborted) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                self.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>, capacity: usize) -> Poll<io::Result<()>> {
        if self.reader_gone || self.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.pieces.len() >= capacity {
            self.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamConn for Duplex {
    fn room(&self) -> Room {
        lock(&self.write).room
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let mut pipe = lock(&self.read);
        pipe.room = room;
        ready!(pipe.poll_readable(cx))?;
        let mut pieces = std::mem::take(&mut pipe.pieces);
        wake(&mut pipe.writer);
        drop(pipe);
        pieces.fit(room);
        Poll::Ready(Ok(pieces))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut pipe = lock(&self.write);
        ready!(pipe.poll_writable(cx, self.capacity))?;
        pipe.pieces.append(data);
        wake(&mut pipe.reader);
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        self.aborts = true;
    }
}

impl AsyncRead for Duplex {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.read);
        ready!(pipe.poll_readable(cx))?;
        while to.remaining() > 0 && !pipe.pieces.is_empty() {
            let count = pipe.pieces.front().len().min(to.remaining());
            to.put_slice(&pipe.pieces.front()[..count]);
            pipe.pieces.advance(count);
        }
        wake(&mut pipe.writer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = lock(&self.write);
        ready!(pipe.poll_writable(cx, self.capacity))?;
        let count = from.len().min(self.capacity - pipe.pieces.len());
        pipe.pieces.append_copy(&from[..count]);
        wake(&mut pipe.reader);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.write).end(End::Orderly);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        lock(&self.write).end(if self.aborts { End::Aborted } else { End::Orderly });
        let mut pipe = lock(&self.read);
        pipe.reader_gone = true;
        pipe.pieces = BufChain::new();
        wake(&mut pipe.writer);
    }
}

#[cfg(test)]
mod tests {
    use culvert_wire::Buf;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::conn::{read_chain, write_chain};

    #[tokio::test]
    async fn pieces_with_room_are_handed_over_and_others_copied() {
        let (mut a, mut b) = duplex(1024);
        let room = Room { head: 4, tail: 2, max: 8 };
        for head in [4, 0] {
            let mut piece = Buf::new(8, head, 2);
            piece.append(b"12345678");
            let place = piece.as_ptr();
            write_chain(&mut a, &mut piece.into()).await.unwrap();
            let got = read_chain(&mut b, room).await.unwrap();
            assert_eq!(got.front().as_ptr() == place, head == 4);
            assert!(got.iter().all(|piece| piece.head() >= 4 && piece.spare() >= 2));
            assert_eq!(got.to_vec(), b"12345678");
        }
        write_chain(&mut a, &mut BufChain::copied(&[7; 20])).await.unwrap();
        let got = read_chain(&mut b, room).await.unwrap();
        assert_eq!((got.len(), got.pieces()), (20, 3));
        assert_eq!(a.room(), room);
    }

    #[tokio::test]
    async fn a_full_direction_waits_and_the_other_does_not() {
        let (mut a, mut b) = duplex(4);
        a.write_all(b"abcd").await.unwrap();
        b.write_all(b"back").await.unwrap();
        let mut more = poll_write_once(&mut a, b"e");
        assert!(more.is_none());
        let mut all = [0; 4];
        b.read_exact(&mut all).await.unwrap();
        more = poll_write_once(&mut a, b"e");
        assert_eq!((&all, more), (b"abcd", Some(1)));
    }

    /// One poll of a write: how much was taken, `None` if it waits.
    fn poll_write_once(conn: &mut Duplex, bytes: &[u8]) -> Option<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(conn).poll_write(&mut cx, bytes) {
            Poll::Ready(count) => Some(count.unwrap()),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn ends_are_told_apart() {
        let (mut a, mut b) = duplex(64);
        a.write_all(b"last").await.unwrap();
        a.shutdown().await.unwrap();
        let mut all = Vec::new();
        assert!(b.has_ended() && !a.has_ended());
        b.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"last");
        b.write_all(b"the other way goes on").await.unwrap();
        b.abort();
        drop(b);
        all.clear();
        let broken = a.read_to_end(&mut all).await.unwrap_err();
        assert_eq!((broken.kind(), all.len()), (io::ErrorKind::ConnectionReset, 21));
        let (mut a, b) = duplex(64);
        drop(b);
        assert_eq!(a.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
