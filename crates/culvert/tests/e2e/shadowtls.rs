//! ShadowTLS with Shadowsocks inside, against sing-box in both directions, and what strangers get.

use crate::site::{Carries, ENDS_TOGETHER, Site};
use crate::vision::{connector, echo_at};
use crate::{Side, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::origin::Origin;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Of Shadowsocks inside: the AEAD edition. A sing-box client of the 2022 edition may read the answer to its first datagram
/// before it has noted what to expect in it, and then says "bad request salt".
const METHOD: &str = "aes-128-gcm";
const PASSWORD: &str = "inside";
const CARRIES: Carries = Carries { forgets: false, ..ENDS_TOGETHER };
const PAIRINGS: [(Side, Side); 3] =
    [(Side::Culvert, Side::SingBox), (Side::SingBox, Side::Culvert), (Side::Culvert, Side::Culvert)];

#[test]
fn version_1() {
    run(all(1, &rustls::version::TLS12, json!({})));
}

#[test]
fn version_2() {
    run(all(2, &rustls::version::TLS13, json!({ "password": "secret" })));
}

#[test]
fn version_2_with_a_site_of_tls_1_2() {
    run(all(2, &rustls::version::TLS12, json!({ "password": "secret" })));
}

#[test]
fn version_3() {
    run(all(
        3,
        &rustls::version::TLS13,
        json!({ "users": [{ "name": "bob", "password": "other" }, { "password": "secret" }] }),
    ));
}

#[test]
fn version_3_strict_with_a_site_for_the_name() {
    let options = json!({ "users": [{ "password": "secret" }], "strict_mode": true, "by_name": true });
    run(all(3, &rustls::version::TLS13, options));
}

#[test]
fn version_3_with_a_site_of_tls_1_2() {
    run(all(3, &rustls::version::TLS12, json!({ "users": [{ "password": "secret" }] })));
}

/// A client of ours chooses the site by its name; a stranger does so with `all`, and with `authed` has the usual one.
#[test]
fn version_3_with_any_site() {
    run(async {
        for wildcard in ["authed", "all"] {
            let options =
                json!({ "users": [{ "password": "secret" }], "strict_mode": true, "wildcard_sni": wildcard });
            let outcome = all(3, &rustls::version::TLS13, options).await;
            outcome.map_err(|error| format!("{wildcard}: {error}"))?;
        }
        Ok(())
    });
}

/// The lightly checked ways through both programs, and strangers at Culvert's door.
async fn all(version: u8, tls: &'static rustls::SupportedProtocolVersion, options: Value) -> Result {
    for (client, server) in PAIRINGS {
        let outcome = pairing(client, server, version, tls, options.clone()).await;
        outcome.map_err(|error| format!("{client:?} to {server:?}: {error}"))?;
    }
    Ok(())
}

async fn pairing(
    client: Side,
    server: Side,
    version: u8,
    tls: &'static rustls::SupportedProtocolVersion,
    mut options: Value,
) -> Result {
    let is_ours = server == Side::Culvert;
    let (Some(client), Some(server)) = (client.program(), server.program()) else { return Ok(()) };
    // A site that is known by its name only listens where sites do.
    let wildcard = options["wildcard_sni"].as_str().map(str::to_owned);
    let (name, address) = match wildcard {
        Some(_) => ("localhost", "127.0.0.1:443"),
        None => ("site.test", "127.0.0.1:0"),
    };
    let certificate = Certificate::for_name(name);
    let (site, serving) = echo_at(address, &certificate, tls).await?;
    let (entry, between, inner) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
    // Who is let go nowhere else sees one with another certificate for the same name.
    let other = Certificate::for_name(name);
    let (usual, serving_usual) = echo_at("127.0.0.1:0", &other, tls).await?;
    let port = if wildcard.is_some() { usual.port() } else { site.port() };
    let handshake = json!({ "server": "127.0.0.1", "server_port": port });
    if options.as_object_mut().and_then(|all| all.remove("by_name")).is_some() {
        options["handshake_for_server_name"] = json!({ "site.test": handshake });
        options["handshake"] = json!({ "server": "127.0.0.1", "server_port": 1 });
    } else {
        options["handshake"] = handshake;
    }
    for (key, value) in [
        ("type", json!("shadowtls")),
        ("tag", json!("in")),
        ("version", json!(version)),
        ("listen", json!("127.0.0.1")),
        ("listen_port", json!(between.number())),
        ("detour", json!("inner")),
    ] {
        options[key] = value;
    }
    let inner = json!({
        "type": "shadowsocks", "tag": "inner", "listen": "127.0.0.1", "listen_port": inner.number(),
        "method": METHOD, "password": PASSWORD
    });
    let log = json!({ "level": "debug", "timestamp": false });
    let direct = json!({ "type": "direct", "tag": "out" });
    let config = json!({ "log": log, "inbounds": [options, inner], "outbounds": [direct] });
    let server = server.serve(&config).await?;
    let mut outbound = json!({
        "type": "shadowtls", "tag": "shadow", "server": "127.0.0.1", "server_port": between.number(),
        "version": version,
        "tls": { "enabled": true, "server_name": name, "certificate": [certificate.certificate] }
    });
    if version > 1 {
        outbound["password"] = "secret".into();
    }
    let inner = json!({
        "type": "shadowsocks", "tag": "out", "method": METHOD, "password": PASSWORD,
        "server": "127.0.0.1", "server_port": 1, "detour": "shadow", "udp_over_tcp": true
    });
    let way_in =
        json!({ "type": "mixed", "tag": "entry", "listen": "127.0.0.1", "listen_port": entry.number() });
    let client =
        client.serve(&json!({ "log": log, "inbounds": [way_in], "outbounds": [inner, outbound] })).await?;
    if is_ours && version > 1 {
        let seen = if wildcard.as_deref() == Some("authed") { &other } else { &certificate };
        visit(between.v4(), name, seen, tls).await.map_err(|error| format!("a visitor: {error}"))?;
    }
    crate::checks::all(Site::running(Origin::start().await?, entry, vec![client, server], CARRIES)?).await?;
    serving_usual.abort();
    serving.abort();
    // The next one listens at the same place.
    let _ = serving.await;
    Ok(())
}

/// Somebody who wants to see the site sees it.
pub(crate) async fn visit(
    address: std::net::SocketAddr,
    name: &'static str,
    certificate: &Certificate,
    tls: &'static rustls::SupportedProtocolVersion,
) -> Result {
    let stream = TcpStream::connect(address).await?;
    let mut stream = connector(certificate, tls)?.connect(ServerName::try_from(name)?, stream).await?;
    for round in 0..5u8 {
        let said = vec![round; 3000];
        stream.write_all(&said).await?;
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard).await?;
        ensure!(heard == said, "the site says something else in round {round}");
    }
    stream.shutdown().await?;
    ensure!(stream.read(&mut [0]).await? == 0, "there is more than the site's end");
    Ok(())
}
