//! What is old and still accepted as it is: rewritten only where somebody asks for the newest form.

use super::section_mut;
use crate::diagnostics::Report;
use crate::json::{Node, Value, write_line};

/// Rewrites a configuration in place, whose older spellings are gone already.
pub(crate) fn modernize(root: &mut Node, report: &mut Report) {
    if let Some(route) = root.get_mut("route") {
        for set in section_mut(route, "rule_set") {
            move_detour(set, report);
        }
    }
    let experimental = root.get_mut("experimental");
    if let Some(cache) = experimental.and_then(|experimental| experimental.get_mut("cache_file")) {
        move_rdrc(cache, report);
    }
    for inbound in section_mut(root, "inbounds") {
        if let Some(tls) = inbound.get_mut("tls") {
            move_acme(tls, report);
        }
    }
}

fn move_detour(set: &mut Node, report: &mut Report) {
    if set.get("http_client").is_some() {
        return;
    }
    let Some(entry) = set.remove("download_detour").filter(|entry| !entry.node.is_zero()) else { return };
    let client = Node::object([("detour", entry.node)]).at(entry.key_place);
    let shown = write_line(&client);
    report.warn(entry.key_place, format!("`download_detour` is now \"http_client\": {shown}"));
    set.set("http_client", client);
}

fn move_rdrc(cache: &mut Node, report: &mut Report) {
    let Some(entry) = cache.remove("store_rdrc") else { return };
    cache.remove("rdrc_timeout");
    if entry.node.as_bool() == Some(true) {
        report.warn(entry.key_place, "`store_rdrc` is now \"store_dns\": true");
        cache.set("store_dns", Node::bool(true).at(entry.key_place));
    }
}

fn move_acme(tls: &mut Node, report: &mut Report) {
    let is_used = tls.get("acme").and_then(|acme| acme.get("domain")).is_some_and(|domain| !domain.is_zero());
    if !is_used || tls.get("certificate_provider").is_some() {
        return;
    }
    let Some(entry) = tls.remove("acme") else { return };
    let mut provider = Node::object([("type", Node::string("acme"))]).at(entry.key_place);
    if let (Value::Object(to), Value::Object(from)) = (&mut provider.value, entry.node.value) {
        to.extend(from);
    }
    report.warn(entry.key_place, "`acme` is now a `certificate_provider` of type `acme`");
    tls.set("certificate_provider", provider);
}

#[cfg(test)]
mod tests {
    use crate::{Source, migrate};

    fn migrated(text: &str) -> (String, Vec<String>) {
        let (text, report) = migrate(&Source::new("c.json", text.as_bytes())).unwrap();
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (line, report.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_still_accepted_is_rewritten_too() {
        let (text, report) = migrated(
            r#"{"inbounds": [{"type": "trojan", "users": [{"password": "p"}], "tls": {"enabled": true,
                "acme": {"domain": ["a.test"], "email": "m@a.test"}}}],
                "outbounds": [{"type": "direct", "tag": "d"}],
                "route": {"rule_set": [{"type": "remote", "tag": "r", "url": "https://a.test/r.srs", "download_detour": "d"}]},
                "experimental": {"cache_file": {"enabled": true, "store_rdrc": true, "rdrc_timeout": "1d"}}}"#,
        );
        for part in [
            r#""http_client": { "version": 2, "detour": "d" }"#,
            r#""store_dns": true"#,
            r#""certificate_provider": { "type": "acme", "domain": "a.test", "email": "m@a.test" }"#,
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for part in ["download_detour", "rdrc", "\"acme\":"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
        assert_eq!(report.len(), 3, "{report:#?}");
        assert!(report.iter().all(|line| line.starts_with("c.json:")));
    }

    #[test]
    fn old_dialects_become_the_newest_and_the_newest_stays() {
        let old = r#"{"dns": {"servers": [{"tag": "a", "address": "tls://1.1.1.1"}]}, "outbounds": [{"type": "block", "tag": "b"}],
            "inbounds": [{"type": "mixed", "tag": "m", "sniff": true}]}"#;
        let (text, report) = migrated(old);
        assert_eq!(report.len(), 2, "{report:#?}");
        assert!(text.contains(r#""action": "sniff""#) && text.contains(r#""type": "tls""#), "{text}");
        assert_eq!(migrated(&text), (text, Vec::new()));
    }

    #[test]
    fn what_cannot_be_decoded_is_an_error() {
        let error = migrate(&Source::new("c.json", br#"{"dns": {"server": []}}"#)).unwrap_err();
        assert!(error.has_errors());
    }
}
