//! WireGuard: an endpoint, which is inbound and outbound at once. What peers send becomes connections and associations;
//! what is dialled goes to the peer whose addresses the target is among.
//!
//! ```text
//! connection ─▶ netstack (culvert-stack) ─trains─▶ tunnel.rs: cut, seal ─▶ UDP socket, or a detour
//!                                        ◀─trains─ receive.rs: open, join ◀─
//! ```
//!
//! | file | |
//! |---|---|
//! | `endpoint.rs` | the endpoint: start, dial, stop |
//! | `tunnel.rs` | what is sent: one queue for all, sealed and sent by whoever finds nobody at it |
//! | `receive.rs` | what comes, and time |
//! | `system.rs` | an interface of the system |
//! | `wire.rs` | the socket, or the detour's packets |
//!
//! The handshake, sessions and timers are the crate `culvert-wireguard`, TCP and IP are `culvert-stack`.
//!
//! Sources: `docs/configuration/endpoint/wireguard.md` of sing-box 1.14.4, and what that program does. `workers` is taken
//! and does nothing: whoever sends seals. Not built yet: pings through the router.

mod endpoint;
mod receive;
mod system;
#[cfg(test)]
mod tests;
mod tunnel;
mod wire;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::endpoint::wireguard::{WireGuardEndpoint, WireGuardPeer};
use culvert_os::netlink::{self, Prefix};
use culvert_wire::{Domain, Host, Target};
use culvert_wireguard::{Device, Key, PeerId, PeerSettings, Routes, Settings};

use self::endpoint::{Endpoint, Parts};
use crate::nat::UdpNat;
use crate::table::{BuildEndpoint, BuiltEndpoint};
use crate::{BuildError, OutboundCx, Protocol};

/// The table's line. What is built of it stands among the endpoints.
pub const PROTOCOL: Protocol = Protocol {
    name: "wireguard",
    inbound: None,
    outbound: None,
    fuzz: &[culvert_wireguard::device::fuzz_datagrams, culvert_stack::train::fuzz_join],
};

/// `mtu` when absent.
const MTU: u32 = 1408;
/// `udp_timeout` when absent.
const UDP_TIMEOUT: Duration = Duration::from_secs(300);

impl BuildEndpoint for WireGuardEndpoint {
    fn dial(&self) -> &DialOptions {
        &self.dial
    }

    fn build(&self, cx: OutboundCx) -> Result<BuiltEndpoint, BuildError> {
        let mtu = if self.mtu == 0 { MTU } else { self.mtu };
        let Some(mtu) = u16::try_from(mtu).ok().filter(|mtu| (576..=65_440).contains(mtu)) else {
            let reason = "has to be between 576 and 65440".to_owned();
            return Err(BuildError::Invalid { option: "mtu", reason });
        };
        let invalid = |reason: String| BuildError::Invalid { option: "peers", reason };
        let mut settings = Settings { private_key: Key(self.private_key.0.bytes), peers: Vec::new() };
        let mut names = Vec::new();
        let mut prefixes: Vec<(IpAddr, u8, PeerId)> = Vec::new();
        for (at, peer) in self.peers.iter().enumerate() {
            let (one, name) =
                peer_settings(peer).map_err(|reason| invalid(format!("peers[{at}]: {reason}")))?;
            settings.peers.push(one);
            names.push(name);
            prefixes.extend(peer.allowed_ips.iter().map(|prefix| (prefix.ip, prefix.length, PeerId(at))));
        }
        disjoint(&prefixes).map_err(invalid)?;
        // What it would say when it starts is said here.
        Device::new(&settings, std::time::Instant::now(), Duration::ZERO)
            .map_err(|error| invalid(error.to_string()))?;
        let routes: Vec<_> = prefixes.iter().map(|(ip, len, _)| Prefix { ip: *ip, len: *len }).collect();
        let name = Some(self.name.clone()).filter(|name| !name.is_empty());
        let parts = Parts {
            tag: cx.tag,
            dialer: cx.dialer,
            settings,
            names,
            routes: Routes::new(prefixes),
            addresses: self.address.iter().map(|one| Prefix { ip: one.ip, len: one.length }).collect(),
            mtu,
            listen_port: self.listen_port,
            udp_timeout: self.udp_timeout.or(UDP_TIMEOUT),
            nat: UdpNat::from(&self.nat),
            system: self.system.then_some((name, routes)),
        };
        let endpoint = Endpoint::new(parts);
        Ok(BuiltEndpoint { inbound: Arc::clone(&endpoint) as _, outbound: endpoint })
    }
}

/// Of two peers with one prefix only one could ever be reached. A longer prefix within another peer's is no mistake.
fn disjoint(prefixes: &[(IpAddr, u8, PeerId)]) -> Result<(), String> {
    let mut owners = HashMap::new();
    for (ip, len, PeerId(at)) in prefixes {
        let network = netlink::network(Prefix { ip: *ip, len: *len });
        let owner = *owners.entry((network.ip, *len)).or_insert(*at);
        if owner != *at {
            return Err(format!(
                "peers[{at}]: {}/{len} is among the `allowed_ips` of peers[{owner}] too",
                network.ip
            ));
        }
    }
    Ok(())
}

/// A peer, and its name if its address is not known yet.
fn peer_settings(peer: &WireGuardPeer) -> Result<(PeerSettings, Option<Target>), String> {
    let (endpoint, name) = match (peer.address.as_str(), peer.port) {
        ("", _) => (None, None),
        (_, 0) => return Err("`port` is missing".to_owned()),
        (text, port) => match text.parse::<IpAddr>() {
            Ok(ip) => (Some((ip, port).into()), None),
            Err(_) => {
                let name =
                    Domain::new(text).map_err(|_| format!("`{text}` is neither an address nor a name"))?;
                (None, Some(Target { host: Host::Domain(name), port }))
            }
        },
    };
    let reserved = match peer.reserved.0.as_slice() {
        [] => [0; 3],
        bytes => bytes.try_into().map_err(|_| "`reserved` has 3 bytes".to_owned())?,
    };
    let interval = Duration::from_secs(peer.persistent_keepalive_interval.into());
    let settings = PeerSettings {
        public_key: peer.public_key.bytes,
        preshared_key: Key(peer.pre_shared_key.0.bytes),
        endpoint,
        keepalive: Some(interval).filter(|interval| !interval.is_zero()),
        reserved,
    };
    Ok((settings, name))
}
