//! Checks of single objects that the corpora cannot show, since the sing-box they were made with lacks the protocol.

use culvert_config::{Source, load};

/// A key of 32 bytes as REALITY writes it.
const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

/// The errors of a configuration with just this object in `section`, each as `path: message`.
fn faults(section: &str, object: &str) -> Vec<String> {
    let text = format!(r#"{{"{section}": [{object}]}}"#).replace("KEY", KEY);
    match load(&[Source::new("c.json", text.as_bytes())]) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect(),
    }
}

/// Expects exactly one error, at this place below the object and with these words in it; or none, if both are empty.
fn expect(section: &str, object: &str, path: &str, words: &str) {
    let found = faults(section, object);
    if words.is_empty() {
        assert_eq!(found, Vec::<String>::new(), "{object}");
        return;
    }
    let [fault] = found.as_slice() else {
        panic!("{object}: expected one error with {words}, got {found:#?}")
    };
    let (place, message) = fault.split_once(": ").expect("a place and a message");
    let place = place.trim_start_matches(section).trim_start_matches("[0]").trim_start_matches('.');
    assert!(place == path && message.contains(words), "{object}: expected {path}: {words}, got {fault}");
}

fn outbound_tls(tls: &str, path: &str, words: &str) {
    let object = format!(r#"{{"type": "http", "server": "a.example", "tls": {{"enabled": true, {tls}}}}}"#);
    expect("outbounds", &object, path, words);
}

fn inbound_tls(tls: &str, path: &str, words: &str) {
    let object = format!(r#"{{"type": "http", "tls": {{"enabled": true, {tls}}}}}"#);
    expect("inbounds", &object, path, words);
}

#[test]
fn browsers_are_known_by_name_where_they_are_imitated() {
    for name in ["chrome", "firefox", "360", "randomized", "chrome_pq", ""] {
        outbound_tls(&format!(r#""utls": {{"enabled": true, "fingerprint": "{name}"}}"#), "", "");
    }
    let unknown = "unknown fingerprint `firefoxx`, did you mean `firefox`?";
    outbound_tls(r#""utls": {"enabled": true, "fingerprint": "firefoxx"}"#, "tls.utls.fingerprint", unknown);
    outbound_tls(r#""utls": {"fingerprint": "firefoxx"}"#, "", "");
}

#[test]
fn reality_outbounds_need_a_key_and_a_browser() {
    let utls = r#""utls": {"enabled": true}"#;
    let reality = |options: &str| format!(r#"{utls}, "reality": {{"enabled": true, {options}}}"#);
    outbound_tls(&reality(r#""public_key": "KEY", "short_id": "0123456789abcdef""#), "", "");
    outbound_tls(&reality(r#""public_key": "KEY=""#), "tls.reality.public_key", "X25519");
    outbound_tls(&reality(r#""short_id": """#), "tls.reality", "X25519");
    outbound_tls(
        &reality(r#""public_key": "KEY", "short_id": "abc""#),
        "tls.reality.short_id",
        "16 hexadecimal",
    );
    outbound_tls(r#""reality": {"enabled": true, "public_key": "KEY"}"#, "tls.reality", "utls");
    let with_ech = format!(r#"{}, "ech": {{"enabled": true}}"#, reality(r#""public_key": "KEY""#));
    outbound_tls(&with_ech, "tls.ech", "REALITY");
    outbound_tls(r#""reality": {"public_key": "no key"}"#, "", "");
    let without_name = format!(r#"{}, "disable_sni": true"#, reality(r#""public_key": "KEY""#));
    outbound_tls(&without_name, "tls.disable_sni", "REALITY");
    let old = reality(r#""public_key": "KEY""#).replace("true}", r#"true, "fingerprint": "android"}"#);
    outbound_tls(&old, "tls.utls.fingerprint", "TLS 1.3");
    let short = r#""public_key": "KEY", "mldsa65_verify": "AAAA""#;
    outbound_tls(&reality(short), "tls.reality.mldsa65_verify", "ML-DSA-65");
}

#[test]
fn reality_inbounds_need_a_key_and_no_certificate() {
    let reality = |options: &str| format!(r#""reality": {{"enabled": true, {options}}}"#);
    let key = r#""private_key": "KEY", "short_id": ["", "0a"]"#;
    inbound_tls(&reality(key), "", "");
    inbound_tls(&reality(r#""short_id": "0a""#), "tls.reality", "X25519");
    inbound_tls(&reality(r#""private_key": "KEY", "short_id": ["x1"]"#), "tls.reality.short_id", "short id");
    for (options, path) in [
        (r#""certificate": "x""#, "tls.certificate"),
        (r#""key_path": "x""#, "tls.key_path"),
        (r#""curve_preferences": "X25519""#, "tls.curve_preferences"),
        (r#""acme": {"domain": "a.example"}"#, "tls.acme"),
    ] {
        inbound_tls(&format!("{}, {options}", reality(key)), path, "REALITY");
    }
}

#[test]
fn a_naive_outbound_keeps_the_tls_of_its_browser() {
    let naive = |tls: &str| format!(r#"{{"type": "naive", "server": "a.example", "tls": {{{tls}}}}}"#);
    expect("outbounds", &naive(r#""enabled": true, "server_name": "b.example""#), "", "");
    expect("outbounds", &naive(r#""enabled": true, "insecure": true"#), "tls.insecure", "browser");
    expect("outbounds", &naive(r#""enabled": true, "alpn": "h2""#), "tls.alpn", "browser");
    expect("outbounds", &naive(r#""server_name": "b.example""#), "tls", "TLS is required");
}

#[test]
fn tunnels_need_what_lets_them_in() {
    expect("inbounds", r#"{"type": "cloudflared"}"#, "", "token");
    expect("inbounds", r#"{"type": "cloudflared", "token": "x", "protocol": "spdy"}"#, "protocol", "spdy");
    expect(
        "inbounds",
        r#"{"type": "cloudflared", "token": "x", "edge_ip_version": 5}"#,
        "edge_ip_version",
        "5",
    );
    expect("endpoints", r#"{"type": "openconnect"}"#, "", "server");
    let flavor = r#"{"type": "openconnect", "server": "https://a.example", "flavor": "cisco"}"#;
    expect("endpoints", flavor, "flavor", "unknown flavor `cisco`");
    expect("endpoints", r#"{"type": "openvpn-client", "tls": {"server_name": "a"}}"#, "", "server");
    expect("endpoints", r#"{"type": "openvpn-client", "server": "a.example"}"#, "", "needs `tls`");
    let static_key = r#"{"type": "openvpn-server", "mode": "static_key"}"#;
    expect("endpoints", static_key, "mode", "static_key_path");
    let profile = r#"{"type": "openvpn-server", "tls": {"certificate_profile": "old"}}"#;
    expect("endpoints", profile, "tls.certificate_profile", "old");
    let endpoint = r#"{"type": "tailscale", "relay_server_static_endpoints": ["192.0.2.1"]}"#;
    expect("endpoints", endpoint, "relay_server_static_endpoints[0]", "with a port");
}

#[test]
fn services_tell_what_they_lack() {
    expect("services", r#"{"type": "derp"}"#, "", "config_path");
    expect("services", r#"{"type": "derp", "config_path": "k", "mesh_psk": "00"}"#, "mesh_psk", "64");
    let unknown_in_stun = r#"{"type": "derp", "config_path": "k", "stun": {"enabled": true, "ports": 1}}"#;
    expect("services", unknown_in_stun, "", "");
    let dynamic = r#"{"type": "usbip-server", "provider": "dynamic", "devices": [{"bus_id": "1-1"}]}"#;
    expect("services", dynamic, "devices", "dynamic");
    expect("services", r#"{"type": "ccm", "detour": "nowhere"}"#, "detour", "there is no outbound");
}

#[test]
fn providers_of_certificates_know_their_keys_and_names() {
    let acme = |options: &str| format!(r#"{{"type": "acme", {options}}}"#);
    expect("certificate_providers", &acme(r#""domain": "a.example", "key_type": "rsa2048""#), "", "");
    expect("certificate_providers", &acme(r#""email": "me@a.example""#), "", "domain");
    let key_type = acme(r#""domain": "a.example", "key_type": "rsa1024""#);
    expect("certificate_providers", &key_type, "key_type", "unknown key type `rsa1024`");
    let dns =
        acme(r#""domain": "a.example", "dns01_challenge": {"provider": "cloudflare", "username": "x"}"#);
    expect("certificate_providers", &dns, "dns01_challenge.username", "unknown field");
}

#[test]
fn what_lets_somebody_in_is_not_shown() {
    let secrets = ["2dd61d93-75d8-4da4-ac0e-6aece7eac365", "hunter2", "c2VjcmV0"];
    let text = r#"{
        "outbounds": [
            {"type": "vless", "server": "a", "uuid": "2dd61d93-75d8-4da4-ac0e-6aece7eac365"},
            {"type": "vmess", "server": "a", "uuid": "hunter2"},
            {"type": "trojan", "server": "a", "password": "hunter2"},
            {"type": "hysteria2", "server": "a", "password": "hunter2", "obfs": {"type": "salamander",
             "password": "hunter2"}, "tls": {"enabled": true}},
            {"type": "hysteria", "server": "a", "auth": "c2VjcmV0", "up_mbps": 1, "down_mbps": 1,
             "tls": {"enabled": true}}
        ],
        "inbounds": [{"type": "snell", "version": 5, "psk": "hunter2", "users": [{"userkey": "hunter2"}]}]
    }"#;
    let loaded = load(&[Source::new("c.json", text.as_bytes())]).expect("a good configuration");
    let shown = format!("{:?}", loaded.options);
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret}");
    }
    assert!(!shown.contains("115, 101, 99, 114, 101, 116"), "the bytes of a password");
}

#[test]
fn ids_that_anybody_would_guess_are_refused() {
    let nil = "00000000-0000-0000-0000-000000000000";
    for kind in ["vless", "vmess"] {
        let outbound = |id: &str| format!(r#"{{"type": "{kind}", "server": "a", "server_port": 1{id}}}"#);
        let inbound = |id: &str| format!(r#"{{"type": "{kind}", "users": [{{"name": "a"{id}}}]}}"#);
        for (list, object, place) in [
            ("outbounds", &outbound as &dyn Fn(&str) -> String, "uuid"),
            ("inbounds", &inbound, "users[0].uuid"),
        ] {
            expect(list, &object(r#", "uuid": "me""#), "", "");
            expect(list, &object(&format!(r#", "uuid": "{nil}""#)), place, "of zeros is no secret");
            expect(list, &object(r#", "uuid": """#), place, "is missing");
            expect(list, &object(""), place.trim_end_matches("uuid").trim_end_matches('.'), "is missing");
        }
    }
}

#[test]
fn vision_needs_tls_and_no_transport() {
    let flow = r#""flow": "xtls-rprx-vision""#;
    let (tls, ws) = (r#", "tls": {"enabled": true, "insecure": true}"#, r#", "transport": {"type": "ws"}"#);
    for (beside, words) in [
        (tls.to_owned(), ""),
        (String::new(), "needs TLS"),
        (r#", "tls": {}"#.to_owned(), "needs TLS"),
        (format!("{tls}{ws}"), "inside a transport"),
    ] {
        let path = if words.is_empty() { "" } else { "flow" };
        let outbound = format!(
            r#"{{"type": "vless", "server": "a.example", "server_port": 1, "uuid": "x", {flow}{beside}}}"#
        );
        expect("outbounds", &outbound, path, words);
        let path = if words.is_empty() { "" } else { "users[0].flow" };
        let inbound = format!(r#"{{"type": "vless", "users": [{{"uuid": "x", {flow}}}]{beside}}}"#);
        expect("inbounds", &inbound, path, words);
    }
}
