//! Inbound `direct`: forwards to a fixed destination, or listens for DNS.

use crate::options::listen::ListenOptions;
use crate::table::options;
use crate::value::Networks;

options! {
    /// Options of a direct inbound.
    pub struct DirectInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// What to listen for; both when absent.
        network: Networks,
        /// Destination address.
        override_address: String,
        /// Destination port.
        override_port: u16,
    }
}
