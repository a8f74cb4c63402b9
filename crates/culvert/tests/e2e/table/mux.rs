//! Multiplexing: each protocol of it inside each protocol that carries it, padded and not, with either way to share
//! connections.

use super::*;

/// smux has only ends of both directions, and no word for breaking off.
const SMUX: Carries = Carries { one_end: true, resets: false, ..ENDS_TOGETHER };

links! {
    smux: || client(vless::outbound(), "smux", shared(), false) => || server(vless::inbound(), false), SMUX;
    yamux: || client(vless::outbound(), "yamux", shared(), false) => || server(vless::inbound(), false), ENDS_TOGETHER;
}

// Only lightly: sing-box's client now and then gets stuck for good in many small requests over h2mux, also with its own server.
light_links! {
    h2mux: || client(vless::outbound(), "h2mux", shared(), false) => || server(vless::inbound(), false), ENDS_TOGETHER;
}

/// All the ways of one carrier.
macro_rules! combinations {
    ($($carrier:ident)+) => {$(
        mod $carrier {
            use super::*;
            use super::super::$carrier::{inbound, outbound};
            light_links! {
                smux_connections:
                    || client(outbound(), "smux", connections(), false) => || server(inbound(), false), SMUX;
                smux_connections_padded:
                    || client(outbound(), "smux", connections(), true) => || server(inbound(), true), SMUX;
                smux_streams:
                    || client(outbound(), "smux", streams(), false) => || server(inbound(), false), SMUX;
                smux_streams_padded:
                    || client(outbound(), "smux", streams(), true) => || server(inbound(), true), SMUX;
                yamux_connections:
                    || client(outbound(), "yamux", connections(), false) => || server(inbound(), false), ENDS_TOGETHER;
                yamux_connections_padded:
                    || client(outbound(), "yamux", connections(), true) => || server(inbound(), true), ENDS_TOGETHER;
                yamux_streams:
                    || client(outbound(), "yamux", streams(), false) => || server(inbound(), false), ENDS_TOGETHER;
                yamux_streams_padded:
                    || client(outbound(), "yamux", streams(), true) => || server(inbound(), true), ENDS_TOGETHER;
                h2mux_connections:
                    || client(outbound(), "h2mux", connections(), false) => || server(inbound(), false), ENDS_TOGETHER;
                h2mux_connections_padded:
                    || client(outbound(), "h2mux", connections(), true) => || server(inbound(), true), ENDS_TOGETHER;
                h2mux_streams:
                    || client(outbound(), "h2mux", streams(), false) => || server(inbound(), false), ENDS_TOGETHER;
                h2mux_streams_padded:
                    || client(outbound(), "h2mux", streams(), true) => || server(inbound(), true), ENDS_TOGETHER;
            }
        }
    )+};
}

mod within {
    use super::*;
    combinations! { vless trojan vmess shadowsocks }
}

/// `outbound` with its connections multiplexed.
fn client(mut outbound: Value, protocol: &str, mut options: Value, padding: bool) -> Value {
    (options["enabled"], options["protocol"], options["padding"]) =
        (true.into(), protocol.into(), padding.into());
    outbound["multiplex"] = options;
    outbound
}

/// `inbound` that takes such connections.
fn server(mut inbound: Value, padding: bool) -> Value {
    inbound["multiplex"] = json!({ "enabled": true, "padding": padding });
    inbound
}

/// All streams share one connection.
fn shared() -> Value {
    json!({ "max_connections": 1 })
}

fn connections() -> Value {
    json!({ "max_connections": 2, "min_streams": 2 })
}

fn streams() -> Value {
    json!({ "max_streams": 2 })
}

mod vless {
    use super::*;

    const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

    pub(super) fn outbound() -> Value {
        json!({ "type": "vless", "uuid": ID })
    }

    pub(super) fn inbound() -> Value {
        json!({ "type": "vless", "users": [{ "name": USER.0, "uuid": ID }] })
    }
}

mod vmess {
    use super::*;

    const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

    pub(super) fn outbound() -> Value {
        json!({ "type": "vmess", "uuid": ID, "security": "aes-128-gcm" })
    }

    pub(super) fn inbound() -> Value {
        json!({ "type": "vmess", "users": [{ "name": USER.0, "uuid": ID }] })
    }
}

mod trojan {
    use super::*;

    pub(super) fn outbound() -> Value {
        in_tls(json!({ "type": "trojan", "password": USER.1 }))
    }

    pub(super) fn inbound() -> Value {
        behind_tls(json!({ "type": "trojan", "users": [{ "name": USER.0, "password": USER.1 }] }))
    }
}

mod shadowsocks {
    use super::*;

    /// The AEAD edition: a sing-box client of the 2022 edition may read the first word of the server's yamux before it has noted
    /// what to expect in it, and then says "session shutdown".
    pub(super) fn outbound() -> Value {
        json!({ "type": "shadowsocks", "method": "aes-128-gcm", "password": USER.1 })
    }

    pub(super) fn inbound() -> Value {
        outbound()
    }
}
