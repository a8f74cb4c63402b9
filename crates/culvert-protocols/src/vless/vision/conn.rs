//! The stream: frames at first, then transparent.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Half, NoBypass, StreamConn, timeouts};
use culvert_wire::{BufChain, DecodeError, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::filter::Filter;
use super::frame::Unpadder;
use super::writer::{Mode, Writer};
use crate::vless::codec::Id;

/// Bytes of a plain write that are framed at a time.
const AT_ONCE: usize = 64 << 10;

/// One end of a connection with Vision inside VLESS.
pub struct VisionConn {
    conn: BoxStream,
    filter: Filter,
    reader: Unpadder,
    /// The outer TLS has been left by what is read.
    reads_direct: bool,
    writer: Writer,
    /// The frame that is being written.
    out: BufChain,
    /// The outer TLS has been left by what is written.
    writes_direct: bool,
    /// Taken from the frames and not by the holder.
    content: BufChain,
    /// The end of `conn` has come while something was held.
    ended: bool,
    /// The header below must leave even if there is no payload, with padding behind it.
    owes: bool,
    /// Somebody writes, and sees to that.
    writes: bool,
    /// Runs while payload may come to go with the header.
    moment: Option<Pin<Box<Sleep>>>,
}

impl VisionConn {
    /// The client's end. Its header is owed by `conn`.
    pub(in crate::vless) fn client(conn: BoxStream, id: Id) -> Self {
        Self { owes: true, ..Self::server(conn, id) }
    }

    /// The server's end.
    pub(in crate::vless) fn server(conn: BoxStream, id: Id) -> Self {
        Self {
            conn,
            filter: Filter::default(),
            reader: Unpadder::new(id),
            reads_direct: false,
            writer: Writer::new(id),
            out: BufChain::new(),
            writes_direct: false,
            content: BufChain::new(),
            ended: false,
            owes: false,
            writes: false,
            moment: None,
        }
    }

    /// Takes in what was read with the header, and gives the content of it.
    ///
    /// # Errors
    /// The bytes are no frames.
    pub(in crate::vless) fn take_in(&mut self, data: BufChain) -> io::Result<BufChain> {
        let content = self.reader.take_in(data).map_err(invalid)?;
        self.filter.see(Half::Read, &content);
        if self.reader.is_direct() && !self.reads_direct {
            self.conn.bypass(Half::Read).map_err(not_tls)?;
            self.reads_direct = true;
        }
        Ok(content)
    }

    /// Content for the holder, without regard to room; an empty chain is the end.
    fn poll_content(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !self.content.is_empty() {
            return Poll::Ready(Ok(std::mem::take(&mut self.content)));
        }
        if self.owes && !self.writes {
            // Whoever reads first waits for an answer to the header. An error comes back with the first write.
            let _ = self.poll_open(cx);
        }
        loop {
            if self.ended {
                return Poll::Ready(Ok(BufChain::new()));
            }
            let data = ready!(self.conn.poll_read_chain(cx, room))?;
            let content = if data.is_empty() {
                self.ended = true;
                self.reader.end().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?
            } else {
                self.take_in(data)?
            };
            if !content.is_empty() {
                return Poll::Ready(Ok(content));
            }
        }
    }

    /// Sends the header and padding, once a moment has passed in which no payload came.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.owes && self.writer.is_fresh() {
            let moment =
                self.moment.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeouts::FIRST_PAYLOAD)));
            ready!(moment.as_mut().poll(cx));
            self.writer.pad(self.conn.room());
        }
        (self.owes, self.moment) = (false, None);
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    /// Writes the frames there are, each by itself, and leaves the outer TLS behind the last one.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.conn.poll_write_chain(cx, &mut self.out))?;
            match self.writer.next_frame() {
                Some(frame) => self.out.push_back(frame),
                None => break,
            }
        }
        if self.writer.mode() == Mode::Direct && !self.writes_direct {
            self.conn.bypass(Half::Write).map_err(not_tls)?;
            self.writes_direct = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes frames of a packet, as long as there are frames.
    fn frame(&mut self, packet: &mut BufChain) {
        (self.owes, self.moment) = (false, None);
        let room = self.conn.room();
        self.writer.frame(&mut self.filter, packet, room);
    }

    fn pads(&self) -> bool {
        self.writer.mode() == Mode::Padding
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn not_tls(_: NoBypass) -> io::Error {
    io::Error::other("vision: the stream below cannot be left")
}

impl StreamConn for VisionConn {
    fn room(&self) -> Room {
        // Frames are made by copying; nobody needs to leave room for that.
        if self.pads() { Room::NONE } else { self.conn.room() }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.reader.is_plain() && self.content.is_empty() && !self.ended {
            if self.filter.is_decided() {
                return self.conn.poll_read_chain(cx, room);
            }
            let data = ready!(self.conn.poll_read_chain(cx, room))?;
            self.filter.see(Half::Read, &data);
            return Poll::Ready(Ok(data));
        }
        let mut content = ready!(self.poll_content(cx, room))?;
        content.fit(room);
        Poll::Ready(Ok(content))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.writes = true;
        loop {
            ready!(self.poll_drain(cx))?;
            if data.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !self.pads() {
                return self.conn.poll_write_chain(cx, data);
            }
            self.frame(data);
        }
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let is_transparent = match half {
            Half::Read => self.reads_direct && self.content.is_empty() && !self.ended,
            Half::Write => self.writes_direct && self.out.is_empty(),
        };
        if is_transparent { self.conn.kernel_socket(half) } else { None }
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

impl AsyncRead for VisionConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut content = ready!(self.poll_content(cx, Room::NONE))?;
        let count = content.peek(to.initialize_unfilled());
        to.advance(count);
        content.advance(count);
        self.content = content;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for VisionConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.writes = true;
        ready!(this.poll_drain(cx))?;
        if !this.pads() {
            return Pin::new(&mut this.conn).poll_write(cx, from);
        }
        let mut packet = BufChain::copied(&from[..from.len().min(AT_ONCE)]);
        let offered = packet.len();
        this.frame(&mut packet);
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = this.poll_drain(cx);
        Poll::Ready(Ok(offered - packet.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes = true;
        self.poll_open(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.owes && this.writer.is_fresh() {
            this.writer.pad(this.conn.room());
        }
        (this.owes, this.moment) = (false, None);
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.conn).poll_shutdown(cx)
    }
}
