//! Endpoint `tailscale`.

use std::net::SocketAddr;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DialOptions;
use crate::schema::Schema;
use crate::table::{self, options};
use crate::value::{DurOrSeconds, List, OptionValue, Prefix, Secret};

options! {
    /// Options of a Tailscale endpoint.
    pub struct TailscaleEndpoint {
        /// How to dial.
        dial: DialOptions = ..,
        /// Where the state is kept; `tailscale` when absent.
        state_directory: String,
        /// Key to log in with; without, a link is shown to log in by.
        auth_key: Secret<String>,
        /// URL of the coordination server; that of Tailscale when absent.
        control_url: String,
        /// Leaves the network when it ends.
        ephemeral: bool,
        /// Name in the network; the name of this machine when absent.
        hostname: String,
        /// Takes routes that others offer.
        accept_routes: bool,
        /// Name or address of the node that leads to the internet.
        exit_node: String,
        /// Still reaches the local network when it uses one.
        exit_node_allow_lan_access: bool,
        /// Networks to offer routes to.
        advertise_routes: Vec<Prefix>,
        /// Offers to lead to the internet.
        advertise_exit_node: bool,
        /// Tags to ask for.
        advertise_tags: List<String>,
        /// Port to listen on; a free one when absent.
        listen_port: u16,
        /// Port to relay for others on.
        relay_server_port: Option<u16>,
        /// Addresses at which others reach that port.
        relay_server_static_endpoints: Vec<SocketAddress>,
        /// Uses a network interface of the system.
        system_interface: bool,
        /// Name of the network interface; chosen when absent.
        system_interface_name: String,
        /// Greatest size of a packet on it in bytes.
        system_interface_mtu: u32,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: DurOrSeconds,
        /// Lets others log in by SSH.
        ssh_server: Option<TailscaleSsh>,
        /// Where files that others send are put.
        taildrop_directory: String,
    }

    /// Logging in by SSH through Tailscale.
    pub struct TailscaleSshOptions {
        /// Whether others may log in.
        enabled: bool,
        /// Gives no terminals.
        disable_pty: bool,
        /// Transfers no files.
        disable_sftp: bool,
        /// Forwards no connections.
        disable_forwarding: bool,
    }
}

/// Logging in by SSH: `true`, `false` or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TailscaleSsh(pub TailscaleSshOptions);

/// An IP address with a port.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SocketAddress(pub SocketAddr);

impl Default for SocketAddress {
    fn default() -> Self {
        Self(SocketAddr::from(([0, 0, 0, 0], 0)))
    }
}

impl OptionValue for TailscaleSsh {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_bool() {
            Some(enabled) => self.0 = TailscaleSshOptions { enabled, ..TailscaleSshOptions::default() },
            None if node.as_object().is_some() => table::decode(&mut self.0, node, cx),
            None => cx.expected("true, false or an object", node),
        }
    }

    fn encode(&self) -> Node {
        let plain = TailscaleSshOptions { enabled: self.0.enabled, ..TailscaleSshOptions::default() };
        if self.0 == plain { self.0.enabled.encode() } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("boolean"), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}

impl OptionValue for SocketAddress {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("an IP address with a port", node);
            return;
        };
        match text.parse() {
            Ok(address) => self.0 = address,
            Err(_) => cx.error(node.place, format!("`{text}` is not an IP address with a port")),
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.0.to_string())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}
