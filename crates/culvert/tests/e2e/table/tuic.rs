//! TUIC: each way of carrying datagrams, each congestion control.

use super::*;
use crate::site::ENDS_TOGETHER;

links! {
    native: || in_tls(outbound(json!({}))) => || behind_tls(inbound(json!({}))), ENDS_TOGETHER;
    quic: || in_tls(outbound(json!({ "udp_relay_mode": "quic", "congestion_control": "bbr" })))
        => || behind_tls(inbound(json!({ "congestion_control": "bbr" }))), ENDS_TOGETHER;
    over_stream: || in_tls(outbound(json!({ "udp_over_stream": true, "congestion_control": "new_reno" })))
        => || behind_tls(inbound(json!({ "congestion_control": "new_reno" }))), ENDS_TOGETHER;
}

light_links! {
    zero_rtt: || in_tls(outbound(json!({ "zero_rtt_handshake": true, "heartbeat": "1s" })))
        => || behind_tls(inbound(json!({ "zero_rtt_handshake": true, "heartbeat": "1s", "auth_timeout": "1s" }))), ENDS_TOGETHER;
}

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

fn outbound(more: Value) -> Value {
    with(json!({ "type": "tuic", "uuid": ID, "password": USER.1 }), more)
}

fn inbound(more: Value) -> Value {
    let (name, password) = USER;
    let users = json!([
        { "name": "bob", "uuid": "11111111-2222-3333-4444-555555555555", "password": password },
        { "name": name, "uuid": ID, "password": password }
    ]);
    with(json!({ "type": "tuic", "users": users }), more)
}
