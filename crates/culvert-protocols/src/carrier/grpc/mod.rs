//! gRPC as a carrier, known as "gun": one call whose messages, both ways, hold a stream's bytes.
//!
//! ```text
//! client  POST /{service}/Tun  content-type: application/grpc        server  200, with the first message
//!         messages                                                           messages
//! ```
//!
//! One connection of HTTP/2 carries the streams of many sessions. Over TLS it is agreed on by ALPN, without it is spoken at
//! once. There are no trailers, as in sing-box's own ("lite") form; those of a full gRPC server are understood.
//!
//! Sources: `codec.rs`; sing-box 1.14.4.

mod codec;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::transport::GrpcTransport;
use culvert_core::{BoxStream, DialError, Dispatch, Handshake, ServeError, Session, StreamServer};
use culvert_wire::BufChain;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, header};

pub(crate) use self::codec::fuzz_messages;
pub(super) use self::codec::{Deframer, MAX_HEAD, frame};
use super::h2::{self, Door, Entry, Format, Health, Pool};
use super::head::{Refusal, accept, is_http2};
use super::{ClientTransport, Lower, path};

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// The client.
pub(super) struct Client {
    path: String,
    pool: Arc<Pool>,
}

impl Client {
    pub(super) fn new(options: &GrpcTransport) -> Self {
        let health = Health {
            idle: options.idle_timeout.get(),
            timeout: options.ping_timeout.get(),
            without_streams: options.permit_without_stream,
        };
        let path = format!("/{}/Tun", path::escaped_segment(&options.service_name));
        Self { path, pool: Arc::new(Pool::new(health)) }
    }

    fn request(&self, lower: &Lower) -> Result<Request<()>, http::Error> {
        let host = match &lower.server_name {
            Some(name) => format!("{name}:{}", lower.server.port),
            None => lower.server.to_string(),
        };
        Request::builder()
            .method(Method::POST)
            .uri(format!("https://{host}{}", self.path))
            .header(header::CONTENT_TYPE, MEDIA_TYPE)
            .header(header::USER_AGENT, "grpc-go/1.48.0")
            .header(header::TE, TRAILERS)
            .body(())
    }
}

#[async_trait]
impl ClientTransport for Client {
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError> {
        let request = self.request(lower).map_err(|error| DialError::Handshake {
            phase: "gRPC request",
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        self.pool.open(lower, session, request, || Format::Messages(Deframer::default())).await
    }
}

/// A server inside gRPC.
pub(super) struct Server {
    path: String,
    idle_timeout: Option<Duration>,
    next: Arc<dyn StreamServer>,
}

impl Server {
    pub(super) fn new(options: &GrpcTransport, next: Arc<dyn StreamServer>) -> Self {
        let path = format!("/{}/Tun", options.service_name);
        Self { path, idle_timeout: options.idle_timeout.get(), next }
    }
}

impl Door for Server {
    fn judge(&self, request: &Parts) -> Result<Entry, Refusal> {
        let media_type = request.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if path::of_target(request.uri.path()).as_deref() != Some(self.path.as_bytes()) {
            return Err(Refusal::not_found("gRPC request: path"));
        }
        if request.method != Method::POST {
            return Err(Refusal::not_found("gRPC request: method"));
        }
        if !media_type.is_some_and(|value| value.starts_with(MEDIA_TYPE.as_bytes())) {
            return Err(Refusal::not_found("gRPC request: content type"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, MEDIA_TYPE);
        headers.insert(header::TE, TRAILERS);
        Ok(Entry { headers, at_once: false, format: Format::Messages(Deframer::default()) })
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }
}

#[async_trait]
impl StreamServer for Server {
    async fn serve(
        &self,
        mut conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        if is_http2(&mut conn, &mut early).await? {
            return h2::serve(conn, early, session, handshake, dispatch, self, &self.next).await;
        }
        // A call needs HTTP/2; to anything else this is a web server without pages.
        let nothing = |_: &_| Err::<(), _>(Refusal::not_found("gRPC request: not over HTTP/2"));
        accept(&mut conn, &mut early, nothing).await.map(|_| ())
    }
}
