//! The same protocols in the configuration formats of other programs.
//!
//! What a program cannot do, or not with the same settings, it takes no part in. Passwords and keys are those of
//! [`protocols`](crate::protocols).

use serde_json::{Value, json};

use crate::identity::{Identity, SERVER_NAME};
use crate::programs::{End, Kind};
use crate::protocols::{KEY_16, KEY_32, PASSWORD, Setup, UUID, VISION};

/// One end's configuration file, or `None` where a program of this kind takes no part in the protocol.
pub(crate) fn config(kind: Kind, protocol: &str, end: End, setup: &Setup) -> Option<Value> {
    match kind {
        Kind::V2ray => v2ray(protocol, end, setup),
        Kind::SsLibev => shadowsocks(aead_method(protocol)?, setup),
        Kind::SsRust => shadowsocks(aead_method(protocol).or_else(|| method_2022(protocol))?, setup),
        Kind::Trojan => (protocol == "trojan-tls").then(|| trojan(end, setup)),
        Kind::Hysteria => hysteria(protocol, end, setup),
        Kind::SingBox | Kind::HevSocks5Tunnel | Kind::Tun2proxy | Kind::Tun2socks | Kind::WireguardGo => None,
    }
}

fn aead_method(protocol: &str) -> Option<(&'static str, &'static str)> {
    let method = match protocol {
        "ss-aes-128-gcm" => "aes-128-gcm",
        "ss-aes-192-gcm" => "aes-192-gcm",
        "ss-aes-256-gcm" => "aes-256-gcm",
        "ss-chacha20" => "chacha20-ietf-poly1305",
        _ => return None,
    };
    Some((method, PASSWORD))
}

fn method_2022(protocol: &str) -> Option<(&'static str, &'static str)> {
    match protocol {
        "ss2022-aes-128-gcm" => Some(("2022-blake3-aes-128-gcm", KEY_16)),
        "ss2022-aes-256-gcm" => Some(("2022-blake3-aes-256-gcm", KEY_32)),
        "ss2022-chacha20" => Some(("2022-blake3-chacha20-poly1305", KEY_32)),
        _ => None,
    }
}

/// Both ends read the same file.
fn shadowsocks((method, password): (&str, &str), setup: &Setup) -> Option<Value> {
    Some(json!({
        "server": setup.server, "server_port": setup.server_port,
        "local_address": "127.0.0.1", "local_port": setup.entry_port,
        "method": method, "password": password, "mode": "tcp_only", "timeout": 300, "no_delay": true,
    }))
}

fn trojan(end: End, setup: &Setup) -> Value {
    let Identity { certificate, key } = &setup.identity;
    match end {
        End::Client => json!({
            "run_type": "client", "local_addr": "127.0.0.1", "local_port": setup.entry_port,
            "remote_addr": setup.server, "remote_port": setup.server_port, "password": [PASSWORD], "log_level": 2,
            "ssl": {
                "verify": true, "verify_hostname": true, "cert": certificate, "sni": SERVER_NAME,
                "cipher": "ECDHE-ECDSA-AES128-GCM-SHA256", "cipher_tls13": "TLS_AES_128_GCM_SHA256",
                "alpn": ["h2", "http/1.1"], "reuse_session": true, "session_ticket": false, "curves": "",
            },
            "tcp": { "no_delay": true, "keep_alive": true, "reuse_port": false, "fast_open": false, "fast_open_qlen": 20 },
        }),
        End::Server => json!({
            "run_type": "server", "local_addr": setup.server, "local_port": setup.server_port,
            "remote_addr": "127.0.0.1", "remote_port": 9, "password": [PASSWORD], "log_level": 2,
            "ssl": {
                "cert": certificate, "key": key, "key_password": "", "cipher": "ECDHE-ECDSA-AES128-GCM-SHA256",
                "cipher_tls13": "TLS_AES_128_GCM_SHA256", "prefer_server_cipher": true, "alpn": ["http/1.1"],
                "reuse_session": true, "session_ticket": false, "session_timeout": 600, "plain_http_response": "",
                "curves": "", "dhparam": "",
            },
            "tcp": {
                "prefer_ipv4": true, "no_delay": true, "keep_alive": true, "reuse_port": false, "fast_open": false,
                "fast_open_qlen": 20,
            },
            "mysql": { "enabled": false },
        }),
    }
}

fn hysteria(protocol: &str, end: End, setup: &Setup) -> Option<Value> {
    let obfs = match protocol {
        "hysteria2" => None,
        "hysteria2-salamander" => {
            Some(json!({ "type": "salamander", "salamander": { "password": PASSWORD } }))
        }
        _ => return None,
    };
    let Identity { certificate, key } = &setup.identity;
    let mut config = match end {
        End::Client => json!({
            "server": format!("{}:{}", setup.server, setup.server_port), "auth": PASSWORD,
            "tls": { "sni": SERVER_NAME, "ca": certificate },
            "socks5": { "listen": format!("127.0.0.1:{}", setup.entry_port) },
        }),
        End::Server => json!({
            "listen": format!("{}:{}", setup.server, setup.server_port),
            "tls": { "cert": certificate, "key": key },
            "auth": { "type": "password", "password": PASSWORD },
        }),
    };
    if let Some(obfs) = obfs {
        config["obfs"] = obfs;
    }
    Some(config)
}

fn v2ray(protocol: &str, end: End, setup: &Setup) -> Option<Value> {
    let (user, stream) = v2ray_parts(protocol, end, setup)?;
    let (inbound, outbound) = match end {
        End::Client => {
            let inbound = json!({
                "listen": "127.0.0.1", "port": setup.entry_port, "protocol": "socks",
                "settings": { "auth": "noauth", "udp": false },
            });
            let (address, port) = (setup.server, setup.server_port);
            let (name, settings) = match user {
                User::Socks => ("socks", json!({ "servers": [{ "address": address, "port": port }] })),
                User::Shadowsocks(method) => {
                    let server = json!({
                        "address": address, "port": port, "method": method, "password": PASSWORD,
                    });
                    ("shadowsocks", json!({ "servers": [server] }))
                }
                User::Trojan => {
                    let server = json!({ "address": address, "port": port, "password": PASSWORD });
                    ("trojan", json!({ "servers": [server] }))
                }
                User::Vmess(security) => {
                    let user = json!({ "id": UUID, "alterId": 0, "security": security });
                    ("vmess", json!({ "vnext": [{ "address": address, "port": port, "users": [user] }] }))
                }
                User::Vless(flow) => {
                    let user = json!({ "id": UUID, "encryption": "none", "flow": flow });
                    ("vless", json!({ "vnext": [{ "address": address, "port": port, "users": [user] }] }))
                }
            };
            (inbound, json!({ "protocol": name, "settings": settings, "streamSettings": stream }))
        }
        End::Server => {
            let (name, settings) = match user {
                User::Socks => ("socks", json!({ "auth": "noauth", "udp": false })),
                User::Shadowsocks(method) => {
                    ("shadowsocks", json!({ "method": method, "password": PASSWORD, "network": "tcp" }))
                }
                User::Trojan => ("trojan", json!({ "clients": [{ "password": PASSWORD }] })),
                User::Vmess(_) => ("vmess", json!({ "clients": [{ "id": UUID, "alterId": 0 }] })),
                User::Vless(flow) => {
                    ("vless", json!({ "clients": [{ "id": UUID, "flow": flow }], "decryption": "none" }))
                }
            };
            let inbound = json!({
                "listen": setup.server, "port": setup.server_port, "protocol": name, "settings": settings,
                "streamSettings": stream,
            });
            // Without that Xray (commit 4e87f596 of May 2026 and later) leads nobody who comes by a proxy protocol to this machine.
            let anywhere = json!({ "finalRules": [{ "action": "allow" }] });
            (inbound, json!({ "protocol": "freedom", "settings": anywhere }))
        }
    };
    Some(json!({ "log": { "loglevel": "warning" }, "inbounds": [inbound], "outbounds": [outbound] }))
}

enum User {
    Socks,
    Shadowsocks(&'static str),
    Trojan,
    Vmess(&'static str),
    Vless(&'static str),
}

/// The user's part and `streamSettings`.
fn v2ray_parts(protocol: &str, end: End, setup: &Setup) -> Option<(User, Value)> {
    let user = match protocol {
        "socks-hop" => User::Socks,
        "ss-aes-128-gcm" => User::Shadowsocks("aes-128-gcm"),
        "ss-aes-256-gcm" => User::Shadowsocks("aes-256-gcm"),
        "ss-chacha20" => User::Shadowsocks("chacha20-poly1305"),
        "vmess-aes-128-gcm" => User::Vmess("aes-128-gcm"),
        "vmess-chacha20" => User::Vmess("chacha20-poly1305"),
        "vmess-tls" => User::Vmess("zero"),
        "trojan-tls" => User::Trojan,
        "vless-vision" | "vless-vision-inner-tls" => User::Vless(VISION),
        "vless" | "vless-tls" | "vless-ws" | "vless-ws-tls" | "vless-grpc-tls" => User::Vless(""),
        _ => return None,
    };
    let mut stream = json!({ "network": "tcp" });
    if protocol.contains("-ws") {
        stream = json!({ "network": "ws", "wsSettings": { "path": "/bench" } });
    } else if protocol.contains("-grpc") {
        stream = json!({ "network": "grpc", "grpcSettings": { "serviceName": "bench" } });
    }
    if protocol.ends_with("-tls") || matches!(user, User::Vless(VISION)) {
        stream["security"] = json!("tls");
        let Identity { certificate, key } = &setup.identity;
        stream["tlsSettings"] = match end {
            End::Client => json!({
                "serverName": SERVER_NAME, "disableSystemRoot": true,
                "certificates": [{ "usage": "verify", "certificateFile": certificate }],
            }),
            End::Server => json!({ "certificates": [{ "certificateFile": certificate, "keyFile": key }] }),
        };
    }
    Some((user, stream))
}
