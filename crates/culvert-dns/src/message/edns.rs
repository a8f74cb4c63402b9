//! The parts of EDNS that Culvert speaks: payload size, the DO bit, and the client's subnet.
//!
//! ```text
//! OPT       | 0 | 41 | payload size 2 | code high 1 | version 1 | DO and zeros 2 | rdlength 2 | options |
//! option    | code 2 | length 2 | data |
//! subnet    option 8: | family 2 | source prefix 1 | scope prefix 1 | address, whole bytes of the prefix |
//! ```
//!
//! EDNS belongs to one hop (RFC 6891 section 6.2.1): what a client offers is answered by Culvert and never forwarded,
//! save DO and the subnet, which change the answer itself. Cookies, padding and keep-alive are therefore left out.
//!
//! Sources: RFC 6891, RFC 7871.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire::{Malformed, kind, u16_at};

/// The UDP payload size offered to servers and clients: what passes any path unfragmented (DNS flag day 2020).
pub const PAYLOAD: u16 = 1232;
/// What a peer without EDNS takes.
pub const PLAIN_PAYLOAD: u16 = 512;
/// Bytes of an OPT record without options.
pub const EMPTY_OPT: usize = 11;

const OPTION_SUBNET: u16 = 8;
const DNSSEC_OK: u32 = 0x8000;

/// What an OPT record says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Edns {
    /// Largest UDP payload the sender takes.
    pub payload: u16,
    /// Upper eight bits of the response code.
    pub code_high: u8,
    /// Version; only 0 exists.
    pub version: u8,
    /// Signatures are wanted.
    pub dnssec_ok: bool,
    /// The network the question comes from.
    pub subnet: Option<Subnet>,
}

impl Edns {
    /// Reads an OPT record's class, TTL and data.
    pub fn read(class: u16, ttl: u32, data: &[u8]) -> Result<Self, Malformed> {
        let mut subnet = None;
        let mut at = 0;
        while at < data.len() {
            let (code, length) = (u16_at(data, at)?, u16_at(data, at + 2)?);
            let end = at + 4 + usize::from(length);
            let value = data.get(at + 4..end).ok_or(Malformed("EDNS option ends too early"))?;
            if code == OPTION_SUBNET {
                subnet = Some(Subnet::decode(value)?);
            }
            at = end;
        }
        let [code_high, version, ..] = ttl.to_be_bytes();
        Ok(Self { payload: class, code_high, version, dnssec_ok: ttl & DNSSEC_OK != 0, subnet })
    }

    /// Writes the OPT record at the end of `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(0);
        out.extend(kind::OPT.to_be_bytes());
        out.extend(self.payload.to_be_bytes());
        let flags = if self.dnssec_ok { DNSSEC_OK } else { 0 };
        out.extend((u32::from(self.code_high) << 24 | u32::from(self.version) << 16 | flags).to_be_bytes());
        match self.subnet {
            None => out.extend([0, 0]),
            Some(subnet) => {
                let mut value = Vec::with_capacity(20);
                subnet.encode(&mut value);
                out.extend((value.len() as u16 + 4).to_be_bytes());
                out.extend(OPTION_SUBNET.to_be_bytes());
                out.extend((value.len() as u16).to_be_bytes());
                out.extend(value);
            }
        }
    }

    /// How many bytes [`Edns::write`] writes.
    pub fn encoded_len(&self) -> usize {
        EMPTY_OPT + self.subnet.map_or(0, |subnet| 8 + subnet.address_bytes())
    }
}

/// A network told to servers so that they answer with something near it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Subnet {
    address: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// The network of `prefix` bits that `address` lies in; a longer prefix than the family has counts as whole.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V4(ip) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Self { address: Ipv4Addr::from_bits(ip.to_bits() & mask).into(), prefix }
            }
            IpAddr::V6(ip) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Self { address: Ipv6Addr::from_bits(ip.to_bits() & mask).into(), prefix }
            }
        }
    }

    /// The network's first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits belong to the network.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    fn address_bytes(self) -> usize {
        usize::from(self.prefix).div_ceil(8)
    }

    /// Writes the option's data; the scope of a question is zero.
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        let family: u16 = if self.address.is_ipv4() { 1 } else { 2 };
        out.extend(family.to_be_bytes());
        out.extend([self.prefix, 0]);
        match self.address {
            IpAddr::V4(ip) => out.extend(&ip.octets()[..self.address_bytes()]),
            IpAddr::V6(ip) => out.extend(&ip.octets()[..self.address_bytes()]),
        }
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, Malformed> {
        const BAD: Malformed = Malformed("client subnet");
        let [_, _, prefix, _scope, address @ ..] = value else { return Err(BAD) };
        let widest = match u16_at(value, 0)? {
            1 => 32,
            2 => 128,
            _ => return Err(BAD),
        };
        if *prefix > widest || address.len() != usize::from(*prefix).div_ceil(8) {
            return Err(BAD);
        }
        let mut whole = [0; 16];
        whole[..address.len()].copy_from_slice(address);
        let address = match widest {
            32 => Ipv4Addr::from([whole[0], whole[1], whole[2], whole[3]]).into(),
            _ => Ipv6Addr::from(whole).into(),
        };
        Ok(Self::new(address, *prefix))
    }
}
