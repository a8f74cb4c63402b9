//! packetaddr: datagrams that each begin with the address of their peer, on an association that VLESS or VMess carries to
//! a name that only says so.
//!
//! ```text
//! association to   sp.packet-addr.v2fly.arpa, port 0
//! datagram         family  address  port  data        family: 1 IPv4, 2 IPv6; to the server where to, from it where from
//! ```
//!
//! There are no names: an outbound refuses associations to one, and drops later packets to one. Sources: v2ray
//! `common/net/packetaddr`, and sing-vmess `packetaddr` as sing-box 1.14.4 uses it.

pub mod codec;
mod conn;

#[cfg(test)]
mod tests;

use culvert_wire::{Domain, Host, Target};

pub use self::conn::{PacketAddrConn, first};
use crate::Protocol;

/// The table's line: there is no config type of this name, other protocols carry it.
pub const PROTOCOL: Protocol =
    Protocol { name: "packetaddr", inbound: None, outbound: None, fuzz: &[codec::fuzz_address] };

const NAME: &str = "sp.packet-addr.v2fly.arpa";

/// Whether datagrams of an association to `target` carry addresses.
#[must_use]
pub fn is_sign(target: &Target) -> bool {
    target.host.domain().is_some_and(|name| name.as_str() == NAME)
}

/// The target to ask a server for.
#[must_use]
pub fn magic_target() -> Target {
    Target { host: Host::Domain(Domain::new(NAME).expect("a constant that is a name")), port: 0 }
}
