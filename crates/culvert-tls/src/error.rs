//! What can go wrong with TLS, in words that name the culprit.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_core::{DialError, ServeError};
use thiserror::Error;

use crate::fault::CertificateFault;

/// A handshake failed.
#[derive(Debug, Error)]
#[error("TLS handshake{}: {fault}", about(*.side, .name, .peer))]
pub struct TlsError {
    /// Who we are.
    pub side: Side,
    /// The name that was asked for: ours to the server, or the client's to us.
    pub name: Option<String>,
    /// Whom the stream leads to, where that is not the name. A server does not know; who accepted the stream does.
    pub peer: Option<Arc<str>>,
    /// What went wrong.
    pub fault: TlsFault,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The one that dialled.
    Client,
    /// The one that accepted.
    Server,
}

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum TlsFault {
    /// It was not done in time.
    #[error("took longer than {0:?}")]
    Timeout(Duration),
    /// The peer closed the stream in the middle of it.
    #[error("the peer closed the connection")]
    Closed,
    /// The lower stream broke.
    #[error(transparent)]
    Io(io::Error),
    /// The peer sent an alert; the number is its description.
    #[error("the peer refused: {}", alert_name(*.0))]
    Alert(u8),
    /// The peer's certificate is not good.
    #[error(transparent)]
    Certificate(CertificateFault),
    /// What came is no TLS at all; these are the first bytes of it, as far as they are text.
    #[error("the peer does not speak TLS{}", quoted(.0))]
    NotTls(String),
    /// The server did not take our Encrypted Client Hello.
    #[error("the server rejected ECH{}", if .retry.is_some() { " and names other configurations" } else { "" })]
    EchRejected {
        /// An `ECHConfigList` that it would take, to be tried once.
        retry: Option<Vec<u8>>,
    },
    /// The configurations for Encrypted Client Hello have not been looked up.
    #[error("there is no ECH configuration yet")]
    EchMissing,
    /// None of the protocols offered by ALPN is known to the server.
    #[error("no application protocol in common")]
    Alpn,
    /// The peer is no client, but an authority that wanted a proof that the name is served here (RFC 8737), and has it.
    #[error("an authority has its proof")]
    Proved,
    /// The server is the site whose name was asked for, and no server of REALITY that knows us.
    #[error("REALITY: the server is the real site; it does not know us by our key, short id or clock")]
    RealSite,
    /// Anything else, in the words of the TLS library.
    #[error("{0}")]
    Protocol(String),
}

impl TlsFault {
    /// The system error it comes nearest to.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Timeout(_) => io::ErrorKind::TimedOut,
            Self::Closed | Self::Proved => io::ErrorKind::UnexpectedEof,
            Self::Io(error) => error.kind(),
            Self::Alert(_) => io::ErrorKind::ConnectionAborted,
            Self::Certificate(_) | Self::EchRejected { .. } | Self::EchMissing | Self::RealSite => {
                io::ErrorKind::PermissionDenied
            }
            Self::NotTls(_) | Self::Alpn | Self::Protocol(_) => io::ErrorKind::InvalidData,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(error.fault.kind(), error)
    }
}

impl From<TlsError> for DialError {
    fn from(error: TlsError) -> Self {
        match error.fault {
            TlsFault::Timeout(limit) => Self::Timeout { phase: "TLS handshake", limit },
            // The error names itself, and says with whom.
            _ => Self::Handshake { phase: "secure the connection", source: error.into() },
        }
    }
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        match error.fault {
            TlsFault::Closed | TlsFault::Proved => Self::Left,
            _ => Self::Io(error.into()),
        }
    }
}

/// The options of a `tls` block cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A value means nothing.
    #[error("{option}: {reason}")]
    Invalid {
        /// The key of the option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{option}: {path}")]
    File {
        /// The key of the option.
        option: &'static str,
        /// The file.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The option is known but not built yet.
    #[error("{option} is not built yet")]
    NotBuilt {
        /// The key of the option.
        option: &'static str,
    },
}

impl SettingsError {
    pub(crate) fn invalid(option: &'static str, reason: impl fmt::Display) -> Self {
        Self::Invalid { option, reason: reason.to_string() }
    }
}

fn about(side: Side, name: &Option<String>, peer: &Option<Arc<str>>) -> String {
    let name = match (side, name) {
        (Side::Client, Some(name)) => format!(" with {name}"),
        (Side::Server, Some(name)) => format!(" of a client that asked for {name}"),
        (_, None) => String::new(),
    };
    match peer {
        Some(peer) => format!("{name} at {peer}"),
        None => name,
    }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": it begins with {text:?}") }
}

/// The words of RFC 8446 section 6 and RFC 5246 section 7.2 for an alert.
pub(crate) fn alert_name(description: u8) -> String {
    let name = match description {
        0 => "close notify",
        10 => "unexpected message",
        20 => "bad record MAC",
        21 => "decryption failed",
        22 => "record overflow",
        40 => "handshake failure",
        42 => "bad certificate",
        43 => "unsupported certificate",
        44 => "certificate revoked",
        45 => "certificate expired",
        46 => "certificate unknown",
        47 => "illegal parameter",
        48 => "unknown certificate authority",
        49 => "access denied",
        50 => "decode error",
        51 => "decrypt error",
        70 => "protocol version",
        71 => "insufficient security",
        80 => "internal error",
        86 => "inappropriate fallback",
        90 => "user canceled",
        100 => "no renegotiation",
        109 => "missing extension",
        110 => "unsupported extension",
        112 => "unrecognized name",
        113 => "bad certificate status response",
        115 => "unknown PSK identity",
        116 => "certificate required",
        120 => "no application protocol",
        121 => "ECH required",
        _ => return format!("alert {description}"),
    };
    format!("{name} (alert {description})")
}
