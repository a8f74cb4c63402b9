//! Connections of HTTP/2 that carry streams: each request is one, its body upwards and its response's body downwards.
//!
//! ```text
//! client   Pool ─▶ one connection for many streams ─▶ Requests::open ─▶ H2Stream
//! server   serve ─▶ each request that a Door lets in ─▶ H2Stream ─▶ the server inside
//! ```
//!
//! The frames are the `h2` crate's. What it reads and writes passes through [`io`] in large pieces, so that a frame does not
//! cost a system call. Memory is bounded by windows: one for each stream, so that a stalled one holds that much and not more,
//! and one over all of them. A server's begins small and grows once somebody inside has taken data, which nobody
//! does for a client that is not known.
//!
//! An end of one direction is END_STREAM. A stream that breaks off is RST_STREAM, and is read as an error; so is the end of
//! a connection with streams in it.
//!
//! | file | |
//! |---|---|
//! | `io.rs` | what the crate reads from and writes to |
//! | `stream.rs` | one stream |
//! | `traffic.rs` | what is known of a connection's life |
//! | `pool.rs` | the client: connections opened, shared, watched, replaced |
//! | `server.rs` | the server |
//!
//! Source: RFC 9113.

mod io;
mod pool;
mod server;
mod stream;
mod traffic;

#[cfg(test)]
mod tests;

pub(super) use self::pool::{Health, Pool};
pub(super) use self::server::{Door, Entry, serve};
pub(super) use self::stream::Format;

/// The largest frame that is taken, and most bytes that are given to a stream at once.
const MAX_FRAME: u32 = 64 << 10;
/// Bytes of one stream that wait to be written.
const SEND_BUFFER: usize = 256 << 10;
/// The longest list of headers.
const MAX_HEADERS: u32 = 64 << 10;
