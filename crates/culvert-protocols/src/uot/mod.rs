//! UDP over TCP: datagrams on a stream, recognised by the name that the stream is asked to go to.
//!
//! ```text
//! version 1   sp.udp-over-tcp.arpa       packets
//! version 2   sp.v2.udp-over-tcp.arpa    connect  address  packets       connect: 0 or 1; address as in SOCKS
//!
//! packet      address  length  data      address: AddressCodec::UOT; to the server where to, from it where from
//!             length  data               when connect is 1: all to and from the one address
//! ```
//!
//! Source: sing `common/uot` as sing-box 1.14.4 uses it. The port that goes with the name is ignored; ours is 0.

pub mod codec;
mod conn;
mod inbound;

#[cfg(test)]
mod tests;

use culvert_wire::{Domain, Host, Target};

pub use self::conn::{UotConn, UotFraming};
pub use self::inbound::serve;
use crate::Protocol;

/// The table's line: there is no config type of this name, other protocols carry it.
pub const PROTOCOL: Protocol = Protocol {
    name: "uot",
    inbound: None,
    outbound: None,
    fuzz: &[codec::fuzz_request, codec::fuzz_packets],
};

/// Which form the stream has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// Packets from the first byte on.
    V1,
    /// A request first.
    V2,
}

impl Version {
    const V1_NAME: &str = "sp.udp-over-tcp.arpa";
    const V2_NAME: &str = "sp.v2.udp-over-tcp.arpa";

    /// The version that `target` is the sign of.
    #[must_use]
    pub fn of(target: &Target) -> Option<Self> {
        match target.host.domain()?.as_str() {
            Self::V1_NAME => Some(Self::V1),
            Self::V2_NAME => Some(Self::V2),
            _ => None,
        }
    }

    /// The target to ask a server for.
    #[must_use]
    pub fn magic_target(self) -> Target {
        let name = match self {
            Self::V1 => Self::V1_NAME,
            Self::V2 => Self::V2_NAME,
        };
        Target { host: Host::Domain(Domain::new(name).expect("a constant that is a name")), port: 0 }
    }
}
