//! The server of REALITY.
//!
//! ```text
//! client ──ClientHello──▶ us ──the same bytes, at once──▶ target (a real TLS 1.3 site)
//!                          │ session id opens with our key ─▶ the target's ServerHello with another key share,
//!                          │                                  then a flight of our own in records of its sizes
//!                          └ anything else                 ─▶ bytes pass both ways, as if we were not here
//! ```
//!
//! Whoever is not a client of ours gets every byte from the target, in its order and with its ends: until a hello has proved
//! itself, nothing of what is written to the client comes from here. The target also answers in the time it takes.
//!
//! | module | holds |
//! |---|---|
//! | [`hello`] | the ClientHello, taken apart |
//! | [`auth`] | what proves it |
//! | [`mirror`] | what the target's flight looks like |
//! | `flight` | our own flight |
//! | [`tail`] | what the target sends behind its handshake, and so do we |
//! | `accept` | one connection, from its first byte to a [`TlsConn`](crate::TlsConn) or a relay |
//!
//! Sources: XTLS/REALITY `handshake_server_tls13.go` and `tls.go` (2026-03 and 8cdf7bf), RFC 8446. Hellos with an
//! X25519 share alone are taken as well as those that newer servers want, with X25519MLKEM768 in front. A hello that has
//! been seen before goes to the target, as no real client sends one twice. A target that asks for another hello, which the reference
//! leaves to itself, is imitated too. Left out on purpose: what has no option in sing-box (ML-DSA-65, bounds for the client's version, PROXY headers,
//! rates for strangers). How many strangers there may be at once is limited where they are relayed, per network and in
//! all: a rate would be something to be known by.

mod accept;
pub mod auth;
mod flight;
pub mod hello;
pub mod mirror;
pub mod tail;

#[cfg(test)]
mod tests;

pub use accept::{Outcome, RealityAcceptor, Stranger};
pub use auth::Policy;
