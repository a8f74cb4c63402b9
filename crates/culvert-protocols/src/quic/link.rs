//! What protocols over QUIC share besides TLS: limits of connections, sockets.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use culvert_config::options::http_fields::QuicOptions;
use culvert_core::{DialError, Dialer, Session, StartError, Tag};
use culvert_os::socket::{Fragmentation, UdpOptions, receive_buffer, share_port, udp_socket};
use culvert_quic::{Connection, Hop, Link, Transport};
use culvert_wire::Target;
use tokio::net::UdpSocket;

use crate::BuildError;
use crate::fields::listen::Listen;

/// Streams that options may allow a peer at most.
const MOST_STREAMS: u64 = 1 << 16;
/// Kernel buffers of a socket, asked for.
const SOCKET_BUFFER: usize = 4 << 20;
/// Sockets of a server at most.
const MOST_SOCKETS: usize = 8;
/// A server that has not answered for so long, and for many round trips, is not waited for by new streams.
const SILENCE: Duration = Duration::from_secs(1);

/// What the `quic` options change in `transport`.
pub(crate) fn transport(options: &QuicOptions, mut transport: Transport) -> Result<Transport, BuildError> {
    let invalid = |option, reason: &str| BuildError::Invalid { option, reason: reason.to_owned() };
    let common = &options.common;
    if let Some(time) = common.idle_timeout.get() {
        transport.idle_timeout = time;
    }
    if let Some(time) = common.keep_alive_period.get() {
        transport.keep_alive = Some(time).filter(|time| *time > Duration::ZERO);
    }
    if let Some(size) = &common.stream_receive_window {
        transport.stream_window = size.bytes;
    }
    if let Some(size) = &common.connection_receive_window {
        transport.connection_window = size.bytes;
    }
    match u64::try_from(common.max_concurrent_streams) {
        Ok(0) => {}
        // Each that may be open costs memory also where it is not.
        Ok(streams) => transport.bidi_streams = streams.min(MOST_STREAMS),
        Err(_) => return Err(invalid("max_concurrent_streams", "there are no negative numbers of streams")),
    }
    if options.initial_packet_size != 0 {
        transport.initial_packet = u16::try_from(options.initial_packet_size)
            .ok()
            .filter(|size| (1200..=1452).contains(size))
            .ok_or_else(|| invalid("initial_packet_size", "packets have 1200 to 1452 bytes"))?;
    }
    transport.mtu_discovery &= !options.disable_path_mtu_discovery;
    Ok(transport)
}

/// The dial fields of a client: large buffers, and packets that are not cut on the way.
pub(crate) fn client_dialer(mut dialer: Dialer) -> Dialer {
    dialer.udp.fragmentation = Fragmentation::Probe;
    dialer.udp.buffer = SOCKET_BUFFER;
    dialer
}

/// What carries a client's packets to its server, and the address that the connection calls that by. Of several addresses
/// each attempt takes another one. `hop` is for ports to change; a detour keeps to one.
pub(crate) async fn client_link(
    dialer: &Dialer,
    session: &Session,
    server: &Target,
    attempt: usize,
    hop: Option<Hop>,
) -> Result<(Link, SocketAddr), DialError> {
    if dialer.detour.is_some() {
        let packets = dialer.packets(session, server).await?;
        // A name is the detour's to resolve; the connection calls the server by an address that nobody has.
        let unknown = SocketAddr::from(([192, 0, 0, 8], server.port.max(1)));
        let address = server.socket_addr().unwrap_or(unknown);
        return Ok((Link::packets(packets, address, server.clone()), address));
    }
    let found = dialer.resolve(server).await?;
    let Some(ip) = found.get(attempt % found.len().max(1)) else {
        let source = std::io::ErrorKind::AddrNotAvailable.into();
        return Err(DialError::Connect { target: server.clone(), source });
    };
    let address = SocketAddr::new(*ip, server.port);
    let link = match hop {
        Some(hop) => Link::hopping(hop, address),
        None => {
            let dialer = dialer.clone();
            Link::opening(Box::new(move || dialer.udp_socket().map_err(std::io::Error::other)))
        }
    };
    let link = link.map_err(|source| DialError::Handshake { phase: "open UDP socket", source })?;
    Ok((link, address))
}

/// Whether a connection may be used for more: it has not ended, and its server answers.
pub(crate) fn is_alive(connection: &Connection) -> bool {
    let patience = SILENCE.max(6 * connection.rtt());
    connection.error().is_none() && connection.silence().is_none_or(|silence| silence < patience)
}

/// The sockets of a server, one for each core, all on one port; and their address.
pub(crate) fn server_links(tag: &Tag, listen: &Listen) -> Result<(Vec<Link>, SocketAddr), StartError> {
    let mut options = listen.udp.clone();
    options.fragmentation = Fragmentation::Probe;
    options.buffer = SOCKET_BUFFER;
    let failed = |source| StartError::Io { tag: tag.clone(), phase: "listen for packets", source };
    let open = |options: &UdpOptions, address| {
        let socket = udp_socket(options, address);
        let socket = socket.map_err(|source| StartError::Listen { tag: tag.clone(), source })?;
        UdpSocket::from_std(socket).map_err(failed)
    };
    // The first one is alone, so that a port that is in use is found out.
    let first = open(&options, listen.address)?;
    let local = first.local_addr().map_err(failed)?;
    if let Ok(granted) = receive_buffer(first.as_fd())
        && granted < SOCKET_BUFFER / 2
    {
        tracing::warn!(
            "inbound/{tag}: the system keeps {granted} bytes of what comes, which loses packets at high rates; \
             raise net.core.rmem_max to {SOCKET_BUFFER}"
        );
    }
    let mut sockets = vec![first];
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_SOCKETS);
    if cores > 1 && share_port(sockets[0].as_fd()).is_ok() {
        options.reuse_addr = true;
        while sockets.len() < cores {
            match open(&options, local) {
                Ok(socket) => sockets.push(socket),
                Err(error) => {
                    tracing::debug!("inbound/{tag}: clients are not spread over all cores: {error}");
                    break;
                }
            }
        }
    }
    let links = sockets.into_iter().map(Link::socket).collect::<Result<_, _>>();
    Ok((links.map_err(failed)?, local))
}
