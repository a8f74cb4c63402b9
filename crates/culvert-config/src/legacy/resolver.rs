//! Who resolves the names of servers: `domain_strategy` of old, and what used to be left unsaid.

use super::{section, section_mut, tag_of, take, text, type_of};
use crate::diagnostics::Report;
use crate::json::{Node, Place, Value, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    replace_domain_strategy(root, report);
    name_missing_resolver(root, report);
}

/// `domain_strategy` of a dialer becomes part of its `domain_resolver`.
fn replace_domain_strategy(root: &mut Node, report: &mut Report) {
    for list in ["outbounds", "endpoints"] {
        for index in 0..section(root, list).len() {
            let taken = take(&mut section_mut(root, list)[index], &["domain_strategy"]);
            let Some(strategy) = taken.into_iter().next() else { continue };
            if strategy.node.as_str() == Some("as_is") {
                continue;
            }
            let own = section(root, list)[index].get("domain_resolver").cloned();
            let resolver = own.unwrap_or_else(|| resolver_of(root, strategy.key_place));
            let mut resolver = match resolver.value {
                Value::Object(_) => resolver,
                _ => Node::object([("server", resolver)]),
            };
            resolver.set("strategy", strategy.node.clone());
            let resolver = resolver.at(strategy.key_place);
            let message =
                format!("`domain_strategy` is now part of `\"domain_resolver\": {}`", write_line(&resolver));
            report.warn(strategy.key_place, message);
            section_mut(root, list)[index].set("domain_resolver", resolver);
        }
    }
}

/// The server that resolves names of servers so far; made if there is none.
fn resolver_of(root: &mut Node, place: Place) -> Node {
    if let Some(resolver) = root.get("route").and_then(|route| route.get("default_domain_resolver")) {
        return resolver.clone();
    }
    if let Some(tag) = default_server(root) {
        return text(tag, place);
    }
    let local = Node::object([("type", Node::string("local")), ("tag", Node::string("local"))]).at(place);
    if let Some(servers) = super::list_mut(root, "dns", "servers") {
        servers.push(local);
    }
    text("local", place)
}

/// The tag of the DNS server that answers what no rule decides.
fn default_server(root: &Node) -> Option<String> {
    let dns = root.get("dns")?;
    let servers = || section(dns, "servers").iter().enumerate();
    let exists = |tag: &String| servers().any(|(index, server)| tag_of(server, index) == *tag);
    dns.texts("final").into_iter().find(exists).or_else(|| {
        let first = servers().find(|(_, server)| type_of(server) != "fakeip");
        first.map(|(index, server)| tag_of(server, index))
    })
}

/// With several DNS servers it has to be said which one resolves the names of servers.
fn name_missing_resolver(root: &mut Node, report: &mut Report) {
    let servers = root.get("dns").map_or(&[][..], |dns| section(dns, "servers"));
    let said = root.get("route").is_some_and(|route| route.get("default_domain_resolver").is_some());
    if said || servers.len() < 2 {
        return;
    }
    let lists = [section(root, "outbounds"), section(root, "endpoints")];
    let dialers = lists.into_iter().flatten().chain(servers);
    let Some(place) = dialers.into_iter().find(|object| needs_resolver(object)).map(|object| object.place)
    else {
        return;
    };
    let Some(tag) = default_server(root) else { return };
    let shown = format!("\"route\": {{\"default_domain_resolver\": \"{tag}\"}}");
    report.warn(place, format!("say which DNS server resolves the names of servers: {shown}"));
    if let Some(route) = root.get_or_insert("route", Value::Object(vec![])) {
        route.set("default_domain_resolver", text(tag, place));
    }
}

/// Whether the object resolves names without saying how: a direct outbound, or one with a domain as its server.
fn needs_resolver(object: &Node) -> bool {
    if object.get("domain_resolver").is_some() || object.get("detour").is_some() {
        return false;
    }
    let server = object.get("server").and_then(Node::as_str).unwrap_or_default();
    let domain = !server.is_empty() && server.parse::<std::net::IpAddr>().is_err();
    domain || type_of(object) == "direct"
}
