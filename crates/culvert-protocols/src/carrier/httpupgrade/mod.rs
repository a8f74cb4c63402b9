//! An upgrade of HTTP/1.1 as a carrier: one request, one answer, then the bytes as they are.
//!
//! ```text
//! client  GET /path HTTP/1.1 … Connection: Upgrade, Upgrade: websocket      server  101 …
//!         the stream                                                                the stream
//! ```
//!
//! It looks like WebSocket to proxies on the way, but has neither its key nor its frames; a request with a key is refused.
//! Behind the heads the conn is the one below, which can be spliced where that is plain.
//!
//! Source: sing-box 1.14.4.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::transport::HttpUpgradeTransport;
use culvert_core::{BoxStream, DialError, Dispatch, Handshake, Prefixed, ServeError, Session, StreamServer};
use culvert_wire::BufChain;

use super::head::{Extra, Refusal, Request, accept, read_response};
use super::{ClientTransport, Lower, date, path};
use crate::BuildError;
use crate::handshake::{dial_error, send, within_limit, write_error};

const PHASE: &str = "HTTP upgrade";

/// The client.
pub(super) struct Client {
    path: String,
    host: Option<String>,
    /// All headers but `Host`.
    lines: String,
}

impl Client {
    pub(super) fn new(options: &HttpUpgradeTransport) -> Result<Self, BuildError> {
        let mut headers = Extra::new(&options.headers)?;
        let agent = headers.remove("user-agent").unwrap_or_else(|| "Go-http-client/1.1".to_owned());
        let host = headers.remove("host");
        let host = Some(options.host.clone()).filter(|host| !host.is_empty()).or(host);
        headers.set("Connection", "Upgrade");
        headers.set("Upgrade", "websocket");
        let mut lines = format!("User-Agent: {agent}\r\n");
        headers.write(&mut lines);
        Ok(Self { path: path::escaped(&options.path), host, lines })
    }

    async fn upgrade(&self, mut conn: BoxStream, host: &str) -> Result<BoxStream, DialError> {
        let Self { path, lines, .. } = self;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n");
        send(&mut conn, request.as_bytes()).await.map_err(write_error(PHASE))?;
        let mut held = BufChain::new();
        let response = read_response(&mut conn, &mut held).await.map_err(dial_error(PHASE))?;
        if response.status != 101 {
            let reason = format!("HTTP upgrade answered with status {}", response.status);
            return Err(DialError::Refused { reason, kind: io::ErrorKind::ConnectionRefused });
        }
        if !response.is("connection", "upgrade") || !response.is("upgrade", "websocket") {
            let source = io::Error::new(io::ErrorKind::InvalidData, "the answer is not one to an upgrade");
            return Err(DialError::Handshake { phase: PHASE, source });
        }
        Ok(Prefixed::wrap(held, conn))
    }
}

#[async_trait]
impl ClientTransport for Client {
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError> {
        let (conn, _) = lower.connect(session).await?;
        let host = self.host.clone().or_else(|| lower.server_name.clone());
        let host = host.unwrap_or_else(|| lower.server.to_string());
        within_limit(PHASE, self.upgrade(conn, &host)).await
    }
}

/// A server behind an upgrade.
pub(super) struct Server {
    path: String,
    host: String,
    next: Arc<dyn StreamServer>,
}

impl Server {
    pub(super) fn new(options: &HttpUpgradeTransport, next: Arc<dyn StreamServer>) -> Self {
        Self { path: path::absolute(&options.path), host: options.host.clone(), next }
    }

    fn judge(&self, request: &Request) -> Result<(), Refusal> {
        let is_upgrade = request.is("connection", "upgrade") && request.is("upgrade", "websocket");
        if !self.host.is_empty() && request.host != self.host {
            Err(Refusal::bad("HTTP upgrade: host"))
        } else if request.path != self.path.as_bytes() {
            Err(Refusal::not_found("HTTP upgrade: path"))
        } else if request.method != "GET" || !is_upgrade {
            Err(Refusal::not_found("HTTP upgrade: not a request for one"))
        } else if !request.header("sec-websocket-key").is_empty() {
            Err(Refusal::not_found("HTTP upgrade: a request for WebSocket"))
        } else {
            Ok(())
        }
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
        let mut held = BufChain::new();
        let (request, ()) = accept(&mut conn, &mut held, |request| self.judge(request)).await?;
        let date = date::now();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nDate: {date}\r\n\r\n"
        );
        send(&mut conn, answer.as_bytes()).await?;
        session.source = request.source(session.source);
        self.next.serve(Prefixed::wrap(held, conn), session, handshake, dispatch).await
    }
}
