//! TLS: a ClientHello, however it is cut into records.
//!
//! ```text
//! record = 22  3 minor  length:2  part of handshake messages
//! ```
//!
//! RFC 8446 sections 4.1.2 and 5.1.

use std::borrow::Cow;

use culvert_wire::{DecodeError, Reader};

use super::{ClientHello, Protocol, Sniffed};

const HANDSHAKE: u8 = 22;
/// What a record of any kind may hold, RFC 5246 section 6.2.3.
const MAX_RECORD: u16 = (16 << 10) + 2048;

pub(super) fn sniff(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    let mut r = Reader::new(bytes);
    let mut message: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    loop {
        r.expect(&[HANDSHAKE, 3], "TLS record")?;
        if r.u8()? > 4 {
            return Err(DecodeError::Invalid("TLS record version"));
        }
        let len = r.u16()?;
        if len == 0 || len > MAX_RECORD {
            return Err(DecodeError::Invalid("TLS record length"));
        }
        let part = &r.rest()[..r.rest().len().min(len.into())];
        // One record is the rule, and needs no copy.
        match message.is_empty() {
            true => message = Cow::Borrowed(part),
            false => message.to_mut().extend(part),
        }
        match ClientHello::decode(&message) {
            Ok(hello) => return Ok(Sniffed { domain: hello.domain(), ..Sniffed::new(Protocol::Tls) }),
            Err(DecodeError::Incomplete) => r.take(len.into())?,
            Err(invalid) => return Err(invalid),
        };
    }
}

/// Cutting a hello into other records changes nothing.
#[doc(hidden)]
pub fn fuzz_tls(data: &[u8]) {
    let records = |size: usize| -> Vec<u8> {
        let record =
            |part: &[u8]| [&[HANDSHAKE, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
        data.chunks(size).flat_map(record).collect()
    };
    let whole = sniff(&records(16 << 10));
    for size in [1, 5, 1000] {
        assert_eq!(sniff(&records(size)), whole);
    }
    let _ = sniff(data);
}
