//! Plain facts about one proxied connection.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_wire::{Domain, Target};

/// Names one session in logs and in the API; unique while the process lives.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SessionId(u64);

impl SessionId {
    /// The next id.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Ten digits, as sing-box's logs show a connection's id.
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

/// What is carried.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
    /// Pings: whole echo messages, as datagrams without ports.
    Icmp,
}

impl Network {
    /// The config's and the API's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which object of the config something is: its type and its tag.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Tag {
    /// The `type` of the object, `mixed` say.
    pub kind: &'static str,
    /// The `tag` of the object, or its index in the list as text.
    pub name: Arc<str>,
}

impl Tag {
    /// A tag from its two parts.
    #[must_use]
    pub fn new(kind: &'static str, name: impl Into<Arc<str>>) -> Self {
        Self { kind, name: name.into() }
    }
}

/// `mixed[in]`, as logs and errors show it.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.kind, self.name)
    }
}

/// What a look at the first bytes told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sniffed {
    /// `tls`, `http`, `quic`, …: the words of the `protocol` rule item.
    pub protocol: &'static str,
    /// The name the client asked for.
    pub domain: Option<Domain>,
    /// `chromium`, `safari`, …: the words of the `client` rule item; of SSH, the client's own.
    pub client: Option<Cow<'static, str>>,
}

/// One proxied connection or association, filled in as it travels.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its name in logs and in the API.
    pub id: SessionId,
    /// What is carried.
    pub network: Network,
    /// The inbound it came in by.
    pub inbound: Tag,
    /// The authenticated user's name.
    pub user: Option<Arc<str>>,
    /// The client's address as the inbound saw it.
    pub source: SocketAddr,
    /// Where it goes; of an association, where the first packet goes.
    pub target: Target,
    /// What sniffing found.
    pub sniffed: Option<Sniffed>,
    /// The application protocol that the client and the inbound's TLS agreed on.
    pub alpn: Option<Arc<str>>,
}
