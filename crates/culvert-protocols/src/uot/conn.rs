//! Datagrams on a stream, for either end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Packet, PacketBatch, PacketConn, StreamConn};
use culvert_wire::{AddressCodec, Buf, BufChain, DecodeError, Reader, Room, Target};
use tokio::io::AsyncWrite;

use super::Version;
use super::codec::{HEAD, Request, decode_head_as, encode_head_as};

/// Datagrams on a stream.
pub struct UotConn {
    conn: BoxStream,
    /// The one peer, where packets carry no addresses.
    connected: Option<Target>,
    /// The form of addresses where they do.
    addresses: AddressCodec,
    /// Longest head of most packets.
    head: usize,
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

impl UotConn {
    /// The client's end. The request leaves together with the first packet.
    #[must_use]
    pub fn client(version: Version, conn: BoxStream, target: &Target) -> Self {
        let mut out = Vec::new();
        if version == Version::V2 {
            Request { connect: false, target: target.clone() }.encode(&mut out);
        }
        let head = HEAD.max(2 + AddressCodec::UOT.encoded_len(target));
        Self { out: BufChain::copied(&out), head, ..Self::server(conn, BufChain::new(), None) }
    }

    /// The server's end, behind the request; `read` is what was read too far. With `connected`, packets carry no
    /// addresses.
    #[must_use]
    pub fn server(conn: BoxStream, read: BufChain, connected: Option<Target>) -> Self {
        let addresses = AddressCodec::UOT;
        Self {
            conn,
            connected,
            addresses,
            head: HEAD,
            read,
            out: BufChain::new(),
            taken: 0,
            unflushed: false,
        }
    }

    /// The same with addresses in another form, for protocols that have these packets but for that.
    #[must_use]
    pub fn with_addresses(self, addresses: AddressCodec) -> Self {
        Self { addresses, ..self }
    }

    /// Takes whole packets out of what was read.
    fn parse(&mut self, room: Room, batch: &mut PacketBatch) -> io::Result<()> {
        while !self.read.is_empty() && batch.len() < PacketBatch::MAX {
            let addresses = self.connected.is_none().then_some(self.addresses);
            let mut window = [0; 1 + 1 + 255 + 2 + 2]; // the longest head there is
            let seen = self.read.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            let (peer, len) = match decode_head_as(addresses, &mut r) {
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
            let Some(peer) = peer.or_else(|| self.connected.clone()) else { return Ok(()) };
            batch.push(Packet::new(data, peer));
        }
        Ok(())
    }

    fn encode(&mut self, packet: &mut Packet) {
        let peer = if self.connected.is_some() { None } else { Some(&packet.peer) };
        let mut head = Vec::with_capacity(HEAD);
        if packet.segment == 0 {
            let Ok(len) = u16::try_from(packet.data.len()) else { return };
            encode_head_as(self.addresses, peer, len, &mut head);
            let mut data = std::mem::replace(&mut packet.data, Buf::from(Vec::new()));
            if data.head() >= head.len() {
                data.prepend(&head);
            } else {
                self.out.append_copy(&head);
            }
            self.out.push_back(data);
            return;
        }
        let mut data = Buf::new(packet.data.len() + packet.datagrams() * (self.head + 2), 0, 0);
        for payload in packet.payloads() {
            let Ok(len) = u16::try_from(payload.len()) else { continue };
            head.clear();
            encode_head_as(self.addresses, peer, len, &mut head);
            if data.spare() < head.len() + payload.len() {
                self.out
                    .push_back(std::mem::replace(&mut data, Buf::new(packet.data.len(), self.head * 2, 0)));
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

impl PacketConn for UotConn {
    fn room(&self) -> Room {
        Room { head: self.head, ..Room::NONE }.around(self.conn.room())
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
