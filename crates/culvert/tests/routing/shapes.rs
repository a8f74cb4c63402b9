//! What rules do to the payload, and what endpoints ask for: both programs the same.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::client::{Flow, PATIENCE, verdict};
use crate::exits::Exit;
use crate::single::exit;
use crate::{culvert, run};

const NAME: &str = "www.example.test";

/// The record of a ClientHello that names [`NAME`].
fn hello() -> Vec<u8> {
    let name = NAME.as_bytes();
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let list = sized(&[&[0], &sized(name)[..]].concat());
    let versions = [&[0, 43][..], &sized(&[2, 3, 4])].concat();
    let extensions = [&[0, 0][..], &sized(&list), &versions].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(sized(&extensions));
    let mut message = vec![1, 0];
    message.extend(sized(&body));
    [&[22, 3, 1][..], &sized(&message)].concat()
}

/// What a server hears of the hello in single reads, through a program with this route.
async fn heard(program: &Program, route: &Value, pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = Port::reserve()?;
    let config = json!({
        "inbounds": [{
            "type": "direct", "listen": "127.0.0.1", "listen_port": port.number(),
            "override_address": "127.0.0.1", "override_port": server.local_addr()?.port()
        }],
        "outbounds": [{ "type": "direct" }],
        "route": route
    });
    let mut peer = program.serve(&config).await?;
    let mut client = TcpStream::connect(port.v4()).await?;
    client.set_nodelay(true)?;
    let writing = async {
        for piece in pieces {
            client.write_all(piece).await?;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        client.shutdown().await
    };
    let reading = async {
        let (mut stream, _) = server.accept().await?;
        let mut reads = Vec::new();
        loop {
            let mut bytes = vec![0; 4096];
            let count = stream.read(&mut bytes).await?;
            if count == 0 {
                return std::io::Result::Ok(reads);
            }
            bytes.truncate(count);
            reads.push(bytes);
        }
    };
    let (written, reads) = timeout(PATIENCE, async { tokio::join!(writing, reading) }).await?;
    written?;
    peer.stop().await?;
    Ok(reads?)
}

/// The bodies of the records.
fn bodies(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut bodies = Vec::new();
    while let [22, 3, 1, high, low, rest @ ..] = bytes {
        let (body, behind) =
            rest.split_at_checked(u16::from_be_bytes([*high, *low]).into()).ok_or("a short record")?;
        bodies.push(body.to_vec());
        bytes = behind;
    }
    ensure!(bytes.is_empty(), "something else than records: {bytes:?}");
    Ok(bodies)
}

#[test]
fn first_tls_messages_are_taken_apart_as_rules_say() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let hello = hello();
        let sniff = json!({ "action": "sniff" });
        let options = |key: &str| json!({ "action": "route-options", key: true });
        let segments =
            json!({ "action": "route-options", "tls_fragment": true, "tls_fragment_fallback_delay": "50ms" });
        for (program, whose) in [(&ours, "ours"), (&theirs, "theirs")] {
            for sniffs in [false, true] {
                let rules = |last: &Value| {
                    let first = sniffs.then(|| sniff.clone());
                    json!({ "rules": first.into_iter().chain([last.clone()]).collect::<Vec<_>>() })
                };
                let said = |what: &str| format!("{whose}, sniffed {sniffs}: {what}");
                let reads = heard(program, &rules(&options("tls_record_fragment")), &[&hello]).await?;
                let records = bodies(&reads.concat())?;
                ensure!(records.len() > 1, "{}", said("one record"));
                ensure!(records.concat() == hello[5..], "{}", said("another message"));
                let reads = heard(program, &rules(&segments), &[&hello]).await?;
                ensure!(reads.len() > 1, "{}", said("one segment"));
                ensure!(reads.concat() == hello, "{}", said("other bytes"));
                let whole = |read: &Vec<u8>| String::from_utf8_lossy(read).contains(NAME);
                // sing-box may cut at the very beginning of the name.
                ensure!(
                    whose == "theirs" || !reads.iter().any(whole),
                    "{}",
                    said("the whole name in one segment")
                );
            }
            let plain = b"GET / HTTP/1.0\r\nHost: www.example.test\r\n\r\n";
            let rules = json!({ "rules": [options("tls_record_fragment")] });
            ensure!(heard(program, &rules, &[plain]).await?.concat() == plain, "{whose}: plain text changes");
        }
        // A hello that arrives in two halves is taken apart too.
        let (front, back) = hello.split_at(20);
        let rules = json!({ "rules": [options("tls_record_fragment")] });
        let reads = heard(&ours, &rules, &[front, back]).await?;
        ensure!(bodies(&reads.concat())?.len() > 1, "the halves came through as they were");
        Ok(())
    });
}

/// Sends a datagram through a SOCKS server, and gives what comes back: its source's port and its payload.
async fn asked(socket: &UdpSocket, relay: SocketAddr, to: SocketAddr, text: &[u8]) -> Result<(u16, Vec<u8>)> {
    let SocketAddr::V4(to) = to else { return Err("not IPv4".into()) };
    let mut packet = vec![0, 0, 0, 1];
    packet.extend(to.ip().octets());
    packet.extend(to.port().to_be_bytes());
    packet.extend(text);
    let mut answer = vec![0; 2048];
    for _ in 0..20 {
        socket.send_to(&packet, relay).await?;
        if let Ok(received) = timeout(Duration::from_millis(500), socket.recv_from(&mut answer)).await {
            let bytes = &answer[..received?.0];
            ensure!(bytes.len() > 10 && bytes[3] == 1, "{bytes:?}");
            return Ok((u16::from_be_bytes([bytes[8], bytes[9]]), bytes[10..].to_vec()));
        }
    }
    Err("no answer".into())
}

/// A server that says its name and what it was sent.
async fn echo(name: &'static str) -> Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = socket.local_addr()?;
    tokio::spawn(async move {
        let mut bytes = [0; 2048];
        while let Ok((count, from)) = socket.recv_from(&mut bytes).await {
            let _ = socket.send_to(&[name.as_bytes(), &bytes[..count]].concat(), from).await;
        }
    });
    Ok(address)
}

#[test]
fn connected_datagrams_go_to_the_first_target_only() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let (one, other) = (echo("one ").await?, echo("other ").await?);
        for (program, whose) in [(&ours, "ours"), (&theirs, "theirs")] {
            for connect in [false, true] {
                let port = Port::reserve()?;
                let mut config = json!({
                    "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": port.number() }],
                    "outbounds": [{ "type": "direct" }]
                });
                if connect {
                    config["route"] =
                        json!({ "rules": [{ "action": "route-options", "udp_connect": true }] });
                }
                let mut peer = program.serve(&config).await?;
                let mut control = TcpStream::connect(port.v4()).await?;
                control.write_all(&[5, 1, 0]).await?;
                control.read_exact(&mut [0; 2]).await?;
                control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
                let mut reply = [0; 10];
                control.read_exact(&mut reply).await?;
                let relay = (Ipv4Addr::LOCALHOST, u16::from_be_bytes([reply[8], reply[9]])).into();
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let first = asked(&socket, relay, one, b"a").await?;
                ensure!(first == (one.port(), b"one a".to_vec()), "{whose}: {first:?}");
                let second = asked(&socket, relay, other, b"b").await?;
                let expected = if connect {
                    (one.port(), b"one b".to_vec())
                } else {
                    (other.port(), b"other b".to_vec())
                };
                ensure!(second == expected, "{whose}, connected {connect}: {second:?}");
                peer.stop().await?;
            }
        }
        Ok(())
    });
}

#[test]
fn endpoints_are_given_what_they_prefer() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        // Keys of RFC 7748 section 6.1.
        let (own, peer) =
            ("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=", "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=");
        for (program, whose) in [(&ours, "ours"), (&theirs, "theirs")] {
            let port = Port::reserve()?;
            let config = json!({
                "dns": {
                    "servers": [{ "type": "hosts", "predefined": { "in.test": "10.9.0.7", "out.test": "192.0.2.7" } }]
                },
                "endpoints": [{
                    "type": "wireguard", "tag": "wg", "address": ["10.9.0.2/24"], "private_key": own,
                    "peers": [{
                        "address": "127.0.0.1", "port": 9, "public_key": peer,
                        "allowed_ips": ["10.9.0.0/24", "fd09::/64"]
                    }]
                }],
                "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": port.number() }],
                "outbounds": [exit("a", &a), exit("b", &b)],
                "route": { "rules": [
                    { "domain_suffix": "test", "action": "resolve" },
                    { "preferred_by": ["wg"], "outbound": "b" }
                ] }
            });
            let mut peer = program.serve(&config).await?;
            for (host, exit) in [
                ("10.9.0.1", "b"),
                ("10.9.1.1", "a"),
                ("fd09::1", "b"),
                ("fd09:1::1", "a"),
                ("in.test", "b"),
                ("out.test", "a"),
                ("in.example", "a"),
            ] {
                let said = verdict(port.v4(), &Flow::to(host, 1)).await?;
                ensure!(said.starts_with(exit), "{whose}, {host}: {said}");
            }
            peer.stop().await?;
        }
        Ok(())
    });
}
