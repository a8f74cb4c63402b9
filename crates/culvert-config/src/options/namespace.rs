//! `network_namespaces`

use crate::cx::Cx;
use crate::json::Node;
use crate::table::{kinds, options};

kinds! {
    /// Where a network namespace comes from.
    pub enum NamespaceKind: "network namespace" in [Namespace], default {
        /// It is there.
        Existing(ExistingNamespace) = "default",
        /// It is made at the start.
        Unshare(UnshareNamespace) = "unshare",
    }
}

options! {
    /// A network namespace that is there.
    pub struct ExistingNamespace {
        /// Its file, or its name under `/run/netns`.
        path: String,
    }
    check = ExistingNamespace::check_path;

    /// A network namespace made at the start.
    pub struct UnshareNamespace {
        /// File to write the process id of its keeper to.
        pid_file: String,
    }
    check = UnshareNamespace::check_tag;
}

impl ExistingNamespace {
    fn check_path(&self, node: &Node, cx: &mut Cx<'_>) {
        check_tag(node, cx);
        if self.path.is_empty() {
            cx.error(node.place, "this network namespace has no `path`");
        }
    }
}

impl UnshareNamespace {
    fn check_tag(&self, node: &Node, cx: &mut Cx<'_>) {
        check_tag(node, cx);
    }
}

fn check_tag(node: &Node, cx: &mut Cx<'_>) {
    if node.get("tag").and_then(Node::as_str).is_none_or(str::is_empty) {
        cx.error(node.place, "this network namespace has no `tag`");
    }
}
