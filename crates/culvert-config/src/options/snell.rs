//! What both sides of Snell share.

use crate::cx::Cx;
use crate::json::Node;
use crate::value::{Word, choices};

choices! {
    /// How Snell up to version 5 is disguised.
    pub enum SnellObfuscation: "obfuscation mode" {
        /// Not at all.
        None = "none",
        /// As HTTP.
        Http = "http",
        /// As TLS.
        Tls = "tls",
    }

    /// How Snell 6 forms its traffic.
    pub enum SnellMode: "Snell mode" {
        /// With the shape of other traffic.
        Default = "default",
        /// Without shaping.
        Unshaped = "unshaped",
        /// Without a second layer of encryption.
        UnsafeRaw = "unsafe-raw",
    }
}

/// Checks the options that depend on the version. `old` is the version with `obfs_*`; the other one is 6.
pub(crate) fn check_version(version: u8, old: u8, [obfs, mode]: [&[&str]; 2], node: &Node, cx: &mut Cx<'_>) {
    let foreign = match version {
        0 => {
            cx.error(node.place, format!("Snell needs a `version`: {old} or 6"));
            return;
        }
        6 => obfs,
        _ if version == old => mode,
        _ => {
            let message = format!("Snell version {version} is not supported here; known are {old} and 6");
            cx.error(node.place_of("version"), message);
            return;
        }
    };
    for key in foreign.iter().filter(|key| node.get(key).is_some()) {
        cx.error(node.place_of(key), format!("Snell version {version} has no option `{key}`"));
    }
}

pub(crate) fn check_words(
    obfuscation: &Word<SnellObfuscation>,
    mode: &Word<SnellMode>,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    obfuscation.check("obfs_mode", node, cx);
    mode.check("mode", node, cx);
}
