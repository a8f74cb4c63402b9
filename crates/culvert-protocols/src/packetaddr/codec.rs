//! The address before each datagram, from bytes and to bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_wire::{DecodeError, Reader};

/// Longest head: family, IPv6, port.
pub const HEAD: usize = 1 + 16 + 2;

const IPV4: u8 = 1;
const IPV6: u8 = 2;

/// Reads the address of the peer; the data follows.
///
/// # Errors
/// [`DecodeError::Invalid`] for an unknown family.
pub fn decode(r: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let ip: IpAddr = match r.u8()? {
        IPV4 => Ipv4Addr::from(r.array::<4>()?).into(),
        IPV6 => Ipv6Addr::from(r.array::<16>()?).into(),
        _ => return Err(DecodeError::Invalid("address family")),
    };
    Ok(SocketAddr::new(ip, r.u16()?))
}

/// Writes the address of the peer.
pub fn encode(peer: SocketAddr, out: &mut Vec<u8>) {
    match peer.ip() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend(ip.octets());
        }
    }
    out.extend(peer.port().to_be_bytes());
}

/// Fed with random bytes: what decodes encodes to the same bytes.
pub fn fuzz_address(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(peer) = decode(&mut r) {
        let mut out = Vec::new();
        encode(peer, &mut out);
        assert!(out.len() <= HEAD);
        assert_eq!(out, bytes[..r.position()]);
    }
}
