//! DNS queries, as packets and with the two length bytes of TCP.
//!
//! ```text
//! id:2  flags:2  questions:2  answers:2  authorities:2  additional:2  question*  record*
//! ```
//!
//! RFC 1035 section 4. A query has questions and neither answers nor authorities. The name is not taken: the connection
//! goes to a DNS server, not to it.

use culvert_wire::{DecodeError, Reader};

use super::{Protocol, Sniffed};

const HEADER: usize = 12;

pub(super) fn sniff_stream(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    let invalid = Err(DecodeError::Invalid("DNS query"));
    let mut r = Reader::new(bytes);
    let len = usize::from(r.u16()?);
    let message = &r.rest()[..r.rest().len().min(len)];
    if len < HEADER || message.get(2).is_some_and(|flags| flags & 0x80 != 0) {
        return invalid;
    }
    if message.get(4..6).is_some_and(|count| *count == [0, 0])
        || message.iter().take(10).skip(6).any(|byte| *byte != 0)
    {
        return invalid;
    }
    match message.len() == len {
        true if is_query(message) => Ok(Sniffed::new(Protocol::Dns)),
        true => invalid,
        false => Err(DecodeError::Incomplete),
    }
}

pub(super) fn is_query(message: &[u8]) -> bool {
    check(message).is_ok()
}

fn check(message: &[u8]) -> Result<(), DecodeError> {
    let mut r = Reader::new(message);
    r.u16()?;
    let response = r.u16()? & 0x8000 != 0;
    let (questions, answers, authorities, additional) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
    if response || questions == 0 || answers != 0 || authorities != 0 {
        return Err(DecodeError::Invalid("DNS query"));
    }
    for _ in 0..questions {
        skip_name(&mut r)?;
        r.take(4)?;
    }
    for _ in 0..additional {
        // Left out whole is fine, as in sing-box; cut is not.
        if r.rest().is_empty() {
            break;
        }
        skip_name(&mut r)?;
        r.take(8)?;
        let len = r.u16()?;
        r.take(len.into())?;
    }
    Ok(())
}

/// Labels up to the root or a pointer, which must point back.
fn skip_name(r: &mut Reader<'_>) -> Result<(), DecodeError> {
    let mut len = 0;
    loop {
        let here = r.position();
        match r.u8()? {
            0 => return Ok(()),
            label @ 1..=63 => {
                r.take(label.into())?;
                len += usize::from(label) + 1;
                if len > 254 {
                    return Err(DecodeError::Invalid("DNS name"));
                }
            }
            high @ 0xc0.. => {
                let target = usize::from(high & 0x3f) << 8 | usize::from(r.u8()?);
                let back = (HEADER..here).contains(&target);
                return if back { Ok(()) } else { Err(DecodeError::Invalid("DNS pointer")) };
            }
            _ => return Err(DecodeError::Invalid("DNS label")),
        }
    }
}

/// A packet is a query exactly if it is one behind its length, and no cut of that is decided the other way.
#[doc(hidden)]
pub fn fuzz_dns(data: &[u8]) {
    let Ok(len) = u16::try_from(data.len()) else { return };
    let stream = [&len.to_be_bytes(), data].concat();
    let query = is_query(data);
    assert_eq!(sniff_stream(&stream).is_ok(), query);
    for cut in (0..stream.len()).step_by(stream.len() / 16 + 1) {
        let verdict = sniff_stream(&stream[..cut]);
        assert!(verdict.is_err() && (!query || verdict == Err(DecodeError::Incomplete)));
    }
}
