//! Words about QUIC that several protocols share.

use crate::value::choices;

choices! {
    /// Congestion control of a TUIC connection.
    pub enum CongestionControl: "congestion control algorithm" {
        /// CUBIC.
        Cubic = "cubic",
        /// New Reno.
        NewReno = "new_reno",
        /// BBR.
        Bbr = "bbr",
    }

    /// How hard BBR tries.
    pub enum BbrProfile: "BBR profile" {
        /// As usual.
        Standard = "standard",
        /// Gentle to others.
        Conservative = "conservative",
        /// Not gentle to others.
        Aggressive = "aggressive",
    }
}
