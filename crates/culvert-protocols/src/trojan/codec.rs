//! The request and the heads of datagrams, from bytes and to bytes.

use aws_lc_rs::digest::{SHA224, digest};
use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// Length of a key: the hexadecimal digits of a SHA-224.
pub const KEY_LEN: usize = 56;

/// What a client proves itself with.
pub type Key = [u8; KEY_LEN];

/// Longest request: the key and an address with the longest name.
pub const MAX_REQUEST: usize = KEY_LEN + 2 + 1 + MAX_ADDRESS + 2;

/// Longest head of a datagram.
pub const MAX_HEAD: usize = MAX_ADDRESS + 2 + 2;

/// Longest head of a datagram whose peer is an address.
pub const HEAD: usize = 1 + 16 + 2 + 2 + 2;

const MAX_ADDRESS: usize = 1 + 1 + 255 + 2;
const LINE_END: [u8; 2] = *b"\r\n";

/// The key that stands for `password`.
#[must_use]
pub fn key(password: &[u8]) -> Key {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut key = [0; KEY_LEN];
    for (digits, byte) in key.chunks_exact_mut(2).zip(digest(&SHA224, password).as_ref()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    key
}

/// What the first bytes of a stream can be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opening {
    /// A key, whether anybody has it or not.
    Key(Key),
    /// The beginning of one.
    Incomplete,
    /// Nothing that a client of this protocol sends.
    Foreign,
}

/// Looks at the first bytes of a stream.
#[must_use]
pub fn opening(bytes: &[u8]) -> Opening {
    let seen = &bytes[..bytes.len().min(KEY_LEN)];
    if !seen.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Opening::Foreign;
    }
    seen.first_chunk().map_or(Opening::Incomplete, |key| Opening::Key(*key))
}

/// What a client wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Command {
    /// A connection to the target.
    Connect = 1,
    /// Datagrams, to and from anywhere.
    Associate = 3,
    /// Many of both, as trojan-go does it.
    Mux = 0x7f,
}

/// What a client says before its payload, without the key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What is wanted.
    pub command: Command,
    /// Where to; of [`Command::Associate`] where the first datagram goes, or nowhere.
    pub target: Target,
}

impl Request {
    /// Reads one behind its key. What stands in place of the line ends is not looked at, as in sing-box.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let _line_end = r.array::<2>()?;
        let request = Self::decode_inner(r)?;
        let _line_end = r.array::<2>()?;
        Ok(request)
    }

    /// Reads one as it stands at the beginning of a stream of [`Command::Mux`]: without line ends.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_inner(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let command = match r.u8()? {
            1 => Command::Connect,
            3 => Command::Associate,
            0x7f => Command::Mux,
            _ => return Err(DecodeError::Invalid("command")),
        };
        let target = AddressCodec::SOCKS.decode(r)?;
        Ok(Self { command, target })
    }

    /// Writes one, the key in front.
    pub fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        out.extend(key);
        out.extend(LINE_END);
        out.push(self.command as u8);
        AddressCodec::SOCKS.encode(&self.target, out);
        out.extend(LINE_END);
    }
}

/// Reads the head of a datagram: whose it is, and how many bytes follow.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_head(r: &mut Reader<'_>) -> Result<(Target, usize), DecodeError> {
    let peer = AddressCodec::SOCKS.decode(r)?;
    let len = r.u16()?;
    let _line_end = r.array::<2>()?;
    Ok((peer, len.into()))
}

/// Writes the head of a datagram of `len` bytes.
pub fn encode_head(peer: &Target, len: u16, out: &mut Vec<u8>) {
    AddressCodec::SOCKS.encode(peer, out);
    out.extend(len.to_be_bytes());
    out.extend(LINE_END);
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_request(bytes: &[u8]) {
    let Opening::Key(key) = opening(bytes) else { return fuzz_rest(&[b'a'; KEY_LEN], bytes) };
    fuzz_rest(&key, &bytes[KEY_LEN..]);
}

fn fuzz_rest(key: &Key, bytes: &[u8]) {
    if let Ok(request) = Request::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        request.encode(key, &mut out);
        assert!(out.len() <= MAX_REQUEST);
        assert_eq!(opening(&out), Opening::Key(*key));
        assert_eq!(Request::decode(&mut Reader::new(&out[KEY_LEN..])), Ok(request));
    }
}

/// The same for heads of datagrams.
pub fn fuzz_head(bytes: &[u8]) {
    if let Ok((peer, len)) = decode_head(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        encode_head(&peer, len as u16, &mut out);
        assert!(out.len() <= MAX_HEAD);
        assert_eq!(decode_head(&mut Reader::new(&out)), Ok((peer, len)));
    }
}
