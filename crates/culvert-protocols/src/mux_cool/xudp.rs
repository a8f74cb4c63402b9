//! XUDP: one association on a stream, for either end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::{BoxStream, Network, Packet, PacketBatch, PacketConn, StreamConn};
use culvert_wire::{AddressCodec, Buf, BufChain, DecodeError, Reader, Room, Target};
use tokio::io::AsyncWrite;

use super::codec::{Head, MAX_HEAD, STREAM_HEAD, Status};
use crate::framed::take_data;

/// The id that the session has.
pub(super) const ID: u16 = 0;

/// Head of a packet with an IPv6 address, the longest but for names.
const HEAD: usize = STREAM_HEAD + 1 + 2 + 1 + 16;

/// Datagrams on a stream, each with its peer.
pub struct XudpConn {
    conn: BoxStream,
    /// Where the session goes; the peer of packets that name none.
    target: Target,
    /// The session is still to be opened, by the first packet.
    opens: bool,
    /// A frame that opens the session may come: the first one, at the server.
    opened: bool,
    /// Longest head of most packets.
    head: usize,
    /// Read and not yet whole.
    read: BufChain,
    /// Bytes of data of the frame under way that nobody wants.
    skip: usize,
    /// To be written: heads and data.
    out: BufChain,
    /// Packets at the front of the batch being sent whose data is in `out`. They stay in the batch, empty, until it is
    /// written, so that the caller offers the batch again.
    taken: usize,
    /// Written and not yet flushed.
    unflushed: bool,
}

impl XudpConn {
    /// The client's end of an association of which the first packet goes to `target`. That packet opens it.
    #[must_use]
    pub fn client(conn: BoxStream, target: Target) -> Self {
        let head = HEAD.max(STREAM_HEAD + 1 + AddressCodec::VLESS.encoded_len(&target));
        Self { opens: true, opened: true, head, ..Self::server(conn, BufChain::new(), target) }
    }

    /// The server's end. `read` was read from `conn`, and begins with the frame that opens the session, to `target`.
    #[must_use]
    pub fn server(conn: BoxStream, read: BufChain, target: Target) -> Self {
        Self {
            conn,
            target,
            opens: false,
            opened: false,
            head: HEAD,
            read,
            skip: 0,
            out: BufChain::new(),
            taken: 0,
            unflushed: false,
        }
    }

    /// Takes whole packets out of what was read. The session's end is an error of kind `UnexpectedEof`.
    fn parse(&mut self, room: Room, batch: &mut PacketBatch) -> io::Result<()> {
        while !self.read.is_empty() && batch.len() < PacketBatch::MAX {
            if self.skip > 0 {
                let count = self.skip.min(self.read.len());
                self.read.advance(count);
                self.skip -= count;
                continue;
            }
            let mut window = [0; MAX_HEAD];
            let seen = self.read.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            let head = match Head::decode(&mut r) {
                Ok(head) => head,
                Err(DecodeError::Incomplete) => return Ok(()),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            };
            let len = r.position();
            let data = usize::from(head.data.unwrap_or(0));
            match head.status {
                Status::KeepAlive => {
                    self.read.advance(len);
                    self.skip = data;
                    continue;
                }
                Status::End if head.error => return Err(io::ErrorKind::ConnectionReset.into()),
                Status::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Status::New if self.opened => return Err(unexpected("a second session in XUDP")),
                Status::New | Status::Keep => {}
            }
            if head.id != ID {
                return Err(unexpected("a frame of another session in XUDP"));
            }
            if self.read.len() < len + data {
                return Ok(());
            }
            self.opened = true;
            self.read.advance(len);
            if head.data.is_some() {
                let peer = head.peer.map_or_else(|| self.target.clone(), |(_, peer)| peer);
                batch.push(Packet::new(take_data(&mut self.read, data, room), peer));
            }
        }
        Ok(())
    }

    fn encode(&mut self, packet: &mut Packet) {
        let mut data = std::mem::replace(&mut packet.data, Buf::from(Vec::new()));
        let mut head = Vec::with_capacity(self.head);
        if packet.segment == 0 {
            let Ok(len) = u16::try_from(data.len()) else { return };
            self.encode_head(&packet.peer, len, &mut head);
            if data.head() >= head.len() {
                data.prepend(&head);
            } else {
                self.out.append_copy(&head);
            }
            self.out.push_back(data);
            return;
        }
        let train = Packet { data, segment: std::mem::take(&mut packet.segment), peer: packet.peer.clone() };
        let each = self.head.max(STREAM_HEAD + 1 + AddressCodec::VLESS.encoded_len(&train.peer));
        let mut framed = Buf::new(train.data.len() + train.datagrams() * each, 0, 0);
        for payload in train.payloads() {
            let Ok(len) = u16::try_from(payload.len()) else { continue };
            head.clear();
            self.encode_head(&train.peer, len, &mut head);
            framed.append(&head);
            framed.append(payload);
        }
        self.out.push_back(framed);
    }

    fn encode_head(&mut self, peer: &Target, data: u16, out: &mut Vec<u8>) {
        let status = if std::mem::take(&mut self.opens) { Status::New } else { Status::Keep };
        let peer = Some((Network::Udp, peer.clone()));
        Head { id: ID, status, error: false, peer, data: Some(data) }.encode(out);
    }
}

fn unexpected(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl PacketConn for XudpConn {
    fn room(&self) -> Room {
        self.conn.room().around(Room { head: self.head, ..Room::NONE })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let old = batch.len();
        loop {
            let parsed = self.parse(room, batch);
            if batch.len() > old {
                // An end behind the packets is found again with the next call.
                return Poll::Ready(Ok(()));
            }
            parsed?;
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
