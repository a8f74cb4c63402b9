//! Inbound `snell`.

use std::collections::HashSet;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenOptions;
use crate::options::snell::{SnellMode, SnellObfuscation, check_version, check_words};
use crate::options::users::SnellUser;
use crate::table::options;
use crate::value::{Secret, Word};

options! {
    /// Options of a Snell inbound.
    pub struct SnellInbound {
        /// Version of the protocol: 5 or 6.
        version: u8,
        /// How to listen.
        listen: ListenOptions = ..,
        /// Key that all clients know; for version 6 it has 12 to 255 bytes.
        psk: Secret<String> [keep],
        /// Users with keys of their own.
        users: Vec<SnellUser>,
        /// How the traffic is disguised, for version 5.
        obfs_mode: Word<SnellObfuscation>,
        /// How the traffic is formed, for version 6.
        mode: Word<SnellMode>,
    }
    check = SnellInbound::check_values;
}

impl SnellInbound {
    const OLD_VERSION: u8 = 5;

    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        check_version(self.version, Self::OLD_VERSION, [&["obfs_mode"], &["mode"]], node, cx);
        check_words(&self.obfs_mode, &self.mode, node, cx);
        let place = node.place_of("psk");
        if self.psk.is_empty() {
            cx.error(place, "the pre-shared key is missing; add `psk`");
        } else if self.version == 6 && !(12..=255).contains(&self.psk.len()) {
            cx.error(place, format!("`psk` has {} bytes; version 6 needs 12 to 255", self.psk.len()));
        }
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        let mut keys = HashSet::new();
        for (user, item) in self.users.iter().zip(items) {
            let place = item.place_of("userkey");
            if !(1..=255).contains(&user.userkey.len()) {
                cx.error(place, "`userkey` needs 1 to 255 bytes");
            } else if !keys.insert(&**user.userkey) {
                cx.error(place, "another user has the same `userkey`");
            }
        }
    }
}
