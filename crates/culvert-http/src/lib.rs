//! The HTTP client of the program's own requests: certificates, rule-sets, DNS over HTTPS, downloads.
//!
//! ```text
//! Client ─▶ pool ─▶ Dialer (dial fields, detour, names) ─▶ TLS (ALPN) ─▶ HTTP/1.1 or HTTP/2 (hyper)
//! ```
//!
//! Everything goes by the same dialers, resolvers and TLS as proxied connections do, so detours and marks count here too.
//! Bodies are bounded, every phase has a limit of time, and one connection is kept for each server: HTTP/2 for all
//! requests at once, HTTP/1.1 for one after the other. A kept connection that turns out to be dead is replaced, and the
//! request goes out once more where that does no harm.
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | [`Client`]: one request, one response |
//! | [`fetch`] | downloads: redirects, and "only if it has changed" |
//! | [`settings`] | what a client is made from; [`options`] makes it from configuration options |
//! | `pool`, `link`, `io` | kept connections, one connection, and hyper's view of our streams |
//! | `url` | servers in URLs, and URLs relative to others |
//!
//! Left out: HTTP/3, compressed bodies, cookies, credentials in URLs. Sources: RFC 9110, 9112, 9113.

#![forbid(unsafe_code)]

pub mod client;
pub mod error;
pub mod fetch;
mod io;
mod link;
pub mod options;
mod pool;
pub mod settings;
#[cfg(test)]
mod tests;
mod url;

pub use client::{Client, Limits};
pub use error::{HttpError, OptionsError};
pub use fetch::{Fetched, Validator};
pub use http;
pub use io::Io;
pub use settings::{Settings, Version};
