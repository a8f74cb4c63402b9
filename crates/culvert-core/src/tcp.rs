//! [`StreamConn`] over a kernel TCP socket.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use culvert_wire::{Buf, BufChain, Room};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::conn::{Half, NoBypass, StreamConn};

/// What one read asks for at first, and what it may grow to while the socket keeps filling it.
const READ_MIN: usize = 16 << 10;
const READ_MAX: usize = 256 << 10;
/// What it may grow to where what many sockets brought is still under way: each of them may have its last read waiting for a
/// peer that is slower, and in a crowd that is what the program's memory is made of.
const READ_CROWDED: usize = 64 << 10;
/// So many sockets that are ahead are a crowd, and so many one in which all reads are as small as they can be.
const CROWD: usize = 24;
const LARGE_CROWD: usize = 64;
/// Pieces in one vectored call.
const PIECES: usize = 16;

/// How many sockets are ahead of where their data goes: they have brought some, and nobody has come back to wait for more.
static AHEAD: AtomicUsize = AtomicUsize::new(0);

/// Whether a socket counts as one that is ahead.
#[derive(Default)]
struct Ahead(bool);

impl Ahead {
    fn set(&mut self, is_ahead: bool) {
        match (std::mem::replace(&mut self.0, is_ahead), is_ahead) {
            (false, true) => _ = AHEAD.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = AHEAD.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Most bytes for one read, with so many sockets ahead.
fn most(ahead: usize) -> usize {
    if ahead <= CROWD {
        READ_MAX
    } else if ahead <= LARGE_CROWD {
        READ_CROWDED
    } else {
        READ_MIN
    }
}

/// A TCP socket. Reads are as large as the stream has shown to need: 16 KiB, up to 256 KiB under bulk, less in a crowd.
pub struct TcpConn {
    stream: TcpStream,
    /// What the next read asks for, in bytes.
    want: usize,
    ahead: Ahead,
}

impl TcpConn {
    /// Takes over a connected socket. Nagle's algorithm is off in all that `culvert_os::socket` makes or accepts, and should
    /// be in any other.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, want: READ_MIN, ahead: Ahead::default() }
    }

    /// The socket, as it was given.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The socket is not connected any more.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

/// Does one non-blocking read inside tokio's readiness: `read` returns how much it got. A read that got less than it
/// asked for has emptied the socket, so readiness is taken back at once instead of by a system call that fails.
pub(crate) fn read_ready(
    stream: &TcpStream,
    asked: usize,
    mut read: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut short = None;
    let result = stream.try_io(Interest::READABLE, || match read() {
        // Readiness was sampled before the read: bytes that come in between make a new event and are not lost.
        Ok(count) if count > 0 && count < asked => {
            short = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        }
        other => other,
    });
    short.map_or(result, Ok)
}

/// The same for a write of `offered` bytes: one that took fewer has filled the socket.
fn write_ready(
    stream: &TcpStream,
    offered: usize,
    mut write: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut short = None;
    let result = stream.try_io(Interest::WRITABLE, || match write() {
        Ok(count) if count < offered => {
            short = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        }
        other => other,
    });
    short.map_or(result, Ok)
}

impl StreamConn for TcpConn {
    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        loop {
            let Poll::Ready(ready) = self.stream.poll_read_ready(cx) else {
                self.ahead.set(false);
                return Poll::Pending;
            };
            ready?;
            let most = most(AHEAD.load(Ordering::Relaxed));
            let mut pieces = Pieces::take(self.want.min(most), room);
            let asked = pieces.space;
            match read_ready(&self.stream, asked, || pieces.read(&self.stream)) {
                Ok(count) => {
                    self.ahead.set(count > 0);
                    self.want = match count {
                        _ if count == asked => (self.want * 2).min(READ_MAX),
                        _ if count < self.want / 4 => (self.want / 2).max(READ_MIN),
                        _ => self.want,
                    };
                    return Poll::Ready(Ok(pieces.filled(count)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        while !data.is_empty() {
            ready!(self.stream.poll_write_ready(cx))?;
            let mut slices = [IoSlice::new(&[]); PIECES];
            let count = data.io_slices(&mut slices);
            let slices = &slices[..count];
            let offered = slices.iter().map(|slice| slice.len()).sum();
            let socket = SockRef::from(&self.stream);
            match write_ready(&self.stream, offered, || (&*socket).write_vectored(slices)) {
                Ok(written) => data.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn kernel_socket(&self, _half: Half) -> Option<&TcpStream> {
        Some(&self.stream)
    }

    fn bypass(&mut self, _half: Half) -> Result<(), NoBypass> {
        Ok(())
    }

    fn abort(&mut self) {
        // Fails only on a socket that is dead already.
        let _ = culvert_os::socket::set_linger_zero(self.stream.as_fd());
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        Some(&self.stream)
    }
}

/// Memory for one read: one piece where the reader's next hop does not care, several with room around each where it does.
struct Pieces {
    pieces: [Option<Buf>; PIECES],
    /// Data bytes that each piece may take.
    each: usize,
    space: usize,
}

impl Pieces {
    fn take(want: usize, room: Room) -> Self {
        // Whoever wants space around pieces seals each by itself; whoever only limits their length takes them as they are.
        let plain = room.head == 0 && room.tail == 0;
        let each = if plain { want.min(room.max) } else { READ_MIN.min(room.max) };
        let count = want.div_ceil(each).min(PIECES);
        let mut pieces = [const { None }; PIECES];
        pieces[..count].fill_with(|| Some(Buf::new(each, room.head, room.tail)));
        Self { pieces, each, space: each * count }
    }

    fn read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let each = self.each;
        let socket = SockRef::from(stream);
        if let [Some(only), None, ..] = &mut self.pieces {
            return (&*socket).read(&mut only.spare_mut()[..each]);
        }
        let mut slices = [const { None }; PIECES];
        for (slice, piece) in slices.iter_mut().zip(self.pieces.iter_mut().flatten()) {
            *slice = Some(IoSliceMut::new(&mut piece.spare_mut()[..each]));
        }
        // `IoSliceMut` cannot be copied, so the array is built whole, with empty ones behind the used ones.
        let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
        (&*socket).read_vectored(&mut slices)
    }

    fn filled(self, mut count: usize) -> BufChain {
        let mut chain = BufChain::new();
        for mut piece in self.pieces.into_iter().flatten() {
            let here = count.min(self.each);
            piece.grow(here);
            count -= here;
            chain.push_back(piece);
        }
        chain
    }
}

impl AsyncRead for TcpConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for TcpConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn reads_are_small_in_a_crowd() {
        assert_eq!(
            [0, CROWD, CROWD + 1, LARGE_CROWD, LARGE_CROWD + 1].map(most),
            [READ_MAX, READ_MAX, READ_CROWDED, READ_CROWDED, READ_MIN]
        );
    }

    #[tokio::test]
    async fn a_socket_counts_as_ahead_until_it_is_waited_for_or_gone() {
        let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut conn = TcpConn::new(listener.accept().await.unwrap().0);
        far.write_all(&[7; READ_MIN]).await.unwrap();
        while conn.stream.peek(&mut [0; READ_MIN]).await.unwrap() < READ_MIN {}
        let read = crate::conn::read_chain(&mut conn, Room::NONE).await.unwrap();
        assert_eq!((read.len(), conn.ahead.0), (READ_MIN, true));
        let waits = std::future::poll_fn(|cx| Poll::Ready(conn.poll_read_chain(cx, Room::NONE).is_pending()));
        assert!(waits.await);
        assert!(!conn.ahead.0, "it waits for the socket now");
    }
}
