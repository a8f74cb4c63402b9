//! The server: connections, their requests, streams and datagrams.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use culvert_config::options::inbound::hysteria::Hysteria2Inbound;
use culvert_core::conn::write_chain;
use culvert_core::udp::Associations;
use culvert_core::{
    DialOutcome, Dispatch, Handshake, Incoming, Io, Network, ServeError, Session, SessionId, Tag,
};
use culvert_quic::{BbrProfile, Congestion, Connection, QuicStream, Transport};
use culvert_wire::{BufChain, Reader};
use tokio::task::JoinSet;

use super::auth::{Limits, Request};
use super::codec::{Head, MAX_MESSAGE, MAX_PAYLOAD, STREAM, decode_request, encode_reply, padding};
use super::masquerade::{Masquerade, Visit};
use super::packets::{Sender, ServerPackets, complete};
use super::{disguise, profile, rate, transport};
use crate::fields::listen::listen;
use crate::fragments::Fragments;
use crate::quic::{self, Listener};
use crate::running::Running;
use crate::users::{KeyedUsers, Known};
use crate::{BuildError, InboundCx};
use culvert_quic::h3::{self, Background};

/// Requests at once of somebody who has not shown to be a client.
const STRANGERS_REQUESTS: usize = 16;
/// Silence of somebody who is no client, after which the connection is closed, as web servers do.
const STRANGERS_IDLE: Duration = Duration::from_secs(60);
/// Associations of a connection at once.
const ASSOCIATIONS: usize = 1024;
/// Datagrams taken at a time.
const DATAGRAMS: usize = 64;
/// Streams that a client may have open where no option says so.
const STREAMS: u64 = 4096;

/// What all connections share.
pub(super) struct Core {
    tag: Tag,
    users: KeyedUsers<32>,
    limits: Limits,
    profile: BbrProfile,
    masquerade: Masquerade,
    udp_timeout: Option<Duration>,
}

fn key(password: &[u8]) -> [u8; 32] {
    digest(&SHA256, password).as_ref().try_into().unwrap_or_default()
}

/// The inbound.
pub(super) fn inbound(cx: InboundCx, options: &Hysteria2Inbound) -> Result<Listener<Core>, BuildError> {
    let Some(tls) = options.tls.as_deref().filter(|tls| tls.enabled) else {
        return Err(BuildError::Invalid { option: "tls", reason: "it is required".to_owned() });
    };
    let settings = culvert_tls::options::server(tls)?;
    let secret = quic::lasting_secret(&settings.identity)?;
    let tls = quic::server(&settings, &["h3"], false)?;
    let listen = listen(&options.listen, false)?;
    let mut users = KeyedUsers::default();
    for user in &options.users {
        users.insert(key(user.password.as_bytes()), &user.name);
    }
    let limits = Limits {
        send: rate("up_mbps", options.up_mbps)?,
        receive: rate("down_mbps", options.down_mbps)?,
        ignore_client: options.ignore_client_bandwidth,
    };
    let base = Transport { bidi_streams: STREAMS, ..Transport::default() };
    Ok(Listener {
        tag: cx.tag.clone(),
        service: Arc::new(Core {
            tag: cx.tag,
            users,
            limits,
            profile: profile(&options.bbr_profile),
            masquerade: Masquerade::new(&options.masquerade)?,
            udp_timeout: listen.udp_timeout,
        }),
        listen,
        tls,
        transport: transport(&options.quic, base)?,
        disguise: disguise(&options.obfs)?,
        secret,
        running: Running::default(),
    })
}

impl quic::Service for Core {
    fn take(self: Arc<Self>, connection: Connection, source: SocketAddr, dispatch: &Dispatch) {
        let (core, inner) = (Arc::clone(&self), dispatch.clone());
        dispatch.serve_many(&self.tag, source, |handshake| async move {
            serve(core, connection, source, handshake, inner).await
        });
    }
}

/// What it is to the operator that a handshake did not end: something may be wrong, but not with those who just leave.
fn not_served(error: culvert_quic::ConnectionError) -> ServeError {
    if error.is_timeout() || error.is_ours() || error.application_code().is_some() {
        ServeError::Left
    } else {
        ServeError::Io(error.into())
    }
}

/// One connection.
struct Client {
    core: Arc<Core>,
    connection: Connection,
    source: SocketAddr,
    dispatch: Dispatch,
    /// Who it is, once that is known.
    user: OnceLock<Known>,
    /// Its place in the table, until it has shown to be a client, or a visitor of the site.
    handshake: Mutex<Option<Handshake>>,
}

async fn serve(
    core: Arc<Core>,
    connection: Connection,
    source: SocketAddr,
    handshake: Handshake,
    dispatch: Dispatch,
) -> Result<(), ServeError> {
    connection.established().await.map_err(not_served)?;
    let _background = Background::start(&connection).await?;
    let handshake = Mutex::new(Some(handshake));
    let client = Arc::new(Client { core, connection, source, dispatch, user: OnceLock::new(), handshake });
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let client = Arc::clone(&client);
        async move { client.take_datagrams().await }
    });
    loop {
        let is_client = client.user.get().is_some();
        let may_accept = is_client || tasks.len() <= STRANGERS_REQUESTS;
        tokio::select! {
            stream = client.connection.accept_bi(), if may_accept => {
                let Ok(stream) = stream else { return Ok(()) };
                let client = Arc::clone(&client);
                tasks.spawn(async move {
                    if let Err(error) = client.take_stream(stream).await {
                        let (tag, id) = (&client.core.tag, SessionId::next());
                        client.dispatch.report_unserved(tag, id, client.source, &error);
                    }
                });
            }
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            () = tokio::time::sleep(STRANGERS_IDLE), if !is_client => {
                client.connection.close(h3::NO_ERROR, b"");
                return Ok(());
            }
        }
    }
}

impl Client {
    fn session(&self, network: Network, target: culvert_wire::Target) -> Session {
        Session {
            id: SessionId::next(),
            network,
            inbound: self.core.tag.clone(),
            user: self.user.get().and_then(|user| user.name.clone()),
            source: self.source,
            target,
            sniffed: None,
            alpn: None,
        }
    }

    fn end_handshake(&self) {
        *self.handshake.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn take_stream(&self, mut stream: QuicStream) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        if self.user.get().is_some() {
            // The first number tells a connection from a request.
            if peek_number(&mut stream, &mut early).await? == STREAM {
                return self.take_connection(stream, early).await;
            }
        }
        self.take_request(stream, early).await
    }

    /// A connection to be carried.
    async fn take_connection(&self, mut stream: QuicStream, mut early: BufChain) -> Result<(), ServeError> {
        let read = culvert_core::handshake::read_message(&mut stream, &mut early, MAX_MESSAGE, |r| {
            h3::take_varint(r)?;
            decode_request(r)
        });
        let target = tokio::time::timeout(culvert_core::timeouts::HANDSHAKE, read)
            .await
            .map_err(|_| ServeError::Left)??;
        let session = self.session(Network::Tcp, target);
        let io = Io::Stream(Box::new(stream));
        self.dispatch.submit(Incoming { session, io, early, reply: Some(reply), udp_timeout: None });
        Ok(())
    }

    /// A request of HTTP: of a client that shows who it is, or of a visitor.
    async fn take_request(&self, mut stream: QuicStream, mut early: BufChain) -> Result<(), ServeError> {
        let fields = match h3::read_headers(&mut stream, &mut early).await {
            Ok(fields) => fields,
            Err(error @ ServeError::Invalid(_)) => {
                stream.reset(h3::MESSAGE_ERROR);
                stream.stop(h3::FRAME_UNEXPECTED);
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let mut denied = Ok(());
        if let Some(request) = Request::find(&fields) {
            match self.admit(&request) {
                Ok(answer) => {
                    let mut answer = BufChain::copied(&answer);
                    write_chain(&mut stream, &mut answer).await?;
                    return Ok(());
                }
                Err(why) => denied = Err(ServeError::Denied(why)),
            }
        }
        self.end_handshake();
        let visit = Visit { fields: &fields, stream: &mut stream, early: &mut early };
        let session = |target| self.session(Network::Tcp, target);
        self.core.masquerade.answer(visit, &session, &self.dispatch).await?;
        denied
    }

    /// Lets a client in that has the right password. The answer, or why not.
    fn admit(&self, request: &Request<'_>) -> Result<Vec<u8>, &'static str> {
        let user = self.core.users.find(&key(request.password)).ok_or("wrong password")?;
        if self.user.get().is_some() {
            // Once more: the answer says what this end can receive.
            let receive = Some(self.core.limits.receive.unwrap_or(0));
            return Ok(super::auth::Accepted { udp: true, receive }.encode());
        }
        let agreed = self.core.limits.agree(request.receive);
        let (rate, answer) = agreed.ok_or("a client that does not say what it can receive")?;
        self.connection.set_congestion(match rate {
            Some(rate) => Congestion::Brutal(rate),
            None => Congestion::Bbr(self.core.profile),
        });
        let _ = self.user.set(user);
        self.end_handshake();
        Ok(answer.encode())
    }

    /// Gives datagrams to their associations. Those of strangers are dropped.
    async fn take_datagrams(&self) {
        let mut associations = Associations::new(ASSOCIATIONS);
        let mut fragments = Fragments::at_most(MAX_PAYLOAD);
        let mut datagrams: Vec<Bytes> = Vec::new();
        while self.connection.recv_datagrams(&mut datagrams, DATAGRAMS).await.is_ok() {
            let now = Instant::now();
            for datagram in datagrams.drain(..) {
                if self.user.get().is_none() {
                    continue;
                }
                let mut reader = Reader::new(&datagram);
                let Ok(head) = Head::decode(&mut reader) else { continue };
                let (session, data) = (head.session, datagram.slice(reader.position()..));
                let Some(packet) = complete(&mut fragments, head, &data, now) else { continue };
                let target = packet.peer.clone();
                if associations.len() == ASSOCIATIONS && !associations.contains(&session) {
                    associations.forget_ended();
                }
                if let Some(queue) = associations.deliver(&session, packet) {
                    let sender = Sender::new(self.connection.clone(), session);
                    let io = Io::Packets(Box::new(ServerPackets { queue, sender }));
                    self.dispatch.submit(Incoming {
                        session: self.session(Network::Udp, target),
                        io,
                        early: BufChain::new(),
                        reply: None,
                        udp_timeout: self.core.udp_timeout,
                    });
                }
            }
        }
    }
}

/// The number that a stream begins with; it stays where it is.
async fn peek_number(stream: &mut QuicStream, early: &mut BufChain) -> Result<u64, ServeError> {
    loop {
        if let Ok(number) = h3::take_varint(&mut Reader::new(early.contiguous())) {
            return Ok(number);
        }
        let mut more = culvert_core::conn::read_chain(stream, culvert_wire::Room::NONE).await?;
        if more.is_empty() {
            return Err(ServeError::Left);
        }
        early.append(&mut more);
    }
}

/// The answer that a client waits for.
fn reply(outcome: &DialOutcome<'_>, to: &mut Vec<u8>) {
    let padding = padding(128, 1024);
    match outcome {
        DialOutcome::Connected(_) => encode_reply(None, &padding, to),
        DialOutcome::Failed(error) => {
            encode_reply(Some(&culvert_core::Chain(*error).to_string()), &padding, to)
        }
    }
}
