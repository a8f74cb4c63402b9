//! What services need from inbounds.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::options::inbound::shadowsocks::ShadowsocksInbound;
use crate::options::service::ssm::SsmApiService;

/// Only Shadowsocks inbounds that say so have their users managed.
pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let nodes = root.get("services").and_then(Node::as_array).unwrap_or_default();
    for (service, node) in options.services.iter().zip(nodes) {
        let Some(ssm) = service.of::<SsmApiService>() else { continue };
        let node = node.get("servers").unwrap_or(node);
        for (path, tag) in ssm.servers.iter() {
            let Some(inbound) = options.inbounds.iter().find(|inbound| inbound.tag == tag.as_str()) else {
                if tag.get().is_none() {
                    cx.error(node.place_of(path), "this path has no inbound");
                }
                continue;
            };
            if !inbound.of::<ShadowsocksInbound>().is_some_and(|shadowsocks| shadowsocks.managed) {
                let message =
                    format!("`{}` is no Shadowsocks inbound with `\"managed\": true`", tag.as_str());
                cx.error(node.place_of(path), message);
            }
        }
    }
}
