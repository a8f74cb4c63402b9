//! What serves clients.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use culvert_os::socket::SocketError;
use culvert_wire::DecodeError;
use thiserror::Error;

use crate::sockets::Sockets;
use crate::{BoxStream, Dispatch, Handshake, Session, Tag};

/// An inbound of the config: opens its sockets, serves, closes them.
#[async_trait]
pub trait Inbound: Send + Sync {
    /// Its type and tag.
    fn tag(&self) -> &Tag;

    /// Opens the sockets ahead of [`Inbound::start`], which goes on with them: a reload finds out by this whether the new
    /// inbounds can listen, while the old ones still serve. One whose sockets cannot be shared has nothing to do here.
    ///
    /// # Errors
    /// Those of the sockets.
    fn open(&self, _sockets: &Sockets) -> Result<(), StartError> {
        Ok(())
    }

    /// Whether it cannot run beside the one that takes its place: it changes the system, or has a socket that cannot be
    /// shared.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Opens the sockets and begins to serve. Called once.
    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError>;

    /// The addresses it listens on, known after [`Inbound::start`].
    fn local_addrs(&self) -> Vec<SocketAddr>;

    /// Closes the sockets. Flows that were handed over go on.
    async fn close(&self);

    /// What serves one stream, for inbounds that take streams from another inbound (`detour` of the listen fields).
    fn stream_server(&self) -> Option<std::sync::Arc<dyn StreamServer>> {
        None
    }

    /// Its users, where a service may change them while it runs (`managed`).
    fn managed_users(&self) -> Option<std::sync::Arc<dyn ManagedUsers>> {
        None
    }
}

/// Users that can be put in place of others while an inbound runs.
pub trait ManagedUsers: Send + Sync {
    /// Puts these users, each a name and a password, in the place of those there are. Connections that are open go on.
    ///
    /// # Errors
    /// The name of the first user whose password is of no use to the protocol; nothing is changed then.
    fn replace(&self, users: &[(&str, &str)]) -> Result<(), String>;
}

/// Serves one stream: reads the handshake, checks the user, gives the stream away whole through
/// [`Dispatch::submit`].
///
/// `handshake` limits the time and the number of clients that are not authenticated yet. Dropping it says that this
/// client is; a server that gives the stream away simply returns.
#[async_trait]
pub trait StreamServer: Send + Sync {
    /// Serves `conn`. `session` says where it came from; target and user are the server's to fill in.
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError>;

    /// What it does by itself while clients may come. Dropped when they may not any more.
    async fn tend(&self) {}
}

/// Why an inbound could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The socket could not be made as the listen fields ask, or the address is taken.
    #[error("inbound/{tag}")]
    Listen {
        /// Which inbound.
        tag: Tag,
        /// What failed; it names the address.
        source: SocketError,
    },
    /// The type or option is known but not built yet.
    #[error("inbound/{tag}: {feature} is not built yet")]
    NotBuilt {
        /// Which inbound.
        tag: Tag,
        /// What it would need.
        feature: String,
    },
    /// Anything else the system refused.
    #[error("inbound/{tag}: {phase}")]
    Io {
        /// Which inbound.
        tag: Tag,
        /// What was being done.
        phase: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a client was not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// It left before it had said what it wants; no fault of anybody's.
    #[error("client left during the handshake")]
    Left,
    /// What it sent is not the protocol.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// The protocol, but something this inbound does not do.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// Wrong or missing credentials.
    #[error("{0}")]
    Denied(&'static str),
    /// Its stream broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<DecodeError> for ServeError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Incomplete => Self::Left,
            DecodeError::Invalid(what) => Self::Invalid(what),
        }
    }
}

impl ServeError {
    /// Whether an operator may want to know: not for clients that merely left.
    #[must_use]
    pub fn is_notable(&self) -> bool {
        match self {
            Self::Left => false,
            Self::Io(error) => !matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
            ),
            Self::Invalid(_) | Self::Unsupported(_) | Self::Denied(_) => true,
        }
    }
}
