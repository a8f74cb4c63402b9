//! The options of the configuration in this crate's words.

use std::time::Duration;

use culvert_config::options::dial::{DomainResolverOptions, DomainStrategy};
use culvert_config::options::dns::DnsOptions;
use culvert_config::value::Subnet as SubnetOption;
use culvert_core::{Strategy, timeouts};

use crate::cache::{CAPACITY, CacheOptions};
use crate::client::{ClientSubnet, QueryOptions};
use crate::message::edns::Subnet;

/// How long an answer past its time may be served (`optimistic.timeout`).
const OPTIMISTIC: Duration = Duration::from_secs(3 * 24 * 3600);

impl QueryOptions {
    /// What the `dns` section says of all queries.
    #[must_use]
    pub fn of_section(options: &DnsOptions) -> Self {
        Self {
            timeout: options.timeout.or(timeouts::RESOLVE),
            client_subnet: client_subnet(options.client_subnet.as_ref()).unwrap_or_default(),
            strategy: strategy(options.strategy),
            ..Self::default()
        }
    }

    /// What a `domain_resolver` says, and where it says nothing, what `self` does.
    #[must_use]
    pub fn with_resolver(&self, options: &DomainResolverOptions) -> Self {
        Self {
            timeout: options.timeout.or(self.timeout),
            disable_cache: self.disable_cache || options.disable_cache,
            disable_optimistic_cache: self.disable_optimistic_cache || options.disable_optimistic_cache,
            rewrite_ttl: options.rewrite_ttl.or(self.rewrite_ttl),
            client_subnet: client_subnet(options.client_subnet.as_ref()).unwrap_or(self.client_subnet),
            strategy: match strategy(options.strategy) {
                Strategy::AsIs => self.strategy,
                given => given,
            },
        }
    }
}

impl CacheOptions {
    /// The cache of each server; `None` if nothing is to be kept.
    #[must_use]
    pub fn of_section(options: &DnsOptions) -> Option<Self> {
        if options.disable_cache {
            return None;
        }
        let optimistic = options.optimistic.as_ref().map(|optimistic| &optimistic.0);
        let optimistic = optimistic.filter(|optimistic| optimistic.enabled);
        Some(Self {
            capacity: usize::try_from(options.cache_capacity).unwrap_or(usize::MAX).max(CAPACITY),
            disable_expire: options.disable_expire,
            optimistic: optimistic.map(|optimistic| optimistic.timeout.or(OPTIMISTIC)),
        })
    }
}

fn client_subnet(option: Option<&SubnetOption>) -> Option<ClientSubnet> {
    option.map(|SubnetOption(prefix)| ClientSubnet::Set(Subnet::new(prefix.ip, prefix.length)))
}

fn strategy(option: DomainStrategy) -> Strategy {
    match option {
        DomainStrategy::AsIs => Strategy::AsIs,
        DomainStrategy::PreferIpv4 => Strategy::PreferIpv4,
        DomainStrategy::PreferIpv6 => Strategy::PreferIpv6,
        DomainStrategy::Ipv4Only => Strategy::Ipv4Only,
        DomainStrategy::Ipv6Only => Strategy::Ipv6Only,
    }
}

#[cfg(test)]
mod tests {
    use culvert_config::options::dns::{Optimistic, OptimisticOptions};

    use super::*;

    #[test]
    fn resolvers_say_more_than_the_section() {
        let section = DnsOptions { strategy: DomainStrategy::PreferIpv6, ..DnsOptions::default() };
        let base = QueryOptions::of_section(&section);
        assert_eq!((base.timeout, base.strategy), (timeouts::RESOLVE, Strategy::PreferIpv6));
        let silent = base.with_resolver(&DomainResolverOptions::default());
        assert_eq!((silent.timeout, silent.strategy), (base.timeout, base.strategy));
        let resolver = DomainResolverOptions {
            strategy: DomainStrategy::Ipv4Only,
            rewrite_ttl: Some(5),
            disable_cache: true,
            ..DomainResolverOptions::default()
        };
        let own = base.with_resolver(&resolver);
        assert_eq!((own.strategy, own.rewrite_ttl, own.disable_cache), (Strategy::Ipv4Only, Some(5), true));
    }

    #[test]
    fn the_cache_is_what_the_section_says() {
        let of = |change: fn(&mut DnsOptions)| {
            let mut options = DnsOptions::default();
            change(&mut options);
            CacheOptions::of_section(&options)
        };
        assert_eq!(of(|_| {}), Some(CacheOptions::default()));
        assert_eq!(of(|options| options.disable_cache = true), None);
        assert_eq!(of(|options| options.cache_capacity = 10).unwrap().capacity, CAPACITY);
        assert_eq!(of(|options| options.cache_capacity = 4096).unwrap().capacity, 4096);
        let optimistic = |enabled| Optimistic(OptimisticOptions { enabled, ..OptimisticOptions::default() });
        let of = |enabled| {
            let options = DnsOptions { optimistic: Some(optimistic(enabled)), ..DnsOptions::default() };
            CacheOptions::of_section(&options).unwrap().optimistic
        };
        assert_eq!((of(true), of(false)), (Some(OPTIMISTIC), None));
    }
}
