//! The listen fields of inbounds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use culvert_config::options::listen::ListenOptions;
use culvert_os::iface;
use culvert_os::socket::{TcpListen, UdpOptions};

use super::{fragmentation, keep_alive, mark, text};
use crate::BuildError;

/// Where and how an inbound listens.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// Options of TCP listeners.
    pub tcp: TcpListen,
    /// Options of UDP sockets.
    pub udp: UdpOptions,
    /// Idle limit of associations, where one is set.
    pub udp_timeout: Option<Duration>,
}

/// What `options` describe. `udp_fragment` is the default of that option.
///
/// The `detour` among them is the program's to heed: it gives such an inbound another dispatch.
///
/// # Errors
/// [`BuildError::Invalid`] for an address with a zone that is no interface.
pub fn listen(options: &ListenOptions, udp_fragment: bool) -> Result<Listen, BuildError> {
    let bind_interface = text(&options.bind_interface);
    let netns = text(options.netns.as_str());
    let tcp = TcpListen {
        bind_interface: bind_interface.clone(),
        mark: mark(options.routing_mark),
        reuse_addr: options.reuse_addr,
        fast_open: options.tcp_fast_open,
        multipath: options.tcp_multi_path,
        transparent: false,
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
    Ok(Listen { address: address(options)?, tcp, udp, udp_timeout: options.udp_timeout.0.get() })
}

fn address(options: &ListenOptions) -> Result<SocketAddr, BuildError> {
    let port = options.listen_port;
    let Some(address) = &options.listen else { return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)) };
    let (IpAddr::V6(ip), false) = (address.ip, address.zone.is_empty()) else {
        return Ok(SocketAddr::new(address.ip, port));
    };
    let index = address.zone.parse().or_else(|_| iface::index(&address.zone));
    let scope = index.map_err(|error| BuildError::Invalid {
        option: "listen",
        reason: format!("interface {}: {error}", address.zone),
    })?;
    Ok(SocketAddrV6::new(ip, port, 0, scope).into())
}
