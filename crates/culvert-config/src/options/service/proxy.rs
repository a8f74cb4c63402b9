//! Services `ccm` and `ocm`: coding programs that share one login.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenWithoutDetour;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::TokenUser;
use crate::table::options;
use crate::value::{Headers, OutboundTag};

options! {
    /// A login that several programs share.
    pub struct SharedLogin {
        /// How to listen.
        listen: ListenWithoutDetour = ..,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// File with the login; where the program keeps it when absent.
        credential_path: String,
        /// Who may use it; everybody when empty.
        users: Vec<TokenUser>,
        /// Further request headers.
        headers: Headers,
        /// Outbound to send requests through.
        detour: OutboundTag,
        /// File to count usage in.
        usages_path: String,
    }
    check = SharedLogin::check_tls;

    /// Options of the proxy to Claude Code.
    pub struct CcmService {
        /// The login and how it is shared.
        options: SharedLogin = ..,
    }

    /// Options of the proxy to OpenAI Codex.
    pub struct OcmService {
        /// The login and how it is shared.
        options: SharedLogin = ..,
    }
}

impl SharedLogin {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}
