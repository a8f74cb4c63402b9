//! What can go wrong, in words that name the server and never the rest of a URL, which may hold a secret.

use std::time::Duration;

use culvert_core::DialError;
use culvert_tls::{SettingsError, TlsError};
use http::StatusCode;
use thiserror::Error;

/// A request failed.
#[derive(Debug, Error)]
pub enum HttpError {
    /// It has nowhere to go.
    #[error("`{0}` is no URL of http or https")]
    Url(String),
    /// The server could not be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// TLS with the server failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Something took too long.
    #[error("{server}: {phase} took longer than {limit:?}")]
    Timeout {
        /// The server.
        server: String,
        /// What was waited for.
        phase: &'static str,
        /// How long.
        limit: Duration,
    },
    /// The server does not speak the version that was asked for.
    #[error("{0} does not speak HTTP/2")]
    Version(String),
    /// The connection broke, or what came is not HTTP.
    #[error("exchange with {server}")]
    Exchange {
        /// The server.
        server: String,
        /// What happened.
        source: hyper::Error,
    },
    /// The body is longer than it may be.
    #[error("{server}: the response is longer than {limit} bytes")]
    TooLong {
        /// The server.
        server: String,
        /// How long it may be.
        limit: usize,
    },
    /// A download was answered with something else.
    #[error("{server} answered {status}")]
    Status {
        /// The server.
        server: String,
        /// What it answered.
        status: StatusCode,
    },
    /// A download led from one URL to the next.
    #[error("more than {0} redirects")]
    Redirects(usize),
    /// A redirect without a usable URL in it.
    #[error("{0} redirects to something that is no URL of http or https")]
    Redirect(String),
}

/// The options of a client cannot be used.
#[derive(Debug, Error)]
pub enum OptionsError {
    /// An option is known but not built yet.
    #[error("{option} is not built yet")]
    NotBuilt {
        /// The key of the option, and the value if only that is not built.
        option: &'static str,
    },
    /// A value means nothing.
    #[error("{option}: {reason}")]
    Invalid {
        /// The key of the option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The `tls` options cannot be used.
    #[error("tls")]
    Tls(#[from] SettingsError),
}
