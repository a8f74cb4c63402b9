//! The first bytes of streams, from bytes and to bytes, and sealed.

use culvert_wire::{AddressCodec, Buf, BufChain, DecodeError, Reader, Room, Target};
use subtle::ConstantTimeEq;

use super::cipher::{BLOCK, Blocks, Cipher, Key, LENGTH, Stream, TAG};
use super::key::Secret;
use super::replay::is_timely;

/// Longest address: a name.
pub(super) const MAX_ADDRESS: usize = 1 + 1 + 255 + 2;
/// Bytes of the first header of a request, tag and all.
pub(super) const REQUEST_HEAD: usize = 1 + 8 + 2 + TAG;
/// Most bytes of padding in what we send; others may send more.
pub(super) const MAX_PADDING: usize = 900;
/// Most payload that goes along with a header.
const FIRST: usize = 16 << 10;

const REQUEST: u8 = 0;
const RESPONSE: u8 = 1;

/// A salt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Salt {
    bytes: [u8; 32],
    len: usize,
}

impl Salt {
    /// A new one.
    pub(super) fn random(len: usize) -> Self {
        let mut bytes = [0; 32];
        fill_random(&mut bytes[..len]);
        Self { bytes, len }
    }

    /// One that a peer has chosen, of at most 32 bytes.
    pub(super) fn received(salt: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..salt.len()].copy_from_slice(salt);
        Self { bytes, len: salt.len() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Fills `to` with random bytes.
pub(super) fn fill_random(to: &mut [u8]) {
    aws_lc_rs::rand::fill(to).expect("the system has random bytes");
}

/// How many bytes of padding a message with so little payload gets: 1 to `most`.
pub(super) fn random_padding(most: usize) -> usize {
    let mut bytes = [0; 4];
    fill_random(&mut bytes);
    1 + u32::from_le_bytes(bytes) as usize % most.max(1)
}

/// Reads the first header of a request: how many bytes the second has, tag not counted.
pub(super) fn decode_request_head(head: &[u8], now: u64) -> Result<(u64, usize), DecodeError> {
    let mut r = Reader::new(head);
    if r.u8()? != REQUEST {
        return Err(DecodeError::Invalid("message type"));
    }
    let time = r.u64()?;
    if !is_timely(time, now) {
        return Err(DecodeError::Invalid("time; are both clocks right?"));
    }
    Ok((time, r.u16()?.into()))
}

/// Reads the second header of a request; the reader then stands at the payload.
pub(super) fn decode_request(r: &mut Reader<'_>) -> Result<Target, DecodeError> {
    let whole = |error| match error {
        // All of it is there: what lacks was never sent.
        DecodeError::Incomplete => DecodeError::Invalid("length of the header"),
        other @ DecodeError::Invalid(_) => other,
    };
    let target = AddressCodec::SOCKS.decode(r).map_err(whole)?;
    let padding = r.u16().map_err(whole)?;
    r.take(padding.into()).map_err(whole)?;
    if padding == 0 && r.rest().is_empty() {
        return Err(DecodeError::Invalid("header with neither padding nor payload"));
    }
    Ok(target)
}

/// Bytes of the header of a response, tag and all.
pub(super) const fn response_head_len(salt: usize) -> usize {
    1 + 8 + salt + 2 + TAG
}

/// Reads the header of a response: how many bytes of payload stand in the next chunk.
pub(super) fn decode_response_head(head: &[u8], request_salt: &Salt, now: u64) -> Result<usize, DecodeError> {
    let mut r = Reader::new(head);
    if r.u8()? != RESPONSE {
        return Err(DecodeError::Invalid("message type"));
    }
    if !is_timely(r.u64()?, now) {
        return Err(DecodeError::Invalid("time; are both clocks right?"));
    }
    let salt = r.take(request_salt.len)?;
    if !bool::from(salt.ct_eq(request_salt.bytes())) {
        return Err(DecodeError::Invalid("answer to something else"));
    }
    Ok(r.u16()?.into())
}

/// What begins a stream of the 2022 edition, as a client sends it.
pub(super) struct Request<'a> {
    pub(super) cipher: Cipher,
    /// The server's key, those of relays in between, and last the user's; one for all where there is only one.
    pub(super) keys: &'a [Secret],
    pub(super) salt: &'a Salt,
    pub(super) target: &'a Target,
    /// Seconds since 1970.
    pub(super) now: u64,
    /// Bytes of padding where there is so little payload that it needs some: 1 to 900.
    pub(super) padding: usize,
}

impl Request<'_> {
    /// Salt, headers, and in them as much of `data` as goes along, taken out of it. `around` is left free on both sides.
    pub(super) fn seal(&self, data: &mut BufChain, around: Room) -> (Buf, Stream) {
        let payload = data.len().min(FIRST);
        let padding = if payload < MAX_PADDING { self.padding } else { 0 };
        let mut address = Vec::with_capacity(MAX_ADDRESS);
        AddressCodec::SOCKS.encode(self.target, &mut address);
        let identities = self.keys.len().saturating_sub(1) * BLOCK;
        let body = address.len() + 2 + padding + payload;
        let len = self.salt.len + identities + REQUEST_HEAD + body + TAG;
        let mut out = Buf::new(len, around.head, around.tail);
        out.append(self.salt.bytes());
        for pair in self.keys.windows(2) {
            out.append(&sealed_identity(&pair[0], &pair[1], self.salt.bytes()));
        }
        let mut stream = self.stream();
        let start = out.len();
        out.append(&[REQUEST]);
        out.append(&self.now.to_be_bytes());
        out.append(&(body as u16).to_be_bytes());
        seal_since(&mut out, start, &mut stream);
        let start = out.len();
        out.append(&address);
        out.append(&(padding as u16).to_be_bytes());
        out.append(&[0; MAX_PADDING][..padding]);
        append_front(&mut out, data, payload);
        seal_since(&mut out, start, &mut stream);
        (out, stream)
    }

    fn stream(&self) -> Stream {
        let key = self.keys.last().expect("a client has a key");
        Stream::new(Key::new(self.cipher, key.session_subkey(self.salt.bytes()).bytes()))
    }
}

/// What begins a stream of the 2022 edition, as a server sends it. There must be `data`.
pub(super) fn seal_response(
    cipher: Cipher,
    key: &Secret,
    request_salt: &Salt,
    now: u64,
    data: &mut BufChain,
    around: Room,
) -> (Buf, Stream) {
    let salt = Salt::random(request_salt.len);
    seal_response_with(cipher, key, [&salt, request_salt], now, data, around)
}

/// The same with the salt given.
pub(super) fn seal_response_with(
    cipher: Cipher,
    key: &Secret,
    [salt, request_salt]: [&Salt; 2],
    now: u64,
    data: &mut BufChain,
    around: Room,
) -> (Buf, Stream) {
    let payload = data.len().min(FIRST);
    let len = salt.len + response_head_len(salt.len) + payload + TAG;
    let mut out = Buf::new(len, around.head, around.tail);
    out.append(salt.bytes());
    let mut stream = Stream::new(Key::new(cipher, key.session_subkey(salt.bytes()).bytes()));
    let start = out.len();
    out.append(&[RESPONSE]);
    out.append(&now.to_be_bytes());
    out.append(request_salt.bytes());
    out.append(&(payload as u16).to_be_bytes());
    seal_since(&mut out, start, &mut stream);
    let start = out.len();
    append_front(&mut out, data, payload);
    seal_since(&mut out, start, &mut stream);
    (out, stream)
}

/// What begins a stream of the first AEAD edition: the salt, and a chunk with the address, of a client, and the first
/// of `data`.
pub(super) fn seal_first(
    cipher: Cipher,
    key: &Secret,
    salt: &Salt,
    target: Option<&Target>,
    data: &mut BufChain,
    around: Room,
) -> (Buf, Stream) {
    let mut address = Vec::with_capacity(MAX_ADDRESS);
    if let Some(target) = target {
        AddressCodec::SOCKS.encode(target, &mut address);
    }
    let payload = data.len().min(FIRST - 1 - address.len());
    let body = address.len() + payload;
    let mut out = Buf::new(salt.len + LENGTH + body + TAG, around.head, around.tail);
    out.append(salt.bytes());
    let mut stream = Stream::new(Key::new(cipher, key.subkey(salt.bytes()).bytes()));
    let start = out.len();
    out.append(&(body as u16).to_be_bytes());
    seal_since(&mut out, start, &mut stream);
    let start = out.len();
    out.append(&address);
    append_front(&mut out, data, payload);
    seal_since(&mut out, start, &mut stream);
    (out, stream)
}

/// Tells whoever has `key` that the bytes are for whoever has `next`.
fn sealed_identity(key: &Secret, next: &Secret, salt: &[u8]) -> [u8; BLOCK] {
    let mut block = next.hash();
    if let Some(blocks) = Blocks::new(key.identity_subkey(salt).bytes()) {
        blocks.encrypt(&mut block);
    }
    block
}

/// Reads whom a stream is for.
pub(super) fn open_identity(key: &Secret, salt: &[u8], mut block: [u8; BLOCK]) -> Option<[u8; BLOCK]> {
    Blocks::new(key.identity_subkey(salt).bytes())?.decrypt(&mut block);
    Some(block)
}

/// Moves the first `count` bytes of `data` behind what is in `out`.
fn append_front(out: &mut Buf, data: &mut BufChain, count: usize) {
    let filled = data.peek(&mut out.spare_mut()[..count]);
    out.grow(filled);
    data.advance(filled);
}

/// Seals what stands in `out` from `start` on, and puts the tag behind it.
fn seal_since(out: &mut Buf, start: usize, stream: &mut Stream) {
    out.grow(TAG);
    stream.seal_region(&mut out[start..]);
}

/// Fed with random bytes: what decodes ends within the bytes.
pub(super) fn fuzz_request(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if decode_request(&mut r).is_ok() {
        assert!(r.position() <= bytes.len() && (r.position() > 7 || !r.rest().is_empty()));
    }
    if let Ok((time, _)) = decode_request_head(bytes, 1_700_000_000) {
        assert!(is_timely(time, 1_700_000_000) && bytes.len() >= 11 && bytes[0] == REQUEST);
    }
    let salt = Salt::received(&[7; 16]);
    if decode_response_head(bytes, &salt, 1_700_000_000).is_ok() {
        assert!(bytes.len() >= 27 && bytes[9..25] == [7; 16]);
    }
}
