//! The server of type `quic`: each question is a stream of its own on one connection.
//!
//! ```text
//! client   | length 2 | message, id 0 |  end
//! server   | length 2 | message, id 0 |  end
//! ```
//!
//! How a question travels on its stream is an [`Ask`]: a bare message here, a request of HTTP/3 for the type
//! [`h3`](mod@super::h3).
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
use culvert_quic::{ClientTls, Connection, Link, QuicStream, Transport, connect};
use culvert_tls::{Connector, Securing};
use culvert_wire::Target;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::slot::{PATIENCE, hedge};
use super::{BuildError, DnsServer, session};
use crate::DnsError;
use crate::message::{NoReply, Query, Reply};
use crate::plain::{push_framed, read_message};

/// Streams are told apart by themselves, so messages have no id (section 4.2.1).
const ID: u16 = 0;
/// How long a connection without questions stays.
const IDLE: Duration = Duration::from_secs(30);
/// Most that a server may send ahead on one stream: the longest message, and its length.
const WINDOW: u64 = 2 + u16::MAX as u64;

/// How questions travel on the streams of a connection.
#[async_trait]
pub trait Ask: Send + Sync + 'static {
    /// What a connection has beside questions, for as long as it is in use.
    type Beside: Send + Sync;
    /// The application protocol.
    const ALPN: &'static str;
    /// Streams in one direction that the server may open.
    const UNI_STREAMS: u64;
    /// Closes a connection without a fault.
    const NO_ERROR: u64;

    /// Makes a connection ready.
    ///
    /// # Errors
    /// It has ended.
    async fn begin(&self, connection: &Connection) -> io::Result<Self::Beside>;

    /// Asks on a stream of its own, and reads what is answered.
    ///
    /// # Errors
    /// The stream broke, or what came is not the protocol.
    async fn ask(&self, stream: QuicStream, message: Vec<u8>) -> io::Result<Vec<u8>>;
}

/// Messages with their length before them: DNS over QUIC.
pub struct Streams;

#[async_trait]
impl Ask for Streams {
    type Beside = ();
    const ALPN: &'static str = "doq";
    const UNI_STREAMS: u64 = 0;
    const NO_ERROR: u64 = 0;

    async fn begin(&self, _: &Connection) -> io::Result<()> {
        Ok(())
    }

    async fn ask(&self, mut stream: QuicStream, message: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut framed = Vec::new();
        push_framed(&mut framed, &message)?;
        stream.write_all(&framed).await?;
        stream.shutdown().await?;
        read_message(&mut stream).await
    }
}

/// A server asked over QUIC.
pub struct QuicServer<A: Ask> {
    tag: Tag,
    name: Arc<str>,
    dialer: Dialer,
    target: Target,
    tls: Securing,
    form: A,
    current: Mutex<Option<Arc<Current<A::Beside>>>>,
    /// Held while a connection is opened, so that many askers open one.
    opening: AsyncMutex<()>,
}

/// The connection in use.
struct Current<B> {
    connection: Connection,
    since: Instant,
    /// When a reply was last read.
    heard: Mutex<Option<Instant>>,
    _beside: B,
}

impl<A: Ask> QuicServer<A> {
    /// The server at `target`, which `tls` knows by its name.
    ///
    /// # Errors
    /// The TLS settings cannot be used over QUIC.
    pub fn new(
        tag: Tag,
        dialer: Dialer,
        target: Target,
        tls: Connector,
        form: A,
    ) -> Result<Self, BuildError> {
        ClientTls::new(&tls, &[A::ALPN], false)?;
        let tls = Securing::new(tls)?;
        let (current, opening) = (Mutex::default(), AsyncMutex::default());
        Ok(Self { name: tag.to_string().into(), tag, dialer, target, tls, form, current, opening })
    }

    async fn ask(&self, query: &Query, begun: Instant) -> Result<Reply, DnsError> {
        let current = self.current(begun).await?;
        let failed = |source| DnsError::network(&self.name, source);
        let answer = async {
            let stream = current.connection.open_bi().await.map_err(io::Error::other)?;
            self.form.ask(stream, query.encode(ID)).await
        };
        let message = answer.await.map_err(|error| {
            // It may be about to end: those who come later had better take another one.
            self.forget(&current);
            failed(error)
        })?;
        *lock(&current.heard) = Some(Instant::now());
        Reply::parse(&message, query, ID).map_err(|no| match no {
            NoReply::Malformed(source) => DnsError::Malformed { server: Arc::clone(&self.name), source },
            NoReply::Foreign => {
                failed(io::Error::new(io::ErrorKind::InvalidData, "a reply to another question"))
            }
        })
    }

    /// The connection for a question that was first asked at `begun`.
    async fn current(&self, begun: Instant) -> Result<Arc<Current<A::Beside>>, DnsError> {
        if let Some(current) = self.usable(begun) {
            return Ok(current);
        }
        let _opening = self.opening.lock().await;
        if let Some(current) = self.usable(begun) {
            return Ok(current);
        }
        let connection = self.open().await.map_err(|error| {
            let reason = Chain(&error).to_string().into();
            DnsError::Dial { server: Arc::clone(&self.name), reason }
        })?;
        let beside = self.form.begin(&connection).await;
        let beside = beside.map_err(|source| DnsError::network(&self.name, source))?;
        let (since, heard) = (Instant::now(), Mutex::default());
        let current = Arc::new(Current { connection, since, heard, _beside: beside });
        *lock(&self.current) = Some(Arc::clone(&current));
        Ok(current)
    }

    fn forget(&self, gone: &Arc<Current<A::Beside>>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, gone)) {
            *current = None;
        }
    }

    /// The current one, unless it has ended, or no reply has come by it for as long as the question has waited.
    fn usable(&self, begun: Instant) -> Option<Arc<Current<A::Beside>>> {
        let current = Arc::clone(lock(&self.current).as_ref()?);
        let is_silent = lock(&current.heard).is_none_or(|heard| heard < begun);
        let is_dead = begun.max(current.since).elapsed() >= PATIENCE && is_silent;
        (current.connection.error().is_none() && !is_dead).then_some(current)
    }

    async fn open(&self) -> Result<Connection, DialError> {
        let connector = self.tls.connector(&*self.dialer.resolver).await?;
        let failed = |source| DialError::Handshake { phase: "begin QUIC", source };
        let tls = ClientTls::new(&connector, &[A::ALPN], false).map_err(io::Error::other).map_err(failed)?;
        let session = session(&self.tag, Network::Udp, &self.target);
        let mut last = None;
        for ip in self.dialer.resolve(&self.target).await? {
            let server = SocketAddr::new(ip, self.target.port);
            let packets = self.dialer.packets(&session, &server.into()).await?;
            let link = Link::packets(packets, server, server.into());
            let connection = connect(link, &tls, &transport(A::UNI_STREAMS), server).map_err(failed)?;
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn transport(uni_streams: u64) -> Transport {
    Transport {
        stream_window: WINDOW,
        connection_window: 64 * WINDOW,
        bidi_streams: 0,
        uni_streams,
        idle_timeout: IDLE,
        keep_alive: None,
        datagram: None,
        ..Transport::default()
    }
}

#[async_trait]
impl<A: Ask> DnsServer for QuicServer<A> {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let begun = Instant::now();
        let again = || self.ask(query, begun);
        hedge(self.ask(query, begun), PATIENCE, || hedge(again(), 2 * PATIENCE, again)).await
    }

    fn reset(&self) {
        if let Some(current) = lock(&self.current).take() {
            current.connection.close(A::NO_ERROR, b"");
        }
    }
}
