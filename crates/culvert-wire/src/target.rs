//! Where a connection goes: a host, as an address or a name, and a port.

use std::borrow::Borrow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use thiserror::Error;

/// A domain name in the one spelling that all of Culvert uses: lower case, no dot at the end, 1 to 253 bytes.
///
/// Rules, caches and logs compare names byte by byte. `Example.COM.` and `example.com` must therefore become equal
/// once, here, or a rule could be walked past by spelling. Bytes that no resolver takes (controls, space) are refused;
/// other odd ones pass, as names with `_` or UTF-8 exist in private networks.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Domain(Arc<str>);

/// Why text is no domain name.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum InvalidDomain {
    /// Nothing is left without the dot at the end.
    #[error("domain name is empty")]
    Empty,
    /// More than 253 bytes.
    #[error("domain name is longer than 253 bytes")]
    Long,
    /// A control character, a space, or bytes that are no UTF-8.
    #[error("domain name holds a byte that no name can hold")]
    Byte,
}

impl Domain {
    /// The canonical spelling of `name`.
    ///
    /// # Errors
    /// [`InvalidDomain`] if no resolver could take it.
    pub fn new(name: &str) -> Result<Self, InvalidDomain> {
        let name = name.strip_suffix('.').unwrap_or(name);
        match name {
            "" => Err(InvalidDomain::Empty),
            _ if name.len() > 253 => Err(InvalidDomain::Long),
            _ if name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) => Err(InvalidDomain::Byte),
            _ => Ok(Self(name.to_ascii_lowercase().into())),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Domain {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The host part of a target.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Host {
    /// An address; never an IPv4 address written as IPv6 (`::ffff:a.b.c.d`), see [`Host::from`].
    Ip(IpAddr),
    /// A name.
    Domain(Domain),
}

impl Host {
    /// What `text` names: an address if it is one (also in brackets), else a name.
    ///
    /// # Errors
    /// [`InvalidDomain`] if it is neither.
    pub fn parse(text: &str) -> Result<Self, InvalidDomain> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(v6) = bare {
            return v6.parse::<Ipv6Addr>().map(Self::from).map_err(|_| InvalidDomain::Byte);
        }
        // A name may end in a dot; an address with one is still the address.
        let address = text.strip_suffix('.').unwrap_or(text);
        address.parse::<IpAddr>().map(Self::from).or_else(|_| Domain::new(text).map(Self::Domain))
    }

    /// The same for bytes from the network.
    ///
    /// # Errors
    /// As [`Host::parse`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidDomain> {
        std::str::from_utf8(bytes).map_err(|_| InvalidDomain::Byte).and_then(Self::parse)
    }

    /// The address, if it is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Domain(_) => None,
        }
    }

    /// The name, if it is one.
    #[must_use]
    pub fn domain(&self) -> Option<&Domain> {
        match self {
            Self::Ip(_) => None,
            Self::Domain(name) => Some(name),
        }
    }
}

/// An IPv4 address in IPv6 clothes becomes the IPv4 address, so that rules on it cannot be walked past.
impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip.to_canonical())
    }
}

impl From<Ipv6Addr> for Host {
    fn from(ip: Ipv6Addr) -> Self {
        IpAddr::V6(ip).into()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Domain(name) => name.fmt(f),
        }
    }
}

/// Where a connection or packet goes.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Target {
    /// Address or name.
    pub host: Host,
    /// TCP or UDP port; 0 is legal on the wire and refused by whoever dials.
    pub port: u16,
}

impl Target {
    /// A target from its two parts.
    #[must_use]
    pub fn new(host: impl Into<Host>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// `host:port`, `[v6]:port`, or a bare host with `default_port` where one is given.
    ///
    /// # Errors
    /// `None` if a part is missing or malformed; an IPv6 address needs its brackets to carry a port.
    #[must_use]
    pub fn parse(text: &str, default_port: Option<u16>) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            Some(_) if !text.ends_with(']') => return None,
            _ => (text, None),
        };
        let port = match port {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
            None => default_port?,
        };
        Host::parse(host).ok().map(|host| Self { host, port })
    }

    /// The socket address, if the host is an address.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        self.host.ip().map(|ip| SocketAddr::new(ip, self.port))
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip(), address.port())
    }
}

impl From<Domain> for Host {
    fn from(name: Domain) -> Self {
        Self::Domain(name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Domain(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_equal() {
        for spelling in ["example.com", "Example.COM", "example.com.", "EXAMPLE.com."] {
            assert_eq!(Host::parse(spelling).unwrap().to_string(), "example.com");
        }
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let v4 = Host::Ip("10.0.0.1".parse().unwrap());
        for spelling in ["10.0.0.1", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]", "10.0.0.1.", "::ffff:a00:1"] {
            assert_eq!(Host::parse(spelling), Ok(v4.clone()), "{spelling}");
        }
    }

    #[test]
    fn names_no_resolver_takes_are_refused() {
        let long = "a".repeat(254);
        let cases = [("", InvalidDomain::Empty), (".", InvalidDomain::Empty), (&long, InvalidDomain::Long)];
        for (name, error) in cases {
            assert_eq!(Domain::new(name), Err(error));
        }
        for name in ["a b", "a\0", "a\n", "[::1", "[a]", "\u{7f}"] {
            let host = Host::parse(name);
            assert!(host.is_err() || name == "[::1", "{name:?} became {host:?}");
        }
        assert_eq!(Host::from_bytes(&[0xff, 0xfe]), Err(InvalidDomain::Byte));
    }

    #[test]
    fn targets_parse_with_and_without_ports() {
        let shown = |text| Target::parse(text, Some(80)).map(|target| target.to_string());
        assert_eq!(shown("a.test:8080").as_deref(), Some("a.test:8080"));
        assert_eq!(shown("a.test").as_deref(), Some("a.test:80"));
        assert_eq!(shown("[::1]:443").as_deref(), Some("[::1]:443"));
        assert_eq!(shown("[::1]").as_deref(), Some("[::1]:80"));
        for bad in ["::1:443", "::1", "a:b", "a:", "a:70000", "a:+1", ":80", ""] {
            assert_eq!(shown(bad), None, "{bad}");
        }
        assert_eq!(Target::parse("a.test", None), None);
    }
}
