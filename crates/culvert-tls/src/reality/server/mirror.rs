//! What a target's first flight looks like from outside: its `ServerHello`, and how long its records are.
//!
//! ```text
//! [HelloRetryRequest | change cipher spec]          where it wants another key; the client's other hello comes between
//! ServerHello | change cipher spec | all four messages in one row of records
//!                                  | or four rows: EncryptedExtensions, Certificate, CertificateVerify, Finished
//!                                  | maybe another record
//! row         full records, as many as it takes, and one that is not full
//! ```
//!
//! Nobody but the client can see which of both it is, so it is told by lengths: no row that is shorter than our own flight
//! holds four messages, since there is hardly a shorter certificate than ours; and of four rows the last is as long as
//! `Finished` is.

use culvert_wire::{DecodeError, Reader};

use super::flight;
use super::hello::Group;
use crate::record::{Cipher, HEADER, MAX_DATA, TAG};

/// Most bytes of a flight that are looked at: a long chain of certificates.
pub const MAX_FLIGHT: usize = 48 << 10;

/// Whole bytes of a record around its data.
pub(super) const AROUND: usize = HEADER + 1 + TAG;
const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
/// The random of a `HelloRetryRequest`.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Where the random stands in a record with a server's hello.
const RANDOM: std::ops::Range<usize> = 11..43;

/// The whole lengths of records, headers included, of which all but the last are full.
pub type Row = Vec<usize>;

/// The encrypted records of a flight.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lengths {
    /// All messages are in one row.
    Merged(Row),
    /// Each has its own.
    Separate([Row; 4]),
}

/// How to answer in the target's place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// The target's record with the `ServerHello`.
    pub server_hello: Vec<u8>,
    /// Where the key share stands in it.
    pub share: usize,
    /// Its group.
    pub group: Group,
    /// The cipher it chose.
    pub cipher: Cipher,
    /// Whether a change of keys follows, for the sake of boxes on the way.
    pub changes: bool,
    /// The records behind.
    pub lengths: Lengths,
    /// The length of a record behind the flight that came with it.
    pub extra: Option<usize>,
}

impl Plan {
    /// Reads the flight at the front of what a target has sent; `retried` if it has asked for another hello before.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`], or it is none that could be imitated.
    pub fn decode(flight: &[u8], retried: bool) -> Result<Self, DecodeError> {
        let mut r = Reader::new(flight);
        let server_hello = record(&mut r, 22)?.to_vec();
        let (share, group, cipher) = parse(&server_hello).map_err(|error| match error {
            DecodeError::Incomplete => DecodeError::Invalid("ServerHello"),
            other @ DecodeError::Invalid(_) => other,
        })?;
        // Who has asked for another hello has said this already.
        let changes = !retried || r.rest().first() == Some(&CHANGE_CIPHER_SPEC[0]);
        if changes {
            r.expect(&CHANGE_CIPHER_SPEC, "change cipher spec")?;
        }
        let first = row(&mut r)?;
        let mut behind = Reader::new(r.rest());
        let rest = (|| Ok([row(&mut behind)?, row(&mut behind)?, row(&mut behind)?]))();
        let finished = AROUND + 4 + cipher.hash_len();
        let holds_all = first.iter().sum::<usize>() >= flight::shortest(cipher) + AROUND;
        let (lengths, extra) = match rest {
            Err(error) if !holds_all => return Err(error),
            Ok([second, third, fourth]) if !holds_all || fourth == [finished] => {
                let extra = record(&mut behind, 23).ok().map(<[u8]>::len);
                (Lengths::Separate([first, second, third, fourth]), extra)
            }
            _ => (Lengths::Merged(first), None),
        };
        Ok(Self { server_hello, share, group, cipher, changes, lengths, extra })
    }
}

/// How long the record is with which a target asks for another hello, if that is what it has sent.
#[must_use]
pub fn retry(flight: &[u8]) -> Option<usize> {
    let record = record(&mut Reader::new(flight), 22).ok()?;
    (record.get(RANDOM) == Some(&RETRY[..])).then_some(record.len())
}

/// A whole record of this type, with its header.
fn record<'a>(r: &mut Reader<'a>, kind: u8) -> Result<&'a [u8], DecodeError> {
    let all = r.rest();
    r.expect(&[kind, 3, 3], "record of the target")?;
    let len = usize::from(r.u16()?);
    r.take(len)?;
    Ok(&all[..HEADER + len])
}

/// Encrypted records up to the first that is not full.
fn row(r: &mut Reader<'_>) -> Result<Row, DecodeError> {
    let mut row = Row::new();
    loop {
        let len = record(r, 23)?.len();
        row.push(len);
        if len < MAX_DATA + AROUND {
            return Ok(row);
        }
    }
}

fn parse(record: &[u8]) -> Result<(usize, Group, Cipher), DecodeError> {
    let mut r = Reader::new(record);
    r.take(HEADER)?;
    r.expect(&[2, 0], "message type")?;
    let len = usize::from(r.u16()?);
    if r.rest().len() != len {
        return Err(DecodeError::Invalid("ServerHello is not alone in its record"));
    }
    r.expect(&[3, 3], "legacy version")?;
    if r.array()? == RETRY {
        return Err(DecodeError::Invalid("a request for another hello"));
    }
    let session_id = r.u8()?;
    r.take(session_id.into())?;
    let cipher = match r.u16()? {
        0x1301 => Cipher::Aes128Gcm,
        0x1302 => Cipher::Aes256Gcm,
        0x1303 => Cipher::ChaCha20Poly1305,
        _ => return Err(DecodeError::Invalid("cipher suite")),
    };
    r.expect(&[0], "compression")?;
    r.u16()?;
    let (mut tls13, mut share) = (false, None);
    while !r.rest().is_empty() {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let at = r.position();
        let mut body = Reader::new(r.take(len)?);
        match kind {
            43 => tls13 = body.u16()? == 0x0304,
            51 => {
                let group = Group::from_number(body.u16()?).ok_or(DecodeError::Invalid("group"))?;
                let len = group.server_share();
                if usize::from(body.u16()?) != len || body.rest().len() != len {
                    return Err(DecodeError::Invalid("key share"));
                }
                share = Some((at + 4, group));
            }
            _ => {}
        }
    }
    match share {
        Some((at, group)) if tls13 => Ok((at, group, cipher)),
        _ => Err(DecodeError::Invalid("not TLS 1.3")),
    }
}

/// Fed with random bytes: what is found stands there.
///
/// # Panics
/// If not.
pub fn fuzz_plan(bytes: &[u8]) {
    for retried in [false, true] {
        if let Ok(plan) = Plan::decode(bytes, retried) {
            assert!(bytes.starts_with(&plan.server_hello));
            assert!(plan.share + plan.group.server_share() <= plan.server_hello.len());
            let rows = match &plan.lengths {
                Lengths::Merged(row) => std::slice::from_ref(row),
                Lengths::Separate(rows) => rows,
            };
            assert!(rows.iter().flatten().sum::<usize>() < bytes.len());
        }
    }
    assert!(retry(bytes).is_none_or(|len| len <= bytes.len()));
}
