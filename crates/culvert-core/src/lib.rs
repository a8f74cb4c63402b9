//! The words that every protocol, the router and the program share, and the two relays that move the bytes.
//!
//! ```text
//! task 1   listener ─▶ StreamServer::serve ─▶ Dispatch::submit(Incoming)
//! task 2   Router::decide ─▶ Outbound::dial ─▶ reply to the client ─▶ relay, both directions
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`session`] | [`Session`]: the facts about one proxied connection |
//! | [`conn`] | [`StreamConn`]: a byte stream between two hops, with the fast paths the relay looks for |
//! | [`duplex`] | a stream in memory |
//! | [`packet`] | [`PacketConn`] and [`PacketBatch`]: datagrams, many at a time |
//! | [`tcp`], [`udp`], [`ping`] | the two over kernel sockets |
//! | [`inbound`], [`listener`] | what serves clients, and the listener that most inbounds share |
//! | [`sockets`] | the sockets they listen with, for a reload to go on with |
//! | [`outbound`], [`dialer`] | what dials, and the dialer that most outbounds share |
//! | [`dispatch`] | the hand-over from inbound to outbound |
//! | [`flow`] | the table of live flows: counters, idle limits, closing |
//! | [`relay`] | bytes and packets, both ways |
//! | [`resolve`] | names to addresses |
//! | [`chain`] | an error with all its causes in one line |
//! | [`timeouts`] | how long anything may take |
//! | [`throttle`] | log lines that a flood must not multiply |

#![forbid(unsafe_code)]

mod answers;
pub mod chain;
pub mod conn;
pub mod crowd;
pub mod dialer;
pub mod dispatch;
pub mod duplex;
pub mod flow;
pub mod handshake;
pub mod inbound;
pub mod listener;
pub mod outbound;
pub mod packet;
pub mod ping;
pub mod relay;
pub mod resolve;
mod serving;
pub mod session;
pub mod sockets;
pub mod tcp;
pub mod throttle;
pub mod timeouts;
pub mod udp;
pub mod waiting;

pub use chain::Chain;
pub use conn::{BoxStream, Half, NoBypass, Prefixed, StreamConn};
pub use dialer::Dialer;
pub use dispatch::{Decision, DialOutcome, Dispatch, Handler, Incoming, Io, Reply, Router};
pub use flow::{EndReason, Flow, Flows};
pub use handshake::Handshake;
pub use inbound::{Inbound, ServeError, StartError, StreamServer};
pub use outbound::{DialError, Outbound};
pub use packet::{BoxPackets, Packet, PacketBatch, PacketConn, Replayed};
pub use ping::PingConn;
pub use resolve::{ResolveError, Resolver, Strategy};
pub use session::{Network, Session, SessionId, Sniffed, Tag};
pub use tcp::TcpConn;
pub use udp::UdpConn;
