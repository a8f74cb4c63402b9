//! `ntp`

use super::dial::{DialOptions, ServerOptions};
use crate::table::options;
use crate::value::Dur;

options! {
    /// Time from the network, for the protocols that need it.
    pub struct NtpOptions {
        /// Whether time is fetched.
        enabled: bool,
        /// Time between fetches; 30m when absent.
        interval: Dur,
        /// Also sets the clock of the system.
        write_to_system: bool,
        /// The time server; port 123 when absent.
        server: ServerOptions = ..,
        /// How to dial it.
        dial: DialOptions = ..,
    }
}
