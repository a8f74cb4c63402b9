//! The server of type `dhcp`: the name servers that the network of an interface names to who asks by DHCP.
//!
//! ```text
//! DISCOVER, to 255.255.255.255:67     op 1, xid, flags (broadcast), hardware address, options 53 = 1, 55 = 6
//! OFFER, to port 68                   op 2, the same xid and hardware address, options 53 = 2, 6 = name servers
//! ```
//!
//! No address is taken, so the offer is left unanswered. What the network says counts for an hour; when it has changed, it is
//! asked again. Needs the right to use port 68 (CAP_NET_BIND_SERVICE).
//!
//! Source: RFC 2131, RFC 2132.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::Tag;
use culvert_os::iface;
use culvert_os::socket::{UdpOptions, udp_socket};
use tokio::net::UdpSocket;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::DnsServer;
use crate::DnsError;
use crate::message::{Query, Reply, random_id};
use crate::plain::{Sockets, into_io};
use crate::system::ask_in_turn;

/// How long an offer counts (sing-box 1.14.4).
const LASTS: Duration = Duration::from_secs(3600);
/// Pauses between askings, until nobody is waited for any more.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(2)];
/// How long one name server may take.
const PATIENCE: Duration = Duration::from_secs(5);
const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

/// A server of type `dhcp`.
pub struct DhcpServer {
    tag: Tag,
    name: Arc<str>,
    /// `None`: the one with the default route.
    interface: Option<String>,
    sockets: Sockets,
    offer: AsyncMutex<Option<Offer>>,
    changed: std::sync::atomic::AtomicBool,
}

#[derive(Clone)]
struct Offer {
    interface: String,
    servers: Vec<SocketAddr>,
    at: Instant,
}

impl DhcpServer {
    /// Asks the network of `interface`, or of the default one. `sockets` are for the name servers.
    #[must_use]
    pub fn new(tag: Tag, interface: Option<String>, sockets: Sockets) -> Self {
        Self {
            name: tag.to_string().into(),
            tag,
            interface,
            sockets,
            offer: AsyncMutex::default(),
            changed: false.into(),
        }
    }

    /// What the network has said, now or a while ago.
    async fn offer(&self) -> Result<Offer, DnsError> {
        let mut kept = self.offer.lock().await;
        if self.changed.swap(false, std::sync::atomic::Ordering::Relaxed) {
            *kept = None;
        }
        if let Some(offer) = kept.as_ref().filter(|offer| offer.at.elapsed() < LASTS) {
            return Ok(offer.clone());
        }
        let failed = |source| DnsError::network(&self.name, source);
        let interface = match &self.interface {
            Some(name) => name.clone(),
            None => default_interface().map_err(failed)?,
        };
        let servers = ask_network(&interface).await.map_err(failed)?;
        let shown: Vec<_> = servers.iter().map(ToString::to_string).collect();
        info!("dns/{}: {interface} has the name servers {}", self.tag, shown.join(", "));
        let servers = servers.into_iter().map(|ip| SocketAddr::new(ip.into(), 53)).collect();
        let offer = Offer { interface, servers, at: Instant::now() };
        *kept = Some(offer.clone());
        Ok(offer)
    }
}

#[async_trait]
impl DnsServer for DhcpServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let offer = self.offer().await?;
        let mut sockets = self.sockets.clone();
        for bound in [&mut sockets.tcp.bind_interface, &mut sockets.udp.bind_interface] {
            bound.get_or_insert_with(|| offer.interface.clone());
        }
        ask_in_turn(Arc::new(sockets), query.clone(), offer.servers, PATIENCE).await
    }

    fn reset(&self) {
        self.changed.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
fn default_interface() -> io::Result<String> {
    let link = culvert_os::netlink::default_link(false)?;
    let all = iface::interfaces()?;
    let found = link.and_then(|link| all.into_iter().find(|one| one.index == link));
    found.map(|one| one.name).ok_or_else(|| io::Error::other("no interface has the default route"))
}

#[cfg(target_os = "linux")]
fn hardware_address(interface: &str) -> io::Result<[u8; 6]> {
    let found = culvert_os::netlink::hardware_address(iface::index(interface)?)?;
    found.ok_or_else(|| io::Error::other(format!("{interface} has no hardware address")))
}

#[cfg(not(target_os = "linux"))]
fn hardware_address(_: &str) -> io::Result<[u8; 6]> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn default_interface() -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sends DISCOVER until an offer names name servers.
async fn ask_network(interface: &str) -> io::Result<Vec<Ipv4Addr>> {
    let mac = hardware_address(interface)?;
    let options =
        UdpOptions { bind_interface: Some(interface.to_owned()), reuse_addr: true, ..UdpOptions::default() };
    let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CLIENT_PORT));
    let socket = UdpSocket::from_std(udp_socket(&options, local).map_err(into_io)?)?;
    socket.set_broadcast(true)?;
    let id = u32::from(random_id()) << 16 | u32::from(random_id());
    let mut buffer = [0; 1500];
    for pause in PAUSES {
        socket.send_to(&discover(id, mac), (Ipv4Addr::BROADCAST, SERVER_PORT)).await?;
        let until = Instant::now() + pause;
        while let Ok(received) = timeout_at(until, socket.recv(&mut buffer)).await {
            if let Some(servers) = offered(&buffer[..received?], id, mac) {
                return Ok(servers);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("no DHCP server on {interface} names name servers")))
}

/// Bytes before the options, the cookie among them.
const HEAD: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// A DISCOVER that asks for nothing but name servers.
fn discover(id: u32, mac: [u8; 6]) -> Vec<u8> {
    let mut message = vec![0; HEAD];
    // Request, Ethernet, six bytes of address, no hops.
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[4..8].copy_from_slice(&id.to_be_bytes());
    // Answers go to all, since there is no address they could go to.
    message[10] = 0x80;
    message[28..34].copy_from_slice(&mac);
    message[236..240].copy_from_slice(&COOKIE);
    message.extend([53, 1, 1, 55, 1, 6, 255]);
    // Some servers take no shorter message (RFC 1542 section 2.1).
    message.resize(300, 0);
    message
}

/// The name servers in an OFFER or an ACK for us.
fn offered(message: &[u8], id: u32, mac: [u8; 6]) -> Option<Vec<Ipv4Addr>> {
    let (head, mut options) = message.split_at_checked(HEAD)?;
    let is_ours =
        head[0] == 2 && head[4..8] == id.to_be_bytes() && head[28..34] == mac && head[236..] == COOKIE;
    if !is_ours {
        return None;
    }
    let (mut kind, mut servers) = (0, Vec::new());
    while let Some((&option, rest)) = options.split_first() {
        match option {
            0 => options = rest,
            255 => break,
            _ => {
                let (&length, rest) = rest.split_first()?;
                let (data, rest) = rest.split_at_checked(length.into())?;
                match option {
                    53 => kind = *data.first()?,
                    6 => servers.extend(data.as_chunks::<4>().0.iter().map(|ip| Ipv4Addr::from(*ip))),
                    _ => {}
                }
                options = rest;
            }
        }
    }
    servers.retain(|ip| !ip.is_unspecified());
    (matches!(kind, 2 | 5) && !servers.is_empty()).then_some(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn offer(options: &[u8]) -> Vec<u8> {
        let mut message = discover(7, MAC)[..HEAD].to_vec();
        message[0] = 2;
        message.extend(options);
        message
    }

    #[test]
    fn name_servers_are_read_from_offers_for_us() {
        let whole = offer(&[0, 53, 1, 2, 1, 4, 255, 255, 255, 0, 6, 8, 192, 0, 2, 1, 192, 0, 2, 2, 255]);
        let expected = vec![Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
        assert_eq!(offered(&whole, 7, MAC), Some(expected));
        assert_eq!(offered(&whole, 8, MAC), None);
        assert_eq!(offered(&whole, 7, [0; 6]), None);
        assert_eq!(offered(&discover(7, MAC), 7, MAC), None, "a request");
        for end in 0..whole.len() - 1 {
            let cut = offered(&whole[..end], 7, MAC);
            assert!(cut.is_none_or(|servers| end >= whole.len() - 1 && servers.len() == 2), "{end}");
        }
        for without in [
            &[53, 1, 2][..],
            &[6, 4, 192, 0, 2, 1],
            &[53, 1, 6, 6, 4, 192, 0, 2, 1],
            &[53, 1, 2, 6, 4, 0, 0, 0, 0],
        ] {
            assert_eq!(offered(&offer(without), 7, MAC), None, "{without:?}");
        }
    }
}
