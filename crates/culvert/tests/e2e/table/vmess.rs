//! VMess: every way to encrypt, to frame and to carry datagrams.

use super::*;
use crate::site::{Carries, ENDS_TOGETHER};

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

/// sing-box cuts datagrams to its chunks of 15000 bytes, and the frames of mux.cool to less.
const VMESS: Carries = Carries { datagram: 14_000, ..ENDS_TOGETHER };
/// packetaddr has no names.
const NO_NAMES: Carries = Carries { names: false, ..VMESS };

links! {
    gcm: || encoded("xudp", "aes-128-gcm") => inbound, VMESS;
    tls: || in_tls(encoded("xudp", "auto")) => || behind_tls(inbound()), VMESS;
}

light_links! {
    auto: || outbound(json!({})) => inbound, VMESS;
    none: || outbound(json!({ "security": "none" })) => inbound, VMESS;
    zero: || outbound(json!({ "security": "zero" })) => inbound, VMESS;
    chacha20_poly1305: || outbound(json!({ "security": "chacha20-poly1305" })) => inbound, VMESS;
    aes_128_cfb: || outbound(json!({ "security": "aes-128-cfb" })) => inbound, VMESS;
    gcm_in_tls: || in_tls(outbound(json!({ "security": "aes-128-gcm" }))) => || behind_tls(inbound()), VMESS;
    global_padding: || outbound(json!({ "security": "aes-128-gcm", "global_padding": true })) => inbound, VMESS;
    authenticated_length: || outbound(json!({ "security": "aes-128-gcm", "authenticated_length": true }))
        => inbound, VMESS;
    chacha_both: || outbound(json!({
        "security": "chacha20-poly1305", "authenticated_length": true, "global_padding": true
    })) => inbound, VMESS;
    legacy_gcm: || outbound(json!({ "security": "aes-128-gcm", "alter_id": 1 })) => legacy, VMESS;
    legacy_cfb: || outbound(json!({ "security": "aes-128-cfb", "alter_id": 1 })) => legacy, VMESS;
    legacy_zero: || outbound(json!({ "security": "zero", "alter_id": 4 })) => legacy, VMESS;
    packetaddr: || encoded("packetaddr", "aes-128-gcm") => inbound, NO_NAMES;
    packetaddr_zero_tls: || in_tls(encoded("packetaddr", "zero")) => || behind_tls(inbound()), NO_NAMES;
    xudp_zero: || encoded("xudp", "zero") => inbound, VMESS;
    xudp_cfb: || encoded("xudp", "aes-128-cfb") => inbound, VMESS;
}

fn outbound(mut options: Value) -> Value {
    options["type"] = "vmess".into();
    options["uuid"] = ID.into();
    options
}

fn encoded(encoding: &str, security: &str) -> Value {
    outbound(json!({ "packet_encoding": encoding, "security": security }))
}

fn inbound() -> Value {
    let users = json!([{ "name": "bob", "uuid": "of another" }, { "name": "al", "uuid": ID }]);
    json!({ "type": "vmess", "users": users })
}

fn legacy() -> Value {
    let users = json!([{ "uuid": "of another", "alterId": 2 }, { "uuid": ID, "alterId": 4 }]);
    json!({ "type": "vmess", "users": users })
}
