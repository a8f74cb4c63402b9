//! What carries a protocol's connections: plain TCP or a detour, TLS around it if asked for, and in it a transport.
//!
//! ```text
//! outbound   Carrier::connect ─▶ Lower::connect (dial fields, TLS) ─▶ transport ─▶ the protocol's own bytes
//! inbound    listener ─▶ TLS ─▶ the transport's server ─▶ the protocol's server
//! ```
//!
//! The transport `quic` stands in the place of all that.
//!
//! A protocol takes what comes out of [`Carrier::connect`] and what its server is given as a stream like any other. On
//! the side of the server each layer is a [`StreamServer`] around the next one, so a layer whose connection carries many
//! serves them all the same way.
//!
//! Source: sing-box 1.14.4, `transport` and `tls` of its options.

pub(crate) mod date;
mod grpc;
mod h2;
mod head;
mod http;
mod httpupgrade;
mod path;
mod quic;
mod reality;
#[cfg(test)]
mod testing;
mod tls;
mod ws;

use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_config::options::transport::{Transport, TransportKind};
use culvert_core::listener::StreamInbound;
use culvert_core::{BoxStream, DialError, Dialer, Inbound, Session, StreamServer};
use culvert_tls::{Facts, Securing, Store};
use culvert_wire::Target;

pub(crate) use self::tls::secured;
use crate::fields::listen::Listen;
use crate::fields::server::server;
use crate::table::MakeDialer;
use crate::{BuildError, InboundCx, Protocol};

/// The table's line, which is there for what reads bytes only: transports are options of protocols.
pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "transport",
    inbound: None,
    outbound: None,
    fuzz: &[
        head::fuzz_head,
        ws::fuzz_frames,
        grpc::fuzz_messages,
        culvert_tls::fuzz_client,
        culvert_tls::reality::server::hello::fuzz_client_hello,
        culvert_tls::reality::server::mirror::fuzz_plan,
    ],
};

/// The way of an outbound to its server.
pub(crate) struct Carrier {
    lower: Arc<Lower>,
    transport: Option<Box<dyn ClientTransport>>,
}

/// The way without a transport: a connection by the dial fields, with TLS around it if that is on.
pub(crate) struct Lower {
    dialer: Dialer,
    server: Target,
    tls: Option<Securing>,
    /// The name that the `tls` options give the server.
    server_name: Option<String>,
}

/// The client of a transport.
#[async_trait]
pub(crate) trait ClientTransport: Send + Sync {
    /// Opens one stream to the server, over a connection of its own from `lower` or one that is there.
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError>;
}

impl Carrier {
    /// The way that the options describe.
    pub(crate) fn new(
        dialer: Dialer,
        store: &Arc<Store>,
        address: &ServerOptions,
        tls: Option<&OutboundTls>,
        transport: &Transport,
    ) -> Result<Self, BuildError> {
        let server = server(address)?;
        if let Some(TransportKind::Quic(_)) = &transport.0 {
            // Its TLS is its own.
            let transport: Box<dyn ClientTransport> = Box::new(quic::Client::new(address, tls, store)?);
            let lower = Lower { dialer, server, tls: None, server_name: None };
            return Ok(Self { lower: Arc::new(lower), transport: Some(transport) });
        }
        let tls = tls.filter(|tls| tls.enabled);
        let alpn = transport.0.as_ref().map_or(&[][..], client_alpn);
        let server_name = tls.map(|tls| tls.server_name.clone()).filter(|name| !name.is_empty());
        let tls = tls.map(|tls| tls::securing(tls, &server.host, alpn, store)).transpose()?;
        let transport = transport.0.as_ref().map(client_transport).transpose()?;
        Ok(Self { lower: Arc::new(Lower { dialer, server, tls, server_name }), transport })
    }

    /// Opens one stream to the server.
    pub(crate) async fn connect(&self, session: &Session) -> Result<BoxStream, DialError> {
        match &self.transport {
            Some(transport) => transport.open(&self.lower, session).await,
            None => self.lower.connect(session).await.map(|(conn, _)| conn),
        }
    }
}

impl Lower {
    /// Opens one connection to the server; with TLS, also what was agreed on.
    pub(crate) async fn connect(&self, session: &Session) -> Result<(BoxStream, Option<Facts>), DialError> {
        let dial = || self.dialer.connect(session, &self.server);
        let Some(tls) = &self.tls else { return Ok((dial().await?, None)) };
        let (conn, facts) = tls.connect(&*self.dialer.resolver, dial).await?;
        Ok((Box::new(conn), Some(facts)))
    }
}

/// The inbound of a protocol behind the layers that the options ask for.
pub(crate) fn inbound(
    cx: InboundCx<'_>,
    listen: Listen,
    tls: Option<&InboundTls>,
    transport: &Transport,
    protocol: Arc<dyn StreamServer>,
) -> Result<Arc<dyn Inbound>, BuildError> {
    if let Some(TransportKind::Quic(_)) = &transport.0 {
        return Ok(Arc::new(quic::inbound(cx.tag, listen, tls, protocol)?));
    }
    let server = serve(cx.dialer, tls, transport, protocol)?;
    Ok(Arc::new(StreamInbound::new(cx.tag, listen.address, listen.tcp, server)))
}

/// The server of a protocol behind the layers that the options ask for: TLS outermost, then the transport.
fn serve(
    dialer: MakeDialer<'_>,
    tls: Option<&InboundTls>,
    transport: &Transport,
    protocol: Arc<dyn StreamServer>,
) -> Result<Arc<dyn StreamServer>, BuildError> {
    let Some(kind) = &transport.0 else { return secured(dialer, tls, &[], protocol) };
    secured(dialer, tls, server_alpn(kind), server_transport(kind, protocol)?)
}

/// What a client of the transport offers by ALPN where the options offer nothing.
fn client_alpn(kind: &TransportKind) -> &'static [&'static str] {
    match kind {
        TransportKind::Http(_) | TransportKind::Grpc(_) => &["h2"],
        TransportKind::Ws(_) | TransportKind::HttpUpgrade(_) => &["http/1.1"],
        TransportKind::Quic(_) => &["h3"],
    }
}

/// What a server of the transport takes by ALPN where the options name nothing.
fn server_alpn(kind: &TransportKind) -> &'static [&'static str] {
    match kind {
        TransportKind::Http(_) => &["h2", "http/1.1"],
        TransportKind::Grpc(_) => &["h2"],
        TransportKind::Ws(_) | TransportKind::HttpUpgrade(_) => &[],
        TransportKind::Quic(_) => &["h3"],
    }
}

fn client_transport(kind: &TransportKind) -> Result<Box<dyn ClientTransport>, BuildError> {
    Ok(match kind {
        TransportKind::Ws(options) => Box::new(ws::Client::new(options)?),
        TransportKind::HttpUpgrade(options) => Box::new(httpupgrade::Client::new(options)?),
        TransportKind::Http(options) => Box::new(http::Client::new(options)?),
        TransportKind::Grpc(options) => Box::new(grpc::Client::new(options)),
        TransportKind::Quic(_) => return Err(not_built(kind)),
    })
}

fn server_transport(
    kind: &TransportKind,
    protocol: Arc<dyn StreamServer>,
) -> Result<Arc<dyn StreamServer>, BuildError> {
    Ok(match kind {
        TransportKind::Ws(options) => Arc::new(ws::Server::new(options, protocol)),
        TransportKind::HttpUpgrade(options) => Arc::new(httpupgrade::Server::new(options, protocol)),
        TransportKind::Http(options) => Arc::new(http::Server::new(options, protocol)?),
        TransportKind::Grpc(options) => Arc::new(grpc::Server::new(options, protocol)),
        TransportKind::Quic(_) => return Err(not_built(kind)),
    })
}

fn not_built(kind: &TransportKind) -> BuildError {
    BuildError::NotBuilt { feature: format!("transport `{}`", kind.name()) }
}
