//! Protocols over QUIC, what no row of the tables shows: servers that go and come back, programs that sleep, networks that
//! change, and a foreign HTTP/3 client at the masquerade.

use std::process::Command;
use std::time::{Duration, Instant};

use culvert_testkit::client::{self, Association, Protocol, Target};
use culvert_testkit::origin::{self, Origin, Service, fresh_seed};
use culvert_testkit::peer::{Peer, Program};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure, pattern};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::table::{behind_tls, in_tls};
use crate::tun::{alone, ip};
use crate::{Side, culvert, run};

/// Longest a step may take.
const STEP: Duration = Duration::from_secs(20);
/// In which time a server that is there again is used again, on a machine that has more to do.
const RECOVERY: Duration = Duration::from_secs(20);

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

/// Each protocol: the client's options, and the server's.
fn protocols() -> [(&'static str, Value, Value); 4] {
    let hysteria2 = json!({ "type": "hysteria2", "password": "pw" });
    let tuic = json!({ "type": "tuic", "uuid": ID, "password": "pw" });
    let hysteria = json!({ "type": "hysteria", "up_mbps": 200, "down_mbps": 200, "auth_str": "pw" });
    let vless = json!({ "type": "vless", "uuid": ID, "transport": { "type": "quic" } });
    [
        ("hysteria2", hysteria2, json!({ "type": "hysteria2", "users": [{ "password": "pw" }] })),
        ("tuic", tuic, json!({ "type": "tuic", "users": [{ "uuid": ID, "password": "pw" }] })),
        (
            "hysteria",
            hysteria,
            json!({ "type": "hysteria", "up_mbps": 200, "down_mbps": 200, "users": [{ "auth_str": "pw" }] }),
        ),
        (
            "quic transport",
            vless,
            json!({ "type": "vless", "users": [{ "uuid": ID }], "transport": { "type": "quic" } }),
        ),
    ]
}

/// A client, and the place of its server.
struct Pair {
    origin: Origin,
    client: Peer,
    entry: Port,
    server: Program,
    config: Value,
}

impl Pair {
    async fn start(server: Program, mut outbound: Value, mut inbound: Value) -> Result<Self> {
        let (origin, entry, between) = (Origin::start().await?, Port::reserve()?, Port::reserve()?);
        inbound["listen"] = "127.0.0.1".into();
        inbound["listen_port"] = between.number().into();
        outbound["server"] = "127.0.0.1".into();
        outbound["server_port"] = between.number().into();
        let of_client = json!({
            "log": { "level": "debug" },
            "inbounds": [{ "type": "mixed", "listen": "127.0.0.1", "listen_port": entry.number() }],
            "outbounds": [in_tls(outbound)]
        });
        let config = json!({
            "log": { "level": "debug" },
            "inbounds": [behind_tls(inbound)], "outbounds": [{ "type": "direct" }]
        });
        let client = culvert().serve(&of_client).await?;
        Ok(Self { origin, client, entry, server, config })
    }

    async fn serve(&self) -> Result<Peer> {
        self.server.serve(&self.config).await
    }

    /// A stream on which bytes have gone to and fro.
    async fn open(&self) -> Result<TcpStream> {
        let target: Target = self.origin.port().v4().into();
        let dialling = client::connect(Protocol::Socks5, self.entry.v4(), None, &target);
        let mut stream = tokio::time::timeout(STEP, dialling).await.map_err(|_| "no answer to a dial")??;
        let (seed, length) = (fresh_seed(), 10_000);
        stream.write_all(Service::Send { seed, length }.line().as_bytes()).await?;
        let taken = tokio::time::timeout(STEP, origin::take(&mut stream, seed, Some(length), |_| ()));
        taken.await.map_err(|_| "nothing comes")??;
        Ok(stream)
    }

    /// One that holds: it waits for the origin.
    async fn hold(&self) -> Result<TcpStream> {
        let target: Target = self.origin.port().v4().into();
        let mut stream = client::connect(Protocol::Socks5, self.entry.v4(), None, &target).await?;
        stream.write_all(Service::Watch { seed: fresh_seed() }.line().as_bytes()).await?;
        tokio::time::timeout(STEP, stream.read_exact(&mut [0; 6])).await??;
        Ok(stream)
    }

    /// Until streams go through again, and how long that took. A server that knows nothing of its past says nothing to what
    /// is sent to it; who waits for an answer in vain tries again.
    async fn recovered(&self) -> Result<Duration> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let began = Instant::now();
        loop {
            match tokio::time::timeout(PATIENCE, self.open()).await {
                Ok(Ok(_)) => return Ok(began.elapsed()),
                _ if began.elapsed() > STEP => return Err("no stream goes through again".into()),
                _ => {}
            }
        }
    }
}

#[test]
fn servers_that_come_back_are_used_again_by_clients_that_hold_streams() {
    run(async {
        for server in [Side::Culvert, Side::SingBox] {
            let Some(server) = server.program() else { return Ok(()) };
            for (name, outbound, inbound) in protocols() {
                let pair = Pair::start(server.clone(), outbound, inbound).await?;
                let mut first = pair.serve().await?;
                let mut held = Vec::new();
                for _ in 0..20 {
                    held.push(pair.hold().await.map_err(|error| format!("{name}: {error}"))?);
                }
                first.signal("KILL").await?;
                first.ended().await?;
                let _second = pair.serve().await?;
                let took = pair.recovered().await.map_err(|error| format!("{name}: {error}"))?;
                ensure!(took < RECOVERY, "{name}: {} is used again after {took:?}", pair.server.name());
                // What the one before carried is over, and is told so.
                for mut stream in held {
                    let mut byte = [0];
                    let ended = tokio::time::timeout(Duration::from_secs(40), stream.read(&mut byte));
                    let ended = ended.await.map_err(|_| format!("{name}: a stream of before hangs"))?;
                    ensure!(matches!(ended, Ok(0) | Err(_)), "{name}: {ended:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_client_that_slept_for_long_goes_on() {
    run(async {
        let mut pairs = Vec::new();
        for (name, outbound, inbound) in protocols() {
            let pair = Pair::start(culvert(), outbound, inbound).await?;
            let server = pair.serve().await?;
            pair.open().await.map_err(|error| format!("{name}: {error}"))?;
            pair.client.signal("STOP").await?;
            pairs.push((name, pair, server));
        }
        // Longer than both ends wait for each other: what is tested is the time itself.
        tokio::time::sleep(Duration::from_secs(45)).await;
        for (_, pair, _) in &pairs {
            pair.client.signal("CONT").await?;
        }
        for (name, pair, _server) in &pairs {
            let took = pair.recovered().await.map_err(|error| format!("{name}: {error}"))?;
            ensure!(took < RECOVERY, "{name} goes on after {took:?}");
        }
        Ok(())
    });
}

/// Local ports of the UDP sockets that a process has open.
fn udp_ports(process: u32) -> Vec<String> {
    // A socket for both families is in the second one.
    let table: String = ["udp", "udp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(format!("/proc/{process}/net/{table}")).ok())
        .collect();
    let own: Vec<_> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 9 && own.contains(&format!("socket:[{}]", row[9])))
        .map(|row| row[1].to_owned())
        .collect()
}

#[test]
fn streams_go_on_when_the_network_has_changed() {
    alone("quic::streams_go_on_when_the_network_has_changed", || async {
        ip("link add one type veth peer name one-far");
        ip("addr add 192.0.2.7/24 dev one");
        ip("link set one-far up");
        ip("link set one up");
        ip("route add default via 192.0.2.1 dev one");
        let mut pairs = Vec::new();
        for (name, outbound, inbound) in protocols().into_iter().take(3) {
            let pair = Pair::start(culvert(), outbound, inbound).await?;
            let server = pair.serve().await?;
            let target = pair.origin.port().v4().into();
            let mut stream = client::connect(Protocol::Socks5, pair.entry.v4(), None, &target).await?;
            stream.write_all(Service::Echo.line().as_bytes()).await?;
            pairs.push((name, pair, server, stream));
        }
        let before: Vec<_> = pairs.iter().map(|(_, pair, ..)| udp_ports(pair.client.process())).collect();
        ip("link add two type veth peer name two-far");
        ip("addr add 198.51.100.7/24 dev two");
        ip("link set two-far up");
        ip("link set two up");
        ip("route replace default via 198.51.100.1 dev two");
        for ((name, pair, _, stream), before) in pairs.iter_mut().zip(before) {
            let began = Instant::now();
            while udp_ports(pair.client.process()).iter().all(|port| before.contains(port)) {
                ensure!(began.elapsed() < STEP, "{name}: there is no other socket");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let sent = pattern::bytes(7, 200_000);
            let mut got = vec![0; sent.len()];
            let (mut reader, mut writer) = stream.split();
            let both = async { tokio::try_join!(writer.write_all(&sent), reader.read_exact(&mut got)) };
            tokio::time::timeout(STEP, both).await.map_err(|_| format!("{name}: the stream hangs"))??;
            ensure!(got == sent, "{name}: other bytes come back");
        }
        Ok(())
    });
}

#[test]
fn datagrams_in_spells_all_arrive() {
    /// Datagrams of 1,200 bytes, in spells of a millisecond's worth of 20,000 a second.
    const SPELL: usize = 20;
    const SPELLS: usize = 500;
    run(async {
        let [hysteria2, tuic, ..] = protocols();
        let with = |name: &'static str,
                    (_, mut outbound, inbound): (&str, Value, Value),
                    option: &str,
                    value: Value| {
            outbound[option] = value;
            (name, outbound, inbound)
        };
        let streams = with("tuic, streams", tuic.clone(), "udp_relay_mode", "quic".into());
        let stream = with("tuic, one stream", tuic.clone(), "udp_over_stream", true.into());
        for (name, outbound, inbound) in [hysteria2, tuic, streams, stream] {
            let pair = Pair::start(culvert(), outbound, inbound).await?;
            let _server = pair.serve().await?;
            let association = Association::open(pair.entry.v4(), None).await?;
            let target: Target = pair.origin.port().v4().into();
            let data = pattern::bytes(1, 1200);
            association.send_to(&target, &data).await?;
            tokio::time::timeout(STEP, association.recv()).await??;
            let mut came = 0;
            for _ in 0..SPELLS {
                for _ in 0..SPELL {
                    association.send_to(&target, &data).await?;
                }
                // The origin echoes; what has come is counted before more is sent, so that it is not this test that is full.
                for _ in 0..SPELL {
                    let one = tokio::time::timeout(Duration::from_secs(5), association.recv()).await;
                    ensure!(one.is_ok(), "{name}: {came} datagrams came, then none");
                    came += 1;
                }
            }
            ensure!(came == SPELL * SPELLS, "{name}: {came}");
        }
        Ok(())
    });
}

/// N11: who sniffs behind the tunnel sees whole datagrams.
#[test]
fn datagrams_that_were_sent_in_pieces_are_sniffed_whole() {
    /// Longer than a packet on a path that is not known yet.
    const LENGTH: usize = 4_000;
    run(async {
        let text = include_str!("../../../culvert-rules/src/sniff/vectors/rfc9001-a2.hex");
        let digits: Vec<u8> =
            text.lines().filter(|line| !line.starts_with('#')).flat_map(str::bytes).collect();
        let byte = |two: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?);
        let mut initial = digits.chunks(2).map(byte).collect::<Result<Vec<_>>>()?;
        ensure!(initial.len() == 1200, "{} bytes", initial.len());
        initial.resize(LENGTH, 0);
        let [hysteria2, tuic, hysteria, _] = protocols();
        for (name, outbound, inbound) in [hysteria2, tuic, hysteria] {
            let mut pair = Pair::start(culvert(), outbound, inbound).await?;
            pair.config["route"] = json!({
                "rules": [
                    { "action": "sniff" },
                    { "protocol": "quic", "domain": "example.com", "outbound": "out" },
                    { "action": "reject", "method": "drop" }
                ]
            });
            pair.config["outbounds"] = json!([{ "type": "direct", "tag": "out" }]);
            let _server = pair.serve().await?;
            let association = Association::open(pair.entry.v4(), None).await?;
            let target: Target = pair.origin.port().v4().into();
            association.send_to(&target, &initial).await?;
            let came = tokio::time::timeout(STEP, association.recv()).await;
            let (_, got) = came.map_err(|_| format!("{name}: not let through"))??;
            ensure!(got == initial, "{name}: other bytes come back");
        }
        Ok(())
    });
}

/// A Python that has aioquic, if the tests were given one.
pub(crate) fn aioquic() -> Option<String> {
    let python = std::env::var("AIOQUIC_PYTHON").ok();
    if python.is_none() {
        eprintln!("skipped: AIOQUIC_PYTHON names no Python with aioquic");
    }
    python
}

#[test]
fn a_foreign_client_of_http_3_sees_a_site() {
    run(async {
        let Some(python) = aioquic() else { return Ok(()) };
        let directory = TempDir::new()?;
        directory.write("index.html", "<h1>a site</h1>")?;
        let big = "line\n".repeat(100_000);
        directory.write("big.txt", &big)?;
        directory.write("h3_client.py", include_str!("h3_client.py"))?;
        let port = Port::reserve()?;
        let _server = culvert()
            .serve(&json!({
                "inbounds": [behind_tls(json!({
                    "type": "hysteria2", "listen": "127.0.0.1", "listen_port": port.number(),
                    "users": [{ "password": "pw" }],
                    "masquerade": { "type": "file", "directory": directory.path() }
                }))],
                "outbounds": [{ "type": "direct" }]
            }))
            .await?;
        let ask = |arguments: &[&str]| {
            let script = directory.path().join("h3_client.py");
            let mut command = Command::new(&python);
            command.arg(script).arg(port.number().to_string()).args(arguments);
            async move {
                let output = tokio::task::spawn_blocking(move || command.output()).await??;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "{said}");
                let text = String::from_utf8(output.stdout)?;
                let (head, body) = text.split_once("\n\n").ok_or("no head")?;
                Result::<_>::Ok((head.to_owned(), body.to_owned()))
            }
        };
        let (head, body) = ask(&["GET", "/"]).await?;
        ensure!(head.starts_with("200\n") && head.contains("content-type: text/html"), "{head}");
        ensure!(body == "<h1>a site</h1>", "{body}");
        let (head, body) = ask(&["GET", "/big.txt"]).await?;
        ensure!(head.starts_with("200\n") && body == big, "{head}, {} bytes", body.len());
        let (head, _) = ask(&["GET", "/nothing"]).await?;
        ensure!(head.starts_with("404\n"), "{head}");
        // Whoever tries the door of the proxy without its key is told what any path that is not there is.
        let (head, _) = ask(&["POST", "/auth", "x"]).await?;
        ensure!(head.starts_with("404\n") || head.starts_with("405\n"), "{head}");
        Ok(())
    });
}
