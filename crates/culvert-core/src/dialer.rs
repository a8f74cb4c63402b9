//! The dialer that most outbounds share: sockets made as the dial fields ask, names resolved, addresses tried in the
//! order and with the overlap of RFC 8305, or another outbound in its place (`detour`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_os::socket::{TcpDial, UdpOptions, tcp_socket, udp_socket};
use culvert_wire::{BufChain, Host, Target};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::udp::Resolving;
use crate::{
    BoxPackets, BoxStream, DialError, Network, Outbound, PingConn, Resolver, Session, Strategy, TcpConn,
    UdpConn, timeouts,
};

/// The dial fields of an outbound, made ready.
#[derive(Clone)]
pub struct Dialer {
    /// Options of TCP sockets.
    pub tcp: TcpDial,
    /// Options of UDP sockets.
    pub udp: UdpOptions,
    /// Source addresses of UDP sockets, per family.
    pub udp_bind: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Time for one connect, all addresses together.
    pub connect_timeout: Duration,
    /// Head start of one address before the next is tried too.
    pub fallback_delay: Duration,
    /// Looks up the names that are dialled.
    pub resolver: Arc<dyn Resolver>,
    /// Which families, in which order.
    pub strategy: Strategy,
    /// Dial through this outbound; nothing above matters then.
    pub detour: Option<Arc<dyn Outbound>>,
}

impl Dialer {
    /// A dialer with all options at their defaults.
    #[must_use]
    pub fn new(resolver: Arc<dyn Resolver>) -> Self {
        Self {
            tcp: TcpDial { keep_alive: Some(culvert_os::socket::KeepAlive::default()), ..TcpDial::default() },
            udp: UdpOptions::default(),
            udp_bind: (None, None),
            connect_timeout: timeouts::CONNECT,
            fallback_delay: timeouts::HAPPY_EYEBALLS,
            resolver,
            strategy: Strategy::AsIs,
            detour: None,
        }
    }

    /// Connects a stream to `target`, on behalf of `session`.
    ///
    /// # Errors
    /// What failed, of the last address tried.
    pub async fn connect(&self, session: &Session, target: &Target) -> Result<BoxStream, DialError> {
        if let Some(detour) = &self.detour {
            let inner = Session { network: Network::Tcp, target: target.clone(), ..session.clone() };
            return detour.dial(&inner, &mut BufChain::new()).await.map_err(|error| via(&**detour, error));
        }
        let limit = self.connect_timeout;
        let connect = async {
            let addresses = self.resolve(target).await?;
            self.race(target, addresses).await
        };
        match tokio::time::timeout(limit, connect).await {
            Ok(Ok(stream)) => Ok(Box::new(TcpConn::new(stream))),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let source = io::ErrorKind::TimedOut.into();
                Err(DialError::Connect { target: target.clone(), source })
            }
        }
    }

    /// Opens a way for datagrams, the first of which goes to `target`.
    ///
    /// # Errors
    /// The socket could not be made, or the detour's error.
    pub async fn packets(&self, session: &Session, target: &Target) -> Result<BoxPackets, DialError> {
        if let Some(detour) = &self.detour {
            if !detour.carries(Network::Udp) {
                return Err(via(&**detour, DialError::Network(Network::Udp)));
            }
            let inner = Session { network: Network::Udp, target: target.clone(), ..session.clone() };
            return detour.listen_packet(&inner).await.map_err(|error| via(&**detour, error));
        }
        // One for this host or its neighbours must not be bound to the interface that leads out.
        let conn = UdpConn::new(match &target.host {
            Host::Ip(ip) => self.socket_by(&self.udp.towards(*ip))?,
            Host::Domain(_) => self.udp_socket()?,
        });
        Ok(Box::new(Resolving::new(conn, Arc::clone(&self.resolver), self.strategy)))
    }

    /// A way for pings to `target`, straight out.
    ///
    /// # Errors
    /// There is a detour, the target is a name without an address, or the system lets nobody ping.
    pub async fn pings(&self, target: &Target) -> Result<BoxPackets, DialError> {
        if let Some(detour) = &self.detour {
            return Err(via(&**detour, DialError::Network(Network::Icmp)));
        }
        let Some(ip) = self.resolve(target).await?.first().copied() else {
            return Err(DialError::Target { target: target.clone(), reason: "has no address" });
        };
        let socket = culvert_os::socket::ping_socket(&self.udp, ip.is_ipv6())?;
        let conn = PingConn::new(socket, ip)
            .map_err(|source| DialError::Handshake { phase: "open ping socket", source })?;
        Ok(Box::new(conn))
    }

    /// A socket for datagrams, straight out: one for both families where the system has both.
    ///
    /// # Errors
    /// It could not be made.
    pub fn udp_socket(&self) -> Result<UdpSocket, DialError> {
        self.socket_by(&self.udp)
    }

    fn socket_by(&self, options: &UdpOptions) -> Result<UdpSocket, DialError> {
        let (v4, v6) = self.udp_bind;
        let any_v4 = SocketAddr::new(v4.unwrap_or(Ipv4Addr::UNSPECIFIED).into(), 0);
        let socket = match (v4, v6) {
            (Some(_), None) => udp_socket(options, any_v4)?,
            _ => {
                let any_v6 = SocketAddr::new(v6.unwrap_or(Ipv6Addr::UNSPECIFIED).into(), 0);
                udp_socket(options, any_v6).or_else(|_| udp_socket(options, any_v4))?
            }
        };
        UdpSocket::from_std(socket)
            .map_err(|source| DialError::Handshake { phase: "open UDP socket", source })
    }

    /// The addresses of `target`, in the order in which they are tried.
    ///
    /// # Errors
    /// The name has none.
    pub async fn resolve(&self, target: &Target) -> Result<Vec<IpAddr>, DialError> {
        match &target.host {
            Host::Ip(ip) => Ok(vec![*ip]),
            Host::Domain(name) => {
                let addresses = self.resolver.resolve(name, self.strategy).await;
                let mut addresses =
                    addresses.map_err(|source| DialError::Resolve { name: name.clone(), source })?;
                interleave(&mut addresses);
                Ok(addresses)
            }
        }
    }

    /// Tries the addresses one after the other, the next as soon as the one before has failed or had its head start.
    async fn race(&self, target: &Target, addresses: Vec<IpAddr>) -> Result<TcpStream, DialError> {
        let mut rest = addresses.into_iter().map(|ip| SocketAddr::new(ip, target.port));
        let Some(first) = rest.next() else {
            let source = io::ErrorKind::AddrNotAvailable.into();
            return Err(DialError::Connect { target: target.clone(), source });
        };
        if rest.len() == 0 {
            // The common case needs no second task.
            return self.connect_one(target, first).await;
        }
        let mut attempts = JoinSet::new();
        let mut last = None;
        let mut next = Some(first);
        loop {
            if let Some(address) = next.take() {
                let (dialer, target) = (self.clone(), target.clone());
                attempts.spawn(async move { dialer.connect_one(&target, address).await });
            }
            let head_start = Instant::now() + self.fallback_delay;
            let joined = if rest.len() == 0 {
                attempts.join_next().await
            } else {
                match tokio::time::timeout_at(head_start, attempts.join_next()).await {
                    Ok(joined) => joined,
                    Err(_) => {
                        next = rest.next();
                        continue;
                    }
                }
            };
            match joined {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => last = Some(error),
                Some(Err(_)) | None => {}
            }
            next = rest.next();
            if next.is_none() && attempts.is_empty() {
                let gone = || DialError::Connect {
                    target: target.clone(),
                    source: io::ErrorKind::AddrNotAvailable.into(),
                };
                return Err(last.unwrap_or_else(gone));
            }
        }
    }

    async fn connect_one(&self, target: &Target, address: SocketAddr) -> Result<TcpStream, DialError> {
        let socket = tcp_socket(&self.tcp, address)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let connected = socket.connect(address).await;
        connected.map_err(|source| DialError::Connect { target: target.clone(), source })
    }
}

/// Names the detour that failed.
fn via(detour: &dyn Outbound, error: DialError) -> DialError {
    DialError::Outbound { tag: detour.tag().clone(), source: Box::new(error) }
}

/// Alternates the families, beginning with the first address' (RFC 8305 section 4).
fn interleave(addresses: &mut Vec<IpAddr>) {
    let Some(first) = addresses.first() else { return };
    let leading = first.is_ipv4();
    let (a, b): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(|ip: &IpAddr| ip.is_ipv4() == leading);
    addresses.clear();
    let (mut a, mut b) = (a.into_iter(), b.into_iter());
    while a.len() + b.len() > 0 {
        addresses.extend(a.next());
        addresses.extend(b.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let mut addresses: Vec<IpAddr> =
            ["::1", "::2", "::3", "10.0.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
        interleave(&mut addresses);
        let shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["::1", "10.0.0.1", "::2", "::3"]);
    }
}
