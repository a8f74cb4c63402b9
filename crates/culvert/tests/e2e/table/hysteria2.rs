//! Hysteria 2.

use super::*;

/// sing-box ends a stream in both directions at once; the protocol's datagrams have a limit of their own.
const CARRIES: Carries = Carries { datagram: 4096, ..ENDS_TOGETHER };

links! {
    plain: || in_tls(outbound()) => || behind_tls(inbound()), CARRIES;
    salamander: || in_tls(disguised(outbound())) => || behind_tls(disguised(inbound())), CARRIES;
}

light_links! {
    brutal: || in_tls(at_rates(outbound())) => || behind_tls(at_rates(inbound())), CARRIES;
    ports: || in_tls(hopping(outbound())) => || behind_tls(inbound()), CARRIES;
}

fn outbound() -> Value {
    json!({ "type": "hysteria2", "password": USER.1 })
}

fn inbound() -> Value {
    let (name, password) = USER;
    json!({
        // An association has no end of its own: it goes within the time that the harness gives programs to close all.
        "type": "hysteria2", "udp_timeout": "5s",
        "users": [{ "name": "bob", "password": "b" }, { "name": name, "password": password }]
    })
}

fn disguised(mut options: Value) -> Value {
    options["obfs"] = json!({ "type": "salamander", "password": "cry_me_a_r1ver" });
    options
}

fn at_rates(mut options: Value) -> Value {
    (options["up_mbps"], options["down_mbps"]) = (800.into(), 800.into());
    options
}

fn hopping(mut outbound: Value) -> Value {
    outbound["server_ports"] = json!([]);
    outbound["hop_interval"] = "5s".into();
    outbound
}
