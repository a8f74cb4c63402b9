//! Rules of old: `geosite`, `geoip` and `source_geoip` become rule-sets.

use super::{list_mut, rules_mut, texts};
use crate::diagnostics::Report;
use crate::json::{Node, Place, write_line};

const GEOSITE_URL: &str = "https://raw.githubusercontent.com/SagerNet/sing-geosite/rule-set/";
const GEOIP_URL: &str = "https://raw.githubusercontent.com/SagerNet/sing-geoip/rule-set/";

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    let mut wanted = Vec::new();
    for section in ["route", "dns"] {
        for rule in rules_mut(root, section) {
            migrate_rule(rule, &mut wanted, report);
        }
    }
    if wanted.is_empty() {
        return;
    }
    let Some(rule_sets) = list_mut(root, "route", "rule_set") else { return };
    for (tag, place) in wanted {
        if !rule_sets.iter().any(|known| known.texts("tag").contains(&tag)) {
            rule_sets.push(rule_set(&tag).at(place));
        }
    }
}

fn migrate_rule(rule: &mut Node, wanted: &mut Vec<(String, Place)>, report: &mut Report) {
    if let Some(nested) = rule.get_mut("rules").and_then(Node::as_array_mut) {
        for rule in nested {
            migrate_rule(rule, wanted, report);
        }
    }
    let place =
        ["geosite", "geoip", "source_geoip"].iter().find_map(|key| rule.entry(key)).map(|e| e.key_place);
    let Some(place) = place else { return };
    let geosite = take_codes(rule, "geosite");
    let geoip = take_codes(rule, "geoip");
    let source = take_codes(rule, "source_geoip");
    let mut tags: Vec<String> = geosite.iter().map(|code| format!("geosite-{code}")).collect();
    let mut new = Node::object([] as [(&str, Node); 0]);
    for (codes, private_key) in [(&geoip, "ip_is_private"), (&source, "source_ip_is_private")] {
        if codes.iter().any(|code| code == "private") {
            new.set(private_key, Node::bool(true));
        }
        tags.extend(codes.iter().filter(|code| *code != "private").map(|code| format!("geoip-{code}")));
    }
    let by_source = source.iter().any(|code| code != "private");
    if by_source && (!geoip.is_empty() || !geosite.is_empty() || rule.get("rule_set").is_some()) {
        let message =
            "`source_geoip` beside other lists cannot be rewritten; use a logical rule with two rule-sets";
        report.error(place, message);
        return;
    }
    if by_source {
        new.set("rule_set_ip_cidr_match_source", Node::bool(true));
    }
    wanted.extend(tags.iter().map(|tag| (tag.clone(), place)));
    let entries: Vec<String> = tags.iter().map(|tag| write_line(&rule_set(tag))).collect();
    if !tags.is_empty() {
        let mut all = rule.texts("rule_set");
        all.extend(tags);
        new.set("rule_set", texts(all, place));
        rule.remove("rule_set");
    }
    if new.is_zero() {
        return;
    }
    let mut message = format!("`geosite` and `geoip` are now rule-sets: {}", write_line(&new));
    if !entries.is_empty() {
        message.push_str(&format!(", with \"route\": {{\"rule_set\": [{}]}}", entries.join(", ")));
    }
    report.warn(place, message);
    // In front of the action, where a reader looks for conditions.
    if let (Some(entries), Some(added)) = (rule.as_object_mut(), new.at(place).as_object()) {
        let at = entries.iter().position(|entry| matches!(&*entry.key, "outbound" | "server" | "action"));
        let at = at.unwrap_or(entries.len());
        entries.splice(at..at, added.iter().cloned());
    }
}

fn take_codes(rule: &mut Node, key: &str) -> Vec<String> {
    let codes = rule.texts(key);
    rule.remove(key);
    codes.into_iter().map(|code| code.to_lowercase()).collect()
}

fn rule_set(tag: &str) -> Node {
    let url = if tag.starts_with("geosite-") { GEOSITE_URL } else { GEOIP_URL };
    Node::object([
        ("type", Node::string("remote")),
        ("tag", Node::string(tag)),
        ("format", Node::string("binary")),
        ("url", Node::string(format!("{url}{tag}.srs"))),
    ])
}
