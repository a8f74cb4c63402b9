//! WireGuard endpoints: Culvert's with sing-box's, both ways, and with wireguard-go, which is a device of the system.
//!
//! Between two proxies each has a `mixed` inbound whose connections go through the tunnel; the other one is asked by its
//! address in the tunnel, and takes them to its own loopback, where the origin is.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use culvert_path::relay::Relay;
use culvert_path::{Loss, Shape};
use culvert_testkit::client::{self, Association, ClientError, Protocol, Target};
use culvert_testkit::origin::{self, BANNER, End, Origin, Service, confirmation, fresh_seed};
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure, pattern};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use crate::tun::{alone, ip};
use crate::{Side, culvert, run};

/// Longest a step may take.
const STEP: Duration = Duration::from_secs(20);

// The keys of the vectors: private 00.., 20.., shared 40...
pub(crate) const SERVER: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub(crate) const CLIENT: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
const SHARED: &str = "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=";

fn public(private: &str) -> String {
    let hex = match private {
        SERVER => "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f",
        _ => "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254",
    };
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    client::base64(&(0..64).step_by(2).map(digits).collect::<Vec<_>>())
}

/// One of the two proxies.
pub(crate) fn config(own: &str, mixed: &Port, endpoint: Value) -> Value {
    let (other, addresses, theirs) = match own {
        SERVER => (CLIENT, ["10.9.0.1/32", "fd09::1/128"], ["10.9.0.2/32", "fd09::2/128"]),
        _ => (SERVER, ["10.9.0.2/32", "fd09::2/128"], ["10.9.0.0/24", "fd09::/64"]),
    };
    let mut peer = json!({ "public_key": public(other), "pre_shared_key": SHARED, "allowed_ips": theirs });
    let mut all = json!({
        "type": "wireguard", "tag": "wg", "address": addresses, "private_key": own
    });
    for (key, value) in endpoint.as_object().unwrap() {
        match key.strip_prefix("peer_") {
            Some(key) => peer[key] = value.clone(),
            None => all[key] = value.clone(),
        }
    }
    all["peers"] = json!([peer]);
    json!({
        "log": { "level": "debug" },
        "endpoints": [all],
        "inbounds": [{ "type": "mixed", "tag": "in", "listen": "127.0.0.1", "listen_port": mixed.number() }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [{ "inbound": "wg", "outbound": "out" }], "final": "wg" }
    })
}

/// sing-box holds its endpoints still where the system has no default route, as in a network that a test has for itself.
pub(crate) fn default_route() {
    if ip("-o link show").lines().count() > 1 {
        return; // it is the machine's
    }
    ip("link add ext type veth peer name ext2");
    ip("addr add 192.0.2.7/24 dev ext");
    ip("link set ext2 up");
    ip("link set ext up");
    ip("route add default via 192.0.2.1 dev ext");
}

/// Two proxies with a tunnel between them.
struct Pair {
    origin: Origin,
    client: (Peer, Port),
    server: (Peer, Port),
    _path: Option<Relay>,
}

impl Pair {
    async fn start(client: Side, server: Side, of_client: Value, of_server: Value) -> Result<Option<Self>> {
        Self::along(client, server, of_client, of_server, None).await
    }

    /// With a path of this shape between them, both ways.
    async fn along(
        client: Side,
        server: Side,
        of_client: Value,
        of_server: Value,
        shape: Option<Shape>,
    ) -> Result<Option<Self>> {
        let (Some(client), Some(server)) = (client.program(), server.program()) else { return Ok(None) };
        default_route();
        let origin = Origin::start().await?;
        let (outer, at_client, at_server) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let mut endpoint = json!({ "listen_port": outer.number() });
        merge(&mut endpoint, of_server);
        let server = server.serve(&config(SERVER, &at_server, endpoint)).await?;
        let path = shape.map(|shape| Relay::open(outer.v4(), [shape.clone(), shape], 7)).transpose()?;
        let port = path.as_ref().map_or(outer.number(), |path| path.address().port());
        let mut endpoint = json!({ "peer_address": "127.0.0.1", "peer_port": port });
        merge(&mut endpoint, of_client);
        let client = client.serve(&config(CLIENT, &at_client, endpoint)).await?;
        Ok(Some(Self { origin, client: (client, at_client), server: (server, at_server), _path: path }))
    }

    /// The way through the tunnel from one end to the other.
    fn way(&self, from: &Port, host: &str) -> Way<'_> {
        Way { origin: &self.origin, proxy: from.v4(), host: host.parse().unwrap() }
    }

    /// The client asks the server, and then the server the client, by both families.
    fn ways(&self) -> [Way<'_>; 4] {
        let (client, server) = (&self.client.1, &self.server.1);
        [
            self.way(client, "10.9.0.1"),
            self.way(client, "fd09::1"),
            self.way(server, "10.9.0.2"),
            self.way(server, "fd09::2"),
        ]
    }
}

fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

/// How one end of the tunnel reaches the other.
#[derive(Clone, Copy)]
struct Way<'a> {
    origin: &'a Origin,
    proxy: SocketAddr,
    host: IpAddr,
}

impl Way<'_> {
    async fn dial(&self, port: u16) -> std::result::Result<TcpStream, ClientError> {
        let target = SocketAddr::new(self.host, port).into();
        let dialing = client::connect(Protocol::Socks5, self.proxy, None, &target);
        tokio::time::timeout(STEP, dialing).await.map_err(io::Error::from)?
    }

    async fn ask(&self, service: Service) -> Result<TcpStream> {
        let mut stream = self.dial(self.origin.port().number()).await?;
        stream.write_all(service.line().as_bytes()).await?;
        Ok(stream)
    }

    async fn bulk(&self, length: u64) -> Result {
        let seed = fresh_seed();
        let mut stream = self.ask(Service::Send { seed, length }).await?;
        let received = origin::take(&mut stream, seed, None, |_| ()).await?;
        ensure!(received == length, "{received} of {length} bytes came down");
        stream.shutdown().await?;
        let record = self.origin.ended(seed).await?;
        ensure!(record.end == Some(End::Clean), "at the origin: {record:?}");
        let seed = fresh_seed();
        let mut stream = self.ask(Service::Take { seed, length }).await?;
        origin::send(&mut stream, seed, length, |_| ()).await?;
        let mut line = String::new();
        tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
        ensure!(line == confirmation(length), "the origin answered {line:?}");
        Ok(())
    }

    /// `resets` says that both ends tell a break from an end; sing-box does not.
    async fn ends(&self, resets: bool) -> Result {
        for length in [0, 1, 3 << 20] {
            let seed = fresh_seed();
            let mut stream = self.ask(Service::Digest { seed }).await?;
            origin::send(&mut stream, seed, length, |_| ()).await?;
            stream.shutdown().await?;
            let mut line = String::new();
            tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
            ensure!(line == confirmation(length), "after a half-close the origin answered {line:?}");
        }
        let seed = fresh_seed();
        let mut stream = self.ask(Service::Watch { seed }).await?;
        stream.read_exact(&mut [0; 6]).await?;
        origin::reset(stream)?;
        let record = self.origin.ended(seed).await?;
        ensure!(record.end == Some(End::Reset) || !resets, "a reset arrives as {record:?}");
        let mut stream = self.dial(self.origin.banner_port().number()).await?;
        let mut said = vec![0; BANNER.len()];
        tokio::time::timeout(STEP, stream.read_exact(&mut said)).await??;
        ensure!(said == BANNER, "{said:?}");
        Ok(())
    }

    async fn datagrams(&self) -> Result {
        let association = Association::open(self.proxy, None).await?;
        let target: Target = SocketAddr::new(self.host, self.origin.port().number()).into();
        for size in [1usize, 100, 1200, 1380, 1381, 4000, 9000] {
            let sent = pattern::bytes(size as u64, size);
            association.send_to(&target, &sent).await?;
            let (from, got) = tokio::time::timeout(STEP, association.recv())
                .await
                .map_err(|_| format!("{size} bytes to {target} do not come back"))??;
            ensure!(got == sent, "{size} bytes come back as {} others", got.len());
            ensure!(from == target, "they come from {from}");
        }
        Ok(())
    }

    async fn closed_port(&self) -> Result {
        let nobody = Port::reserve()?;
        let started = Instant::now();
        let refused = self.dial(nobody.number()).await;
        ensure!(refused.is_err(), "a closed port looks open");
        ensure!(started.elapsed() < Duration::from_secs(3), "refused after {:?}", started.elapsed());
        Ok(())
    }
}

/// Everything, through all ways.
fn carries_everything(client: Side, server: Side, of_client: Value, of_server: Value, length: u64) {
    run(async move {
        let Some(pair) = Pair::start(client, server, of_client, of_server).await? else { return Ok(()) };
        let of_culvert = client == Side::Culvert && server == Side::Culvert;
        for way in pair.ways() {
            let at = |step: &'static str| {
                let host = way.host;
                move |error| format!("{client:?} to {server:?}, {host}, {step}: {error}")
            };
            way.bulk(length).await.map_err(at("bulk"))?;
            way.ends(of_culvert).await.map_err(at("ends"))?;
            way.datagrams().await.map_err(at("datagrams"))?;
            // sing-box's own client answers a dial before it has connected.
            if of_culvert {
                way.closed_port().await.map_err(at("a closed port"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn two_of_culvert_carry_everything() {
    carries_everything(Side::Culvert, Side::Culvert, json!({}), json!({}), 64 << 20);
}

#[test]
fn client_of_culvert_uses_a_server_of_sing_box() {
    carries_everything(Side::Culvert, Side::SingBox, json!({}), json!({}), 32 << 20);
}

#[test]
fn client_of_sing_box_uses_a_server_of_culvert() {
    carries_everything(Side::SingBox, Side::Culvert, json!({}), json!({}), 32 << 20);
}

#[test]
fn bytes_that_were_agreed_on_and_other_mtus_are_no_matter() {
    let reserved =
        json!({ "mtu": 1280, "peer_reserved": [1, 2, 3], "peer_persistent_keepalive_interval": 1 });
    carries_everything(Side::Culvert, Side::SingBox, reserved.clone(), json!({ "mtu": 1420 }), 4 << 20);
    carries_everything(Side::SingBox, Side::Culvert, reserved, json!({ "mtu": 9000 }), 4 << 20);
}

#[test]
fn through_a_detour_and_by_name() {
    run(async {
        default_route();
        for (client, server) in [(Side::Culvert, Side::SingBox), (Side::SingBox, Side::Culvert)] {
            let (Some(client), Some(server)) = (client.program(), server.program()) else { return Ok(()) };
            let origin = Origin::start().await?;
            let (outer, relay) = (Port::reserve()?, Port::reserve()?);
            let (at_client, at_server) = (Port::reserve()?, Port::reserve()?);
            let listen = json!({ "listen_port": outer.number() });
            let _server = server.serve(&config(SERVER, &at_server, listen)).await?;
            let _relay = culvert()
                .serve(&json!({
                    "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": relay.number() }],
                    "outbounds": [{ "type": "direct" }]
                }))
                .await?;
            let by_name = json!({
                "peer_address": "peer.test", "peer_port": outer.number(), "detour": "relay",
                "domain_resolver": "names"
            });
            let mut of_client = config(CLIENT, &at_client, by_name);
            of_client["dns"] = json!({ "servers": [{ "type": "hosts", "tag": "names", "predefined": { "peer.test": "127.0.0.1" } }] });
            of_client["outbounds"].as_array_mut().unwrap().push(json!({
                "type": "socks", "tag": "relay", "server": "127.0.0.1", "server_port": relay.number()
            }));
            let _client = client.serve(&of_client).await?;
            let way = Way { origin: &origin, proxy: at_client.v4(), host: "10.9.0.1".parse()? };
            // Through a relay that loses a little, sing-box's own TCP takes up to a minute for a few megabytes, and as long
            // with a server of its own.
            let length = if client.name() == "culvert" { 4 << 20 } else { 64 << 10 };
            way.bulk(length).await.map_err(|error| format!("{}: {error}", client.name()))?;
            way.datagrams().await?;
        }
        Ok(())
    });
}

#[test]
fn many_streams_at_once() {
    run(async {
        let Some(pair) = Pair::start(Side::Culvert, Side::Culvert, json!({}), json!({})).await? else {
            return Ok(());
        };
        let pair = std::sync::Arc::new(pair);
        let mut crowd = JoinSet::new();
        for number in 0..100u64 {
            let pair = std::sync::Arc::clone(&pair);
            crowd.spawn(async move { pair.ways()[number as usize % 4].bulk(100_000 + 7 * number).await });
        }
        while let Some(outcome) = crowd.join_next().await {
            outcome??;
        }
        Ok(())
    });
}

#[test]
fn a_path_that_loses_repeats_and_reorders_is_survived() {
    let shape = Shape {
        delay: Duration::from_millis(5),
        loss: Loss::Random(0.01),
        repeat: 0.01,
        reorder: 0.02,
        late: Duration::from_millis(3),
        ..Shape::default()
    };
    run(async move {
        let (one, two) = (Side::Culvert, Side::Culvert);
        let started = Pair::along(one, two, json!({}), json!({}), Some(shape)).await?;
        let Some(pair) = started else { return Ok(()) };
        for way in pair.ways() {
            way.bulk(4 << 20).await.map_err(|error| format!("{}: {error}", way.host))?;
        }
        Ok(())
    });
}

#[test]
fn sessions_are_renewed_under_a_connection() {
    run(async {
        let mut both = JoinSet::new();
        for (client, server) in [(Side::Culvert, Side::SingBox), (Side::SingBox, Side::Culvert)] {
            let Some(pair) = Pair::start(client, server, json!({}), json!({})).await? else { return Ok(()) };
            both.spawn(async move {
                let mut stream = pair.ways()[0].dial(pair.origin.banner_port().number()).await?;
                stream.read_exact(&mut vec![0; BANNER.len()]).await?;
                // The time is what this is about: a session is two minutes old when the next one begins.
                for second in 0..130u8 {
                    stream.write_all(&[second; 100]).await?;
                    let mut back = [0; 100];
                    tokio::time::timeout(STEP, stream.read_exact(&mut back)).await??;
                    ensure!(back == [second; 100], "second {second}: other bytes come back");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                let sing_box = if client == Side::SingBox { &pair.client.0 } else { &pair.server.0 };
                let log = sing_box.log().text();
                let handshakes = log.matches("received handshake").count();
                ensure!(handshakes >= 2, "{client:?} to {server:?}: {handshakes} handshakes");
                Ok::<(), culvert_testkit::Error>(())
            });
        }
        while let Some(outcome) = both.join_next().await {
            outcome??;
        }
        Ok(())
    });
}

#[test]
fn a_peer_that_starts_anew_is_there_at_once() {
    run(async {
        let origin = Origin::start().await?;
        let (outer, at_client, at_server) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let listen = json!({ "listen_port": outer.number() });
        let _server = culvert().serve(&config(SERVER, &at_server, listen)).await?;
        let to = json!({ "peer_address": "127.0.0.1", "peer_port": outer.number() });
        for _ in 0..3 {
            let mut client = culvert().serve(&config(CLIENT, &at_client, to.clone())).await?;
            let way = Way { origin: &origin, proxy: at_client.v4(), host: "10.9.0.1".parse()? };
            way.bulk(1 << 20).await?;
            // The server has learnt where the client is, from another port each time.
            let back = Way { origin: &origin, proxy: at_server.v4(), host: "10.9.0.2".parse()? };
            back.bulk(1 << 20).await?;
            client.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn who_has_a_wrong_key_gets_nothing_and_who_asks_for_nobody_is_told() {
    run(async {
        let wrong = json!({ "peer_pre_shared_key": CLIENT });
        let Some(pair) = Pair::start(Side::Culvert, Side::Culvert, wrong, json!({})).await? else {
            return Ok(());
        };
        let refused = pair.ways()[0].dial(pair.origin.port().number()).await;
        ensure!(refused.is_err(), "somebody with a wrong key is let in");
        let nobody = pair.way(&pair.client.1, "192.0.2.1");
        let started = Instant::now();
        ensure!(nobody.dial(80).await.is_err(), "an address of nobody's");
        ensure!(started.elapsed() < Duration::from_secs(2), "after {:?}", started.elapsed());
        Ok(())
    });
}

#[test]
fn by_an_interface_of_the_system() {
    alone("wireguard::by_an_interface_of_the_system", || async {
        for server in [Side::Culvert, Side::SingBox] {
            let rules = ip("rule show") + &ip("-6 rule show");
            let system = json!({
                "system": true, "name": "wgt1", "address": ["10.9.0.2/24", "fd09::2/64"],
                "peer_persistent_keepalive_interval": 5
            });
            let Some(mut pair) = Pair::start(Side::Culvert, server, system, json!({})).await? else {
                return Ok(());
            };
            for way in &pair.ways()[..2] {
                let at = |step: &'static str| {
                    let host = way.host;
                    move |error| format!("{server:?}, {host}, {step}: {error}")
                };
                way.bulk(32 << 20).await.map_err(at("bulk"))?;
                way.ends(server == Side::Culvert).await.map_err(at("ends"))?;
                way.datagrams().await.map_err(at("datagrams"))?;
            }
            for host in ["10.9.0.2", "fd09::2"] {
                dialled(pair.server.1.v4(), host).await?;
            }
            for host in ["10.9.0.1", "fd09::1"] {
                let mut ping = Command::new("ping");
                let output = ping.args(["-c", "2", "-W", "5", "-I", "wgt1", host]).output()?;
                ensure!(output.status.success(), "{server:?}: ping {host}: {output:?}");
            }
            let status = pair.client.0.stop().await?;
            ensure!(status.code() == Some(0), "stopped with {status}");
            let after = ip("rule show") + &ip("-6 rule show");
            ensure!(after == rules, "something stays: {after}");
        }
        Ok(())
    });
}

/// wireguard-go with its device, in the namespace of the test.
struct Go {
    _program: Peer,
    _folder: TempDir,
}

impl Go {
    /// With this device, whose name counts beyond the namespace: it is that of a socket in the file system. `None`, said
    /// aloud, where it is not installed.
    async fn start(device: &str, settings: &str) -> Result<Option<Self>> {
        let there = |name: &str| {
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        if !there("wireguard-go") || !there("wg") {
            let message = "wireguard-go and wireguard-tools are not installed";
            assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "{message}");
            skip(message);
            return Ok(None);
        }
        let folder = TempDir::new()?;
        folder.write("wg.conf", settings)?;
        let program = Program::named("wireguard-go").launch(["-f", device]).spawn()?;
        let set = || Command::new("wg").args(["setconf", device]).arg(folder.path().join("wg.conf")).output();
        let started = Instant::now();
        loop {
            let output = set()?;
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(started.elapsed() < STEP, "wg setconf: {said}\n{}", program.log().text());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ip(&format!("link set {device} mtu 1420 up"));
        ip(&format!("addr add 10.9.0.2/24 dev {device}"));
        ip(&format!("-6 addr add fd09::2/64 dev {device} nodad"));
        Ok(Some(Self { _program: program, _folder: folder }))
    }
}

/// Bulk, integrity-checked, with a listener at our address in the tunnel.
async fn echoes(listener: &TcpListener, stream: TcpStream) -> Result {
    let (mut accepted, _) = tokio::time::timeout(STEP, listener.accept()).await??;
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = accepted.split();
        tokio::io::copy(&mut read, &mut write).await?;
        write.shutdown().await
    });
    let (mut read, mut write) = stream.into_split();
    let length = 8 << 20;
    let sent = pattern::bytes(7, length);
    let copy = sent.clone();
    let sending = tokio::spawn(async move {
        write.write_all(&copy).await?;
        write.shutdown().await
    });
    let mut got = Vec::new();
    tokio::time::timeout(STEP, read.read_to_end(&mut got)).await??;
    ensure!(got == sent, "{} of {length} bytes come back, or others", got.len());
    sending.await??;
    echo.await??;
    Ok(())
}

#[test]
fn wireguard_go_as_the_client() {
    alone("wireguard::wireguard_go_as_the_client", || async {
        let origin = Origin::start().await?;
        let (outer, mixed) = (Port::reserve()?, Port::reserve()?);
        let listen = json!({ "listen_port": outer.number() });
        let _server = culvert().serve(&config(SERVER, &mixed, listen)).await?;
        let settings = format!(
            "[Interface]\nPrivateKey = {CLIENT}\n[Peer]\nPublicKey = {}\nPresharedKey = {SHARED}\n\
             AllowedIPs = 10.9.0.0/24, fd09::/64\nEndpoint = 127.0.0.1:{}\n",
            public(SERVER),
            outer.number()
        );
        let Some(_go) = Go::start("wgt2", &settings).await? else { return Ok(()) };
        through_the_device(&origin, mixed.v4(), true).await
    });
}

#[test]
fn wireguard_go_as_the_server() {
    alone("wireguard::wireguard_go_as_the_server", || async {
        let origin = Origin::start().await?;
        let (outer, mixed) = (Port::reserve()?, Port::reserve()?);
        let settings = format!(
            "[Interface]\nPrivateKey = {CLIENT}\nListenPort = {}\n[Peer]\nPublicKey = {}\n\
             PresharedKey = {SHARED}\nAllowedIPs = 10.9.0.1/32, fd09::1/128\n",
            outer.number(),
            public(SERVER)
        );
        let Some(_go) = Go::start("wgt3", &settings).await? else { return Ok(()) };
        let to = json!({ "peer_address": "127.0.0.1", "peer_port": outer.number() });
        let _client = culvert().serve(&config(SERVER, &mixed, to)).await?;
        through_the_device(&origin, mixed.v4(), false).await
    });
}

/// The system's own TCP, UDP and ping on one side, Culvert on the other.
async fn through_the_device(origin: &Origin, proxy: SocketAddr, system_first: bool) -> Result {
    if !system_first {
        // Somebody has to say where he is.
        dialled(proxy, "10.9.0.2").await?;
    }
    for host in ["10.9.0.1", "fd09::1"] {
        let host: IpAddr = host.parse()?;
        let at = SocketAddr::new(host, origin.port().number());
        let dialed = tokio::time::timeout(STEP, TcpStream::connect(at)).await;
        let mut stream = dialed.map_err(|_| format!("{host} does not answer"))??;
        let (seed, length) = (fresh_seed(), 32 << 20);
        stream.write_all(Service::Send { seed, length }.line().as_bytes()).await?;
        let received = origin::take(&mut stream, seed, None, |_| ()).await?;
        ensure!(received == length, "{host}: {received} of {length} bytes came down");
        drop(stream);
        let mut stream = TcpStream::connect(at).await?;
        let seed = fresh_seed();
        stream.write_all(Service::Take { seed, length }.line().as_bytes()).await?;
        origin::send(&mut stream, seed, length, |_| ()).await?;
        let mut line = String::new();
        tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
        ensure!(line == confirmation(length), "{host}: the origin answered {line:?}");
        let local: SocketAddr = if host.is_ipv4() { "0.0.0.0:0".parse()? } else { "[::]:0".parse()? };
        let socket = UdpSocket::bind(local).await?;
        socket.connect(at).await?;
        for size in [1usize, 1000, 1392, 1393, 8000] {
            let sent = pattern::bytes(size as u64, size);
            socket.send(&sent).await?;
            let mut buffer = vec![0; 65_536];
            let length = tokio::time::timeout(STEP, socket.recv(&mut buffer))
                .await
                .map_err(|_| format!("{host}: {size} bytes do not come back"))??;
            ensure!(buffer[..length] == sent, "{host}: {size} bytes come back as others");
        }
        let nobody = Port::reserve()?;
        let refused = tokio::time::timeout(STEP, TcpStream::connect((host, nobody.number()))).await?;
        let kind = refused.map(drop).unwrap_err().kind();
        ensure!(kind == io::ErrorKind::ConnectionRefused, "{host}: a closed port: {kind:?}");
        let ping = Command::new("ping").args(["-c", "2", "-W", "5", &host.to_string()]).output();
        match ping {
            Ok(output) => ensure!(output.status.success(), "ping {host}: {output:?}"),
            Err(_) => skip("there is no ping"),
        }
    }
    for host in ["10.9.0.2", "fd09::2"] {
        dialled(proxy, host).await?;
    }
    Ok(())
}

/// A listener of the system's at an address in the tunnel, dialled from the other end.
async fn dialled(proxy: SocketAddr, host: &str) -> Result {
    let listener = TcpListener::bind((host.parse::<IpAddr>()?, 0)).await?;
    let target = listener.local_addr()?.into();
    let dialing = client::connect(Protocol::Socks5, proxy, None, &target);
    let stream = tokio::time::timeout(STEP, dialing).await.map_err(|_| format!("dial {host}"))??;
    echoes(&listener, stream).await.map_err(|error| format!("{host}: {error}").into())
}

#[test]
fn answers_come_from_whom_the_filter_lets_in() {
    run(async {
        // Of three answers, from whom was asked, from another port there, and again after that one was asked too.
        for (filtering, answered) in [
            ("endpoint_independent", [true, true, true]),
            ("address_dependent", [true, true, true]),
            ("address_and_port_dependent", [true, false, true]),
        ] {
            for mapping in ["endpoint_independent", "address_dependent"] {
                let nat = json!({ "udp_filtering": filtering, "udp_mapping": mapping });
                let Some(pair) = Pair::start(Side::Culvert, Side::Culvert, json!({}), nat).await? else {
                    return Ok(());
                };
                let (asked, other) =
                    (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
                let target = |socket: &UdpSocket| -> Result<Target> {
                    Ok(SocketAddr::new(IpAddr::from([10, 9, 0, 1]), socket.local_addr()?.port()).into())
                };
                let association = Association::open(pair.client.1.v4(), None).await?;
                let mut buffer = [0; 16];
                association.send_to(&target(&asked)?, b"asked").await?;
                let (_, client) = tokio::time::timeout(STEP, asked.recv_from(&mut buffer)).await??;
                let mut said = Vec::new();
                // What is let in by all comes last, and shows that what came before it was dropped.
                for (from, word) in [(&asked, "first"), (&other, "second"), (&asked, "last")] {
                    from.send_to(word.as_bytes(), client).await?;
                }
                while said.last().is_none_or(|(_, word)| word != b"last") {
                    said.push(tokio::time::timeout(STEP, association.recv()).await??);
                }
                association.send_to(&target(&other)?, b"other").await?;
                let (_, client) = tokio::time::timeout(STEP, other.recv_from(&mut buffer)).await??;
                other.send_to(b"third", client).await?;
                said.push(tokio::time::timeout(STEP, association.recv()).await??);
                let expected = [("first", &asked), ("second", &other), ("last", &asked), ("third", &other)];
                let keep = [answered[0], answered[1], true, answered[2]];
                let expected = expected.into_iter().zip(keep).filter(|(_, keep)| *keep);
                let expected = expected
                    .map(|((word, from), _)| Ok((target(from)?, word.as_bytes().to_vec())))
                    .collect::<Result<Vec<_>>>()?;
                ensure!(said == expected, "{filtering}, {mapping}: {said:?}");
            }
        }
        Ok(())
    });
}
