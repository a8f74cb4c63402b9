//! The server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use culvert_config::options::inbound::hysteria::HysteriaInbound;
use culvert_core::conn::write_chain;
use culvert_core::handshake::read_message;
use culvert_core::packet::Replayed;
use culvert_core::{
    Chain, DialOutcome, Dispatch, Incoming, Io, Network, PacketBatch, PacketConn, ServeError, Session,
    SessionId, Tag, timeouts,
};
use culvert_quic::{Congestion, Connection, QuicStream, Transport};
use culvert_wire::{BufChain, Room, Target};
use tokio::task::JoinSet;
use tracing::debug;

use super::codec::{ClientHello, MAX_CLIENT_HELLO, MAX_REQUEST, Request, Response, ServerHello};
use super::packets::Hub;
use super::{ALPN, WRONG_PASSWORD, WRONG_VERSION, disguise, speeds};
use crate::BuildError;
use crate::fields::listen::listen;
use crate::quic::{self, Listener};
use crate::running::Running;
use crate::users::{KeyedUsers, Known};

/// How long a client may take for its hello (as sing-box).
const HELLO: Duration = Duration::from_secs(10);
/// Datagrams taken at once.
const BATCH: usize = 64;

/// What all connections share.
pub(super) struct Service {
    tag: Tag,
    users: KeyedUsers<32>,
    send: u64,
    receive: u64,
    udp_timeout: Option<Duration>,
}

fn key(password: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, password).as_ref().try_into().unwrap_or_default()
}

/// The inbound.
pub(super) fn inbound(tag: Tag, options: &HysteriaInbound) -> Result<Listener<Service>, BuildError> {
    let listen = listen(&options.listen, false)?;
    let (send, receive) = speeds(options.upload(), options.download())?;
    let mut users = KeyedUsers::default();
    let mut secret = digest::Context::new(&digest::SHA256);
    secret.update(b"culvert hysteria");
    for user in &options.users {
        let password = if user.auth.0.0.is_empty() { user.auth_str.as_bytes() } else { &user.auth.0.0 };
        users.insert(key(password), &user.name);
        secret.update(&key(password));
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(secret.finish().as_ref());
    let mut base = Transport::default();
    let given = |value: u64, default: u64| if value > 0 { value } else { default };
    base.stream_window = given(options.recv_window_conn, base.stream_window);
    base.connection_window = given(options.recv_window_client, base.connection_window);
    base.bidi_streams =
        given(u64::try_from(options.max_conn_client).unwrap_or(0).min(1 << 16), base.bidi_streams);
    base.mtu_discovery = !options.disable_mtu_discovery;
    Ok(Listener {
        tls: quic::inbound(options.tls.as_deref(), ALPN, false)?,
        transport: quic::transport(&options.quic, base)?,
        disguise: disguise(&options.obfs),
        secret: digest,
        service: Arc::new(Service {
            tag: tag.clone(),
            users,
            send,
            receive,
            udp_timeout: listen.udp_timeout,
        }),
        tag,
        listen,
        running: Running::default(),
    })
}

impl quic::Service for Service {
    fn take(self: Arc<Self>, connection: Connection, source: SocketAddr, dispatch: &Dispatch) {
        let (service, inner) = (Arc::clone(&self), dispatch.clone());
        dispatch.serve_many(&self.tag, source, |handshake| async move {
            connection.established().await.map_err(|_| ServeError::Left)?;
            let greeted = tokio::time::timeout(HELLO, greet(&service, &connection)).await;
            let (control, user) = greeted.unwrap_or(Err(ServeError::Left)).inspect_err(|_| {
                connection.close(WRONG_VERSION, b"protocol error");
            })?;
            drop(handshake);
            let hub = Hub::new(connection);
            let client = Arc::new(Client { hub, source, service, dispatch: inner, user });
            client.serve(control).await;
            client.hub.end();
            Ok(())
        });
    }
}

/// Reads the hello and answers it.
async fn greet(service: &Service, connection: &Connection) -> Result<(QuicStream, Known), ServeError> {
    let mut stream = connection.accept_bi().await.map_err(|_| ServeError::Left)?;
    let mut early = BufChain::new();
    let hello = read_message(&mut stream, &mut early, MAX_CLIENT_HELLO, ClientHello::decode).await?;
    let mut answer =
        ServerHello { ok: true, send: service.send, receive: service.receive, message: String::new() };
    let Some(user) = service.users.find(&key(&hello.auth)) else {
        answer.ok = false;
        "Wrong password".clone_into(&mut answer.message);
        let _ = write_chain(&mut stream, &mut BufChain::copied(&answer.bytes())).await;
        connection.close(WRONG_PASSWORD, b"auth error");
        return Err(ServeError::Denied("wrong password"));
    };
    connection.set_congestion(Congestion::Brutal(service.send.min(hello.receive)));
    write_chain(&mut stream, &mut BufChain::copied(&answer.bytes())).await?;
    Ok((stream, user))
}

/// One client that is known.
struct Client {
    hub: Arc<Hub>,
    source: SocketAddr,
    service: Arc<Service>,
    dispatch: Dispatch,
    user: Known,
}

impl Client {
    /// Serves it until its connection ends; `_control` stays open for as long.
    async fn serve(self: &Arc<Self>, _control: QuicStream) {
        let connection = &self.hub.connection;
        let mut tasks = JoinSet::new();
        let mut datagrams = Vec::new();
        loop {
            tokio::select! {
                stream = connection.accept_bi() => {
                    let Ok(stream) = stream else { return };
                    let client = Arc::clone(self);
                    tasks.spawn(async move { client.take(stream).await });
                }
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Ok(Err(error)) = done {
                        debug!("inbound/{}: stream of {} not served: {error}", self.service.tag, self.source);
                    }
                }
                received = connection.recv_datagrams(&mut datagrams, BATCH) => {
                    if received.is_err() {
                        return;
                    }
                    for datagram in datagrams.drain(..) {
                        self.hub.deliver(&datagram);
                    }
                }
            }
        }
    }

    async fn take(&self, mut stream: QuicStream) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let read = read_message(&mut stream, &mut early, MAX_REQUEST, Request::decode);
        let request = tokio::time::timeout(timeouts::HANDSHAKE, read).await.unwrap_or(Err(ServeError::Left));
        let request = request.inspect_err(|_| stream.reset(0))?;
        match request {
            Request { udp: false, target: Some(target) } => {
                self.dispatch.submit(Incoming {
                    session: self.session(Network::Tcp, target),
                    io: Io::Stream(Box::new(stream)),
                    early,
                    reply: Some(reply),
                    udp_timeout: None,
                });
                Ok(())
            }
            Request { target, .. } => self.associate(stream, target).await,
        }
    }

    async fn associate(&self, stream: QuicStream, target: Option<Target>) -> Result<(), ServeError> {
        let session = self.hub.number().ok_or(ServeError::Denied("too many associations"))?;
        let mut answer = Vec::new();
        Response { ok: true, session, message: String::new() }.encode(&mut answer);
        // Entered first: the client's first datagram may be here before the answer's sender runs again.
        let mut packets = self.hub.enter(session, stream).ok_or(ServeError::Left)?;
        packets.say(&answer).await?;
        let mut held = PacketBatch::new();
        let target = match target.filter(|target| target.port != 0) {
            Some(target) => target,
            None => {
                let limit = self.service.udp_timeout.unwrap_or(timeouts::UDP_IDLE);
                let first = std::future::poll_fn(|cx| packets.poll_recv(cx, Room::NONE, &mut held));
                tokio::time::timeout(limit, first).await.map_err(|_| ServeError::Left)??;
                held.front().map(|packet| packet.peer.clone()).ok_or(ServeError::Left)?
            }
        };
        self.dispatch.submit(Incoming {
            session: self.session(Network::Udp, target),
            io: Io::Packets(Replayed::wrap(held, Box::new(packets))),
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.service.udp_timeout,
        });
        Ok(())
    }

    fn session(&self, network: Network, target: Target) -> Session {
        Session {
            id: SessionId::next(),
            network,
            inbound: self.service.tag.clone(),
            user: self.user.name.clone(),
            source: self.source,
            target,
            sniffed: None,
            alpn: None,
        }
    }
}

/// The answer that a client waits for.
fn reply(outcome: &DialOutcome<'_>, to: &mut Vec<u8>) {
    let message = match outcome {
        DialOutcome::Connected(_) => String::new(),
        DialOutcome::Failed(error) => Chain(*error).to_string(),
    };
    Response { ok: matches!(outcome, DialOutcome::Connected(_)), session: 0, message }.encode(to);
}
