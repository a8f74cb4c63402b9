//! The client: asks a server for connections and associations.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use culvert_core::conn::Prefixed;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Half, Network, Outbound, PacketBatch, PacketConn, Session,
    Strategy, StreamConn, Tag,
};
use culvert_wire::{BufChain, DecodeError, Host, Reader, Room, Target};
use tokio::io::{AsyncRead, ReadBuf};

use super::codec::{
    Command, Greeting, Login, MAX_MESSAGE, Method, Reply, ReplyCode, Request, Request4, decode_login_status,
    decode_method, decode_reply4,
};
use super::udp::{decapsulate, encapsulate, room};
use crate::handshake::{dial_error, send, within_limit, write_error};
use crate::uot;

/// What is spoken to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    V4,
    V4a,
    V5,
}

/// The outbound.
pub(super) struct Client {
    pub(super) tag: Tag,
    pub(super) dialer: Dialer,
    pub(super) server: Target,
    pub(super) version: Version,
    pub(super) user: Box<[u8]>,
    pub(super) password: Box<[u8]>,
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) udp_over_tcp: Option<uot::Version>,
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        match network {
            Network::Tcp => self.tcp,
            Network::Udp => self.udp && (self.version == Version::V5 || self.udp_over_tcp.is_some()),
            Network::Icmp => false,
        }
    }

    /// The server gets nothing of `early` before it has answered: there are servers that lose what comes along with
    /// the request.
    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.connect(session, &session.target).await
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        match self.udp_over_tcp {
            Some(version) => {
                let conn = self.connect(session, &version.magic_target()).await?;
                Ok(Box::new(uot::UotConn::client(version, conn, &session.target)))
            }
            None => within_limit("socks5 association", self.associate(session)).await,
        }
    }
}

impl Client {
    async fn connect(&self, session: &Session, target: &Target) -> Result<BoxStream, DialError> {
        match (self.version, target.host.ip()) {
            (Version::V5, _) => {
                let conn = self.dialer.connect(session, &self.server).await?;
                within_limit("socks5 handshake", self.connect_5(conn, target)).await
            }
            (Version::V4 | Version::V4a, Some(IpAddr::V4(ip))) => {
                let mut request = Vec::new();
                Request4::encode(ip, target.port, &self.user, &mut request);
                self.connect_4(session, &request).await
            }
            (Version::V4a, _) => {
                let mut request = Vec::new();
                Request4::encode_name(&target.host, target.port, &self.user, &mut request);
                self.connect_4(session, &request).await
            }
            (Version::V4, Some(IpAddr::V6(_))) => Err(DialError::Target {
                target: target.clone(),
                reason: "socks4 carries IPv4 addresses only",
            }),
            (Version::V4, None) => self.connect_4_resolved(session, target).await,
        }
    }

    /// Version 4 has no names: they are resolved here, and their addresses tried in turn.
    async fn connect_4_resolved(&self, session: &Session, target: &Target) -> Result<BoxStream, DialError> {
        let Host::Domain(name) = &target.host else {
            return Err(DialError::Target { target: target.clone(), reason: "not a name" });
        };
        let addresses = self.dialer.resolver.resolve(name, Strategy::Ipv4Only).await;
        let addresses = addresses.map_err(|source| DialError::Resolve { name: name.clone(), source })?;
        let mut last = DialError::Target { target: target.clone(), reason: "has no IPv4 address" };
        for ip in addresses {
            let IpAddr::V4(ip) = ip else { continue };
            let mut request = Vec::new();
            Request4::encode(ip, target.port, &self.user, &mut request);
            match self.connect_4(session, &request).await {
                Ok(conn) => return Ok(conn),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_4(&self, session: &Session, request: &[u8]) -> Result<BoxStream, DialError> {
        let mut conn = self.dialer.connect(session, &self.server).await?;
        within_limit("socks4 handshake", async {
            send(&mut conn, request).await.map_err(write_error("socks4 request"))?;
            let mut early = BufChain::new();
            let granted = read(&mut conn, &mut early, "socks4 reply", decode_reply4).await?;
            if !granted {
                let reason = "request rejected".to_owned();
                return Err(DialError::Refused { reason, kind: io::ErrorKind::ConnectionRefused });
            }
            Ok(Prefixed::wrap(early, conn))
        })
        .await
    }

    async fn connect_5(&self, mut conn: BoxStream, target: &Target) -> Result<BoxStream, DialError> {
        let mut early = BufChain::new();
        self.authenticate(&mut conn, &mut early).await?;
        request_5(&mut conn, &mut early, Command::Connect, target).await?;
        // A server may speak first and at once: what came behind the reply is the target's.
        Ok(Prefixed::wrap(early, conn))
    }

    /// Offers exactly one method, the one that the options are for.
    async fn authenticate(&self, conn: &mut BoxStream, early: &mut BufChain) -> Result<(), DialError> {
        const PHASE: &str = "socks5 greeting";
        let method = if self.user.is_empty() { Method::None } else { Method::Password };
        let mut message = Vec::new();
        Greeting::encode_one(method, &mut message);
        send(conn, &message).await.map_err(write_error(PHASE))?;
        match read(conn, early, PHASE, decode_method).await? {
            Method::None => return Ok(()),
            Method::Password if method == Method::Password => {}
            Method::Password | Method::Unacceptable => return Err(DialError::Credentials),
        }
        message.clear();
        Login::encode(&self.user, &self.password, &mut message);
        send(conn, &message).await.map_err(write_error("socks5 login"))?;
        match read(conn, early, "socks5 login", decode_login_status).await? {
            true => Ok(()),
            false => Err(DialError::Credentials),
        }
    }

    async fn associate(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let mut control = self.dialer.connect(session, &self.server).await?;
        let mut early = BufChain::new();
        self.authenticate(&mut control, &mut early).await?;
        // We cannot know what address the server will see our datagrams come from.
        let from_anywhere = Target::from(SocketAddr::from(([0, 0, 0, 0], 0)));
        let reply = request_5(&mut control, &mut early, Command::UdpAssociate, &from_anywhere).await?;
        let relay = self.relay(&control, reply);
        let packets = self.dialer.packets(session, &relay).await?;
        Ok(Box::new(ServerPackets { control, packets, relay, peer: session.target.clone(), framed: 0 }))
    }

    /// Where the server takes datagrams. One that names no usable address means the one we have reached it by.
    fn relay(&self, control: &BoxStream, reply: Reply) -> Target {
        let host = match reply.host {
            Some(Host::Ip(ip)) if !ip.is_unspecified() => Host::Ip(ip),
            Some(Host::Domain(name)) => Host::Domain(name),
            Some(Host::Ip(_)) | None => {
                let peer = control.kernel_socket(Half::Write).and_then(|socket| socket.peer_addr().ok());
                peer.map_or_else(|| self.server.host.clone(), |peer| Host::from(peer.ip()))
            }
        };
        Target { host, port: reply.port }
    }
}

/// Sends a request and returns the reply, which says yes.
async fn request_5(
    conn: &mut BoxStream,
    early: &mut BufChain,
    command: Command,
    target: &Target,
) -> Result<Reply, DialError> {
    const PHASE: &str = "socks5 request";
    let mut message = Vec::new();
    Request::encode(command, target, &mut message);
    send(conn, &message).await.map_err(write_error(PHASE))?;
    let reply = read(conn, early, PHASE, Reply::decode).await?;
    match reply.code {
        ReplyCode::SUCCEEDED => Ok(reply),
        code => Err(DialError::Refused { reason: code.to_string(), kind: code.kind() }),
    }
}

async fn read<T>(
    conn: &mut BoxStream,
    early: &mut BufChain,
    phase: &'static str,
    decode: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, DialError> {
    read_message(conn, early, MAX_MESSAGE, decode).await.map_err(dial_error(phase))
}

/// Datagrams through a server. They live as long as the connection on which they were asked for, both ways.
struct ServerPackets {
    control: BoxStream,
    packets: BoxPackets,
    relay: Target,
    /// Where most packets go, for the room that is asked for.
    peer: Target,
    /// Packets at the front of the batch being sent that have their heads.
    framed: usize,
}

impl PacketConn for ServerPackets {
    fn room(&self) -> Room {
        room(Some(&self.peer), self.packets.room())
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let mut byte = [0];
        match Pin::new(&mut self.control).poll_read(cx, &mut ReadBuf::new(&mut byte)) {
            // The end, an error, or something that the protocol does not have.
            Poll::Ready(_) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Pending => {}
        }
        loop {
            let old = batch.len();
            ready!(self.packets.poll_recv(cx, room, batch))?;
            let relay = &self.relay;
            // A relay known by name only has an address that the layer below knows.
            let accept = |source: &Target| relay.host.domain().is_some() || source == relay;
            decapsulate(batch, old, room, accept);
            if batch.len() > old {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        encapsulate(batch, self.framed, &self.relay);
        let sent = self.packets.poll_send(cx, batch);
        self.framed = batch.len();
        sent
    }
}
