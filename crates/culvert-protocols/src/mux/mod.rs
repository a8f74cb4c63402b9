//! Multiplexing (sing-mux): many connections inside one, by smux, yamux or HTTP/2.
//!
//! ```text
//! session   to the name sp.mux.sing-box.arpa, port 444
//!           version: 1   protocol: 1   [padded: 1   [length: 2   zeros]]      version 0 without padding, 1 with it
//!           then frames of the protocol; with padding the first writes each way are padded (`padding.rs`)
//!
//! stream    to the server:   flags: 2   address   data                        flag 1: datagrams, 2: they carry addresses
//!           from the server: 0   data   |   1   length of text   text
//!           datagram:        [address]   length: 2   data                     addresses as in SOCKS
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `codec.rs`, `padding.rs` | the start of a session, requests and answers of streams; padding |
//! | `frame.rs`, `session.rs`, `stream.rs`, `gather.rs` | smux and yamux: frames, the driver of a session, its streams, what it writes |
//! | `h2.rs` | the same over HTTP/2 |
//! | `conn.rs` | what both ends of a stream put in front of its bytes |
//! | `client.rs`, `server.rs` | which session a stream goes to; what becomes of streams that come |
//! | `brutal.rs` | the agreement on fixed speeds |
//!
//! What is read and not taken is bounded per stream by the windows of yamux and HTTP/2, and per session in all. smux has no
//! windows: where a stream is not read, its carrier is not read either once 4 MiB have come, and all streams of it wait, as
//! they do in sing-box. What is written waits in at most 64 KiB and a piece per stream, and streams take turns frame by
//! frame. A stream that waits holds no buffer.
//!
//! smux cannot end one direction alone. A client's end is therefore told only once the server has ended, so that it does not
//! cut off the answer; a server's is told at once, and what the client still sends then goes nowhere.
//!
//! Sources: sing-mux as sing-box 1.14.4 uses it; `frame.rs` names those of the frames. Other than sing-box we leave a
//! connection alone on which nothing comes although it is due, and close one that has had no streams for minutes.

mod brutal;
mod client;
mod codec;
mod conn;
mod frame;
mod gather;
mod h2;
mod life;
mod padding;
mod server;
mod session;
mod stream;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use culvert_config::options::mux::{MuxProtocol, OutboundMux};
use culvert_core::{BoxStream, Outbound};
use culvert_wire::{Domain, Host, Target};

pub(crate) use self::server::{Server, serve_smux};
use crate::{BuildError, Protocol};

/// The table's line: there is no config type of this name, other protocols carry it.
pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "mux",
    inbound: None,
    outbound: None,
    fuzz: &[codec::fuzz_messages, frame::fuzz_frames, padding::fuzz_padding, session::fuzz_session],
};

/// Most streams that a client may have in one session of smux or yamux. sing-box knows no limit, and a client may be told
/// to use a single connection for all that it does.
const MAX_STREAMS: usize = 4096;
/// The same of HTTP/2, where clients are told and open another session.
const MAX_STREAMS_H2: u32 = 250;

const NAME: &str = "sp.mux.sing-box.arpa";
const PORT: u16 = 444;

/// Whether a client that asks for `target` wants to multiplex.
pub(crate) fn is_sign(target: &Target) -> bool {
    target.port == PORT && target.host.domain().is_some_and(|name| name.as_str() == NAME)
}

fn sign() -> Target {
    Target { host: Host::Domain(Domain::new(NAME).expect("a constant that is a name")), port: PORT }
}

/// `outbound` with its connections multiplexed, if the options ask for it.
pub(crate) fn client(
    outbound: Arc<dyn Outbound>,
    options: Option<&OutboundMux>,
) -> Result<Arc<dyn Outbound>, BuildError> {
    let Some(options) = options.filter(|options| options.enabled) else { return Ok(outbound) };
    let protocol = options.protocol.get().unwrap_or(MuxProtocol::H2Mux);
    Ok(client::Client::new(outbound, protocol, options))
}

/// What happens in a session that its owner must know of.
enum Event {
    /// The peer has opened a stream.
    Opened(BoxStream),
    /// There are no streams any more.
    Idle,
    /// There have been none for long enough, or nobody will open any: it may be closed.
    Unused,
    /// It is over.
    Ended(io::Error),
}
