//! The server of datagrams: one task receives for all clients, finds out who each is, and gives what has opened to the
//! client's association.
//!
//! A client is an address and a port, in the 2022 edition the id of its session. There a session is remembered for longer
//! than its association: as long as a copy of one of its packets could pass as new.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use culvert_core::packet::{Packet, PacketBatch, PacketConn};
use culvert_core::sockets::{Hold, Sockets};
use culvert_core::throttle::Throttle;
use culvert_core::udp::{Associations, PacketQueue};
use culvert_core::{Dispatch, Incoming, Io, Network, Session, SessionId, StartError, Tag, UdpConn};
use culvert_os::socket::UdpOptions;
use culvert_wire::{BufChain, DecodeError, Room, Target};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cipher::{BLOCK, Blocks, Cipher, Key};
use super::conn::unix_now;
use super::key::Secret;
use super::packet::{
    self, Found, Outgoing, SEPARATE_FRONT, Separate, WHOLE_FRONT, decode_body, new_session, open_aead,
    open_body, open_none, open_packet, open_packet_identity, open_separate, open_whole, pass_on, session_key,
    try_open_aead, whole_key,
};
use super::relay::Destinations;
use super::replay::{CLOCKS, Window};
use super::server::Access;
use super::users::{User, Users};
use crate::running::Running;

/// Most clients that can have an association at once.
const ASSOCIATIONS: usize = 16 << 10;
/// Sessions and associations at which those that are over are first looked for.
const CLEAN_AT: usize = 64;
/// Most sessions remembered. Only clients that know a key can begin any: this many are a flood.
const SESSIONS: usize = 128 << 10;
/// How long a session without an association is remembered: its packets are told by their time after that.
const REMEMBERED: Duration = Duration::from_secs(2 * CLOCKS + 1);

/// What serves datagrams, before it listens.
pub(super) struct PacketListener {
    pub(super) tag: Tag,
    pub(super) address: SocketAddr,
    pub(super) options: UdpOptions,
    pub(super) udp_timeout: Option<Duration>,
    pub(super) service: Service,
    pub(super) running: Running,
}

/// What is done with them.
#[derive(Clone)]
pub(super) enum Service {
    /// They are opened and sent to their targets.
    Open(Arc<Access>),
    /// They are passed on to the server that they are for.
    Relay(Arc<Secret>, Arc<Destinations>),
}

/// Serves in a task of its own, for as long as the socket is held.
fn serve(hold: Hold, serving: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        let _hold = hold;
        serving.await;
    })
}

impl PacketListener {
    /// Opens the socket ahead of the start.
    pub(super) fn open(&self, sockets: &Sockets, port: Option<u16>) -> Result<(), StartError> {
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
    pub(super) fn start(&self, dispatch: &Dispatch, port: Option<u16>) -> Result<(), StartError> {
        let address = self.address(port);
        let (socket, hold) = dispatch
            .sockets()
            .udp(&self.options, address)
            .map_err(|source| StartError::Listen { tag: self.tag.clone(), source })?;
        let failed = |source| StartError::Io { tag: self.tag.clone(), phase: "listen for packets", source };
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        info!("inbound/{}: udp server started at {local}", self.tag);
        let conn = UdpConn::new(socket);
        let serving = Serving {
            tag: self.tag.clone(),
            udp_timeout: self.udp_timeout,
            conn,
            dispatch: dispatch.clone(),
        };
        let task = match self.service.clone() {
            Service::Open(access) => match &*access {
                Access::None => serve(hold, serving.run(NoneServer)),
                Access::Aead { cipher, users } => {
                    serve(hold, serving.run(AeadServer::new(*cipher, Arc::clone(users))))
                }
                Access::Edition2022 { cipher, key, users } => {
                    serve(hold, serving.run(Server2022::new(*cipher, key, users.clone())))
                }
            },
            Service::Relay(key, destinations) => {
                let Some(blocks) = Blocks::new(key.bytes()) else { return Ok(()) };
                serve(hold, serving.run(RelayServer { blocks, destinations, clients: HashMap::new() }))
            }
        };
        self.running.set(local, task, ());
        Ok(())
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.running.local_addr()
    }

    pub(super) async fn close(&self) {
        self.running.stop().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a client's answers go: to the address from which it was last heard of.
type Address = Arc<Mutex<SocketAddr>>;

/// A client's packets have opened, and there is no association for them yet.
struct Newcomer {
    user: Option<Arc<str>>,
    /// Seals what goes to it; `None` where that is sealed already.
    outgoing: Option<Outgoing>,
    address: Address,
}

/// What a kind of server knows of its clients.
trait PacketServer: Send + 'static {
    /// What tells clients apart.
    type Client: Clone + Eq + Hash + Send;

    /// Opens a datagram in place, or says why it does nothing.
    fn open(&mut self, data: &mut [u8], from: SocketAddr, now: u64)
    -> Result<(Found, Self::Client), Refused>;

    /// What an association of a client that has been opened for needs.
    fn enter(&mut self, client: &Self::Client, from: SocketAddr) -> Option<Newcomer>;

    /// Forgets clients that have no association any more.
    fn clean(&mut self, is_live: &dyn Fn(&Self::Client) -> bool);

    /// How many clients it remembers.
    fn len(&self) -> usize;
}

/// Why a datagram is dropped, for those who debug. Nothing of it reaches who sent it.
type Refused = &'static str;

const STRANGE: Refused = "not sealed with the key";
const SEEN: Refused = "seen before";
const MANY: Refused = "too many sessions at once";
const UNKNOWN: Refused = "unknown user";

/// The task that receives for all clients.
struct Serving {
    tag: Tag,
    udp_timeout: Option<Duration>,
    conn: UdpConn,
    dispatch: Dispatch,
}

impl Serving {
    /// Runs until it is dropped; no error of the socket ends it.
    async fn run<S: PacketServer>(mut self, mut server: S) {
        let trouble = Throttle::new(Duration::from_secs(10));
        let refusals = Throttle::new(Duration::from_secs(10));
        // Datagrams cost their sender nothing: they must not take the places of all.
        let mut associations = Associations::new(ASSOCIATIONS.min(self.dispatch.limit() / 4));
        let mut clean = Instant::now() + REMEMBERED / 2;
        let mut clean_at = CLEAN_AT;
        let mut batch = PacketBatch::new();
        let mut opened = Vec::new();
        loop {
            let receiving = std::future::poll_fn(|cx| self.conn.poll_recv(cx, Room::NONE, &mut batch));
            let received = if associations.is_empty() && server.len() == 0 {
                receiving.await
            } else {
                tokio::time::timeout_at(clean, receiving).await.unwrap_or(Ok(()))
            };
            if let Err(error) = received {
                if let Some(more) = trouble.allow() {
                    warn!(held_back = more, "inbound/{}: receive: {error}; trying again", self.tag);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let now = unix_now();
            while let Some(packet) = batch.pop() {
                let Some(from) = packet.peer.socket_addr() else { continue };
                let open = |data: &mut [u8], _: &Target| {
                    let opened = server.open(data, from, now);
                    if let Err(why) = &opened
                        && let Some(more) = refusals.allow()
                    {
                        info!(held_back = more, "inbound/{}: datagram from {from} dropped: {why}", self.tag);
                    }
                    opened.ok()
                };
                open_packet(packet, Room::NONE, open, |packet, client| opened.push((packet, client)));
                for (packet, client) in opened.drain(..) {
                    self.deliver(&mut associations, &mut server, packet, client, from);
                }
            }
            if associations.len().max(server.len()) >= clean_at || Instant::now() >= clean {
                associations.forget_ended();
                server.clean(&|client| associations.contains(client));
                clean = Instant::now() + REMEMBERED / 2;
                clean_at = CLEAN_AT.max(associations.len().max(server.len()) * 2);
            }
        }
    }

    fn deliver<S: PacketServer>(
        &self,
        associations: &mut Associations<S::Client>,
        server: &mut S,
        packet: Packet,
        client: S::Client,
        from: SocketAddr,
    ) {
        let target = packet.peer.clone();
        let Some(queue) = associations.deliver(&client, packet) else { return };
        if self.dispatch.is_full() {
            return; // the queue is dropped, and the client's next packet tries again
        }
        let Some(Newcomer { user, outgoing, address }) = server.enter(&client, from) else { return };
        let session = Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: self.tag.clone(),
            user,
            source: SocketAddr::new(from.ip().to_canonical(), from.port()),
            target,
            sniffed: None,
            alpn: None,
        };
        let packets = ServerPackets { queue, out: self.conn.another(), outgoing, address, sealed: 0 };
        self.dispatch.submit(Incoming {
            session,
            io: Io::Packets(Box::new(packets)),
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.udp_timeout,
        });
    }
}

/// One client's association.
struct ServerPackets {
    queue: PacketQueue,
    out: UdpConn,
    outgoing: Option<Outgoing>,
    address: Address,
    /// Packets at the front of the batch being sent that are sealed.
    sealed: usize,
}

impl PacketConn for ServerPackets {
    fn room(&self) -> Room {
        self.outgoing.as_ref().map_or(Room::NONE, |outgoing| outgoing.room(Room::NONE))
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let to = Target::from(*lock(&self.address));
        match &mut self.outgoing {
            Some(outgoing) => outgoing.seal_batch(batch, self.sealed, &to, unix_now()),
            None => batch.iter_mut().for_each(|packet| packet.peer = to.clone()),
        }
        let sent = self.out.poll_send(cx, batch);
        self.sealed = batch.len();
        sent
    }
}

/// Nothing is sealed; a client is its address.
struct NoneServer;

impl PacketServer for NoneServer {
    type Client = SocketAddr;

    fn open(&mut self, data: &mut [u8], from: SocketAddr, _now: u64) -> Result<(Found, SocketAddr), Refused> {
        Ok((open_none(data).ok_or("no address")?, from))
    }

    fn enter(&mut self, client: &SocketAddr, _from: SocketAddr) -> Option<Newcomer> {
        let address = Arc::new(Mutex::new(*client));
        Some(Newcomer { user: None, outgoing: Some(Outgoing::none()), address })
    }

    fn clean(&mut self, _is_live: &dyn Fn(&SocketAddr) -> bool) {}

    fn len(&self) -> usize {
        0
    }
}

/// The first AEAD edition; a client is its address, and its user whose key opens what comes from there.
struct AeadServer {
    cipher: Cipher,
    users: Arc<Users>,
    known: HashMap<SocketAddr, Arc<User>>,
    scratch: Vec<u8>,
}

impl AeadServer {
    fn new(cipher: Cipher, users: Arc<Users>) -> Self {
        Self { cipher, users, known: HashMap::new(), scratch: Vec::new() }
    }

    /// Where there are several users, the one whose packets came from there before is tried first.
    fn find(&mut self, data: &mut [u8], from: SocketAddr) -> Option<(Found, Arc<User>)> {
        let table = self.users.now();
        if let [only] = table.all() {
            return Some((open_aead(self.cipher, &only.key, data)?, Arc::clone(only)));
        }
        // Who has been taken out of the table since is nobody.
        let before = self.known.get(&from);
        let before = before.and_then(|known| table.all().iter().find(|user| Arc::ptr_eq(user, known)));
        before.into_iter().chain(table.all()).find_map(|user| {
            let found = try_open_aead(self.cipher, &user.key, data, &mut self.scratch)?;
            Some((found, Arc::clone(user)))
        })
    }
}

impl PacketServer for AeadServer {
    type Client = SocketAddr;

    fn open(&mut self, data: &mut [u8], from: SocketAddr, _now: u64) -> Result<(Found, SocketAddr), Refused> {
        let (found, user) = self.find(data, from).ok_or(STRANGE)?;
        self.known.insert(from, user);
        Ok((found, from))
    }

    fn enter(&mut self, client: &SocketAddr, _from: SocketAddr) -> Option<Newcomer> {
        let user = self.known.get(client)?;
        let outgoing = Some(Outgoing::aead(self.cipher, user.key.clone()));
        Some(Newcomer { user: user.name.clone(), outgoing, address: Arc::new(Mutex::new(*client)) })
    }

    fn clean(&mut self, is_live: &dyn Fn(&SocketAddr) -> bool) {
        self.known.retain(|client, _| is_live(client));
        self.scratch = Vec::new();
    }

    fn len(&self) -> usize {
        self.known.len()
    }
}

/// The 2022 edition; a client is the id of its session.
struct Server2022 {
    cipher: Cipher,
    form: Form,
    /// Whoever has the key, where there are no users.
    anybody: Arc<User>,
    users: Option<Arc<Users>>,
    sessions: HashMap<packet::SessionId, Known>,
}

enum Form {
    Separate(Blocks),
    Whole(Key),
}

/// A session.
struct Known {
    window: Window,
    seen: Instant,
    user: Arc<User>,
    /// Our session towards it, and the number of our next packet.
    ours: (packet::SessionId, Arc<AtomicU64>),
    /// What is needed while packets come; made again if some come after a pause.
    live: Option<Live>,
}

struct Live {
    /// Of bodies sealed with AES.
    key: Option<Key>,
    address: Address,
}

/// A packet that was sealed with the right key.
struct Genuine {
    separate: Separate,
    /// Where its body stands.
    front: usize,
    user: Arc<User>,
    /// The session's key, if it had to be made.
    key: Option<Key>,
}

impl Server2022 {
    fn new(cipher: Cipher, key: &Secret, users: Option<Arc<Users>>) -> Self {
        let form = match Blocks::new(key.bytes()) {
            Some(blocks) if cipher != Cipher::ChaCha20Poly1305 => Form::Separate(blocks),
            _ => Form::Whole(whole_key(key)),
        };
        let anybody = Arc::new(User { name: None, key: key.clone() });
        Self { cipher, form, anybody, users, sessions: HashMap::new() }
    }

    fn open_sealed(&self, data: &mut [u8]) -> Result<Genuine, Refused> {
        match &self.form {
            Form::Separate(blocks) => {
                let separate = open_separate(blocks, data).ok_or(STRANGE)?;
                let (user, front) = match &self.users {
                    None => (Arc::clone(&self.anybody), SEPARATE_FRONT),
                    Some(users) => {
                        let hash = open_packet_identity(blocks, separate, data).ok_or(STRANGE)?;
                        let user = users.now().by_hash(&hash).cloned();
                        (user.ok_or(UNKNOWN)?, SEPARATE_FRONT + BLOCK)
                    }
                };
                let known = self.sessions.get(&separate.session);
                if known.is_some_and(|known| !known.window.is_new(separate.number)) {
                    return Err(SEEN);
                }
                if let Some(key) = known.and_then(|known| known.live.as_ref()?.key.as_ref()) {
                    open_body(key, separate, front, data).ok_or(STRANGE)?;
                    return Ok(Genuine { separate, front, user, key: None });
                }
                let key = session_key(self.cipher, &user.key, separate.session);
                open_body(&key, separate, front, data).ok_or(STRANGE)?;
                Ok(Genuine { separate, front, user, key: Some(key) })
            }
            Form::Whole(key) => {
                let separate = open_whole(key, data).ok_or(STRANGE)?;
                let known = self.sessions.get(&separate.session);
                if known.is_some_and(|known| !known.window.is_new(separate.number)) {
                    return Err(SEEN);
                }
                Ok(Genuine { separate, front: WHOLE_FRONT, user: Arc::clone(&self.anybody), key: None })
            }
        }
    }
}

impl PacketServer for Server2022 {
    type Client = packet::SessionId;

    fn open(
        &mut self,
        data: &mut [u8],
        from: SocketAddr,
        now: u64,
    ) -> Result<(Found, packet::SessionId), Refused> {
        let Genuine { separate, front, user, key } = self.open_sealed(data)?;
        let found = decode_body(data, front, None, now).map_err(|error| match error {
            DecodeError::Incomplete => "cut short",
            DecodeError::Invalid(what) => what,
        })?;
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(&separate.session) {
            return Err(MANY);
        }
        let known = self.sessions.entry(separate.session).or_insert_with(|| Known {
            window: Window::default(),
            seen: Instant::now(),
            user,
            ours: (new_session(), Arc::default()),
            live: None,
        });
        known.window.note(separate.number);
        known.seen = Instant::now();
        match &known.live {
            Some(live) => *lock(&live.address) = from,
            None => known.live = Some(Live { key, address: Arc::new(Mutex::new(from)) }),
        }
        Ok((found, separate.session))
    }

    fn enter(&mut self, client: &packet::SessionId, _from: SocketAddr) -> Option<Newcomer> {
        let known = self.sessions.get(client)?;
        let address = Arc::clone(&known.live.as_ref()?.address);
        let outgoing = Outgoing::to_client(self.cipher, &known.user.key, known.ours.clone(), *client);
        Some(Newcomer { user: known.user.name.clone(), outgoing: Some(outgoing), address })
    }

    fn clean(&mut self, is_live: &dyn Fn(&packet::SessionId) -> bool) {
        self.sessions.retain(|client, known| {
            if is_live(client) {
                return true;
            }
            known.live = None;
            known.seen.elapsed() < REMEMBERED
        });
    }

    fn len(&self) -> usize {
        self.sessions.len()
    }
}

/// Passes packets on to the servers they are for; a client is the id of its session.
struct RelayServer {
    blocks: Blocks,
    destinations: Arc<Destinations>,
    clients: HashMap<packet::SessionId, Relayed>,
}

struct Relayed {
    name: Arc<str>,
    address: Address,
}

impl PacketServer for RelayServer {
    type Client = packet::SessionId;

    fn open(
        &mut self,
        data: &mut [u8],
        from: SocketAddr,
        _now: u64,
    ) -> Result<(Found, packet::SessionId), Refused> {
        let separate = open_separate(&self.blocks, data).ok_or(STRANGE)?;
        let hash = open_packet_identity(&self.blocks, separate, data).ok_or(STRANGE)?;
        let destination = self.destinations.by_hash(&hash).ok_or(UNKNOWN)?;
        if self.clients.len() >= SESSIONS && !self.clients.contains_key(&separate.session) {
            return Err(MANY);
        }
        let payload = pass_on(data, separate, &destination.blocks);
        let relayed = self.clients.entry(separate.session).or_insert_with(|| Relayed {
            name: Arc::clone(&destination.name),
            address: Arc::new(Mutex::new(from)),
        });
        *lock(&relayed.address) = from;
        Ok(((payload, destination.server.clone()), separate.session))
    }

    fn enter(&mut self, client: &packet::SessionId, _from: SocketAddr) -> Option<Newcomer> {
        let relayed = self.clients.get(client)?;
        let address = Arc::clone(&relayed.address);
        Some(Newcomer { user: Some(Arc::clone(&relayed.name)), outgoing: None, address })
    }

    fn clean(&mut self, is_live: &dyn Fn(&packet::SessionId) -> bool) {
        self.clients.retain(|client, _| is_live(client));
    }

    fn len(&self) -> usize {
        self.clients.len()
    }
}
