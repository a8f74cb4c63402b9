//! Outbound `bridge`: packets straight to an interface of the system.

use crate::table::options;

options! {
    /// Options of a bridge outbound (Linux). Only rules that see packets can lead to it.
    pub struct BridgeOutbound {
        /// Interface the packets leave by; that of the default route when absent.
        interface: String,
        /// Name of the interface made for it; chosen when absent.
        bridge_name: String,
        /// Routing table for it; 2200 and up when absent.
        iproute2_table_index: i64,
        /// Routing rule for it; 100 when absent.
        iproute2_rule_index: i64,
    }
}
