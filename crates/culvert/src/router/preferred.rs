//! Which destinations endpoints ask for (`preferred_by`): of WireGuard, what its peers are sent.

use std::collections::HashMap;
use std::net::IpAddr;

use culvert_config::Tagged;
use culvert_config::options::endpoint::EndpointKind;
use culvert_rules::ip::{IpSet, Prefix};
use culvert_rules::rule::Preferences;

/// The destinations, by the tag of the endpoint.
#[derive(Default)]
pub(crate) struct Preferred(HashMap<String, IpSet>);

impl Preferred {
    /// What `endpoints` ask for.
    pub(super) fn by(endpoints: &[Tagged<EndpointKind>]) -> Self {
        let of = |endpoint: &Tagged<EndpointKind>| {
            let EndpointKind::WireGuard(options) = &endpoint.kind else { return None };
            let prefixes = options.peers.iter().flat_map(|peer| peer.allowed_ips.iter());
            // Lengths were checked when the configuration was read.
            let set = prefixes.filter_map(|prefix| Prefix::new(prefix.ip, prefix.length).ok()).collect();
            Some((endpoint.tag.clone(), set))
        };
        Self(endpoints.iter().filter_map(of).collect())
    }
}

impl Preferences for Preferred {
    fn prefers_domain(&self, _outbound: &str, _domain: &str) -> bool {
        false
    }

    fn prefers_address(&self, outbound: &str, address: IpAddr) -> bool {
        self.0.get(outbound).is_some_and(|set| set.contains(address))
    }
}
