//! Inbounds of old: sniffing and resolving, which are rule actions now, and the split addresses of TUN.

use super::{list_mut, section, section_mut, tag_of, take, text, type_of};
use crate::diagnostics::Report;
use crate::json::{Entry, Node, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    let mut rules = Vec::new();
    let mut names = Names::of(root);
    for (index, inbound) in section_mut(root, "inbounds").iter_mut().enumerate() {
        let own = tag_of(inbound, index);
        let tag = if inbound.get("tag").is_some() { own } else { names.name(type_of(inbound), own) };
        let moved = rules_of(inbound, &tag, report);
        if !moved.is_empty() && inbound.get("tag").is_none() {
            // Its place in the list is no name to last.
            let place = inbound.place;
            inbound.set("tag", text(tag, place));
        }
        rules.extend(moved);
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

/// Names for inbounds without a tag that rules are to speak of.
struct Names {
    taken: Vec<String>,
    /// What rules call inbounds, also by their index.
    meant: Vec<String>,
}

impl Names {
    fn of(root: &Node) -> Self {
        let taken = section(root, "inbounds").iter().flat_map(|inbound| inbound.texts("tag")).collect();
        let mut meant = Vec::new();
        for part in ["route", "dns"] {
            let rules = root.get(part).map_or(&[][..], |part| section(part, "rules"));
            rules.iter().for_each(|rule| collect_inbounds(rule, &mut meant));
        }
        Self { taken, meant }
    }

    /// `mixed-in`, say, or its index where that is what it is called already.
    fn name(&mut self, kind: &str, index: String) -> String {
        if self.meant.contains(&index) {
            return index;
        }
        let mut name = format!("{kind}-in");
        for number in 2.. {
            if !self.taken.contains(&name) {
                break;
            }
            name = format!("{kind}-in-{number}");
        }
        self.taken.push(name.clone());
        name
    }
}

fn collect_inbounds(rule: &Node, meant: &mut Vec<String>) {
    meant.extend(rule.texts("inbound"));
    section(rule, "rules").iter().for_each(|rule| collect_inbounds(rule, meant));
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
