//! The side that asks.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_config::options::transport::WsTransport;
use culvert_core::{BoxStream, DialError, Session};
use culvert_wire::BufChain;

use super::conn::{Side, WsConn};
use super::early::EarlyConn;
use super::{BASE64, accept_key};
use crate::BuildError;
use crate::carrier::head::{Extra, Response, read_response};
use crate::carrier::{ClientTransport, Lower, path};
use crate::handshake::{dial_error, send, within_limit, write_error};

const PHASE: &str = "WebSocket upgrade";

/// Most bytes of early data, whatever the options say: heads have limits, ours too.
const MAX_EARLY: usize = 32 << 10;

/// The client of WebSocket.
pub(in crate::carrier) struct Client {
    shared: Arc<Upgrade>,
}

/// What upgrades are made from.
pub(super) struct Upgrade {
    path: String,
    host: Option<String>,
    headers: Extra,
    /// Most bytes of early data.
    pub(super) max_early: usize,
    /// Their header; behind the path without one.
    early_header: Option<String>,
}

impl Client {
    pub(in crate::carrier) fn new(options: &WsTransport) -> Result<Self, BuildError> {
        let mut headers = Extra::new(&options.headers)?;
        let host = headers.remove("host");
        if headers.first("user-agent").is_none() {
            headers.set("User-Agent", "Go-http-client/1.1");
        }
        let name = &options.early_data_header_name;
        if !name.is_empty() && http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            let reason = format!("{name:?} cannot be the name of a header");
            return Err(BuildError::Invalid { option: "transport.early_data_header_name", reason });
        }
        let upgrade = Upgrade {
            path: path::escaped(&options.path),
            host,
            headers,
            max_early: usize::try_from(options.max_early_data).unwrap_or(usize::MAX).min(MAX_EARLY),
            early_header: Some(name.clone()).filter(|name| !name.is_empty()),
        };
        Ok(Self { shared: Arc::new(upgrade) })
    }
}

#[async_trait]
impl ClientTransport for Client {
    async fn open(&self, lower: &Arc<Lower>, session: &Session) -> Result<BoxStream, DialError> {
        if self.shared.max_early > 0 {
            let early = EarlyConn::new(Arc::clone(&self.shared), Arc::clone(lower), session.clone());
            return Ok(Box::new(early));
        }
        self.shared.connect(lower, session, &[]).await.map(|conn| -> BoxStream { Box::new(conn) })
    }
}

impl Upgrade {
    /// Opens a connection with `early` in the request.
    pub(super) async fn connect(
        &self,
        lower: &Lower,
        session: &Session,
        early: &[u8],
    ) -> Result<WsConn, DialError> {
        let (conn, _) = lower.connect(session).await?;
        let host = self.host.clone().unwrap_or_else(|| lower.server.to_string());
        within_limit(PHASE, self.upgrade(conn, &host, early)).await
    }

    async fn upgrade(&self, mut conn: BoxStream, host: &str, early: &[u8]) -> Result<WsConn, DialError> {
        let mut nonce = [0; 16];
        rand::fill(&mut nonce).map_err(|_| write_error(PHASE)(io::Error::other("no random bytes")))?;
        let key = STANDARD.encode(nonce);
        send(&mut conn, self.request(host, &key, early).as_bytes()).await.map_err(write_error(PHASE))?;
        let mut held = BufChain::new();
        let response = read_response(&mut conn, &mut held).await.map_err(dial_error(PHASE))?;
        check(&response, &key)?;
        Ok(WsConn::new(conn, Side::Client, held, BufChain::new()))
    }

    fn request(&self, host: &str, key: &str, early: &[u8]) -> String {
        let mut headers = self.headers.clone();
        let mut path = self.path.clone();
        match &self.early_header {
            _ if early.is_empty() => {}
            Some(name) => headers.set(name, &BASE64.encode(early)),
            None => BASE64.encode_string(early, &mut path),
        }
        let mut head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        );
        if let Some(protocol) = headers.remove("sec-websocket-protocol") {
            let _ = write!(head, "Sec-WebSocket-Protocol: {protocol}\r\n");
        }
        headers.write(&mut head);
        head.push_str("\r\n");
        head
    }
}

fn check(response: &Response, key: &str) -> Result<(), DialError> {
    if response.status != 101 {
        let reason = format!("WebSocket upgrade answered with status {}", response.status);
        return Err(DialError::Refused { reason, kind: io::ErrorKind::ConnectionRefused });
    }
    let upgraded = response.is("upgrade", "websocket") && response.lists("connection", "upgrade");
    if !upgraded || response.header("sec-websocket-accept") != accept_key(key.as_bytes()).as_bytes() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "the answer is not one of WebSocket");
        return Err(DialError::Handshake { phase: PHASE, source });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(early: u32, header: &str) -> WsTransport {
        WsTransport {
            path: "/ws".into(),
            max_early_data: early,
            early_data_header_name: header.into(),
            ..WsTransport::default()
        }
    }

    /// A VLESS request, as the sheet has it.
    #[test]
    fn early_data_stands_where_sing_box_puts_it() {
        let early = b"\x00\xb8\x31\x38\x1d\x63\x24\x4d\x53\xad\x4f\x8c\xda\x48\xb3\x08\x11\x00\x01\x00\x50\x01\x7f\x00\x00\x01hi";
        let value = "ALgxOB1jJE1TrU-M2kizCBEAAQBQAX8AAAFoaQ";
        let request = |header: &str, early: &[u8]| {
            Client::new(&options(2048, header)).unwrap().shared.request("h:1", "KEY", early)
        };
        let start = |path: &str, more: &str| {
            format!(
                "GET {path} HTTP/1.1\r\nHost: h:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: KEY\r\n{more}\r\n"
            )
        };
        let agent = "User-Agent: Go-http-client/1.1\r\n";
        assert_eq!(request("", early), start(&format!("/ws{value}"), agent));
        assert_eq!(request("", b""), start("/ws", agent));
        assert_eq!(request("X-Early", early), start("/ws", &format!("{agent}X-Early: {value}\r\n")));
        assert_eq!(
            request("Sec-WebSocket-Protocol", early),
            start("/ws", &format!("Sec-WebSocket-Protocol: {value}\r\n{agent}"))
        );
        assert_eq!(BASE64.decode(value).unwrap(), early);
    }

    #[test]
    fn early_data_is_bounded_and_its_header_checked() {
        assert_eq!(Client::new(&options(u32::MAX, "")).unwrap().shared.max_early, MAX_EARLY);
        assert!(Client::new(&options(1, "a b")).is_err());
    }
}
