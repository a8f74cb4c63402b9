//! The two headers, from bytes and to bytes.

use std::fmt;

use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// Longest request: full addons and the longest name.
pub const MAX_REQUEST: usize = 1 + 16 + 1 + 255 + 1 + 2 + 1 + 1 + 255;
/// Longest response: full addons.
pub const MAX_RESPONSE: usize = 1 + 1 + 255;
/// The response that everybody sends: no addons.
pub const RESPONSE: [u8; 2] = [VERSION, 0];

const VERSION: u8 = 0;
const TCP: u8 = 1;
const UDP: u8 = 2;
const MUX: u8 = 3;

/// A user's id, which is all that proves who it is.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Id(pub [u8; 16]);

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Id(***)")
    }
}

/// What a client wants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// A connection.
    Tcp(Target),
    /// Packets to and from one peer.
    Udp(Target),
    /// mux.cool.
    Mux,
}

/// The client's header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Who asks.
    pub id: Id,
    /// The flow it will use; empty for none.
    pub flow: Vec<u8>,
    /// What for.
    pub command: Command,
}

impl Request {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION], "VLESS version")?;
        let id = Id(r.array()?);
        let len = r.u8()?;
        let flow = decode_flow(r.take(len.into())?)?.to_vec();
        let command = match r.u8()? {
            TCP => Command::Tcp(AddressCodec::VLESS.decode(r)?),
            UDP => Command::Udp(AddressCodec::VLESS.decode(r)?),
            MUX => Command::Mux,
            _ => return Err(DecodeError::Invalid("VLESS command")),
        };
        Ok(Self { id, flow, command })
    }

    /// Writes it. A flow has at most 127 bytes; the one there is has 16.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.flow.len() <= 127);
        out.push(VERSION);
        out.extend(self.id.0);
        if self.flow.is_empty() {
            out.push(0);
        } else {
            let len = self.flow.len() as u8;
            out.extend([2 + len, FLOW << 3 | LEN, len]);
            out.extend(&self.flow);
        }
        match &self.command {
            Command::Tcp(target) => {
                out.push(TCP);
                AddressCodec::VLESS.encode(target, out);
            }
            Command::Udp(target) => {
                out.push(UDP);
                AddressCodec::VLESS.encode(target, out);
            }
            Command::Mux => out.push(MUX),
        }
    }
}

// Of protobuf, as much as the addons need: field numbers and wire types.
const FLOW: u8 = 1;
const LEN: u8 = 2;

/// The flow in the addons, a protobuf message. What else is in it is of no interest.
fn decode_flow(addons: &[u8]) -> Result<&[u8], DecodeError> {
    let cut_off = |error| match error {
        DecodeError::Incomplete => DecodeError::Invalid("VLESS addons"),
        other @ DecodeError::Invalid(_) => other,
    };
    let mut r = Reader::new(addons);
    let mut flow = &[][..];
    while !r.rest().is_empty() {
        let tag = varint(&mut r).map_err(cut_off)?;
        let value = match tag & 7 {
            0 => varint(&mut r).map(|_| &[][..]),
            1 => r.take(8),
            2 => varint(&mut r).and_then(|len| r.take(usize::try_from(len).unwrap_or(usize::MAX))),
            5 => r.take(4),
            _ => return Err(DecodeError::Invalid("VLESS addons")),
        };
        let value = value.map_err(cut_off)?;
        if tag == u64::from(FLOW << 3 | LEN) {
            flow = value;
        }
    }
    Ok(flow)
}

fn varint(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Invalid("VLESS addons"))
}

/// Reads the server's header, of which nothing is of interest but where it ends.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_response(r: &mut Reader<'_>) -> Result<(), DecodeError> {
    r.expect(&[VERSION], "VLESS version of the server")?;
    let len = r.u8()?;
    r.take(len.into()).map(drop)
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_request(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(request) = Request::decode(&mut r) {
        assert!(r.position() <= MAX_REQUEST);
        if request.flow.len() <= 127 {
            let mut out = Vec::new();
            request.encode(&mut out);
            assert_eq!(Request::decode(&mut Reader::new(&out)), Ok(request));
        }
    }
}

/// The same for the server's header.
pub fn fuzz_response(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if decode_response(&mut r) == Ok(()) {
        assert!(bytes[0] == VERSION && r.position() <= MAX_RESPONSE);
    }
}
