//! TLS records once the handshake is done: sealing and opening them in place.
//!
//! ```text
//! TLS 1.3   23 | 3 3 | length | AEAD( data | content type | zeros )                   | tag 16
//! TLS 1.2   content type | 3 3 | length | explicit nonce 8 (GCM) | AEAD( data )       | tag 16
//! ```
//!
//! A [`Sealer`] and an [`Opener`] are one direction each. They know keys and sequence numbers, not sockets; they do not
//! care who did the handshake. Both work on the memory they are given; where a record and its data cannot share memory
//! they go from one piece to another in the same pass of the cipher.
//!
//! Sources: RFC 8446 section 5 and 7, RFC 5246 section 6.2.3.3, RFC 5288 (GCM), RFC 7905 (ChaCha20-Poly1305).
//! Left out on purpose: CBC suites, compression, padding of our own records.

mod keys;
mod open;
mod seal;

pub(crate) use keys::expand_label;
pub use keys::{Cipher, Secret, TrafficSecret};
pub use open::Opener;
pub use seal::Sealer;

use thiserror::Error;

/// Bytes of a record before its body: content type, version, length.
pub const HEADER: usize = 5;
/// Most bytes of data in one record.
pub const MAX_DATA: usize = 1 << 14;
/// Bytes of an AEAD tag, in every suite.
pub(crate) const TAG: usize = 16;

/// What a record carries (RFC 8446 appendix B.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ContentType {
    /// A relic of TLS 1.2; nothing may change its keys after the handshake.
    ChangeCipherSpec,
    /// Two bytes: level and description.
    Alert,
    /// Handshake messages: tickets and key updates.
    Handshake,
    /// The payload of the stream.
    Data,
}

impl ContentType {
    /// The byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::ChangeCipherSpec => 20,
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => 23,
        }
    }

    /// The meaning of a byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            20 => Self::ChangeCipherSpec,
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::Data,
            _ => return None,
        })
    }
}

/// What is wrong with a record, or why there can be no more.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum RecordError {
    /// It is longer than TLS allows.
    #[error("the record is too long")]
    TooLong,
    /// Its bytes were changed on the way, or it was sealed with another key.
    #[error("the record does not match its tag")]
    BadTag,
    /// It is of a kind or version that cannot come here.
    #[error("the record is of an unexpected kind")]
    Unexpected,
    /// The keys have protected as many records as they may.
    #[error("the keys of this connection are used up")]
    Exhausted,
}

impl RecordError {
    /// The alert that tells the peer.
    #[must_use]
    pub const fn alert(self) -> u8 {
        match self {
            Self::TooLong => 22,
            Self::BadTag => 20,
            Self::Unexpected => 10,
            Self::Exhausted => 80,
        }
    }
}

#[cfg(test)]
mod tests;
