//! A stream whose first bytes are owed: the header of a protocol, which leaves together with the first payload.
//!
//! One segment, and inside TLS one record, carries both: a header that goes alone costs a packet, and the length of its
//! record tells what it is. Whoever writes first has the header put before its bytes. A client's flush sends it alone, once
//! a moment has passed in which no payload came: where the server speaks first, none ever does. A server's header never
//! leaves before its payload, or the end.
//!
//! Once the header is on its way the conn is transparent.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Half, NoBypass, StreamConn, timeouts};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Payload that is put into one piece with the header, by a copy, when it is there at the start.
const JOINED: usize = 16 << 10;

/// A stream with a header owed.
pub(crate) struct Headed {
    conn: BoxStream,
    /// Empty once it has left.
    header: Vec<u8>,
    /// What was taken from a plain write and not written yet, the header in front.
    out: BufChain,
    /// A flush sends the header if need be.
    alone: bool,
    /// Runs while a flush waits for payload to come.
    moment: Option<Pin<Box<Sleep>>>,
}

impl Headed {
    /// `conn` with `header` owed to a server.
    pub(crate) fn new(header: Vec<u8>, conn: BoxStream) -> Self {
        Self { conn, header, out: BufChain::new(), alone: true, moment: None }
    }

    /// `conn` with `header` owed to a client.
    pub(crate) fn answering(header: Vec<u8>, conn: BoxStream) -> Self {
        Self { alone: false, ..Self::new(header, conn) }
    }

    /// The same, where `early` may hold the first payload already: then all of that and the header are written at once.
    ///
    /// # Errors
    /// Those of the conn.
    pub(crate) async fn open(
        header: Vec<u8>,
        mut conn: BoxStream,
        early: &mut BufChain,
    ) -> io::Result<BoxStream> {
        if early.is_empty() {
            return Ok(Box::new(Self::new(header, conn)));
        }
        let room = conn.room();
        let most = JOINED.min(room.max).max(header.len());
        let count = early.len().min(most - header.len());
        let mut first = Buf::new(header.len() + count, room.head, room.tail);
        first.append(&header);
        let payload = early.peek(&mut first.spare_mut()[..count]);
        first.grow(payload);
        early.advance(payload);
        early.push_front(first);
        culvert_core::conn::write_chain(&mut conn, early).await?;
        Ok(conn)
    }

    /// Puts the header where the next write to the conn takes it along.
    fn release(&mut self) {
        self.moment = None;
        self.out.append_copy(&std::mem::take(&mut self.header));
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() { Poll::Ready(Ok(())) } else { self.conn.poll_write_chain(cx, &mut self.out) }
    }
}

impl AsyncRead for Headed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_read(cx, to)
    }
}

impl AsyncWrite for Headed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.header.is_empty() {
            ready!(this.poll_drain(cx))?;
            return Pin::new(&mut this.conn).poll_write(cx, from);
        }
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = this.conn.room();
        let taken = &from[..from.len().min(JOINED)];
        let mut first = Buf::new(this.header.len() + taken.len(), room.head, room.tail);
        first.append(&std::mem::take(&mut this.header));
        first.append(taken);
        this.out.push_back(first);
        this.moment = None;
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = this.poll_drain(cx);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.header.is_empty() && this.alone {
            let moment =
                this.moment.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeouts::FIRST_PAYLOAD)));
            ready!(moment.as_mut().poll(cx));
            this.release();
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.release();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.conn).poll_shutdown(cx)
    }
}

impl StreamConn for Headed {
    fn room(&self) -> Room {
        self.conn.room().around(Room { head: self.header.len(), ..Room::NONE })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        self.conn.poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.header.is_empty()
            && let Some(mut first) = data.pop_front()
        {
            self.moment = None;
            let header = std::mem::take(&mut self.header);
            if first.head() >= header.len() {
                first.prepend(&header);
                data.push_front(first);
            } else {
                let room = self.conn.room();
                let mut alone = Buf::new(header.len(), room.head, room.tail);
                alone.append(&header);
                data.push_front(first);
                data.push_front(alone);
            }
        }
        ready!(self.poll_drain(cx))?;
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        if half == Half::Write && !(self.header.is_empty() && self.out.is_empty()) {
            return None;
        }
        self.conn.kernel_socket(half)
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        if half == Half::Write {
            self.release();
            if !self.out.is_empty() {
                return Err(NoBypass);
            }
        }
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

#[cfg(test)]
mod tests {
    use culvert_core::conn::{read_chain, write_chain};
    use culvert_core::duplex::{Duplex, duplex};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn headed() -> (Headed, Duplex) {
        let (near, far) = duplex(1 << 16);
        (Headed::new(b"head".to_vec(), Box::new(near)), far)
    }

    #[tokio::test]
    async fn header_and_first_payload_are_one_piece() {
        let (mut conn, mut far) = headed();
        let mut data = Buf::new(4, conn.room().head, 0);
        data.append(b"data");
        let place = data.as_ptr() as usize;
        write_chain(&mut conn, &mut data.into()).await.unwrap();
        let sent = read_chain(&mut far, Room::NONE).await.unwrap();
        assert_eq!((sent.pieces(), sent.to_vec()), (1, b"headdata".to_vec()));
        assert_eq!(sent.front().as_ptr() as usize + 4, place, "the payload was copied");

        let (mut conn, mut far) = headed();
        conn.write_all(b"data").await.unwrap();
        let sent = read_chain(&mut far, Room::NONE).await.unwrap();
        assert_eq!((sent.pieces(), sent.to_vec()), (1, b"headdata".to_vec()));

        let (near, mut far) = duplex(1 << 16);
        let mut early = BufChain::copied(b"data");
        let mut conn = Headed::open(b"head".to_vec(), Box::new(near), &mut early).await.unwrap();
        assert!(early.is_empty());
        let sent = read_chain(&mut far, Room::NONE).await.unwrap();
        assert_eq!((sent.pieces(), sent.to_vec()), (1, b"headdata".to_vec()));
        conn.write_all(b"more").await.unwrap();
        assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"more");
    }

    #[tokio::test(start_paused = true)]
    async fn header_leaves_alone_when_no_payload_comes_in_a_moment() {
        let (mut conn, mut far) = headed();
        let start = tokio::time::Instant::now();
        conn.flush().await.unwrap();
        assert_eq!(start.elapsed(), timeouts::FIRST_PAYLOAD);
        assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"head");
        conn.write_all(b"data").await.unwrap();
        conn.flush().await.unwrap();
        assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"data");
    }

    #[tokio::test(start_paused = true)]
    async fn header_of_a_server_does_not_leave_alone() {
        let (near, mut far) = duplex(1 << 16);
        let mut conn = Headed::answering(b"head".to_vec(), Box::new(near));
        conn.flush().await.unwrap();
        let silence = tokio::time::timeout(timeouts::FIRST_PAYLOAD * 10, far.read_u8()).await;
        assert!(silence.is_err());
        conn.write_all(b"data").await.unwrap();
        conn.flush().await.unwrap();
        assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"headdata");
    }

    #[tokio::test]
    async fn header_leaves_before_the_end() {
        let (mut conn, mut far) = headed();
        conn.shutdown().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"head");
    }

    #[tokio::test]
    async fn long_early_payload_is_written_whole() {
        let (near, mut far) = duplex(1000);
        let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let mut early = BufChain::copied(&bytes);
        let opening = tokio::spawn(async move {
            let opened = Headed::open(b"head".to_vec(), Box::new(near), &mut early).await;
            opened.map(|conn| (conn, early.len()))
        });
        let mut all = vec![0; bytes.len() + 4];
        far.read_exact(&mut all).await.unwrap();
        assert!(all.starts_with(b"head") && all[4..] == bytes);
        assert_eq!(opening.await.unwrap().unwrap().1, 0);
    }
}
