//! Datagrams: one socket takes those of all clients, and answers leave by sockets with the address of who answers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::nat::NatOptions;
use culvert_core::listener::StreamInbound;
use culvert_core::packet::{Packet, PacketBatch, PacketConn};
use culvert_core::sockets::Sockets;
use culvert_core::throttle::Throttle;
use culvert_core::udp::{Associations, PacketQueue};
use culvert_core::{
    Dispatch, Inbound, Incoming, Io, Network, Session, SessionId, StartError, StreamServer, Tag, UdpConn,
};
use culvert_os::socket::{UdpOptions, udp_socket};
use culvert_os::udp::{GRO_BUFFER, RecvSlot, enable_original_destination, recv_batch};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::{info, trace, warn};

use crate::fields::listen::Listen;
use crate::nat::{Filter, Key, UdpNat};
use crate::running::Running;

/// Most associations at once where the options say nothing.
const ASSOCIATIONS: usize = 16 << 10;
/// Associations at which ended ones are first looked for.
const CLEAN_AT: usize = 64;
/// Sockets to answer by that an association keeps: a client that speaks with more peers at once pays for new ones.
const REPLY_SOCKETS: usize = 4;

/// Both halves of an inbound on one port.
pub(super) struct Both {
    pub(super) tag: Tag,
    pub(super) streams: Option<StreamInbound>,
    pub(super) packets: Option<PacketListener>,
}

#[async_trait]
impl Inbound for Both {
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
        let started = self.packets.as_ref().map_or(Ok(()), |packets| packets.start(dispatch, port));
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

/// The half for datagrams.
pub(super) struct PacketListener {
    tag: Tag,
    address: SocketAddr,
    options: UdpOptions,
    udp_timeout: Option<Duration>,
    nat: UdpNat,
    running: Running,
}

impl PacketListener {
    pub(super) fn new(tag: Tag, listen: &Listen, nat: &NatOptions) -> Self {
        Self {
            tag,
            address: listen.address,
            options: listen.udp.clone(),
            udp_timeout: listen.udp_timeout,
            nat: UdpNat::from(nat),
            running: Running::default(),
        }
    }

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
        enable_original_destination(socket.as_fd(), address.is_ipv6()).map_err(failed)?;
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        info!("inbound/{}: udp server started at {local}", self.tag);
        let options = UdpOptions { reuse_addr: true, ..self.options.clone() };
        let serving = Serving {
            tag: self.tag.clone(),
            local,
            udp_timeout: self.udp_timeout,
            nat: self.nat,
            socket,
            slots: 1,
            options: Arc::new(options),
            associations: Associations::new(self.nat.limit(ASSOCIATIONS).min(dispatch.limit() / 4)),
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

/// The task that receives for all clients.
struct Serving {
    tag: Tag,
    local: SocketAddr,
    udp_timeout: Option<Duration>,
    nat: UdpNat,
    socket: UdpSocket,
    /// Messages the next receive has room for; grows while they all fill up.
    slots: usize,
    /// For the sockets that answers leave by.
    options: Arc<UdpOptions>,
    associations: Associations<Key>,
    clean_at: usize,
    dispatch: Dispatch,
}

impl Serving {
    /// Runs until it is dropped; no error of the socket ends it.
    async fn run(mut self) {
        let trouble = Throttle::new(Duration::from_secs(10));
        loop {
            let received = match self.socket.readable().await {
                Ok(()) => self.receive(),
                Err(error) => Err(error),
            };
            match received {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    if let Some(more) = trouble.allow() {
                        warn!(held_back = more, "inbound/{}: receive: {error}; trying again", self.tag);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Receives whatever is there, and delivers it.
    fn receive(&mut self) -> io::Result<()> {
        let count = self.slots;
        let mut bufs: Vec<Buf> = (0..count).map(|_| Buf::new(GRO_BUFFER, 0, 0)).collect();
        let mut slots: Vec<RecvSlot<'_>> =
            bufs.iter_mut().map(|buf| RecvSlot::new(&mut buf.spare_mut()[..GRO_BUFFER])).collect();
        let received =
            self.socket.try_io(Interest::READABLE, || recv_batch(self.socket.as_fd(), &mut slots))?;
        let metas: Vec<_> = slots[..received].iter().map(|slot| slot.meta).collect();
        self.slots = if received == count { (count * 2).min(PacketBatch::MAX / 2) } else { received.max(1) };
        for (mut data, meta) in bufs.into_iter().zip(metas) {
            let Some(target) = meta.original_destination.filter(|_| !meta.truncated) else { continue };
            let is_here = target.ip() == self.local.ip() || target.ip().is_loopback();
            if target.port() == self.local.port() && is_here {
                trace!("inbound/{}: datagram of {} to the listener itself", self.tag, meta.source);
                continue;
            }
            data.grow(meta.len);
            self.deliver(meta.source, target, Packet::new(data, target.into()));
        }
        Ok(())
    }

    fn deliver(&mut self, client: SocketAddr, target: SocketAddr, packet: Packet) {
        let key = self.nat.key(client, target);
        let Some(queue) = self.associations.deliver(&key, packet) else { return };
        if self.dispatch.is_full() {
            return; // the queue is dropped, and the client's next packet tries again
        }
        let session = Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: self.tag.clone(),
            user: None,
            source: client,
            target: target.into(),
            sniffed: None,
            alpn: None,
        };
        let packets = Answering::new(queue, client, Arc::clone(&self.options), self.nat.filter());
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

/// One client's association.
struct Answering {
    queue: PacketQueue,
    client: SocketAddr,
    filter: Filter,
    options: Arc<UdpOptions>,
    /// By the address they answer from, the one used last at the end.
    sockets: VecDeque<(SocketAddr, UdpConn)>,
}

impl Answering {
    fn new(queue: PacketQueue, client: SocketAddr, options: Arc<UdpOptions>, filter: Filter) -> Self {
        Self { queue, client, filter, options, sockets: VecDeque::new() }
    }

    /// Puts the socket that answers for `from` at the end.
    fn socket(&mut self, from: SocketAddr) -> io::Result<()> {
        if let Some(at) = self.sockets.iter().position(|(address, _)| *address == from) {
            if let Some(socket) = self.sockets.remove(at) {
                self.sockets.push_back(socket);
            }
            return Ok(());
        }
        let socket = udp_socket(&self.options, from).map_err(io::Error::other)?;
        if self.sockets.len() == REPLY_SOCKETS {
            self.sockets.pop_front();
        }
        self.sockets.push_back((from, UdpConn::framed(UdpSocket::from_std(socket)?)));
        Ok(())
    }
}

impl PacketConn for Answering {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let received = self.queue.poll_recv(cx, room, batch);
        if !self.filter.is_open() && matches!(received, Poll::Ready(Ok(()))) {
            batch.iter().for_each(|packet| self.filter.sent_to(&packet.peer));
        }
        received
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        while let Some(first) = batch.pop() {
            if !self.filter.lets_in(&first.peer) {
                trace!("answer of {} dropped: nobody has asked it", first.peer);
                continue;
            }
            let from = first.peer.socket_addr().filter(|from| from.is_ipv4() == self.client.is_ipv4());
            let Some(from) = from else {
                continue; // a name or another family: the client cannot have asked it
            };
            if let Err(error) = self.socket(from) {
                trace!("answer of {from} dropped: {error}");
                continue;
            }
            let Some((_, socket)) = self.sockets.back_mut() else { continue };
            let mut leaving = PacketBatch::new();
            leaving.push(Packet { peer: self.client.into(), ..first });
            while batch.front().is_some_and(|next| next.peer.socket_addr() == Some(from))
                && let Some(next) = batch.pop()
            {
                leaving.push(Packet { peer: self.client.into(), ..next });
            }
            match socket.poll_send(cx, &mut leaving) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => {
                    // What has not left is offered again.
                    let rest: Vec<_> = std::iter::from_fn(|| leaving.pop()).collect();
                    for packet in rest.into_iter().rev() {
                        batch.put_back(Packet { peer: from.into(), ..packet });
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
