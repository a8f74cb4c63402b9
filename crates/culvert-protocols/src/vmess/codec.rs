//! The headers of a connection, from bytes and to bytes. See the drawing in the module's docs.

use std::fmt;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128Dec, Aes128Enc};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

use super::keys::{BodyKeys, Key, derive, fnv};

/// Bytes of an AEAD tag.
pub(super) const TAG: usize = 16;
/// Bytes of an auth id, sealed or not, and of the hash that the legacy header has in its place.
pub(super) const AUTH_ID: usize = 16;
/// The longest header that makes sense: all fields, a full name and full padding, and some more.
const MAX_HEADER: usize = 512;
/// A request header with everything around it.
pub(super) const MAX_REQUEST: usize = AUTH_ID + 2 + TAG + NONCE + MAX_HEADER + TAG;
/// A response header whose command part is full. Nobody sends one.
const MAX_RESPONSE: usize = 4 + 255;
/// Random bytes that a client adds for the keys of its header.
const NONCE: usize = 8;
/// Fields of a request header in front of the address.
const FIXED: usize = 38;

const VERSION: u8 = 1;

mod label {
    pub(super) const AUTH_ID: &[u8] = b"AES Auth ID Encryption";
    pub(super) const LENGTH_KEY: &[u8] = b"VMess Header AEAD Key_Length";
    pub(super) const LENGTH_NONCE: &[u8] = b"VMess Header AEAD Nonce_Length";
    pub(super) const HEADER_KEY: &[u8] = b"VMess Header AEAD Key";
    pub(super) const HEADER_NONCE: &[u8] = b"VMess Header AEAD Nonce";
    pub(super) const RESPONSE_LENGTH_KEY: &[u8] = b"AEAD Resp Header Len Key";
    pub(super) const RESPONSE_LENGTH_NONCE: &[u8] = b"AEAD Resp Header Len IV";
    pub(super) const RESPONSE_KEY: &[u8] = b"AEAD Resp Header Key";
    pub(super) const RESPONSE_NONCE: &[u8] = b"AEAD Resp Header IV";
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Command {
    Tcp = 1,
    Udp = 2,
    /// Frames of mux.cool, which say themselves where they go.
    Mux = 3,
}

/// How a body is encrypted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Security {
    Aes128Cfb = 1,
    Aes128Gcm = 3,
    ChaCha20Poly1305 = 4,
    None = 5,
}

/// How a body is cut and dressed up, as bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Options(pub(super) u8);

impl Options {
    /// There are chunks.
    pub(super) const CHUNKS: Self = Self(0x01);
    /// Their lengths are masked.
    pub(super) const MASKED: Self = Self(0x04);
    /// They are padded.
    pub(super) const PADDED: Self = Self(0x08);
    /// Their lengths are sealed.
    pub(super) const SEALED_LENGTHS: Self = Self(0x10);

    #[must_use]
    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a client asks for, and how it will talk.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) keys: BodyKeys,
    /// The first byte of the response.
    pub(super) check: u8,
    pub(super) options: Options,
    pub(super) security: Security,
    pub(super) command: Command,
    /// Where to; missing with [`Command::Mux`] alone.
    pub(super) target: Option<Target>,
}

/// Shows everything but the keys.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, security, options, target, .. } = self;
        write!(f, "Request({command:?}, {security:?}, {options:?}, {target:?})")
    }
}

impl Request {
    /// Writes the header as it is before it is encrypted. `padding` has at most 15 bytes.
    pub(super) fn encode(&self, padding: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_HEADER);
        out.push(VERSION);
        out.extend(self.keys.iv);
        out.extend(self.keys.key);
        let padding_and_security = (padding.len() as u8) << 4 | self.security as u8;
        out.extend([self.check, self.options.0, padding_and_security, 0, self.command as u8]);
        if let Some(target) = &self.target {
            AddressCodec::VLESS.encode(target, &mut out);
        }
        out.extend(padding);
        out.extend(fnv(&out).to_be_bytes());
        out
    }

    /// Reads the header. `sums` demands that its hash is right: where nothing else proves it. sing-box looks at it never.
    pub(super) fn decode(r: &mut Reader<'_>, sums: bool) -> Result<Self, DecodeError> {
        let start = r.clone();
        r.expect(&[VERSION], "version of the request")?;
        let (iv, key) = (r.array()?, r.array()?);
        let [check, options, padding_and_security, _reserved, command] = r.array()?;
        let options = Options(options);
        let security = match padding_and_security & 0x0f {
            1 => Security::Aes128Cfb,
            3 => Security::Aes128Gcm,
            4 => Security::ChaCha20Poly1305,
            5 => Security::None,
            _ => return Err(DecodeError::Invalid("security of the request")),
        };
        let command = match command {
            1 => Command::Tcp,
            2 if options.has(Options::CHUNKS) => Command::Udp,
            2 => return Err(DecodeError::Invalid("request for datagrams without chunks")),
            3 => Command::Mux,
            _ => return Err(DecodeError::Invalid("command of the request")),
        };
        let target = match command {
            Command::Tcp | Command::Udp => Some(AddressCodec::VLESS.decode(r)?),
            Command::Mux => None,
        };
        r.take((padding_and_security >> 4).into())?;
        let header = &start.rest()[..r.position() - start.position()];
        if r.u32()? != fnv(header) && sums {
            return Err(DecodeError::Invalid("hash of the request"));
        }
        Ok(Self { keys: BodyKeys { key, iv }, check, options, security, command, target })
    }
}

/// The cipher of a user's auth ids, for a client.
pub(super) fn auth_id_sealer(command_key: &Key) -> Aes128Enc {
    Aes128Enc::new(&derive(command_key, &[label::AUTH_ID]).into())
}

/// The same for a server.
pub(super) fn auth_id_opener(command_key: &Key) -> Aes128Dec {
    Aes128Dec::new(&derive(command_key, &[label::AUTH_ID]).into())
}

/// Makes the auth id for a time in Unix seconds.
pub(super) fn seal_auth_id(cipher: &Aes128Enc, time: u64, random: [u8; 4]) -> [u8; AUTH_ID] {
    let mut id = [0; AUTH_ID];
    id[..8].copy_from_slice(&time.to_be_bytes());
    id[8..12].copy_from_slice(&random);
    let sum = crc32fast::hash(&id[..12]);
    id[12..].copy_from_slice(&sum.to_be_bytes());
    let mut block = id.into();
    cipher.encrypt_block(&mut block);
    block.into()
}

/// The time in an auth id, if it is one of this user's.
pub(super) fn open_auth_id(cipher: &Aes128Dec, id: &[u8; AUTH_ID]) -> Option<u64> {
    let mut block = (*id).into();
    cipher.decrypt_block(&mut block);
    let id: [u8; AUTH_ID] = block.into();
    let mut r = Reader::new(&id);
    let (time, _random, sum) = (r.u64().ok()?, r.u32().ok()?, r.u32().ok()?);
    (crc32fast::hash(&id[..12]) == sum).then_some(time)
}

/// Makes a request header of its plain form.
pub(super) fn seal_request(
    command_key: &Key,
    id: [u8; AUTH_ID],
    nonce: [u8; NONCE],
    header: &[u8],
) -> Vec<u8> {
    let key = |label: &[u8]| derive(command_key, &[label, &id, &nonce]);
    let once = |label: &[u8]| derive(command_key, &[label, &id, &nonce]);
    let mut out = Vec::with_capacity(MAX_REQUEST);
    out.extend(id);
    let len = (header.len() as u16).to_be_bytes();
    seal(&key(label::LENGTH_KEY), once(label::LENGTH_NONCE), &id, &len, &mut out);
    out.extend(nonce);
    seal(&key(label::HEADER_KEY), once(label::HEADER_NONCE), &id, header, &mut out);
    out
}

/// Opens the request header behind an auth id. Asked again with more bytes it does not do the same work again.
pub(super) struct RequestOpener {
    command_key: Key,
    id: [u8; AUTH_ID],
    len: Option<usize>,
}

impl RequestOpener {
    pub(super) fn new(command_key: Key, id: [u8; AUTH_ID]) -> Self {
        Self { command_key, id, len: None }
    }

    /// Reads what follows the auth id.
    pub(super) fn open(&mut self, r: &mut Reader<'_>) -> Result<Request, DecodeError> {
        let mut len: [u8; 2 + TAG] = r.array()?;
        let nonce: [u8; NONCE] = r.array()?;
        let key = |label: &[u8]| derive(&self.command_key, &[label, &self.id, &nonce]);
        let once = |label: &[u8]| derive(&self.command_key, &[label, &self.id, &nonce]);
        let len = match self.len {
            Some(len) => len,
            None => {
                let len = open(&key(label::LENGTH_KEY), once(label::LENGTH_NONCE), &self.id, &mut len);
                let len = len.ok_or(DecodeError::Invalid("length of the request"))?;
                let len = usize::from(Reader::new(len).u16()?);
                if len > MAX_HEADER {
                    return Err(DecodeError::Invalid("length of the request"));
                }
                *self.len.insert(len)
            }
        };
        let mut header = r.take(len + TAG)?.to_vec();
        let header = open(&key(label::HEADER_KEY), once(label::HEADER_NONCE), &self.id, &mut header);
        let header = header.ok_or(DecodeError::Invalid("request"))?;
        Request::decode(&mut Reader::new(header), false).map_err(|error| match error {
            DecodeError::Incomplete => DecodeError::Invalid("request"),
            invalid @ DecodeError::Invalid(_) => invalid,
        })
    }
}

/// Makes the response header. `keys` are those of the response.
pub(super) fn seal_response(keys: &BodyKeys, check: u8, options: Options) -> Vec<u8> {
    let header = response(check, options);
    let len = (header.len() as u16).to_be_bytes();
    let mut out = Vec::with_capacity(2 + TAG + header.len() + TAG);
    let (key, once) = response_keys(keys, label::RESPONSE_LENGTH_KEY, label::RESPONSE_LENGTH_NONCE);
    seal(&key, once, &[], &len, &mut out);
    let (key, once) = response_keys(keys, label::RESPONSE_KEY, label::RESPONSE_NONCE);
    seal(&key, once, &[], &header, &mut out);
    out
}

/// A response header as it is before it is encrypted: no command for the client.
pub(super) fn response(check: u8, options: Options) -> [u8; 4] {
    [check, options.0, 0, 0]
}

/// Reads a response header and returns its first byte, which must be what the request asked for. Commands in it are
/// read over.
pub(super) fn open_response(r: &mut Reader<'_>, keys: &BodyKeys) -> Result<u8, DecodeError> {
    const INVALID: DecodeError = DecodeError::Invalid("response");
    let mut len: [u8; 2 + TAG] = r.array()?;
    let (key, once) = response_keys(keys, label::RESPONSE_LENGTH_KEY, label::RESPONSE_LENGTH_NONCE);
    let len = open(&key, once, &[], &mut len).ok_or(INVALID)?;
    let len = usize::from(Reader::new(len).u16()?);
    if !(4..=MAX_RESPONSE).contains(&len) {
        return Err(INVALID);
    }
    let mut header = r.take(len + TAG)?.to_vec();
    let (key, once) = response_keys(keys, label::RESPONSE_KEY, label::RESPONSE_NONCE);
    let header = open(&key, once, &[], &mut header).ok_or(INVALID)?;
    header.first().copied().ok_or(INVALID)
}

fn response_keys(keys: &BodyKeys, key: &[u8], nonce: &[u8]) -> (Key, [u8; 12]) {
    (derive(&keys.key, &[key]), derive(&keys.iv, &[nonce]))
}

fn gcm(key: &Key) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("AES-128 has keys of 16 bytes"))
}

fn seal(key: &Key, nonce: [u8; 12], aad: &[u8], plain: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend(plain);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = gcm(key).seal_in_place_separate_tag(nonce, Aad::from(aad), &mut out[start..]);
    out.extend(tag.expect("a header is not too long for GCM").as_ref());
}

fn open<'a>(key: &Key, nonce: [u8; 12], aad: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    gcm(key).open_in_place(nonce, Aad::from(aad), sealed).ok().map(|plain| &*plain)
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub(super) fn fuzz_request(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(request) = Request::decode(&mut r, false) {
        assert!(r.position() >= FIXED + 4);
        let again = request.encode(&[]);
        assert!(Request::decode(&mut Reader::new(&again), true) == Ok(request));
    }
}

/// Fed with random bytes, sealed ones among them: nothing but what was sealed opens.
pub(super) fn fuzz_sealed_headers(bytes: &[u8]) {
    let keys = BodyKeys { key: [1; 16], iv: [2; 16] };
    assert!(open_response(&mut Reader::new(bytes), &keys).is_err());
    let mut opener = RequestOpener::new([3; 16], [4; AUTH_ID]);
    assert!(opener.open(&mut Reader::new(bytes)).is_err());
}
