//! The client: one connection for all streams and associations, made when it is first needed and again when it has ended.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::outbound::hysteria::HysteriaOutbound;
use culvert_core::conn::write_chain;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, ServeError, Session, Tag, timeouts,
};
use culvert_quic::{ClientTls, Congestion, Connection, Disguise, QuicStream, Transport};
use culvert_wire::{BufChain, Reader, Target};
use tracing::debug;

use super::codec::{ClientHello, MAX_MESSAGE, Request, Response, ServerHello};
use super::packets::Hub;
use super::{ALPN, WRONG_PASSWORD, disguise, speeds};
use crate::fields::server::server;
use crate::headed::Headed;
use crate::quic::{self, Current, Hops, attempts, client_dialer, client_link, transport};
use crate::replied::Replied;
use crate::{BuildError, OutboundCx};

/// Datagrams taken at once.
const BATCH: usize = 64;

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    dialer: Dialer,
    server: Target,
    hops: Option<Hops>,
    tls: ClientTls,
    transport: Transport,
    disguise: Option<Arc<dyn Disguise>>,
    hello: ClientHello,
    tcp: bool,
    udp: bool,
    current: Current<Hub>,
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &HysteriaOutbound) -> Result<Self, BuildError> {
        let hops = Hops::new(&options.server_ports, &options.hop_interval, None)?;
        let mut server = options.server.clone();
        if let Some(hops) = &hops
            && server.server_port == 0
        {
            server.server_port = hops.first();
        }
        let server = self::server(&server)?;
        let (send, receive) = speeds(options.upload(), options.download())?;
        let mut base = Transport { bidi_streams: 0, uni_streams: 0, ..Transport::default() };
        let given = |value: u64, default: u64| if value > 0 { value } else { default };
        base.stream_window = given(options.recv_window_conn, base.stream_window);
        base.connection_window = given(options.recv_window, base.connection_window);
        base.mtu_discovery = !options.disable_mtu_discovery;
        Ok(Self {
            tag: cx.tag,
            dialer: client_dialer(cx.dialer),
            tls: quic::client(options.tls.as_deref(), &server.host, &cx.store, ALPN, false)?,
            server,
            hops,
            transport: transport(&options.quic, base)?,
            disguise: disguise(&options.obfs),
            hello: ClientHello { send, receive, auth: options.secret().to_vec() },
            tcp: options.network.tcp(),
            udp: options.network.udp(),
            current: Current::default(),
        })
    }

    /// A connection that the server has let in.
    async fn connect(&self, session: &Session) -> Result<Arc<Hub>, DialError> {
        let attempted = attempts(|number| Box::pin(self.attempt(session, number)));
        let (connection, control) = attempted.await?;
        Ok(self.run(connection, control, session))
    }

    async fn attempt(&self, session: &Session, number: usize) -> Result<(Connection, QuicStream), DialError> {
        let hop = self.hops.as_ref().map(|hops| hops.hop(&self.dialer));
        let (mut link, address) = client_link(&self.dialer, session, &self.server, number, hop).await?;
        if let Some(disguise) = &self.disguise {
            link = link.disguised(Arc::clone(disguise));
        }
        let connection = culvert_quic::connect(link, &self.tls, &self.transport, address)
            .map_err(|source| failed("begin a QUIC connection", source))?;
        let control = self.log_in(&connection).await?;
        Ok((connection, control))
    }

    /// Says hello. The stream of that stays open.
    async fn log_in(&self, connection: &Connection) -> Result<QuicStream, DialError> {
        const PHASE: &str = "hysteria handshake";
        let ended = |connection: &Connection, source: std::io::Error| match connection.error() {
            // What the server said may have been lost; the code says the same.
            Some(error) if error.application_code() == Some(WRONG_PASSWORD) => DialError::Credentials,
            _ => DialError::Handshake { phase: PHASE, source },
        };
        connection.established().await.map_err(|error| ended(connection, error.into()))?;
        let mut stream = connection.open_bi().await.map_err(|error| ended(connection, error.into()))?;
        write_chain(&mut stream, &mut BufChain::copied(&self.hello.bytes()))
            .await
            .map_err(|source| ended(connection, source))?;
        let read = read_message(&mut stream, &mut BufChain::new(), MAX_MESSAGE, ServerHello::decode).await;
        let hello = read.map_err(|error| {
            let source = match error {
                ServeError::Io(error) => error,
                other => std::io::Error::other(other),
            };
            ended(connection, source)
        })?;
        if !hello.ok {
            connection.close(0, b"");
            return Err(DialError::Credentials);
        }
        connection.set_congestion(Congestion::Brutal(self.hello.send.min(hello.receive)));
        Ok(stream)
    }

    /// Lets a connection run by itself until it ends.
    fn run(&self, connection: Connection, control: QuicStream, session: &Session) -> Arc<Hub> {
        let hub = Hub::new(connection);
        let (tag, id, running) = (self.tag.clone(), session.id.get(), Arc::clone(&hub));
        tokio::spawn(async move {
            let mut datagrams = Vec::new();
            while running.connection.recv_datagrams(&mut datagrams, BATCH).await.is_ok() {
                for datagram in datagrams.drain(..) {
                    running.deliver(&datagram);
                }
            }
            running.end();
            drop(control);
            let error = running.connection.closed().await;
            debug!(conn = id, "outbound/{tag}: connection to the server ended: {error}");
        });
        hub
    }
}

fn failed(phase: &'static str, source: std::io::Error) -> DialError {
    DialError::Handshake { phase, source }
}

/// The server's answer: what it says against the connection, if it does.
fn decode_answer(r: &mut Reader<'_>) -> Result<Result<(), String>, culvert_wire::DecodeError> {
    let answer = Response::decode(r)?;
    Ok(if answer.ok { Ok(()) } else { Err(answer.message) })
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
        let request = Request { udp: false, target: Some(session.target.clone()) }.bytes();
        let stream = Box::new(Replied::new(Box::new(stream), decode_answer, MAX_MESSAGE));
        Headed::open(request, stream, early).await.map_err(|source| failed("send the request", source))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let (hub, mut stream) = self.current.stream(|| self.connect(session)).await?;
        let request = Request { udp: true, target: Some(session.target.clone()) }.bytes();
        let limit = timeouts::OUTBOUND_HANDSHAKE;
        let asked = async {
            write_chain(&mut stream, &mut BufChain::copied(&request)).await?;
            read_message(&mut stream, &mut BufChain::new(), MAX_MESSAGE, Response::decode).await
        };
        let answer = tokio::time::timeout(limit, asked)
            .await
            .map_err(|_| DialError::Timeout { phase: "open an association", limit })?
            .map_err(|error| failed("open an association", std::io::Error::other(error)))?;
        let refused = |reason| DialError::Refused { reason, kind: std::io::ErrorKind::ConnectionRefused };
        if !answer.ok {
            return Err(refused(answer.message));
        }
        let entered = hub.enter(answer.session, stream);
        Ok(Box::new(entered.ok_or_else(|| refused("the number of the association is taken".to_owned()))?))
    }
}
