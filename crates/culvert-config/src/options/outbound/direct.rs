//! Outbounds `direct` and `block`: the ones without a server.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DialOptions;
use crate::table::options;

options! {
    /// Options of a direct outbound.
    pub struct DirectOutbound {
        /// How to dial.
        dial: DialOptions = ..,
    }
    check = DirectOutbound::check_detour;

    /// A block outbound has no options.
    pub struct BlockOutbound {}
}

impl DirectOutbound {
    fn check_detour(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.dial.detour.get().is_some() {
            cx.error(
                node.place_of("detour"),
                "a direct outbound cannot have a `detour`; name that outbound instead",
            );
        }
    }
}
