//! HTTP as a carrier: one request whose body goes up and whose response's body comes down.
//!
//! ```text
//! without TLS, HTTP/1.1   client  PUT /path HTTP/1.1 …  the stream as it is      server  200 …  the stream as it is
//! with TLS, HTTP/2        client  PUT /path, body                                server  200, body
//! ```
//!
//! The first form only looks like HTTP: there is no length, and the chunks that the answer promises do not come. Behind
//! the heads it is the conn below, which can be spliced. A server takes HTTP/2 without TLS too.
//!
//! Sources: sing-box 1.14.4; RFC 9113.

mod conn;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::rand;
use culvert_config::options::transport::HttpTransport;
use culvert_core::{BoxStream, DialError, Dispatch, Handshake, Prefixed, ServeError, Session, StreamServer};
use culvert_wire::BufChain;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};

use self::conn::Http1Conn;
use super::h2::{self, Door, Entry, Format, Health, Pool};
use super::head::{self, Extra, Refusal, accept, is_http2};
use super::{ClientTransport, Lower, date, path};
use crate::BuildError;
use crate::handshake::send;

/// The client.
pub(super) struct Client {
    method: Method,
    path: String,
    hosts: Vec<String>,
    headers: Extra,
    pool: Arc<Pool>,
}

impl Client {
    pub(super) fn new(options: &HttpTransport) -> Result<Self, BuildError> {
        let method = if options.method.is_empty() { "PUT" } else { &options.method };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| BuildError::Invalid {
            option: "transport.method",
            reason: format!("{method:?} cannot be a method"),
        })?;
        let health = Health {
            idle: options.idle_timeout.get(),
            timeout: options.ping_timeout.get(),
            without_streams: true,
        };
        let headers = Extra::new(&options.headers)?;
        let (path, hosts) = (path::escaped(&options.path), options.host.to_vec());
        Ok(Self { method, path, hosts, headers, pool: Arc::new(Pool::new(health)) })
    }

    /// One of the hosts at random.
    fn host(&self) -> Option<&str> {
        let mut dice = [0; 4];
        let _ = rand::fill(&mut dice);
        let at = (u32::from_ne_bytes(dice) as usize).checked_rem(self.hosts.len())?;
        self.hosts.get(at).map(String::as_str)
    }

    /// The head of HTTP/1.1.
    fn head(&self, lower: &Lower) -> String {
        let Self { method, path, headers, .. } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let own = headers.first("host").map(str::to_owned);
        let host = own.or_else(|| self.host().map(str::to_owned));
        let host = host.unwrap_or_else(|| lower.server.host.to_string());
        let _ = write!(head, "Host: {host}\r\n");
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        for name in names {
            let values: Vec<&str> =
                headers.iter().filter(|(other, _)| *other == name).map(|(_, value)| value).collect();
            let _ = write!(head, "{name}: {}\r\n", values.join(", "));
        }
        head.push_str("\r\n");
        head
    }

    /// The request of HTTP/2.
    fn request(&self) -> Result<Request<()>, http::Error> {
        let own = self.headers.first("host");
        let host = own.or_else(|| self.host()).unwrap_or("www.example.com");
        let mut request =
            Request::builder().method(self.method.clone()).uri(format!("https://{host}{}", self.path));
        for (name, value) in self.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
            request = request.header(name, value);
        }
        if self.headers.first("user-agent").is_none() {
            request = request.header(header::USER_AGENT, "Go-http-client/2.0");
        }
        request.body(())
    }
}

#[async_trait]
impl ClientTransport for Client {
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError> {
        if lower.tls.is_none() {
            let (conn, _) = lower.connect(session).await?;
            return Ok(Box::new(Http1Conn::new(conn, self.head(lower))));
        }
        let request = self.request().map_err(|error| DialError::Handshake {
            phase: "HTTP/2 request",
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        self.pool.open(lower, session, request, || Format::Plain).await
    }
}

/// A server inside HTTP.
pub(super) struct Server {
    method: String,
    path: String,
    hosts: Vec<String>,
    headers: Extra,
    idle_timeout: Option<Duration>,
    next: Arc<dyn StreamServer>,
}

impl Server {
    pub(super) fn new(options: &HttpTransport, next: Arc<dyn StreamServer>) -> Result<Self, BuildError> {
        let mut headers = Extra::new(&options.headers)?;
        if headers.first("cache-control").is_none() {
            headers.set("Cache-Control", "no-store");
        }
        Ok(Self {
            method: options.method.clone(),
            path: path::absolute(&options.path),
            hosts: options.host.to_vec(),
            headers,
            idle_timeout: options.idle_timeout.get(),
            next,
        })
    }

    fn check(&self, host: &str, path: &[u8], method: &str) -> Result<(), Refusal> {
        if !self.hosts.is_empty() && !self.hosts.iter().any(|known| known == host) {
            Err(Refusal::bad("HTTP request: host"))
        } else if !path.starts_with(self.path.as_bytes()) {
            Err(Refusal::not_found("HTTP request: path"))
        } else if !self.method.is_empty() && self.method != method {
            Err(Refusal::not_found("HTTP request: method"))
        } else {
            Ok(())
        }
    }

    /// The head of an answer in HTTP/1.
    fn answer(&self, minor: u8) -> String {
        let mut answer = format!("HTTP/1.{minor} 200 OK\r\n");
        self.headers.write(&mut answer);
        let _ = write!(answer, "Date: {}\r\n", date::now());
        answer.push_str(if minor == 1 { "Transfer-Encoding: chunked\r\n\r\n" } else { "\r\n" });
        answer
    }
}

impl Door for Server {
    fn judge(&self, request: &Parts) -> Result<Entry, Refusal> {
        let named = request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = request.uri.authority().map(http::uri::Authority::as_str).or(named).unwrap_or_default();
        let path = path::of_target(request.uri.path()).ok_or(Refusal::not_found("HTTP request: path"))?;
        self.check(host, &path, request.method.as_str())?;
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers.iter() {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            {
                headers.append(name, value);
            }
        }
        Ok(Entry { headers, at_once: true, format: Format::Plain })
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
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        if is_http2(&mut conn, &mut early).await? {
            return h2::serve(conn, early, session, handshake, dispatch, self, &self.next).await;
        }
        let judge = |request: &head::Request| self.check(&request.host, &request.path, &request.method);
        let (request, ()) = accept(&mut conn, &mut early, judge).await?;
        send(&mut conn, self.answer(request.minor).as_bytes()).await?;
        session.source = request.source(session.source);
        self.next.serve(Prefixed::wrap(early, conn), session, handshake, dispatch).await
    }
}
