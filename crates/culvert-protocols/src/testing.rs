//! What the tests of protocols share: a dispatch whose sessions end in the hands of the test.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use culvert_core::dispatch::{Decision, Router};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::flow::Way;
use culvert_core::handshake::{Handshakes, Limits};
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Dispatch, Flows, Incoming, Network, Outbound, Packet,
    PacketBatch, PacketConn, ResolveError, Resolver, ServeError, Session, SessionId, Strategy, StreamServer,
    Tag,
};
use culvert_wire::{BufChain, Domain, Room, Target};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What a session became.
pub(crate) enum Dialled {
    /// A stream; this is the target's end.
    Stream(Duplex),
    /// An association; this is the far end.
    Packets(MemoryPackets),
}

/// A session that has reached an outbound.
pub(crate) struct Arrived {
    pub(crate) session: Session,
    pub(crate) io: Dialled,
}

impl Arrived {
    pub(crate) fn stream(self) -> Duplex {
        match self.io {
            Dialled::Stream(stream) => stream,
            Dialled::Packets(_) => panic!("an association arrived"),
        }
    }

    pub(crate) fn packets(self) -> MemoryPackets {
        match self.io {
            Dialled::Packets(packets) => packets,
            Dialled::Stream(_) => panic!("a stream arrived"),
        }
    }
}

/// A dispatch, and where its sessions arrive.
pub(crate) struct World {
    pub(crate) dispatch: Dispatch,
    pub(crate) arrivals: mpsc::UnboundedReceiver<Arrived>,
}

impl World {
    /// One in which every dial succeeds.
    pub(crate) fn new() -> Self {
        Self::deciding(|_| Ok(()))
    }

    /// One in which a dial fails as `verdict` says.
    pub(crate) fn deciding(
        verdict: impl Fn(&Session) -> Result<(), DialError> + Send + Sync + 'static,
    ) -> Self {
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let outbound =
            Arc::new(ToTest { tag: Tag::new("direct", "test"), arrived, verdict: Box::new(verdict) });
        let dispatch = Dispatch::new(Flows::new(), Handshakes::new(Limits::default()), 10_000);
        dispatch.set_router(Arc::new(Always(outbound)));
        Self { dispatch, arrivals }
    }

    /// The next session.
    pub(crate) async fn next(&mut self) -> Arrived {
        self.arrivals.recv().await.expect("the dispatch lives")
    }

    /// Runs `server` on one end of a stream in memory and returns the other.
    pub(crate) fn serve(
        &self,
        server: &Arc<dyn StreamServer>,
    ) -> (Duplex, JoinHandle<Result<(), ServeError>>) {
        let (near, far) = duplex(64 << 10);
        (near, self.serve_on(server, Box::new(far), "192.0.2.7:5000".parse().unwrap()))
    }

    pub(crate) fn serve_on(
        &self,
        server: &Arc<dyn StreamServer>,
        conn: BoxStream,
        source: SocketAddr,
    ) -> JoinHandle<Result<(), ServeError>> {
        let handshake = self.dispatch.handshakes().enter(source.ip());
        let (server, dispatch) = (Arc::clone(server), self.dispatch.clone());
        let session = Session { source, ..session("inbound.test:1") };
        tokio::spawn(async move { server.serve(conn, session, handshake, &dispatch).await })
    }

    /// An outbound whose dials are served by `server`, whatever the target.
    pub(crate) fn upstream(&self, server: &Arc<dyn StreamServer>) -> Arc<dyn Outbound> {
        Arc::new(ToServer {
            tag: Tag::new("direct", "server"),
            server: Arc::clone(server),
            dispatch: self.dispatch.clone(),
        })
    }
}

/// A dialer that reaches everything by `upstream`.
pub(crate) fn dialer(upstream: Arc<dyn Outbound>) -> Dialer {
    Dialer { detour: Some(upstream), ..Dialer::new(Arc::new(NoNames)) }
}

/// For inbounds that dial nobody.
pub(crate) fn no_dialer(_: &culvert_config::options::dial::DialOptions) -> Result<Dialer, crate::BuildError> {
    Ok(Dialer::new(Arc::new(NoNames)))
}

/// A dialer that goes straight to addresses.
pub(crate) fn direct() -> Dialer {
    Dialer::new(Arc::new(NoNames))
}

/// Whom to trust: nobody.
pub(crate) fn store() -> Arc<culvert_tls::Store> {
    let settings =
        culvert_tls::StoreSettings { base: culvert_tls::settings::StoreBase::None, ..Default::default() };
    culvert_tls::Store::new(settings)
}

pub(crate) fn session(target: &str) -> Session {
    Session {
        id: SessionId::next(),
        network: Network::Tcp,
        inbound: Tag::new("mixed", "in"),
        user: None,
        source: "192.0.2.7:5000".parse().unwrap(),
        target: self::target(target),
        sniffed: None,
        alpn: None,
    }
}

pub(crate) fn target(text: &str) -> Target {
    Target::parse(text, None).expect("a target")
}

/// Sends single datagrams.
pub(crate) async fn send_packets(conn: &mut (impl PacketConn + ?Sized), packets: &[(&str, &[u8])]) {
    let room = conn.room();
    let mut batch = PacketBatch::new();
    for (peer, payload) in packets {
        let mut data = culvert_wire::Buf::new(payload.len(), room.head, room.tail);
        data.append(payload);
        batch.push(Packet::new(data, target(peer)));
    }
    std::future::poll_fn(|cx| conn.poll_send(cx, &mut batch)).await.unwrap();
}

/// Receives one datagram.
pub(crate) async fn recv_packet(
    conn: &mut (impl PacketConn + ?Sized),
    waiting: &mut PacketBatch,
) -> (String, Vec<u8>) {
    if waiting.is_empty() {
        std::future::poll_fn(|cx| conn.poll_recv(cx, Room { head: 30, tail: 20, max: usize::MAX }, waiting))
            .await
            .unwrap();
    }
    let packet = waiting.pop().unwrap();
    (packet.peer.to_string(), packet.data.to_vec())
}

struct Always(Arc<dyn Outbound>);

#[async_trait]
impl Router for Always {
    async fn decide(&self, _incoming: &mut Incoming) -> Decision {
        let way = Way { rule: "test".into(), chain: vec![] };
        Decision::Dial { outbound: Arc::clone(&self.0), way, udp_idle: None }
    }
}

type Verdict = Box<dyn Fn(&Session) -> Result<(), DialError> + Send + Sync>;

struct ToTest {
    tag: Tag,
    arrived: mpsc::UnboundedSender<Arrived>,
    verdict: Verdict,
}

#[async_trait]
impl Outbound for ToTest {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        (self.verdict)(session)?;
        let (near, far) = duplex(64 << 10);
        let _ = self.arrived.send(Arrived { session: session.clone(), io: Dialled::Stream(far) });
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        (self.verdict)(session)?;
        let (near, far) = memory_packets();
        let _ = self.arrived.send(Arrived { session: session.clone(), io: Dialled::Packets(far) });
        Ok(Box::new(near))
    }
}

struct ToServer {
    tag: Tag,
    server: Arc<dyn StreamServer>,
    dispatch: Dispatch,
}

#[async_trait]
impl Outbound for ToServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        network == Network::Tcp
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        let (near, far) = duplex(64 << 10);
        let (server, dispatch, session) = (Arc::clone(&self.server), self.dispatch.clone(), session.clone());
        let handshake = dispatch.handshakes().enter(session.source.ip());
        tokio::spawn(async move { server.serve(Box::new(far), session, handshake, &dispatch).await });
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

pub(crate) struct NoNames;

#[async_trait]
impl Resolver for NoNames {
    async fn resolve(
        &self,
        _name: &Domain,
        _strategy: Strategy,
    ) -> Result<Vec<std::net::IpAddr>, ResolveError> {
        Err(ResolveError::NotFound)
    }
}

/// Packets in memory.
pub(crate) struct MemoryPackets {
    sender: mpsc::UnboundedSender<Packet>,
    receiver: mpsc::UnboundedReceiver<Packet>,
    waiting: VecDeque<Packet>,
}

pub(crate) fn memory_packets() -> (MemoryPackets, MemoryPackets) {
    let ((a, b), (c, d)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let end = |sender, receiver| MemoryPackets { sender, receiver, waiting: VecDeque::new() };
    (end(a, d), end(c, b))
}

impl PacketConn for MemoryPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        _room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        match self.receiver.poll_recv(cx) {
            Poll::Ready(Some(packet)) => batch.push(packet),
            Poll::Ready(None) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Pending => return Poll::Pending,
        }
        self.waiting.drain(..).for_each(|packet| batch.push(packet));
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, _cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        while let Some(packet) = batch.pop() {
            if self.sender.send(packet).is_err() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Writes `bytes` in pieces of the lengths that `cuts` give, over and over, and lets the other side see each alone.
pub(crate) async fn write_in_pieces(conn: &mut Duplex, mut bytes: &[u8], cuts: &[usize]) -> io::Result<()> {
    use tokio::io::AsyncWriteExt;
    let mut cuts = cuts.iter().copied().cycle();
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(cuts.next().unwrap_or(usize::MAX).clamp(1, bytes.len()));
        conn.write_all(now).await?;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        bytes = later;
    }
    Ok(())
}
