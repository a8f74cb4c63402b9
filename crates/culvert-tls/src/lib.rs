//! TLS client and server: one stream type for all.
//!
//! ```text
//! settings ─▶ Connector / Acceptor ──handshake (rustls, or ours)──▶ secrets ─▶ TlsConn (our record layer)
//! ```
//!
//! The handshake is the library's, but for clients that imitate a browser or speak REALITY, whose handshake is our own.
//! The records after it are ours: sealed and opened in place in pooled buffers, several
//! to a system call, with nothing held while a connection idles (see [`conn`]).
//!
//! | module | holds |
//! |---|---|
//! | [`connector`], [`acceptor`] | the two sides |
//! | [`ech`] | [`Securing`], a connector that asks DNS for what hides the name |
//! | [`conn`] | [`TlsConn`], the stream inside |
//! | [`record`] | records without sockets: `Sealer`, `Opener` and the secrets they are made from |
//! | [`settings`] | what the two sides are made from; [`options`] makes them from configuration options |
//! | [`browser`] | ClientHellos of browsers, byte by byte |
//! | `client` | the handshake that follows such a hello |
//! | [`reality`] | REALITY: what a client and a server of it share |
//! | [`schedule`] | the secrets of TLS 1.3 |
//! | `engine` | the handshake library's API, all of it that is not configuration |
//! | `verify`, [`authorities`], `identity` | certificates: the peer's, whom to trust, our own |
//! | [`error`], [`fault`] | what went wrong and for which name |
//! | `fragment`, `hello` | the first message in pieces |
//! | [`relayed`] | the same for somebody else's first message |
//! | `watch` | files that change |
//!
//! Left out on purpose: kernel TLS, ECH on the side of a server.

#![forbid(unsafe_code)]

pub mod acceptor;
pub mod authorities;
pub mod browser;
mod client;
pub mod conn;
pub mod connector;
mod der;
pub mod ech;
mod engine;
pub mod error;
pub mod fault;
mod fragment;
pub mod hello;
mod identity;
mod notes;
pub mod options;
mod provider;
pub mod reality;
pub mod record;
pub mod relayed;
pub mod schedule;
mod sessions;
pub mod settings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tickets;
mod verify;
mod watch;

pub use acceptor::Acceptor;
pub use authorities::Store;
pub use browser::{ClientHello, Fingerprint};
pub use client::fuzz_client;
pub use conn::TlsConn;
pub use connector::Connector;
pub use ech::Securing;
pub use engine::Facts;
pub use error::{SettingsError, TlsError, TlsFault};
pub use fault::CertificateFault;
pub use identity::{CertificateSource, OwnCertificate};
pub use reality::RealityClient;
pub use settings::{ClientSettings, ServerSettings, StoreSettings};
