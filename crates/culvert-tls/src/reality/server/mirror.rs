//! What a target's first flight looks like from outside: its `ServerHello`, and how long its records are.
//!
//! ```text
//! ServerHello | change cipher spec | one record with all four messages (longer than 512 bytes)
//!                                  | or four records: EncryptedExtensions, Certificate, CertificateVerify, Finished
//!                                  | maybe another record
//! ```

use culvert_wire::{DecodeError, Reader};

use super::hello::{KEY, X25519, X25519_ML_KEM_768};
use crate::record::{Cipher, HEADER};

/// Most bytes of a flight that are looked at.
pub const MAX_FLIGHT: usize = 17 << 10;
/// Bytes of an ML-KEM-768 ciphertext.
pub const CIPHERTEXT: usize = 1088;

/// A first encrypted record that is longer than this holds all messages.
const MERGED: usize = 512;
const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
/// The random of a `HelloRetryRequest`.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The groups that can be answered in the target's place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Group {
    /// X25519.
    X25519,
    /// X25519 behind ML-KEM-768.
    X25519MlKem768,
}

impl Group {
    /// Bytes of a server's share.
    #[must_use]
    pub fn share_len(self) -> usize {
        match self {
            Self::X25519 => KEY,
            Self::X25519MlKem768 => CIPHERTEXT + KEY,
        }
    }
}

/// The whole lengths of the encrypted records of a flight, headers included.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lengths {
    /// All messages are in one.
    Merged(usize),
    /// Each has its own.
    Separate([usize; 4]),
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
    /// The records behind.
    pub lengths: Lengths,
    /// The length of a record behind the flight that came with it.
    pub extra: Option<usize>,
}

impl Plan {
    /// Reads the flight at the front of what a target has sent.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`], or it is none that could be imitated.
    pub fn decode(flight: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(flight);
        let server_hello = record(&mut r, 22)?.to_vec();
        let (share, group, cipher) = parse(&server_hello).map_err(|error| match error {
            DecodeError::Incomplete => DecodeError::Invalid("ServerHello"),
            other @ DecodeError::Invalid(_) => other,
        })?;
        r.expect(&CHANGE_CIPHER_SPEC, "change cipher spec")?;
        let first = record(&mut r, 23)?.len();
        let lengths = if first > MERGED {
            Lengths::Merged(first)
        } else {
            let mut lengths = [first; 4];
            for len in &mut lengths[1..] {
                *len = record(&mut r, 23)?.len();
            }
            Lengths::Separate(lengths)
        };
        let extra = match (&lengths, record(&mut r, 23)) {
            (Lengths::Separate(_), Ok(record)) => Some(record.len()),
            _ => None,
        };
        Ok(Self { server_hello, share, group, cipher, lengths, extra })
    }
}

/// A whole record of this type, with its header.
fn record<'a>(r: &mut Reader<'a>, kind: u8) -> Result<&'a [u8], DecodeError> {
    let all = r.rest();
    r.expect(&[kind, 3, 3], "record of the target")?;
    let len = usize::from(r.u16()?);
    r.take(len)?;
    Ok(&all[..HEADER + len])
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
                let group = match body.u16()? {
                    X25519 => Group::X25519,
                    X25519_ML_KEM_768 => Group::X25519MlKem768,
                    _ => return Err(DecodeError::Invalid("group")),
                };
                if usize::from(body.u16()?) != group.share_len() || body.rest().len() != group.share_len() {
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
    if let Ok(plan) = Plan::decode(bytes) {
        assert!(bytes.starts_with(&plan.server_hello));
        assert!(plan.share + plan.group.share_len() <= plan.server_hello.len());
    }
}
