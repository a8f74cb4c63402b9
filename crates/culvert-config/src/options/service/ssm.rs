//! Service `ssm-api`: management of Shadowsocks users over HTTP.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::table::options;
use crate::value::{InboundTag, Map};

options! {
    /// Options of the management of Shadowsocks users.
    pub struct SsmApiService {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Paths, each with the managed Shadowsocks inbound it is for; at least one.
        servers: Map<InboundTag> [keep],
        /// File to keep users and traffic in.
        cache_path: String,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
    }
    check = SsmApiService::check_servers;
}

impl SsmApiService {
    fn check_servers(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
        if self.servers.is_empty() {
            cx.error(
                node.place_of("servers"),
                "this service has no `servers`, so there is nothing to manage",
            );
        }
    }
}
