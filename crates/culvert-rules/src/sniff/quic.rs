//! QUIC: the ClientHello in Initial packets, decrypted with the keys that anyone on the path can derive.
//!
//! ```text
//! 1 1 type:2 ....  version:4  dcid<0..20>  scid<0..20>  token<varint>  length:varint  number:1-4  frames + tag
//! ```
//!
//! RFC 9000 section 17.2.2, RFC 9001 section 5, RFC 9369 (version 2), and draft 29.
//!
//! A hello may need several packets, which come in any order, twice, and with overlapping CRYPTO frames. The pieces are
//! kept as they came, at most [`MAX_CRYPTO`] bytes of them from [`MAX_DATAGRAMS`] datagrams; nothing is allocated by a
//! length that a peer merely claims. Where pieces overlap, the first to come counts.

use std::{collections::BTreeMap, fmt};

use aws_lc_rs::{
    aead::{self, quic::HeaderProtectionKey},
    error::Unspecified,
    hkdf,
};
use culvert_wire::{DecodeError, Reader};

use super::{ClientHello, Protocol, Sniffed, Verdict};

/// Hello bytes kept, in place or not.
pub(super) const MAX_CRYPTO: usize = 16 << 10;
/// Datagrams looked at.
pub(super) const MAX_DATAGRAMS: usize = 32;
/// Pieces with a gap before them.
const MAX_PIECES: usize = 64;
const MAX_CONNECTION_ID: u8 = 20;

/// A version of QUIC that can be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    Draft29,
    One,
    Two,
}

impl Version {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            0xff00_001d => Some(Self::Draft29),
            0x0000_0001 => Some(Self::One),
            0x6b33_43cf => Some(Self::Two),
            _ => None,
        }
    }

    fn initial_type(self) -> u8 {
        if self == Self::Two { 1 } else { 0 }
    }

    fn salt(self) -> [u8; 20] {
        match self {
            Self::Draft29 => {
                *b"\xaf\xbf\xec\x28\x99\x93\xd2\x4c\x9e\x97\x86\xf1\x9c\x61\x11\xe0\x43\x90\xa8\x99"
            }
            Self::One => *b"\x38\x76\x2c\xf7\xf5\x59\x34\xb3\x4d\x17\x9a\xe6\xa4\xc8\x0c\xad\xcc\xbb\x7f\x0a",
            Self::Two => *b"\x0d\xed\xe3\xde\xf7\x00\xa6\xdb\x81\x93\x81\xbe\x6e\x26\x9d\xcb\xf9\xbd\x2e\xd9",
        }
    }

    /// Labels of key, IV and header protection key.
    fn labels(self) -> [&'static str; 3] {
        match self {
            Self::Two => ["quicv2 key", "quicv2 iv", "quicv2 hp"],
            _ => ["quic key", "quic iv", "quic hp"],
        }
    }
}

/// Collects a ClientHello from the datagrams a client sends first.
#[derive(Debug)]
pub struct QuicSniffer {
    keys: Option<Keys>,
    /// The hello as far as it is without a gap.
    hello: Vec<u8>,
    /// What came ahead of its turn, by offset.
    pieces: BTreeMap<usize, Vec<u8>>,
    pieces_len: usize,
    datagrams: usize,
    decrypted: bool,
}

impl Default for QuicSniffer {
    fn default() -> Self {
        Self::new()
    }
}

impl QuicSniffer {
    /// Before any datagram.
    pub fn new() -> Self {
        let (hello, pieces) = (Vec::new(), BTreeMap::new());
        Self { keys: None, hello, pieces, pieces_len: 0, datagrams: 0, decrypted: false }
    }

    /// Whether any packet could be decrypted, so that this is QUIC for certain.
    pub fn decrypted(&self) -> bool {
        self.decrypted
    }

    /// Takes the next datagram of the client.
    ///
    /// `No` if the first one is no Initial, or what they hold can be no hello. A later datagram that is no Initial, or
    /// cannot be decrypted, changes nothing.
    pub fn packet(&mut self, datagram: &[u8]) -> Verdict {
        self.datagrams += 1;
        let mut rest = datagram;
        let mut frames = Frames::default();
        while let Ok((initial, len)) = Initial::decode(rest) {
            match self.open(&initial, &rest[..len]) {
                Ok(payload) => match self.read_frames(&payload) {
                    Ok(kinds) => frames = kinds,
                    Err(_) => return Verdict::No,
                },
                // Not ours to judge: a packet of another connection, or damaged.
                Err(Unspecified) => break,
            }
            rest = &rest[len..];
        }
        match ClientHello::decode(&self.hello) {
            Ok(hello) => {
                let client = Some(frames.guess_client(&hello).into());
                Verdict::Match(Sniffed { protocol: Protocol::Quic, domain: hello.domain(), client })
            }
            Err(DecodeError::Invalid(_)) => Verdict::No,
            Err(DecodeError::Incomplete) if self.decrypted && self.datagrams < MAX_DATAGRAMS => {
                Verdict::NeedMore
            }
            Err(DecodeError::Incomplete) => Verdict::No,
        }
    }

    /// The payload of an Initial packet, which is all of `packet`.
    fn open(&mut self, initial: &Initial<'_>, packet: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let fitting =
            |keys: &Keys| keys.version == initial.version && *keys.connection_id == *initial.connection_id;
        let keys = match self.keys.take().filter(fitting) {
            Some(keys) => keys,
            None => Keys::derive(initial.version, initial.connection_id)?,
        };
        let opened = keys.open(initial.header_len, packet);
        self.keys = Some(keys);
        self.decrypted |= opened.is_ok();
        opened
    }

    fn read_frames(&mut self, payload: &[u8]) -> Result<Frames, DecodeError> {
        let mut r = Reader::new(payload);
        let mut frames = Frames::default();
        while !r.rest().is_empty() {
            let kind = r.u8()?;
            frames.note(kind);
            match kind {
                frame::PADDING | frame::PING => {}
                frame::ACK | frame::ACK_ECN => skip_ack(&mut r, kind)?,
                frame::CRYPTO => {
                    let (offset, len) = (varint(&mut r)?, varint(&mut r)?);
                    let len = usize::try_from(len).map_err(|_| DecodeError::Incomplete)?;
                    self.add_piece(offset, r.take(len)?)?;
                }
                frame::CONNECTION_CLOSE => {
                    varint(&mut r)?;
                    varint(&mut r)?;
                    let len = usize::try_from(varint(&mut r)?).map_err(|_| DecodeError::Incomplete)?;
                    r.take(len)?;
                }
                _ => return Err(DecodeError::Invalid("frame in an Initial packet")),
            }
        }
        Ok(frames)
    }

    /// Puts crypto data in its place, in front of what is there already.
    fn add_piece(&mut self, offset: u64, piece: &[u8]) -> Result<(), DecodeError> {
        let too_much = DecodeError::Invalid("crypto data");
        let offset = usize::try_from(offset).ok().filter(|at| *at <= MAX_CRYPTO).ok_or(too_much)?;
        if offset + piece.len() > MAX_CRYPTO {
            return Err(too_much);
        }
        if offset > self.hello.len() {
            if !self.pieces.contains_key(&offset) {
                self.pieces_len += piece.len();
                if self.pieces.len() == MAX_PIECES || self.pieces_len > MAX_CRYPTO {
                    return Err(too_much);
                }
                self.pieces.insert(offset, piece.to_vec());
            }
            return Ok(());
        }
        self.append(offset, piece);
        while let Some(entry) = self.pieces.first_entry() {
            if *entry.key() > self.hello.len() {
                break;
            }
            let (offset, piece) = entry.remove_entry();
            self.pieces_len -= piece.len();
            self.append(offset, &piece);
        }
        Ok(())
    }

    fn append(&mut self, offset: usize, piece: &[u8]) {
        let known = self.hello.len() - offset;
        self.hello.extend(piece.get(known..).unwrap_or_default());
    }
}

fn skip_ack(r: &mut Reader<'_>, kind: u8) -> Result<(), DecodeError> {
    varint(r)?;
    varint(r)?;
    let ranges = varint(r)?;
    varint(r)?;
    // Each range is at least two bytes, so a lie ends with the bytes.
    for _ in 0..ranges {
        varint(r)?;
        varint(r)?;
    }
    let counts = if kind == frame::ACK_ECN { 3 } else { 0 };
    (0..counts).try_for_each(|_| varint(r).map(drop))
}

mod frame {
    pub(super) const PADDING: u8 = 0x00;
    pub(super) const PING: u8 = 0x01;
    pub(super) const ACK: u8 = 0x02;
    pub(super) const ACK_ECN: u8 = 0x03;
    pub(super) const CRYPTO: u8 = 0x06;
    pub(super) const CONNECTION_CLOSE: u8 = 0x1c;
}

/// The frames of one packet, as far as they tell clients apart. Each byte of padding is a frame.
#[derive(Default)]
struct Frames {
    count: usize,
    crypto: usize,
    ping: usize,
    padding: usize,
    first: u8,
    last: u8,
}

impl Frames {
    fn note(&mut self, kind: u8) {
        if self.count == 0 {
            self.first = kind;
        }
        self.last = kind;
        self.count += 1;
        self.crypto += usize::from(kind == frame::CRYPTO);
        self.ping += usize::from(kind == frame::PING);
        self.padding += usize::from(kind == frame::PADDING);
    }

    /// Which program sends its hello like this. The rules are those of sing-box.
    fn guess_client(&self, hello: &ClientHello<'_>) -> &'static str {
        let grease = |list: &[u16]| list.first().is_some_and(|first| first & 0x0f0f == 0x0a0a);
        let rest_is_padding = self.padding + 1 == self.count;
        if self.count == 1 {
            return "firefox";
        }
        if self.first == frame::CRYPTO && rest_is_padding {
            let browser = hello.versions.len() == 2
                && grease(&hello.versions)
                && hello.groups.len() == 5
                && grease(&hello.groups);
            let private_relay = hello.cipher_suites == [0x1302]
                && hello.groups == [0x001d]
                && hello.signature_algorithms == [0x0403];
            if browser || private_relay {
                return "safari";
            }
        }
        if self.last == frame::CRYPTO && rest_is_padding {
            return "quic-go";
        }
        if self.crypto > 1 || self.ping > 0 {
            // X25519MLKEM768 and renegotiation_info, taken for signs of Go. Chromium has come to send the group too.
            let go = hello.groups.contains(&0x11ec) || hello.extensions.contains(&0xff01);
            return if go { "quic-go" } else { "chromium" };
        }
        "unknown"
    }
}

/// The header of an Initial packet.
struct Initial<'a> {
    version: Version,
    connection_id: &'a [u8],
    /// Up to the packet number.
    header_len: usize,
}

impl<'a> Initial<'a> {
    /// The header, and the length of the whole packet.
    fn decode(bytes: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let mut r = Reader::new(bytes);
        let first = r.u8()?;
        let version = Version::from_number(r.u32()?).ok_or(DecodeError::Invalid("QUIC version"))?;
        if first & 0xc0 != 0xc0 || first >> 4 & 3 != version.initial_type() {
            return Err(DecodeError::Invalid("QUIC packet type"));
        }
        let len = r.u8()?;
        if len == 0 || len > MAX_CONNECTION_ID {
            return Err(DecodeError::Invalid("QUIC connection id"));
        }
        let connection_id = r.take(len.into())?;
        let len = r.u8()?;
        r.take(len.into())?;
        let token = usize::try_from(varint(&mut r)?).map_err(|_| DecodeError::Incomplete)?;
        r.take(token)?;
        let len = usize::try_from(varint(&mut r)?).map_err(|_| DecodeError::Incomplete)?;
        let header_len = r.position();
        r.take(len)?;
        Ok((Self { version, connection_id, header_len }, header_len + len))
    }
}

/// Whether a datagram begins with an Initial packet of a version that can be read, whole.
pub(super) fn looks_like_initial(datagram: &[u8]) -> bool {
    Initial::decode(datagram).is_ok()
}

/// One to eight bytes, the first two bits say how many. RFC 9000 section 16.
fn varint(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let first = r.u8()?;
    let more = r.take((1 << (first >> 6)) - 1)?;
    Ok(more.iter().fold((first & 0x3f).into(), |value, byte| value << 8 | u64::from(*byte)))
}

/// What a client's Initial packets with one connection id are protected by.
struct Keys {
    version: Version,
    connection_id: Box<[u8]>,
    header: HeaderProtectionKey,
    payload: aead::LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Keys {
    fn derive(version: Version, connection_id: &[u8]) -> Result<Self, Unspecified> {
        let initial = hkdf::Salt::new(hkdf::HKDF_SHA256, &version.salt()).extract(connection_id);
        let secret: [u8; 32] = expand_label(&initial, "client in")?;
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &secret);
        let [key, iv, header] = version.labels();
        let key: [u8; 16] = expand_label(&secret, key)?;
        let header: [u8; 16] = expand_label(&secret, header)?;
        Ok(Self {
            version,
            connection_id: connection_id.into(),
            header: HeaderProtectionKey::new(&aead::quic::AES_128, &header)?,
            payload: aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, &key)?),
            iv: expand_label(&secret, iv)?,
        })
    }

    /// Takes the protection off. `number_at` is where the packet number stands.
    fn open(&self, number_at: usize, packet: &[u8]) -> Result<Vec<u8>, Unspecified> {
        // The sample is taken as if the number had four bytes.
        let sample = packet.get(number_at + 4..number_at + 20).ok_or(Unspecified)?;
        let mask = self.header.new_mask(sample)?;
        let mut header = packet[..number_at + 4].to_vec();
        header[0] ^= mask[0] & 0x0f;
        let number_len = usize::from(header[0] & 3) + 1;
        header.truncate(number_at + number_len);
        let mut nonce = self.iv;
        for (at, byte) in header[number_at..].iter_mut().enumerate() {
            *byte ^= mask[at + 1];
            nonce[aead::NONCE_LEN - number_len + at] ^= *byte;
        }
        let mut payload = packet[number_at + number_len..].to_vec();
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let len = self.payload.open_in_place(nonce, aead::Aad::from(&header), &mut payload)?.len();
        payload.truncate(len);
        Ok(payload)
    }
}

/// HKDF-Expand-Label of TLS 1.3 without a context, RFC 8446 section 7.1.
fn expand_label<const N: usize>(secret: &hkdf::Prk, label: &str) -> Result<[u8; N], Unspecified> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let lengths = [0, N as u8, 6 + label.len() as u8];
    let info = [&lengths[..], b"tls13 ", label.as_bytes(), &[0]];
    let mut out = [0; N];
    secret.expand(&info, Length(N))?.fill(&mut out)?;
    Ok(out)
}

/// Datagrams, each behind its length in two bytes: however they come, memory stays bounded. The same bytes as frames,
/// so that a fuzzer need not encrypt.
#[doc(hidden)]
pub fn fuzz_quic(data: &[u8]) {
    let mut sniffer = QuicSniffer::new();
    let mut rest = data;
    while let Some(([high, low], more)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        sniffer.packet(&more[..len]);
        rest = &more[len..];
    }
    let mut plain = QuicSniffer::new();
    for part in data.chunks(data.len() / 3 + 1) {
        let _ = plain.read_frames(part);
        let held: usize = plain.pieces.values().map(Vec::len).sum();
        assert_eq!(held, plain.pieces_len);
        assert!(plain.hello.len() <= MAX_CRYPTO && held <= MAX_CRYPTO && plain.pieces.len() <= MAX_PIECES);
        assert!(plain.pieces.keys().all(|at| *at > plain.hello.len()));
    }
}

#[cfg(test)]
pub(super) mod seal {
    //! The client's half, for tests: makes Initial packets.

    use aws_lc_rs::aead::{Aad, Nonce};

    use super::*;

    /// One Initial packet of a version by number, with a one-byte packet number.
    pub(in crate::sniff) fn initial(
        version: u32,
        connection_id: &[u8],
        number: u8,
        frames: &[u8],
    ) -> Vec<u8> {
        let known = Version::from_number(version).unwrap();
        let keys = Keys::derive(known, connection_id).unwrap();
        // Room for the sample.
        let mut payload = frames.to_vec();
        payload.resize(payload.len().max(4), 0);
        let mut header = vec![0xc0 | known.initial_type() << 4];
        header.extend(version.to_be_bytes());
        header.push(connection_id.len() as u8);
        header.extend(connection_id);
        header.extend([0, 0]);
        header.extend((0x4000 | (1 + payload.len() + 16) as u16).to_be_bytes());
        let number_at = header.len();
        header.push(number);
        let mut nonce = keys.iv;
        nonce[11] ^= number;
        let nonce = Nonce::assume_unique_for_key(nonce);
        keys.payload.seal_in_place_append_tag(nonce, Aad::from(&header), &mut payload).unwrap();
        let mut packet = [header, payload].concat();
        let mask = keys.header.new_mask(&packet[number_at + 4..number_at + 20]).unwrap();
        packet[0] ^= mask[0] & 0x0f;
        packet[number_at] ^= mask[1];
        packet
    }

    /// A CRYPTO frame.
    pub(in crate::sniff) fn crypto(offset: usize, data: &[u8]) -> Vec<u8> {
        let mut out = vec![frame::CRYPTO];
        out.extend((0x8000_0000 | offset as u32).to_be_bytes());
        out.extend((0x4000 | data.len() as u16).to_be_bytes());
        out.extend(data);
        out
    }
}
