//! Name resolution.
//!
//! ```text
//! client ─▶ hijack ─▶ DnsRouter ─▶ DnsPolicy ─▶ Client ─▶ DnsServer
//!                                  (the rules)  cache,    udp, tcp, local, hosts, fakeip, …
//! outbound, router ─▶ Resolver ───────────────▶ one exchange for all
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | queries, replies, and clients' requests as bytes; the message library behind one module |
//! | [`server`] | the types of DNS server, and their table |
//! | [`client`] | a server behind its cache, with the options of a query |
//! | [`cache`] | replies kept while their TTLs last |
//! | [`router`] | all servers together: the rules' place, look-ups, names behind addresses |
//! | [`hijack`] | serving clients, over streams and datagrams |
//! | [`resolved`] | a stand-in for systemd-resolved |
//! | [`bus`] | D-Bus |
//! | [`reverse`] | which name an address was given out for |
//! | [`chain`] | servers that wait for each other |
//! | [`mod@system`] | the system's resolver: hosts file, resolv.conf, its name servers |
//! | [`plain`] | one question over UDP or TCP on a socket of its own |
//! | [`error`] | why a question stays without an answer |

#![forbid(unsafe_code)]

pub mod bus;
pub mod cache;
pub mod chain;
pub mod client;
pub mod error;
mod flight;
pub mod hijack;
mod lookup;
pub mod message;
mod options;
pub mod plain;
pub mod resolved;
pub mod reverse;
pub mod router;
pub mod server;
pub mod system;

#[cfg(test)]
mod testing;

pub use client::{Client, ClientSubnet, QueryOptions};
pub use error::DnsError;
pub use message::{Answer, Query, Rcode, RecordType, Reply, Request};
pub use router::{Asker, DefaultOnly, DnsPolicy, DnsRouter, Exchange};
pub use server::DnsServer;
pub use system::{SystemOptions, SystemResolver, system};
