//! Outbound `snell`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::snell::{SnellMode, SnellObfuscation, check_version, check_words};
use crate::table::options;
use crate::value::{Networks, Secret, Word};

options! {
    /// Options of a Snell outbound.
    pub struct SnellOutbound {
        /// Version of the protocol: 4, which servers of version 5 speak as well, or 6.
        version: u8,
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Key that all clients know.
        psk: Secret<String> [keep],
        /// Key of this client.
        userkey: Secret<String>,
        /// Uses connections again.
        reuse: bool,
        /// What to send there; both when absent.
        network: Networks,
        /// How the traffic is disguised, for version 4.
        obfs_mode: Word<SnellObfuscation>,
        /// Host to show when disguised, for version 4.
        obfs_host: String,
        /// How the traffic is formed, for version 6.
        mode: Word<SnellMode>,
    }
    check = SnellOutbound::check_values;
}

impl SnellOutbound {
    const OLD_VERSION: u8 = 4;

    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        let foreign: [&[&str]; 2] = [&["obfs_mode", "obfs_host"], &["mode"]];
        check_version(self.version, Self::OLD_VERSION, foreign, node, cx);
        check_words(&self.obfs_mode, &self.mode, node, cx);
        if self.psk.is_empty() {
            cx.error(node.place_of("psk"), "the pre-shared key is missing; add `psk`");
        }
        if self.userkey.len() > 255 {
            cx.error(node.place_of("userkey"), "`userkey` has more than 255 bytes");
        }
    }
}
