//! The request and the packets, from bytes and to bytes.

use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// Longest request: the byte and an address with the longest name.
pub const MAX_REQUEST: usize = 1 + 1 + 1 + 255 + 2;

/// Longest head of a packet whose peer is an address: type, IPv6, port, length.
pub const HEAD: usize = 1 + 16 + 2 + 2;

/// The request of version 2.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Whether all packets go to `target`, and carry no addresses.
    pub connect: bool,
    /// Where the packets go; without `connect`, where the first one does.
    pub target: Target,
}

impl Request {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let connect = r.u8()? != 0;
        let target = AddressCodec::SOCKS.decode(r)?;
        Ok(Self { connect, target })
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.connect.into());
        AddressCodec::SOCKS.encode(&self.target, out);
    }
}

/// Reads the head of a packet: its peer, if packets carry addresses, and the length of the data that follows.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_head(r: &mut Reader<'_>, connect: bool) -> Result<(Option<Target>, usize), DecodeError> {
    decode_head_as((!connect).then_some(AddressCodec::UOT), r)
}

/// [`decode_head`] with addresses in another form, or none.
pub(crate) fn decode_head_as(
    addresses: Option<AddressCodec>,
    r: &mut Reader<'_>,
) -> Result<(Option<Target>, usize), DecodeError> {
    let peer = addresses.map(|addresses| addresses.decode(r)).transpose()?;
    let len = r.u16()?;
    Ok((peer, len.into()))
}

/// Writes the head of a packet with `len` bytes of data; `peer` is `None` where packets carry no addresses.
pub fn encode_head(peer: Option<&Target>, len: u16, out: &mut Vec<u8>) {
    encode_head_as(AddressCodec::UOT, peer, len, out);
}

/// [`encode_head`] with the address in another form.
pub(crate) fn encode_head_as(addresses: AddressCodec, peer: Option<&Target>, len: u16, out: &mut Vec<u8>) {
    if let Some(peer) = peer {
        addresses.encode(peer, out);
    }
    out.extend(len.to_be_bytes());
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_request(bytes: &[u8]) {
    if let Ok(request) = Request::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        request.encode(&mut out);
        assert!(out.len() <= MAX_REQUEST);
        assert_eq!(Request::decode(&mut Reader::new(&out)), Ok(request));
    }
}

/// The same for heads of packets.
pub fn fuzz_packets(bytes: &[u8]) {
    for connect in [false, true] {
        if let Ok((peer, len)) = decode_head(&mut Reader::new(bytes), connect) {
            let mut out = Vec::new();
            encode_head(peer.as_ref(), u16::try_from(len).unwrap_or_default(), &mut out);
            assert_eq!(decode_head(&mut Reader::new(&out), connect), Ok((peer, len)));
        }
    }
}
