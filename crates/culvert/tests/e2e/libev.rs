//! Shadowsocks with the programs that most servers ran (Debian's package `shadowsocks-libev`), its plugins as far as Debian
//! has them, and a relay between two servers.

use crate::proxy::{Proxy, STEP};
use crate::{culvert, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::client::{self, Association, Protocol, Target};
use culvert_testkit::origin::{self, Origin, Service, confirmation, fresh_seed};
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Error, Result, ensure, pattern};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PASSWORD: &str = "s3cret:\u{fc}~~?";

/// What both have. (Names of AEADs in libev are those of the config.)
const METHODS: [&str; 5] =
    ["aes-128-gcm", "aes-192-gcm", "aes-256-gcm", "chacha20-ietf-poly1305", "xchacha20-ietf-poly1305"];

#[test]
fn client_of_culvert_uses_a_server_of_libev() {
    run(async {
        let Some(server) = installed("ss-server") else { return Ok(()) };
        let origin = Origin::start().await?;
        for method in METHODS {
            let port = Port::reserve()?;
            let _server = serve(&server, &port, method, &["-u"]).await?;
            let proxy = Proxy::start(&culvert(), json!({ "type": "mixed" }), outbound(&port, method)).await?;
            carries_everything(proxy.address(), &origin, true)
                .await
                .map_err(|error| in_method(method, error))?;
        }
        Ok(())
    });
}

#[test]
fn client_of_libev_uses_a_server_of_culvert() {
    run(async {
        let Some(client) = installed("ss-local") else { return Ok(()) };
        let origin = Origin::start().await?;
        for method in METHODS {
            let inbound = json!({ "type": "shadowsocks", "method": method, "password": PASSWORD });
            let proxy = Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await?;
            let port = Port::reserve()?;
            let (local, remote) = (port.number().to_string(), proxy.address().port().to_string());
            let arguments = [
                "-s",
                "127.0.0.1",
                "-p",
                &remote,
                "-b",
                "127.0.0.1",
                "-l",
                &local,
                "-k",
                PASSWORD,
                "-m",
                method,
                "-u",
            ];
            let _client = started(client.launch(arguments).spawn()?, &port).await?;
            carries_everything(port.v4(), &origin, true).await.map_err(|error| in_method(method, error))?;
        }
        Ok(())
    });
}

#[test]
fn streams_pass_a_server_of_simple_obfs() {
    run(async {
        let (Some(server), Some(_)) = (installed("ss-server"), installed("obfs-server")) else {
            return Ok(());
        };
        let origin = Origin::start().await?;
        for mode in ["http", "tls"] {
            let (port, method) = (Port::reserve()?, "chacha20-ietf-poly1305");
            let options = format!("obfs={mode}");
            let plugin = ["--plugin", "obfs-server", "--plugin-opts", &options];
            let _server = serve(&server, &port, method, &plugin).await?;
            let mut outbound = outbound(&port, method);
            outbound["plugin"] = "obfs-local".into();
            outbound["plugin_opts"] = format!("obfs={mode};obfs-host=example.com").into();
            let proxy = Proxy::start(&culvert(), json!({ "type": "mixed" }), outbound).await?;
            carries_everything(proxy.address(), &origin, false)
                .await
                .map_err(|error| in_method(mode, error))?;
        }
        Ok(())
    });
}

#[test]
fn streams_pass_a_server_of_v2ray_plugin() {
    run(async {
        let (Some(server), Some(_)) = (installed("ss-server"), installed("ss-v2ray-plugin")) else {
            return Ok(());
        };
        let (origin, certificate) = (Origin::start().await?, Certificate::for_name("site.test"));
        let directory = TempDir::new()?;
        let file = directory.write("cert.pem", &certificate.certificate)?;
        let key = directory.write("key.pem", &certificate.key)?;
        let (file, key) = (file.display(), key.display());
        for (theirs, ours) in [
            ("server".to_owned(), String::new()),
            ("server;mux=0;path=/some/where".to_owned(), "mux=0;path=/some/where".to_owned()),
            (
                format!("server;tls;host=site.test;cert={file};key={key}"),
                format!("tls;host=site.test;cert={file}"),
            ),
        ] {
            let (port, method) = (Port::reserve()?, "aes-256-gcm");
            let plugin = ["--plugin", "ss-v2ray-plugin", "--plugin-opts", &theirs];
            let _server = serve(&server, &port, method, &plugin).await?;
            let mut outbound = outbound(&port, method);
            outbound["plugin"] = "v2ray-plugin".into();
            outbound["plugin_opts"] = ours.clone().into();
            let proxy = Proxy::start(&culvert(), json!({ "type": "mixed" }), outbound).await?;
            carries_everything(proxy.address(), &origin, false)
                .await
                .map_err(|error| in_method(&ours, error))?;
        }
        Ok(())
    });
}

/// Not a row of the table: where the server speaks first, the reference program's client never says where it wants to go.
#[test]
fn nothing_is_sealed_with_none() {
    run(async {
        let Some(sing_box) = Program::sing_box() else { return Ok(()) };
        let origin = Origin::start().await?;
        let (a, b) = (&culvert(), &sing_box);
        for [client, server] in [[a, a], [a, b], [b, a]] {
            let options = || json!({ "type": "shadowsocks", "method": "none" });
            let server = Proxy::start(server, options(), json!({ "type": "direct" })).await?;
            let mut outbound = options();
            outbound["server"] = "127.0.0.1".into();
            outbound["server_port"] = server.address().port().into();
            let client = Proxy::start(client, json!({ "type": "mixed" }), outbound).await?;
            carries_everything(client.address(), &origin, true).await?;
        }
        Ok(())
    });
}

/// A client, a relay and a server, all the program itself or, in turn, the reference program.
#[test]
fn a_relay_stands_between_client_and_server() {
    const RELAY: &str = "AAECAwQFBgcICQoLDA0ODw==";
    const SERVER: &str = "EBESExQVFhcYGRobHB0eHw==";
    const USER: &str = "ICEiIyQlJicoKSorLC0uLw==";
    run(async {
        let Some(sing_box) = Program::sing_box() else { return Ok(()) };
        let origin = Origin::start().await?;
        let (a, b) = (&culvert(), &sing_box);
        for [client, relay, server] in [[a, a, a], [b, a, b], [a, b, a], [b, a, a]] {
            let options = |password: &str| json!({ "type": "shadowsocks", "method": "2022-blake3-aes-128-gcm", "password": password });
            let (mut inbound, direct) = (options(SERVER), json!({ "type": "direct" }));
            inbound["users"] = json!([{ "name": "user", "password": USER }]);
            let server = Proxy::start(server, inbound, direct.clone()).await?;
            let mut inbound = options(RELAY);
            inbound["destinations"] = json!([{
                "name": "next", "password": SERVER, "server": "127.0.0.1", "server_port": server.address().port()
            }]);
            let relay = Proxy::start(relay, inbound, direct).await?;
            let mut outbound = options(&format!("{RELAY}:{SERVER}:{USER}"));
            outbound["server"] = "127.0.0.1".into();
            outbound["server_port"] = relay.address().port().into();
            let client = Proxy::start(client, json!({ "type": "mixed" }), outbound).await?;
            carries_everything(client.address(), &origin, true).await?;
        }
        Ok(())
    });
}

fn outbound(server: &Port, method: &str) -> Value {
    json!({
        "type": "shadowsocks", "server": "127.0.0.1", "server_port": server.number(),
        "method": method, "password": PASSWORD
    })
}

fn in_method(method: &str, error: Error) -> Error {
    format!("{method}: {error}").into()
}

fn installed(name: &'static str) -> Option<Program> {
    let found = Path::new("/usr/bin").join(name).exists();
    if !found {
        skip(&format!("{name} is not installed"));
    }
    found.then(|| Program::named(name))
}

async fn serve(server: &Program, port: &Port, method: &str, more: &[&str]) -> Result<Peer> {
    let number = port.number().to_string();
    let arguments = ["-s", "127.0.0.1", "-p", &number, "-k", PASSWORD, "-m", method];
    started(server.launch(arguments.into_iter().chain(more.iter().copied())).spawn()?, port).await
}

/// Waits until it listens: what it says of that depends on its plugin.
async fn started(mut peer: Peer, port: &Port) -> Result<Peer> {
    let deadline = tokio::time::Instant::now() + STEP;
    while TcpStream::connect(port.v4()).await.is_err() {
        let late = tokio::time::Instant::now() > deadline || !peer.is_running();
        ensure!(!late, "{} does not listen:\n{}", peer.program().name(), peer.log().text());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    Ok(peer)
}

/// Streams and datagrams through a SOCKS proxy.
async fn carries_everything(proxy: SocketAddr, origin: &Origin, datagrams: bool) -> Result {
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
        let received =
            tokio::time::timeout(STEP, origin::take(&mut stream, seed, Some(LENGTH), |_| ())).await??;
        ensure!(received == LENGTH, "{received} bytes came from {target}");
        let seed = fresh_seed();
        let mut stream = ask(Service::Take { seed, length: LENGTH }).await?;
        origin::send(&mut stream, seed, LENGTH, |_| ()).await?;
        let mut verdict = vec![0; confirmation(LENGTH).len()];
        tokio::time::timeout(STEP, stream.read_exact(&mut verdict)).await??;
        ensure!(verdict == confirmation(LENGTH).as_bytes(), "{target} says {verdict:?}");
    }
    if !datagrams {
        return Ok(());
    }
    // One association per family: there are servers that open a socket for one only.
    for target in &targets[..2] {
        let association = Association::open(proxy, None).await?;
        for size in [1, 512, 1300] {
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
