//! The tables. A row is all it takes to have a way in, or a protocol between two programs, checked in every respect.

use crate::site::{ALL, Carries, ENDS_TOGETHER, Entry, Link, TCP, TCP_V4, USER, alone, linked};
use crate::{Side, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::client::Protocol::{Http, Socks4, Socks4a, Socks5};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Ways in: each program alone, with the test's own client before it and the origin behind it.
macro_rules! entries {
    ($($name:ident: $entry:expr;)+) => {
        mod entry {
            use super::*;
            $(mod $name {
                use super::*;
                #[test]
                fn culvert() {
                    run(alone($entry, Side::Culvert));
                }
                #[test]
                fn sing_box() {
                    run(alone($entry, Side::SingBox));
                }
            })+
        }
    };
}

/// Links: a client and a server with a protocol between them, in all pairings; two sing-boxes prove the harness.
macro_rules! links {
    ($($name:ident: $outbound:expr => $inbound:expr, $carries:expr;)+) => {
        mod link {
            use super::*;
            $(mod $name {
                use super::*;
                fn link() -> Link {
                    Link { outbound: $outbound, inbound: $inbound, carries: $carries, light: false }
                }
                #[test]
                fn culvert_to_culvert() {
                    run(linked(link(), Side::Culvert, Side::Culvert));
                }
                #[test]
                fn culvert_to_sing_box() {
                    run(linked(link(), Side::Culvert, Side::SingBox));
                }
                #[test]
                fn sing_box_to_culvert() {
                    run(linked(link(), Side::SingBox, Side::Culvert));
                }
                #[test]
                fn sing_box_to_sing_box() {
                    run(linked(link(), Side::SingBox, Side::SingBox));
                }
            })+
        }
    };
}

/// Combinations of layers that other rows check in full: each in one test, in the three pairings with Culvert.
macro_rules! light_links {
    ($($name:ident: $outbound:expr => $inbound:expr, $carries:expr;)+) => {
        mod light_link {
            use super::*;
            $(#[test]
            fn $name() {
                let link = Link { outbound: $outbound, inbound: $inbound, carries: $carries, light: true };
                run(async {
                    for (client, server) in [
                        (Side::Culvert, Side::SingBox),
                        (Side::SingBox, Side::Culvert),
                        (Side::Culvert, Side::Culvert),
                    ] {
                        let outcome = linked(link, client, server).await;
                        outcome.map_err(|error| format!("{client:?} to {server:?}: {error}"))?;
                    }
                    Ok(())
                });
            })+
        }
    };
}

/// The same where sing-box cannot be the server.
macro_rules! served_links {
    ($($name:ident: $outbound:expr => $inbound:expr, $carries:expr;)+) => {
        mod served_link {
            use super::*;
            $(#[test]
            fn $name() {
                let link = Link { outbound: $outbound, inbound: $inbound, carries: $carries, light: true };
                run(async {
                    for (client, server) in [
                        (Side::SingBox, Side::Culvert),
                        (Side::Culvert, Side::Culvert),
                    ] {
                        let outcome = linked(link, client, server).await;
                        outcome.map_err(|error| format!("{client:?} to {server:?}: {error}"))?;
                    }
                    Ok(())
                });
            })+
        }
    };
}

mod anytls;
mod hysteria;
mod hysteria2;
mod mux;
mod shadowsocks;
mod transports;
mod trojan;
mod tuic;
mod vless;
mod vmess;

entries! {
    direct: Entry::Direct;
    socks4: Entry::new("socks", Socks4);
    socks4a: Entry::new("socks", Socks4a);
    socks4a_users: Entry::with_users("socks", Socks4a);
    socks5: Entry::new("socks", Socks5);
    socks5_users: Entry::with_users("socks", Socks5);
    http: Entry::new("http", Http);
    http_users: Entry::with_users("http", Http);
    mixed_socks4: Entry::new("mixed", Socks4);
    mixed_socks4a: Entry::new("mixed", Socks4a);
    mixed_socks5: Entry::new("mixed", Socks5);
    mixed_socks5_users: Entry::with_users("mixed", Socks5);
    mixed_http: Entry::new("mixed", Http);
    mixed_http_users: Entry::with_users("mixed", Http);
}

links! {
    socks4: || json!({ "type": "socks", "version": "4" }) => || json!({ "type": "socks" }), TCP_V4;
    socks4a: || json!({ "type": "socks", "version": "4a" }) => || json!({ "type": "socks" }), TCP_V4;
    socks5: || json!({ "type": "socks" }) => || json!({ "type": "socks" }), ALL;
    socks5_uot: || json!({ "type": "socks", "udp_over_tcp": true }) => || json!({ "type": "socks" }), ALL;
    socks5_uot_1: || json!({ "type": "socks", "udp_over_tcp": { "enabled": true, "version": 1 } })
        => || json!({ "type": "mixed" }), ALL;
    socks5_users: || with_user(json!({ "type": "socks", "version": "5" })) => || for_users("socks"), ALL;
    http: || json!({ "type": "http" }) => || json!({ "type": "http" }), TCP;
    http_users: || with_user(json!({ "type": "http" })) => || for_users("http"), TCP;
    mixed_socks5: || json!({ "type": "socks" }) => || json!({ "type": "mixed" }), ALL;
    http_tls: || in_tls(json!({ "type": "http" })) => || behind_tls(json!({ "type": "http" })), TCP;
    mixed_http: || with_user(json!({ "type": "http" })) => || for_users("mixed"), TCP;
}

light_links! {
    mixed_http_tls: || in_tls(with_user(json!({ "type": "http" }))) => || behind_tls(for_users("mixed")), TCP;
}

/// The certificate of all servers here, which is its own authority.
static CERTIFICATE: LazyLock<Certificate> = LazyLock::new(|| Certificate::for_name("site.test"));

/// `outbound` inside TLS.
pub(crate) fn in_tls(mut outbound: Value) -> Value {
    outbound["tls"] =
        json!({ "enabled": true, "server_name": "site.test", "certificate": [CERTIFICATE.certificate] });
    outbound
}

/// `inbound` inside TLS.
pub(crate) fn behind_tls(mut inbound: Value) -> Value {
    inbound["tls"] =
        json!({ "enabled": true, "certificate": [CERTIFICATE.certificate], "key": [CERTIFICATE.key] });
    inbound
}

/// `options` with `more` of them.
fn with(mut options: Value, more: Value) -> Value {
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
        options.extend(more);
    }
    options
}

/// An outbound that logs in as the known user.
fn with_user(mut outbound: Value) -> Value {
    (outbound["username"], outbound["password"]) = (USER.0.into(), USER.1.into());
    outbound
}

/// An inbound that knows the user and another.
fn for_users(kind: &str) -> Value {
    let (username, password) = USER;
    json!({
        "type": kind,
        "users": [{ "username": "bob", "password": "b" }, { "username": username, "password": password }]
    })
}
