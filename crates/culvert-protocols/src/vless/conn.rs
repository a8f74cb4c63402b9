//! A stream with a header owed to the peer, or one to come from it. Once both are done it is transparent.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::conn::copy_in;
use culvert_core::{BoxStream, Half, NoBypass, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::codec::{MAX_RESPONSE, RESPONSE, Request, decode_response};

/// Most bytes that are copied behind the header to leave together with it.
const FIRST_COPY: usize = 16 << 10;

pub(super) struct VlessConn {
    conn: BoxStream,
    /// Our header, not written yet, and what goes with it.
    owed: BufChain,
    /// The first payload was put behind the header; more waits until both are written.
    joined: bool,
    /// The header does not leave without payload.
    shy: bool,
    /// The last write found the lower stream full. Its place there must not be taken by a task that reads.
    blocked: bool,
    /// The peer's header is still to come.
    awaits: bool,
    /// Read with the peer's header, or a part of that.
    read: BufChain,
}

impl VlessConn {
    /// The client's end: owes `request` and awaits a response.
    pub(super) fn client(conn: BoxStream, request: &Request) -> Self {
        let mut header = Vec::new();
        request.encode(&mut header);
        Self { awaits: true, shy: false, ..Self::server(conn).owing(&header) }
    }

    /// The server's end, behind the request: owes a response.
    pub(super) fn server(conn: BoxStream) -> Self {
        let this = Self {
            conn,
            owed: BufChain::new(),
            joined: false,
            shy: true,
            blocked: false,
            awaits: false,
            read: BufChain::new(),
        };
        this.owing(&RESPONSE)
    }

    fn owing(mut self, header: &[u8]) -> Self {
        let room = self.conn.room();
        let mut owed = Buf::new(header.len(), room.head, room.tail);
        owed.append(header);
        self.owed = owed.into();
        self
    }

    /// Puts the header before the first payload: into its piece, where that has room.
    fn join(&mut self, data: &mut BufChain) {
        self.joined = true;
        if let Some(mut first) = data.pop_front() {
            if first.head() >= self.owed.len() + self.conn.room().head {
                first.prepend(self.owed.contiguous());
                self.owed = first.into();
            } else {
                self.owed.push_back(first);
            }
        }
        self.owed.append(data);
    }

    fn poll_owed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.owed.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let written = self.conn.poll_write_chain(cx, &mut self.owed);
        self.blocked = written.is_pending();
        written
    }

    /// Reads the peer's header. Ready with `false` if the stream ended in place of it.
    fn poll_header(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<bool>> {
        if !self.shy && !self.blocked && !self.owed.is_empty() {
            // Whoever reads waits for an answer. An error comes back with the next write.
            let _ = self.conn.poll_write_chain(cx, &mut self.owed);
        }
        loop {
            let mut window = [0; MAX_RESPONSE];
            let seen = self.read.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            match decode_response(&mut r) {
                Ok(()) => {
                    let len = r.position();
                    self.read.advance(len);
                    self.awaits = false;
                    return Poll::Ready(Ok(true));
                }
                Err(DecodeError::Incomplete) => {}
                Err(error) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, room))?;
            if more.is_empty() {
                // A server has nothing to say where the target had not; it ends without a header then.
                return Poll::Ready(match self.read.is_empty() {
                    true => Ok(false),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
            self.read.append(&mut more);
        }
    }
}

impl StreamConn for VlessConn {
    fn room(&self) -> Room {
        if self.owed.is_empty() || self.joined {
            return self.conn.room();
        }
        self.conn.room().around(Room { head: self.owed.len(), ..Room::NONE })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.awaits && !ready!(self.poll_header(cx, room))? {
            return Poll::Ready(Ok(BufChain::new()));
        }
        if self.read.is_empty() {
            return self.conn.poll_read_chain(cx, room);
        }
        let fits =
            |piece: &Buf| piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max;
        if room.is_none() || self.read.iter().all(fits) {
            return Poll::Ready(Ok(std::mem::take(&mut self.read)));
        }
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.owed.is_empty() && !data.is_empty() {
            if !self.joined {
                self.join(data);
            }
            ready!(self.poll_owed(cx))?;
        }
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let done = match half {
            Half::Read => !self.awaits && self.read.is_empty(),
            Half::Write => self.owed.is_empty(),
        };
        if done { self.conn.kernel_socket(half) } else { None }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        let done = match half {
            Half::Read => !self.awaits,
            Half::Write => self.owed.is_empty(),
        };
        if done { self.conn.bypass(half) } else { Err(NoBypass) }
    }

    fn abort(&mut self) {
        self.conn.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }
}

impl AsyncRead for VlessConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.awaits && !ready!(self.poll_header(cx, Room::NONE))? {
            return Poll::Ready(Ok(()));
        }
        if self.read.is_empty() {
            return Pin::new(&mut self.conn).poll_read(cx, to);
        }
        let front = self.read.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for VlessConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if !self.owed.is_empty() && !from.is_empty() {
            if !self.joined {
                self.joined = true;
                let taken = &from[..from.len().min(FIRST_COPY)];
                self.owed.append_copy(taken);
                // They are taken whatever comes of this; an error comes back with the next call.
                let _ = self.poll_owed(cx);
                return Poll::Ready(Ok(taken.len()));
            }
            ready!(self.poll_owed(cx))?;
        }
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.joined || !self.shy {
            ready!(self.poll_owed(cx))?;
        }
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_owed(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
