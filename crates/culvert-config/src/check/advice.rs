//! What sing-box accepts without a word although it does nothing, or not what its author meant: warnings only.

use std::collections::HashMap;
use std::net::IpAddr;

use super::server::find;
use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::nearest::did_you_mean;
use crate::options::Options;
use crate::options::inbound::InboundKind;
use crate::options::outbound::OutboundKind;
use crate::options::rule::{Condition, RouteAction, RouteActionOptions, RouteMatch, Sniffer};
use crate::table::{Field, Kind, Tagged};
use crate::value::{Choice, List};

pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    // Where something could not be read, what seems to be missing may only be mistyped.
    if cx.report.errors() > 0 {
        return;
    }
    let list = |section: &str| root.get(section).and_then(Node::as_array).unwrap_or_default();
    check_rules(options, root, cx);
    for (inbound, node) in options.inbounds.iter().zip(list("inbounds")) {
        check_inbound(inbound, node, cx);
    }
    check_ports(&options.inbounds, list("inbounds"), cx);
    super::networks::check(options, root, cx);
    for (outbound, node) in options.outbounds.iter().zip(list("outbounds")) {
        check_outbound(outbound, node, cx);
    }
    let dns = root.get("dns").and_then(|dns| dns.get("servers")).and_then(Node::as_array);
    for node in dns.unwrap_or_default().iter().chain(list("outbounds")) {
        check_server_name(node, cx);
    }
}

/// Rules that do nothing, or everything.
fn check_rules(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let nodes = root.get("route").and_then(|route| route.get("rules")).and_then(Node::as_array);
    let nodes = nodes.unwrap_or_default();
    for (index, (rule, node)) in options.route.rules.iter().zip(nodes).enumerate() {
        check_condition(&rule.condition, node, cx);
        // Whether no rule behind it is asked, and whether `route.final` could say the same.
        let (ends, is_plain) = match &rule.action {
            RouteAction::Route(to) => {
                if to.outbound.get().is_none() {
                    let message =
                        "this rule has neither `outbound` nor `action`: what it matches cannot connect";
                    cx.warn(node.place, message);
                }
                (true, to.options == RouteActionOptions::default())
            }
            RouteAction::Reject(_) | RouteAction::HijackDns(_) => (true, false),
            RouteAction::Bypass(to) => (to.outbound.get().is_some(), false),
            RouteAction::RouteOptions(_) | RouteAction::Sniff(_) | RouteAction::Resolve(_) => (false, false),
        };
        if !ends || !is_empty(&rule.condition) {
            continue;
        }
        let after = match nodes.len() - index - 1 {
            0 if !is_plain => continue,
            0 => "; `route.final` says the same in one word".to_owned(),
            1 => ", and the rule after it is never asked".to_owned(),
            rest => format!(", and the {rest} rules after it are never asked"),
        };
        cx.warn(node.place, format!("this rule has no condition: it matches everything{after}"));
    }
}

fn is_empty(condition: &Condition<RouteMatch>) -> bool {
    matches!(condition, Condition::Fields(fields) if **fields == RouteMatch::default())
}

/// Words that no connection ever has.
fn check_condition(condition: &Condition<RouteMatch>, node: &Node, cx: &mut Cx<'_>) {
    match condition {
        Condition::Logical(logical) => {
            let nodes = node.get("rules").and_then(Node::as_array).unwrap_or_default();
            for (rule, node) in logical.rules.iter().zip(nodes) {
                check_condition(rule, node, cx);
            }
        }
        Condition::Fields(fields) => {
            check_words("network", &fields.network, &["tcp", "udp", "icmp"], node, cx);
            check_words("protocol", &fields.protocol, Sniffer::NAMES, node, cx);
        }
    }
}

fn check_words(key: &str, words: &List<String>, known: &[&str], node: &Node, cx: &mut Cx<'_>) {
    let items = node.get(key).map_or(&[][..], Node::items);
    for (word, item) in words.iter().zip(items) {
        if !known.contains(&word.as_str()) {
            let hint = did_you_mean(word, known.iter().copied());
            let message = format!("`{word}` matches nothing{hint}; known are {}", known.join(", "));
            cx.warn(item.place, message);
        }
    }
}

/// Servers that let nobody in, or everybody look.
fn check_inbound(inbound: &Tagged<InboundKind>, node: &Node, cx: &mut Cx<'_>) {
    let mut fields = Vec::new();
    inbound.kind.table().fields(&mut fields);
    let is_given = |key| find(&fields, key).is_some_and(|field| !field.value.is_zero());
    let kind = inbound.kind.name();
    let knows_users_only =
        matches!(kind, "vmess" | "vless" | "trojan" | "anytls" | "tuic" | "hysteria" | "hysteria2");
    if knows_users_only && !is_given("users") {
        cx.warn(node.place_of("users"), "there are no `users`, so nobody can use this inbound");
    }
    // Another server may have taken the TLS off already, on this machine or in front of a transport.
    let is_local =
        match find(&fields, "listen").map(|field| field.value.encode()).as_ref().and_then(Node::as_str) {
            Some(address) => address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
            None => true,
        };
    if matches!(kind, "trojan" | "anytls") && !has_tls(node) && !is_given("transport") && !is_local {
        cx.warn(node.place_of("tls"), without_tls(kind));
    }
    if matches!(kind, "trojan" | "anytls" | "hysteria2" | "socks" | "http" | "mixed" | "naive") {
        for user in node.get("users").and_then(Node::as_array).unwrap_or_default() {
            check_password(user, "this user's password", cx);
        }
    }
}

fn check_outbound(outbound: &Tagged<OutboundKind>, node: &Node, cx: &mut Cx<'_>) {
    let kind = outbound.kind.name();
    // With TLS made by what is dialled through, and in front of a server that takes it off, there is nothing to say.
    if kind == "trojan" && !has_tls(node) && node.get("transport").is_none() && node.get("detour").is_none() {
        cx.warn(node.place_of("tls"), without_tls(kind));
    }
    if matches!(kind, "trojan" | "anytls" | "hysteria2") {
        check_password(node, "the password", cx);
    }
}

fn has_tls(node: &Node) -> bool {
    node.get("tls").and_then(|tls| tls.get("enabled")).and_then(Node::as_bool) == Some(true)
}

fn without_tls(kind: &str) -> String {
    let name = if kind == "anytls" { "AnyTLS" } else { "Trojan" };
    format!("{name} without `tls`: password and contents are readable on the way")
}

fn check_password(node: &Node, whose: &str, cx: &mut Cx<'_>) {
    if node.get("password").is_none_or(|password| password.as_str() == Some("")) {
        cx.warn(node.place_of("password"), format!("{whose} is empty, which anybody could guess"));
    }
}

/// Where an inbound listens.
struct Listening {
    index: usize,
    ip: IpAddr,
    port: String,
    tcp: bool,
    udp: bool,
    /// What else keeps sockets apart: network namespace and interface.
    apart: [Node; 2],
    shared: bool,
}

impl Listening {
    fn of(index: usize, inbound: &Tagged<InboundKind>) -> Option<Self> {
        let mut fields: Vec<Field<'_>> = Vec::new();
        inbound.kind.table().fields(&mut fields);
        let value = |key| find(&fields, key).map(|field| field.value.encode());
        let Some(Value::Number(port)) = value("listen_port").map(|port| port.value) else { return None };
        let listen = value("listen");
        let address = listen.as_ref().and_then(Node::as_str).unwrap_or("127.0.0.1");
        let ip = address.split('%').next()?.parse().ok()?;
        let network = find(&fields, "network").filter(|field| !field.value.is_zero());
        let network = network.map(|field| field.value.encode());
        let (tcp, udp) = match inbound.kind.name() {
            "hysteria" | "hysteria2" | "tuic" => (false, true),
            "direct" | "shadowsocks" | "tproxy" | "naive" => match network.as_ref().and_then(Node::as_str) {
                Some(word) => (word == "tcp", word == "udp"),
                None => (true, true),
            },
            _ => (true, false),
        };
        let (nothing, no) = (|| Node::string(""), || Node::bool(false));
        let apart = ["netns", "bind_interface"].map(|key| value(key).unwrap_or_else(nothing));
        let shared = value("reuse_addr").unwrap_or_else(no).as_bool() == Some(true);
        (port != "0").then_some(Self { index, ip, port, tcp, udp, apart, shared })
    }

    fn meets(&self, other: &Self) -> bool {
        // `::` listens for IPv4 as well.
        let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
        let same_place = self.ip == other.ip || covers(self.ip, other.ip) || covers(other.ip, self.ip);
        let same_kind = (self.tcp && other.tcp) || (self.udp && other.udp);
        let same_port = self.port == other.port && self.apart == other.apart;
        same_port && same_place && same_kind && !(self.shared && other.shared)
    }
}

/// Inbounds that want the same port: only one of them can have it.
fn check_ports(inbounds: &[Tagged<InboundKind>], nodes: &[Node], cx: &mut Cx<'_>) {
    let all: Vec<_> =
        inbounds.iter().enumerate().filter_map(|(index, inbound)| Listening::of(index, inbound)).collect();
    let mut by_port: HashMap<&str, Vec<&Listening>> = HashMap::new();
    for one in &all {
        let earlier = by_port.entry(&one.port).or_default();
        if let Some(taken) = earlier.iter().find(|earlier| earlier.meets(one))
            && let Some(node) = nodes.get(one.index)
        {
            let by = told(taken.index, inbounds, nodes);
            cx.warn(node.place_of("listen_port"), format!("port {} is taken by {by} already", one.port));
        }
        earlier.push(one);
    }
}

fn told(index: usize, inbounds: &[Tagged<InboundKind>], nodes: &[Node]) -> String {
    let has_tag = nodes.get(index).is_some_and(|node| node.get("tag").is_some());
    let tag = if has_tag { format!(" \"{}\"", inbounds[index].tag) } else { String::new() };
    format!("inbounds[{index}]{tag}")
}

/// Addresses with more in them than a name: they are looked up as names, and do not exist.
fn check_server_name(node: &Node, cx: &mut Cx<'_>) {
    let Some(server) = node.get("server") else { return };
    let Some(text) = server.as_str().filter(|text| text.parse::<IpAddr>().is_err()) else { return };
    if let Some(message) = fault_of_name(text) {
        cx.warn(server.place, message);
    }
}

fn fault_of_name(text: &str) -> Option<String> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        // Not quoted, as there may be a password in it.
        return Some(format!("this is a URL; `server` is a name or an address alone, such as `{host}`"));
    }
    if let Some((ip, rest)) = bracketed.filter(|(ip, _)| ip.parse::<IpAddr>().is_ok()) {
        let port =
            rest.strip_prefix(':').map(|port| format!(", \"server_port\": {port}")).unwrap_or_default();
        return Some(format!("`{text}` is no address; write \"server\": \"{ip}\"{port}"));
    }
    // More colons are an address of IPv6 with a zone, or a mistake that nothing is known of.
    let (host, port) = text.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port
        .then(|| format!("`{text}` has a port in it; write \"server\": \"{host}\", \"server_port\": {port}"))
}

#[cfg(test)]
pub(super) mod tests {
    use crate::{Source, load};

    /// The warnings of a configuration, each as `line: path: message`.
    fn warnings(text: &str) -> Vec<String> {
        let loaded =
            load(&[Source::new("c.json", text.as_bytes())]).unwrap_or_else(|errors| panic!("{errors}"));
        loaded.warnings.iter().map(|one| format!("{}: {}: {}", one.line, one.path, one.message)).collect()
    }

    /// Expects one warning for each line of `words`, in this order, with these words in it.
    pub(in crate::check) fn expect(text: &str, words: &[&str]) {
        let found = warnings(text);
        let fits =
            found.len() == words.len() && found.iter().zip(words).all(|(one, words)| one.contains(words));
        assert!(fits, "{text}\nexpected {words:#?}\nfound {found:#?}");
    }

    fn rules(rules: &str) -> String {
        format!(r#"{{"outbounds": [{{"type": "direct", "tag": "out"}}], "route": {{"rules": [{rules}]}}}}"#)
    }

    #[test]
    fn rules_that_go_nowhere_or_match_everything_are_told() {
        expect(
            &rules(r#"{"domain": "a.test"}"#),
            &["route.rules[0]: this rule has neither `outbound` nor `action`"],
        );
        expect(&rules(r#"{"outbound": "out"}"#), &["matches everything; `route.final`"]);
        let covered = r#"{"action": "reject"}, {"domain": "a.test", "outbound": "out"}"#;
        expect(&rules(covered), &["matches everything, and the rule after it is never asked"]);
        for fine in [
            r#"{"action": "sniff"}, {"action": "resolve"}, {"domain": "a.test", "outbound": "out"}"#,
            r#"{"action": "route-options", "udp_connect": true}"#,
            r#"{"domain": "a.test", "outbound": "out"}, {"action": "reject"}"#,
            r#"{"type": "logical", "mode": "or", "rules": [{"port": 1}, {"port": 2}], "outbound": "out"}"#,
        ] {
            expect(&rules(fine), &[]);
        }
    }

    #[test]
    fn words_that_no_connection_has_are_told() {
        expect(
            &rules(r#"{"network": "tpc", "protocol": ["tls", "htpp"], "outbound": "out"}"#),
            &[
                "network: `tpc` matches nothing, did you mean `tcp`?",
                "protocol[1]: `htpp` matches nothing, did you mean",
            ],
        );
        let inside =
            r#"{"type": "logical", "mode": "and", "rules": [{"protocol": "vpn"}], "outbound": "out"}"#;
        expect(&rules(inside), &["rules[0].protocol: `vpn` matches nothing; known are tls,"]);
        expect(&rules(r#"{"network": ["tcp", "icmp"], "protocol": "quic", "outbound": "out"}"#), &[]);
    }

    fn inbounds(inbounds: &str) -> String {
        format!(r#"{{"inbounds": [{inbounds}]}}"#)
    }

    #[test]
    fn inbounds_on_one_port_are_told() {
        let pair = |first: &str, second: &str| {
            inbounds(&format!(
                r#"{{"type": "socks", "tag": "a", "listen_port": 1080{first}}}, {{"type": "mixed", "listen_port": 1080{second}}}"#
            ))
        };
        let taken = "inbounds[1].listen_port: port 1080 is taken by inbounds[0] \"a\" already";
        for (first, second) in [
            ("", ""),
            (r#", "listen": "::""#, ""),
            (r#", "listen": "0.0.0.0""#, r#", "listen": "192.0.2.1""#),
            (r#", "reuse_addr": true"#, ""),
        ] {
            expect(&pair(first, second), &[taken]);
        }
        for (first, second) in [
            (r#", "listen": "127.0.0.2""#, ""),
            (r#", "listen": "0.0.0.0""#, r#", "listen": "2001:db8::1""#),
            (r#", "netns": "blue""#, ""),
            (r#", "reuse_addr": true"#, r#", "reuse_addr": true"#),
        ] {
            expect(&pair(first, second), &[]);
        }
        let two_networks = r#"{"type": "socks", "listen_port": 53}, {"type": "direct", "network": "udp", "listen_port": 53}"#;
        expect(&inbounds(two_networks), &[]);
        expect(&inbounds(r#"{"type": "socks"}, {"type": "mixed"}"#), &[]);
    }

    #[test]
    fn servers_without_users_passwords_or_tls_are_told() {
        expect(&inbounds(r#"{"type": "vless", "listen_port": 1}"#), &["inbounds[0]: there are no `users`"]);
        let open = r#"{"type": "trojan", "listen": "::", "listen_port": 1, "users": [{"name": "a", "password": ""}]}"#;
        expect(
            &inbounds(open),
            &["inbounds[0]: Trojan without `tls`", "users[0].password: this user's password is empty"],
        );
        let behind =
            r#"{"type": "trojan", "listen": "127.0.0.1", "listen_port": 1, "users": [{"password": "x"}]}"#;
        expect(&inbounds(behind), &[]);
        let out = |more: &str| {
            format!(
                r#"{{"outbounds": [{{"type": "trojan", "server": "192.0.2.1", "server_port": 1{more}}}]}}"#
            )
        };
        expect(&out(""), &["outbounds[0]: Trojan without `tls`", "outbounds[0]: the password is empty"]);
        expect(&out(r#", "password": "x", "tls": {"enabled": true, "server_name": "a.test"}"#), &[]);
        expect(&out(r#", "password": "x", "transport": {"type": "ws"}"#), &[]);
    }

    #[test]
    fn servers_with_a_port_or_a_url_in_them_are_told() {
        let server = |server: &str| {
            format!(r#"{{"outbounds": [{{"type": "socks", "server": "{server}", "server_port": 1}}]}}"#)
        };
        for (text, advice) in [
            ("192.0.2.1:1080", r#"write "server": "192.0.2.1", "server_port": 1080"#),
            ("a.test:1080", r#"write "server": "a.test", "server_port": 1080"#),
            ("[2001:db8::1]:1080", r#"write "server": "2001:db8::1", "server_port": 1080"#),
            ("[2001:db8::1]", r#"write "server": "2001:db8::1""#),
            ("http://me:secret@a.test/x", "is a name or an address alone, such as `a.test`"),
        ] {
            expect(&server(text), &[advice]);
        }
        for fine in ["192.0.2.1", "2001:db8::1", "a.test", "fe80::1%eth0"] {
            expect(&server(fine), &[]);
        }
    }

    #[test]
    fn a_resolver_of_an_inbound_is_told_to_do_nothing() {
        for kind in ["mixed", "socks", "http"] {
            let text = format!(
                r#"{{"dns": {{"servers": [{{"type": "local", "tag": "d"}}]}},
                    "inbounds": [{{"type": "{kind}", "domain_resolver": "d"}}]}}"#
            );
            expect(&text, &["2: inbounds[0].domain_resolver: `domain_resolver` of an inbound has no effect"]);
        }
    }
}
