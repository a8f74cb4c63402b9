//! Service `api`: gRPC and gRPC-Web, with a dashboard.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::http_client::HttpClientReference;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::schema::Schema;
use crate::table::{self, options};
use crate::value::{Dur, List, OptionValue, Secret};

options! {
    /// Options of the gRPC interface.
    pub struct ApiService {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Password; none when absent.
        secret: Secret<String>,
        /// Web sites that may use the interface.
        access_control_allow_origin: List<String>,
        /// Lets web sites of the internet use it from inside the local network.
        access_control_allow_private_network: bool,
        /// A dashboard to serve.
        dashboard: Option<Dashboard>,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }
    check = ApiService::check_tls;

    /// A dashboard to serve.
    pub struct DashboardOptions {
        /// Whether it is served.
        enabled: bool,
        /// Directory it is in; `dashboard` when absent.
        path: String,
        /// Where to fetch it from.
        download_url: String,
        /// HTTP client to fetch it with.
        http_client: HttpClientReference,
        /// Time between fetches; one day when absent.
        update_interval: Dur,
    }
}

/// A dashboard to serve: `true`, `false`, a directory, or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dashboard(pub DashboardOptions);

impl ApiService {
    fn check_tls(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
    }
}

impl OptionValue for Dashboard {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(enabled) = node.as_bool() {
            self.0 = DashboardOptions { enabled, ..DashboardOptions::default() };
        } else if let Some(path) = node.as_str() {
            self.0 = DashboardOptions { enabled: true, path: path.to_owned(), ..DashboardOptions::default() };
        } else if node.as_object().is_some() {
            table::decode(&mut self.0, node, cx);
        } else {
            cx.expected("true, false, a directory or an object", node);
        }
    }

    /// The shortest form that says it all.
    fn encode(&self) -> Node {
        let DashboardOptions { enabled, path, .. } = &self.0;
        let plain = DashboardOptions { enabled: *enabled, path: path.clone(), ..DashboardOptions::default() };
        match (self.0 == plain, enabled, path.is_empty()) {
            (true, _, true) => enabled.encode(),
            (true, true, false) => path.encode(),
            _ => self.0.encode(),
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("boolean"), Schema::typed("string"), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}
