//! Hysteria 1, plain and in disguise.

use super::*;
use crate::site::ENDS_TOGETHER;

links! {
    plain: || in_tls(outbound(json!({ "auth_str": USER.1 }))) => || behind_tls(inbound(json!({}))), ENDS_TOGETHER;
    obfs: || in_tls(outbound(json!({ "auth": "c2VjcmV0", "obfs": "xplus-pw" })))
        => || behind_tls(inbound(json!({ "obfs": "xplus-pw" }))), ENDS_TOGETHER;
}

light_links! {
    ports: || in_tls(outbound(json!({ "auth_str": USER.1, "server_ports": [], "hop_interval": "5s" })))
        => || behind_tls(inbound(json!({}))), ENDS_TOGETHER;
    windows: || in_tls(outbound(json!({
        "auth_str": USER.1, "up": "400 Mbps", "down": "50 MBps", "recv_window_conn": 1_000_000, "recv_window": 3_000_000,
        "disable_mtu_discovery": true
    }))) => || behind_tls(inbound(json!({
        "recv_window_conn": 1_000_000, "recv_window_client": 3_000_000, "max_conn_client": 50, "disable_mtu_discovery": true
    }))), ENDS_TOGETHER;
}

fn outbound(more: Value) -> Value {
    with(json!({ "type": "hysteria", "up_mbps": 800, "down_mbps": 800 }), more)
}

fn inbound(more: Value) -> Value {
    let (name, password) = USER;
    let users = json!([
        { "name": "bob", "auth": "c2VjcmV0" },
        { "name": name, "auth_str": password }
    ]);
    with(json!({ "type": "hysteria", "up_mbps": 800, "down_mbps": 800, "users": users }), more)
}
