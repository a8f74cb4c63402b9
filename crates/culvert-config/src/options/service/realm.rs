//! Service `hysteria-realm`: a meeting point for Hysteria 2.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::http_fields::Http2Options;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::table::options;
use crate::value::Secret;

options! {
    /// Options of a meeting point for Hysteria 2.
    pub struct HysteriaRealmService {
        /// How to listen.
        listen: ListenOptions = ..,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// Limits of connections.
        http2: Http2Options = ..,
        /// Who may meet here, at least one.
        users: Vec<RealmUser> [keep],
    }
    check = HysteriaRealmService::check_users;

    /// Somebody who may meet here.
    pub struct RealmUser {
        /// Name in logs.
        name: String [keep],
        /// Token to log in with.
        token: Secret<String> [keep],
        /// How many places to meet there may be; any number when absent.
        max_realms: i64,
    }
}

impl HysteriaRealmService {
    fn check_users(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
        if self.users.is_empty() {
            cx.error(node.place_of("users"), "a meeting point needs `users`, or anybody could use it");
        }
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        for (user, item) in self.users.iter().zip(items) {
            for (key, missing) in [("name", user.name.is_empty()), ("token", user.token.is_empty())] {
                if missing {
                    cx.error(item.place_of(key), format!("this user has no `{key}`"));
                }
            }
        }
    }
}
