//! Datagrams on a stream, for either end.

use culvert_core::BoxStream;
use culvert_wire::{AddressCodec, BufChain, DecodeError, Reader, Target};

use super::Version;
use super::codec::{HEAD, Request, decode_head_as, encode_head_as};
use super::codec::{HEAD, Request, decode_head, encode_head};
use crate::framed::{Framed, Framing};

/// Datagrams on a stream.
pub type UotConn = Framed<UotFraming>;

/// How UDP over TCP frames packets.
pub struct UotFraming {
    /// The one peer, where packets carry no addresses.
    connected: Option<Target>,
    /// The form of addresses where they do.
    addresses: AddressCodec,
    /// Longest head of most packets.
    head: usize,
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
        Self::new(UotFraming { connected: None, head }, conn, BufChain::new(), BufChain::copied(&out))
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
        Self::new(UotFraming { connected, head: HEAD }, conn, read, BufChain::new())
    }
}

impl Framing for UotFraming {
    fn decode(&self, r: &mut Reader<'_>) -> Result<(Target, usize), DecodeError> {
        let (peer, len) = decode_head(r, self.connected.is_some())?;
        let peer = peer.or_else(|| self.connected.clone()).ok_or(DecodeError::Invalid("packet"))?;
        Ok((peer, len))
    }

    fn encode(&self, peer: &Target, len: u16, out: &mut Vec<u8>) {
        encode_head(if self.connected.is_some() { None } else { Some(peer) }, len, out);
    }

    fn room(&self) -> usize {
        self.head
    }
}
