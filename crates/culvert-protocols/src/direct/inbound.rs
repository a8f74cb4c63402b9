//! One port to one target.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::listener::StreamInbound;
use culvert_core::packet::{PacketBatch, PacketConn};
use culvert_core::sockets::Sockets;
use culvert_core::throttle::Throttle;
use culvert_core::udp::{Associations, ClientPackets};
use culvert_core::{
    BoxStream, Dispatch, Handshake, Inbound, Incoming, Io, Network, ServeError, Session, SessionId,
    StartError, StreamServer, Tag, UdpConn,
};
use culvert_os::socket::UdpOptions;
use culvert_wire::{BufChain, Host, Room, Target};
use tokio::net::UdpSocket;
use tracing::{info, warn};

use crate::fields::listen::Listen;
use crate::running::Running;

/// Most clients that can have an association at once.
const ASSOCIATIONS: usize = 16 << 10;

/// What replaces the parts of the address that a client connected to.
#[derive(Clone)]
pub(super) struct Override {
    pub(super) host: Option<Host>,
    pub(super) port: Option<u16>,
}

impl Override {
    fn apply(&self, to: Target) -> Target {
        Target { host: self.host.clone().unwrap_or(to.host), port: self.port.unwrap_or(to.port) }
    }
}

/// The inbound: a TCP listener, a UDP socket, or both.
pub(super) struct Listener {
    tag: Tag,
    streams: Option<StreamInbound>,
    packets: Option<PacketListener>,
}

impl Listener {
    pub(super) fn new(tag: Tag, listen: Listen, [tcp, udp]: [bool; 2], target: Override) -> Self {
        let server = Arc::new(Server { target: target.clone() });
        let streams = tcp.then(|| StreamInbound::new(tag.clone(), listen.address, listen.tcp, server));
        let packets = udp.then(|| PacketListener {
            tag: tag.clone(),
            address: listen.address,
            options: listen.udp,
            udp_timeout: listen.udp_timeout,
            target,
            running: Running::default(),
        });
        Self { tag, streams, packets }
    }
}

#[async_trait]
impl Inbound for Listener {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn open(&self, sockets: &Sockets) -> Result<(), StartError> {
        let streams = self.streams.as_ref().map(|streams| streams.open_at(sockets)).transpose()?;
        let port = streams.map(|address| address.port());
        self.packets.as_ref().map_or(Ok(()), |packets| packets.open(sockets, port))
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let mut port = None;
        if let Some(streams) = &self.streams {
            streams.start(dispatch).await?;
            port = streams.local_addrs().first().map(SocketAddr::port);
        }
        let Some(packets) = &self.packets else { return Ok(()) };
        let started = packets.start(dispatch, port);
        if started.is_err() {
            self.close().await;
        }
        started
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        let streams = self.streams.iter().flat_map(StreamInbound::local_addrs);
        streams.chain(self.packets.as_ref().and_then(PacketListener::local_addr)).collect()
    }

    async fn close(&self) {
        if let Some(streams) = &self.streams {
            streams.close().await;
        }
        if let Some(packets) = &self.packets {
            packets.close().await;
        }
    }

    fn stream_server(&self) -> Option<Arc<dyn StreamServer>> {
        self.streams.as_ref()?.stream_server()
    }
}

struct Server {
    target: Override,
}

#[async_trait]
impl StreamServer for Server {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        _handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let target = self.target.apply(session.target.clone());
        let session = Session { target, ..session };
        dispatch.submit(Incoming {
            session,
            io: Io::Stream(conn),
            early: BufChain::new(),
            reply: None,
            udp_timeout: None,
        });
        Ok(())
    }
}

/// One socket for all clients; each client address is an association.
struct PacketListener {
    tag: Tag,
    address: SocketAddr,
    options: UdpOptions,
    udp_timeout: Option<Duration>,
    target: Override,
    running: Running,
}

impl PacketListener {
    /// Opens the socket ahead of the start.
    fn open(&self, sockets: &Sockets, port: Option<u16>) -> Result<(), StartError> {
        let opened = sockets.open_udp(&self.options, self.address(port));
        opened.map_err(|source| StartError::Listen { tag: self.tag.clone(), source })
    }

    /// Where a free port was asked for, both halves of the inbound have the same: `port`, if the other has one already.
    fn address(&self, port: Option<u16>) -> SocketAddr {
        let mut address = self.address;
        address.set_port(port.unwrap_or(address.port()));
        address
    }

    /// Begins to serve; `port` as for the socket.
    fn start(&self, dispatch: &Dispatch, port: Option<u16>) -> Result<(), StartError> {
        let address = self.address(port);
        let (socket, hold) = dispatch
            .sockets()
            .udp(&self.options, address)
            .map_err(|source| StartError::Listen { tag: self.tag.clone(), source })?;
        let failed = |source| StartError::Io { tag: self.tag.clone(), phase: "listen for packets", source };
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        info!("inbound/{}: udp server started at {local}", self.tag);
        let serving = Serving {
            tag: self.tag.clone(),
            target: self.target.apply(local.into()),
            udp_timeout: self.udp_timeout,
            conn: UdpConn::new(socket),
            // Datagrams cost their sender nothing, not even an address of its own: they must not take the places of all.
            associations: Associations::new(ASSOCIATIONS.min(dispatch.limit() / 4)),
            clean_at: CLEAN_AT,
            dispatch: dispatch.clone(),
        };
        let task = tokio::spawn(async move {
            let _hold = hold;
            serving.run().await;
        });
        self.running.set(local, task, ());
        Ok(())
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.running.local_addr()
    }

    async fn close(&self) {
        self.running.stop().await;
    }
}

/// Associations at which ended ones are first looked for.
const CLEAN_AT: usize = 64;

/// The task that receives for all clients.
struct Serving {
    tag: Tag,
    target: Target,
    udp_timeout: Option<Duration>,
    conn: UdpConn,
    associations: Associations<SocketAddr>,
    /// When there are this many associations, those that have ended are forgotten.
    clean_at: usize,
    dispatch: Dispatch,
}

impl Serving {
    /// Runs until it is dropped; no error of the socket ends it.
    async fn run(mut self) {
        let trouble = Throttle::new(Duration::from_secs(10));
        let mut batch = PacketBatch::new();
        loop {
            let received = std::future::poll_fn(|cx| self.conn.poll_recv(cx, Room::NONE, &mut batch)).await;
            if let Err(error) = received {
                if let Some(more) = trouble.allow() {
                    warn!(held_back = more, "inbound/{}: receive: {error}; trying again", self.tag);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            while let Some(packet) = batch.pop() {
                let Some(client) = packet.peer.socket_addr() else { continue };
                self.deliver(client, culvert_core::Packet { peer: self.target.clone(), ..packet });
            }
        }
    }

    fn deliver(&mut self, client: SocketAddr, packet: culvert_core::Packet) {
        let Some(queue) = self.associations.deliver(&client, packet) else { return };
        if self.dispatch.is_full() {
            return; // the queue is dropped, and the client's next packet tries again
        }
        let session = Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: self.tag.clone(),
            user: None,
            source: client,
            target: self.target.clone(),
            sniffed: None,
            alpn: None,
        };
        let packets = ClientPackets::new(queue, Arc::clone(self.conn.socket()), client);
        self.dispatch.submit(Incoming {
            session,
            io: Io::Packets(Box::new(packets)),
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.udp_timeout,
        });
        if self.associations.len() >= self.clean_at {
            self.associations.forget_ended();
            self.clean_at = CLEAN_AT.max(self.associations.len() * 2);
        }
    }
}
