//! `inbounds`: one file per type or group of types that share their options.

pub mod direct;
pub mod mixed;

use direct::DirectInbound;
use mixed::{HttpInbound, MixedInbound, SocksInbound};

use crate::table::kinds;

kinds! {
    /// The types of inbound with their options.
    pub enum InboundKind: "inbound" in [Inbound] {
        /// Everything to one fixed destination.
        Direct(DirectInbound) = "direct",
        /// SOCKS and HTTP on one port.
        Mixed(MixedInbound) = "mixed",
        /// SOCKS 4, 4a and 5.
        Socks(SocksInbound) = "socks",
        /// HTTP proxy.
        Http(HttpInbound) = "http",
    }
}
