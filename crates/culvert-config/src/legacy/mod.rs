//! Old dialects, from sing-box 1.7 on, rewritten into the current one before anything is decoded.
//!
//! Each rewrite works on the tree, gives what it writes the place of what it replaces, and notes one warning that
//! shows the new spelling. What sing-box 1.14 still accepts is not rewritten: it stays an option of its own, so that
//! `format` prints the same as sing-box. Only `migrate` rewrites that too.
//!
//! The variables `ENABLE_DEPRECATED_*` make no difference: what they allow is always allowed.

mod accepted;
mod dns;
mod experimental;
mod inbound;
mod outbound;
mod resolver;
mod rule;

pub(crate) use accepted::modernize;

use crate::diagnostics::Report;
use crate::json::{Node, Place, Value};

/// Rewrites a configuration in place.
pub(crate) fn migrate(root: &mut Node, report: &mut Report) {
    // DNS servers first: what follows may ask for the default outbound or server, and outbounds move below.
    dns::migrate(root, report);
    rule::migrate(root, report);
    outbound::migrate(root, report);
    inbound::migrate(root, report);
    experimental::migrate(root, report);
    resolver::migrate(root, report);
}

/// The objects of a list section such as `outbounds`.
fn section<'a>(root: &'a Node, key: &str) -> &'a [Node] {
    root.get(key).and_then(Node::as_array).unwrap_or_default()
}

fn section_mut<'a>(root: &'a mut Node, key: &str) -> &'a mut [Node] {
    root.get_mut(key).and_then(Node::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// The rules of `route` or `dns`.
fn rules_mut<'a>(root: &'a mut Node, section: &str) -> &'a mut [Node] {
    root.get_mut(section).map_or(&mut [], |section| section_mut(section, "rules"))
}

/// The list `section.key`, made where it does not exist.
fn list_mut<'a>(root: &'a mut Node, section: &str, key: &str) -> Option<&'a mut Vec<Node>> {
    let section = root.get_or_insert(section, Value::Object(vec![]))?;
    section.get_or_insert(key, Value::Array(vec![]))?.as_array_mut()
}

/// The tag of a list object: its own, or its index.
fn tag_of(object: &Node, index: usize) -> String {
    match object.get("tag").and_then(Node::as_str) {
        Some(tag) if !tag.is_empty() => tag.to_owned(),
        _ => index.to_string(),
    }
}

fn type_of(object: &Node) -> &str {
    object.get("type").and_then(Node::as_str).unwrap_or_default()
}

/// Writes every tag that is only an index, so that it holds when objects are taken out of the list.
fn pin_tags(objects: &mut [Node]) {
    for (index, object) in objects.iter_mut().enumerate() {
        let place = object.place;
        let tag = tag_of(object, index);
        object.set("tag", Node::string(tag).at(place));
    }
}

/// The tag of the outbound that takes what no rule decides, with its object; none means a plain direct one.
fn default_outbound(root: &Node) -> Option<(String, &Node)> {
    let outbounds = section(root, "outbounds");
    let tagged = || outbounds.iter().enumerate().map(|(index, object)| (tag_of(object, index), object));
    match root.get("route").and_then(|route| route.get("final")).and_then(Node::as_str) {
        Some(last) if !last.is_empty() => tagged().find(|(tag, _)| tag == last),
        _ => tagged().next(),
    }
}

/// A text node at a place.
fn text(text: impl Into<String>, place: Place) -> Node {
    Node::string(text).at(place)
}

/// A list of texts, written as a single one where it is just one.
fn texts(items: Vec<String>, place: Place) -> Node {
    match <[String; 1]>::try_from(items) {
        Ok([item]) => text(item, place),
        Err(items) => Node::array(items.into_iter().map(Node::string)).at(place),
    }
}

/// Takes the values of all these keys out of an object, and gives those that are set.
fn take(object: &mut Node, keys: &[&str]) -> Vec<crate::json::Entry> {
    let found = keys.iter().filter_map(|key| object.remove(key));
    found.filter(|entry| !entry.node.is_zero()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{read, write_line};
    use crate::source::{Document, Source};

    /// Migrates `old`, compares it with `modern` and gives the warnings.
    fn migrated(old: &str, modern: &str) -> Vec<String> {
        let source = Source::new("c.json", old.as_bytes());
        let document = Document::read(&source, 0).expect("the old text is JSON");
        let mut root = document.root.clone();
        let mut report = Report::default();
        migrate(&mut root, &mut report);
        let modern = read(modern, 0).expect("the modern text is JSON");
        assert_eq!(write_line(&root), write_line(&modern));
        report.finish(&[document]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_form_of_dns_address_becomes_a_type() {
        let warnings = migrated(
            r#"{"dns": {"servers": [
                {"tag": "a", "address": "local"},
                {"tag": "b", "address": "192.0.2.1"},
                {"tag": "c", "address": "tcp://192.0.2.1:5353"},
                {"tag": "d", "address": "tls://dns.example", "address_resolver": "b", "address_strategy": "ipv4_only"},
                {"tag": "e", "address": "https://[2001:db8::1]/q"},
                {"tag": "f", "address": "quic://dns.example:8853", "address_resolver": "b"},
                {"tag": "g", "address": "h3://192.0.2.1/dns-query"},
                {"tag": "h", "address": "dhcp://auto"},
                {"tag": "i", "address": "dhcp://eth0"},
                {"tag": "j", "address": "fakeip"},
                {"tag": "k", "address": "rcode://name_error"}
            ], "rules": [{"domain": "x", "server": "k"}],
            "fakeip": {"enabled": true, "inet4_range": "198.18.0.0/15"}}}"#,
            r#"{"dns": {"servers": [
                {"tag": "a", "type": "local"},
                {"tag": "b", "type": "udp", "server": "192.0.2.1"},
                {"tag": "c", "type": "tcp", "server": "192.0.2.1", "server_port": 5353},
                {"tag": "d", "type": "tls", "server": "dns.example", "domain_resolver": {"server": "b", "strategy": "ipv4_only"}},
                {"tag": "e", "type": "https", "server": "2001:db8::1", "path": "/q"},
                {"tag": "f", "type": "quic", "server": "dns.example", "server_port": 8853, "domain_resolver": "b"},
                {"tag": "g", "type": "h3", "server": "192.0.2.1"},
                {"tag": "h", "type": "dhcp"},
                {"tag": "i", "type": "dhcp", "interface": "eth0"},
                {"tag": "j", "type": "fakeip", "inet4_range": "198.18.0.0/15"}
            ], "rules": [{"domain": "x", "action": "predefined", "rcode": "NXDOMAIN"}]}}"#,
        );
        assert_eq!(warnings.len(), 12, "{warnings:#?}");
    }

    #[test]
    fn dns_servers_of_old_dial_through_the_default_outbound() {
        migrated(
            r#"{"dns": {"servers": [{"tag": "b", "address": "192.0.2.1"}, {"tag": "c", "address": "192.0.2.2", "detour": "d"}]},
                "outbounds": [{"type": "socks", "tag": "s", "server": "192.0.2.9"}, {"type": "direct", "tag": "d"}]}"#,
            r#"{"dns": {"servers": [{"tag": "b", "type": "udp", "server": "192.0.2.1", "detour": "s"}, {"tag": "c", "type": "udp", "server": "192.0.2.2"}]},
                "outbounds": [{"type": "socks", "tag": "s", "server": "192.0.2.9"}, {"type": "direct", "tag": "d"}],
                "route": {"default_domain_resolver": "b"}}"#,
        );
    }

    #[test]
    fn strategy_and_subnet_of_a_dns_server_move_to_its_rules() {
        migrated(
            r#"{"dns": {"servers": [{"tag": "b", "address": "192.0.2.1", "strategy": "ipv4_only", "client_subnet": "1.2.3.0/24"}],
                "rules": [{"domain": "x", "server": "b"}]}}"#,
            r#"{"dns": {"servers": [{"tag": "b", "type": "udp", "server": "192.0.2.1"}],
                "rules": [{"domain": "x", "server": "b", "strategy": "ipv4_only", "client_subnet": "1.2.3.0/24"},
                          {"server": "b", "strategy": "ipv4_only", "client_subnet": "1.2.3.0/24"}]}}"#,
        );
    }

    #[test]
    fn inbound_fields_become_rules_in_the_order_they_worked() {
        let warnings = migrated(
            r#"{"inbounds": [{"type": "mixed", "tag": "m", "sniff": true, "sniff_timeout": "1s",
                "sniff_override_destination": true, "domain_strategy": "ipv4_only", "udp_disable_domain_unmapping": true},
                {"type": "mixed", "sniff": true}],
                "route": {"rules": [{"action": "reject"}]}}"#,
            r#"{"inbounds": [{"type": "mixed", "tag": "m"}, {"type": "mixed", "tag": "mixed-in"}],
                "route": {"rules": [
                    {"inbound": "m", "action": "sniff", "timeout": "1s", "override_destination": true},
                    {"inbound": "m", "action": "resolve", "strategy": "ipv4_only"},
                    {"inbound": "m", "action": "route-options", "udp_disable_domain_unmapping": true},
                    {"inbound": "mixed-in", "action": "sniff"},
                    {"action": "reject"}]}}"#,
        );
        assert_eq!(warnings.len(), 2, "{warnings:#?}");
        // One that rules call by its index keeps that.
        migrated(
            r#"{"inbounds": [{"type": "mixed", "sniff": true}], "route": {"rules": [{"inbound": "0", "action": "reject"}]}}"#,
            r#"{"inbounds": [{"type": "mixed", "tag": "0"}], "route": {"rules": [
                {"inbound": "0", "action": "sniff"}, {"inbound": "0", "action": "reject"}]}}"#,
        );
    }

    #[test]
    fn dns_outbound_becomes_an_action() {
        migrated(
            r#"{"outbounds": [{"type": "direct"}, {"type": "dns", "tag": "x"}, {"type": "block", "tag": "b"}],
                "route": {"rules": [{"protocol": "dns", "outbound": "x"}, {"port": 25, "outbound": "b"}]}}"#,
            r#"{"outbounds": [{"type": "direct", "tag": "0"}, {"type": "block", "tag": "b"}],
                "route": {"rules": [{"protocol": "dns", "action": "hijack-dns"}, {"port": 25, "outbound": "b"}]}}"#,
        );
    }

    #[test]
    fn wireguard_outbound_becomes_an_endpoint() {
        migrated(
            r#"{"outbounds": [{"type": "wireguard", "tag": "w", "server": "192.0.2.1", "server_port": 51820,
                "local_address": "10.0.0.2/32", "private_key": "K", "peer_public_key": "P", "reserved": [1, 2, 3],
                "system_interface": true, "interface_name": "wg0", "gso": true, "mtu": 1400, "detour": "d"},
                {"type": "direct", "tag": "d"}]}"#,
            r#"{"outbounds": [{"type": "direct", "tag": "d"}],
                "endpoints": [{"type": "wireguard", "tag": "w", "system": true, "name": "wg0", "mtu": 1400,
                    "address": "10.0.0.2/32", "private_key": "K",
                    "peers": [{"address": "192.0.2.1", "port": 51820, "public_key": "P",
                        "allowed_ips": ["0.0.0.0/0", "::/0"], "reserved": [1, 2, 3]}], "detour": "d"}],
                "route": {"final": "w"}}"#,
        );
    }

    #[test]
    fn country_lists_become_rule_sets() {
        migrated(
            r#"{"outbounds": [{"type": "direct", "tag": "d"}], "route": {"geoip": {"download_detour": "d"}, "rules": [
                {"geosite": ["cn", "google@cn"], "geoip": ["private", "cn"], "outbound": "d"},
                {"source_geoip": "private", "outbound": "d"},
                {"type": "logical", "mode": "or", "rules": [{"geosite": "cn"}], "outbound": "d"}]}}"#,
            r#"{"outbounds": [{"type": "direct", "tag": "d"}], "route": {"geoip": {"download_detour": "d"}, "rules": [
                {"ip_is_private": true, "rule_set": ["geosite-cn", "geosite-google@cn", "geoip-cn"], "outbound": "d"},
                {"source_ip_is_private": true, "outbound": "d"},
                {"type": "logical", "mode": "or", "rules": [{"rule_set": "geosite-cn"}], "outbound": "d"}],
                "rule_set": [
                    {"type": "remote", "tag": "geosite-cn", "format": "binary", "url": "https://raw.githubusercontent.com/SagerNet/sing-geosite/rule-set/geosite-cn.srs"},
                    {"type": "remote", "tag": "geosite-google@cn", "format": "binary", "url": "https://raw.githubusercontent.com/SagerNet/sing-geosite/rule-set/geosite-google@cn.srs"},
                    {"type": "remote", "tag": "geoip-cn", "format": "binary", "url": "https://raw.githubusercontent.com/SagerNet/sing-geoip/rule-set/geoip-cn.srs"}]}}"#,
        );
    }

    #[test]
    fn outbound_items_of_dns_rules_become_resolvers() {
        migrated(
            r#"{"dns": {"servers": [{"type": "udp", "tag": "u", "server": "192.0.2.1"}, {"type": "local", "tag": "l"}],
                "rules": [{"outbound": "s", "server": "u"}, {"outbound": "any", "server": "l"}, {"domain": "x", "server": "u"}]},
                "outbounds": [{"type": "socks", "tag": "s", "server": "p.example"}]}"#,
            r#"{"dns": {"servers": [{"type": "udp", "tag": "u", "server": "192.0.2.1"}, {"type": "local", "tag": "l"}],
                "rules": [{"domain": "x", "server": "u"}]},
                "outbounds": [{"type": "socks", "tag": "s", "server": "p.example", "domain_resolver": "u"}],
                "route": {"default_domain_resolver": "l"}}"#,
        );
    }

    #[test]
    fn modern_configurations_stay_as_they_are() {
        let text =
            r#"{"dns": {"servers": [{"type": "local"}]}, "outbounds": [{"type": "direct"}], "route": {}}"#;
        assert_eq!(migrated(text, text), Vec::<String>::new());
    }
}
