//! Inbounds `vmess`, `vless` and `trojan`, which share TLS, transports and multiplexing.

use std::collections::HashMap;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::ServerOptions;
use crate::options::listen::ListenOptions;
use crate::options::mux::InboundMux;
use crate::options::tls::{InboundTls, Need};
use crate::options::transport::Transport;
use crate::options::users::{PasswordUser, VlessUser, VmessUser};
use crate::table::options;
use crate::value::SortedMap;

options! {
    /// Options of a VMess inbound.
    pub struct VmessInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it.
        users: Vec<VmessUser>,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// Multiplexing.
        multiplex: Option<InboundMux>,
        /// What carries the connections.
        transport: Transport,
    }
    check = VmessInbound::check_tls_and_users;

    /// Options of a VLESS inbound.
    pub struct VlessInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it.
        users: Vec<VlessUser>,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// Multiplexing.
        multiplex: Option<InboundMux>,
        /// What carries the connections.
        transport: Transport,
    }
    check = VlessInbound::check_tls_and_users;

    /// Options of a Trojan inbound.
    pub struct TrojanInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Who may use it.
        users: Vec<PasswordUser>,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// Where connections go that are not Trojan.
        fallback: Option<ServerOptions>,
        /// The same by application protocol.
        fallback_for_alpn: SortedMap<ServerOptions>,
        /// Multiplexing.
        multiplex: Option<InboundMux>,
        /// What carries the connections.
        transport: Transport,
    }
    check = TrojanInbound::check_users_and_fallbacks;
}

impl VmessInbound {
    fn check_tls_and_users(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, node, cx);
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        for (user, item) in self.users.iter().zip(items) {
            user.uuid.check("uuid", item, cx);
        }
    }
}

impl VlessInbound {
    fn check_tls_and_users(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, node, cx);
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        for (user, item) in self.users.iter().zip(items) {
            user.uuid.check("uuid", item, cx);
            user.flow.check_leniently("flow", item, cx);
            if let Some(flow) = user.flow.get() {
                let has_tls = self.tls.as_ref().is_some_and(|tls| tls.enabled);
                flow.check_place(has_tls, self.transport.0.is_some(), item, cx);
            }
        }
    }
}

impl TrojanInbound {
    fn check_users_and_fallbacks(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, node, cx);
        let has_tls = self.tls.as_ref().is_some_and(|tls| tls.enabled);
        let has_fallback =
            self.fallback_for_alpn.iter().any(|(_, server)| *server != ServerOptions::default());
        if has_fallback && !has_tls {
            cx.error(
                node.place_of("fallback_for_alpn"),
                "`fallback_for_alpn` needs TLS, which tells the ALPN",
            );
        }
        let items = node.get("users").and_then(Node::as_array).unwrap_or_default();
        let mut owners = HashMap::new();
        for (index, (user, item)) in self.users.iter().zip(items).enumerate() {
            if let Some(owner) = owners.insert(&**user.password, index) {
                let message = format!("user {owner} has the same password, so nobody could tell them apart");
                cx.error(item.place_of("password"), message);
            }
        }
    }
}

fn check_carrier(tls: Option<&InboundTls>, transport: &Transport, node: &Node, cx: &mut Cx<'_>) {
    InboundTls::check(tls, Need::Optional, node, cx);
    transport.check(tls.is_some_and(|tls| tls.enabled), node, cx);
}
