//! How datagrams of clients are told apart, and whose answers they get (RFC 4787, sections 4.1 and 5), for all that takes
//! in packets.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use culvert_config::options::nat::{NatBehavior, NatOptions};
use culvert_wire::Target;

/// Peers of an association whose answers are let in, where not everybody's are.
const PEERS: usize = 256;

/// What an inbound's options say of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpNat {
    mapping: NatBehavior,
    filtering: NatBehavior,
    limit: Option<usize>,
}

impl From<&NatOptions> for UdpNat {
    fn from(options: &NatOptions) -> Self {
        let limit = usize::try_from(options.udp_nat_max).ok().filter(|limit| *limit > 0);
        Self { mapping: options.udp_mapping, filtering: options.udp_filtering, limit }
    }
}

impl UdpNat {
    /// What has associations of its own.
    pub(crate) fn key(&self, client: SocketAddr, target: SocketAddr) -> Key {
        Key { client, part: part(self.mapping, target) }
    }

    /// Most associations there may be at once; `default` where the options say nothing.
    pub(crate) fn limit(&self, default: usize) -> usize {
        self.limit.unwrap_or(default)
    }

    /// Whose answers an association lets in.
    pub(crate) fn filter(&self) -> Filter {
        Filter { by: self.filtering, asked: VecDeque::new() }
    }
}

/// What of an address makes a difference: nothing, the address, or the port too.
type Part = Option<(IpAddr, u16)>;

fn part(behavior: NatBehavior, peer: SocketAddr) -> Part {
    match behavior {
        NatBehavior::EndpointIndependent => None,
        NatBehavior::AddressDependent => Some((peer.ip(), 0)),
        NatBehavior::AddressAndPortDependent => Some((peer.ip(), peer.port())),
    }
}

/// What tells associations apart: the client, and of the target what the mapping depends on.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Key {
    client: SocketAddr,
    part: Part,
}

/// Whose answers a client gets: everybody's, or only those of whom it has sent something to.
#[derive(Debug)]
pub(crate) struct Filter {
    by: NatBehavior,
    /// Whom it has sent something to, as far as it matters, the latest at the end.
    asked: VecDeque<(IpAddr, u16)>,
}

impl Filter {
    /// Whether it lets in everybody.
    pub(crate) fn is_open(&self) -> bool {
        self.by == NatBehavior::EndpointIndependent
    }

    /// Notes that the client has sent something to `peer`.
    pub(crate) fn sent_to(&mut self, peer: &Target) {
        let Some(part) = peer.socket_addr().and_then(|peer| part(self.by, peer)) else { return };
        if self.asked.back() == Some(&part) {
            return;
        }
        if let Some(at) = self.asked.iter().position(|asked| *asked == part) {
            self.asked.remove(at);
        } else if self.asked.len() == PEERS {
            self.asked.pop_front();
        }
        self.asked.push_back(part);
    }

    /// Whether an answer of `peer` is for the client.
    pub(crate) fn lets_in(&self, peer: &Target) -> bool {
        self.is_open()
            || peer
                .socket_addr()
                .and_then(|peer| part(self.by, peer))
                .is_some_and(|part| self.asked.contains(&part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [NatBehavior; 3] = [
        NatBehavior::EndpointIndependent,
        NatBehavior::AddressDependent,
        NatBehavior::AddressAndPortDependent,
    ];

    fn address(ip: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, ip], port))
    }

    fn peer(ip: u8, port: u16) -> Target {
        Target::from(address(ip, port))
    }

    fn nat(mapping: NatBehavior, filtering: NatBehavior) -> UdpNat {
        UdpNat { mapping, filtering, limit: None }
    }

    #[test]
    fn only_those_who_were_asked_are_let_in() {
        let expected = [[true, true, true], [true, true, false], [true, false, false]];
        for (by, expected) in ALL.into_iter().zip(expected) {
            let mut filter = nat(NatBehavior::EndpointIndependent, by).filter();
            filter.sent_to(&peer(1, 53));
            let lets_in = [peer(1, 53), peer(1, 54), peer(2, 53)].map(|peer| filter.lets_in(&peer));
            assert_eq!(lets_in, expected, "{by:?}");
        }
    }

    #[test]
    fn what_a_mapping_depends_on_makes_another_association() {
        let expected = [[true, true], [true, false], [false, false]];
        for (by, expected) in ALL.into_iter().zip(expected) {
            let nat = nat(by, NatBehavior::EndpointIndependent);
            let first = nat.key(address(9, 1000), address(1, 53));
            let same =
                [address(1, 54), address(2, 53)].map(|target| nat.key(address(9, 1000), target) == first);
            assert_eq!(same, expected, "{by:?}");
            assert_ne!(nat.key(address(9, 1001), address(1, 53)), first);
        }
    }

    #[test]
    fn of_many_peers_the_latest_count() {
        let mut filter = nat(NatBehavior::EndpointIndependent, NatBehavior::AddressAndPortDependent).filter();
        for port in 1..=PEERS as u16 {
            filter.sent_to(&peer(1, port));
        }
        filter.sent_to(&peer(1, 1));
        filter.sent_to(&peer(1, 1000));
        assert_eq!(filter.asked.len(), PEERS);
        assert!(filter.lets_in(&peer(1, 1)) && filter.lets_in(&peer(1, 1000)));
        assert!(!filter.lets_in(&peer(1, 2)));
    }
}
