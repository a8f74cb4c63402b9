//! mux.cool: connections and associations inside one, as VLESS and VMess carry them with a command of their own; and XUDP,
//! a single association by the same frames.
//!
//! ```text
//! frame   meta-length  id  status  option  [network  port  address]  [data-length  data]
//!
//! meta-length   2 bytes: from the id up to the data length; at most 512, and what nobody knows in it is skipped
//! id            2 bytes: which session
//! status        1 byte:  1 new, 2 keep (data), 3 end, 4 keep-alive (of nobody)
//! option        1 byte:  bit 0 data follows, bit 1 an error ended the session
//! network ..    in "new": 1 TCP, 2 UDP, where to. In "keep" of UDP: 2 and the packet's peer; left out it is the session's
//! data-length   2 bytes, with option bit 0; each frame of a UDP session is one datagram
//!
//! XUDP    one UDP session with the id 0 and nothing else
//! ```
//!
//! Addresses are `AddressCodec::VLESS`. There is no flow control: a server must take in what the sessions of a carrier
//! cannot yet, or stop reading all of them (see `server.rs`). There is no half-close either: "end" is the end of both
//! directions, and gets no answer.
//!
//! Sources: the mux.cool page of the v2ray documentation, Xray `common/mux` and `common/xudp`, sing-vmess as sing-box
//! 1.14.4 uses it. Left out on purpose: a client for streams (sing-box has none), the global id by which Xray moves an
//! association to another carrier (read over), the reversed form.

pub mod codec;
mod server;
mod session;
mod xudp;

#[cfg(test)]
mod tests;

pub use self::server::serve;
pub use self::xudp::XudpConn;
use crate::Protocol;

/// The table's line: there is no config type of this name, other protocols carry it.
pub const PROTOCOL: Protocol =
    Protocol { name: "mux_cool", inbound: None, outbound: None, fuzz: &[codec::fuzz_frame] };
