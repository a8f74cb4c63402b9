//! `outbounds`: one file per type or group of types that share their options.

pub mod direct;
pub mod group;
pub mod http;
pub mod socks;

use direct::{BlockOutbound, DirectOutbound};
use group::{SelectorOutbound, UrlTestOutbound};
use http::HttpOutbound;
use socks::SocksOutbound;

use crate::table::kinds;

kinds! {
    /// The types of outbound with their options.
    pub enum OutboundKind: "outbound" in [Outbound] {
        /// Straight to the destination.
        Direct(DirectOutbound) = "direct",
        /// Refuses everything.
        Block(BlockOutbound) = "block",
        /// One of several outbounds, chosen by hand.
        Selector(SelectorOutbound) = "selector",
        /// One of several outbounds, chosen by delay.
        UrlTest(UrlTestOutbound) = "urltest",
        /// SOCKS 4, 4a or 5.
        Socks(SocksOutbound) = "socks",
        /// HTTP CONNECT.
        Http(HttpOutbound) = "http",
    }
}
