//! How UDP sessions are told apart, for all that takes in packets.

use crate::table::options;
use crate::value::choices;

options! {
    /// Network address translation of UDP.
    pub struct NatOptions {
        /// When packets leave from the same port.
        udp_mapping: NatBehavior,
        /// Whose packets are let in.
        udp_filtering: NatBehavior,
        /// How many sessions there may be; as many as memory suggests when absent.
        udp_nat_max: u32,
    }
}

choices! {
    /// What of the remote side makes a difference (RFC 4787).
    pub enum NatBehavior: "UDP NAT behavior" {
        /// Nothing.
        EndpointIndependent = "endpoint_independent" | "",
        /// Its address.
        AddressDependent = "address_dependent",
        /// Its address and port.
        AddressAndPortDependent = "address_and_port_dependent",
    }
}
