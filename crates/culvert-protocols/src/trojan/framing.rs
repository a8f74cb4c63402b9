//! Datagrams on a stream.

use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

use super::codec::{HEAD, decode_head, encode_head};
use crate::framed::{Framed, Framing};

/// Datagrams on a stream.
pub(super) type TrojanPackets = Framed<TrojanFraming>;

/// Heads with an address, a length and a line end.
pub(super) struct TrojanFraming {
    head: usize,
}

impl TrojanFraming {
    /// Most packets go to `peer`, or come from addresses.
    pub(super) fn towards(peer: Option<&Target>) -> Self {
        Self { head: peer.map_or(0, |peer| AddressCodec::SOCKS.encoded_len(peer) + 4).max(HEAD) }
    }
}

impl Framing for TrojanFraming {
    fn decode(&self, r: &mut Reader<'_>) -> Result<(Target, usize), DecodeError> {
        decode_head(r)
    }

    fn encode(&self, peer: &Target, len: u16, out: &mut Vec<u8>) {
        encode_head(peer, len, out);
    }

    fn room(&self) -> usize {
        self.head
    }
}
