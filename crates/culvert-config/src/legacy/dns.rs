//! DNS of old: servers given by `address`, the `fakeip` section, rules with an `outbound`.

use super::{default_outbound, section, section_mut, tag_of, text, type_of};
use crate::diagnostics::Report;
use crate::json::{Entry, Node, Place, Value, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    let fakeip = take_fakeip_section(root, report);
    migrate_servers(root, fakeip.as_ref(), report);
    migrate_outbound_rules(root, report);
}

/// Takes `dns.fakeip` away; its ranges move to the server that says `"address": "fakeip"`.
fn take_fakeip_section(root: &mut Node, report: &mut Report) -> Option<Node> {
    let entry = root.get_mut("dns")?.remove("fakeip")?;
    if !entry.node.is_zero() {
        let mut server = Node::object([("type", Node::string("fakeip"))]);
        copy(&entry.node, &mut server, &["inet4_range", "inet6_range"]);
        let message = format!("the section `fakeip` is now a DNS server: {}", write_line(&server));
        report.warn(entry.key_place, message);
    }
    Some(entry.node)
}

/// What becomes of a server.
enum Became {
    Server(Node),
    /// `rcode://...`: the name of a response code that rules give themselves.
    ResponseCode(&'static str),
}

fn migrate_servers(root: &mut Node, fakeip: Option<&Node>, report: &mut Report) {
    let detour = default_detour(root);
    let plain = plain_direct_outbounds(root);
    let Some(dns) = root.get_mut("dns") else { return };
    let servers = section_mut(dns, "servers");
    let mut codes = Vec::new();
    let mut query_options = Vec::new();
    for (index, server) in servers.iter_mut().enumerate() {
        let Some(address) = legacy_address(server) else { continue };
        let Some(became) = translate(server, &address, fakeip) else {
            report.error(server.place_of("address"), format!("`{address}` is no address of a DNS server"));
            continue;
        };
        let tag = tag_of(server, index);
        match became {
            Became::Server(mut new) => {
                settle_detour(&mut new, detour.as_deref(), &plain);
                report.warn(
                    server.place_of("address"),
                    format!("`address` is now a type: {}", write_line(&new)),
                );
                let options = options_for_rules(server);
                if !options.is_empty() {
                    query_options.push((tag, options, server.place));
                }
                let place = server.place;
                server.value = new.at(place).value;
            }
            Became::ResponseCode(code) => {
                let message = format!(
                    "a DNS server with a fixed answer is now a rule action: {{\"action\": \"predefined\", \"rcode\": \"{code}\"}}"
                );
                report.warn(server.place_of("address"), message);
                codes.push((tag, code));
            }
        }
    }
    replace_code_servers(dns, &codes);
    for (tag, options, place) in query_options {
        give_options_to_rules(dns, &tag, &options, place);
    }
}

/// The address of a server in the old form. With both a type and an address it is a mistake, not an old form.
fn legacy_address(server: &Node) -> Option<String> {
    let old = matches!(type_of(server), "" | "legacy");
    server.get("address").and_then(Node::as_str).filter(|_| old).map(str::to_owned)
}

fn translate(server: &Node, address: &str, fakeip: Option<&Node>) -> Option<Became> {
    let mut new = Node::object([] as [(&str, Node); 0]);
    copy(server, &mut new, &["tag"]);
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    match (scheme, rest) {
        ("", "local") => new.set("type", Node::string("local")),
        ("", "fakeip") => {
            new.set("type", Node::string("fakeip"));
            if let Some(section) = fakeip {
                copy(section, &mut new, &["inet4_range", "inet6_range"]);
            }
        }
        ("rcode", code) => return response_code(code).map(Became::ResponseCode),
        ("dhcp", interface) => {
            new.set("type", Node::string("dhcp"));
            if !matches!(interface, "auto" | "") {
                new.set("interface", Node::string(interface));
            }
        }
        ("" | "udp" | "tcp" | "tls" | "quic" | "https" | "h3", rest) => {
            new.set("type", Node::string(if scheme.is_empty() { "udp" } else { scheme }));
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            let (host, port) = host_and_port(authority)?;
            new.set("server", Node::string(host));
            if let Some(port) = port {
                new.set("server_port", Node::number(port));
            }
            if !matches!(path, "" | "/" | "/dns-query") {
                new.set("path", Node::string(path));
            }
            set_resolver(server, &mut new);
            copy(server, &mut new, &["detour"]);
            if let Some(delay) = server.get("address_fallback_delay") {
                new.set("fallback_delay", delay.clone());
            }
        }
        _ => return None,
    }
    Some(Became::Server(new))
}

/// `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    if authority.parse::<std::net::Ipv6Addr>().is_ok() {
        return Some((authority, None));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
    };
    let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?.parse().ok()?) };
    (!host.is_empty()).then_some((host, port))
}

fn response_code(name: &str) -> Option<&'static str> {
    Some(match name {
        "success" => "NOERROR",
        "format_error" => "FORMERR",
        "server_failure" => "SERVFAIL",
        "name_error" => "NXDOMAIN",
        "not_implemented" => "NOTIMP",
        "refused" => "REFUSED",
        _ => return None,
    })
}

/// `address_resolver` and `address_strategy` become `domain_resolver`.
fn set_resolver(server: &Node, new: &mut Node) {
    let Some(resolver) = server.get("address_resolver") else { return };
    let node = match server.get("address_strategy") {
        Some(strategy) => Node::object([("server", resolver.clone()), ("strategy", strategy.clone())]),
        None => resolver.clone(),
    };
    new.set("domain_resolver", node);
}

/// The outbound that servers of old dialed through when they named none; `None` if it is a plain direct one.
fn default_detour(root: &Node) -> Option<String> {
    let (tag, outbound) = default_outbound(root)?;
    (type_of(outbound) != "direct").then_some(tag)
}

/// Direct outbounds without options: dialing through them is the same as dialing, and sing-box refuses to.
fn plain_direct_outbounds(root: &Node) -> Vec<String> {
    let outbounds = section(root, "outbounds").iter().enumerate();
    let plain = outbounds.filter(|(_, outbound)| {
        type_of(outbound) == "direct"
            && outbound.as_object().is_some_and(|entries| {
                entries.iter().all(|entry| matches!(&*entry.key, "type" | "tag") || entry.node.is_zero())
            })
    });
    plain.map(|(index, outbound)| tag_of(outbound, index)).collect()
}

fn settle_detour(server: &mut Node, default: Option<&str>, plain: &[String]) {
    if matches!(type_of(server), "local" | "fakeip" | "dhcp") {
        return;
    }
    match (server.texts("detour").pop(), default) {
        (Some(detour), _) if plain.contains(&detour) => drop(server.remove("detour")),
        (None, Some(default)) => server.set("detour", Node::string(default)),
        _ => {}
    }
}

/// Options of a server of old that belong to the query.
fn options_for_rules(server: &Node) -> Vec<Entry> {
    let keys = ["strategy", "client_subnet"].iter();
    keys.filter_map(|key| server.entry(key)).filter(|entry| !entry.node.is_zero()).cloned().collect()
}

/// Rules that name the server carry the options. Queries that no rule decides need a rule for that.
fn give_options_to_rules(dns: &mut Node, tag: &str, options: &[Entry], place: Place) {
    let last = dns.texts("final").pop().unwrap_or_else(|| first_server(dns));
    let add = |rule: &mut Node| {
        for option in
            options.iter().filter(|option| rule.get(&option.key).is_none()).cloned().collect::<Vec<_>>()
        {
            rule.set(&option.key, option.node);
        }
    };
    for rule in section_mut(dns, "rules") {
        if rule.texts("server") == [tag] {
            add(rule);
        }
    }
    if last == tag
        && let Some(rules) = dns.get_or_insert("rules", Value::Array(vec![])).and_then(Node::as_array_mut)
    {
        let mut rule = Node::object([("server", Node::string(tag))]).at(place);
        add(&mut rule);
        rules.push(rule);
    }
}

fn first_server(dns: &Node) -> String {
    section(dns, "servers").first().map(|server| tag_of(server, 0)).unwrap_or_default()
}

/// Takes servers with a fixed answer out, and lets the rules that named them give it.
fn replace_code_servers(dns: &mut Node, codes: &[(String, &'static str)]) {
    if codes.is_empty() {
        return;
    }
    let code_of = |tag: &str| codes.iter().find(|(known, _)| known == tag).map(|(_, code)| *code);
    let last = dns.texts("final").pop().unwrap_or_else(|| first_server(dns));
    let servers = section_mut(dns, "servers");
    super::pin_tags(servers);
    if let Some(servers) = dns.get_mut("servers").and_then(Node::as_array_mut) {
        servers.retain(|server| code_of(&tag_of(server, usize::MAX)).is_none());
    }
    for rule in section_mut(dns, "rules") {
        if let Some(code) = rule.texts("server").first().and_then(|tag| code_of(tag)) {
            answer_with(rule, code);
        }
    }
    let place = dns.place;
    if let Some(code) = code_of(&last)
        && let Some(rules) = dns.get_or_insert("rules", Value::Array(vec![])).and_then(Node::as_array_mut)
    {
        let mut rule = Node::object([] as [(&str, Node); 0]).at(place);
        answer_with(&mut rule, code);
        rules.push(rule);
        dns.remove("final");
    }
}

fn answer_with(rule: &mut Node, code: &str) {
    let place = rule.place_of("server");
    for key in ["server", "disable_cache", "rewrite_ttl", "client_subnet"] {
        rule.remove(key);
    }
    rule.set("action", text("predefined", place));
    rule.set("rcode", text(code, place));
}

/// Rules with `outbound` told how names of servers are resolved; that is now said by who resolves them.
fn migrate_outbound_rules(root: &mut Node, report: &mut Report) {
    let mut resolvers = Vec::new();
    if let Some(rules) = root.get_mut("dns").and_then(|dns| dns.get_mut("rules")).and_then(Node::as_array_mut)
    {
        rules.retain(|rule| {
            let outbounds = rule.texts("outbound");
            let Some(server) = rule.get("server").filter(|_| !outbounds.is_empty()).cloned() else {
                return true;
            };
            resolvers.push((outbounds, server, rule.place_of("outbound")));
            false
        });
    }
    for (outbounds, server, place) in resolvers {
        let shown = write_line(&server);
        if outbounds.iter().any(|outbound| outbound == "any") {
            let Some(route) = root.get_or_insert("route", Value::Object(vec![])) else { continue };
            if route.get("default_domain_resolver").is_none() {
                route.set("default_domain_resolver", server);
            }
            let message = format!(
                "`outbound` in DNS rules is now `\"route\": {{\"default_domain_resolver\": {shown}}}`"
            );
            report.warn(place, message);
            continue;
        }
        for list in ["outbounds", "endpoints"] {
            for (index, outbound) in section_mut(root, list).iter_mut().enumerate() {
                if outbounds.contains(&tag_of(outbound, index)) && outbound.get("domain_resolver").is_none() {
                    outbound.set("domain_resolver", server.clone());
                }
            }
        }
        let message =
            format!("`outbound` in DNS rules is now `\"domain_resolver\": {shown}` of the outbound");
        report.warn(place, message);
    }
}

fn copy(from: &Node, to: &mut Node, keys: &[&str]) {
    for key in keys {
        if let Some(node) = from.get(key) {
            to.set(key, node.clone());
        }
    }
}
