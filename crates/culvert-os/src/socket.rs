//! Sockets made ready by the listen and dial options of a configuration, and small questions to open sockets.
//!
//! [`tcp_socket`] gives a socket that waits for connect(2), [`tcp_listener`] one that listens, [`udp_socket`] a bound one.
//! All are non-blocking and close-on-exec. Option names in errors are the names of the configuration keys.
//!
//! Sources: socket(7), ip(7), ipv6(7), tcp(7), udp(7). Defaults follow Go's net package, on which sing-box rests:
//! TCP_NODELAY on, SO_REUSEADDR on every TCP listener, and `::` listens for IPv4 too. The key `reuse_addr` means
//! SO_REUSEADDR with SO_REUSEPORT.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use thiserror::Error;

use crate::iface::Outward;
use crate::{netns, sys};

/// What to ask of an outgoing TCP connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TcpDial {
    /// Name of the interface to leave through (SO_BINDTODEVICE).
    pub bind_interface: Option<String>,
    /// Leaves through the interface of the default route, where [`bind_interface`](Self::bind_interface) names none.
    pub outward: Option<Outward>,
    /// Source address of IPv4 connections.
    pub bind_v4: Option<Ipv4Addr>,
    /// Source address of IPv6 connections.
    pub bind_v6: Option<Ipv6Addr>,
    /// Leaves the choice of the source port to connect(2), so that one port serves several destinations
    /// (IP_BIND_ADDRESS_NO_PORT). Counts only where a source address is bound.
    pub bind_address_no_port: bool,
    /// Firewall mark (SO_MARK); needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// SO_REUSEADDR and SO_REUSEPORT. The key of that name in sing-box's dial fields acts on UDP sockets alone.
    pub reuse_addr: bool,
    /// Sends the first written bytes within the handshake (TCP_FASTOPEN_CONNECT), where the kernel's settings allow it.
    ///
    /// With a cookie for the peer at hand, connect(2) succeeds at once and the handshake begins with the first write: a
    /// caller that has nothing to write first must not ask for it.
    pub fast_open: bool,
    /// Multipath TCP, or plain TCP where the kernel has it not or has it switched off.
    pub multipath: bool,
    /// Probes on idle connections; `None` sends none.
    pub keep_alive: Option<KeepAlive>,
    /// Network namespace to connect from: see [`netns`].
    pub netns: Option<String>,
}

/// What to ask of a TCP listener. Accepted sockets inherit mark, interface, keep-alive and TCP_NODELAY.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TcpListen {
    /// Name of the interface to take connections from (SO_BINDTODEVICE).
    pub bind_interface: Option<String>,
    /// Firewall mark (SO_MARK); needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// SO_REUSEPORT, so that several listeners share the port. SO_REUSEADDR is always on.
    pub reuse_addr: bool,
    /// Accepts data within the handshake (TCP_FASTOPEN), where the kernel's settings allow it.
    pub fast_open: bool,
    /// Multipath TCP, or plain TCP where the kernel has it not or has it switched off.
    pub multipath: bool,
    /// Takes connections to addresses that are not this host's, for TPROXY (IP_TRANSPARENT); needs CAP_NET_ADMIN.
    pub transparent: bool,
    /// Probes on idle connections; `None` sends none.
    pub keep_alive: Option<KeepAlive>,
    /// Network namespace to listen in: see [`netns`].
    pub netns: Option<String>,
}

/// What to ask of a UDP socket.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UdpOptions {
    /// Name of the interface to use (SO_BINDTODEVICE).
    pub bind_interface: Option<String>,
    /// Uses the interface of the default route, where [`bind_interface`](Self::bind_interface) names none.
    pub outward: Option<Outward>,
    /// Firewall mark (SO_MARK); needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// SO_REUSEADDR and SO_REUSEPORT.
    pub reuse_addr: bool,
    /// What happens to datagrams larger than the path takes.
    pub fragmentation: Fragmentation,
    /// Binds and receives for addresses that are not this host's, for TPROXY (IP_TRANSPARENT); needs CAP_NET_ADMIN.
    pub transparent: bool,
    /// Kernel buffer asked for in bytes, each way; zero keeps the system's. Best effort: the kernel grants at most
    /// `net.core.rmem_max` and `net.core.wmem_max` to those without CAP_NET_ADMIN.
    pub buffer: usize,
    /// Network namespace to bind in: see [`netns`].
    pub netns: Option<String>,
}

impl UdpOptions {
    /// The same for a socket that speaks with `target` only.
    #[must_use]
    pub fn towards(&self, target: IpAddr) -> Self {
        let outward = self.outward.clone().filter(|outward| outward.name_for(Some(target)).is_some());
        Self { outward, ..self.clone() }
    }
}

/// What happens to datagrams larger than the path takes (IP_MTU_DISCOVER and IPV6_MTU_DISCOVER).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Fragmentation {
    /// As the system does it: Linux fragments what exceeds the known path MTU. `udp_fragment: true`.
    #[default]
    System,
    /// Never: sending fails with EMSGSIZE instead (IP_PMTUDISC_DO). `udp_fragment: false`.
    Forbidden,
    /// Never, and the kernel's guess of the path MTU is ignored (IP_PMTUDISC_PROBE): for protocols that search it
    /// themselves, as QUIC does.
    Probe,
}

/// When to probe an idle TCP connection. The system decides how many probes may fail (Linux: 9).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeepAlive {
    /// Silence before the first probe. Rounded up to seconds, 1 to 32767.
    pub idle: Duration,
    /// Time between probes. Rounded up to seconds, 1 to 32767.
    pub interval: Duration,
}

impl Default for KeepAlive {
    /// Five minutes, then every 75 seconds, as in sing-box.
    fn default() -> Self {
        Self { idle: Duration::from_secs(300), interval: Duration::from_secs(75) }
    }
}

/// Why a socket could not be made as its options ask. The reason of the system is the `source`.
#[derive(Debug, Error)]
pub enum SocketError {
    /// socket(2) failed: no descriptors left, or the address family is switched off.
    #[error("create socket for {address}")]
    Create {
        /// The address whose family was asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The interface does not exist, or may not be bound to.
    #[error("bind_interface {name}{}", needs(source, "CAP_NET_RAW"))]
    BindInterface {
        /// Name of the interface.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The firewall mark was refused.
    #[error("routing_mark {mark:#x}{}", needs(source, "CAP_NET_ADMIN"))]
    Mark {
        /// The mark.
        mark: u32,
        /// The system's reason.
        source: io::Error,
    },
    /// The address is taken, is not this host's, or is a port below 1024 without CAP_NET_BIND_SERVICE.
    #[error("bind to {address}{}", needs(source, "CAP_NET_BIND_SERVICE"))]
    Bind {
        /// The local address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// listen(2) failed, as it does when another socket took the port meanwhile.
    #[error("listen on {address}")]
    Listen {
        /// The local address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The network namespace does not exist, or may not be entered.
    #[error("netns {name}{}", needs(source, "CAP_SYS_ADMIN"))]
    Netns {
        /// Name or path of the namespace.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Another option was refused.
    #[error("{option}{}", needs(source, "CAP_NET_ADMIN"))]
    Option {
        /// The configuration key, or the name of the socket option where no key stands behind it.
        option: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl SocketError {
    /// The system's reason, whichever option it is about.
    pub fn io(&self) -> &io::Error {
        match self {
            Self::Create { source, .. }
            | Self::BindInterface { source, .. }
            | Self::Mark { source, .. }
            | Self::Bind { source, .. }
            | Self::Listen { source, .. }
            | Self::Netns { source, .. }
            | Self::Option { source, .. } => source,
        }
    }
}

/// Keeps the kind; the error itself stays inside, to be found by downcast or along the chain of sources.
impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> Self {
        Self::new(error.io().kind(), error)
    }
}

/// The hint a user needs when the system only says "permitted"; nothing for other reasons.
fn needs(source: &io::Error, capability: &str) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => format!(" (needs {capability})"),
        _ => String::new(),
    }
}

/// Makes a TCP socket for a connection to `target`, ready for connect(2).
///
/// # Errors
/// The option that was refused; `fast_open` and `multipath` are wishes and never fail.
pub fn tcp_socket(dial: &TcpDial, target: SocketAddr) -> Result<Socket, SocketError> {
    in_namespace(dial.netns.as_deref(), || {
        let socket = stream_socket(target, dial.multipath)?;
        let outward = || dial.outward.as_ref()?.name_for(Some(target.ip()));
        let interface = dial.bind_interface.clone().or_else(outward);
        mark_and_interface(&socket, dial.mark, interface.as_deref())?;
        if dial.reuse_addr {
            reuse(&socket)?;
        }
        tcp_options(&socket, dial.keep_alive)?;
        if dial.fast_open {
            // Refused where net.ipv4.tcp_fastopen leaves it out for clients; the connection then goes the usual way.
            let _ = sys::set_fast_open_connect(socket.as_fd());
        }
        let source =
            if target.is_ipv4() { dial.bind_v4.map(IpAddr::V4) } else { dial.bind_v6.map(IpAddr::V6) };
        if let Some(source) = source {
            if dial.bind_address_no_port {
                sys::set_bind_address_no_port(socket.as_fd()).map_err(option("bind_address_no_port"))?;
            }
            bind(&socket, SocketAddr::new(source, 0))?;
        }
        Ok(socket)
    })
}

/// Makes a listening TCP socket. `::` takes IPv4 connections too; `0.0.0.0` takes nothing else.
///
/// The backlog is as long as the system allows (`net.core.somaxconn`).
///
/// # Errors
/// The option or the step that failed; `fast_open` and `multipath` are wishes and never fail.
pub fn tcp_listener(listen: &TcpListen, address: SocketAddr) -> Result<TcpListener, SocketError> {
    in_namespace(listen.netns.as_deref(), || {
        let socket = stream_socket(address, listen.multipath)?;
        mark_and_interface(&socket, listen.mark, listen.bind_interface.as_deref())?;
        if listen.reuse_addr {
            reuse(&socket)?;
        } else {
            socket.set_reuse_address(true).map_err(option("SO_REUSEADDR"))?;
        }
        if listen.transparent {
            sys::set_transparent(socket.as_fd(), address.is_ipv6()).map_err(option("IP_TRANSPARENT"))?;
        }
        dual_stack(&socket, address)?;
        tcp_options(&socket, listen.keep_alive)?;
        bind(&socket, address)?;
        if listen.fast_open {
            let _ = sys::set_fast_open_queue(socket.as_fd(), LONGEST_QUEUE);
        }
        socket.listen(LONGEST_QUEUE).map_err(|source| SocketError::Listen { address, source })?;
        Ok(socket.into())
    })
}

/// Makes a UDP socket bound to `local`; port 0 takes a free one. `::` serves IPv4 too.
///
/// Errors that ICMP reports are not queued on it (IP_RECVERR stays off), so an unconnected socket never fails to receive
/// because one of its peers is gone; a connected one reports ECONNREFUSED once and goes on.
///
/// # Errors
/// The option or the step that failed; `buffer` is a wish and never fails.
pub fn udp_socket(options: &UdpOptions, local: SocketAddr) -> Result<UdpSocket, SocketError> {
    in_namespace(options.netns.as_deref(), || {
        let socket = sys::socket(Domain::for_address(local), Type::DGRAM, Protocol::UDP)
            .map_err(|source| SocketError::Create { address: local, source })?;
        let outward = || options.outward.as_ref()?.name_for(None);
        let interface = options.bind_interface.clone().or_else(outward);
        mark_and_interface(&socket, options.mark, interface.as_deref())?;
        if options.reuse_addr {
            reuse(&socket)?;
        }
        if options.transparent {
            sys::set_transparent(socket.as_fd(), local.is_ipv6()).map_err(option("IP_TRANSPARENT"))?;
        }
        dual_stack(&socket, local)?;
        sys::set_fragmentation(socket.as_fd(), local.is_ipv6(), options.fragmentation)
            .map_err(option("udp_fragment"))?;
        if options.buffer > 0 && sys::force_buffers(socket.as_fd(), options.buffer).is_err() {
            let _ = socket.set_recv_buffer_size(options.buffer);
            let _ = socket.set_send_buffer_size(options.buffer);
        }
        bind(&socket, local)?;
        Ok(socket.into())
    })
}

/// Lets further sockets of this user be bound to the address of a bound one (SO_REUSEPORT), with
/// [`UdpOptions::reuse_addr`]. The kernel spreads what comes over them by the address it comes from. That the first one was
/// bound without shows whether the port was free.
///
/// # Errors
/// The system does not have it.
pub fn share_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&socket).set_reuse_port(true)
}

/// The longest IP packet that the way to `target` is known to take, which is what its first hop does until somebody has said
/// otherwise. Two system calls and a socket.
///
/// # Errors
/// There is no way, or the system does not say.
pub fn path_mtu(target: SocketAddr) -> io::Result<u32> {
    let target = SocketAddr::new(target.ip().to_canonical(), target.port());
    let socket = sys::socket(Domain::for_address(target), Type::DGRAM, Protocol::UDP)?;
    socket.connect(&target.into())?;
    let mtu = sys::path_mtu(socket.as_fd(), target.is_ipv6())?;
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A socket for pings.
#[derive(Debug)]
pub struct PingSocket {
    /// It sends and receives whole ICMP messages; the ports of addresses mean nothing.
    pub socket: UdpSocket,
    /// It is raw: it receives all ICMP messages of the host (IPv4: with their IP heads), and ids are as they were sent.
    pub raw: bool,
}

/// Makes a socket for pings, icmp(7), or where the system has switched those off a raw one, raw(7).
///
/// # Errors
/// Neither may be made, or not with these options.
pub fn ping_socket(options: &UdpOptions, v6: bool) -> Result<PingSocket, SocketError> {
    in_namespace(options.netns.as_deref(), || {
        let (domain, protocol) =
            if v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        let ip = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
        let (socket, raw) = match sys::socket(domain, Type::DGRAM, protocol) {
            Ok(socket) => (socket, false),
            Err(source) => match sys::socket(domain, Type::RAW, protocol) {
                Ok(socket) => (socket, true),
                Err(_) => return Err(SocketError::Create { address: SocketAddr::new(ip, 0), source }),
            },
        };
        mark_and_interface(&socket, options.mark, options.bind_interface.as_deref())?;
        Ok(PingSocket { socket: socket.into(), raw })
    })
}

/// How many bytes of what it receives the kernel keeps for a socket. Linux counts its own records too and doubles what it
/// is asked for; this is half of that, to be held against [`UdpOptions::buffer`].
///
/// # Errors
/// The system does not say.
pub fn receive_buffer(socket: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(SockRef::from(&socket).recv_buffer_size()? / 2)
}

/// What of a TCP connection's sent data is still on its way.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendQueue {
    /// Bytes the peer has not acknowledged, whether sent or not (SIOCOUTQ).
    pub unacknowledged: usize,
    /// Of these, bytes never sent: the peer's window, congestion or the device holds them back (SIOCOUTQNSD).
    pub unsent: usize,
}

/// Asks how much of what was written to a TCP socket is still queued. Two system calls, nothing allocated.
pub fn send_queue(socket: BorrowedFd<'_>) -> io::Result<SendQueue> {
    Ok(SendQueue { unacknowledged: sys::unacknowledged_bytes(socket)?, unsent: sys::unsent_bytes(socket)? })
}

/// Where a connection was to go before the packet filter redirected it to this host (SO_ORIGINAL_DST of netfilter). `v6`
/// says that it came by IPv6, whatever the socket is.
///
/// # Errors
/// ENOENT if it was not redirected; the system's otherwise.
pub fn original_destination(socket: BorrowedFd<'_>, v6: bool) -> io::Result<SocketAddr> {
    sys::original_destination(socket, v6)
}

/// Makes close(2) throw away unsent data and reset the connection, so that the peer reads an error and not an end.
pub fn set_linger_zero(socket: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))
}

/// Sends at a fixed speed of `rate` bytes per second, whatever is lost: TCP Brutal, a congestion control that the kernel
/// has only with a module of that name. Twice as much as the round trip takes may be under way.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] without the module.
pub fn set_brutal(socket: BorrowedFd<'_>, rate: u64) -> io::Result<()> {
    sys::set_brutal(socket, rate)
}

/// Takes the pending error of a socket (SO_ERROR): after a non-blocking connect, `None` means that it succeeded.
pub fn take_error(socket: BorrowedFd<'_>) -> io::Result<Option<io::Error>> {
    SockRef::from(&socket).take_error()
}

/// The address a socket is bound to. IPv4 on a dual-stack socket comes as plain IPv4.
pub fn local_addr(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SockRef::from(&socket).local_addr().and_then(internet_address)
}

/// The address a socket is connected to. IPv4 on a dual-stack socket comes as plain IPv4.
///
/// # Errors
/// [`io::ErrorKind::NotConnected`] before the connection stands.
pub fn peer_addr(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SockRef::from(&socket).peer_addr().and_then(internet_address)
}

/// Turns `::ffff:192.0.2.1`, as dual-stack sockets write IPv4, into `192.0.2.1`; leaves all else as it is.
pub fn plain_v4(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

fn internet_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().map(plain_v4).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// More than any system allows: the kernel cuts it to `net.core.somaxconn` of the socket's namespace.
const LONGEST_QUEUE: i32 = i32::MAX;

/// Runs `create` here or in the namespace asked for.
fn in_namespace<T: Send>(
    name: Option<&str>,
    create: impl FnOnce() -> Result<T, SocketError> + Send,
) -> Result<T, SocketError> {
    match name {
        None => create(),
        Some(name) => netns::within(name, create)?,
    }
}

fn stream_socket(address: SocketAddr, multipath: bool) -> Result<Socket, SocketError> {
    let domain = Domain::for_address(address);
    if multipath
        && let Some(protocol) = sys::multipath_tcp()
        && let Ok(socket) = sys::socket(domain, Type::STREAM, protocol)
    {
        return Ok(socket);
    }
    sys::socket(domain, Type::STREAM, Protocol::TCP).map_err(|source| SocketError::Create { address, source })
}

fn mark_and_interface(
    socket: &Socket,
    mark: Option<u32>,
    interface: Option<&str>,
) -> Result<(), SocketError> {
    if let Some(mark) = mark {
        sys::set_mark(socket.as_fd(), mark).map_err(|source| SocketError::Mark { mark, source })?;
    }
    if let Some(name) = interface {
        sys::bind_interface(socket.as_fd(), name)
            .map_err(|source| SocketError::BindInterface { name: name.into(), source })?;
    }
    Ok(())
}

fn reuse(socket: &Socket) -> Result<(), SocketError> {
    socket.set_reuse_address(true).and_then(|()| socket.set_reuse_port(true)).map_err(option("reuse_addr"))
}

/// The default is a system setting (`net.ipv6.bindv6only`), so it is said outright.
fn dual_stack(socket: &Socket, address: SocketAddr) -> Result<(), SocketError> {
    if address.is_ipv4() { Ok(()) } else { socket.set_only_v6(false).map_err(option("IPV6_V6ONLY")) }
}

fn tcp_options(socket: &Socket, keep_alive: Option<KeepAlive>) -> Result<(), SocketError> {
    socket.set_tcp_nodelay(true).map_err(option("TCP_NODELAY"))?;
    if let Some(KeepAlive { idle, interval }) = keep_alive {
        let keep_alive =
            TcpKeepalive::new().with_time(whole_seconds(idle)).with_interval(whole_seconds(interval));
        socket.set_tcp_keepalive(&keep_alive).map_err(option("tcp_keep_alive"))?;
    }
    Ok(())
}

/// The kernel counts in seconds and takes 1 to 32767.
fn whole_seconds(duration: Duration) -> Duration {
    let up = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    Duration::from_secs(up.clamp(1, 32767))
}

fn bind(socket: &Socket, address: SocketAddr) -> Result<(), SocketError> {
    socket.bind(&address.into()).map_err(|source| SocketError::Bind { address, source })
}

fn option(option: &'static str) -> impl FnOnce(io::Error) -> SocketError {
    move |source| SocketError::Option { option, source }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
