//! Messages of streams and datagrams.

use culvert_wire::{DecodeError, Reader, Target};

use culvert_quic::h3::{put_varint, take_varint};

/// What a stream of ours begins with, where others have a frame of HTTP/3.
pub(super) const STREAM: u64 = 0x401;
/// Bytes of an address at most.
const MAX_ADDRESS: u64 = 2048;
/// Bytes of a reply's text at most.
const MAX_TEXT: u64 = 2048;
/// Bytes of padding at most.
const MAX_PADDING: u64 = 4096;
/// Bytes of a whole message at most, its lengths included.
pub(super) const MAX_MESSAGE: usize = (MAX_ADDRESS + MAX_PADDING) as usize + 32;
/// Bytes that an associated datagram may have.
pub(super) const MAX_PAYLOAD: usize = 4096;

/// Letters and digits, between `least` and below `most` of them.
pub(super) fn padding(least: usize, most: usize) -> Vec<u8> {
    const CHARS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = vec![0; most + 2];
    // Without random numbers the padding is short, and nothing worse.
    if aws_lc_rs::rand::fill(&mut random).is_err() {
        random.truncate(least + 2);
    }
    let number = usize::from(u16::from_be_bytes([random[0], random[1]]));
    let len = least + number % (random.len() - 2 - least).max(1);
    random.drain(..2);
    random.truncate(len);
    random.iter_mut().for_each(|byte| *byte = CHARS[usize::from(*byte) % CHARS.len()]);
    random
}

fn put_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    put_varint(bytes.len() as u64, to);
    to.extend(bytes);
}

fn take_bytes<'a>(r: &mut Reader<'a>, max: u64, what: &'static str) -> Result<&'a [u8], DecodeError> {
    let len = take_varint(r)?;
    if len > max {
        return Err(DecodeError::Invalid(what));
    }
    r.take(len as usize)
}

fn target(bytes: &[u8]) -> Result<Target, DecodeError> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| Target::parse(text, None)).ok_or(DecodeError::Invalid("address"))
}

/// The client's request, the number before it included.
pub(super) fn encode_request(to_target: &Target, padding: &[u8], to: &mut Vec<u8>) {
    put_varint(STREAM, to);
    put_bytes(to_target.to_string().as_bytes(), to);
    put_bytes(padding, to);
}

/// The request behind its number.
pub(super) fn decode_request(r: &mut Reader<'_>) -> Result<Target, DecodeError> {
    let address = take_bytes(r, MAX_ADDRESS, "length of the address")?;
    let target = target(address)?;
    take_bytes(r, MAX_PADDING, "length of the padding")?;
    Ok(target)
}

/// The server's answer; a text says why not.
pub(super) fn encode_reply(refused: Option<&str>, padding: &[u8], to: &mut Vec<u8>) {
    to.push(refused.is_some().into());
    let text = refused.unwrap_or_default();
    let end = text.floor_char_boundary(MAX_TEXT as usize);
    put_bytes(&text.as_bytes()[..end], to);
    put_bytes(padding, to);
}

/// Reads it.
pub(super) fn decode_reply(r: &mut Reader<'_>) -> Result<Result<(), String>, DecodeError> {
    let status = r.u8()?;
    let text = take_bytes(r, MAX_TEXT, "length of the message")?;
    let text = String::from_utf8_lossy(text).into_owned();
    take_bytes(r, MAX_PADDING, "length of the padding")?;
    match status {
        0 => Ok(Ok(())),
        1 => Ok(Err(text)),
        _ => Err(DecodeError::Invalid("status")),
    }
}

/// What stands before the data in a datagram.
///
/// ```text
/// session[4]  packet[2]  fragment[1]  count[1]  address length  address  data
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) session: u32,
    /// The same in all fragments of a packet.
    pub(super) packet: u16,
    pub(super) fragment: u8,
    pub(super) count: u8,
    /// Where to, or where from.
    pub(super) peer: Target,
}

impl Head {
    /// Bytes of a head with an address of this length.
    pub(super) fn len(address: usize) -> usize {
        8 + if address < 0x40 { 1 } else { 2 } + address
    }

    /// Puts one, with the address as text.
    pub(super) fn put(
        session: u32,
        packet: u16,
        [fragment, count]: [u8; 2],
        address: &str,
        to: &mut Vec<u8>,
    ) {
        to.extend(session.to_be_bytes());
        to.extend(packet.to_be_bytes());
        to.extend([fragment, count]);
        put_bytes(address.as_bytes(), to);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (session, packet, fragment, count) = (r.u32()?, r.u16()?, r.u8()?, r.u8()?);
        let address = take_bytes(r, MAX_ADDRESS, "length of the address")?;
        if fragment >= count {
            return Err(DecodeError::Invalid("number of the fragment"));
        }
        Ok(Self { session, packet, fragment, count, peer: target(address)? })
    }
}

/// Decoded requests and replies are within their limits, and the same once more.
pub(super) fn fuzz_stream(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(target) = decode_request(&mut r) {
        assert!(r.position() <= MAX_MESSAGE);
        let mut encoded = Vec::new();
        encode_request(&target, b"", &mut encoded);
        let mut r = Reader::new(&encoded);
        assert_eq!(take_varint(&mut r), Ok(STREAM));
        assert_eq!(decode_request(&mut r), Ok(target));
    }
    let mut r = Reader::new(bytes);
    if let Ok(reply) = decode_reply(&mut r) {
        assert!(r.position() <= MAX_MESSAGE);
        assert!(reply.is_ok() || bytes[0] == 1);
    }
}

/// A decoded head is the same once more.
pub(super) fn fuzz_datagram(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    let Ok(head) = Head::decode(&mut r) else { return };
    let mut encoded = Vec::new();
    let address = head.peer.to_string();
    Head::put(head.session, head.packet, [head.fragment, head.count], &address, &mut encoded);
    assert_eq!(encoded.len(), Head::len(address.len()));
    assert_eq!(Head::decode(&mut Reader::new(&encoded)), Ok(head));
}
