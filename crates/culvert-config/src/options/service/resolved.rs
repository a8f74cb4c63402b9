//! Service `resolved`: what programs ask systemd-resolved for, over D-Bus and DNS.

use crate::options::listen::ListenOptions;
use crate::table::options;

options! {
    /// Options of the stand-in for systemd-resolved (Linux); it listens on 127.0.0.53, port 53.
    pub struct ResolvedService {
        /// How to listen.
        listen: ListenOptions = ..,
    }
}
