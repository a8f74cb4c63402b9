//! Protocols inside REALITY between two Culverts, since the sing-box at hand is built without it, and what strangers get.

use crate::shadowtls::visit;
use crate::site::{ALL, Site};
use crate::vision::echo;
use crate::{culvert, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::origin::Origin;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const PRIVATE_KEY: &str = "INakUD_p8PibNNX5pH23SBx8aRdO688ZMThcekVbbVk";
pub(crate) const PUBLIC_KEY: &str = "xjRCb4UbezciBCZSAE41_7by990VpABzYTJWRhcsknw";
pub(crate) const SHORT_ID: &str = "0123456789abcdef";
pub(crate) const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
const FLOW: &str = "xtls-rprx-vision";

#[test]
fn vless_with_vision() {
    run(inside(
        json!({ "type": "vless", "uuid": ID, "flow": FLOW }),
        json!({ "type": "vless", "users": [{ "name": "alice", "uuid": ID, "flow": FLOW }] }),
        "chrome",
    ));
}

#[test]
fn anytls() {
    run(inside(
        json!({ "type": "anytls", "password": "secret" }),
        json!({ "type": "anytls", "users": [{ "name": "alice", "password": "secret" }] }),
        "firefox",
    ));
}

#[test]
fn trojan_by_grpc() {
    let transport = json!({ "type": "grpc", "service_name": "cave" });
    run(inside(
        json!({ "type": "trojan", "password": "secret", "transport": transport }),
        json!({ "type": "trojan", "users": [{ "name": "alice", "password": "secret" }], "transport": transport }),
        "safari",
    ));
}

async fn inside(mut outbound: Value, mut inbound: Value, browser: &str) -> Result {
    let certificate = Certificate::for_name("site.test");
    let (site, serving) = echo(&certificate, &rustls::version::TLS13).await?;
    let (entry, between) = (Port::reserve()?, Port::reserve()?);
    for (key, value) in
        [("tag", json!("in")), ("listen", json!("127.0.0.1")), ("listen_port", json!(between.number()))]
    {
        inbound[key] = value;
    }
    inbound["tls"] = server_tls(site.port());
    for (key, value) in
        [("tag", json!("out")), ("server", json!("127.0.0.1")), ("server_port", json!(between.number()))]
    {
        outbound[key] = value;
    }
    outbound["tls"] = json!({
        "enabled": true, "server_name": "site.test", "utls": { "enabled": true, "fingerprint": browser },
        "reality": { "enabled": true, "public_key": PUBLIC_KEY, "short_id": SHORT_ID }
    });
    let log = json!({ "level": "debug", "timestamp": false });
    let direct = json!({ "type": "direct", "tag": "direct" });
    let server =
        culvert().serve(&json!({ "log": log, "inbounds": [inbound], "outbounds": [direct] })).await?;
    let way_in =
        json!({ "type": "mixed", "tag": "entry", "listen": "127.0.0.1", "listen_port": entry.number() });
    let client =
        culvert().serve(&json!({ "log": log, "inbounds": [way_in], "outbounds": [outbound] })).await?;
    visit(between.v4(), "site.test", &certificate, &rustls::version::TLS13)
        .await
        .map_err(|error| format!("a visitor: {error}"))?;
    crate::checks::all(Site::running(Origin::start().await?, entry, vec![client, server], ALL)?).await?;
    serving.abort();
    Ok(())
}

fn server_tls(site: u16) -> Value {
    json!({
        "enabled": true, "server_name": "site.test",
        "reality": {
            "enabled": true, "handshake": { "server": "127.0.0.1", "server_port": site },
            "private_key": PRIVATE_KEY, "short_id": [SHORT_ID], "max_time_difference": "1m"
        }
    })
}

#[test]
fn without_the_target_a_connection_is_reset() {
    run(async {
        let nowhere = Port::reserve()?;
        let mut inbound = json!({ "type": "vless", "users": [{ "uuid": ID }] });
        inbound["tls"] = server_tls(nowhere.number());
        let proxy = crate::proxy::Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await?;
        // As fast as that it may have been reset.
        let Ok(mut stream) = TcpStream::connect(proxy.address()).await else { return Ok(()) };
        // It may be gone already.
        let _ = stream.write_all(b"\x16\x03\x01").await;
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0; 16])).await?;
        ensure!(read.is_err(), "expected a reset, got {read:?}");
        Ok(())
    });
}
