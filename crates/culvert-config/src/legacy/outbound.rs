//! Outbounds of old: `dns`, `wireguard`, `direct` with another destination, ECH options without effect.

use super::{
    default_outbound, list_mut, pin_tags, rules_mut, section, section_mut, tag_of, take, text, type_of,
};
use crate::diagnostics::Report;
use crate::json::{Entry, Node, Value, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    for section in ["outbounds", "inbounds"] {
        for object in section_mut(root, section) {
            drop_old_ech_options(object, report);
        }
    }
    move_overrides(root, report);
    replace_dns_outbounds(root, report);
    move_wireguard(root, report);
}

fn drop_old_ech_options(object: &mut Node, report: &mut Report) {
    let Some(ech) = object.get_mut("tls").and_then(|tls| tls.get_mut("ech")) else { return };
    for entry in take(ech, &["pq_signature_schemes_enabled", "dynamic_record_sizing_disabled"]) {
        let message =
            format!("`{}` has no effect any more; `\"ech\": {{\"enabled\": true}}` is enough", entry.key);
        report.warn(entry.key_place, message);
    }
}

/// `override_address` and `override_port` of direct outbounds move to the rules that lead there.
fn move_overrides(root: &mut Node, report: &mut Report) {
    let default = default_outbound(root).map(|(tag, _)| tag);
    let mut overrides = Vec::new();
    for (index, outbound) in section_mut(root, "outbounds").iter_mut().enumerate() {
        if type_of(outbound) != "direct" {
            continue;
        }
        let options = take(outbound, &["override_address", "override_port"]);
        if !options.is_empty() {
            overrides.push((tag_of(outbound, index), options));
        }
    }
    for (tag, options) in overrides {
        let place = options[0].key_place;
        let mut example = Node::object([("outbound", Node::string(&*tag))]);
        options.iter().for_each(|option| example.set(&option.key, option.node.clone()));
        let message = format!(
            "the destination of a direct outbound is now an option of rules: {}",
            write_line(&example)
        );
        report.warn(place, message);
        for rule in rules_mut(root, "route") {
            if rule.texts("outbound") == [&*tag] {
                options.iter().for_each(|option| rule.set(&option.key, option.node.clone()));
            }
        }
        if default.as_ref() == Some(&tag)
            && let Some(rules) = list_mut(root, "route", "rules")
        {
            rules.push(example.at(place));
        }
    }
}

/// Rules that led to a `dns` outbound have the action `hijack-dns`.
fn replace_dns_outbounds(root: &mut Node, report: &mut Report) {
    let outbounds = section(root, "outbounds").iter().enumerate();
    let gone: Vec<(String, _)> = outbounds
        .filter(|(_, outbound)| type_of(outbound) == "dns")
        .map(|(index, outbound)| {
            (tag_of(outbound, index), outbound.get("type").map_or(outbound.place, |t| t.place))
        })
        .collect();
    if gone.is_empty() {
        return;
    }
    for (_, place) in &gone {
        report.warn(*place, "the outbound `dns` is now a rule action: {\"action\": \"hijack-dns\"}");
    }
    let is_gone = |tag: &str| gone.iter().any(|(known, _)| known == tag);
    let was_default = default_outbound(root).is_some_and(|(tag, _)| is_gone(&tag));
    pin_tags(section_mut(root, "outbounds"));
    if let Some(outbounds) = root.get_mut("outbounds").and_then(Node::as_array_mut) {
        outbounds.retain(|outbound| type_of(outbound) != "dns");
    }
    for rule in rules_mut(root, "route") {
        if rule.texts("outbound").first().is_some_and(|tag| is_gone(tag)) {
            hijack(rule);
        }
    }
    let place = root.place;
    if was_default && let Some(rules) = list_mut(root, "route", "rules") {
        rules.push(Node::object([("action", Node::string("hijack-dns"))]).at(place));
        root.get_mut("route").and_then(|route| route.remove("final"));
    }
}

fn hijack(rule: &mut Node) {
    let place = rule.place_of("outbound");
    if let Some(entry) =
        rule.as_object_mut().and_then(|entries| entries.iter_mut().find(|e| e.key == "outbound"))
    {
        *entry =
            Entry { key: "action".to_owned(), key_place: place, node: text("hijack-dns", entry.node.place) };
    }
}

/// Options that stand in an outbound and an endpoint under another name, in the order of the endpoint.
const WIREGUARD_KEYS: [(&str, &str); 7] = [
    ("tag", "tag"),
    ("system_interface", "system"),
    ("interface_name", "name"),
    ("mtu", "mtu"),
    ("local_address", "address"),
    ("private_key", "private_key"),
    ("workers", "workers"),
];

/// The same for a peer.
const PEER_KEYS: [(&str, &str); 6] = [
    ("server", "address"),
    ("server_port", "port"),
    ("public_key", "public_key"),
    ("pre_shared_key", "pre_shared_key"),
    ("allowed_ips", "allowed_ips"),
    ("reserved", "reserved"),
];

/// Keys of the outbound that have no place in an endpoint.
const WIREGUARD_GONE: [&str; 6] = ["type", "peers", "peer_public_key", "gso", "network", "domain_strategy"];

fn move_wireguard(root: &mut Node, report: &mut Report) {
    section_mut(root, "outbounds").iter_mut().for_each(|outbound| block_empty_wireguard(outbound, report));
    if !section(root, "outbounds").iter().any(|outbound| type_of(outbound) == "wireguard") {
        return;
    }
    let default = default_outbound(root).map(|(tag, outbound)| (tag, type_of(outbound) == "wireguard"));
    pin_tags(section_mut(root, "outbounds"));
    let Some(outbounds) = root.get_mut("outbounds").and_then(Node::as_array_mut) else { return };
    let moved: Vec<Node> = outbounds.extract_if(.., |outbound| type_of(outbound) == "wireguard").collect();
    let place = moved.first().map_or(root.place, |outbound| outbound.place);
    let endpoints: Vec<Node> =
        moved.iter().map(|outbound| wireguard_endpoint(outbound).at(outbound.place)).collect();
    for (outbound, endpoint) in moved.iter().zip(&endpoints) {
        let place = outbound.get("type").map_or(outbound.place, |name| name.place);
        let shown = write_line(&without_secrets(endpoint));
        report.warn(place, format!("a wireguard outbound is now an endpoint: \"endpoints\": [{shown}]"));
    }
    if let Some(list) = root.get_or_insert("endpoints", Value::Array(vec![])).and_then(Node::as_array_mut) {
        list.extend(endpoints);
    }
    if let Some((tag, true)) = default
        && let Some(route) = root.get_or_insert("route", Value::Object(vec![]))
    {
        route.set("final", text(tag, place));
    }
}

/// An outbound with nothing but its type has no key, so it never let anything through. As an endpoint it would be
/// refused for that; what it did is `block`.
fn block_empty_wireguard(outbound: &mut Node, report: &mut Report) {
    let only_named = |entry: &Entry| matches!(&*entry.key, "type" | "tag");
    if type_of(outbound) == "wireguard" && outbound.as_object().unwrap_or_default().iter().all(only_named) {
        let place = outbound.place_of("type");
        let message = "a wireguard outbound is now an endpoint: \"endpoints\": [{\"type\": \"wireguard\"}]; \
                       this one has no key and refuses everything, as `\"type\": \"block\"` does";
        report.warn(place, message);
        outbound.set("type", text("block", place));
    }
}

fn wireguard_endpoint(outbound: &Node) -> Node {
    let mut endpoint = Node::object([("type", Node::string("wireguard"))]);
    let (own, workers) = WIREGUARD_KEYS.split_at(WIREGUARD_KEYS.len() - 1);
    rename(outbound, &mut endpoint, own);
    let peers: Vec<Node> = match outbound.get("peers").and_then(Node::as_array) {
        Some(peers) if !peers.is_empty() => peers.iter().map(peer).collect(),
        _ if outbound.get("server").is_some() => vec![peer(&single_peer(outbound))],
        _ => vec![],
    };
    if !peers.is_empty() {
        endpoint.set("peers", Node::array(peers));
    }
    rename(outbound, &mut endpoint, workers);
    let known = |key: &str| {
        WIREGUARD_GONE.contains(&key) || WIREGUARD_KEYS.iter().chain(&PEER_KEYS).any(|(old, _)| *old == key)
    };
    for entry in outbound.as_object().unwrap_or_default().iter().filter(|entry| !known(&entry.key)) {
        endpoint.set(&entry.key, entry.node.clone());
    }
    endpoint
}

/// The peer that an outbound describes by its own keys.
fn single_peer(outbound: &Node) -> Node {
    let mut peer = outbound.clone();
    if let Some(key) = peer.remove("peer_public_key") {
        peer.set("public_key", key.node);
    }
    peer.remove("allowed_ips");
    peer
}

fn peer(old: &Node) -> Node {
    let mut old = old.clone();
    if old.get("allowed_ips").is_none() {
        old.set("allowed_ips", Node::array(["0.0.0.0/0", "::/0"].map(Node::string)));
    }
    let mut peer = Node::object([] as [(&str, Node); 0]);
    rename(&old, &mut peer, &PEER_KEYS);
    peer
}

fn rename(from: &Node, to: &mut Node, keys: &[(&str, &str)]) {
    for (old, new) in keys {
        if let Some(node) = from.get(old) {
            to.set(new, node.clone());
        }
    }
}

/// The same object with keys replaced, as warnings end up in logs.
fn without_secrets(endpoint: &Node) -> Node {
    let mut shown = endpoint.clone();
    if shown.get("private_key").is_some() {
        shown.set("private_key", Node::string("..."));
    }
    for peer in section_mut(&mut shown, "peers") {
        if peer.get("pre_shared_key").is_some() {
            peer.set("pre_shared_key", Node::string("..."));
        }
    }
    shown
}
