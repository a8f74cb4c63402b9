//! AnyTLS, which is nothing without TLS.

use super::*;
use crate::site::ENDS_TOGETHER;

links! {
    tls: || in_tls(outbound()) => || behind_tls(inbound()), ENDS_TOGETHER;
}

light_links! {
    padding: || in_tls(outbound()) => || behind_tls(padded(inbound())), ENDS_TOGETHER;
    keeping: || in_tls(kept(outbound())) => || behind_tls(json!({ "type": "anytls", "users": [{ "password": USER.1 }] })),
        ENDS_TOGETHER;
}

/// Idle sessions go within the time that the harness gives programs to close everything.
fn outbound() -> Value {
    json!({
        "type": "anytls", "password": USER.1,
        "idle_session_check_interval": "6s", "idle_session_timeout": "6s"
    })
}

fn inbound() -> Value {
    let (name, password) = USER;
    json!({
        "type": "anytls",
        "users": [{ "name": "bob", "password": "b" }, { "name": name, "password": password }]
    })
}

/// A scheme that clients have to learn first.
fn padded(mut inbound: Value) -> Value {
    inbound["padding_scheme"] =
        json!(["stop=5", "0=100-200", "1=300-900", "2=20-40,c,2000-3000,c,50-50", "4=7-7,c,16384-20000"]);
    inbound
}

fn kept(mut outbound: Value) -> Value {
    outbound["min_idle_session"] = 2.into();
    outbound["client_metadata"] = "e2e/1.0".into();
    outbound
}
