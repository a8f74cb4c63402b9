//! Inbounds `redirect` and `tproxy`: connections the firewall diverts.

use crate::options::listen::ListenOptions;
use crate::options::nat::NatOptions;
use crate::table::options;
use crate::value::Networks;

options! {
    /// Options of a redirect inbound (Linux, macOS): TCP only.
    pub struct RedirectInbound {
        /// How to listen.
        listen: ListenOptions = ..,
    }

    /// Options of a tproxy inbound (Linux).
    pub struct TproxyInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// What to listen for; both when absent.
        network: Networks,
        /// How UDP sessions are told apart.
        nat: NatOptions = ..,
    }
}
