//! The dial fields of outbounds.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_config::options::dial::{DialOptions, DomainStrategy};
use culvert_config::value::Address;
use culvert_core::{Dialer, Outbound, Resolver, Strategy, timeouts};
use culvert_os::socket::{TcpDial, UdpOptions};
use tracing::warn;

use super::{fragmentation, keep_alive, mark, text};
use crate::BuildError;

/// The dialer that `options` describe. `detour` is the outbound they name, if they do, and `resolver` what asks the
/// DNS server they name, or the default one.
///
/// `udp_fragment` is the default of that option: true for outbounds whose datagrams are the clients' own (`direct`).
///
/// # Errors
/// [`BuildError::NotBuilt`] for options without an engine.
pub fn dialer(
    options: &DialOptions,
    udp_fragment: bool,
    resolver: Arc<dyn Resolver>,
    detour: Option<Arc<dyn Outbound>>,
) -> Result<Dialer, BuildError> {
    let not_built = |feature: &str| Err(BuildError::NotBuilt { feature: feature.to_owned() });
    if detour.is_none() {
        let by_type = [
            ("network_strategy", options.network_strategy.is_some()),
            ("network_type", !options.network_type.is_empty()),
            ("fallback_network_type", !options.fallback_network_type.is_empty()),
        ];
        for (key, _) in by_type.iter().filter(|(_, used)| *used) {
            // As in sing-box 1.14.4, where only its apps know which interface is what.
            warn!("`{key}` of the dial fields has no effect: interfaces have no type on this system");
        }
        if !options.protect_path.is_empty() {
            return not_built("protect_path of the dial fields");
        }
    }
    let bind_v4 = match source("inet4_bind_address", options.inet4_bind_address.as_ref())? {
        Some(IpAddr::V4(ip)) => Some(ip),
        Some(IpAddr::V6(_)) => return Err(wrong_family("inet4_bind_address")),
        None => None,
    };
    let bind_v6 = match source("inet6_bind_address", options.inet6_bind_address.as_ref())? {
        Some(IpAddr::V6(ip)) => Some(ip),
        Some(IpAddr::V4(_)) => return Err(wrong_family("inet6_bind_address")),
        None => None,
    };
    let bind_interface = text(&options.bind_interface);
    let netns = text(options.netns.as_str());
    let tcp = TcpDial {
        bind_interface: bind_interface.clone(),
        outward: None,
        bind_v4,
        bind_v6,
        bind_address_no_port: options.bind_address_no_port,
        mark: mark(options.routing_mark),
        // sing-box applies the option to the datagram sockets of a dialer only.
        reuse_addr: false,
        fast_open: options.tcp_fast_open,
        multipath: options.tcp_multi_path,
        keep_alive: keep_alive(
            options.disable_tcp_keep_alive,
            options.tcp_keep_alive,
            options.tcp_keep_alive_interval,
        ),
        netns: netns.clone(),
    };
    let udp = UdpOptions {
        bind_interface,
        mark: mark(options.routing_mark),
        reuse_addr: options.reuse_addr,
        fragmentation: fragmentation(options.udp_fragment, udp_fragment),
        netns,
        ..UdpOptions::default()
    };
    let strategy =
        options.domain_resolver.as_ref().map_or(Strategy::AsIs, |asked| strategy(asked.0.strategy));
    Ok(Dialer {
        tcp,
        udp,
        udp_bind: (bind_v4, bind_v6),
        connect_timeout: options.connect_timeout.or(timeouts::CONNECT),
        fallback_delay: options.fallback_delay.or(timeouts::HAPPY_EYEBALLS),
        resolver,
        strategy,
        detour,
    })
}

/// The core's word for the config's.
#[must_use]
pub fn strategy(option: DomainStrategy) -> Strategy {
    match option {
        DomainStrategy::AsIs => Strategy::AsIs,
        DomainStrategy::PreferIpv4 => Strategy::PreferIpv4,
        DomainStrategy::PreferIpv6 => Strategy::PreferIpv6,
        DomainStrategy::Ipv4Only => Strategy::Ipv4Only,
        DomainStrategy::Ipv6Only => Strategy::Ipv6Only,
    }
}

fn source(option: &'static str, address: Option<&Address>) -> Result<Option<IpAddr>, BuildError> {
    match address {
        Some(address) if !address.zone.is_empty() => {
            Err(BuildError::NotBuilt { feature: format!("{option} with a zone") })
        }
        other => Ok(other.map(|address| address.ip)),
    }
}

fn wrong_family(option: &'static str) -> BuildError {
    BuildError::Invalid { option, reason: "is of the other address family".to_owned() }
}
