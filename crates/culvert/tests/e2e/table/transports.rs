//! Protocols over the transports of V2Ray: each transport in full once, then everything over everything.

use serde_json::{Value, json};

use super::{behind_tls, in_tls};
use crate::Side;
use crate::run;
use crate::site::{ALL, Carries, ENDS_TOGETHER, Link, linked};

links! {
    ws: || client("vless", ws()) => || server("vless", ws()), ENDS_TOGETHER;
    ws_early_path: || client("vless", ws_early_path()) => || server("vless", ws_early_path()), ENDS_TOGETHER;
    httpupgrade: || client("vless", httpupgrade()) => || server("vless", httpupgrade()), ALL;
    http: || client("vless", http()) => || server("vless", http()), ENDS_TOGETHER;
    http_tls: || in_tls(client("vless", http())) => || behind_tls(server("vless", http())), ENDS_TOGETHER;
    grpc: || client("vless", grpc()) => || server("vless", grpc()), ENDS_TOGETHER;
    grpc_tls: || in_tls(client("vless", grpc())) => || behind_tls(server("vless", grpc())), ENDS_TOGETHER;
    quic: || in_tls(client("vless", quic())) => || behind_tls(server("vless", quic())), ENDS_TOGETHER;
}

light_links! {
    vless_ws: || client("vless", ws()) => || server("vless", ws()), ENDS_TOGETHER;
    vless_ws_tls: || in_tls(client("vless", ws()))
        => || behind_tls(server("vless", ws())), ENDS_TOGETHER;
    vless_ws_early_header: || client("vless", ws_early_header()) => || server("vless", ws_early_header()), ENDS_TOGETHER;
    vless_ws_early_header_tls: || in_tls(client("vless", ws_early_header()))
        => || behind_tls(server("vless", ws_early_header())), ENDS_TOGETHER;
    vless_ws_early_path: || client("vless", ws_early_path()) => || server("vless", ws_early_path()), ENDS_TOGETHER;
    vless_ws_early_path_tls: || in_tls(client("vless", ws_early_path()))
        => || behind_tls(server("vless", ws_early_path())), ENDS_TOGETHER;
    vless_httpupgrade: || client("vless", httpupgrade()) => || server("vless", httpupgrade()), ALL;
    vless_httpupgrade_tls: || in_tls(client("vless", httpupgrade()))
        => || behind_tls(server("vless", httpupgrade())), ALL;
    vless_http: || client("vless", http()) => || server("vless", http()), ENDS_TOGETHER;
    vless_http_tls: || in_tls(client("vless", http()))
        => || behind_tls(server("vless", http())), ENDS_TOGETHER;
    vless_grpc: || client("vless", grpc()) => || server("vless", grpc()), ENDS_TOGETHER;
    vless_grpc_tls: || in_tls(client("vless", grpc()))
        => || behind_tls(server("vless", grpc())), ENDS_TOGETHER;
    trojan_ws: || client("trojan", ws()) => || server("trojan", ws()), ENDS_TOGETHER;
    trojan_ws_tls: || in_tls(client("trojan", ws()))
        => || behind_tls(server("trojan", ws())), ENDS_TOGETHER;
    trojan_ws_early_header: || client("trojan", ws_early_header()) => || server("trojan", ws_early_header()), ENDS_TOGETHER;
    trojan_ws_early_header_tls: || in_tls(client("trojan", ws_early_header()))
        => || behind_tls(server("trojan", ws_early_header())), ENDS_TOGETHER;
    trojan_ws_early_path: || client("trojan", ws_early_path()) => || server("trojan", ws_early_path()), ENDS_TOGETHER;
    trojan_ws_early_path_tls: || in_tls(client("trojan", ws_early_path()))
        => || behind_tls(server("trojan", ws_early_path())), ENDS_TOGETHER;
    trojan_http_tls: || in_tls(client("trojan", http()))
        => || behind_tls(server("trojan", http())), ENDS_TOGETHER;
    trojan_grpc: || client("trojan", grpc()) => || server("trojan", grpc()), ENDS_TOGETHER;
    trojan_grpc_tls: || in_tls(client("trojan", grpc()))
        => || behind_tls(server("trojan", grpc())), ENDS_TOGETHER;
    vmess_ws: || client("vmess", ws()) => || server("vmess", ws()), VMESS;
    vmess_ws_tls: || in_tls(client("vmess", ws()))
        => || behind_tls(server("vmess", ws())), VMESS;
    vmess_ws_early_header: || client("vmess", ws_early_header()) => || server("vmess", ws_early_header()), VMESS;
    vmess_ws_early_header_tls: || in_tls(client("vmess", ws_early_header()))
        => || behind_tls(server("vmess", ws_early_header())), VMESS;
    vmess_ws_early_path: || client("vmess", ws_early_path()) => || server("vmess", ws_early_path()), VMESS;
    vmess_ws_early_path_tls: || in_tls(client("vmess", ws_early_path()))
        => || behind_tls(server("vmess", ws_early_path())), VMESS;
    vmess_httpupgrade: || client("vmess", httpupgrade()) => || server("vmess", httpupgrade()), VMESS;
    vmess_httpupgrade_tls: || in_tls(client("vmess", httpupgrade()))
        => || behind_tls(server("vmess", httpupgrade())), VMESS;
    vmess_http: || client("vmess", http()) => || server("vmess", http()), VMESS;
    vmess_http_tls: || in_tls(client("vmess", http()))
        => || behind_tls(server("vmess", http())), VMESS;
    vmess_grpc: || client("vmess", grpc()) => || server("vmess", grpc()), VMESS;
    vmess_grpc_tls: || in_tls(client("vmess", grpc()))
        => || behind_tls(server("vmess", grpc())), VMESS;
    trojan_quic: || in_tls(client("trojan", quic())) => || behind_tls(server("trojan", quic())), ENDS_TOGETHER;
    vmess_quic: || in_tls(client("vmess", quic())) => || behind_tls(server("vmess", quic())), VMESS;
    grpc_without_a_name: || client("vless", json!({ "type": "grpc" }))
        => || server("vless", json!({ "type": "grpc" })), ENDS_TOGETHER;
}

served_links! {
    // sing-box's Trojan server wants the whole key in its first read. Its HTTP/1.1 server, while it gives a connection away,
    // may have read one byte of what follows by itself, and a client that is quick enough is then told "bad request size".
    trojan_httpupgrade: || client("trojan", httpupgrade()) => || server("trojan", httpupgrade()), ALL;
    trojan_httpupgrade_tls: || in_tls(client("trojan", httpupgrade()))
        => || behind_tls(server("trojan", httpupgrade())), ALL;
    trojan_http: || client("trojan", http()) => || server("trojan", http()), ENDS_TOGETHER;
}

/// sing-box cuts datagrams in VMess to its chunks, and passes on no half-close.
const VMESS: Carries = Carries { datagram: 14_000, ..ENDS_TOGETHER };

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

/// An outbound of this type over a transport.
fn client(kind: &str, transport: Value) -> Value {
    match kind {
        "trojan" => json!({ "type": kind, "password": "secret", "transport": transport }),
        "vmess" => json!({ "type": kind, "uuid": ID, "security": "auto", "transport": transport }),
        _ => json!({ "type": kind, "uuid": ID, "transport": transport }),
    }
}

/// The inbound for it.
fn server(kind: &str, transport: Value) -> Value {
    let user = match kind {
        "trojan" => json!({ "name": "alice", "password": "secret" }),
        _ => json!({ "name": "alice", "uuid": ID }),
    };
    json!({ "type": kind, "users": [user], "transport": transport })
}

fn ws() -> Value {
    json!({ "type": "ws", "path": "/a/path", "headers": { "Host": "ws.test", "X-More": ["1", "2"] } })
}

fn ws_early_header() -> Value {
    json!({ "type": "ws", "path": "/ws", "max_early_data": 2048, "early_data_header_name": "Sec-WebSocket-Protocol" })
}

fn ws_early_path() -> Value {
    json!({ "type": "ws", "path": "/ws/", "max_early_data": 200 })
}

fn httpupgrade() -> Value {
    json!({ "type": "httpupgrade", "path": "/up", "host": "up.test" })
}

fn http() -> Value {
    json!({ "type": "http", "path": "/h", "host": ["one.test", "two.test"], "headers": { "X-More": "1" } })
}

fn quic() -> Value {
    json!({ "type": "quic" })
}

fn grpc() -> Value {
    json!({ "type": "grpc", "service_name": "a service" })
}
