//! What a ClientHello says in the open: where it names the server, and the protocols it offers.
//!
//! ```text
//! record 5 | message 4 | version 2 | random 32 | session id 1+ | suites 2+ | compression 1+ | extensions 2+
//! extension: type 2 | length 2 | for server_name (0): list length 2 | host_name (0) 1 | length 2 | name
//!                                for ALPN (16):       list length 2 | (length 1 | protocol) ...
//! ```
//!
//! Source: RFC 8446 section 4.1.2, RFC 6066 section 3, RFC 7301 section 3.1.

use std::ops::Range;

use culvert_wire::{DecodeError, Reader};

use crate::record::HEADER;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ALPN: u16 = 16;

/// Where the name of the server stands in `flight`, which begins with the record of a ClientHello. `None` if there is
/// none, or the message is longer than its record.
#[must_use]
pub fn server_name(flight: &[u8]) -> Option<Range<usize>> {
    find_name(flight).ok().flatten()
}

/// Whether the ClientHello offers this application protocol and no other.
pub(crate) fn offers_only(flight: &[u8], protocol: &[u8]) -> bool {
    let offer = || -> Result<bool, DecodeError> {
        let Some(at) = extension(flight, ALPN)? else { return Ok(false) };
        let mut r = Reader::new(&flight[at..]);
        r.u16()?;
        let len = r.u16()?;
        let mut list = Reader::new(r.take(len.into())?);
        let len = list.u8()?;
        Ok(list.take(len.into())? == protocol && list.rest().is_empty())
    };
    offer().unwrap_or(false)
}

/// Whether `flight` begins with a whole record, or with something that is none of a handshake.
pub(crate) fn is_whole(flight: &[u8]) -> bool {
    match flight {
        [] => false,
        [HANDSHAKE, 3, _, high, low, rest @ ..] => {
            rest.len() >= usize::from(u16::from_be_bytes([*high, *low]))
        }
        [HANDSHAKE] | [HANDSHAKE, 3, ..] => false,
        _ => true,
    }
}

fn find_name(flight: &[u8]) -> Result<Option<Range<usize>>, DecodeError> {
    let Some(at) = extension(flight, SERVER_NAME)? else { return Ok(None) };
    let mut r = Reader::new(&flight[at..]);
    r.u16()?;
    r.u16()?;
    r.expect(&[HOST_NAME], "name type")?;
    let len = usize::from(r.u16()?);
    let start = at + r.position();
    r.take(len)?;
    Ok(Some(start..start + len))
}

/// Where the length of the extension of this type stands.
fn extension(flight: &[u8], wanted: u16) -> Result<Option<usize>, DecodeError> {
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
        let kind = r.u16()?;
        let at = r.position();
        let len = r.u16()?;
        if kind == wanted {
            return Ok(Some(at));
        }
        r.take(len.into())?;
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

    /// The same with one more extension, which offers these protocols.
    fn offering(protocols: &[&[u8]]) -> Vec<u8> {
        let list: Vec<u8> = protocols.iter().flat_map(|name| [&[name.len() as u8], *name].concat()).collect();
        let len = list.len() as u16;
        let extension = [&[0, 16], &(len + 2).to_be_bytes()[..], &len.to_be_bytes(), &list].concat();
        let mut flight = hello("a.test");
        let more = extension.len() as u16;
        flight.extend(extension);
        // The record, the message, and the list of extensions become longer.
        for at in [3, 7, 50] {
            let old = u16::from_be_bytes([flight[at], flight[at + 1]]);
            flight[at..at + 2].copy_from_slice(&(old + more).to_be_bytes());
        }
        flight
    }

    #[test]
    fn an_offer_of_one_protocol_is_told_from_others() {
        let only = |protocols: &[&[u8]]| offers_only(&offering(protocols), b"acme-tls/1");
        assert!(only(&[b"acme-tls/1"]));
        assert!(!only(&[b"acme-tls/1", b"h2"]));
        assert!(!only(&[b"h2", b"acme-tls/1"]));
        assert!(!only(&[b"acme-tls/11"]));
        assert!(!only(&[]));
        assert!(!offers_only(&hello("a.test"), b"acme-tls/1"));
        let flight = offering(&[b"acme-tls/1"]);
        for end in 0..flight.len() {
            assert!(!is_whole(&flight[..end]), "cut at {end}");
            assert!(!offers_only(&flight[..end], b"acme-tls/1"), "cut at {end}");
        }
        assert!(is_whole(&flight));
        assert!(is_whole(b"GET / HTTP/1.1"));
    }

    #[test]
    fn no_cut_finds_a_name_that_is_not_whole() {
        let flight = hello("www.example.test");
        for end in 0..flight.len() {
            assert_eq!(server_name(&flight[..end]), None, "cut at {end}");
        }
    }
}
