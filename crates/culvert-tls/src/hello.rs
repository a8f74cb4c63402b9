//! Where a ClientHello names the server.
//!
//! ```text
//! record 5 | message 4 | version 2 | random 32 | session id 1+ | suites 2+ | compression 1+ | extensions 2+
//! extension: type 2 | length 2 | for server_name (0): list length 2 | host_name (0) 1 | length 2 | name
//! ```
//!
//! Source: RFC 8446 section 4.1.2, RFC 6066 section 3.

use std::ops::Range;

use culvert_wire::{DecodeError, Reader};

use crate::record::HEADER;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Where the name of the server stands in `flight`, which begins with the record of a ClientHello. `None` if there is
/// none, or the message is longer than its record.
pub(crate) fn server_name(flight: &[u8]) -> Option<Range<usize>> {
    find(flight).ok().flatten()
}

fn find(flight: &[u8]) -> Result<Option<Range<usize>>, DecodeError> {
    let mut r = Reader::new(flight);
    r.expect(&[HANDSHAKE, 3], "record header")?;
    r.take(HEADER - 2)?;
    r.expect(&[CLIENT_HELLO], "message type")?;
    r.take(3 + 2 + 32)?;
    let session_id = r.u8()?;
    r.take(session_id.into())?;
    let suites = r.u16()?;
    r.take(suites.into())?;
    let compression = r.u8()?;
    r.take(compression.into())?;
    r.u16()?;
    while !r.rest().is_empty() {
        let (kind, len) = (r.u16()?, r.u16()?);
        if kind != SERVER_NAME {
            r.take(len.into())?;
            continue;
        }
        r.u16()?;
        r.expect(&[HOST_NAME], "name type")?;
        let len = usize::from(r.u16()?);
        let start = r.position();
        r.take(len)?;
        return Ok(Some(start..start + len));
    }
    Ok(None)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hello with little in it but a name.
    pub(crate) fn hello(name: &str) -> Vec<u8> {
        let len = name.len() as u16;
        let mut extension = vec![0, 0];
        extension.extend((len + 5).to_be_bytes());
        extension.extend((len + 3).to_be_bytes());
        extension.push(0);
        extension.extend(len.to_be_bytes());
        extension.extend(name.bytes());
        let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
        extensions.extend(extension);
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut flight = vec![22, 3, 1];
        flight.extend((body.len() as u16 + 4).to_be_bytes());
        flight.extend([1, 0]);
        flight.extend((body.len() as u16).to_be_bytes());
        flight.extend(body);
        flight
    }

    #[test]
    fn the_name_is_found() {
        let flight = hello("www.example.test");
        assert_eq!(&flight[server_name(&flight).unwrap()], b"www.example.test");
    }

    #[test]
    fn no_cut_finds_a_name_that_is_not_whole() {
        let flight = hello("www.example.test");
        for end in 0..flight.len() {
            assert_eq!(server_name(&flight[..end]), None, "cut at {end}");
        }
    }
}
