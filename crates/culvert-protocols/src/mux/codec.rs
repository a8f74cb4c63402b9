//! The messages of sing-mux, from bytes and to bytes: the start of a session, the request and the answer of a stream, the
//! agreement on speeds. The frames of the sessions themselves are in `frame.rs`.

use culvert_config::options::mux::MuxProtocol;
use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// Longest start of a session.
pub(super) const MAX_START: usize = 5 + u16::MAX as usize;

/// Longest request of a stream: flags and an address with the longest name.
pub(super) const MAX_REQUEST: usize = 2 + 1 + 1 + 255 + 2;

/// Longest text of an error that is taken from a peer.
pub(super) const MAX_TEXT: usize = 1024;

/// The first bytes of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Start {
    pub(super) protocol: MuxProtocol,
    pub(super) padded: bool,
}

impl Start {
    /// Reads it, with the padding that belongs to it.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = r.u8()?;
        if version > 1 {
            return Err(DecodeError::Invalid("multiplex version"));
        }
        let protocol = match r.u8()? {
            0 => MuxProtocol::Smux,
            1 => MuxProtocol::Yamux,
            2 => MuxProtocol::H2Mux,
            _ => return Err(DecodeError::Invalid("multiplex protocol")),
        };
        let padded = version == 1 && r.u8()? != 0;
        if padded {
            let len = r.u16()?;
            r.take(len.into())?;
        }
        Ok(Self { protocol, padded })
    }

    /// Writes it; `padding` is the number of zeros where there is padding.
    pub(super) fn encode(self, padding: u16, out: &mut Vec<u8>) {
        out.push(self.padded.into());
        out.push(match self.protocol {
            MuxProtocol::Smux => 0,
            MuxProtocol::Yamux => 1,
            MuxProtocol::H2Mux => 2,
        });
        if self.padded {
            out.push(1);
            out.extend(padding.to_be_bytes());
            out.resize(out.len() + usize::from(padding), 0);
        }
    }
}

/// What a stream carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Tcp,
    /// Datagrams to and from the one target.
    Connected,
    /// Datagrams that carry addresses.
    Packets,
}

/// The first bytes of a stream, from who opened it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) target: Target,
}

impl Request {
    const UDP: u16 = 1;
    const ADDRESSES: u16 = 2;

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = r.u16()?;
        let kind = match (flags & Self::UDP != 0, flags & Self::ADDRESSES != 0) {
            (false, _) => Kind::Tcp,
            (true, false) => Kind::Connected,
            (true, true) => Kind::Packets,
        };
        let target = AddressCodec::SOCKS.decode(r)?;
        Ok(Self { kind, target })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flags = match self.kind {
            Kind::Tcp => 0,
            Kind::Connected => Self::UDP,
            Kind::Packets => Self::UDP | Self::ADDRESSES,
        };
        out.extend(flags.to_be_bytes());
        AddressCodec::SOCKS.encode(&self.target, out);
    }
}

/// What the other side of a stream says before its first bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Response {
    Connected,
    Failed(String),
}

impl Response {
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u8()? {
            0 => Ok(Self::Connected),
            1 => Ok(Self::Failed(decode_text(r)?)),
            _ => Err(DecodeError::Invalid("multiplex stream status")),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Connected => out.push(0),
            Self::Failed(text) => {
                out.push(1);
                encode_text(text, out);
            }
        }
    }
}

/// What a client says on the stream that is for the agreement on speeds: bytes per second that it wants to receive.
pub(super) fn decode_speed(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    r.array().map(u64::from_be_bytes)
}

/// The server's answer to that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Agreement {
    /// Bytes per second that it wants to receive.
    Speed(u64),
    Refused(String),
}

impl Agreement {
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u8()? {
            0 => Ok(Self::Refused(decode_text(r)?)),
            _ => Ok(Self::Speed(decode_speed(r)?)),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Speed(speed) => {
                out.push(1);
                out.extend(speed.to_be_bytes());
            }
            Self::Refused(text) => {
                out.push(0);
                encode_text(text, out);
            }
        }
    }
}

/// Unsigned LEB128 of the length, then the text. What is not UTF-8 or not fit for a log line is replaced.
fn decode_text(r: &mut Reader<'_>) -> Result<String, DecodeError> {
    let mut len = 0;
    let mut shift = 0;
    loop {
        let byte = r.u8()?;
        len |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
        if shift > 14 {
            return Err(DecodeError::Invalid("length of an error text"));
        }
    }
    if len > MAX_TEXT {
        return Err(DecodeError::Invalid("length of an error text"));
    }
    let text = String::from_utf8_lossy(r.take(len)?);
    Ok(text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
}

fn encode_text(text: &str, out: &mut Vec<u8>) {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut len = end;
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend(&text.as_bytes()[..end]);
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub(super) fn fuzz_messages(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok(start) = Start::decode(&mut Reader::new(bytes)) {
        start.encode(300, &mut out);
        assert_eq!(Start::decode(&mut Reader::new(&out)), Ok(start));
    }
    out.clear();
    if let Ok(request) = Request::decode(&mut Reader::new(bytes)) {
        request.encode(&mut out);
        assert!(out.len() <= MAX_REQUEST);
        assert_eq!(Request::decode(&mut Reader::new(&out)), Ok(request));
    }
    out.clear();
    if let Ok(response) = Response::decode(&mut Reader::new(bytes)) {
        response.encode(&mut out);
        // Bytes that are no UTF-8 become longer when they are replaced, and may be cut off again.
        assert!(Response::decode(&mut Reader::new(&out)).is_ok());
    }
    out.clear();
    if let Ok(agreement) = Agreement::decode(&mut Reader::new(bytes)) {
        agreement.encode(&mut out);
        assert!(Agreement::decode(&mut Reader::new(&out)).is_ok());
    }
}
