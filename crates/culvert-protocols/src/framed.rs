//! Datagrams on a stream, each behind a head that says how long it is and, in most protocols, whose it is.
//!
//! What the heads look like is a [`Framing`]; everything else is the same for UDP over TCP, Trojan and their like and
//! stands here once: packets are cut out of what was read and put behind heads in the memory they lie in where there is
//! room, trains become their datagrams, and a batch leaves in one write.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Packet, PacketBatch, PacketConn, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room, Target};
use tokio::io::AsyncWrite;

/// How packets are put on a stream.
pub trait Framing: Send + Unpin {
    /// Reads a head: whose the packet is, and how many bytes of data follow.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(&self, r: &mut Reader<'_>) -> Result<(Target, usize), DecodeError>;

    /// Writes the head of a packet with `len` bytes of data.
    fn encode(&self, peer: &Target, len: u16, out: &mut Vec<u8>);

    /// How long the heads of most packets are at most.
    fn room(&self) -> usize;
}

/// Longest head of any framing: an address with the longest name, a length, and what may stand around it.
const LONGEST: usize = 1 + 1 + 255 + 2 + 2 + 2;

/// Datagrams on a stream.
pub struct Framed<F> {
    conn: BoxStream,
    framing: F,
    /// Read and not yet whole.
    read: BufChain,
    /// To be written: heads and data.
    out: BufChain,
    /// Packets at the front of the batch being sent whose data is in `out`. They stay in the batch, empty, until it is
    /// written, so that the caller offers the batch again.
    taken: usize,
    /// Written and not yet flushed.
    unflushed: bool,
}

impl<F: Framing> Framed<F> {
    /// A conn that begins by sending `out` together with the first packet; `read` is what was read too far.
    #[must_use]
    pub fn new(framing: F, conn: BoxStream, read: BufChain, out: BufChain) -> Self {
        Self { conn, framing, read, out, taken: 0, unflushed: false }
    }

    /// How packets are put on it.
    pub(crate) fn framing_mut(&mut self) -> &mut F {
        &mut self.framing
    }

    /// Takes whole packets out of what was read.
    fn parse(&mut self, room: Room, batch: &mut PacketBatch) -> io::Result<()> {
        while !self.read.is_empty() && batch.len() < PacketBatch::MAX {
            let mut window = [0; LONGEST];
            let seen = self.read.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            let (peer, len) = match self.framing.decode(&mut r) {
                Ok(head) => head,
                Err(DecodeError::Incomplete) => return Ok(()),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            };
            let head = r.position();
            if self.read.len() < head + len {
                return Ok(());
            }
            self.read.advance(head);
            let data = take_data(&mut self.read, len, room);
            batch.push(Packet::new(data, peer));
        }
        Ok(())
    }

    fn encode(&mut self, packet: &mut Packet) {
        let mut head = Vec::with_capacity(self.framing.room());
        if packet.segment == 0 {
            let Ok(len) = u16::try_from(packet.data.len()) else { return };
            self.framing.encode(&packet.peer, len, &mut head);
            let mut data = std::mem::replace(&mut packet.data, Buf::from(Vec::new()));
            if data.head() >= head.len() {
                data.prepend(&head);
            } else {
                self.out.append_copy(&head);
            }
            self.out.push_back(data);
            return;
        }
        let room = self.framing.room();
        let mut data = Buf::new(packet.data.len() + packet.datagrams() * (room + 2), 0, 0);
        for payload in packet.payloads() {
            let Ok(len) = u16::try_from(payload.len()) else { continue };
            head.clear();
            self.framing.encode(&packet.peer, len, &mut head);
            if data.spare() < head.len() + payload.len() {
                let next = Buf::new(packet.data.len().max(head.len() + payload.len()), 0, 0);
                self.out.push_back(std::mem::replace(&mut data, next));
            }
            data.append(&head);
            data.append(payload);
        }
        self.out.push_back(data);
        packet.segment = 0;
        packet.data = Buf::from(Vec::new());
    }
}

/// The next `len` bytes as one piece with room around: the very piece they lie in where they are all that is in it.
pub(crate) fn take_data(read: &mut BufChain, len: usize, room: Room) -> Buf {
    if read.front().len() == len
        && let Some(piece) = read.pop_front()
    {
        if piece.head() >= room.head && piece.spare() >= room.tail {
            return piece;
        }
        read.push_front(piece);
    }
    let mut data = Buf::new(len, room.head, room.tail);
    let mut rest = len;
    while rest > 0 {
        let count = read.front().len().min(rest);
        data.append(&read.front()[..count]);
        read.advance(count);
        rest -= count;
    }
    data
}

impl<F: Framing> PacketConn for Framed<F> {
    fn room(&self) -> Room {
        self.conn.room().around(Room { head: self.framing.room(), ..Room::NONE })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let old = batch.len();
        loop {
            self.parse(room, batch)?;
            if batch.len() > old {
                return Poll::Ready(Ok(()));
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, room))?;
            if more.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.read.append(&mut more);
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let taken = self.taken;
        batch.iter_mut().skip(taken).for_each(|packet| self.encode(packet));
        self.taken = batch.len();
        if !self.out.is_empty() {
            self.unflushed = true;
            ready!(self.conn.poll_write_chain(cx, &mut self.out))?;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
            self.unflushed = false;
        }
        batch.advance(self.taken);
        self.taken = 0;
        Poll::Ready(Ok(()))
    }
}
