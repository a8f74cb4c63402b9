//! `route`

use super::dial::{DomainResolver, InterfaceType, NetworkStrategy};
use super::rule::{RouteAction, RouteMatch, Rule};
use super::rule_set::RuleSet;
use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Dur, HttpClientTag, List, Mark, OutboundTag};

options! {
    /// Which connection goes where.
    pub struct RouteOptions {
        /// Ignored, kept for old files.
        geoip: OldDatabaseOptions [hidden],
        /// Ignored, kept for old files.
        geosite: OldDatabaseOptions [hidden],
        /// Rules, from first to last.
        rules: Vec<Rule<RouteMatch, RouteAction>>,
        /// Named sets of conditions.
        rule_set: Vec<RuleSet>,
        /// Outbound when no rule decides; the first one when absent.
        final_outbound: OutboundTag = "final",
        /// Looks up the program of each connection, also without rules that ask for it.
        find_process: bool,
        /// Looks up the device of each connection, also without rules that ask for it.
        find_neighbor: bool,
        /// Files with DHCP leases; the usual places when absent.
        dhcp_lease_files: List<String>,
        /// Binds to the default network interface.
        auto_detect_interface: bool,
        /// Takes the VPN for the default network (Android).
        override_android_vpn: bool,
        /// Network interface to bind to.
        default_interface: String,
        /// Firewall mark of the sockets (Linux).
        default_mark: Mark,
        /// DNS server for names of servers.
        default_domain_resolver: Option<DomainResolver>,
        /// How to use several network interfaces.
        default_network_strategy: Option<NetworkStrategy>,
        /// Kinds of interface to use first.
        default_network_type: List<InterfaceType>,
        /// Kinds of interface to use when the first ones fail.
        default_fallback_network_type: List<InterfaceType>,
        /// Wait before the next interface is tried as well; 300ms when absent.
        default_fallback_delay: Dur,
        /// HTTP client for fetching; the first one when absent.
        default_http_client: HttpClientTag,
    }
    check = RouteOptions::check_interfaces;
}

options! {
    /// Where a database of old came from; without effect, as rule-sets have taken their place.
    pub struct OldDatabaseOptions {
        /// Its file.
        path: String,
        /// What was fetched.
        download_url: String,
        /// Outbound it was fetched through.
        download_detour: String,
    }
}

impl RouteOptions {
    fn check_interfaces(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.override_android_vpn && !cfg!(target_os = "android") {
            cx.error(node.place_of("override_android_vpn"), "`override_android_vpn` only exists on Android");
        }
        if self.default_network_strategy.is_some() {
            let place = node.place_of("default_network_strategy");
            if !self.default_interface.is_empty() {
                cx.error(place, "`default_network_strategy` and `default_interface` exclude each other");
            } else if !self.auto_detect_interface {
                cx.error(place, "`default_network_strategy` needs `auto_detect_interface`");
            }
        }
    }
}
