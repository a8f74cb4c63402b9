//! The client: asks a proxy for tunnels.

use std::io;

use async_trait::async_trait;
use culvert_config::options::outbound::http::HttpOutbound;
use culvert_config::options::transport::Transport;
use culvert_core::conn::Prefixed;
use culvert_core::handshake::read_message;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
use culvert_wire::{BufChain, Target};

use super::head::{Credentials, MAX_HEAD, decode_status};
use crate::carrier::Carrier;
use crate::handshake::{dial_error, send, within_limit, write_error};
use crate::{BuildError, OutboundCx};

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    carrier: Carrier,
    /// In place of the target in the request line.
    path: Option<String>,
    /// `Host` in place of the target.
    host: Option<String>,
    /// All headers but `Host`, ready to be sent.
    headers: String,
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &HttpOutbound) -> Result<Self, BuildError> {
        let plain = Transport::default();
        let carrier = Carrier::new(cx.dialer, &cx.store, &options.server, options.tls.as_deref(), &plain)?;
        let path = match options.path.as_str() {
            "" => None,
            path if path.starts_with('/') => Some(path.to_owned()),
            path => Some(format!("/{path}")),
        };
        if path.iter().flat_map(|path| path.bytes()).any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(BuildError::Invalid {
                option: "path",
                reason: "holds a space or control".to_owned(),
            });
        }
        let custom = || {
            options.headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)))
        };
        let mut host = None;
        let mut headers = String::new();
        for (name, value) in custom() {
            let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
            if !token || value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Err(BuildError::Invalid {
                    option: "headers",
                    reason: format!("`{name}` is no header"),
                });
            }
            if name.eq_ignore_ascii_case("host") {
                host = Some(value.clone());
            } else {
                headers.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        let mut default = |name: &str, value: &str| {
            if !custom().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
                headers.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        // The one that sing-box 1.14.4 sends.
        default("User-Agent", "Go-http-client/1.1");
        default("Proxy-Connection", "Keep-Alive");
        if !options.username.is_empty() {
            default("Proxy-Authorization", &Credentials::encode(&options.username, &options.password));
        }
        Ok(Self { tag: cx.tag, carrier, path, host, headers })
    }

    fn request(&self, target: &Target) -> String {
        let target = target.to_string();
        let path = self.path.as_deref().unwrap_or(&target);
        let host = self.host.as_deref().unwrap_or(&target);
        format!("CONNECT {path} HTTP/1.1\r\nHost: {host}\r\n{}\r\n", self.headers)
    }

    async fn handshake(&self, mut conn: BoxStream, target: &Target) -> Result<BoxStream, DialError> {
        send(&mut conn, self.request(target).as_bytes()).await.map_err(write_error("http request"))?;
        let mut early = BufChain::new();
        let status = loop {
            let status = read_message(&mut conn, &mut early, MAX_HEAD, decode_status)
                .await
                .map_err(dial_error("http response"))?;
            if !(100..200).contains(&status) {
                break status;
            }
        };
        match status {
            // A target that speaks first may have done so already.
            200 => Ok(Prefixed::wrap(early, conn)),
            407 => Err(DialError::Credentials),
            other => {
                let kind = match other {
                    403 => io::ErrorKind::PermissionDenied,
                    504 => io::ErrorKind::TimedOut,
                    _ => io::ErrorKind::Other,
                };
                Err(DialError::Refused { reason: format!("status {other}"), kind })
            }
        }
    }
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        network == Network::Tcp
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        if self.path.is_some() && self.host.is_some() {
            let reason = "`path` and a `Host` header do not go together";
            return Err(DialError::Target { target: session.target.clone(), reason });
        }
        let conn = self.carrier.connect(session).await?;
        within_limit("http handshake", self.handshake(conn, &session.target)).await
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}
