//! Names of DNS servers have to be resolved by somebody else.

use std::net::IpAddr;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;

/// A DNS server given by name needs another one to resolve that name, unless what it dials through does so.
/// `route.default_domain_resolver` does not count here, since it may be this very server.
pub(super) fn check(_options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let servers = root.get("dns").and_then(|dns| dns.get("servers")).and_then(Node::as_array);
    let servers = servers.unwrap_or_default();
    for server in servers {
        let name = server.get("server").and_then(Node::as_str).unwrap_or_default();
        let is_domain = !name.is_empty() && name.parse::<IpAddr>().is_err();
        let resolved = server.get("domain_resolver").is_some() || server.get("detour").is_some();
        if is_domain && !resolved {
            let of_address = |other: &&Node| {
                let name = other.get("server").and_then(Node::as_str).unwrap_or_default();
                let kind = other.get("type").and_then(Node::as_str).unwrap_or_default();
                kind != "fakeip" && (name.is_empty() || name.parse::<IpAddr>().is_ok())
            };
            let other = servers.iter().find(of_address).and_then(|other| other.get("tag")?.as_str());
            let advice = match other {
                Some(tag) => format!("add \"domain_resolver\": \"{tag}\""),
                None => "add a server that has an address, such as {\"type\": \"local\", \"tag\": \"local\"}, and \
                         name it in `domain_resolver`"
                    .to_owned(),
            };
            let message = format!("`{name}` has to be resolved by another DNS server; {advice}");
            cx.error(server.place_of("server"), message);
        }
    }
}
