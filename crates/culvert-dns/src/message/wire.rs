//! The shape of a DNS message, walked in place and patched in place.
//!
//! ```text
//! header    | id 2 | flags 2 | qdcount 2 | ancount 2 | nscount 2 | arcount 2 |
//! question  | name | type 2 | class 2 |
//! record    | name | type 2 | class 2 | ttl 4 | rdlength 2 | rdata |
//! name      labels: | length 1..=63 | bytes |, ended by a zero byte or by a pointer (two bytes, top bits 11)
//! ```
//!
//! A walk never recurses and never follows more than [`MAX_POINTERS`] pointers, each of which must lead backwards, so that
//! a hostile message costs at most its own length times a small constant.
//!
//! Sources: RFC 1035 section 4.1, RFC 3597 section 4 (which record data may hold compressed names).

use std::ops::Range;

use thiserror::Error;

/// Bytes before the question.
pub const HEADER: usize = 12;
/// Longest name on the wire, lengths and the zero byte included.
pub const MAX_NAME: usize = 255;
/// A name of 255 bytes has at most 127 labels; an honest one needs far fewer pointers.
const MAX_POINTERS: usize = 32;

/// Bits of the second header word.
pub mod flag {
    /// Response.
    pub const QR: u16 = 0x8000;
    /// Operation code.
    pub const OPCODE: u16 = 0x7800;
    /// Authoritative answer.
    pub const AA: u16 = 0x0400;
    /// Truncated.
    pub const TC: u16 = 0x0200;
    /// Recursion desired.
    pub const RD: u16 = 0x0100;
    /// Recursion available.
    pub const RA: u16 = 0x0080;
    /// Authentic data.
    pub const AD: u16 = 0x0020;
    /// Checking disabled.
    pub const CD: u16 = 0x0010;
    /// Response code, without the bits that EDNS adds.
    pub const RCODE: u16 = 0x000f;
}

/// Record types that the walk itself must know.
pub mod kind {
    /// IPv4 address.
    pub const A: u16 = 1;
    /// Name server.
    pub const NS: u16 = 2;
    /// Alias.
    pub const CNAME: u16 = 5;
    /// Start of authority.
    pub const SOA: u16 = 6;
    /// Name of an address.
    pub const PTR: u16 = 12;
    /// Mail exchanger.
    pub const MX: u16 = 15;
    /// Text.
    pub const TXT: u16 = 16;
    /// IPv6 address.
    pub const AAAA: u16 = 28;
    /// Service location.
    pub const SRV: u16 = 33;
    /// Alias of a whole subtree.
    pub const DNAME: u16 = 39;
    /// EDNS.
    pub const OPT: u16 = 41;
    /// Service binding.
    pub const SVCB: u16 = 64;
    /// Service binding of HTTPS.
    pub const HTTPS: u16 = 65;
    /// Any type.
    pub const ANY: u16 = 255;
}

/// Why bytes are no DNS message.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("malformed DNS message: {0}")]
pub struct Malformed(pub &'static str);

const SHORT: Malformed = Malformed("ends too early");

/// The big-endian word at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let two = bytes.get(at..at + 2).ok_or(SHORT)?;
    Ok(u16::from_be_bytes([two[0], two[1]]))
}

/// The big-endian double word at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let four = bytes.get(at..at + 4).ok_or(SHORT)?;
    Ok(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

/// Overwrites the word at `at`, which must exist.
pub fn set_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Overwrites the double word at `at`, which must exist.
pub fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// A name without compression, on the stack.
#[derive(Clone)]
pub struct NameBuf {
    bytes: [u8; MAX_NAME],
    len: usize,
}

/// No bytes yet: labels and [`NameBuf::finish`] make it a name.
impl Default for NameBuf {
    fn default() -> Self {
        Self { bytes: [0; MAX_NAME], len: 0 }
    }
}

impl NameBuf {
    /// The name in wire form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The same name, ASCII letters small: the form in which names compare equal.
    pub fn make_lowercase(&mut self) {
        // Lengths are below the letters' codes, so the whole run can be treated alike.
        self.bytes[..self.len].make_ascii_lowercase();
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let end = self.len + bytes.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(Malformed("name longer than 255 bytes"))?
            .copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// Adds one label.
    pub fn push_label(&mut self, label: &[u8]) -> Result<(), Malformed> {
        match label.len() {
            0 => Err(Malformed("empty label")),
            length @ 1..=63 => {
                self.push(&[length as u8])?;
                self.push(label)
            }
            _ => Err(Malformed("label longer than 63 bytes")),
        }
    }

    /// Adds the zero byte that ends a name.
    pub fn finish(&mut self) -> Result<(), Malformed> {
        self.push(&[0])
    }
}

/// Reads the name at `at`, following pointers, and returns it with the place behind it.
pub fn read_name(bytes: &[u8], at: usize) -> Result<(NameBuf, usize), Malformed> {
    let mut name = NameBuf::default();
    let mut at = at;
    // Pointers must lead before everything read so far: a loop is impossible, not merely bounded.
    let mut floor = at;
    let mut behind = None;
    let mut pointers = 0;
    loop {
        let length = *bytes.get(at).ok_or(SHORT)?;
        match length {
            0 => {
                name.finish()?;
                return Ok((name, behind.unwrap_or(at + 1)));
            }
            1..=63 => {
                let end = at + 1 + usize::from(length);
                name.push_label(bytes.get(at + 1..end).ok_or(SHORT)?)?;
                at = end;
            }
            0xc0.. => {
                let target = usize::from(u16_at(bytes, at)? & 0x3fff);
                pointers += 1;
                if target >= floor || pointers > MAX_POINTERS {
                    return Err(Malformed("compression pointer does not lead backwards"));
                }
                behind = behind.or(Some(at + 2));
                (at, floor) = (target, target);
            }
            _ => return Err(Malformed("unknown label type")),
        }
    }
}

/// One resource record's place in a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordAt {
    /// Where the owner name begins.
    pub start: usize,
    /// Record type.
    pub kind: u16,
    /// Class; of OPT, the sender's UDP payload size.
    pub class: u16,
    /// Where the TTL stands.
    pub ttl_at: usize,
    /// The TTL in seconds; of OPT, extended code, version and flags.
    pub ttl: u32,
    /// The data.
    pub data: Range<usize>,
}

/// Which part of a message a record stands in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Section {
    /// What was asked for, and the aliases that lead there.
    Answer,
    /// Who says so; the SOA of a negative answer.
    Authority,
    /// What may help besides.
    Additional,
}

/// A message of which every record has been found and checked to lie within it.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    left: [u16; 3],
    section: usize,
}

impl<'a> Walk<'a> {
    /// Begins at the first record; `questions_end` is where the question section ends.
    pub fn new(bytes: &'a [u8], questions_end: usize) -> Result<Self, Malformed> {
        let left = [u16_at(bytes, 6)?, u16_at(bytes, 8)?, u16_at(bytes, 10)?];
        Ok(Self { bytes, at: questions_end, left, section: 0 })
    }

    /// Where the walk stands: at its end, where the last record ends.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next record.
    pub fn step(&mut self) -> Result<Option<(Section, RecordAt)>, Malformed> {
        while self.left.get(self.section) == Some(&0) {
            self.section += 1;
        }
        let section = match self.section {
            0 => Section::Answer,
            1 => Section::Authority,
            2 => Section::Additional,
            _ => return Ok(None),
        };
        let start = self.at;
        let fixed = skip_name(self.bytes, start)?;
        let kind = u16_at(self.bytes, fixed)?;
        let class = u16_at(self.bytes, fixed + 2)?;
        let ttl = u32_at(self.bytes, fixed + 4)?;
        let data_start = fixed + 10;
        let data = data_start..data_start + usize::from(u16_at(self.bytes, fixed + 8)?);
        if data.end > self.bytes.len() {
            return Err(SHORT);
        }
        self.at = data.end;
        self.left[self.section] -= 1;
        Ok(Some((section, RecordAt { start, kind, class, ttl_at: fixed + 4, ttl, data })))
    }
}

/// A walk over a message that has been checked before yields only records.
impl Iterator for Walk<'_> {
    type Item = (Section, RecordAt);

    fn next(&mut self) -> Option<Self::Item> {
        self.step().ok().flatten()
    }
}

/// The place behind the name at `at`, without following its pointer.
fn skip_name(bytes: &[u8], mut at: usize) -> Result<usize, Malformed> {
    loop {
        let length = *bytes.get(at).ok_or(SHORT)?;
        match length {
            0 => return Ok(at + 1),
            1..=63 => at += 1 + usize::from(length),
            0xc0.. => return Ok(at + 2),
            _ => return Err(Malformed("unknown label type")),
        }
    }
}

/// Checks what a walk does not: that the owner's name can be read, and that the data of the types which hold names, or
/// which Culvert reads itself, has their shape.
pub fn check_record(bytes: &[u8], record: &RecordAt) -> Result<(), Malformed> {
    const SHAPE: Malformed = Malformed("record data has the wrong shape");
    read_name(bytes, record.start)?;
    let Range { start, end } = record.data;
    // Names in record data must not run over its end, although their pointers may lead before it.
    let inside = &bytes[..end];
    let names_end = match record.kind {
        kind::A => start + 4,
        kind::AAAA => start + 16,
        kind::NS | kind::CNAME | kind::PTR | kind::DNAME => read_name(inside, start)?.1,
        kind::MX => read_name(inside, start + 2)?.1,
        kind::SRV => read_name(inside, start + 6)?.1,
        kind::SOA => {
            let (_, second) = read_name(inside, start)?;
            read_name(inside, second)?.1 + 20
        }
        _ => end,
    };
    if names_end == end { Ok(()) } else { Err(SHAPE) }
}

/// Types of record whose data is, or ends with, a name, and how many bytes stand before it.
const NAMES: [(u16, usize); 6] = [(2, 0), (5, 0), (12, 0), (15, 2), (33, 6), (39, 0)];

/// The data of a record of a message, with a name in it written out.
#[must_use]
pub fn uncompressed(bytes: &[u8], record_type: u16, data: Range<usize>) -> Vec<u8> {
    let plain = || bytes.get(data.clone()).unwrap_or_default().to_vec();
    let name = |at: usize| read_name(bytes, at).ok();
    if record_type == kind::SOA {
        let written = || {
            let (primary, at) = name(data.start)?;
            let (mailbox, at) = name(at)?;
            Some([primary.as_bytes(), mailbox.as_bytes(), bytes.get(at..data.end)?].concat())
        };
        return written().unwrap_or_else(plain);
    }
    let Some((_, before)) = NAMES.iter().find(|(one, _)| *one == record_type) else { return plain() };
    let written = || {
        let (name, _) = name(data.start + before)?;
        Some([bytes.get(data.start..data.start + before)?, name.as_bytes()].concat())
    };
    written().unwrap_or_else(plain)
}
