//! Names of DNS servers have to be resolved by somebody else.

use std::net::IpAddr;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;

/// A DNS server given by name needs another one to resolve that name, unless what it dials through does so.
/// `route.default_domain_resolver` does not count here, since it may be this very server.
pub(super) fn check(_options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let servers = root.get("dns").and_then(|dns| dns.get("servers")).and_then(Node::as_array);
    for server in servers.unwrap_or_default() {
        let name = server.get("server").and_then(Node::as_str).unwrap_or_default();
        let is_domain = !name.is_empty() && name.parse::<IpAddr>().is_err();
        let resolved = server.get("domain_resolver").is_some() || server.get("detour").is_some();
        if is_domain && !resolved {
            let message =
                format!("`{name}` has to be resolved; name another DNS server in `domain_resolver`");
            cx.error(server.place_of("server"), message);
        }
    }
}
