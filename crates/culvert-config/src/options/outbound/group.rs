//! Outbounds `selector`, `urltest`, `fallback` and `load-balance`: groups of other outbounds. The last two are ours.

use std::time::Duration;

use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Dur, OutboundTag, choices};

options! {
    /// Options of a selector.
    pub struct SelectorOutbound {
        /// The members, at least one.
        outbounds: Vec<OutboundTag> [keep],
        /// Member chosen before anybody chooses; the first when absent.
        default: OutboundTag,
        /// Ends the connections of inbounds when another member is chosen.
        interrupt_exist_connections: bool,
    }
    check = SelectorOutbound::check_members;

    /// Options of a URL test group.
    pub struct UrlTestOutbound {
        /// The members, at least one.
        outbounds: Vec<OutboundTag> [keep],
        /// What to fetch; `https://www.gstatic.com/generate_204` when absent.
        url: String,
        /// Time between tests; 3m when absent.
        interval: Dur,
        /// How many milliseconds better another member must be; 50 when absent.
        tolerance: u16,
        /// Time without use after which testing pauses; 30m when absent.
        idle_timeout: Dur,
        /// Ends the connections of inbounds when another member is chosen.
        interrupt_exist_connections: bool,
    }
    check = UrlTestOutbound::check_members_and_times;

    /// Options of a fallback group.
    pub struct FallbackOutbound {
        /// The members, best first, at least one.
        outbounds: Vec<OutboundTag> [keep],
        /// How long a member may take to connect before the next one is tried too; 3s when absent.
        delay: Dur,
    }
    check = FallbackOutbound::check_members;

    /// Options of a load balancing group.
    pub struct LoadBalanceOutbound {
        /// The members, at least one.
        outbounds: Vec<OutboundTag> [keep],
        /// Who gets which member.
        strategy: BalanceStrategy,
        /// How long a member may take to connect before the next one is tried too; 3s when absent.
        delay: Dur,
    }
    check = LoadBalanceOutbound::check_members;
}

choices! {
    /// Who gets which member of a load balancing group.
    pub enum BalanceStrategy: "balancing strategy" {
        /// Each connection the next one.
        RoundRobin = "round_robin" | "",
        /// All connections of a client the same one.
        Source = "source",
        /// All connections to a host the same one.
        Target = "target",
    }
}

impl FallbackOutbound {
    fn check_members(&self, node: &Node, cx: &mut Cx<'_>) {
        check_not_empty(&self.outbounds, node, cx);
    }
}

impl LoadBalanceOutbound {
    fn check_members(&self, node: &Node, cx: &mut Cx<'_>) {
        check_not_empty(&self.outbounds, node, cx);
    }
}

impl SelectorOutbound {
    fn check_members(&self, node: &Node, cx: &mut Cx<'_>) {
        check_not_empty(&self.outbounds, node, cx);
        let Some(default) = self.default.get() else { return };
        if !self.outbounds.iter().any(|member| member.as_str() == default) {
            let place = node.get("default").map_or(node.place, |default| default.place);
            cx.error(place, format!("`{default}` is not a member of this selector"));
        }
    }
}

impl UrlTestOutbound {
    /// Time between tests when none is given.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(3 * 60);
    /// Time without use after which testing pauses when none is given.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

    fn check_members_and_times(&self, node: &Node, cx: &mut Cx<'_>) {
        check_not_empty(&self.outbounds, node, cx);
        if self.interval.or(Self::DEFAULT_INTERVAL) > self.idle_timeout.or(Self::DEFAULT_IDLE_TIMEOUT) {
            cx.error(node.place_of("interval"), "`interval` must not be longer than `idle_timeout`");
        }
    }
}

fn check_not_empty(members: &[OutboundTag], node: &Node, cx: &mut Cx<'_>) {
    if members.is_empty() {
        cx.error(
            node.place_of("outbounds"),
            "this group has no members; list at least one tag in `outbounds`",
        );
    }
}
