//! Outbounds that name no server. sing-box takes them, and fails at each connection.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::table::{Field, Kind};

/// Options that stand in for a port, or come with one that is meant where none is given.
const OTHER_PORTS: &[&str] = &["server_ports", "realm"];
const DEFAULT_PORT: &[&str] = &["ssh"];

pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    // A mistyped `server` would be told twice.
    if cx.report.errors() > 0 {
        return;
    }
    let nodes = root.get("outbounds").and_then(Node::as_array).unwrap_or_default();
    for (outbound, node) in options.outbounds.iter().zip(nodes) {
        let mut fields = Vec::new();
        outbound.kind.table().fields(&mut fields);
        let is_absent = |key| find(&fields, key).is_some_and(|field| field.value.is_zero());
        let is_given = |key| find(&fields, key).is_some_and(|field| !field.value.is_zero());
        if is_absent("server") && !is_given("realm") {
            cx.warn(node.place_of("server"), "`server` is missing: there is nothing to connect to");
        }
        let has_port =
            OTHER_PORTS.iter().any(|key| is_given(key)) || DEFAULT_PORT.contains(&outbound.kind.name());
        if is_absent("server_port") && !has_port {
            cx.warn(node.place_of("server_port"), "`server_port` is missing: there is nothing to connect to");
        }
    }
}

/// The option of that key, if the object has one.
pub(super) fn find<'f, 'a>(fields: &'f [Field<'a>], key: &str) -> Option<&'f Field<'a>> {
    fields.iter().find(|field| field.key == key)
}
