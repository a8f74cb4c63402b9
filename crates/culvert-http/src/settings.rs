//! What a client is made from: plain values, whatever text they came from.

use std::time::Duration;

use culvert_tls::ClientSettings;
use http::{HeaderMap, HeaderValue};

/// The highest version of HTTP that is spoken over TLS; without TLS it is always 1.1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    #[default]
    Http2,
}

/// A client.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The highest version.
    pub version: Version,
    /// Fails where the server does not speak that version.
    pub strict_version: bool,
    /// Headers of every request that has not its own of that name.
    pub headers: HeaderMap,
    /// The host that is asked for, where it is not that of the URL. The one dialled stays the URL's.
    pub host: Option<HeaderValue>,
    /// TLS. Without application protocols in it those of the version are offered.
    pub tls: ClientSettings,
    /// How long a connection is kept without a request; 90 s if absent.
    pub idle_timeout: Option<Duration>,
    /// Time between signs of life on an HTTP/2 connection; none if absent.
    pub keep_alive: Option<Duration>,
    /// How much the server may send ahead on one stream of HTTP/2, in bytes.
    pub stream_window: Option<u32>,
    /// How much the server may send ahead on all streams of HTTP/2 together, in bytes.
    pub connection_window: Option<u32>,
}
