//! The endpoint: started and stopped like an inbound, dialled like an outbound.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use culvert_core::udp::Resolving;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Dispatch, Inbound, Network, Outbound, Session, SessionId,
    StartError, Tag, UdpConn,
};
use culvert_os::netlink::Prefix;
use culvert_stack::{Config, Offloads, Stack};
use culvert_wire::{BufChain, Domain, Host, Target};
use culvert_wireguard::{Device, HEAD, PADDING, PeerId, Routes, Settings, TAG};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::receive::{DetourTo, Receive};
use super::system::System;
use super::tunnel::{Tunnel, TunnelLink};
use super::wire::{Detour, Outer, Wire};
use crate::nat::UdpNat;
use crate::netstack::{self, Clients, Engine, Gate, Ground};

/// Bytes that a peer may send ahead of a reader, and that wait for a peer.
const WINDOW: u32 = 1 << 20;
/// Bytes of the longest train that the kernel takes.
const TRAIN: u32 = 65_507;
/// How long a name that does not resolve is left alone.
const PAUSE: Duration = Duration::from_secs(5);

/// What an endpoint is made of.
pub(super) struct Parts {
    pub(super) tag: Tag,
    pub(super) dialer: Dialer,
    pub(super) settings: Settings,
    /// Of each peer: its name, if its address has to be looked up.
    pub(super) names: Vec<Option<Target>>,
    pub(super) routes: Routes,
    pub(super) addresses: Vec<Prefix>,
    pub(super) mtu: u16,
    pub(super) listen_port: u16,
    pub(super) udp_timeout: Duration,
    pub(super) nat: UdpNat,
    /// With an interface of the system: its name, if that is given, and what is routed into it.
    pub(super) system: Option<(Option<String>, Vec<Prefix>)>,
}

/// What there is while it runs.
#[derive(Default)]
struct Running {
    engine: Option<(Arc<Engine>, Arc<Tunnel>)>,
    /// What dials by the interface of the system.
    dialer: Option<Dialer>,
    tasks: JoinSet<()>,
    local: Vec<SocketAddr>,
}

/// See the module.
pub(super) struct Endpoint {
    parts: Parts,
    /// The routes are the tunnel's while it runs.
    running: Mutex<Running>,
}

impl Endpoint {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self { parts, running: Mutex::default() })
    }

    fn engine(&self) -> Option<(Arc<Engine>, Arc<Tunnel>)> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).engine.clone()
    }

    fn started(&self, target: &Target) -> Result<(Arc<Engine>, Arc<Tunnel>), DialError> {
        self.engine().ok_or_else(|| DialError::Target {
            target: target.clone(),
            reason: "the endpoint is not started",
        })
    }

    /// Our own address of a family.
    fn source(&self, v4: bool) -> Option<IpAddr> {
        self.parts.addresses.iter().map(|prefix| prefix.ip).find(|ip| ip.is_ipv4() == v4)
    }

    async fn resolve(&self, target: &Target) -> Result<Vec<IpAddr>, DialError> {
        match &target.host {
            Host::Ip(ip) => Ok(vec![*ip]),
            Host::Domain(name) => {
                let Dialer { resolver, strategy, .. } = &self.parts.dialer;
                let found = resolver.resolve(name, *strategy).await;
                found.map_err(|source| DialError::Resolve { name: name.clone(), source })
            }
        }
    }

    /// Whether a packet to this address would go anywhere, and from where it would come.
    fn way(&self, tunnel: &Tunnel, target: &Target, ip: IpAddr) -> Result<IpAddr, DialError> {
        let refused = |reason| DialError::Target { target: target.clone(), reason };
        let missing = if ip.is_ipv4() { "missing IPv4 local address" } else { "missing IPv6 local address" };
        let source = self.source(ip.is_ipv4()).ok_or_else(|| refused(missing))?;
        if !tunnel.reaches(ip) {
            return Err(refused("no peer has this address among its allowed IPs"));
        }
        Ok(source)
    }

    async fn connect(
        &self,
        (engine, tunnel): &(Arc<Engine>, Arc<Tunnel>),
        target: &Target,
    ) -> Result<BoxStream, DialError> {
        let failed = |source| DialError::Connect { target: target.clone(), source };
        let mut last = failed(io::ErrorKind::AddrNotAvailable.into());
        for ip in self.resolve(target).await? {
            let outcome = match self.way(tunnel, target, ip) {
                Ok(source) => {
                    let to = SocketAddr::new(ip, target.port);
                    netstack::connect(engine, source, to).await.map_err(failed)
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn stack(&self, connections: usize) -> Stack {
        // As many packets as the kernel takes in one train of datagrams, with the heads that ours mostly have.
        let mtu = u32::from(self.parts.mtu);
        let packets = TRAIN / (mtu.next_multiple_of(PADDING as u32) + (HEAD + TAG) as u32);
        let train = packets.max(1) * (mtu - 52);
        let config = Config {
            mtu: self.parts.mtu,
            offloads: Offloads { checksum: true, tcp_segment: true, udp_segment: true },
            receive_window: WINDOW,
            send_buffer: WINDOW as usize,
            train,
            connections,
            time_wait: Duration::from_secs(1),
            ..Config::default()
        };
        Stack::new(config, Instant::now())
    }

    fn failed(&self, phase: &'static str, source: io::Error) -> StartError {
        StartError::Io { tag: self.parts.tag.clone(), phase, source }
    }
}

#[async_trait]
impl Inbound for Endpoint {
    fn tag(&self) -> &Tag {
        &self.parts.tag
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let Parts { tag, dialer, settings, names, mtu, .. } = &self.parts;
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let device = Device::new(settings, Instant::now(), unix)
            .map_err(|error| self.failed("start", io::Error::other(error)))?;
        let wire = if dialer.detour.is_some() {
            Wire::Detour(Arc::default())
        } else {
            let outer = Outer::bind(dialer, self.parts.listen_port)
                .map_err(|source| StartError::Listen { tag: tag.clone(), source })?;
            Wire::Socket(outer)
        };
        let tunnel = Tunnel::new(device, settings.peers.len(), self.parts.routes.clone(), wire, *mtu);
        let engine = Engine::new(Box::new(TunnelLink(Arc::clone(&tunnel))), self.stack(dispatch.limit()));
        let ground = Ground::Host(self.parts.addresses.clone());
        let timeout = Some(self.parts.udp_timeout);
        let clients = Clients::new(dispatch, self.parts.nat);
        let gate = Gate::new(tag.clone(), Arc::clone(&engine), dispatch.clone(), timeout, ground, clients);
        let name = format!("endpoint/{tag}");
        let (mut tasks, mut local) = (JoinSet::new(), Vec::new());
        let system = match &self.parts.system {
            None => None,
            Some((name, routes)) => {
                let system = System::open(name.as_deref(), *mtu, &self.parts.addresses, routes)
                    .map_err(|error| self.failed("start", io::Error::other(error)))?;
                info!("endpoint/{tag}: interface {}", system.name());
                let (system, tunnel) = (Arc::clone(&system), Arc::clone(&tunnel));
                let (running, of) = (Arc::clone(&system), tag.clone());
                tasks.spawn(async move {
                    if let Err(error) = running.run(tunnel).await {
                        error!("endpoint/{of}: the interface is gone: {error}");
                    }
                });
                Some(system)
            }
        };
        let by_system = system.as_ref().map(|system| self.by(system.name()));
        let receive = Receive::new(name.clone(), Arc::clone(&tunnel), gate, system);
        match &tunnel.wire {
            Wire::Socket(outer) => {
                let bound = outer.socket.local_addr().map_err(|error| self.failed("start", error))?;
                info!("{name}: started at {bound}");
                local.push(bound);
                let conn = UdpConn::joining(Arc::clone(&outer.socket));
                tasks.spawn(receive.on_socket(conn));
            }
            Wire::Detour(detour) => {
                info!("{name}: started");
                tasks.spawn(receive.on_detour(Arc::clone(detour), self.detour(detour)));
            }
        }
        if names.iter().any(Option::is_some) {
            let names =
                Names { name, tunnel: Arc::clone(&tunnel), dialer: dialer.clone(), names: names.clone() };
            tasks.spawn(names.run());
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = Running { engine: Some((engine, tunnel)), dialer: by_system, tasks, local };
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).local.clone()
    }

    async fn close(&self) {
        let Running { mut tasks, .. } =
            std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}

impl Endpoint {
    /// What dials by an interface.
    fn by(&self, interface: &str) -> Dialer {
        let own = &self.parts.dialer;
        let mut dialer = Dialer::new(Arc::clone(&own.resolver));
        dialer.strategy = own.strategy;
        dialer.connect_timeout = own.connect_timeout;
        dialer.tcp.bind_interface = Some(interface.to_owned());
        dialer.udp.bind_interface = Some(interface.to_owned());
        dialer
    }

    fn by_system(&self) -> Option<Dialer> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).dialer.clone()
    }

    fn detour(&self, _: &Arc<Detour>) -> DetourTo {
        let Parts { tag, dialer, settings, names, .. } = &self.parts;
        let known = settings.peers.iter().find_map(|peer| peer.endpoint);
        let target = known.map(|known| Target { host: Host::from(known.ip()), port: known.port() });
        let target = target.or_else(|| names.iter().flatten().next().cloned());
        let nowhere = || Target { host: Host::from(IpAddr::from([0, 0, 0, 0])), port: 0 };
        let target = target.unwrap_or_else(nowhere);
        let session = Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: tag.clone(),
            user: None,
            source: SocketAddr::from(([0, 0, 0, 0], 0)),
            target: target.clone(),
            sniffed: None,
            alpn: None,
        };
        DetourTo { dialer: dialer.clone(), session, target }
    }
}

#[async_trait]
impl Outbound for Endpoint {
    fn tag(&self) -> &Tag {
        &self.parts.tag
    }

    fn carries(&self, network: Network) -> bool {
        network != Network::Icmp
    }

    async fn dial(&self, session: &Session, _: &mut BufChain) -> Result<BoxStream, DialError> {
        let running = self.started(&session.target)?;
        if let Some(dialer) = self.by_system() {
            return dialer.connect(session, &session.target).await;
        }
        let limit = self.parts.dialer.connect_timeout;
        match tokio::time::timeout(limit, self.connect(&running, &session.target)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let source = io::ErrorKind::TimedOut.into();
                Err(DialError::Connect { target: session.target.clone(), source })
            }
        }
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let (engine, tunnel) = self.started(&session.target)?;
        if let Some(dialer) = self.by_system() {
            return dialer.packets(session, &session.target).await;
        }
        if let Host::Ip(ip) = &session.target.host {
            self.way(&tunnel, &session.target, *ip)?;
        }
        let sources = [true, false].into_iter().filter_map(|v4| self.source(v4));
        let conn = netstack::bind(&engine, sources)
            .map_err(|source| DialError::Handshake { phase: "open UDP association", source })?;
        let Dialer { resolver, strategy, .. } = &self.parts.dialer;
        Ok(Box::new(Resolving::new(conn, Arc::clone(resolver), *strategy)))
    }
}

/// Looks up where peers are: at the start, and whenever one does not answer.
struct Names {
    name: String,
    tunnel: Arc<Tunnel>,
    dialer: Dialer,
    names: Vec<Option<Target>>,
}

impl Names {
    async fn run(self) {
        let mut open: Vec<usize> = (0..self.names.len()).collect();
        loop {
            let mut again = Vec::new();
            for at in open {
                if let Some(Target { host: Host::Domain(name), port }) = &self.names[at]
                    && !self.look_up(PeerId(at), name, *port).await
                {
                    again.push(at);
                }
            }
            if again.is_empty() {
                self.tunnel.retry.notified().await;
            } else {
                let _ = tokio::time::timeout(PAUSE, std::future::pending::<()>()).await;
            }
            again.extend(self.tunnel.take_retries().into_iter().map(|PeerId(at)| at));
            again.sort_unstable();
            again.dedup();
            open = again;
        }
    }

    async fn look_up(&self, peer: PeerId, name: &Domain, port: u16) -> bool {
        let found = self.dialer.resolver.resolve(name, self.dialer.strategy).await;
        let ip = match found {
            Ok(all) => all.first().copied(),
            Err(error) => {
                warn!("{}: peer {name}: {}", self.name, culvert_core::Chain(&error));
                return false;
            }
        };
        let Some(ip) = ip else { return false };
        self.tunnel.with(|device, now| {
            let first = device.endpoint(peer).is_none();
            device.set_endpoint(peer, SocketAddr::new(ip, port));
            // What has waited for the name has been dropped; a sign of life makes the way ready.
            if first {
                device.keepalive(peer, now);
            }
        });
        self.tunnel.flush();
        true
    }
}
