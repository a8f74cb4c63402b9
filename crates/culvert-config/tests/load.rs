//! Loading from outside: what a program sees.

use culvert_config::options::inbound::mixed::MixedInbound;
use culvert_config::options::outbound::group::SelectorOutbound;
use culvert_config::{Diagnostics, Files, Loaded, Source, load, merge_with};

fn loaded(text: &str) -> Result<Loaded, Diagnostics> {
    load(&[Source::new("c.json", text.as_bytes())])
}

fn errors(text: &str) -> Vec<String> {
    match loaded(text) {
        Ok(loaded) => panic!("accepted: {loaded:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn objects_give_their_own_options() {
    let text = r#"{
        "inbounds": [{"type": "mixed", "listen_port": 2080, "users": [{"username": "a", "password": "secret"}]}],
        "outbounds": [{"type": "direct", "tag": "d"}, {"type": "selector", "outbounds": ["d"]}],
        "route": {"rules": [{"domain_suffix": "example.org", "outbound": "d"}, {"action": "reject"}], "final": "1"},
    }"#;
    let loaded = loaded(text).expect("a good configuration");
    let options = &loaded.options;
    let mixed: &MixedInbound = options.inbounds[0].of().expect("a mixed inbound");
    assert_eq!(mixed.listen.listen_port, 2080);
    assert_eq!(options.inbounds[0].tag, "0");
    assert_eq!(options.outbounds[1].tag, "1");
    assert!(options.outbounds[0].of::<SelectorOutbound>().is_none());
    assert!(!format!("{options:?}").contains("secret"));
}

/// sing-box starts with these and fails at each connection.
#[test]
fn outbounds_without_a_server_are_told() {
    let text = r#"{"outbounds": [
  {"type": "direct", "tag": "d"},
  {"type": "socks", "tag": "nowhere"},
  {"type": "vmess", "tag": "half", "server": "a.test", "uuid": "b831381d-6324-4d53-ad4f-8cda48b30811"},
  {"type": "ssh", "server": "a.test"},
  {"type": "hysteria2", "server": "a.test", "server_ports": "2000:3000", "password": "x", "tls": {"enabled": true}},
  {"type": "selector", "outbounds": ["d"]}
]}"#;
    let warnings = loaded(text).expect("a good configuration").warnings;
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "c.json:3:3: outbounds[1] \"nowhere\": `server` is missing: there is nothing to connect to",
            "c.json:3:3: outbounds[1] \"nowhere\": `server_port` is missing: there is nothing to connect to",
            "c.json:4:3: outbounds[2] \"half\": `server_port` is missing: there is nothing to connect to",
        ]
    );
}

#[test]
fn a_slip_of_the_pen_does_not_make_a_rule_refuse_everything() {
    let rule = |rule: &str| std::format!("{{\"route\": {{\"rules\": [{rule}]}}}}");
    assert_eq!(
        errors(&rule(r#"{"domain_sufix": "a.test", "action": "reject"}"#)),
        [
            "c.json:1:23: route.rules[0].domain_sufix: without `domain_sufix` this rule has no condition: it would \
             refuse everything",
            "c.json:1:23: route.rules[0].domain_sufix: unknown field `domain_sufix` is ignored, did you mean \
             `domain_suffix`?",
        ]
    );
    // Who writes no condition at all means everything, and one that is left still holds most back.
    for fine in [
        r#"{"action": "reject"}"#,
        r#"{"action": "reject", "method": "drop"}"#,
        r#"{"domain_sufix": "a.test", "port": 25, "action": "reject"}"#,
    ] {
        loaded(&rule(fine)).expect(fine);
    }
}

#[test]
fn places_are_found_by_their_paths() {
    let sources = [
        Source::new("a.json", b"{\n\"outbounds\": [{\"type\": \"direct\"}]}"),
        Source::new("b.json", b"{\"outbounds\": [\n {\"type\": \"socks\"}]}"),
    ];
    let place = |path| culvert_config::place_of(&sources, path);
    assert_eq!(place("outbounds[0]").as_deref(), Some("a.json:2:15"));
    assert_eq!(place("outbounds[1]").as_deref(), Some("b.json:2:2"));
    assert_eq!(place("outbounds[1].type").as_deref(), Some("b.json:2:11"));
    for nowhere in ["outbounds[2]", "outbounds[x]", "outbounds]", "inbounds[0]", "", "outbounds[0][0]"] {
        assert_eq!(place(nowhere), None, "{nowhere}");
    }
}

#[test]
fn every_error_is_told_with_its_place() {
    let text = r#"{
  "log": {"level": "verbose"},
  "outbounds": [
    {"type": "socks", "tag": "jp", "sever": "x", "server_port": 70000},
    {"type": "sokcs"},
    {}
  ],
  "route": {"rules": [{"domain": 5}], "final": "jq"}
}"#;
    assert_eq!(
        errors(text),
        [
            "c.json:2:20: log.level: unknown log level `verbose`; known are trace, debug, info, warn, warning, \
             error, fatal, panic",
            "c.json:4:36: outbounds[0] \"jp\" .sever: unknown field `sever`, did you mean `server`?",
            "c.json:4:65: outbounds[0] \"jp\" .server_port: 70000 is out of range, which is 0 to 65535",
            "c.json:5:14: outbounds[1].type: unknown outbound type `sokcs`, did you mean `socks`?",
            "c.json:6:5: outbounds[2]: this outbound has no `type`",
            "c.json:8:34: route.rules[0].domain: expected a string, found a number",
            "c.json:8:48: route.final: there is no outbound or endpoint `jq`, did you mean `jp`?",
        ]
    );
}

#[test]
fn chains_that_come_back_are_refused() {
    let text = r#"{"outbounds": [
        {"type": "selector", "tag": "a", "outbounds": ["b"]},
        {"type": "socks", "tag": "b", "server": "x", "detour": "a"}
    ]}"#;
    let found = errors(text);
    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with("depends on itself: a -> b -> a"), "{found:?}");
}

fn sources(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(name, text)| Source::new(*name, text.as_bytes())).collect()
}

#[test]
fn files_are_merged_in_the_order_of_their_names() {
    let files = sources(&[
        (
            "b.json",
            r#"{"log": {"level": "warn", "timestamp": true}, "outbounds": [{"type": "block"}], "route": {"final": "x"}}"#,
        ),
        ("a.json", r#"{"log": {"level": "info"}, "outbounds": [{"type": "direct"}], "route": null}"#),
    ]);
    let options = load(&files).expect("a good configuration").options;
    assert_eq!(options.log.level.name(), "info");
    assert!(options.log.timestamp);
    assert_eq!(
        options.outbounds.iter().map(|outbound| outbound.kind.name()).collect::<Vec<_>>(),
        ["direct", "block"]
    );
    assert_eq!(options.route.final_outbound.get(), None);
}

#[test]
fn errors_name_the_file_they_are_in() {
    let files = sources(&[
        ("a.json", r#"{"log": {"level": "info"}, "outbounds": [{"type": "direct", "tag": "d"}]}"#),
        ("b.json", r#"{"log": {"level": "loud"}, "outbounds": [{"type": "block", "tag": "d"}]}"#),
    ]);
    let errors = load(&files).expect_err("the level is unknown");
    assert!(errors.to_string().starts_with("b.json:1:19: log.level: unknown log level `loud`"), "{errors}");
    let files = sources(&[
        ("a.json", r#"{"outbounds": [{"type": "direct", "tag": "d"}]}"#),
        ("b.json", r#"{"outbounds": [{"type": "block", "tag": "d"}]}"#),
    ]);
    let errors = load(&files).expect_err("the tag is not unique");
    assert_eq!(
        errors.to_string(),
        "b.json:1:41: outbounds[0] \"d\" .tag: duplicate outbound or endpoint tag `d`"
    );
}

#[test]
fn syntax_errors_of_all_files_are_told() {
    let files = sources(&[("a.json", "{\n  \"log\": {},\n  \"x\" 1\n}"), ("b.json", "")]);
    let errors = load(&files).expect_err("both are broken");
    assert_eq!(
        errors.to_string(),
        "a.json:3:7: expected `:` after the key, found `1`\nb.json:1:1: the file ends here, with nothing in it; the least configuration is `{}`"
    );
    assert!(load(&[]).is_err());
}

struct OneFile;

impl Files for OneFile {
    fn read(&self, path: &std::path::Path) -> std::io::Result<Vec<u8>> {
        match path.to_str() {
            Some("c.crt") => Ok(b"one\ntwo\n".to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }
}

#[test]
fn merging_puts_files_beside_their_paths() {
    let text = r#"{"inbounds": [{"type": "http", "tls": {"enabled": true, "certificate_path": "c.crt", "key_path": "no"}}]}"#;
    let merged = merge_with(&sources(&[("a.json", text)]), &OneFile).expect("a good configuration");
    let expected = r#"{
  "inbounds": [
    {
      "type": "http",
      "tls": {
        "enabled": true,
        "certificate": [
          "one",
          "two"
        ],
        "certificate_path": "c.crt",
        "key_path": "no"
      }
    }
  ]
}"#;
    assert_eq!(merged, expected);
}

#[test]
fn endpoints_are_found_as_inbounds_without_taking_their_tags() {
    let key = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
    let text = format!(
        r#"{{
            "endpoints": [
                {{"type": "wireguard", "private_key": "{key}"}},
                {{"type": "wireguard", "tag": "wg", "private_key": "{key}"}}
            ],
            "inbounds": [{{"type": "mixed"}}],
            "route": {{"rules": [{{"inbound": ["wg", "gw"], "action": "reject"}}], "final": "wg"}}
        }}"#
    );
    let loaded = loaded(&text).expect("a good configuration");
    let warnings: Vec<&str> = loaded.warnings.iter().map(|warning| &*warning.message).collect();
    assert_eq!(warnings, ["there is no inbound `gw`, did you mean `wg`?"]);
}

#[test]
fn mistakes_in_wireguard_endpoints_are_told_with_their_places() {
    let key = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
    let peers = |peers: &str, address: &str, own: &str| {
        errors(&format!(
            r#"{{"endpoints": [{{"type": "wireguard", "private_key": "{own}", "address": "{address}", "peers": [{peers}]}}]}}"#
        ))
    };
    let peer = |allowed: &str| format!(r#"{{"public_key": "{key}", "allowed_ips": {allowed}}}"#);
    let found = peers(&peer(r#""10.0.0.0/8""#), "10.0.0.1", key);
    assert_eq!(found.len(), 1, "an address that is no prefix: {found:?}");
    let found = peers(&peer(r#""10.0.0.0/8""#), "10.0.0.1/32", "YWFh");
    assert!(found[0].contains("32 bytes"), "{found:?}");
    let other = peer(r#""10.1.2.3/8""#).replace("YWE=", "YWI=");
    let found = peers(&format!("{}, {other}", peer(r#"["192.0.2.1/32", "10.0.0.0/8"]"#)), "10.0.0.1/32", key);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("10.1.2.3/8 is among the `allowed_ips` of `peers[0]`"), "{found:?}");
    let found =
        peers(&format!("{}, {}", peer(r#""10.0.0.0/8""#), peer(r#""10.0.0.0/9""#)), "10.0.0.1/32", key);
    assert_eq!(found.len(), 1, "a longer prefix is no mistake, but the key is: {found:?}");
    assert!(found[0].contains("public_key"), "{found:?}");
}

#[test]
fn null_in_a_list_never_widens_a_rule() {
    let text = r#"{"route": {"rules": [{"ip_cidr": [null], "port": [null], "network_type": null, "action": "reject"}]}}"#;
    let found = errors(text);
    assert_eq!(found.len(), 2, "{found:?}");
}
