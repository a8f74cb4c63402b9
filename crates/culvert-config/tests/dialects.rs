//! One intent in the dialects of several ages of sing-box: all of them mean the same options.

use culvert_config::options::Options;
use culvert_config::{Source, format, load};

const OUTBOUNDS: &str = r#"
    {"type": "socks", "tag": "proxy", "server": "198.51.100.1", "server_port": 1080},
    {"type": "direct", "tag": "direct"},
    {"type": "block", "tag": "block"}"#;

const RULE_SETS: &str = r#"
    {"type": "remote", "tag": "geosite-cn", "format": "binary", "url": "https://raw.githubusercontent.com/SagerNet/sing-geosite/rule-set/geosite-cn.srs"},
    {"type": "remote", "tag": "geoip-cn", "format": "binary", "url": "https://raw.githubusercontent.com/SagerNet/sing-geoip/rule-set/geoip-cn.srs"}"#;

const CACHE: &str = r#""cache_file": {"enabled": true, "path": "cache.db"}"#;

const OLD_DNS_SERVERS: &str = r#"
    {"tag": "remote", "address": "https://192.0.2.1/dns-query"},
    {"tag": "local", "address": "local", "detour": "direct"}"#;

const NEW_DNS_SERVERS: &str = r#"
    {"type": "https", "tag": "remote", "server": "192.0.2.1", "detour": "proxy"},
    {"type": "local", "tag": "local"}"#;

const OLD_INBOUND: &str =
    r#"{"type": "mixed", "tag": "in", "listen_port": 2080, "sniff": true, "domain_strategy": "prefer_ipv4"}"#;

const NEW_INBOUND: &str = r#"{"type": "mixed", "tag": "in", "listen_port": 2080}"#;

/// Geo databases, special outbounds, inbound fields, DNS addresses, cache file in the Clash API section.
fn dialect_1_7() -> String {
    format!(
        r#"{{"dns": {{"servers": [{OLD_DNS_SERVERS}], "rules": [{{"geosite": "cn", "server": "local"}}]}},
        "inbounds": [{OLD_INBOUND}],
        "outbounds": [{OUTBOUNDS}, {{"type": "dns", "tag": "dns-out"}}],
        "route": {{"rules": [
            {{"protocol": "dns", "outbound": "dns-out"}},
            {{"geoip": "private", "outbound": "direct"}},
            {{"geosite": "cn", "geoip": "cn", "outbound": "direct"}}]}},
        "experimental": {{"clash_api": {{"external_controller": "127.0.0.1:9090", "store_selected": true, "cache_file": "cache.db"}}}}}}"#
    )
}

/// Rule-sets and a cache file section.
fn dialect_1_8() -> String {
    format!(
        r#"{{"dns": {{"servers": [{OLD_DNS_SERVERS}], "rules": [{{"rule_set": "geosite-cn", "server": "local"}}]}},
        "inbounds": [{OLD_INBOUND}],
        "outbounds": [{OUTBOUNDS}, {{"type": "dns", "tag": "dns-out"}}],
        "route": {{"rule_set": [{RULE_SETS}], "rules": [
            {{"protocol": "dns", "outbound": "dns-out"}},
            {{"ip_is_private": true, "outbound": "direct"}},
            {{"rule_set": ["geosite-cn", "geoip-cn"], "outbound": "direct"}}]}},
        "experimental": {{"clash_api": {{"external_controller": "127.0.0.1:9090"}}, {CACHE}}}}}"#
    )
}

/// Rule actions.
fn dialect_1_11() -> String {
    format!(
        r#"{{"dns": {{"servers": [{OLD_DNS_SERVERS}], "rules": [{{"rule_set": "geosite-cn", "action": "route", "server": "local"}}]}},
        "inbounds": [{NEW_INBOUND}],
        "outbounds": [{OUTBOUNDS}],
        "route": {{"rule_set": [{RULE_SETS}], "rules": [
            {{"inbound": "in", "action": "sniff"}},
            {{"inbound": "in", "action": "resolve", "strategy": "prefer_ipv4"}},
            {{"protocol": "dns", "action": "hijack-dns"}},
            {{"ip_is_private": true, "outbound": "direct"}},
            {{"rule_set": ["geosite-cn", "geoip-cn"], "outbound": "direct"}}]}},
        "experimental": {{"clash_api": {{"external_controller": "127.0.0.1:9090"}}, {CACHE}}}}}"#
    )
}

/// DNS servers with types, and the resolver of server names in DNS rules.
fn dialect_1_12() -> String {
    dialect_1_11().replace(OLD_DNS_SERVERS, NEW_DNS_SERVERS).replace(
        r#""rules": [{"rule_set": "geosite-cn""#,
        r#""rules": [{"outbound": "any", "server": "remote"}, {"rule_set": "geosite-cn""#,
    )
}

fn dialect_1_14() -> String {
    dialect_1_11()
        .replace(OLD_DNS_SERVERS, NEW_DNS_SERVERS)
        .replace(r#""route": {"#, r#""route": {"default_domain_resolver": "remote", "#)
}

fn options(text: &str) -> (Options, usize) {
    let loaded =
        load(&[Source::new("c.json", text.as_bytes())]).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    (loaded.options, loaded.warnings.len())
}

#[test]
fn all_dialects_mean_the_same() {
    let (modern, warnings) = options(&dialect_1_14());
    assert_eq!(warnings, 0);
    for (age, text) in
        [("1.7", dialect_1_7()), ("1.8", dialect_1_8()), ("1.11", dialect_1_11()), ("1.12", dialect_1_12())]
    {
        let (old, warnings) = options(&text);
        assert!(warnings > 0, "{age} is told how to write it");
        assert_eq!(old, modern, "{age}");
        // What `format` prints is the current dialect.
        let formatted = format(&Source::new("c.json", text.as_bytes())).expect("it can be decoded");
        assert_eq!(options(&formatted), (modern.clone(), 0), "{age}:\n{formatted}");
    }
}
