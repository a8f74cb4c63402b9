//! DNS servers of every kind against Debian's unbound, asked by dig: the answers that sing-box has from the same server.
//! Over QUIC unbound stands behind aioquic.

use std::process::Command;

use culvert_testkit::certificate::Certificate;
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};

use crate::quic::aioquic;
use crate::wireguard::{self, default_route};
use crate::{Side, run};

/// A name server with a zone of its own.
struct Unbound {
    _peer: Peer,
    plain: Port,
    tls: Port,
    https: Port,
    certificate: Certificate,
}

const ZONE: [&str; 9] = [
    "a.test. 300 A 192.0.2.1",
    "a.test. 300 A 192.0.2.2",
    "a.test. 300 AAAA 2001:db8::1",
    "alias.test. 300 CNAME a.test.",
    "a.test. 60 TXT \"one\" \"two\"",
    "_x._tcp.a.test. 300 SRV 1 2 443 a.test.",
    "a.test. 300 HTTPS 1 . alpn=h2 ipv4hint=192.0.2.9",
    "zero.test. 0 A 192.0.2.3",
    "test. 300 SOA ns.test. admin.test. 1 3600 600 86400 60",
];

impl Unbound {
    async fn start() -> Result<Option<Self>> {
        let found = Command::new("unbound").arg("-V").output();
        if !found.is_ok_and(|output| output.status.success()) {
            assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "no unbound: run scripts/test");
            skip("no unbound here");
            return Ok(None);
        }
        let certificate = Certificate::for_name("ns.test");
        let directory = TempDir::new()?;
        let key = directory.write("key.pem", &certificate.key)?;
        let chain = directory.write("certificate.pem", &certificate.certificate)?;
        let [plain, tls, https] = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let mut config = format!(
            "server:\n verbosity: 1\n do-daemonize: no\n username: \"\"\n chroot: \"\"\n directory: \"{0}\"\n \
             pidfile: \"\"\n use-syslog: no\n num-threads: 1\n do-not-query-localhost: no\n \
             interface: 127.0.0.1@{1}\n interface: 127.0.0.1@{2}\n interface: 127.0.0.1@{3}\n \
             tls-port: {2}\n https-port: {3}\n tls-service-key: \"{4}\"\n tls-service-pem: \"{5}\"\n \
             access-control: 127.0.0.0/8 allow\n local-zone: \"test.\" static\n",
            directory.path().display(),
            plain.number(),
            tls.number(),
            https.number(),
            key.display(),
            chain.display()
        );
        for record in ZONE {
            config += &format!(" local-data: '{record}'\n");
        }
        for number in 0..120 {
            config += &format!(" local-data: 'big.test. 300 A 192.0.{}.{}'\n", number / 100, number % 100);
            config += &format!(" local-data: 'n{number}.test. 300 A 192.0.2.{number}'\n");
        }
        config += "remote-control:\n control-enable: no\n";
        let path = directory.write("unbound.conf", config)?;
        let path = path.display().to_string();
        let peer =
            Program::named("unbound").launch(["-d", "-c", &path]).directory(directory.path()).spawn()?;
        peer.log().line(|line| line.contains("start of service")).await?;
        // It has read all of its files by now.
        drop(directory);
        Ok(Some(Self { _peer: peer, plain, tls, https, certificate }))
    }

    /// The options of a server of this kind that is this one.
    fn server(&self, kind: &str) -> Value {
        let port = match kind {
            "tls" => &self.tls,
            "https" => &self.https,
            _ => &self.plain,
        };
        self.at(kind, port)
    }

    /// The same behind another port.
    fn at(&self, kind: &str, port: &Port) -> Value {
        let mut server =
            json!({ "type": kind, "tag": "up", "server": "127.0.0.1", "server_port": port.number() });
        if !matches!(kind, "udp" | "tcp") {
            let certificate: Vec<_> = self.certificate.certificate.lines().collect();
            server["tls"] = json!({ "enabled": true, "server_name": "ns.test", "certificate": certificate });
        }
        server
    }
}

/// A server of HTTP/3 and of DNS over QUIC before it, which is aioquic's.
struct OverQuic {
    _peer: Peer,
    port: Port,
}

impl OverQuic {
    async fn start(unbound: &Unbound) -> Result<Option<Self>> {
        let Some(python) = aioquic() else { return Ok(None) };
        let directory = TempDir::new()?;
        let script = directory.write("dns_over_quic.py", include_str!("dns_over_quic.py"))?;
        let key = directory.write("key.pem", &unbound.certificate.key)?;
        let chain = directory.write("certificate.pem", &unbound.certificate.certificate)?;
        let port = Port::reserve()?;
        let arguments = [
            python,
            script.display().to_string(),
            port.number().to_string(),
            unbound.plain.number().to_string(),
            chain.display().to_string(),
            key.display().to_string(),
        ];
        let peer = Program::named("env")
            .launch(arguments.iter().map(String::as_str))
            .directory(directory.path())
            .spawn()?;
        peer.log().line(|line| line.contains("ready")).await?;
        Ok(Some(Self { _peer: peer, port }))
    }
}

/// What dig says of a question: the status, and the records without their TTLs, sorted.
fn dig(port: &Port, question: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("dig")
        .args([
            "@127.0.0.1",
            "-p",
            &port.number().to_string(),
            "+tries=1",
            "+time=5",
            "+noidnin",
            "+noidnout",
        ])
        .args(["+noall", "+comments", "+answer", "+authority"])
        .args(question)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some((_, status)) = line.split_once("status: ") {
            lines.push(status.split(',').next().unwrap_or_default().to_owned());
        } else if !line.starts_with(';') && !line.is_empty() {
            let mut words: Vec<_> = line.split_whitespace().collect();
            if words.len() > 1 {
                words.remove(1);
            }
            lines.push(words.join(" "));
        }
    }
    lines.sort();
    ensure!(!lines.is_empty(), "{question:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(lines)
}

#[test]
fn every_kind_of_server_gives_the_answers_of_unbound() {
    run(async {
        let (Some(ours), Some(theirs)) = (Side::Culvert.program(), Side::SingBox.program()) else {
            return Ok(());
        };
        let Some(unbound) = Unbound::start().await? else { return Ok(()) };
        let questions: [&[&str]; 13] = [
            &["a.test", "A"],
            &["a.test", "AAAA"],
            &["A.TeSt", "A", "+tcp"],
            &["alias.test", "A"],
            &["a.test", "TXT"],
            &["_x._tcp.a.test", "SRV"],
            &["a.test", "TYPE65"],
            &["zero.test", "A"],
            &["none.test", "A"],
            &["zero.test", "MX"],
            &["big.test", "A"],
            &["big.test", "A", "+tcp"],
            &["big.test", "A", "+bufsize=4096"],
        ];
        let over_quic = OverQuic::start(&unbound).await?;
        for kind in ["udp", "tcp", "tls", "https", "quic", "h3"] {
            let server = match (kind, &over_quic) {
                ("quic" | "h3", Some(front)) => unbound.at(kind, &front.port),
                ("quic" | "h3", None) => continue,
                _ => unbound.server(kind),
            };
            let mut answers = Vec::new();
            for program in [&ours, &theirs] {
                let port = Port::reserve()?;
                let config = json!({
                    "log": { "level": "debug" },
                    "dns": { "servers": [server] },
                    "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number() }],
                    "route": { "rules": [{ "action": "hijack-dns" }] }
                });
                let mut peer = program.serve(&config).await?;
                let mut all = Vec::new();
                // The second round is answered from the cache.
                for round in 0..2 {
                    for question in questions {
                        let said = dig(&port, question).map_err(|error| {
                            format!(
                                "{} {kind} round {round}: {error}\n{}",
                                program.name(),
                                peer.log().tail(10)
                            )
                        })?;
                        all.push((question, said));
                    }
                }
                peer.stop().await?;
                answers.push(all);
            }
            for (our, their) in answers[0].iter().zip(&answers[1]) {
                ensure!(our == their, "{kind} {:?}\nours: {:?}\ntheirs: {:?}", our.0, our.1, their.1);
            }
            let of = |question: &[&str]| {
                answers[0]
                    .iter()
                    .find(|(asked, _)| *asked == question)
                    .map(|(_, said)| said.clone())
                    .unwrap_or_default()
            };
            ensure!(
                of(questions[0]) == ["NOERROR", "a.test. IN A 192.0.2.1", "a.test. IN A 192.0.2.2"],
                "{kind}: {:?}",
                of(questions[0])
            );
            ensure!(of(questions[8])[0] == "NXDOMAIN", "{kind}: {:?}", of(questions[8]));
            ensure!(of(questions[11]).len() == 121, "{kind}: {} records", of(questions[11]).len());
        }
        Ok(())
    });
}

#[test]
fn strangers_certificates_are_not_believed() {
    run(async {
        let Some(ours) = Side::Culvert.program() else { return Ok(()) };
        let Some(unbound) = Unbound::start().await? else { return Ok(()) };
        for kind in ["tls", "https"] {
            let port = Port::reserve()?;
            let mut server = unbound.server(kind);
            server["tls"]["certificate"] =
                json!(Certificate::for_name("ns.test").certificate.lines().collect::<Vec<_>>());
            let config = json!({
                "dns": { "servers": [server] },
                "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number() }],
                "route": { "rules": [{ "action": "hijack-dns" }] }
            });
            let mut peer = ours.serve(&config).await?;
            let said = dig(&port, &["a.test", "A"])?;
            ensure!(said == ["SERVFAIL"], "{kind}: {said:?}");
            peer.stop().await?;
        }
        Ok(())
    });
}

/// D22: the packets of QUIC that begin a connection do not fit into the tunnel at once.
#[test]
fn http_3_through_wireguard_answers_whatever_the_mtu() {
    run(async {
        let (Some(ours), Some(theirs)) = (Side::Culvert.program(), Side::SingBox.program()) else {
            return Ok(());
        };
        let Some(unbound) = Unbound::start().await? else { return Ok(()) };
        let Some(front) = OverQuic::start(&unbound).await? else { return Ok(()) };
        default_route();
        for (mtu, far) in [(1200, &ours), (1280, &theirs), (1408, &ours)] {
            let (outer, at_server) = (Port::reserve()?, Port::reserve()?);
            let listen = json!({ "listen_port": outer.number(), "mtu": mtu });
            let mut server = far.serve(&wireguard::config(wireguard::SERVER, &at_server, listen)).await?;
            let (port, at_client) = (Port::reserve()?, Port::reserve()?);
            let endpoint = json!({ "peer_address": "127.0.0.1", "peer_port": outer.number(), "mtu": mtu });
            let mut config = wireguard::config(wireguard::CLIENT, &at_client, endpoint);
            let mut up = unbound.at("h3", &front.port);
            up["server"] = "10.9.0.1".into();
            up["detour"] = "wg".into();
            config["dns"] = json!({ "servers": [up] });
            config["inbounds"] = json!([
                { "type": "direct", "tag": "dns", "listen": "127.0.0.1", "listen_port": port.number() }
            ]);
            config["route"] = json!({ "rules": [{ "action": "hijack-dns" }] });
            let mut client = ours.serve(&config).await?;
            let said = dig(&port, &["a.test", "A"])?;
            let expected = ["NOERROR", "a.test. IN A 192.0.2.1", "a.test. IN A 192.0.2.2"];
            ensure!(said == expected, "{mtu}: {said:?}\n{}", client.log().tail(10));
            ensure!(dig(&port, &["big.test", "A", "+tcp"])?.len() == 121, "{mtu}: not all records");
            client.stop().await?;
            server.stop().await?;
        }
        Ok(())
    });
}

/// U10: many questions at once, over a connection that stands for datagrams.
#[test]
fn a_hundred_questions_at_once_over_datagrams_in_a_stream() {
    run(async {
        let Some(ours) = Side::Culvert.program() else { return Ok(()) };
        let Some(unbound) = Unbound::start().await? else { return Ok(()) };
        for far in [Side::Culvert, Side::SingBox] {
            let Some(far) = far.program() else { continue };
            for version in [1, 2] {
                let (port, relay) = (Port::reserve()?, Port::reserve()?);
                let mut server = far
                    .serve(&json!({
                        "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": relay.number() }],
                        "outbounds": [{ "type": "direct" }]
                    }))
                    .await?;
                let mut up = unbound.server("udp");
                up["detour"] = "relay".into();
                let mut client = ours
                    .serve(&json!({
                        "log": { "level": "debug" },
                        "dns": { "servers": [up] },
                        "inbounds": [{ "type": "direct", "listen": "127.0.0.1", "listen_port": port.number() }],
                        "outbounds": [{
                            "type": "socks", "tag": "relay", "server": "127.0.0.1",
                            "server_port": relay.number(),
                            "udp_over_tcp": { "enabled": true, "version": version }
                        }],
                        "route": { "rules": [{ "action": "hijack-dns" }] }
                    }))
                    .await?;
                let port = std::sync::Arc::new(port);
                let mut crowd = tokio::task::JoinSet::new();
                for number in 0..100 {
                    let port = std::sync::Arc::clone(&port);
                    crowd.spawn_blocking(move || {
                        // A datagram of such a crowd may get lost on a busy machine; then it is asked for again.
                        let said = dig(&port, &[&format!("n{number}.test"), "A", "+tries=4"])?;
                        let record = format!("n{number}.test. IN A 192.0.2.{number}");
                        ensure!(said == ["NOERROR", &record], "{number}: {said:?}");
                        Result::<()>::Ok(())
                    });
                }
                while let Some(asked) = crowd.join_next().await {
                    asked?.map_err(|error| {
                        format!("{} version {version}: {error}\n{}", far.name(), client.log().tail(10))
                    })?;
                }
                client.stop().await?;
                server.stop().await?;
            }
        }
        Ok(())
    });
}
