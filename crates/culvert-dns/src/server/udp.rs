//! DNS over UDP, and over TCP what does not fit.
//!
//! Questions share one connected socket, whose port is the system's random choice; a socket takes questions for ten
//! seconds and then makes room for another port, so that a forger has little time to find it. Through a `detour` the
//! datagrams go by the outbound's packet conn, which a task drives.
//!
//! Sources: RFC 1035 section 4.2.1, RFC 5452 (ports and ids), RFC 7766 section 5 (TCP after truncation).

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{BoxPackets, Chain, Dialer, Network, Packet, PacketBatch, PacketConn, Tag, timeouts};
use culvert_os::socket::udp_socket;
use culvert_wire::{Buf, Host, Room, Target};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::link::{Link, Out, QUEUE};
use super::slot::Slot;
use super::stream::TcpServer;
use super::{DnsServer, session};
use crate::DnsError;
use crate::message::{Query, Reply};
use crate::plain::{self, DATAGRAM};

/// How long one port takes questions.
const PORT_LIFE: Duration = Duration::from_secs(10);
/// The same for an association through a detour, which costs more to make and has its port elsewhere.
const DETOUR_LIFE: Duration = Duration::from_secs(300);
/// How long a socket without questions stays.
const IDLE: Duration = timeouts::UDP_IDLE_QUERY;

/// A server of type `udp`.
pub struct UdpServer {
    tag: Tag,
    dialer: Dialer,
    target: Target,
    name: Arc<str>,
    slot: Slot,
    stream: TcpServer,
}

impl UdpServer {
    /// The server at `target`.
    #[must_use]
    pub fn new(tag: Tag, dialer: Dialer, target: Target) -> Self {
        Self {
            name: tag.to_string().into(),
            stream: TcpServer::new(tag.clone(), dialer.clone(), target.clone()),
            slot: Slot::default(),
            tag,
            dialer,
            target,
        }
    }

    async fn open(&self) -> Result<Arc<Link>, DnsError> {
        if self.dialer.detour.is_some() {
            let session = session(&self.tag, Network::Udp, &self.target);
            let packets = self.dialer.packets(&session, &self.target).await;
            let packets = packets.map_err(|error| self.dial_failed(&error))?;
            return Ok(self.drive(packets));
        }
        let mut last = DnsError::NoServer;
        for address in self.addresses().await? {
            match self.connect(address).await {
                Ok(socket) => return Ok(self.receive(socket)),
                Err(error) => last = DnsError::network(&self.name, error),
            }
        }
        Err(last)
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, DnsError> {
        let name = match &self.target.host {
            Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, self.target.port)]),
            Host::Domain(name) => name,
        };
        let addresses = self.dialer.resolver.resolve(name, self.dialer.strategy).await;
        let addresses = addresses.map_err(|error| self.dial_failed(&error))?;
        Ok(addresses.into_iter().map(|ip| SocketAddr::new(ip, self.target.port)).collect())
    }

    /// Fails at once where there is no route, as for IPv6 on an IPv4 host.
    async fn connect(&self, server: SocketAddr) -> io::Result<UdpSocket> {
        let (v4, v6) = self.dialer.udp_bind;
        let bound = if server.is_ipv4() { v4.map(IpAddr::V4) } else { v6.map(IpAddr::V6) };
        let mut local = plain::unspecified(server);
        if let Some(ip) = bound {
            local.set_ip(ip);
        }
        let socket = udp_socket(&self.dialer.udp, local).map_err(plain::into_io)?;
        let socket = UdpSocket::from_std(socket)?;
        socket.connect(server).await?;
        Ok(socket)
    }

    /// A link whose askers send by themselves; the task only receives.
    fn receive(&self, socket: UdpSocket) -> Arc<Link> {
        let socket = Arc::new(socket);
        let link = Arc::new(Link::new(Arc::clone(&self.name), Out::Socket(Arc::clone(&socket))));
        let (name, weak) = (Arc::clone(&self.name), Arc::downgrade(&link));
        tokio::spawn(async move {
            let outcome = receive(&socket, &weak).await;
            if let (Err(error), Some(link)) = (outcome, weak.upgrade()) {
                link.end(&DnsError::network(name, error));
            }
        });
        link
    }

    /// A link over a packet conn, which only one task can use.
    fn drive(&self, packets: BoxPackets) -> Arc<Link> {
        let (queue, questions) = mpsc::channel(QUEUE);
        let link = Arc::new(Link::new(Arc::clone(&self.name), Out::Queue(queue)));
        let (name, weak, target) = (Arc::clone(&self.name), Arc::downgrade(&link), self.target.clone());
        tokio::spawn(async move {
            let (batch, link) = (PacketBatch::new(), weak.clone());
            let driver = Driver { packets, questions, target, batch, link, moved: false };
            if let (Err(error), Some(link)) = (driver.run().await, weak.upgrade()) {
                link.end(&DnsError::network(name, error));
            }
        });
        link
    }

    fn dial_failed(&self, error: &dyn std::error::Error) -> DnsError {
        DnsError::Dial { server: Arc::clone(&self.name), reason: Chain(error).to_string().into() }
    }
}

#[async_trait]
impl DnsServer for UdpServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let life = if self.dialer.detour.is_some() { DETOUR_LIFE } else { PORT_LIFE };
        let reply = self.slot.ask(query, life, || self.open()).await?;
        if reply.is_truncated() { self.stream.exchange(query).await } else { Ok(reply) }
    }

    fn reset(&self) {
        self.slot.forget();
        self.stream.reset();
    }
}

/// Receives until the link is given up, idle, or the socket reports that nobody listens there.
async fn receive(socket: &UdpSocket, link: &Weak<Link>) -> io::Result<()> {
    loop {
        let waited = timeout(IDLE, plain::readable(socket)).await;
        let Some(link) = link.upgrade() else { return Ok(()) };
        match waited {
            Ok(ready) => ready?,
            Err(_) if link.end_if_idle() => return Ok(()),
            Err(_) => continue,
        }
        // The memory is there only while something is.
        let mut buf = Buf::new(DATAGRAM, 0, 0);
        loop {
            match socket.try_recv(&mut buf.spare_mut()[..DATAGRAM]) {
                Ok(length) if link.deliver(&buf.spare_mut()[..length]) => {}
                Ok(_) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "flooded with foreign messages"));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Moves questions and replies through a packet conn.
struct Driver {
    packets: BoxPackets,
    questions: mpsc::Receiver<Vec<u8>>,
    target: Target,
    batch: PacketBatch,
    link: Weak<Link>,
    /// Whether anything moved since the last look at it.
    moved: bool,
}

impl Driver {
    async fn run(mut self) -> io::Result<()> {
        loop {
            match timeout(IDLE, poll_fn(|cx| self.poll(cx))).await {
                Ok(end) => return end,
                Err(_) if std::mem::take(&mut self.moved) => {}
                Err(_) => match self.link.upgrade() {
                    Some(link) if !link.end_if_idle() => {}
                    _ => return Ok(()),
                },
            }
        }
    }

    /// Ready at the end of the conn or of the link.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.batch.len() < PacketBatch::MAX {
                match self.questions.poll_recv(cx) {
                    Poll::Ready(Some(message)) => {
                        self.moved = true;
                        self.batch.push(Packet::new(Buf::copied(&message), self.target.clone()));
                    }
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            let full = self.batch.len() == PacketBatch::MAX;
            if self.packets.poll_send(cx, &mut self.batch)?.is_pending() || !full {
                break;
            }
        }
        loop {
            let mut received = PacketBatch::new();
            match self.packets.poll_recv(cx, Room::NONE, &mut received)? {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => {}
            }
            let Some(link) = self.link.upgrade() else { return Poll::Ready(Ok(())) };
            let payloads = received.iter().filter(|packet| self.is_server(packet)).flat_map(Packet::payloads);
            for payload in payloads {
                if !link.deliver(payload) {
                    let flooded = io::Error::new(io::ErrorKind::InvalidData, "flooded with foreign messages");
                    return Poll::Ready(Err(flooded));
                }
            }
        }
    }

    /// A server asked by name answers from an address that only the other end of the detour knows.
    fn is_server(&self, packet: &Packet) -> bool {
        self.target.host.domain().is_some() || packet.peer == self.target
    }
}
