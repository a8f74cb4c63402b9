//! The server of type `quic`: each question is a stream of its own on one connection.
//!
//! ```text
//! client   | length 2 | message, id 0 |  end
//! server   | length 2 | message, id 0 |  end
//! ```
//!
//! A question without an answer after a second is asked once more; on another connection, if no reply at all has come by
//! this one meanwhile. A connection ends after half a minute without questions.
//!
//! Source: RFC 9250. Left out: early data, which others could replay.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{Chain, DialError, Dialer, Network, Tag, timeouts};
use culvert_quic::{ClientTls, Connection, Link, Transport, connect};
use culvert_wire::Target;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::slot::{PATIENCE, hedge};
use super::{DnsServer, session};
use crate::DnsError;
use crate::message::{NoReply, Query, Reply};
use crate::plain::{push_framed, read_message};

/// Application protocol, RFC 9250 section 4.1.1.
pub(super) const ALPN: &str = "doq";
/// Streams are told apart by themselves, so messages have no id (section 4.2.1).
const ID: u16 = 0;
/// DOQ_NO_ERROR.
const NO_ERROR: u64 = 0;
/// How long a connection without questions stays.
const IDLE: Duration = Duration::from_secs(30);
/// Most that a server may send ahead on one stream: the longest message, and its length.
const WINDOW: u64 = 2 + u16::MAX as u64;

/// A server of type `quic`.
pub struct QuicServer {
    tag: Tag,
    name: Arc<str>,
    dialer: Dialer,
    target: Target,
    tls: ClientTls,
    current: Mutex<Option<Current>>,
    /// Held while a connection is opened, so that many askers open one.
    opening: AsyncMutex<()>,
}

/// The connection in use.
#[derive(Clone)]
struct Current {
    connection: Connection,
    since: Instant,
    /// When a reply was last read.
    heard: Option<Instant>,
}

impl QuicServer {
    /// The server at `target`, which `tls` knows by its name.
    #[must_use]
    pub fn new(tag: Tag, dialer: Dialer, target: Target, tls: ClientTls) -> Self {
        let (current, opening) = (Mutex::default(), AsyncMutex::default());
        Self { name: tag.to_string().into(), tag, dialer, target, tls, current, opening }
    }

    async fn ask(&self, query: &Query, begun: Instant) -> Result<Reply, DnsError> {
        let connection = self.connection(begun).await?;
        let failed = |source| DnsError::network(&self.name, source);
        let answer = async {
            let mut stream = connection.open_bi().await.map_err(io::Error::other)?;
            let mut message = Vec::new();
            push_framed(&mut message, &query.encode(ID))?;
            stream.write_all(&message).await?;
            stream.shutdown().await?;
            read_message(&mut stream).await
        };
        let message = answer.await.map_err(failed)?;
        if let Some(current) = &mut *self.lock() {
            current.heard = Some(Instant::now());
        }
        Reply::parse(&message, query, ID).map_err(|no| match no {
            NoReply::Malformed(source) => DnsError::Malformed { server: Arc::clone(&self.name), source },
            NoReply::Foreign => {
                failed(io::Error::new(io::ErrorKind::InvalidData, "a reply to another question"))
            }
        })
    }

    /// The connection for a question that was first asked at `begun`.
    async fn connection(&self, begun: Instant) -> Result<Connection, DnsError> {
        if let Some(connection) = self.usable(begun) {
            return Ok(connection);
        }
        let _opening = self.opening.lock().await;
        if let Some(connection) = self.usable(begun) {
            return Ok(connection);
        }
        let connection = self.open().await.map_err(|error| {
            let reason = Chain(&error).to_string().into();
            DnsError::Dial { server: Arc::clone(&self.name), reason }
        })?;
        let current = Current { connection: connection.clone(), since: Instant::now(), heard: None };
        *self.lock() = Some(current);
        Ok(connection)
    }

    /// The current one, unless it has ended, or no reply has come by it for as long as the question has waited.
    fn usable(&self, begun: Instant) -> Option<Connection> {
        let Current { connection, since, heard } = self.lock().clone()?;
        let is_silent = heard.is_none_or(|heard| heard < begun);
        let is_dead = begun.max(since).elapsed() >= PATIENCE && is_silent;
        (connection.error().is_none() && !is_dead).then_some(connection)
    }

    async fn open(&self) -> Result<Connection, DialError> {
        let session = session(&self.tag, Network::Udp, &self.target);
        let mut last = None;
        for ip in self.dialer.resolve(&self.target).await? {
            let server = SocketAddr::new(ip, self.target.port);
            let packets = self.dialer.packets(&session, &server.into()).await?;
            let failed = |source| DialError::Handshake { phase: "begin QUIC", source };
            let link = Link::packets(packets, server, server.into());
            let connection = connect(link, &self.tls, &transport(), server).map_err(failed)?;
            match timeout(timeouts::OUTBOUND_HANDSHAKE, connection.established()).await {
                Ok(Ok(())) => return Ok(connection),
                Ok(Err(error)) => {
                    let source = io::Error::other(error);
                    last = Some(DialError::Handshake { phase: "QUIC handshake", source });
                }
                Err(_) => {
                    let limit = timeouts::OUTBOUND_HANDSHAKE;
                    last = Some(DialError::Timeout { phase: "QUIC handshake", limit });
                }
            }
        }
        Err(last.unwrap_or_else(|| DialError::Connect {
            target: self.target.clone(),
            source: io::ErrorKind::AddrNotAvailable.into(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn transport() -> Transport {
    Transport {
        stream_window: WINDOW,
        connection_window: 64 * WINDOW,
        bidi_streams: 0,
        uni_streams: 0,
        idle_timeout: IDLE,
        keep_alive: None,
        datagram: None,
        ..Transport::default()
    }
}

#[async_trait]
impl DnsServer for QuicServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let begun = Instant::now();
        let again = || self.ask(query, begun);
        hedge(self.ask(query, begun), PATIENCE, || hedge(again(), 2 * PATIENCE, again)).await
    }

    fn reset(&self) {
        if let Some(current) = self.lock().take() {
            current.connection.close(NO_ERROR, b"");
        }
    }
}
