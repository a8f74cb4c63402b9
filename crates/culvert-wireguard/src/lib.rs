//! WireGuard: the handshake, the sessions that it makes, their keys, timers and limits. Datagrams in, datagrams out, time
//! passed in. No sockets, no threads; packets inside the tunnel are bytes.
//!
//! ```text
//! datagram, type 4 ─▶ Device::receiving ─▶ ReceiveKey::open ─▶ Device::received      per datagram, the middle without a lock
//!           others ─▶ Device::handshake
//! packet           ─▶ Routes::find ─▶ Device::send ─▶ SendKey::seal                    likewise
//! always           ─▶ Device::poll_transmit, Device::poll_event                         after each of the above
//!                     Device::next_timeout, Device::on_timeout                          when nothing else happens
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | [`Device`]: which datagram belongs to which peer, limits under load |
//! | `peer` | one peer: its sessions and timers |
//! | `noise` | the handshake, Noise_IKpsk2 |
//! | [`transport`] | keys of a session: [`SendKey`], [`ReceiveKey`] |
//! | `replay` | which counters have been seen |
//! | `cookie` | proofs of an address, asked for under load |
//! | [`routes`] | [`Routes`]: which peer an address belongs to |
//! | `crypto` | the primitives by the names that the paper gives them |
//!
//! Sources: "WireGuard: Next Generation Kernel Network Tunnel" (Donenfeld, 2020 edition), sections 5 and 6; the Noise Protocol
//! Framework, revision 34; RFC 7693 (BLAKE2), RFC 8439 (ChaCha20-Poly1305), RFC 7748 (X25519).

#![forbid(unsafe_code)]

mod cookie;
mod crypto;
pub mod device;
mod noise;
mod peer;
mod replay;
pub mod routes;
pub mod transport;

pub use crypto::Key;
pub use device::{Datagram, Device, Event, PeerId, Receiving, Sending, Settings, SettingsError, Transmit};
pub use peer::PeerSettings;
pub use routes::Routes;
pub use transport::{ReceiveKey, SendKey};

/// Bytes before a packet in a datagram.
pub const HEAD: usize = 16;
/// Bytes behind it.
pub const TAG: usize = 16;
/// Packets are filled up with zeros to a multiple of this, as far as the tunnel's MTU allows.
pub const PADDING: usize = 16;
