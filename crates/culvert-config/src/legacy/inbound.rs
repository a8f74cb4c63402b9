//! Inbounds of old: sniffing and resolving, which are rule actions now, and the split addresses of TUN.

use super::{list_mut, section_mut, tag_of, take, text, type_of};
use crate::diagnostics::Report;
use crate::json::{Entry, Node, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    let mut rules = Vec::new();
    for (index, inbound) in section_mut(root, "inbounds").iter_mut().enumerate() {
        let tag = tag_of(inbound, index);
        rules.extend(rules_of(inbound, &tag, report));
        if type_of(inbound) == "tun" {
            join_tun_addresses(inbound, report);
        }
    }
    if !rules.is_empty()
        && let Some(list) = list_mut(root, "route", "rules")
    {
        list.splice(0..0, rules);
    }
}

/// The fields of old, in the order in which they took effect.
const FIELDS: [&str; 5] = [
    "sniff",
    "sniff_timeout",
    "sniff_override_destination",
    "domain_strategy",
    "udp_disable_domain_unmapping",
];

/// Takes the fields out of an inbound and gives the rules that do the same.
fn rules_of(inbound: &mut Node, tag: &str, report: &mut Report) -> Vec<Node> {
    for key in ["sniff", "sniff_override_destination", "udp_disable_domain_unmapping"] {
        if let Some(value) = inbound.get(key).filter(|value| value.as_bool().is_none()) {
            report.error(value.place, format!("expected true or false, found {}", value.kind()));
        }
    }
    let fields = take(inbound, &FIELDS);
    let Some(first) = fields.first() else { return vec![] };
    let field = |key: &str| fields.iter().find(|entry| entry.key == key);
    let rule = |at: &Entry, action: &str, option: Option<(&str, &Entry)>| {
        let mut rule =
            Node::object([("inbound", text(tag, at.key_place)), ("action", text(action, at.key_place))]);
        if let Some((key, entry)) = option {
            rule.set(key, entry.node.clone());
        }
        rule.place = at.key_place;
        rule
    };
    let mut rules = Vec::new();
    if let Some(sniff) = field("sniff") {
        let mut sniffing = rule(sniff, "sniff", field("sniff_timeout").map(|timeout| ("timeout", timeout)));
        if let Some(entry) = field("sniff_override_destination") {
            sniffing.set("override_destination", entry.node.clone());
        }
        rules.push(sniffing);
    }
    if let Some(strategy) = field("domain_strategy") {
        rules.push(rule(strategy, "resolve", Some(("strategy", strategy))));
    }
    if let Some(unmapping) = field("udp_disable_domain_unmapping") {
        rules.push(rule(unmapping, "route-options", Some(("udp_disable_domain_unmapping", unmapping))));
    }
    let keys: Vec<String> = fields.iter().map(|entry| format!("`{}`", entry.key)).collect();
    let shown: Vec<String> = rules.iter().map(write_line).collect();
    let (keys, shown) = (keys.join(", "), shown.join(", "));
    let message = match shown.as_str() {
        "" => format!("{keys} of inbounds has no effect without `sniff`"),
        _ => format!("{keys} of inbounds is now written as route rules: {shown}"),
    };
    report.warn(first.key_place, message);
    rules
}

/// Lists of TUN that were split by family, with the list that holds both.
const TUN_LISTS: [(&str, [&str; 2]); 3] = [
    ("address", ["inet4_address", "inet6_address"]),
    ("route_address", ["inet4_route_address", "inet6_route_address"]),
    ("route_exclude_address", ["inet4_route_exclude_address", "inet6_route_exclude_address"]),
];

fn join_tun_addresses(inbound: &mut Node, report: &mut Report) {
    for (joined, split) in TUN_LISTS {
        let old = take(inbound, &split);
        let Some(first) = old.first() else { continue };
        let place = first.key_place;
        let mut all: Vec<Node> = inbound.get(joined).map_or(&[][..], Node::items).to_vec();
        all.extend(old.iter().flat_map(|entry| entry.node.items()).cloned());
        let node = Node::array(all).at(first.node.place);
        let message = format!("`{}` of tun is now `\"{joined}\": {}`", first.key, write_line(&node));
        report.warn(place, message);
        inbound.set(joined, node);
    }
    for entry in take(inbound, &["gso"]) {
        let message =
            "`gso` of tun is used wherever it works; the inbound is just `{\"type\": \"tun\"}` without it";
        report.warn(entry.key_place, message);
    }
}
