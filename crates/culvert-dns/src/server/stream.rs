//! DNS over a byte stream: many questions on one connection, answered in any order.
//!
//! ```text
//! | length 2 | message | length 2 | message | …
//! ```
//!
//! One task per connection writes what is asked and reads what is answered, both at once. An idle connection is closed
//! after a while. What makes the stream is a [`Connect`]: plain TCP here, TLS over it for the type [`tls`](mod@super::tls).
//!
//! Source: RFC 7766 (pipelining in section 6.2.1.1, idle connections in 6.2.3).

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{BoxStream, Chain, DialError, Dialer, Network, Tag};
use culvert_wire::Target;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::link::{Link, Out, QUEUE};
use super::slot::Slot;
use super::{DnsServer, session};
use crate::DnsError;
use crate::message::{Query, Reply};
use crate::plain::{push_framed, read_message};

/// However busy: no connection takes questions for longer.
const LONGEST: Duration = Duration::from_secs(3600);
/// Most questions written at once.
const BATCH: usize = 64;

/// Makes streams to one server.
#[async_trait]
pub trait Connect: Send + Sync {
    /// How long a connection without questions stays.
    const IDLE: Duration;

    /// A stream that messages can be written to.
    ///
    /// # Errors
    /// Those of the dial.
    async fn connect(&self) -> Result<BoxStream, DialError>;
}

/// Plain TCP, or whatever stream the detour makes.
pub struct TcpConnect {
    tag: Tag,
    pub(super) dialer: Dialer,
    target: Target,
}

impl TcpConnect {
    /// Streams to `target`.
    #[must_use]
    pub fn new(tag: Tag, dialer: Dialer, target: Target) -> Self {
        Self { tag, dialer, target }
    }
}

#[async_trait]
impl Connect for TcpConnect {
    const IDLE: Duration = Duration::from_secs(10);

    async fn connect(&self) -> Result<BoxStream, DialError> {
        let session = session(&self.tag, Network::Tcp, &self.target);
        self.dialer.connect(&session, &self.target).await
    }
}

/// A server of type `tcp`.
pub type TcpServer = StreamServer<TcpConnect>;

/// A server asked over streams.
pub struct StreamServer<C> {
    tag: Tag,
    name: Arc<str>,
    slot: Slot,
    connect: C,
}

impl TcpServer {
    /// The server at `target`.
    #[must_use]
    pub fn new(tag: Tag, dialer: Dialer, target: Target) -> Self {
        Self::over(tag.clone(), TcpConnect::new(tag, dialer, target))
    }
}

impl<C: Connect> StreamServer<C> {
    /// A server behind the streams that `connect` makes.
    #[must_use]
    pub fn over(tag: Tag, connect: C) -> Self {
        Self { name: tag.to_string().into(), slot: Slot::default(), tag, connect }
    }

    async fn open(&self) -> Result<Arc<Link>, DnsError> {
        let stream = self.connect.connect().await.map_err(|error| {
            let reason = Chain(&error).to_string().into();
            DnsError::Dial { server: Arc::clone(&self.name), reason }
        })?;
        let (queue, questions) = mpsc::channel(QUEUE);
        let link = Arc::new(Link::new(Arc::clone(&self.name), Out::Queue(queue)));
        let (name, weak) = (Arc::clone(&self.name), Arc::downgrade(&link));
        tokio::spawn(async move {
            let error = run(stream, questions, &weak, C::IDLE).await.err();
            let error = error.unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into());
            if let Some(link) = weak.upgrade() {
                link.end(&DnsError::network(name, error));
            }
        });
        Ok(link)
    }
}

#[async_trait]
impl<C: Connect> DnsServer for StreamServer<C> {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        self.slot.ask(query, LONGEST, || self.open()).await
    }

    fn reset(&self) {
        self.slot.forget();
    }
}

/// Serves one connection until it ends, is idle, or nobody holds its link.
async fn run(
    stream: BoxStream,
    questions: mpsc::Receiver<Vec<u8>>,
    link: &Weak<Link>,
    idle: Duration,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        ended = write(writer, questions, link, idle) => ended,
        ended = read(reader, link) => ended,
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut questions: mpsc::Receiver<Vec<u8>>,
    link: &Weak<Link>,
    idle: Duration,
) -> io::Result<()> {
    let mut messages = Vec::new();
    loop {
        let count = match timeout(idle, questions.recv_many(&mut messages, BATCH)).await {
            Ok(count) => count,
            Err(_) => match link.upgrade() {
                Some(link) if !link.end_if_idle() => continue,
                _ => 0,
            },
        };
        if count == 0 {
            return writer.shutdown().await;
        }
        // What waits together leaves together.
        let mut framed = Vec::new();
        for message in messages.drain(..) {
            push_framed(&mut framed, &message)?;
        }
        writer.write_all(&framed).await?;
        writer.flush().await?;
    }
}

async fn read(mut reader: impl AsyncRead + Unpin, link: &Weak<Link>) -> io::Result<()> {
    loop {
        let message = read_message(&mut reader).await?;
        let Some(link) = link.upgrade() else { return Ok(()) };
        if !link.deliver(&message) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "flooded with foreign messages"));
        }
    }
}
