//! Why a question stays without an answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_core::ResolveError;
use thiserror::Error;

use crate::message::wire::Malformed;

/// Why a question stays without an answer. Cheap to clone: all who wait for one exchange get the same.
#[derive(Clone, Debug, Error)]
pub enum DnsError {
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A server could not be reached, or broke off.
    #[error("{server}: {source}")]
    Network {
        /// Which server.
        server: Arc<str>,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The outbound to a server failed.
    #[error("{server}: {reason}")]
    Dial {
        /// Which server.
        server: Arc<str>,
        /// The outbound's error, with its causes.
        reason: Arc<str>,
    },
    /// A server sent what is no DNS message.
    #[error("{server}: {source}")]
    Malformed {
        /// Which server.
        server: Arc<str>,
        /// What is wrong with it.
        source: Malformed,
    },
    /// Finding the server's own address asks the server.
    #[error("DNS servers wait for each other: {0}")]
    Loop(Arc<str>),
    /// The question cannot be put on the wire.
    #[error("not a name that can be asked for")]
    Name,
    /// There is no server to ask.
    #[error("no name server")]
    NoServer,
    /// A rule said to keep silent.
    #[error("dropped by a rule")]
    Dropped,
    /// A destination within the fake ranges that no name stands behind.
    #[error("missing fakeip record, try enable experimental.cache_file")]
    NotFake,
    /// The code that asked broke off.
    #[error("look-up broke off")]
    Broken,
}

impl DnsError {
    pub(crate) fn network(server: impl ToString, source: io::Error) -> Self {
        Self::Network { server: server.to_string().into(), source: Arc::new(source) }
    }
}

impl From<DnsError> for ResolveError {
    fn from(error: DnsError) -> Self {
        match error {
            DnsError::Timeout(_) => Self::Timeout,
            DnsError::Name => Self::NotFound,
            other => Self::Failed(other.to_string()),
        }
    }
}
