//! Shadowsocks: every method, users, relays, and what may be inside.

use super::*;

use crate::site::{Carries, ENDS_TOGETHER};

const KEY_16: &str = "AAECAwQFBgcICQoLDA0ODw==";
const USER_16: &str = "EBESExQVFhcYGRobHB0eHw==";
const KEY_32: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const USER_32: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

const AEAD: Carries = Carries { forgets: false, ..ENDS_TOGETHER };
/// The reference program keeps room for padding free in its buffers.
const EDITION_2022: Carries = Carries { datagram: 15_000, ..AEAD };

links! {
    edition_2022_aes_128: || short(KEY_16) => || forgetful(short(KEY_16)), EDITION_2022;
    chacha20: || method("chacha20-ietf-poly1305", USER.1)
        => || forgetful(method("chacha20-ietf-poly1305", USER.1)), AEAD;
}

light_links! {
    aes_128: || aead() => || aead(), AEAD;
    aes_192: || method("aes-192-gcm", USER.1) => || method("aes-192-gcm", USER.1), AEAD;
    aes_256: || method("aes-256-gcm", USER.1) => || method("aes-256-gcm", USER.1), AEAD;
    xchacha20: || method("xchacha20-ietf-poly1305", USER.1) => || method("xchacha20-ietf-poly1305", USER.1), AEAD;
    users: || method("aes-128-gcm", "b") => || with_users(method("aes-128-gcm", ""), [USER.1, "b"]), AEAD;
    edition_2022_aes_256: || long(KEY_32) => || long(KEY_32), EDITION_2022;
    edition_2022_chacha20: || method("2022-blake3-chacha20-poly1305", KEY_32)
        => || method("2022-blake3-chacha20-poly1305", KEY_32), EDITION_2022;
    edition_2022_users_128: || short(&format!("{KEY_16}:{USER_16}"))
        => || with_users(short(KEY_16), ["/////////////////////w==", USER_16]), EDITION_2022;
    edition_2022_users_256: || long(&format!("{KEY_32}:{USER_32}"))
        => || with_users(long(KEY_32), [USER_32]), EDITION_2022;
    // Not in the 2022 edition: a sing-box client may read the answer to its first datagram before it has noted what to expect in
    // it, and then says "bad request salt".
    uot: || with(aead(), "udp_over_tcp", json!(true)) => || aead(), ALL;
    uot_1: || with(aead(), "udp_over_tcp", json!({ "enabled": true, "version": 1 })) => || aead(), ALL;
}

fn method(method: &str, password: &str) -> Value {
    json!({ "type": "shadowsocks", "method": method, "password": password })
}

fn aead() -> Value {
    method("aes-128-gcm", USER.1)
}

fn short(key: &str) -> Value {
    method("2022-blake3-aes-128-gcm", key)
}

fn long(key: &str) -> Value {
    method("2022-blake3-aes-256-gcm", key)
}

/// Nothing but time ends an association without a control connection.
fn forgetful(inbound: Value) -> Value {
    with(inbound, "udp_timeout", json!("2s"))
}

fn with(mut options: Value, name: &str, value: Value) -> Value {
    options[name] = value;
    options
}

fn with_users<const N: usize>(inbound: Value, passwords: [&str; N]) -> Value {
    let users = passwords.map(|password| json!({ "name": password, "password": password }));
    with(inbound, "users", json!(users.to_vec()))
}
