//! Byte streams between two hops.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::dispatch::DialOutcome;

/// A boxed byte stream.
pub type BoxStream = Box<dyn StreamConn>;

/// One direction of a conn, seen from its holder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Half {
    /// What is read from the conn.
    Read,
    /// What is written to it.
    Write,
}

/// The conn cannot stop transforming the half that was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoBypass;

/// How much a conn that knows nothing better reads at a time.
const COPY_IN: usize = 16 << 10;

/// A byte stream between two hops. The two tokio traits are enough to be correct; the rest is speed.
///
/// A layer that only has a header forwards every method to the stream below once the header is done. A layer that
/// transforms bytes overrides [`poll_read_chain`](Self::poll_read_chain) and
/// [`poll_write_chain`](Self::poll_write_chain) to work in place.
///
/// It is [`Any`] so that the relay can see that a conn is nothing but a socket, and take that over.
pub trait StreamConn: AsyncRead + AsyncWrite + Send + Unpin + Any {
    /// Space this layer wants around data given to it, so that it can seal in place.
    fn room(&self) -> Room {
        Room::NONE
    }

    /// Takes whatever plaintext is ready, in pooled pieces with `room` around each. An empty chain is the end.
    ///
    /// Memory is taken only once something is ready, and none is held when this returns `Pending`.
    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        copy_in(self, cx, room)
    }

    /// Sends from the front of `data`, taking over its memory where it can. `Ready(Ok)` means all of it was taken;
    /// on `Pending` what is left in `data` must be offered again. That may be nothing: a layer that holds as much as it may is
    /// pending until the one below has taken it, so that its holder reads no more meanwhile.
    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        copy_out(self, cx, data)
    }

    /// The socket this half has become, once no layer holds or changes its bytes.
    fn kernel_socket(&self, _half: Half) -> Option<&TcpStream> {
        None
    }

    /// Stops transforming this half from the next byte on (Vision). Bytes already held still come out, in order.
    ///
    /// # Errors
    /// [`NoBypass`] if the layer cannot.
    fn bypass(&mut self, _half: Half) -> Result<(), NoBypass> {
        Err(NoBypass)
    }

    /// Makes the coming drop tell the peer that the stream broke off instead of ending (TCP: RST instead of FIN).
    fn abort(&mut self) {}

    /// Tells a client that is answered by something else than bytes how its dial ended: a packet stack lets it in, or turns
    /// it away. It may be told more than once; the first time counts.
    fn answer(&mut self, _outcome: &DialOutcome<'_>) {}

    /// This end's address of the outermost socket, where there is one.
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// The outermost socket, whatever the layers within do with its bytes: for its options only.
    fn outermost_socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// [`StreamConn::poll_read_chain`] by `poll_read`: for layers that have no better way.
pub fn copy_in<C: StreamConn + ?Sized>(
    conn: &mut C,
    cx: &mut Context<'_>,
    room: Room,
) -> Poll<io::Result<BufChain>> {
    let mut buf = Buf::new(COPY_IN.min(room.max), room.head, room.tail);
    let space = (buf.spare() - room.tail).min(room.max);
    let mut read = ReadBuf::new(&mut buf.spare_mut()[..space]);
    ready!(Pin::new(conn).poll_read(cx, &mut read))?;
    let count = read.filled().len();
    buf.grow(count);
    Poll::Ready(Ok(buf.into()))
}

/// [`StreamConn::poll_write_chain`] by `poll_write`: for layers that have no better way.
pub fn copy_out<C: StreamConn + ?Sized>(
    conn: &mut C,
    cx: &mut Context<'_>,
    data: &mut BufChain,
) -> Poll<io::Result<()>> {
    while !data.is_empty() {
        let count = ready!(Pin::new(&mut *conn).poll_write(cx, data.front()))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        data.advance(count);
    }
    Poll::Ready(Ok(()))
}

impl<C: StreamConn + ?Sized> StreamConn for Box<C> {
    fn room(&self) -> Room {
        (**self).room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        (**self).poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        (**self).poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        (**self).kernel_socket(half)
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        (**self).bypass(half)
    }

    fn abort(&mut self) {
        (**self).abort();
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        (**self).answer(outcome);
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        (**self).local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        (**self).outermost_socket()
    }
}

/// An in-memory stream is a conn without fast paths.
impl StreamConn for tokio::io::DuplexStream {}

/// Reads the next chain as a future; see [`StreamConn::poll_read_chain`].
///
/// # Errors
/// Those of the conn.
pub async fn read_chain<C: StreamConn + ?Sized>(conn: &mut C, room: Room) -> io::Result<BufChain> {
    std::future::poll_fn(|cx| conn.poll_read_chain(cx, room)).await
}

/// Writes all of `data` and flushes, as a future; see [`StreamConn::poll_write_chain`].
///
/// # Errors
/// Those of the conn.
pub async fn write_chain<C: StreamConn + ?Sized>(conn: &mut C, data: &mut BufChain) -> io::Result<()> {
    std::future::poll_fn(|cx| {
        ready!(conn.poll_write_chain(cx, data))?;
        Pin::new(&mut *conn).poll_flush(cx)
    })
    .await
}

/// Ends a conn so that the last bytes written to it arrive. A socket that is closed with unread bytes in it sends a
/// reset, and the peer's system then throws away what had come before; so what the peer still sends is read, a
/// little and for a moment.
pub async fn finish<C: StreamConn + ?Sized>(conn: &mut C) {
    const PATIENCE: Duration = Duration::from_secs(1);
    const MOST: usize = 256 << 10;
    let _ = tokio::time::timeout(PATIENCE, async {
        std::future::poll_fn(|cx| Pin::new(&mut *conn).poll_shutdown(cx)).await?;
        let mut rest = MOST;
        while rest > 0 {
            let read = read_chain(conn, Room::NONE).await?.len();
            if read == 0 {
                break;
            }
            rest = rest.saturating_sub(read);
        }
        io::Result::Ok(())
    })
    .await;
}

/// A conn in front of which bytes are put back that were read too far. Once they are read it is transparent.
pub struct Prefixed {
    prefix: BufChain,
    conn: BoxStream,
}

impl Prefixed {
    /// `conn` with `prefix` to be read first, and more to be put there later ([`Prefixed::put_back`]).
    #[must_use]
    pub fn new(prefix: BufChain, conn: BoxStream) -> Self {
        Self { prefix, conn }
    }

    /// Puts bytes in front of what comes next.
    pub fn put_back(&mut self, mut bytes: BufChain) {
        bytes.append(&mut self.prefix);
        self.prefix = bytes;
    }

    /// `conn` with `prefix` to be read first; `conn` itself if there is none.
    #[must_use]
    pub fn wrap(prefix: BufChain, conn: BoxStream) -> BoxStream {
        if prefix.is_empty() { conn } else { Box::new(Self { prefix, conn }) }
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.conn).poll_read(cx, to);
        }
        let front = self.prefix.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.prefix.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
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

impl StreamConn for Prefixed {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.prefix.is_empty() {
            return self.conn.poll_read_chain(cx, room);
        }
        if room.is_none() {
            return Poll::Ready(Ok(std::mem::take(&mut self.prefix)));
        }
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        if half == Half::Read && !self.prefix.is_empty() {
            return None;
        }
        self.conn.kernel_socket(half)
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        self.conn.bypass(half)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        self.conn.answer(outcome);
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn.outermost_socket()
    }
}
