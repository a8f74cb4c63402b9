//! Addresses: prefixes, sets of ranges, and which addresses count as private.
//!
//! A v4 address inside a v6 one (`::ffff:192.0.2.1`) is the v4 address everywhere here.

mod set;

pub use set::{IpSet, IpSetBuilder};

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use thiserror::Error;

/// An address with a prefix length. Bits behind the prefix are kept as given, since files store them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix {
    addr: IpAddr,
    bits: u8,
}

/// Why text is no prefix, in the words of Go's parser as far as they are short.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("netip.ParsePrefix({text:?}): {reason}")]
pub struct PrefixError {
    text: String,
    reason: String,
}

impl Prefix {
    /// A prefix of `bits` leading bits.
    ///
    /// # Errors
    /// When `bits` is more than the address has.
    pub fn new(addr: IpAddr, bits: u8) -> Result<Self, PrefixError> {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(PrefixError {
                text: format!("{addr}/{bits}"),
                reason: "prefix length out of range".into(),
            });
        }
        Ok(Self { addr, bits })
    }

    /// The address, with the bits behind the prefix.
    pub fn addr(self) -> IpAddr {
        self.addr
    }

    /// The number of leading bits that count.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The first and last address covered.
    pub fn range(self) -> (IpAddr, IpAddr) {
        match self.addr {
            IpAddr::V4(addr) => {
                let host = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                let addr = u32::from(addr);
                (Ipv4Addr::from(addr & !host).into(), Ipv4Addr::from(addr | host).into())
            }
            IpAddr::V6(addr) => {
                let host = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                let addr = u128::from(addr);
                (Ipv6Addr::from(addr & !host).into(), Ipv6Addr::from(addr | host).into())
            }
        }
    }

    /// Whether the two have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        if self.addr.is_ipv4() != other.addr.is_ipv4() {
            return false;
        }
        let ((first, last), (other_first, other_last)) = (self.range(), other.range());
        first <= other_last && other_first <= last
    }
}

impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        Self { addr, bits: if addr.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `address/bits`, or an address as the prefix of all its bits. No zone, no leading zeros in `bits`.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let invalid = |reason: String| PrefixError { text: text.to_owned(), reason };
        let Some((addr, bits)) = text.rsplit_once('/') else {
            return text.parse().map(IpAddr::into).map_err(|_| invalid("no '/'".into()));
        };
        let Ok(addr) = addr.parse() else {
            return Err(invalid(format!("ParseAddr({addr:?}): unable to parse IP")));
        };
        let digits = bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit());
        if bits.is_empty() || !digits || bits.len() > 1 && bits.starts_with('0') {
            return Err(invalid(format!("bad bits after slash: {bits:?}")));
        }
        let out_of_range = || invalid("prefix length out of range".into());
        let bits = bits.parse().map_err(|_| out_of_range())?;
        Self::new(addr, bits).map_err(|_| out_of_range())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.bits)
    }
}

/// Whether `ip_is_private` holds: private-use, loopback, link-local, multicast or unspecified.
///
/// Shared address space (100.64.0.0/10) and the benchmark range (198.18.0.0/15, where fake addresses live) are not.
pub fn is_private(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(addr) => {
            addr.is_private()
                || addr.is_loopback()
                || addr.is_link_local()
                || addr.is_multicast()
                || addr.is_unspecified()
        }
        IpAddr::V6(addr) => {
            addr.is_unique_local()
                || addr.is_loopback()
                || addr.is_unicast_link_local()
                || addr.is_multicast()
                || addr.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_is_what_sing_box_calls_private() {
        for yes in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "239.1.1.1",
            "0.0.0.0",
            "::",
            "::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "ff01::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(yes.parse().unwrap()), "{yes}");
        }
        for no in [
            "8.8.8.8",
            "100.64.0.1",
            "198.18.0.1",
            "172.32.0.1",
            "0.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "2001:db8::1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
            "fec0::1",
            "64:ff9b::a00:1",
        ] {
            assert!(!is_private(no.parse().unwrap()), "{no}");
        }
    }

    #[test]
    fn prefixes_read_as_in_go() {
        for good in ["10.0.0.0/8", "10.1.2.3/8", "0.0.0.0/0", "::/0", "2001:db8::1/128", "::ffff:1.2.3.4/120"]
        {
            assert_eq!(good.parse::<Prefix>().unwrap().to_string(), good);
        }
        assert_eq!("10.1.2.3".parse::<Prefix>().unwrap().to_string(), "10.1.2.3/32");
        for (bad, reason) in [
            ("", "no '/'"),
            ("lan", "no '/'"),
            ("10.0.0.0/", "bad bits after slash: \"\""),
            ("10.0.0.0/08", "bad bits after slash: \"08\""),
            ("10.0.0.0/+8", "bad bits after slash: \"+8\""),
            ("10.0.0.0/33", "prefix length out of range"),
            ("10.0.0.0/256", "prefix length out of range"),
            ("::/129", "prefix length out of range"),
            ("x/8", "ParseAddr(\"x\"): unable to parse IP"),
        ] {
            let error = bad.parse::<Prefix>().unwrap_err();
            assert_eq!(error.to_string(), format!("netip.ParsePrefix({bad:?}): {reason}"));
        }
    }

    #[test]
    fn overlap_goes_by_the_shorter_prefix() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        assert!(prefix("10.1.0.0/16").overlaps(prefix("10.1.2.3/32")));
        assert!(prefix("10.1.2.3/32").overlaps(prefix("10.0.0.0/8")));
        assert!(!prefix("10.1.0.0/16").overlaps(prefix("10.2.0.0/16")));
        assert!(!prefix("0.0.0.0/0").overlaps(prefix("::/0")));
    }
}
