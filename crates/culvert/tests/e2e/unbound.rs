//! DNS servers of every kind against Debian's unbound, asked by dig: the answers that sing-box has from the same server.

use std::process::Command;

use culvert_testkit::certificate::Certificate;
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};

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
        let mut server =
            json!({ "type": kind, "tag": "up", "server": "127.0.0.1", "server_port": port.number() });
        if matches!(kind, "tls" | "https") {
            let certificate: Vec<_> = self.certificate.certificate.lines().collect();
            server["tls"] = json!({ "enabled": true, "server_name": "ns.test", "certificate": certificate });
        }
        server
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
        for kind in ["udp", "tcp", "tls", "https"] {
            let mut answers = Vec::new();
            for program in [&ours, &theirs] {
                let port = Port::reserve()?;
                let config = json!({
                    "log": { "level": "debug" },
                    "dns": { "servers": [unbound.server(kind)] },
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
