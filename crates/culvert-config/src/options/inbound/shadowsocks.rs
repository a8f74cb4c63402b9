//! Inbound `shadowsocks`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::ServerOptions;
use crate::options::listen::ListenOptions;
use crate::options::mux::InboundMux;
use crate::options::shadowsocks::ShadowsocksMethod;
use crate::options::tls::check_unused;
use crate::options::users::PasswordUser;
use crate::table::options;
use crate::value::{Networks, Secret, Word};

options! {
    /// Options of a Shadowsocks inbound.
    pub struct ShadowsocksInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// What to listen for; both when absent.
        network: Networks,
        /// How to encrypt.
        method: Word<ShadowsocksMethod> [keep],
        /// Password; for the methods that begin with 2022 a key in base64.
        password: Secret<String>,
        /// Users with passwords of their own.
        users: Vec<PasswordUser>,
        /// Servers to pass connections on to, each with a password of its own.
        destinations: Vec<ShadowsocksDestination>,
        /// Multiplexing.
        multiplex: Option<InboundMux>,
        /// Takes its users from an `ssm-api` service.
        managed: bool,
    }
    check = ShadowsocksInbound::check_users_and_keys;

    /// A Shadowsocks server to pass connections on to.
    pub struct ShadowsocksDestination {
        /// Name in rules and logs; the index in the list when absent.
        name: String,
        /// Password of that server.
        password: Secret<String> [keep],
        /// Its address.
        server: ServerOptions = ..,
    }
}

impl ShadowsocksInbound {
    fn check_users_and_keys(&self, node: &Node, cx: &mut Cx<'_>) {
        let lists = [("users", !self.users.is_empty()), ("destinations", !self.destinations.is_empty())];
        if self.managed {
            check_unused(lists, "cannot be used with `managed`", node, cx);
        } else if lists.iter().all(|(_, given)| *given) {
            cx.error(node.place_of("destinations"), "`users` and `destinations` exclude each other");
        }
        self.method.check("method", node, cx);
        let Some(method) = self.method.get() else {
            if !self.method.is_unknown() {
                cx.error(node.place, "this Shadowsocks inbound has no `method`");
            }
            return;
        };
        let place = node.get("method").map_or(node.place, |method| method.place);
        if method.is_stream() {
            let message =
                format!("`{}` is not safe enough for an inbound; only outbounds have it", method.name());
            cx.error(place, message);
            return;
        }
        let shared = self.managed || lists.iter().any(|(_, given)| *given);
        if shared && !method.has_users() {
            cx.error(place, format!("`{}` cannot be shared by several users", method.name()));
            return;
        }
        if !self.destinations.is_empty() && !method.is_2022() {
            cx.error(
                place,
                format!("`destinations` need a method of the 2022 edition, not `{}`", method.name()),
            );
            return;
        }
        // Without keys of the 2022 edition, users have passwords in place of the common one.
        if !shared || method.is_2022() {
            check_password(method, &self.password, node, cx);
        }
        let users = self.users.iter().map(|user| &user.password);
        check_passwords(method, "users", users, node, cx);
        let destinations = self.destinations.iter().map(|destination| &destination.password);
        check_passwords(method, "destinations", destinations, node, cx);
    }
}

fn check_passwords<'a>(
    method: ShadowsocksMethod,
    list: &str,
    passwords: impl Iterator<Item = &'a Secret<String>>,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    let items = node.get(list).and_then(Node::as_array).unwrap_or_default();
    for (password, item) in passwords.zip(items) {
        check_password(method, password, item, cx);
    }
}

fn check_password(method: ShadowsocksMethod, password: &str, node: &Node, cx: &mut Cx<'_>) {
    if let Some(fault) = method.server_fault(password) {
        cx.error(node.place_of("password"), fault);
    }
}
