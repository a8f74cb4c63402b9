//! Debian's v2ray as the other end. Its configs are not ours, so its rows stand here: what Culvert is told, what v2ray is
//! told, and which of the two is the client. Both directions run the light checks.

use crate::site::{ALL, Carries, Site};
use crate::{culvert, run};
use culvert_testkit::Result;
use culvert_testkit::origin::Origin;
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use serde_json::{Value, json};
use std::path::Path;

const PROGRAM: &str = "/usr/bin/v2ray";

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

/// Another user's.
const STRANGER: &str = "c0ffee00-6324-4d53-ad4f-8cda48b30811";

/// v2ray works on datagrams in buffers of 2 KiB, headers included.
pub(crate) const V2RAY: Carries = Carries { datagram: 1_500, ..ALL };

#[test]
fn vless_to_v2ray() {
    run(to_v2ray(json!({ "type": "vless", "uuid": ID, "packet_encoding": "" }), vless_inbound(), V2RAY));
}

#[test]
fn vless_with_xudp_to_v2ray() {
    run(to_v2ray(json!({ "type": "vless", "uuid": ID }), vless_inbound(), V2RAY));
}

#[test]
fn vless_from_v2ray() {
    run(from_v2ray(vless_outbound(), vless_server(), V2RAY));
}

#[test]
fn vless_with_mux_cool_from_v2ray() {
    let mut outbound = vless_outbound();
    outbound["mux"] = json!({ "enabled": true, "concurrency": 8 });
    run(from_v2ray(outbound, vless_server(), V2RAY));
}

#[test]
fn vmess_to_v2ray() {
    run(async {
        let inbound = |alter_id: u8| {
            let clients = json!([{ "id": STRANGER, "alterId": 0 }, { "id": ID, "alterId": alter_id }]);
            json!({ "protocol": "vmess", "settings": { "clients": clients } })
        };
        for (security, alter_id, padding) in [
            ("aes-128-gcm", 0, false),
            ("aes-128-gcm", 0, true),
            ("chacha20-poly1305", 0, true),
            ("none", 0, false),
            ("aes-128-cfb", 0, false),
            ("aes-128-gcm", 4, true),
            ("aes-128-cfb", 4, false),
        ] {
            let outbound = json!({
                "type": "vmess", "uuid": ID, "security": security, "alter_id": alter_id, "global_padding": padding
            });
            let outcome = to_v2ray(outbound, inbound(alter_id), V2RAY).await;
            outcome
                .map_err(|error| format!("{security}, alter id {alter_id}, padding {padding}: {error}"))?;
        }
        Ok(())
    });
}

#[test]
fn vmess_from_v2ray() {
    run(async {
        let server = |alter_id: u8| {
            let users = json!([{ "uuid": STRANGER }, { "name": "alice", "uuid": ID, "alterId": alter_id }]);
            json!({ "type": "vmess", "users": users })
        };
        for (security, alter_id, mux) in [
            ("aes-128-gcm", 0, false),
            ("chacha20-poly1305", 0, false),
            ("none", 0, false),
            ("aes-128-gcm", 0, true),
            ("aes-128-gcm", 4, false),
            ("none", 4, true),
        ] {
            let user = json!({ "id": ID, "alterId": alter_id, "security": security });
            let outbound = json!({
                "protocol": "vmess", "settings": { "vnext": [{ "users": [user] }] },
                "mux": { "enabled": mux, "concurrency": 8 }
            });
            let outcome = from_v2ray(outbound, server(alter_id), V2RAY).await;
            outcome.map_err(|error| format!("{security}, alter id {alter_id}, mux {mux}: {error}"))?;
        }
        Ok(())
    });
}

fn vless_server() -> Value {
    json!({ "type": "vless", "users": [{ "name": "alice", "uuid": ID }] })
}

fn vless_inbound() -> Value {
    json!({ "protocol": "vless", "settings": { "clients": [{ "id": ID }], "decryption": "none" } })
}

fn vless_outbound() -> Value {
    json!({ "protocol": "vless", "settings": { "vnext": [{ "users": [{ "id": ID, "encryption": "none" }] }] } })
}

/// Culvert is the client: its `outbound`, and v2ray's `inbound`. The harness adds addresses and ports.
pub(crate) async fn to_v2ray(mut outbound: Value, mut inbound: Value, carries: Carries) -> Result {
    if !is_here() {
        return Ok(());
    }
    let (entry, between) = (Port::reserve()?, Port::reserve()?);
    (inbound["listen"], inbound["port"]) = ("127.0.0.1".into(), between.number().into());
    let server = start(&json!({ "inbounds": [inbound], "outbounds": [{ "protocol": "freedom" }] })).await?;
    (outbound["tag"], outbound["server"]) = ("out".into(), "127.0.0.1".into());
    outbound["server_port"] = between.number().into();
    let way_in =
        json!({ "type": "mixed", "tag": "entry", "listen": "127.0.0.1", "listen_port": entry.number() });
    let client = culvert()
        .serve(&json!({ "log": { "level": "debug" }, "inbounds": [way_in], "outbounds": [outbound] }))
        .await?;
    check(entry, vec![client, server], carries).await
}

/// v2ray is the client: its `outbound`, and Culvert's `inbound`. The harness adds addresses and ports, to the outbound in
/// its first `vnext`.
pub(crate) async fn from_v2ray(mut outbound: Value, mut inbound: Value, carries: Carries) -> Result {
    if !is_here() {
        return Ok(());
    }
    let (entry, between) = (Port::reserve()?, Port::reserve()?);
    (inbound["tag"], inbound["listen"]) = ("in".into(), "127.0.0.1".into());
    inbound["listen_port"] = between.number().into();
    let direct = json!({ "type": "direct", "tag": "out" });
    let server = culvert()
        .serve(&json!({ "log": { "level": "debug" }, "inbounds": [inbound], "outbounds": [direct] }))
        .await?;
    let to = &mut outbound["settings"]["vnext"][0];
    (to["address"], to["port"]) = ("127.0.0.1".into(), between.number().into());
    let way_in = json!({
        "protocol": "socks", "listen": "127.0.0.1", "port": entry.number(),
        "settings": { "auth": "noauth", "udp": true, "ip": "127.0.0.1" }
    });
    let client = start(&json!({ "inbounds": [way_in], "outbounds": [outbound] })).await?;
    check(entry, vec![client, server], carries).await
}

async fn check(entry: Port, peers: Vec<Peer>, carries: Carries) -> Result {
    let origin = Origin::start().await?;
    crate::checks::all(Site::running(origin, entry, peers, carries)?).await
}

/// Whether this machine has the program; said aloud when it lacks it.
fn is_here() -> bool {
    let here = Path::new(PROGRAM).exists();
    if !here {
        let message = "no v2ray: install Debian's package of that name";
        assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "{message}");
        skip(message);
    }
    here
}

/// Runs it and waits until it says that it has started, which it does on its standard output.
async fn start(config: &Value) -> Result<Peer> {
    let script = format!("exec {PROGRAM} -config stdin: >&2");
    let peer = Program::named("sh").launch(["-c", &script]).input(config.to_string()).spawn()?;
    peer.log().line(|line| line.contains(" started")).await?;
    Ok(peer)
}
