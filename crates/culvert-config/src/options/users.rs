//! User entries of the protocols.

use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Base64, Secret, UserId, Uuid, Word, choices};

options! {
    /// A user with a name and a password.
    pub struct LoginUser {
        /// Name to log in with; also the name in rules and logs.
        username: String [keep],
        /// Password.
        password: Secret<String> [keep],
    }

    /// A user known by the password alone.
    pub struct PasswordUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Password.
        password: Secret<String> [keep],
    }

    /// A user of VMess.
    pub struct VmessUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Id.
        uuid: Secret<UserId> [keep],
        /// Above 0 the old way to log in is accepted, too.
        alter_id: i64 = "alterId",
    }

    /// A user of VLESS.
    pub struct VlessUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Id.
        uuid: Secret<UserId> [keep],
        /// Flow the client must use.
        flow: Word<VlessFlow>,
    }

    /// A user of TUIC.
    pub struct TuicUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Id.
        uuid: Secret<Uuid>,
        /// Password.
        password: Secret<String>,
    }

    /// A user of Hysteria.
    pub struct HysteriaUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Password as bytes in base64; it counts before `auth_str`.
        auth: Secret<Base64>,
        /// Password as text.
        auth_str: Secret<String>,
    }

    /// A user of Snell.
    pub struct SnellUser {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Key.
        userkey: Secret<String> [keep],
    }

    /// A user known by a token.
    pub struct TokenUser {
        /// Name in rules and logs.
        name: String,
        /// Token.
        token: Secret<String>,
    }
}

choices! {
    /// What VLESS does with the connections inside TLS.
    pub enum VlessFlow: "flow" {
        /// XTLS Vision: hands TLS 1.3 connections through as they are.
        Vision = "xtls-rprx-vision",
    }
}

impl VlessFlow {
    /// Vision leaves the TLS that carries it, so there must be one, and nothing between.
    pub(crate) fn check_place(self, has_tls: bool, has_transport: bool, node: &Node, cx: &mut Cx<'_>) {
        let reason = match self {
            Self::Vision if has_transport => "cannot be used inside a transport",
            Self::Vision if !has_tls => "needs TLS",
            Self::Vision => return,
        };
        cx.error(node.place_of("flow"), format!("flow `{}` {reason}", self.name()));
    }
}

impl HysteriaUser {
    /// The password as bytes.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        if self.auth.0.0.is_empty() { self.auth_str.as_bytes() } else { &self.auth.0.0 }
    }
}
