//! The server of type `mdns`: names under `local` are asked of everybody on the links.
//!
//! Questions leave from a port of their own, so that responders answer to it alone, as they would a plain DNS client; the
//! first answer from any link counts. Where nobody answers within a few seconds, the name does not exist.
//!
//! Source: RFC 6762 sections 5.1 and 6.7 (one-shot queries). Left out: browsing, and being a responder.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::Tag;
use culvert_os::iface::{self, Interface};
use culvert_os::socket::{UdpOptions, udp_socket};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::DnsServer;
use crate::DnsError;
use crate::message::{Query, Rcode, Reply, random_id};
use crate::plain::{DATAGRAM, into_io};

/// Where responders listen.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
const PORT: u16 = 5353;
/// Pauses between askings, until nobody is waited for any more (RFC 6762 section 5.2: at least a second).
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A server of type `mdns`.
pub struct MdnsServer {
    tag: Tag,
    name: Arc<str>,
    /// Links to ask on; none for all.
    interfaces: Vec<String>,
    udp: UdpOptions,
}

impl MdnsServer {
    /// Asks on these interfaces, or on all of them, by sockets as `udp` says.
    #[must_use]
    pub fn new(tag: Tag, interfaces: Vec<String>, udp: UdpOptions) -> Self {
        Self { name: tag.to_string().into(), tag, interfaces, udp }
    }

    /// The sockets to ask by, and where to.
    fn sockets(&self) -> io::Result<Vec<(UdpSocket, SocketAddr)>> {
        let wanted = |one: &Interface| {
            if self.interfaces.is_empty() {
                one.up && !one.loopback
            } else {
                self.interfaces.contains(&one.name)
            }
        };
        let (mut sockets, mut fault) = (Vec::new(), None);
        for one in iface::interfaces()?.iter().filter(|one| wanted(one)) {
            for v6 in [false, true] {
                if !one.addresses.iter().any(|address| address.ip.is_ipv6() == v6) {
                    continue;
                }
                let (local, group): (IpAddr, SocketAddr) = if v6 {
                    (Ipv6Addr::UNSPECIFIED.into(), SocketAddrV6::new(GROUP_V6, PORT, 0, one.index).into())
                } else {
                    (Ipv4Addr::UNSPECIFIED.into(), (GROUP_V4, PORT).into())
                };
                let options = UdpOptions { bind_interface: Some(one.name.clone()), ..self.udp.clone() };
                let made = udp_socket(&options, SocketAddr::new(local, 0)).map_err(into_io);
                match made.and_then(UdpSocket::from_std) {
                    Ok(socket) => sockets.push((socket, group)),
                    Err(error) => fault = Some(error),
                }
            }
        }
        match fault {
            Some(error) if sockets.is_empty() => Err(error),
            _ => Ok(sockets),
        }
    }
}

#[async_trait]
impl DnsServer for MdnsServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let sockets = self.sockets().map_err(|error| DnsError::network(&self.name, error))?;
        let mut asked = JoinSet::new();
        for (socket, group) in sockets {
            let query = query.clone();
            asked.spawn(async move { ask(&socket, group, &query).await });
        }
        while let Some(found) = asked.join_next().await {
            if let Ok(Some(reply)) = found {
                return Ok(reply);
            }
        }
        Ok(Reply::empty(query, Rcode::NXDOMAIN).uncached())
    }
}

/// Asks on one link. `None` if nobody answers.
async fn ask(socket: &UdpSocket, group: SocketAddr, query: &Query) -> Option<Reply> {
    let id = random_id();
    let mut buffer = [0; DATAGRAM];
    for pause in PAUSES {
        if let Err(error) = socket.send_to(&query.encode(id), group).await {
            tracing::debug!(%group, %error, "multicast question not sent");
            return None;
        }
        let until = Instant::now() + pause;
        while let Ok(Ok(length)) = timeout_at(until, socket.recv(&mut buffer)).await {
            if let Ok(reply) = Reply::parse(&buffer[..length], query, id) {
                return Some(reply);
            }
        }
    }
    None
}
