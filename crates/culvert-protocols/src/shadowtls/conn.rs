//! The stream behind the handshake.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::codec::{ALERT, DATA, FIRST_TAG, HEADER, MAX_PAYLOAD, TAG, Tag, header};
use crate::random::below;

/// Bytes that are put into records before they are written.
const BATCH: usize = 256 << 10;

/// What stands before the payload of records.
pub(super) enum Tags {
    /// Version 2: nothing, but in the first record that is written.
    First(Option<[u8; FIRST_TAG]>),
    /// Version 3: a tag over all before.
    Each {
        /// Of what is read.
        read: Tag,
        /// Of what is written.
        written: Tag,
    },
}

/// Records of the handshake server that come after the handshake; they are no payload.
pub(super) type Residue = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// A stream of records.
pub(super) struct Records {
    conn: BoxStream,
    tags: Tags,
    residue: Option<Residue>,
    /// Read and not taken apart.
    raw: BufChain,
    /// Payload that was not taken.
    payload: BufChain,
    /// Made and not written.
    out: BufChain,
    /// The stream below has not passed on all that it took.
    blocked: bool,
    ended: bool,
    /// The peer has been told that it is not understood.
    broken: bool,
}

impl Records {
    /// Goes on behind the handshake. `raw` was read already, `out` is to be written first.
    pub(super) fn new(conn: BoxStream, tags: Tags, raw: BufChain, out: BufChain) -> Self {
        let (payload, residue) = (BufChain::new(), None);
        Self { conn, tags, residue, raw, payload, out, blocked: false, ended: false, broken: false }
    }

    /// A client's, which may get records that `residue` knows before the first of the server's own.
    pub(super) fn with_residue(self, residue: Residue) -> Self {
        Self { residue: Some(residue), ..self }
    }

    fn tag_len(&self) -> usize {
        match self.tags {
            Tags::First(_) => 0,
            Tags::Each { .. } => TAG,
        }
    }

    /// Takes whole records out of what was read. An empty chain means that more must come.
    fn open(&mut self) -> Result<BufChain, DecodeError> {
        let mut opened = BufChain::new();
        while !self.ended {
            let mut head = [0; HEADER];
            let seen = self.raw.peek(&mut head);
            // sing-box's records are as long as its buffers, longer than any of TLS.
            let len = HEADER + usize::from(u16::from_be_bytes([head[3], head[4]]));
            if seen < HEADER || self.raw.len() < len {
                break;
            }
            let mut record = self.raw.take_front(len);
            match head[0] {
                DATA if head[1..3] == [3, 3] => {}
                ALERT => {
                    self.ended = true;
                    break;
                }
                _ => return Err(DecodeError::Invalid("ShadowTLS record")),
            }
            if let Some(residue) = &mut self.residue {
                if residue(record.contiguous()) {
                    continue;
                }
                self.residue = None;
            }
            record.advance(HEADER);
            if let Tags::Each { read, .. } = &mut self.tags {
                if !read.open(record.contiguous()) {
                    return Err(DecodeError::Invalid("ShadowTLS tag"));
                }
                record.advance(TAG);
            }
            opened.append(&mut record);
        }
        Ok(opened)
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BufChain>> {
        if !self.payload.is_empty() {
            return Poll::Ready(Ok(std::mem::take(&mut self.payload)));
        }
        loop {
            match self.open() {
                Ok(opened) if !opened.is_empty() || self.ended => return Poll::Ready(Ok(opened)),
                Ok(_) => {}
                Err(error) => {
                    self.complain(cx);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                if !self.raw.is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                self.ended = true;
            }
            self.raw.append(&mut more);
        }
    }

    /// Says what a TLS server would say of such a record: it looks like an alert of TLS 1.3.
    fn complain(&mut self, cx: &mut Context<'_>) {
        const LEN: usize = 2 + 1 + 16;
        if !std::mem::replace(&mut self.broken, true) {
            let mut alert = header(LEN).to_vec();
            alert.extend((0..LEN).map(|_| below(256) as u8));
            self.out.append_copy(&alert);
            let _ = self.poll_drain(cx);
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() && !self.blocked {
            return Poll::Ready(Ok(()));
        }
        self.blocked = true;
        ready!(self.conn.poll_write_chain(cx, &mut self.out))?;
        self.blocked = false;
        Poll::Ready(Ok(()))
    }

    /// Makes `piece` a record, in its own memory where it has the room.
    fn seal(&mut self, mut piece: Buf, room: Room) {
        let own = self.head();
        if piece.len() <= MAX_PAYLOAD && piece.head() >= room.head && piece.spare() >= room.tail {
            let (before, tag_len) = self.before(&piece);
            piece.prepend(&before[..tag_len]);
            piece.prepend(&header(piece.len()));
            self.out.push_back(piece);
            return;
        }
        for part in piece.chunks(MAX_PAYLOAD.min(room.max)) {
            let mut record = Buf::new(own + part.len(), room.head.saturating_sub(own), room.tail);
            let (before, tag_len) = self.before(part);
            record.append(&header(tag_len + part.len()));
            record.append(&before[..tag_len]);
            record.append(part);
            self.out.push_back(record);
        }
    }

    /// Bytes before the payload of the next record.
    fn head(&self) -> usize {
        HEADER + if matches!(self.tags, Tags::First(Some(_))) { FIRST_TAG } else { self.tag_len() }
    }

    /// What goes between the header and this payload, and how long it is.
    fn before(&mut self, payload: &[u8]) -> ([u8; FIRST_TAG], usize) {
        match &mut self.tags {
            Tags::First(first) => first.take().map_or(([0; FIRST_TAG], 0), |tag| (tag, FIRST_TAG)),
            Tags::Each { written, .. } => {
                let [a, b, c, d] = written.seal(payload);
                ([a, b, c, d, 0, 0, 0, 0], TAG)
            }
        }
    }
}

impl StreamConn for Records {
    fn room(&self) -> Room {
        self.conn.room().around(Room { head: self.head(), tail: 0, max: MAX_PAYLOAD })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let mut payload = ready!(self.poll_open(cx))?;
        payload.fit(room);
        Poll::Ready(Ok(payload))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_drain(cx))?;
            if self.broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let room = self.room();
            while self.out.len() < BATCH
                && let Some(piece) = data.pop_front()
            {
                self.seal(piece, room);
            }
            if self.out.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// After a word that looks like that of a TLS server the end is an end, too.
    fn abort(&mut self) {
        if !self.broken {
            self.conn.abort();
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn.outermost_socket()
    }
}

impl AsyncRead for Records {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut payload = ready!(self.poll_open(cx))?;
        let count = payload.peek(to.initialize_unfilled());
        to.advance(count);
        payload.advance(count);
        self.payload = payload;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Records {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx))?;
        if this.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = &from[..from.len().min(BATCH)];
        let room = this.room();
        let pieces: VecDeque<Buf> = taken.chunks(MAX_PAYLOAD).map(Buf::copied).collect();
        pieces.into_iter().for_each(|piece| this.seal(piece, room));
        // The bytes are taken whatever comes of this; an error comes back with the next call.
        let _ = this.poll_drain(cx);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}
