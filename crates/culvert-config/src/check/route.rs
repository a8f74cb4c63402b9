//! What route rules need from outbounds.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::options::rule::{Condition, RouteMatch};

/// Types of endpoint that know which destinations they serve.
const WITH_PREFERRED_ROUTES: [&str; 5] =
    ["tailscale", "wireguard", "openvpn-client", "openvpn-server", "openconnect"];

pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let nodes =
        root.get("route").and_then(|route| route.get("rules")).and_then(Node::as_array).unwrap_or_default();
    for (rule, node) in options.route.rules.iter().zip(nodes) {
        check_condition(&rule.condition, node, options, cx);
    }
}

fn check_condition(condition: &Condition<RouteMatch>, node: &Node, options: &Options, cx: &mut Cx<'_>) {
    match condition {
        Condition::Logical(logical) => {
            let nodes = node.get("rules").and_then(Node::as_array).unwrap_or_default();
            for (rule, node) in logical.rules.iter().zip(nodes) {
                check_condition(rule, node, options, cx);
            }
        }
        Condition::Fields(fields) => {
            for tag in &fields.preferred_by {
                let outbound = options.outbounds.iter().find(|outbound| outbound.tag == tag.as_str());
                let kind = outbound.map(|outbound| outbound.kind.name());
                if let Some(kind) = kind.filter(|kind| !WITH_PREFERRED_ROUTES.contains(kind)) {
                    let message =
                        format!("`{}` is of type {kind}, which prefers no destinations", tag.as_str());
                    cx.warn(node.place_of("preferred_by"), message);
                }
            }
        }
    }
}
