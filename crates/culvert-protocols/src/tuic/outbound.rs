//! The client: one connection for all streams and associations, made when it is first needed and again when it has ended.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::outbound::tuic::{TuicOutbound, UdpRelayMode};
use culvert_config::value::Secret;
use culvert_core::{BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Session, Tag};
use culvert_quic::{Bytes, ClientTls, Connection, ConnectionError, Transport};
use culvert_wire::{BufChain, Reader, Target};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::debug;

use super::codec::{Command, ID_LEN, TOKEN_LEN};
use super::commands::{self, Message};
use super::packets::{Hub, Mode};
use super::{HEARTBEAT, UNI_STREAMS, congestion};
use crate::fields::server::server;
use crate::headed::Headed;
use crate::quic::{self, Current, attempts, client_dialer, client_link, transport};
use crate::uot::{UotConn, Version};
use crate::{BuildError, OutboundCx};

/// Datagrams taken at once.
const BATCH: usize = 64;

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    dialer: Dialer,
    server: Target,
    tls: ClientTls,
    transport: Transport,
    login: Arc<Login>,
    /// How associations send; `None` is over a stream of their own, as UDP over TCP.
    pub(super) mode: Option<Mode>,
    early_data: bool,
    tcp: bool,
    udp: bool,
    pub(super) current: Current<Hub>,
}

/// Who the client is.
struct Login {
    id: [u8; ID_LEN],
    password: Secret<String>,
    heartbeat: Duration,
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &TuicOutbound) -> Result<Self, BuildError> {
        let server = server(&options.server)?;
        let early_data = options.zero_rtt_handshake;
        let tls = quic::client(options.tls.as_deref(), &server.host, &cx.store, &[], early_data)?;
        let transport = transport(
            &options.quic,
            Transport {
                bidi_streams: 100,
                uni_streams: UNI_STREAMS,
                keep_alive: None,
                congestion: congestion(&options.congestion_control),
                ..Transport::default()
            },
        )?;
        let mode = match options.udp_relay_mode.get() {
            _ if options.udp_over_stream => None,
            Some(UdpRelayMode::Quic) => Some(Mode::Streams),
            Some(UdpRelayMode::Native) | None => Some(Mode::Native),
        };
        Ok(Self {
            tag: cx.tag,
            dialer: client_dialer(cx.dialer),
            server,
            tls,
            transport,
            login: Arc::new(Login {
                id: options.uuid.bytes,
                password: options.password.clone(),
                heartbeat: options.heartbeat.or(HEARTBEAT),
            }),
            mode,
            early_data,
            tcp: options.network.tcp(),
            udp: options.network.udp(),
            current: Current::default(),
        })
    }

    /// A connection that may be used.
    async fn connect(&self, session: &Session) -> Result<Arc<Hub>, DialError> {
        let connection = attempts(|number| Box::pin(self.attempt(session, number))).await?;
        let hub = Hub::new(connection);
        let (tag, id) = (self.tag.clone(), session.id.get());
        let drive = drive(Arc::clone(&hub), Arc::clone(&self.login));
        tokio::spawn(async move {
            let error = drive.await;
            debug!(conn = id, "outbound/{tag}: connection to the server ended: {error}");
        });
        Ok(hub)
    }

    async fn attempt(&self, session: &Session, number: usize) -> Result<Connection, DialError> {
        let (link, address) = client_link(&self.dialer, session, &self.server, number, None).await?;
        let connection = culvert_quic::connect(link, &self.tls, &self.transport, address)
            .map_err(|source| DialError::Handshake { phase: "begin a QUIC connection", source })?;
        if !(self.early_data && connection.has_early_data()) {
            connection.established().await.map_err(|error| broken("QUIC handshake", error))?;
        }
        Ok(connection)
    }

    /// Opens a stream to `target`.
    async fn open(
        &self,
        session: &Session,
        target: &Target,
        early: &mut BufChain,
    ) -> Result<BoxStream, DialError> {
        let (_, stream) = self.current.stream(|| self.connect(session)).await?;
        let head = Command::Connect(target.clone()).bytes();
        Headed::open(head, Box::new(stream), early)
            .await
            .map_err(|source| DialError::Handshake { phase: "send the request", source })
    }
}

fn broken(phase: &'static str, error: ConnectionError) -> DialError {
    DialError::Handshake { phase, source: error.into() }
}

/// Runs a connection: logs in, then hands what comes to the associations. Why it ended.
async fn drive(hub: Arc<Hub>, login: Arc<Login>) -> ConnectionError {
    let error = driving(&hub, &login).await;
    hub.end();
    match error {
        Ok(()) => hub.connection.closed().await,
        Err(error) => error,
    }
}

async fn driving(hub: &Arc<Hub>, login: &Login) -> Result<(), ConnectionError> {
    let connection = &hub.connection;
    let early = connection.has_early_data();
    connection.established().await?;
    if early && !connection.early_data_accepted() {
        // What was sent is lost, and its streams with it.
        connection.close(0, b"");
        return Ok(());
    }
    let mut token = [0; TOKEN_LEN];
    if connection.export_keying_material(&mut token, &login.id, login.password.as_bytes()).is_err() {
        connection.close(0, b"");
        return Ok(());
    }
    let mut stream = connection.open_uni().await?;
    // A connection that breaks here is seen below.
    let _ = stream.write_all(&Command::Authenticate { id: login.id, token }.bytes()).await;
    let _ = stream.shutdown().await;
    drop(stream);

    let mut heartbeat = tokio::time::interval(login.heartbeat.max(Duration::from_millis(100)));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut streams = JoinSet::new();
    let mut datagrams = Vec::new();
    loop {
        tokio::select! {
            error = connection.closed() => return Err(error),
            received = connection.recv_datagrams(&mut datagrams, BATCH) => {
                received?;
                for datagram in datagrams.drain(..) {
                    let mut reader = Reader::new(&datagram);
                    if let Ok(Command::Packet(head)) = Command::decode(&mut reader)
                        && let Ok(data) = reader.take(head.len.into())
                    {
                        hub.deliver(head, data, None);
                    }
                }
            }
            stream = connection.accept_uni() => {
                streams.spawn(commands::read(stream?));
            }
            Some(read) = streams.join_next(), if !streams.is_empty() => {
                if let Ok(Message::Packet(head, data)) = read {
                    hub.deliver(head, &data, None);
                }
            }
            _ = heartbeat.tick() => {
                let _ = connection.send_datagram(Bytes::from(Command::Heartbeat.bytes()));
            }
        }
    }
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
        self.open(session, &session.target, early).await
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let Some(mode) = self.mode else {
            let sign = Version::V2.magic_target();
            let stream = self.open(session, &sign, &mut BufChain::new()).await?;
            return Ok(Box::new(UotConn::client(Version::V2, stream, &session.target)));
        };
        let association = self.current.get(self.connect(session)).await?.open(mode);
        let full = || DialError::Refused {
            reason: "no association left in the connection".to_owned(),
            kind: std::io::ErrorKind::ConnectionReset,
        };
        Ok(Box::new(association.ok_or_else(full)?))
    }
}
