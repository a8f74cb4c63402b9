//! The client: one connection to the server, which carries all streams and associations.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use culvert_config::options::outbound::hysteria::Hysteria2Outbound;
use culvert_core::conn::write_chain;
use culvert_core::{BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Packet, Session, Tag};
use culvert_quic::{BbrProfile, ClientTls, Congestion, Connection, Disguise, Transport, connect};
use culvert_wire::{BufChain, Reader, Target};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::auth::{Accepted, Request};
use super::codec::{Head, MAX_MESSAGE, MAX_PAYLOAD, decode_reply, encode_request, padding};
use super::packets::{ClientPackets, Sender, complete};
use super::{disguise, profile, rate, transport};
use crate::fields::server::server;
use crate::fragments::Fragments;
use crate::handshake::{dial_error, write_error};
use crate::headed::Headed;
use crate::quic::{self, Carrying, Current, Hops, attempts, client_dialer, client_link};
use crate::replied::Replied;
use crate::{BuildError, OutboundCx};
use culvert_quic::h3::{self, Background};

/// Packets that wait for one association.
const QUEUE: usize = 512;
/// Datagrams taken at a time.
const DATAGRAMS: usize = 64;

/// The outbound.
pub(super) struct Client {
    tag: Tag,
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
    tcp: bool,
    udp: bool,
    current: Current<Login>,
}

/// A connection that the server has let in.
struct Login {
    connection: Connection,
    udp: bool,
    /// It sends at a rate that was agreed on.
    agreed: bool,
    associations: Arc<Associations>,
    _background: Background,
    _tasks: JoinSet<()>,
}

impl Carrying for Login {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn is_divisible(&self) -> bool {
        !self.agreed
    }
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
        let (ports, most) = (&options.server_ports, &options.hop_interval_max);
        let hops = Hops::new(ports, &options.hop_interval, Some(most))?;
        let mut server = options.server.clone();
        if let Some(hops) = &hops
            && server.server_port == 0
        {
            // The connection knows its server by one of the ports.
            server.server_port = hops.first();
        }
        let server = self::server(&server)?;
        let tls = quic::client(options.tls.as_deref(), &server.host, &cx.store, &["h3"], false)?;
        let base = Transport { bidi_streams: 0, ..Transport::default() };
        Ok(Self {
            tag: cx.tag,
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
            tcp: options.network.tcp(),
            udp: options.network.udp(),
            current: Current::default(),
        })
    }

    /// A connection that the server has let in.
    async fn connect(&self, session: &Session) -> Result<Arc<Login>, DialError> {
        attempts(|number| Box::pin(self.attempt(session, number))).await.map(Arc::new)
    }

    async fn attempt(&self, session: &Session, number: usize) -> Result<Login, DialError> {
        const PHASE: &str = "hysteria2 login";
        let hop = self.hops.as_ref().map(|hops| hops.hop(&self.dialer));
        let (mut link, address) = client_link(&self.dialer, session, &self.server, number, hop).await?;
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
        let rate = accepted.rate(self.send);
        connection.set_congestion(match rate {
            Some(rate) => Congestion::Brutal(rate),
            None => Congestion::Bbr(self.profile),
        });
        let associations = Arc::<Associations>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(take_datagrams(connection.clone(), Arc::clone(&associations)));
        Ok(Login {
            connection,
            udp: accepted.udp,
            agreed: rate.is_some(),
            associations,
            _background: background,
            _tasks: tasks,
        })
    }
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
            Network::Icmp => false,
        }
    }

    fn network_moved(&self) {
        self.current.network_moved();
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let (_, stream) = self.current.stream(|| self.connect(session)).await?;
        let mut request = Vec::new();
        encode_request(&session.target, &padding(64, 512), &mut request);
        let stream = Box::new(Replied::new(Box::new(stream), decode_reply, MAX_MESSAGE));
        Headed::open(request, stream, early).await.map_err(write_error("hysteria2 request"))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let login = self.current.get(self.connect(session)).await?;
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
