//! HTTP proxy: tunnels (CONNECT) and plain requests in absolute form; and an outbound that asks such a proxy for tunnels.
//!
//! ```text
//! client: CONNECT host:port HTTP/1.1 …           server: HTTP/1.1 200 Connection established, then the tunnel
//! client: GET http://host/path HTTP/1.1 …        server: the origin's response
//! ```
//!
//! Plain requests are passed on by code of our own, not by an HTTP library: a body is a count of bytes that pass as they
//! are ([`body`]), so nothing is copied, chunked stays chunked with its trailers, interim responses (100, 103) pass, and
//! what two readers could understand in two ways is refused. Each request is a session of its own, with a stream in
//! memory between this inbound and the router; so rules see each host that a client asks for on one connection.
//!
//! | file | |
//! |---|---|
//! | [`head`] | heads of requests and responses, read and rewritten |
//! | [`body`] | where a body ends |
//! | `exchange.rs` | one request and its response, both ways at once |
//! | `inbound.rs` | a client's connection: request after request, or a tunnel |
//! | `outbound.rs` | the client |
//!
//! Sources: RFC 9110, RFC 9112, RFC 7617 (Basic); sing-box 1.14.4 where it differs without harm: a connection is kept
//! if `Proxy-Connection: keep-alive` asks for it. Left out: `https://` in absolute form, other schemes of authentication,
//! one connection to an origin for several requests.

pub mod body;
mod exchange;
pub mod head;
mod inbound;
mod outbound;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::mixed::HttpInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::http::HttpOutbound;
use culvert_core::listener::StreamInbound;
use culvert_core::{Inbound, Outbound};

use self::head::Version;
pub use self::inbound::HttpServer;
use self::outbound::Client;
use crate::carrier::secured;
use crate::fields::listen::listen;
use crate::system_proxy::SystemProxy;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::users::Users;
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "http",
    inbound: inbound::<HttpInbound>(),
    outbound: outbound::<HttpOutbound>(),
    fuzz: &[head::fuzz_request, head::fuzz_response, body::fuzz_body],
};

impl BuildInbound for HttpInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, true)?;
        let server = HttpServer::new(Arc::new(Users::new(&self.users)), listen.udp_timeout);
        let inbound = StreamInbound::new(
            cx.tag,
            listen.address,
            listen.tcp,
            secured(cx.dialer, self.tls.as_deref(), &[], Arc::new(server))?,
        );
        if self.set_system_proxy {
            return Ok(Arc::new(SystemProxy::new(inbound, false)));
        }
        Ok(Arc::new(inbound))
    }
}

impl BuildOutbound for HttpOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(Client::new(cx, self)?))
    }
}

/// A response of this program's own: nothing but its status.
fn status_only(version: Version, status: &str, keep_alive: bool) -> String {
    let close = if keep_alive { "" } else { "Connection: close\r\n" };
    format!("{version} {status}\r\nContent-Length: 0\r\n{close}\r\n")
}

/// The answer in the place of an origin that could not be asked, with a sentence for whoever looks at it.
fn failure(version: Version, status: &str, reason: &str) -> String {
    let text = format!("{status}: {reason}\n");
    let kind = "Content-Type: text/plain; charset=utf-8";
    format!(
        "{version} {status}\r\n{kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}
