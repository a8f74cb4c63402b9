//! Trojan with the program that the protocol comes from (Debian's package `trojan`), and what strangers see.

use crate::proxy::{Proxy, STEP, read_to_end};
use crate::site::USER;
use crate::{culvert, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::client::{self, Association, Protocol, Target};
use culvert_testkit::origin::{self, Origin, Service, confirmation, fresh_seed};
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::upstream::{Step, Upstream};
use culvert_testkit::{Error, Result, ensure, pattern};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn client_of_culvert_uses_a_server_of_trojan() {
    run(async {
        let (Some(trojan), certificate) = (trojan(), Certificate::for_name("site.test")) else {
            return Ok(());
        };
        let origin = Origin::start().await?;
        let (port, directory) = (Port::reserve()?, TempDir::new()?);
        let ssl = json!({
            "cert": directory.write("cert.pem", &certificate.certificate)?,
            "key": directory.write("key.pem", &certificate.key)?,
            "alpn": ["http/1.1"], "session_ticket": false, "reuse_session": true
        });
        let config = json!({
            "run_type": "server", "local_addr": "127.0.0.1", "local_port": port.number(),
            "remote_addr": "127.0.0.1", "remote_port": 1, "password": ["other", USER.1], "log_level": 0, "ssl": ssl,
            "mysql": { "enabled": false }
        });
        let _server = started(&trojan, &directory, &config).await?;
        let outbound = json!({
            "type": "trojan", "server": "127.0.0.1", "server_port": port.number(), "password": USER.1,
            "tls": { "enabled": true, "server_name": "site.test", "certificate": [certificate.certificate] }
        });
        let proxy = Proxy::start(&culvert(), json!({ "type": "mixed" }), outbound).await?;
        carries_everything(proxy.address(), &origin).await
    });
}

#[test]
fn client_of_trojan_uses_a_server_of_culvert() {
    run(async {
        let (Some(trojan), certificate) = (trojan(), Certificate::for_name("site.test")) else {
            return Ok(());
        };
        let origin = Origin::start().await?;
        let inbound = json!({
            "type": "trojan", "users": [{ "name": "a", "password": "other" }, { "password": USER.1 }],
            "tls": { "enabled": true, "certificate": [certificate.certificate], "key": [certificate.key] }
        });
        let proxy = Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await?;
        let (port, directory) = (Port::reserve()?, TempDir::new()?);
        let ssl = json!({
            "verify": true, "verify_hostname": true, "sni": "site.test", "alpn": ["h2", "http/1.1"],
            "cert": directory.write("cert.pem", &certificate.certificate)?
        });
        let config = json!({
            "run_type": "client", "local_addr": "127.0.0.1", "local_port": port.number(),
            "remote_addr": "127.0.0.1", "remote_port": proxy.address().port(), "password": [USER.1],
            "log_level": 0, "ssl": ssl
        });
        let _client = started(&trojan, &directory, &config).await?;
        carries_everything(port.v4(), &origin).await
    });
}

/// A stranger gets, byte for byte and end for end, what the fallback says; the fallback gets what the stranger said.
#[test]
fn strangers_see_the_fallback_and_nothing_else() {
    run(async {
        let answer = b"HTTP/1.1 400 Bad Request\r\nServer: site\r\n\r\n".to_vec();
        let probes: [&[u8]; 4] =
            [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"0123456789abcdef\n", &[b'0'; 60]];
        for probe in probes {
            let site = Upstream::start([Step::Read(probe.len()), Step::Write(answer.clone())]).await?;
            let inbound = json!({
                "type": "trojan", "users": [{ "password": USER.1 }],
                "fallback": { "server": "127.0.0.1", "server_port": site.address().port() }
            });
            let proxy = Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await?;
            let mut stranger = proxy.send(&probe[..4]).await?;
            stranger.write_all(&probe[4..]).await?;
            let seen = read_to_end(&mut stranger).await?;
            ensure!(seen == answer, "{probe:?} is answered {seen:?}");
            let got = site.received().await?;
            ensure!(got == probe, "{probe:?} reaches the site as {got:?}");
        }
        Ok(())
    });
}

fn trojan() -> Option<Program> {
    let found = Path::new("/usr/bin/trojan").exists();
    if !found {
        skip("trojan is not installed");
    }
    found.then(|| Program::named("trojan"))
}

async fn started(program: &Program, directory: &TempDir, config: &Value) -> Result<Peer> {
    directory.write("trojan.json", serde_json::to_vec(config)?)?;
    let peer = program.launch(["-c", "trojan.json"]).directory(directory.path()).spawn()?;
    peer.log().line(|line| line.contains("started at")).await?;
    Ok(peer)
}

/// Streams and datagrams through a SOCKS proxy.
async fn carries_everything(proxy: SocketAddr, origin: &Origin) -> Result {
    const LENGTH: u64 = 8 << 20;
    let targets = [
        origin.port().v4().into(),
        origin.port().v6().into(),
        Target::name("localhost", origin.port().number()),
    ];
    for target in &targets {
        let ask = async |service: Service| {
            let mut stream = client::connect(Protocol::Socks5, proxy, None, target).await?;
            stream.write_all(service.line().as_bytes()).await?;
            Ok::<_, Error>(stream)
        };
        let seed = fresh_seed();
        let mut stream = ask(Service::Send { seed, length: LENGTH }).await?;
        let received = origin::take(&mut stream, seed, Some(LENGTH), |_| ()).await?;
        ensure!(received == LENGTH, "{received} bytes came from {target}");
        let seed = fresh_seed();
        let mut stream = ask(Service::Take { seed, length: LENGTH }).await?;
        origin::send(&mut stream, seed, LENGTH, |_| ()).await?;
        let mut verdict = vec![0; confirmation(LENGTH).len()];
        tokio::time::timeout(STEP, stream.read_exact(&mut verdict)).await??;
        ensure!(verdict == confirmation(LENGTH).as_bytes(), "{target} says {verdict:?}");
    }
    // An association of trojan's server reaches one family of addresses only.
    for target in &targets[..2] {
        let association = Association::open(proxy, None).await?;
        for size in [1, 512, 1400, 4000, 7000] {
            let data = pattern::bytes(size as u64, size);
            association.send_to(target, &data).await?;
            let answer = tokio::time::timeout(STEP, association.recv()).await;
            let lost = |_| Error::from(format!("{size} bytes to {target} are lost"));
            let (from, answer) = answer.map_err(lost)??;
            ensure!(&from == target && answer == data, "{size} bytes to {target} come back from {from}");
        }
    }
    Ok(())
}
