//! Trojan, over TLS as it is meant to be, and without.

use super::*;

links! {
    tls: || in_tls(outbound()) => || behind_tls(inbound()), ALL;
}

light_links! {
    plain: outbound => inbound, ALL;
    nameless_user: outbound => || json!({ "type": "trojan", "users": [{ "password": USER.1 }] }), ALL;
    alpn: || offering(in_tls(outbound())) => || taking(behind_tls(inbound())), ALL;
}

fn outbound() -> Value {
    json!({ "type": "trojan", "password": USER.1 })
}

fn inbound() -> Value {
    let (name, password) = USER;
    json!({
        "type": "trojan",
        "users": [{ "name": "bob", "password": "b" }, { "name": name, "password": password }],
        "fallback": { "server": "127.0.0.1", "server_port": 1 }
    })
}

fn offering(mut outbound: Value) -> Value {
    outbound["tls"]["alpn"] = json!(["h2", "http/1.1"]);
    outbound
}

fn taking(mut inbound: Value) -> Value {
    inbound["tls"]["alpn"] = json!(["http/1.1"]);
    inbound["fallback_for_alpn"] = json!({ "http/1.1": { "server": "127.0.0.1", "server_port": 1 } });
    inbound
}
