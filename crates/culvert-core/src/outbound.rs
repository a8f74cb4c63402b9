//! What carries a session onwards.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use culvert_os::socket::SocketError;
use culvert_wire::{BufChain, Domain, Target};
use thiserror::Error;

use crate::resolve::ResolveError;
use crate::{BoxPackets, BoxStream, Network, Session, Tag};

/// Dials for sessions. One object serves all of them, at once.
#[async_trait]
pub trait Outbound: Send + Sync {
    /// Its type and tag.
    fn tag(&self) -> &Tag;

    /// Whether it can carry `network` at all.
    fn carries(&self, network: Network) -> bool;

    /// Connects to `session.target`. Sends what it can use of `early` with its own first bytes and takes it out; what
    /// is left, the relay sends.
    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError>;

    /// Opens a way for datagrams; `session.target` is where the first one goes.
    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError>;

    /// This machine's network is another one. What is kept for later flows goes on over the new one, where it can.
    fn network_moved(&self) {}
}

/// Why an outbound could not connect. Each message says what its layer knows; [`Chain`](crate::chain::Chain) joins them.
#[derive(Debug, Error)]
pub enum DialError {
    /// A socket could not be made as the dial fields ask.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The name has no address.
    #[error("resolve {name}")]
    Resolve {
        /// The name asked for.
        name: Domain,
        /// What the resolver said.
        source: ResolveError,
    },
    /// The network or the other end refused.
    #[error("connect to {target}")]
    Connect {
        /// Whom it was to be.
        target: Target,
        /// The last address' error.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{phase} took longer than {}", humane(*.limit))]
    Timeout {
        /// What was being done.
        phase: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// The server of this outbound broke off or does not speak the protocol.
    #[error("{phase}")]
    Handshake {
        /// What was being done.
        phase: &'static str,
        /// The stream's error.
        source: io::Error,
    },
    /// The server of this outbound answered that it will not.
    #[error("server refused: {reason}")]
    Refused {
        /// Its words or the meaning of its code.
        reason: String,
        /// The nearest system error, for replies to the client.
        kind: io::ErrorKind,
    },
    /// The server of this outbound wants other credentials.
    #[error("server refused the credentials")]
    Credentials,
    /// The config says that this must not be reached: a rule, or the `block` outbound.
    #[error("rejected by {0}")]
    Rejected(&'static str),
    /// Nothing is listening, but the client is to learn nothing.
    #[error("dropped by {0}")]
    Dropped(&'static str),
    /// The outbound cannot carry this kind of traffic.
    #[error("{0} is not carried by this outbound")]
    Network(Network),
    /// The chosen outbound does not exist.
    #[error("outbound not found: {0}")]
    UnknownOutbound(String),
    /// The target cannot be reached by this outbound, whatever the network.
    #[error("target {target}: {reason}")]
    Target {
        /// The target.
        target: Target,
        /// Why not.
        reason: &'static str,
    },
    /// What an outer layer adds: whose error it is.
    #[error("outbound/{tag}")]
    Outbound {
        /// The outbound on the way.
        tag: Tag,
        /// Its error.
        source: Box<Self>,
    },
}

impl DialError {
    /// The system error it comes nearest to, from which protocols derive their reply codes.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Connect { source, .. } | Self::Handshake { source, .. } => source.kind(),
            Self::Timeout { .. } => io::ErrorKind::TimedOut,
            Self::Refused { kind, .. } => *kind,
            Self::Rejected(_) | Self::Dropped(_) | Self::Credentials => io::ErrorKind::PermissionDenied,
            Self::Network(_) | Self::Target { .. } => io::ErrorKind::Unsupported,
            Self::Outbound { source, .. } => source.kind(),
            Self::Resolve { .. } => io::ErrorKind::NotFound,
            Self::Socket(_) | Self::UnknownOutbound(_) => io::ErrorKind::Other,
        }
    }
}

fn humane(limit: Duration) -> String {
    if limit.subsec_millis() == 0 {
        format!("{} s", limit.as_secs())
    } else {
        format!("{} ms", limit.as_millis())
    }
}
