//! `transport`: what carries the connections of a protocol in place of plain TCP.

use super::tls::Need;
use crate::cx::Cx;
use crate::json::Node;
use crate::table::{kinds, options};
use crate::value::{Dur, Headers, List, Typed};

/// The carrier; without one it is plain TCP.
pub type Transport = Typed<TransportKind>;

kinds! {
    /// The types of carrier with their options.
    pub enum TransportKind: "transport" in [] {
        /// HTTP/2 with TLS, HTTP/1.1 without.
        Http(HttpTransport) = "http",
        /// WebSocket.
        Ws(WsTransport) = "ws",
        /// QUIC streams.
        Quic(QuicTransport) = "quic",
        /// gRPC.
        Grpc(GrpcTransport) = "grpc",
        /// HTTP/1.1 upgrade without WebSocket frames.
        HttpUpgrade(HttpUpgradeTransport) = "httpupgrade",
    }
}

options! {
    /// HTTP as a carrier.
    pub struct HttpTransport {
        /// Hosts: a client picks one at random, a server accepts them all.
        host: List<String>,
        /// Path.
        path: String,
        /// Method; `PUT` when absent, and a server then accepts any.
        method: String,
        /// Further headers.
        headers: Headers,
        /// Time without traffic after which a client sends a ping.
        idle_timeout: Dur,
        /// How long the answer to a ping may take.
        ping_timeout: Dur,
    }

    /// WebSocket as a carrier.
    pub struct WsTransport {
        /// Path.
        path: String,
        /// Further headers.
        headers: Headers,
        /// How many bytes may travel in the request.
        max_early_data: u32,
        /// Header for these bytes; the path when absent.
        early_data_header_name: String,
    }

    /// QUIC as a carrier has no options of its own.
    pub struct QuicTransport {}

    /// gRPC as a carrier.
    pub struct GrpcTransport {
        /// Name of the service; `TunService` when absent.
        service_name: String,
        /// Time without traffic after which a client sends a ping.
        idle_timeout: Dur,
        /// How long the answer to a ping may take.
        ping_timeout: Dur,
        /// Sends pings also while no stream is open.
        permit_without_stream: bool,
    }

    /// HTTP/1.1 upgrade as a carrier.
    pub struct HttpUpgradeTransport {
        /// Host.
        host: String,
        /// Path.
        path: String,
        /// Further headers.
        headers: Headers,
    }
}

impl Typed<TransportKind> {
    /// Checks the transport of an object whose node is `parent`. `tls` says whether TLS is switched on there.
    pub(crate) fn check(&self, tls: bool, parent: &Node, cx: &mut Cx<'_>) {
        if matches!(self.0, Some(TransportKind::Quic(_))) && !tls {
            Need::report_missing(parent, cx);
        }
    }

    /// [`Transport::check`] for clients, which need to build a URL from the path.
    pub(crate) fn check_client(&self, tls: bool, parent: &Node, cx: &mut Cx<'_>) {
        self.check(tls, parent, cx);
        let path = match &self.0 {
            Some(TransportKind::Http(http)) => &http.path,
            Some(TransportKind::Ws(ws)) => &ws.path,
            Some(TransportKind::HttpUpgrade(upgrade)) => &upgrade.path,
            Some(TransportKind::Quic(_) | TransportKind::Grpc(_)) | None => return,
        };
        let node = parent.get("transport").unwrap_or(parent);
        if has_bad_escape(path) {
            cx.error(node.place_of("path"), "`path` has a `%` without two hexadecimal digits behind it");
        }
    }
}

/// Whether a path of a URL has a percent sign that escapes nothing.
pub(crate) fn has_bad_escape(path: &str) -> bool {
    path.split('%').skip(1).any(|rest| {
        let digits = rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count();
        digits < 2
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_need_two_digits() {
        assert!(!has_bad_escape("/a%20b?ed=2048"));
        assert!(has_bad_escape("/%zz"));
        assert!(has_bad_escape("/%2"));
        assert!(has_bad_escape("/100%"));
    }
}
