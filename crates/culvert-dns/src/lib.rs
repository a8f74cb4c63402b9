//! Name resolution.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | queries, replies, and clients' requests as bytes; the message library behind one module |
//! | [`cache`] | replies kept while their TTLs last |
//! | [`system`] | the system's resolver: hosts file, resolv.conf, its name servers |
//! | [`plain`] | one question over UDP or TCP on a socket of its own |
//! | [`error`] | why a question stays without an answer |

#![forbid(unsafe_code)]

pub mod cache;
pub mod error;
mod flight;
pub mod message;
pub mod plain;
pub mod system;

#[cfg(test)]
mod testing;

pub use error::DnsError;
pub use message::{Answer, Query, Rcode, RecordType, Reply, Request};
pub use system::{SystemOptions, SystemResolver, system};
