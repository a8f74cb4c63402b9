//! Inbound `shadowtls`: the handshake of another server, then the traffic of the inbound that `detour` names.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::listen::ListenOptions;
use crate::options::users::PasswordUser;
use crate::table::options;
use crate::value::{Map, Secret, choices};

options! {
    /// Options of a ShadowTLS inbound.
    pub struct ShadowTlsInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Version of the protocol: 1 (default), 2 or 3.
        version: u8,
        /// Password, for version 2.
        password: Secret<String>,
        /// Who may use it, for version 3.
        users: Vec<PasswordUser>,
        /// The server that does the handshake.
        handshake: ShadowTlsHandshake [keep],
        /// The same by the name a client asks for, for versions 2 and 3.
        handshake_for_server_name: Map<ShadowTlsHandshake>,
        /// Refuses servers without TLS 1.3, for version 3.
        strict_mode: bool,
        /// Takes the server to do the handshake from the name a client asks for, for versions 2 and 3.
        wildcard_sni: WildcardSni,
    }
    check = ShadowTlsInbound::check_version;

    /// A server that does the handshake.
    pub struct ShadowTlsHandshake {
        /// Its address.
        server: ServerOptions = ..,
        /// How to dial it.
        dial: DialOptions = ..,
    }
}

choices! {
    /// For whom the server that does the handshake comes from the name asked for.
    pub enum WildcardSni: "wildcard SNI mode" {
        /// For nobody.
        Off = "off" | "",
        /// For clients that logged in.
        Authed = "authed",
        /// For everybody.
        All = "all",
    }
}

impl ShadowTlsInbound {
    /// The version, with its default.
    #[must_use]
    pub const fn version(&self) -> u8 {
        if self.version == 0 { 1 } else { self.version }
    }

    fn check_version(&self, node: &Node, cx: &mut Cx<'_>) {
        check_version(self.version, node, cx);
        if self.version == 3 && self.users.is_empty() {
            cx.error(node.place_of("users"), "version 3 needs `users`");
        }
        if self.handshake.server.server.is_empty() && self.wildcard_sni == WildcardSni::Off {
            let message = "the server that does the handshake is missing; add `handshake`";
            cx.error(node.place_of("handshake"), message);
        }
    }
}

/// Checks the version of either side.
pub(crate) fn check_version(version: u8, node: &Node, cx: &mut Cx<'_>) {
    if version > 3 {
        let message = format!("unknown ShadowTLS version {version}; known are 1, 2, 3");
        cx.error(node.place_of("version"), message);
    }
}
