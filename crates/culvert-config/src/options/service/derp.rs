//! Service `derp`: a relay for Tailscale.

use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::http_client::HttpClientOptions;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need, OutboundTls};
use crate::schema::Schema;
use crate::table::{self, options};
use crate::value::{List, LooseEndpointTag, OptionValue, Secret};

options! {
    /// Options of a relay for Tailscale.
    pub struct DerpService {
        /// How to listen.
        listen: ListenOptions = ..,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// File with the key of the relay, made when it is missing.
        config_path: String,
        /// Tailscale endpoints that know who may use it.
        verify_client_endpoint: List<LooseEndpointTag>,
        /// Web servers that know who may use it.
        verify_client_url: List<VerifyUrl>,
        /// What browsers get: `blank`, or a URL to go to; a page about the relay when absent.
        home: String,
        /// Other relays to share clients with.
        mesh_with: List<DerpMesh>,
        /// Key that these relays know: 64 hexadecimal digits.
        mesh_psk: Secret<String>,
        /// File with that key.
        mesh_psk_file: String,
        /// STUN beside the relay.
        stun: Option<Box<Stun>>,
    }
    check = DerpService::check_values;

    /// Another relay to share clients with.
    pub struct DerpMesh {
        /// Its address.
        server: ServerOptions = ..,
        /// Its host name; its address when absent.
        host: String,
        /// TLS towards it.
        tls: Option<Box<OutboundTls>>,
        /// How to dial it.
        dial: DialOptions = ..,
    }
    check = DerpMesh::check_tls;

    /// A web server that knows who may use a relay, and how to ask it.
    pub struct VerifyUrlOptions {
        /// The URL.
        url: String,
        /// How to ask it.
        client: HttpClientOptions = ..,
    }

    /// STUN: telling clients their address.
    pub struct StunOptions {
        /// Whether it is served.
        enabled: bool,
        /// How to listen; port 3478 when absent.
        listen: ListenOptions = ..,
    }
    unknown_keys = Warn;
}

/// A web server that knows who may use a relay: a URL, or an object.
#[derive(Clone, Debug, PartialEq)]
pub enum VerifyUrl {
    /// Asked in the usual way.
    Plain(String),
    /// Asked in a way of its own.
    WithClient(Box<VerifyUrlOptions>),
}

/// STUN: a port, or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stun(pub StunOptions);

impl DerpService {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
        if self.config_path.is_empty() {
            cx.error(node.place_of("config_path"), "this relay has no `config_path` to keep its key in");
        }
        let digits =
            self.mesh_psk.len() == 64 && self.mesh_psk.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !self.mesh_psk.is_empty() && !digits {
            cx.error(node.place_of("mesh_psk"), "`mesh_psk` must have 64 hexadecimal digits");
        }
    }
}

impl DerpMesh {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        OutboundTls::check(self.tls.as_deref(), Need::Optional, &self.server.server, node, cx);
    }
}

impl Default for VerifyUrl {
    fn default() -> Self {
        Self::Plain(String::new())
    }
}

impl OptionValue for VerifyUrl {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(url) = node.as_str() {
            *self = Self::Plain(url.to_owned());
        } else if node.as_object().is_some() {
            let mut options = Box::<VerifyUrlOptions>::default();
            options.decode(node, cx);
            *self = Self::WithClient(options);
        } else {
            cx.expected("a URL or an object", node);
        }
    }

    fn encode(&self) -> Node {
        match self {
            Self::Plain(url) => url.encode(),
            Self::WithClient(options) => options.encode(),
        }
    }

    fn is_zero(&self) -> bool {
        matches!(self, Self::Plain(url) if url.is_empty())
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("string"), VerifyUrlOptions::default().schema(schema)];
        Schema::any_of(forms)
    }
}

impl OptionValue for Stun {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if matches!(node.value, Value::Number(_)) {
            self.0.enabled = true;
            self.0.listen.listen_port.decode(node, cx);
        } else if node.as_object().is_some() {
            table::decode(&mut self.0, node, cx);
        } else {
            cx.expected("a port or an object", node);
        }
    }

    /// The port alone where that says it all.
    fn encode(&self) -> Node {
        let port = self.0.listen.listen_port;
        let plain = ListenOptions { listen_port: port, ..ListenOptions::default() };
        if self.0.enabled && port != 0 && self.0.listen == plain { port.encode() } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::integer(0, u16::MAX), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}
