//! Datagrams on a stream, for either end.

use culvert_core::BoxStream;
use culvert_wire::{AddressCodec, BufChain, DecodeError, Reader, Target};

use super::Version;
use super::codec::{HEAD, Request, decode_head_as, encode_head_as};
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
        let addresses = AddressCodec::UOT;
        let head = HEAD.max(2 + addresses.encoded_len(target));
        let framing = UotFraming { connected: None, addresses, head };
        Self::new(framing, conn, BufChain::new(), BufChain::copied(&out))
    }

    /// The server's end, behind the request; `read` is what was read too far. With `connected`, packets carry no
    /// addresses.
    #[must_use]
    pub fn server(conn: BoxStream, read: BufChain, connected: Option<Target>) -> Self {
        let framing = UotFraming { connected, addresses: AddressCodec::UOT, head: HEAD };
        Self::new(framing, conn, read, BufChain::new())
    }

    /// The same with addresses in another form, for protocols that have these packets but for that.
    #[must_use]
    pub fn with_addresses(mut self, addresses: AddressCodec) -> Self {
        self.framing_mut().addresses = addresses;
        self
    }
}

impl Framing for UotFraming {
    fn decode(&self, r: &mut Reader<'_>) -> Result<(Target, usize), DecodeError> {
        let addresses = self.connected.is_none().then_some(self.addresses);
        let (peer, len) = decode_head_as(addresses, r)?;
        let peer = peer.or_else(|| self.connected.clone()).ok_or(DecodeError::Invalid("packet"))?;
        Ok((peer, len))
    }

    fn encode(&self, peer: &Target, len: u16, out: &mut Vec<u8>) {
        encode_head_as(self.addresses, if self.connected.is_some() { None } else { Some(peer) }, len, out);
    }

    fn room(&self) -> usize {
        self.head
    }
}
