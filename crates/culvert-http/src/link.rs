//! One connection to a server.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use culvert_core::{BoxStream, Chain};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::Instant;

use crate::io::{Clock, Io, Tasks};
use crate::settings::Settings;

/// How long a connection is kept without a request where the options say nothing (what Go does).
const IDLE: Duration = Duration::from_secs(90);
/// Longest head of a response.
const HEAD: usize = 64 << 10;
/// How much a server may send ahead where the options say nothing: on one stream, and on all together.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);

type Body = Full<Bytes>;

/// A request in hand, whose connection is not idle.
pub(crate) struct Link {
    sender: Sender,
    usage: Arc<Usage>,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

/// A request that failed.
pub(crate) struct Unanswered {
    pub(crate) error: hyper::Error,
    /// The server has seen nothing of it.
    pub(crate) unsent: bool,
}

impl From<TrySendError<Request<Body>>> for Unanswered {
    fn from(mut failed: TrySendError<Request<Body>>) -> Self {
        Self { unsent: failed.take_message().is_some(), error: failed.into_error() }
    }
}

impl Link {
    pub(crate) async fn http1(conn: BoxStream, settings: &Settings) -> hyper::Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD);
        let (sender, connection) = builder.handshake(Io::new(conn)).await?;
        Ok(Self { sender: Sender::One(sender), usage: Usage::watch(connection, settings) })
    }

    pub(crate) async fn http2(conn: BoxStream, settings: &Settings) -> hyper::Result<Self> {
        let mut builder = http2::Builder::new(Tasks);
        builder
            .timer(Clock)
            .initial_stream_window_size(settings.stream_window.unwrap_or(WINDOWS.0))
            .initial_connection_window_size(settings.connection_window.unwrap_or(WINDOWS.1))
            .max_header_list_size(HEAD as u32)
            .keep_alive_interval(settings.keep_alive);
        let (sender, connection) = builder.handshake(Io::new(conn)).await?;
        Ok(Self { sender: Sender::Two(sender), usage: Usage::watch(connection, settings) })
    }

    /// The same connection once more, if it carries several requests at once.
    pub(crate) fn share(&self) -> Option<Self> {
        match &self.sender {
            Sender::One(_) => None,
            Sender::Two(sender) => {
                Some(Self { sender: Sender::Two(sender.clone()), usage: Arc::clone(&self.usage) })
            }
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.usage, &other.usage)
    }

    pub(crate) fn is_open(&self) -> bool {
        match &self.sender {
            Sender::One(sender) => !sender.is_closed(),
            Sender::Two(sender) => !sender.is_closed(),
        }
    }

    /// Marks the connection as used for as long as the result lives.
    pub(crate) fn hold(&self) -> Hold {
        self.usage.lock().holders += 1;
        Hold(Arc::clone(&self.usage))
    }

    /// Sends a request for `authority`, whose URL is absolute, and waits for the head of the response.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Body>,
        authority: &HeaderValue,
    ) -> Result<Response<Incoming>, Unanswered> {
        match &mut self.sender {
            Sender::One(sender) => {
                let path = request.uri().path_and_query().cloned();
                *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
                request.headers_mut().insert(header::HOST, authority.clone());
                Ok(sender.try_send_request(request).await?)
            }
            Sender::Two(sender) => {
                let mut parts = request.uri().clone().into_parts();
                if let Ok(authority) = Authority::try_from(authority.as_bytes()) {
                    parts.authority = Some(authority);
                }
                parts.scheme = Some(Scheme::HTTPS);
                if let Ok(url) = Uri::from_parts(parts) {
                    *request.uri_mut() = url;
                }
                Ok(sender.try_send_request(request).await?)
            }
        }
    }

    /// Waits until the next request can be sent; false if the server closes.
    pub(crate) async fn is_ready(&mut self) -> bool {
        match &mut self.sender {
            Sender::One(sender) => sender.ready().await.is_ok(),
            Sender::Two(sender) => sender.ready().await.is_ok(),
        }
    }
}

/// Whether a connection is in use, and since when it is not.
struct Usage(Mutex<Use>);

struct Use {
    holders: usize,
    since: Instant,
}

impl Usage {
    /// Drives the connection until it ends, or nobody has used it for long.
    fn watch(
        connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
        settings: &Settings,
    ) -> Arc<Self> {
        let usage = Arc::new(Self(Mutex::new(Use { holders: 0, since: Instant::now() })));
        let idle = settings.idle_timeout.unwrap_or(IDLE);
        let watched = Arc::clone(&usage);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            loop {
                match tokio::time::timeout_at(watched.wake(idle), connection.as_mut()).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => return tracing::debug!("http connection: {}", Chain(&error)),
                    Err(_) if watched.is_idle(idle) => return,
                    Err(_) => {}
                }
            }
        });
        usage
    }

    /// When to look next.
    fn wake(&self, idle: Duration) -> Instant {
        let usage = self.lock();
        if usage.holders > 0 { Instant::now() + idle } else { usage.since + idle }
    }

    fn is_idle(&self, idle: Duration) -> bool {
        let usage = self.lock();
        usage.holders == 0 && usage.since.elapsed() >= idle
    }

    fn lock(&self) -> MutexGuard<'_, Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use.
pub(crate) struct Hold(Arc<Usage>);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut usage = self.0.lock();
        usage.holders -= 1;
        usage.since = Instant::now();
    }
}
