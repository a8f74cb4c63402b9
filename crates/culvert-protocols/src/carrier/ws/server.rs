//! The side that is asked.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use culvert_config::options::transport::WsTransport;
use culvert_core::{BoxStream, Dispatch, Handshake, ServeError, Session, StreamServer};
use culvert_wire::BufChain;

use super::conn::{Side, WsConn};
use super::{BASE64, accept_key};
use crate::carrier::head::{Refusal, Request, accept};
use crate::carrier::path;
use crate::handshake::send;

/// A server inside WebSocket.
pub(in crate::carrier) struct Server {
    path: String,
    early: Early,
    next: Arc<dyn StreamServer>,
}

/// Where early data is looked for.
enum Early {
    /// Nowhere; yet the path must be the same as it is written, too.
    None,
    /// In this header.
    Header(String),
    /// Behind the path.
    Path,
}

impl Server {
    pub(in crate::carrier) fn new(options: &WsTransport, next: Arc<dyn StreamServer>) -> Self {
        let early = match (&*options.early_data_header_name, options.max_early_data) {
            ("", 0) => Early::None,
            ("", _) => Early::Path,
            (name, _) => Early::Header(name.to_owned()),
        };
        Self { path: path::absolute(&options.path), early, next }
    }

    /// The early data of a request that is for this server.
    fn judge(&self, request: &Request) -> Result<Vec<u8>, Refusal> {
        const PATH: Refusal = Refusal::not_found("WebSocket request: path");
        if !matches!(self.early, Early::Path) && request.path != self.path.as_bytes() {
            return Err(PATH);
        }
        let early = match &self.early {
            Early::Header(name) => request.header(name),
            Early::None | Early::Path => {
                let target = path::without_authority(&request.target);
                target.strip_prefix(&self.path).ok_or(PATH)?.as_bytes()
            }
        };
        let early = BASE64.decode(early);
        let early = early.map_err(|_| Refusal::bad("WebSocket request: early data"))?;
        is_upgrade(request)?;
        Ok(early)
    }
}

/// The checks of a library that sing-box uses, in its order and its words.
fn is_upgrade(request: &Request) -> Result<(), Refusal> {
    const BAD: &str = "400 Bad Request";
    let key_is_whole = request.header("sec-websocket-key").len() == 24;
    let version = request.header("sec-websocket-version");
    let (what, status, headers, text) = if request.method != "GET" {
        (
            "WebSocket request: method",
            "405 Method Not Allowed",
            "",
            "handshake error: bad HTTP request method",
        )
    } else if request.minor == 0 {
        (
            "WebSocket request: version",
            "505 HTTP Version Not Supported",
            "",
            "handshake error: bad HTTP protocol version",
        )
    } else if request.host.is_empty() {
        ("WebSocket request: host", BAD, "", "handshake error: bad \"Host\" header")
    } else if !request.is("upgrade", "websocket") {
        ("WebSocket request: no upgrade", BAD, "", "handshake error: bad \"Upgrade\" header")
    } else if !request.lists("connection", "upgrade") {
        ("WebSocket request: no upgrade", BAD, "", "handshake error: bad \"Connection\" header")
    } else if !key_is_whole {
        ("WebSocket request: key", BAD, "", "handshake error: bad \"Sec-WebSocket-Key\" header")
    } else if version != b"13" {
        let (status, headers) = match version {
            b"" => (BAD, ""),
            _ => ("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n"),
        };
        (
            "WebSocket request: version",
            status,
            headers,
            "handshake error: bad \"Sec-WebSocket-Version\" header",
        )
    } else {
        return Ok(());
    };
    Err(Refusal { what, status, told: Some((headers, text)) })
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
        let (request, early) = accept(&mut conn, &mut held, |request| self.judge(request)).await?;
        let key = accept_key(request.header("sec-websocket-key"));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {key}\r\n\r\n"
        );
        send(&mut conn, answer.as_bytes()).await?;
        session.source = request.source(session.source);
        let conn = WsConn::new(conn, Side::Server, held, BufChain::copied(&early));
        self.next.serve(Box::new(conn), session, handshake, dispatch).await
    }
}
