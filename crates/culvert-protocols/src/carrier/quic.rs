//! The transport `quic`: each proxied connection is a stream of one QUIC connection, from its first byte on.
//!
//! Source: sing-box 1.14.4. TLS is part of it; the application protocol is `h3` where the options name none. What V2Ray's
//! own program had besides, a header and a cipher of its own around each packet, sing-box has not.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_core::{
    BoxStream, DialError, Dispatch, Network, ServeError, Session, SessionId, StreamServer, Tag,
};
use culvert_quic::{ClientTls, Connection, Transport};
use culvert_tls::Store;
use culvert_wire::Target;

use super::{ClientTransport, Lower};
use crate::BuildError;
use crate::fields::listen::Listen;
use crate::fields::server::server;
use crate::quic::{self, Attempt, Carrying, Current, Listener, attempts, client_dialer, client_link};
use crate::running::Running;

const ALPN: &[&str] = &["h3"];

/// The client's side.
pub(super) struct Client {
    tls: ClientTls,
    transport: Transport,
    current: Current<Hub>,
}

struct Hub(Connection);

impl Carrying for Hub {
    fn connection(&self) -> &Connection {
        &self.0
    }
}

impl Client {
    pub(super) fn new(
        address: &ServerOptions,
        tls: Option<&OutboundTls>,
        store: &Arc<Store>,
    ) -> Result<Self, BuildError> {
        let server = server(address)?;
        Ok(Self {
            tls: quic::client(tls, &server.host, store, ALPN, false)?,
            transport: Transport { bidi_streams: 0, uni_streams: 0, datagram: None, ..Transport::default() },
            current: Current::default(),
        })
    }

    async fn connect(&self, lower: &Lower, session: &Session) -> Result<Arc<Hub>, DialError> {
        let dialer = client_dialer(lower.dialer.clone());
        let begin = |number| -> Attempt<'_, Connection> {
            let dialer = &dialer;
            Box::pin(async move {
                let failed = |phase, source| DialError::Handshake { phase, source };
                let (link, address) = client_link(dialer, session, &lower.server, number, None).await?;
                let connection = culvert_quic::connect(link, &self.tls, &self.transport, address)
                    .map_err(|source| failed("begin a QUIC connection", source))?;
                let established = connection.established().await;
                established.map_err(|error| failed("QUIC handshake", error.into()))?;
                Ok(connection)
            })
        };
        attempts(begin).await.map(|connection| Arc::new(Hub(connection)))
    }
}

#[async_trait]
impl ClientTransport for Client {
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError> {
        let (_, stream) = self.current.stream(|| self.connect(lower, session)).await?;
        Ok(Box::new(stream))
    }
}

/// The server's side: hands each stream to the protocol.
pub(super) struct Service {
    tag: Tag,
    protocol: Arc<dyn StreamServer>,
}

/// An inbound with this transport.
pub(super) fn inbound(
    tag: Tag,
    listen: Listen,
    tls: Option<&InboundTls>,
    protocol: Arc<dyn StreamServer>,
) -> Result<Listener<Service>, BuildError> {
    let tls = tls
        .filter(|tls| tls.enabled)
        .ok_or_else(|| BuildError::Invalid { option: "tls", reason: "it is required".to_owned() })?;
    let settings = culvert_tls::options::server(tls)?;
    Ok(Listener {
        secret: quic::lasting_secret(&settings.identity)?,
        tls: quic::server(&settings, ALPN, false)?,
        transport: Transport { uni_streams: 0, datagram: None, keep_alive: None, ..Transport::default() },
        disguise: None,
        service: Arc::new(Service { tag: tag.clone(), protocol }),
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
            let (alpn, _) = connection.facts();
            let alpn = alpn.and_then(|alpn| String::from_utf8(alpn).ok()).map(Arc::from);
            // Who opens no stream says nothing. From the first one on each is a stranger until its protocol knows it.
            let mut handshake = Some(handshake);
            while let Ok(stream) = connection.accept_bi().await {
                drop(handshake.take());
                let session = Session {
                    id: SessionId::next(),
                    network: Network::Tcp,
                    inbound: service.tag.clone(),
                    user: None,
                    source,
                    target: Target::from(source),
                    sniffed: None,
                    alpn: Option::clone(&alpn),
                };
                inner.serve(Arc::clone(&service.protocol), Box::new(stream), session);
            }
            Ok(())
        });
    }
}
