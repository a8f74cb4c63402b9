//! Certificates that come compressed (RFC 8879).
//!
//! ```text
//! 25 | length 3 | algorithm 2 | length unpacked 3 | packed 3+
//! ```
//!
//! The result has exactly the length that was announced, and no more is unpacked than that.

use std::io::Read;

use culvert_wire::Reader;

use super::messages::{end, u24, very_long};
use super::{Refusal, alert};
use crate::browser::ClientHello;

/// The longest certificates that are unpacked.
const MAX_UNPACKED: usize = 256 << 10;

const ZLIB: u16 = 1;
const BROTLI: u16 = 2;
const ZSTD: u16 = 3;

/// The body of the `Certificate` message in this one.
pub(super) fn unpack(hello: &ClientHello, body: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut r = Reader::new(body);
    let algorithm = r.u16()?;
    let len = u24(&mut r)?;
    let packed = very_long(&mut r)?;
    end(&r)?;
    if !hello.offers_compression(algorithm) {
        return Err(Refusal::illegal("certificates packed in a way that was not offered"));
    }
    if len > MAX_UNPACKED {
        return Err(Refusal::new(alert::BAD_CERTIFICATE, "the certificates are too long"));
    }
    let unpacked = match algorithm {
        ZLIB => exactly(flate2::read::ZlibDecoder::new(packed), len),
        BROTLI => exactly(brotli_decompressor::Decompressor::new(packed, 4096), len),
        ZSTD => zstd(packed, len),
        _ => None,
    };
    unpacked.ok_or_else(|| Refusal::new(alert::BAD_CERTIFICATE, "the packed certificates are damaged"))
}

/// All that comes of a decoder, if that is so many bytes. No memory is taken for what does not come.
fn exactly(decoder: impl Read, len: usize) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    decoder.take(len as u64 + 1).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() == len).then_some(unpacked)
}

fn zstd(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    exactly(ruzstd::decoding::StreamingDecoder::new(packed).ok()?, len)
}
