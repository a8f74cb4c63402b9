//! The server.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::digest;
use culvert_config::options::inbound::tuic::TuicInbound;
use culvert_config::value::Secret;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, Dispatch, Handshake, Incoming, Io, Network, ServeError, Session, SessionId, StreamServer, Tag,
    timeouts,
};
use culvert_quic::{Bytes, Connection, Transport};
use culvert_wire::{BufChain, Reader, Target};
use subtle::ConstantTimeEq;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::debug;

use super::codec::{Command, ID_LEN, MAX_COMMAND, PacketHead, TOKEN_LEN};
use super::commands::{self, Message};
use super::packets::{Hub, Mode};
use super::{HEARTBEAT, UNI_STREAMS, congestion};
use crate::BuildError;
use crate::fields::listen::listen;
use crate::onward::Onward;
use crate::quic::{self, Listener};
use crate::running::Running;

/// How long a client may take to say who it is, where nothing is set.
const AUTH_TIMEOUT: Duration = Duration::from_secs(3);
/// Clients that have not said who they are, at most.
const STRANGERS: usize = 1024;
/// What a client may send before it has said who it is, besides what streams hold that are not read.
const STRANGERS_WINDOW: u64 = 256 << 10;
/// Datagrams on streams that are kept until then.
const HELD: usize = 64;
/// Datagrams taken at once.
const BATCH: usize = 64;

/// What all connections share.
pub(super) struct Service {
    tag: Tag,
    users: HashMap<[u8; ID_LEN], User>,
    auth_timeout: Duration,
    heartbeat: Duration,
    udp_timeout: Option<Duration>,
    /// What a client may send ahead once it has said who it is.
    window: u64,
    strangers: AtomicUsize,
}

struct User {
    name: Option<Arc<str>>,
    password: Secret<String>,
}

/// The inbound.
pub(super) fn inbound(tag: Tag, options: &TuicInbound) -> Result<Listener<Service>, BuildError> {
    let listen = listen(&options.listen, false)?;
    let mut users = HashMap::new();
    let mut secret = digest::Context::new(&digest::SHA256);
    secret.update(b"culvert tuic");
    for user in &options.users {
        let id = user.uuid.bytes;
        let name = (!user.name.is_empty()).then(|| user.name.as_str().into());
        secret.update(&id);
        secret.update(&user.password.len().to_be_bytes());
        secret.update(user.password.as_bytes());
        users.insert(id, User { name, password: user.password.clone() });
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(secret.finish().as_ref());
    let mut transport = quic::transport(
        &options.quic,
        Transport {
            uni_streams: UNI_STREAMS,
            keep_alive: None,
            congestion: congestion(&options.congestion_control),
            ..Transport::default()
        },
    )?;
    let window = transport.connection_window;
    transport.connection_window = window.min(STRANGERS_WINDOW);
    Ok(Listener {
        tls: quic::inbound(options.tls.as_deref(), &[], options.zero_rtt_handshake)?,
        transport,
        disguise: None,
        secret: digest,
        service: Arc::new(Service {
            tag: tag.clone(),
            users,
            auth_timeout: options.auth_timeout.or(AUTH_TIMEOUT),
            heartbeat: options.heartbeat.or(HEARTBEAT),
            udp_timeout: listen.udp_timeout,
            window,
            strangers: AtomicUsize::new(0),
        }),
        tag,
        listen,
        running: Running::default(),
    })
}

impl quic::Service for Service {
    fn take(self: Arc<Self>, connection: Connection, source: SocketAddr, dispatch: &Dispatch) {
        let client = Client {
            source,
            hub: Hub::new(connection),
            service: self,
            dispatch: dispatch.clone(),
            user: None,
            held: Vec::new(),
        };
        tokio::spawn(client.run());
    }
}

/// One client's connection.
struct Client {
    hub: Arc<Hub>,
    source: SocketAddr,
    service: Arc<Service>,
    dispatch: Dispatch,
    /// Set once it is known: the name, if the config has one.
    user: Option<Option<Arc<str>>>,
    /// Packets from before that.
    held: Vec<(PacketHead, Vec<u8>)>,
}

impl Client {
    async fn run(mut self) {
        if let Err(error) = self.serve().await {
            debug!("inbound/{}: client {} closed: {error}", self.service.tag, self.source);
            self.hub.connection.close(0, b"");
        }
        self.hub.end();
    }

    async fn serve(&mut self) -> Result<(), ServeError> {
        let connection = self.hub.connection.clone();
        let place = Stranger::enter(&self.service).ok_or(ServeError::Denied("too many strangers"))?;
        let mut place = Some(place);
        let shaken = tokio::time::timeout(timeouts::HANDSHAKE, connection.established()).await;
        if !shaken.is_ok_and(|shaken| shaken.is_ok()) {
            return Err(ServeError::Left);
        }
        let deadline = Instant::now() + self.service.auth_timeout;
        let mut heartbeat = tokio::time::interval(self.service.heartbeat.max(Duration::from_millis(100)));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let opener = Arc::new(Opener);
        let mut streams = JoinSet::new();
        let mut datagrams = Vec::new();
        loop {
            let known = self.user.is_some();
            tokio::select! {
                _ = connection.closed() => return Ok(()),
                stream = connection.accept_uni() => {
                    let Ok(stream) = stream else { return Ok(()) };
                    streams.spawn(commands::read(stream));
                }
                Some(read) = streams.join_next(), if !streams.is_empty() => {
                    if let Ok(message) = read {
                        self.take(message)?;
                    }
                    if self.user.is_some() && place.take().is_some() {
                        connection.set_receive_window(self.service.window);
                        for (head, data) in std::mem::take(&mut self.held) {
                            self.deliver(head, &data, Mode::Streams);
                        }
                    }
                }
                stream = connection.accept_bi(), if known => {
                    let Ok(stream) = stream else { return Ok(()) };
                    let session = self.session(Network::Tcp, Target::from(self.source));
                    self.dispatch.serve(Arc::<Opener>::clone(&opener), Box::new(stream), session);
                }
                received = connection.recv_datagrams(&mut datagrams, BATCH), if known => {
                    if received.is_err() {
                        return Ok(());
                    }
                    for datagram in datagrams.drain(..) {
                        self.take_datagram(&datagram)?;
                    }
                }
                _ = heartbeat.tick(), if known => {
                    let _ = connection.send_datagram(Bytes::from(Command::Heartbeat.bytes()));
                }
                () = tokio::time::sleep_until(deadline), if !known => {
                    return Err(ServeError::Denied("did not say in time who it is"));
                }
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<(), ServeError> {
        match message {
            Message::Command(Command::Authenticate { id, token }) => {
                if self.user.is_some() {
                    return Err(ServeError::Invalid("second login"));
                }
                let user = self.service.check(&self.hub.connection, &id, &token);
                self.user = Some(user.ok_or(ServeError::Denied("wrong id or password"))?);
                Ok(())
            }
            Message::Packet(head, data) if self.user.is_some() => {
                self.deliver(head, &data, Mode::Streams);
                Ok(())
            }
            Message::Packet(head, data) => {
                if self.held.len() < HELD {
                    self.held.push((head, data));
                }
                Ok(())
            }
            Message::Command(Command::Dissociate(id)) => {
                self.hub.dissociate(id);
                Ok(())
            }
            Message::Command(_) => Err(ServeError::Invalid("command on a stream in one direction")),
            Message::Fault(error) => Err(error),
            Message::Nothing => Ok(()),
        }
    }

    fn take_datagram(&self, datagram: &[u8]) -> Result<(), ServeError> {
        if datagram.first().is_some_and(|version| *version != super::codec::VERSION) {
            return Err(ServeError::Invalid("version"));
        }
        let mut reader = Reader::new(datagram);
        if let Ok(Command::Packet(head)) = Command::decode(&mut reader)
            && let Ok(data) = reader.take(head.len.into())
        {
            self.deliver(head, data, Mode::Native);
        }
        Ok(())
    }

    fn deliver(&self, head: PacketHead, data: &[u8], mode: Mode) {
        let Some((association, target)) = self.hub.deliver(head, data, Some(mode)) else { return };
        if self.dispatch.is_full() {
            return; // the association is dropped, and the client's next packet tries again
        }
        self.dispatch.submit(Incoming {
            session: self.session(Network::Udp, target),
            io: Io::Packets(Box::new(association)),
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.service.udp_timeout,
        });
    }

    fn session(&self, network: Network, target: Target) -> Session {
        Session {
            id: SessionId::next(),
            network,
            inbound: self.service.tag.clone(),
            user: self.user.clone().flatten(),
            source: self.source,
            target,
            sniffed: None,
            alpn: None,
        }
    }
}

impl Service {
    /// The user's name, if the token is the one that belongs to the id in this connection. An unknown id costs as much.
    fn check(
        &self,
        connection: &Connection,
        id: &[u8; ID_LEN],
        token: &[u8; TOKEN_LEN],
    ) -> Option<Option<Arc<str>>> {
        let user = self.users.get(id);
        let password = user.map_or(&id[..], |user| user.password.as_bytes());
        let mut wanted = [0; TOKEN_LEN];
        connection.export_keying_material(&mut wanted, id, password).ok()?;
        let fits = bool::from(wanted.ct_eq(token));
        user.filter(|_| fits).map(|user| user.name.clone())
    }
}

/// A place among those who have not said who they are.
struct Stranger(Arc<Service>);

impl Stranger {
    fn enter(service: &Arc<Service>) -> Option<Self> {
        let before = service.strangers.fetch_add(1, Ordering::Relaxed);
        let entered = Self(Arc::clone(service));
        (before < STRANGERS).then_some(entered)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one stream of a client that is known.
struct Opener;

#[async_trait]
impl StreamServer for Opener {
    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let command = read_message(&mut conn, &mut early, MAX_COMMAND, Command::decode).await;
        let command = command.inspect_err(|_| conn.abort())?;
        drop(handshake);
        let Command::Connect(target) = command else {
            conn.abort();
            return Err(ServeError::Invalid("command on a stream"));
        };
        session.target = target;
        let incoming = Incoming { session, io: Io::Stream(conn), early, reply: None, udp_timeout: None };
        Onward { mux: None, uot: true }.submit(incoming, dispatch).await
    }
}
