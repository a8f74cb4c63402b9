//! The client: one connection to the server, which carries all streams and associations.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use culvert_config::options::outbound::hysteria::Hysteria2Outbound;
use culvert_core::conn::write_chain;
use culvert_core::{BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Packet, Session, Tag};
use culvert_quic::{BbrProfile, ClientTls, Congestion, Connection, Disguise, Hop, Transport, connect};
use culvert_wire::{BufChain, Reader, Target};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinSet;

use super::auth::{Accepted, Request};
use super::codec::{Head, MAX_MESSAGE, MAX_PAYLOAD, decode_reply, encode_request, padding};
use super::packets::{ClientPackets, Sender, complete};
use super::{disguise, profile, rate, transport};
use crate::fields::server::server;
use crate::fragments::Fragments;
use crate::h3::{self, Background};
use crate::handshake::{dial_error, write_error};
use crate::headed::Headed;
use crate::quic::{self, client_dialer, client_link, is_alive};
use crate::replied::Replied;
use crate::{BuildError, OutboundCx};

/// Connecting and logging in, all attempts together (as sing-box).
const CONNECT: Duration = Duration::from_secs(15);
/// How long one attempt is alone. A server that comes back is found by the next one: the waits within an attempt grow.
const ATTEMPT: Duration = Duration::from_millis(900);
/// Time between hops where no option says so.
const HOP: Duration = Duration::from_secs(30);
/// Packets that wait for one association.
const QUEUE: usize = 512;
/// Datagrams taken at a time.
const DATAGRAMS: usize = 64;

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    core: Arc<Core>,
    tcp: bool,
    udp: bool,
    current: AsyncMutex<Option<Arc<Login>>>,
}

/// What an attempt needs.
struct Core {
    dialer: Dialer,
    server: Target,
    hops: Option<Hops>,
    tls: ClientTls,
    transport: Transport,
    disguise: Option<Arc<dyn Disguise>>,
    password: Box<[u8]>,
    send: Option<u64>,
    receive: Option<u64>,
    profile: BbrProfile,
}

/// Ports to hop between: ranges, and how long each is used.
#[derive(Clone, Debug)]
struct Hops {
    ranges: Vec<(u16, u16)>,
    interval: (Duration, Duration),
}

/// A connection that the server has let in.
struct Login {
    connection: Connection,
    udp: bool,
    associations: Arc<Associations>,
    _background: Background,
    _tasks: JoinSet<()>,
}

/// Who waits for the datagrams of which session.
#[derive(Default)]
struct Associations {
    next: AtomicU32,
    queues: Mutex<HashMap<u32, mpsc::Sender<Packet>>>,
}

impl Associations {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, mpsc::Sender<Packet>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session's place among the associations.
struct Lease {
    associations: Arc<Associations>,
    session: u32,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.associations.lock().remove(&self.session);
    }
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &Hysteria2Outbound) -> Result<Self, BuildError> {
        let hops = Hops::new(options)?;
        let mut server = options.server.clone();
        if let Some(hops) = &hops
            && server.server_port == 0
        {
            // The connection knows its server by one of the ports.
            server.server_port = hops.ranges.first().map_or(0, |(first, _)| *first);
        }
        let server = self::server(&server)?;
        let tls = quic::client(options.tls.as_deref(), &server.host, &cx.store, &["h3"], false)?;
        let base = Transport { bidi_streams: 0, ..Transport::default() };
        Ok(Self {
            tag: cx.tag,
            core: Arc::new(Core {
                dialer: client_dialer(cx.dialer),
                server,
                hops,
                tls,
                transport: transport(&options.quic, base)?,
                disguise: disguise(&options.obfs)?,
                password: options.password.as_bytes().into(),
                send: rate("up_mbps", options.up_mbps)?,
                receive: rate("down_mbps", options.down_mbps)?,
                profile: profile(&options.bbr_profile),
            }),
            tcp: options.network.tcp(),
            udp: options.network.udp(),
            current: AsyncMutex::new(None),
        })
    }

    /// The connection that there is, or a new one.
    async fn login(&self, session: &Session) -> Result<Arc<Login>, DialError> {
        let mut current = self.current.lock().await;
        if let Some(login) = &*current
            && is_alive(&login.connection)
        {
            return Ok(Arc::clone(login));
        }
        *current = None;
        let limit = CONNECT;
        let attempts = self.attempts(session);
        let login = tokio::time::timeout(limit, attempts)
            .await
            .unwrap_or(Err(DialError::Timeout { phase: "hysteria2 connection", limit }))?;
        let login = Arc::new(login);
        *current = Some(Arc::clone(&login));
        Ok(login)
    }

    /// Attempts, each with a socket of its own, until one of them succeeds or the server says no.
    async fn attempts(&self, session: &Session) -> Result<Login, DialError> {
        let mut attempts = JoinSet::new();
        loop {
            let (core, session) = (Arc::clone(&self.core), session.clone());
            attempts.spawn(async move { core.attempt(&session).await });
            if let Ok(Some(Ok(done))) = tokio::time::timeout(ATTEMPT, attempts.join_next()).await {
                return done;
            }
        }
    }
}

impl Core {
    async fn attempt(&self, session: &Session) -> Result<Login, DialError> {
        const PHASE: &str = "hysteria2 login";
        let hop = self.hops.clone().map(|hops| hops.hop(self.dialer.clone()));
        let (mut link, address) = client_link(&self.dialer, session, &self.server, 0, hop).await?;
        if let Some(disguise) = &self.disguise {
            link = link.disguised(Arc::clone(disguise));
        }
        let failed = |source| DialError::Connect { target: self.server.clone(), source };
        let connection = connect(link, &self.tls, &self.transport, address).map_err(failed)?;
        connection.established().await.map_err(|error| failed(error.into()))?;
        let background = Background::start(&connection).await.map_err(write_error(PHASE))?;
        let mut stream = connection.open_bi().await.map_err(|error| failed(error.into()))?;
        let request = Request { password: &self.password, receive: self.receive.unwrap_or(0) }.encode();
        write_chain(&mut stream, &mut BufChain::copied(&request)).await.map_err(write_error(PHASE))?;
        stream.shutdown().await.map_err(write_error(PHASE))?;
        let mut early = BufChain::new();
        let fields = h3::read_headers(&mut stream, &mut early).await.map_err(dial_error(PHASE))?;
        let Some(accepted) = Accepted::find(&fields) else { return Err(DialError::Credentials) };
        connection.set_congestion(match accepted.rate(self.send) {
            Some(rate) => Congestion::Brutal(rate),
            None => Congestion::Bbr(self.profile),
        });
        let associations = Arc::<Associations>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(take_datagrams(connection.clone(), Arc::clone(&associations)));
        Ok(Login { connection, udp: accepted.udp, associations, _background: background, _tasks: tasks })
    }
}

impl Hops {
    fn new(options: &Hysteria2Outbound) -> Result<Option<Self>, BuildError> {
        if options.server_ports.is_empty() {
            return Ok(None);
        }
        let ranges: Vec<_> = options
            .server_ports
            .iter()
            .map(|range| (range.start().max(1), range.end()))
            .filter(|(first, last)| first <= last)
            .collect();
        if ranges.len() < options.server_ports.iter().count() {
            let reason = "a range has its lower end first".to_owned();
            return Err(BuildError::Invalid { option: "server_ports", reason });
        }
        let least = options.hop_interval.get().filter(|time| !time.is_zero()).unwrap_or(HOP);
        let most = options.hop_interval_max.get().filter(|time| !time.is_zero()).unwrap_or(least);
        if most < least {
            let reason = "it is less than `hop_interval`".to_owned();
            return Err(BuildError::Invalid { option: "hop_interval_max", reason });
        }
        Ok(Some(Self { ranges, interval: (least, most) }))
    }

    fn hop(self, dialer: Dialer) -> Hop {
        Hop {
            open: Box::new(move || dialer.udp_socket().map_err(io::Error::other)),
            next: Box::new(move || self.pick(random(), random())),
        }
    }

    /// A port and a time by two random numbers.
    fn pick(&self, port: u64, time: u64) -> (u16, Duration) {
        let total: u64 = self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        let mut at = port % total.max(1);
        let mut chosen = 0;
        for (first, last) in &self.ranges {
            let len = u64::from(last - first) + 1;
            if at < len {
                chosen = first + at as u16;
                break;
            }
            at -= len;
        }
        let (least, most) = self.interval;
        let spread = (most - least).as_millis() as u64;
        (chosen, least + Duration::from_millis(time % (spread + 1)))
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers the first port is as good as any.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Gives datagrams to the associations that wait for them.
async fn take_datagrams(connection: Connection, associations: Arc<Associations>) {
    let mut fragments = Fragments::at_most(MAX_PAYLOAD);
    let mut datagrams = Vec::new();
    while connection.recv_datagrams(&mut datagrams, DATAGRAMS).await.is_ok() {
        let now = Instant::now();
        let queues = associations.lock();
        for datagram in datagrams.drain(..) {
            let mut reader = Reader::new(&datagram);
            let Ok(head) = Head::decode(&mut reader) else { continue };
            let Some(queue) = queues.get(&head.session) else { continue };
            let data = datagram.slice(reader.position()..);
            if let Some(packet) = complete(&mut fragments, head, &data, now) {
                // Where nobody takes them out in time, they are lost as in any network.
                let _ = queue.try_send(packet);
            }
        }
    }
    // Nothing more comes for any of them.
    associations.lock().clear();
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        match network {
            Network::Tcp => self.tcp,
            Network::Udp => self.udp,
        }
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let login = self.login(session).await?;
        let opened = login.connection.open_bi().await;
        let stream = opened.map_err(|error| write_error("hysteria2 stream")(error.into()))?;
        let mut request = Vec::new();
        encode_request(&session.target, &padding(64, 512), &mut request);
        let stream = Box::new(Replied::new(Box::new(stream), decode_reply, MAX_MESSAGE));
        Headed::open(request, stream, early).await.map_err(write_error("hysteria2 request"))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let login = self.login(session).await?;
        if !login.udp {
            let reason = "it carries no UDP".to_owned();
            return Err(DialError::Refused { reason, kind: io::ErrorKind::Unsupported });
        }
        let (sender, queue) = mpsc::channel(QUEUE);
        let associations = Arc::clone(&login.associations);
        let number = associations.next.fetch_add(1, Ordering::Relaxed);
        associations.lock().insert(number, sender);
        if login.connection.error().is_some() {
            // It may have been cleared before.
            associations.lock().clear();
        }
        Ok(Box::new(ClientPackets {
            queue,
            sender: Sender::new(login.connection.clone(), number),
            _lease: Lease { associations, session: number },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_reach_every_port_and_none_else() {
        let hops = Hops {
            ranges: vec![(65_534, 65_535), (7, 7), (100, 101)],
            interval: (Duration::from_secs(5), Duration::from_secs(6)),
        };
        let ports: Vec<_> = (0..6).map(|number| hops.pick(number, number * 500).0).collect();
        assert_eq!(ports, [65_534, 65_535, 7, 100, 101, 65_534]);
        let whole = Hops { ranges: vec![(1, 65_535)], ..hops };
        assert_eq!(whole.pick(65_534, 0), (65_535, Duration::from_secs(5)));
        assert_eq!(whole.pick(0, 1000).1, Duration::from_secs(6));
        assert_eq!(whole.pick(0, 1001).1, Duration::from_secs(5));
    }
}
