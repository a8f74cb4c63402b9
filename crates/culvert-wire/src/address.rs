//! The wire forms of a target: a type byte, an address, a port.
//!
//! ```text
//! SOCKS5, Shadowsocks, Trojan, UoT   | type | address | port |      types 1, 3, 4
//! VLESS, VMess, mux.cool             | port | type | address |      types 1, 2, 3
//!
//! address:  4 bytes (IPv4) | length byte and name | 16 bytes (IPv6)
//! port:     2 bytes, big-endian
//! ```
//!
//! Sources: RFC 1928 section 5; the protocol sheets name the variant each protocol uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{DecodeError, Host, Reader, Target};

/// One variant: its type bytes and where the port stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressCodec {
    v4: u8,
    domain: u8,
    v6: u8,
    port_first: bool,
}

impl AddressCodec {
    /// SOCKS5 and what borrowed from it.
    pub const SOCKS: Self = Self { v4: 1, domain: 3, v6: 4, port_first: false };
    /// VLESS, VMess and mux.cool.
    pub const VLESS: Self = Self { v4: 1, domain: 2, v6: 3, port_first: true };
    /// UDP over TCP, version 1 and the packets of version 2.
    pub const UOT: Self = Self { v4: 0, domain: 2, v6: 1, port_first: false };
    /// TUIC.
    pub const TUIC: Self = Self { v4: 1, domain: 0, v6: 2, port_first: false };

    /// Reads a target. A name that is an address in text becomes the address.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for an unknown type byte or a name that is none.
    pub fn decode(self, r: &mut Reader<'_>) -> Result<Target, DecodeError> {
        let first = if self.port_first { Some(r.u16()?) } else { None };
        let host = self.decode_host(r)?;
        let port = first.map_or_else(|| r.u16(), Ok)?;
        Ok(Target { host, port })
    }

    /// Reads the type byte and the address, where a protocol keeps the port elsewhere.
    ///
    /// # Errors
    /// As [`AddressCodec::decode`].
    pub fn decode_host(self, r: &mut Reader<'_>) -> Result<Host, DecodeError> {
        let kind = r.u8()?;
        if kind == self.v4 {
            r.array::<4>().map(|octets| Host::Ip(Ipv4Addr::from(octets).into()))
        } else if kind == self.v6 {
            r.array::<16>().map(|octets| Host::from(Ipv6Addr::from(octets)))
        } else if kind == self.domain {
            let len = r.u8()?;
            let name = r.take(len.into())?;
            Host::from_bytes(name).map_err(|_| DecodeError::Invalid("domain name"))
        } else {
            Err(DecodeError::Invalid("address type"))
        }
    }

    /// Writes a target at the end of `out`.
    pub fn encode(self, target: &Target, out: &mut Vec<u8>) {
        if self.port_first {
            out.extend(target.port.to_be_bytes());
        }
        match &target.host {
            Host::Ip(IpAddr::V4(ip)) => {
                out.push(self.v4);
                out.extend(ip.octets());
            }
            Host::Ip(IpAddr::V6(ip)) => {
                out.push(self.v6);
                out.extend(ip.octets());
            }
            Host::Domain(name) => {
                out.push(self.domain);
                out.push(name.as_str().len() as u8); // a `Domain` has at most 253 bytes
                out.extend(name.as_str().as_bytes());
            }
        }
        if !self.port_first {
            out.extend(target.port.to_be_bytes());
        }
    }

    /// How many bytes [`AddressCodec::encode`] writes.
    #[must_use]
    pub fn encoded_len(self, target: &Target) -> usize {
        3 + match &target.host {
            Host::Ip(IpAddr::V4(_)) => 4,
            Host::Ip(IpAddr::V6(_)) => 16,
            Host::Domain(name) => 1 + name.as_str().len(),
        }
    }
}

/// Replayed and grown by the fuzz runner: what decodes encodes to the same meaning.
pub fn fuzz_address(bytes: &[u8]) {
    for codec in [AddressCodec::SOCKS, AddressCodec::VLESS, AddressCodec::UOT] {
        let mut r = Reader::new(bytes);
        if let Ok(target) = codec.decode(&mut r) {
            let mut out = Vec::new();
            codec.encode(&target, &mut out);
            assert_eq!(out.len(), codec.encoded_len(&target));
            assert_eq!(codec.decode(&mut Reader::new(&out)), Ok(target));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn socks_vectors() {
        let cases: [(&[u8], &str); 3] = [
            (&[1, 127, 0, 0, 1, 0x1f, 0x90], "127.0.0.1:8080"),
            (b"\x03\x0bexample.com\x01\xbb", "example.com:443"),
            (&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 53], "[::1]:53"),
        ];
        for (bytes, shown) in cases {
            let target = AddressCodec::SOCKS.decode(&mut Reader::new(bytes)).unwrap();
            assert_eq!(target.to_string(), shown);
            let mut out = Vec::new();
            AddressCodec::SOCKS.encode(&target, &mut out);
            assert_eq!(out, bytes);
            for cut in 0..bytes.len() {
                let error = AddressCodec::SOCKS.decode(&mut Reader::new(&bytes[..cut])).unwrap_err();
                assert_eq!(error, DecodeError::Incomplete, "cut at {cut} of {shown}");
            }
        }
    }

    #[test]
    fn port_comes_first_in_vless() {
        let bytes = b"\x01\xbb\x02\x06a.test";
        let target = AddressCodec::VLESS.decode(&mut Reader::new(bytes)).unwrap();
        assert_eq!(target.to_string(), "a.test:443");
    }

    #[test]
    fn odd_types_and_empty_names_are_invalid() {
        for bytes in [&[2, 0, 0, 0][..], &[5, 0, 0], &[3, 0, 0, 80], &[3, 1, b' ', 0, 80]] {
            let error = AddressCodec::SOCKS.decode(&mut Reader::new(bytes)).unwrap_err();
            assert!(matches!(error, DecodeError::Invalid(_)), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_keep_the_promise(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_address(&bytes);
        }
    }
}
