//! QUIC: endpoints, connections, streams, datagrams. The protocol is the published library `quinn-proto`; the driver around
//! it is ours.
//!
//! ```text
//! connect() ──▶ Connection ──▶ open_bi / accept_bi ──▶ QuicStream (a StreamConn)
//! Server::bind() ─accept()─▶       └─▶ send_datagram / recv_datagrams
//!                 │
//!              Driver, one task per socket (servers have several): receive a batch ─▶ state machines ─▶ pace ─▶ send trains
//!                 │
//!               Link: the socket (GRO, GSO, ECN), hopping between ports, a disguise around each datagram
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`endpoint`] | [`connect`] and [`Server`]: how connections begin |
//! | [`connection`] | [`Connection`], what all protocols work with |
//! | [`stream`] | [`QuicStream`], as `StreamConn` and the traits of tokio |
//! | [`congestion`] | [`Congestion`], which may be changed while a connection runs; BBR and Brutal |
//! | [`h3`] | as much of HTTP/3 as servers and clients of it here need |
//! | [`settings`] | limits of connections, and TLS from the settings of `culvert-tls` |
//! | [`link`] | sockets, [`Disguise`], [`Hop`] |
//! | `driver`, `pace`, `ids` | the loop, the token bucket in front of each connection's packets, connection ids |
//!
//! # Pacing
//! The library's own pacer knows no rate of a controller. So the driver asks the controller for its rate
//! (`Controller::metrics().pacing_rate`, in bits per second) and lets a connection make packets only as far as its bucket
//! goes. This is per connection also where many share a socket. Acknowledgements leave with the data, or on their
//! own; then they take nothing from the bucket.
//!
//! # Packets
//! They begin with 1,200 bytes and grow to what the path is found to take: 1,452 as a rule, and up to 8,952 where the first hop
//! is known to take more, as loopback does and networks with jumbo frames.
//!
//! # Memory
//! What a peer may send ahead follows what comes in a round trip, and what streams may write ahead follows the window of the
//! congestion control, both within the limits of [`Transport`].
//!
//! # Copies
//! Received datagrams are copied once out of the receive buffers, so that one lost packet does not pin 64 KiB; packets are
//! opened in place there, and stream data is copied once more into pooled buffers when it is read, many packets to a
//! buffer. What is written is taken over without a copy until the library puts it into packets, which it seals in place.

#![forbid(unsafe_code)]

pub mod congestion;
pub mod connection;
mod driver;
pub mod endpoint;
pub mod h3;
mod ids;
pub mod link;
mod pace;
pub mod settings;
pub mod stream;
#[cfg(test)]
mod tests;
mod writers;

pub use bytes::Bytes;

pub use congestion::{BbrProfile, Congestion};
pub use connection::{Connection, ConnectionError, DatagramError};
pub use endpoint::{Server, connect};
pub use link::{Disguise, Hop, Link};
pub use settings::{ClientTls, ServerSettings, ServerTls, SettingsError, Transport};
pub use stream::QuicStream;
