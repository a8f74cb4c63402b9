//! Names to addresses.

use std::net::IpAddr;

use async_trait::async_trait;
use culvert_wire::Domain;
use thiserror::Error;

/// Which address families are wanted, and in which order.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strategy {
    /// Both, in the order that came.
    #[default]
    AsIs,
    /// Both, IPv4 first.
    PreferIpv4,
    /// Both, IPv6 first.
    PreferIpv6,
    /// IPv4 only.
    Ipv4Only,
    /// IPv6 only.
    Ipv6Only,
}

impl Strategy {
    /// Whether addresses of this family are wanted.
    #[must_use]
    pub fn wants(self, ip: IpAddr) -> bool {
        match self {
            Self::Ipv4Only => ip.is_ipv4(),
            Self::Ipv6Only => ip.is_ipv6(),
            Self::AsIs | Self::PreferIpv4 | Self::PreferIpv6 => true,
        }
    }

    /// Drops what is not wanted and puts the preferred family first, otherwise keeping the order.
    pub fn apply(self, addresses: &mut Vec<IpAddr>) {
        addresses.retain(|ip| self.wants(*ip));
        match self {
            Self::PreferIpv4 => addresses.sort_by_key(IpAddr::is_ipv6),
            Self::PreferIpv6 => addresses.sort_by_key(IpAddr::is_ipv4),
            Self::AsIs | Self::Ipv4Only | Self::Ipv6Only => {}
        }
    }
}

/// Looks names up.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// The addresses of `name` that `strategy` wants, best first, at least one.
    async fn resolve(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError>;

    /// The `ECHConfigList`s in the HTTPS records of `name`, best first; there may be none.
    async fn ech_configs(&self, _name: &Domain) -> Result<Vec<Vec<u8>>, ResolveError> {
        Err(ResolveError::Failed("HTTPS records cannot be asked for here".to_owned()))
    }
}

/// Why a name has no address.
#[derive(Clone, Debug, Error)]
pub enum ResolveError {
    /// The name does not exist.
    #[error("no such name")]
    NotFound,
    /// The name exists but has no address of the wanted family.
    #[error("name has no address of the wanted family")]
    NoAddress,
    /// No server answered in time.
    #[error("no answer in time")]
    Timeout,
    /// A server answered with an error or with nonsense, or could not be reached.
    #[error("{0}")]
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_filter_and_order() {
        let all: Vec<IpAddr> =
            ["2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2"].map(|ip| ip.parse().unwrap()).to_vec();
        let shown = |strategy: Strategy| {
            let mut some = all.clone();
            strategy.apply(&mut some);
            some.iter().map(|ip| if ip.is_ipv4() { '4' } else { '6' }).collect::<String>()
        };
        assert_eq!(shown(Strategy::AsIs), "6464");
        assert_eq!(shown(Strategy::PreferIpv4), "4466");
        assert_eq!(shown(Strategy::PreferIpv6), "6644");
        assert_eq!(shown(Strategy::Ipv4Only), "44");
        assert_eq!(shown(Strategy::Ipv6Only), "66");
    }
}
