//! WebSocket as a carrier: a stream in binary messages, with its first bytes in the request if the options say so.
//!
//! ```text
//! client  GET /path HTTP/1.1 … Upgrade: websocket …       server  101 …
//!         frames, masked                                           frames, plain
//! ```
//!
//! Early data, in Base64 for URLs, stands in a header or at the end of the path. It saves a round trip; whoever sees the
//! request can send it again, so it is worth what the protocol inside makes of it.
//!
//! # Ends
//!
//! A close frame ends one direction, as the end of a socket does, and the connection ends when both have been sent. It is
//! answered once the other direction has ended by itself. Peers that answer at once and go on are understood. A connection
//! that ends without such a frame was cut.
//!
//! | file | |
//! |---|---|
//! | `codec.rs` | frames |
//! | `conn.rs` | the stream |
//! | `early.rs` | a client's stream that is not connected before there is something to send |
//! | `client.rs`, `server.rs` | the two sides |
//!
//! Sources: RFC 6455; sing-box 1.14.4 for early data and for the answers to what is no such request. Left out: extensions,
//! subprotocols; text is read and dropped, as there.

mod client;
mod codec;
mod conn;
mod early;
mod server;

#[cfg(test)]
mod tests;

pub(super) use self::client::Client;
pub(crate) use self::codec::fuzz_frames;
pub(super) use self::server::Server;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// For early data: no padding, and what Go lets pass in the last letter.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// What a server answers to a client's key (RFC 6455 section 4.2.2).
fn accept_key(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat()))
}
