//! Rules about neighbours and interfaces, and sockets that follow the default route, in network namespaces. Where both
//! programs know the thing, sing-box is asked too.

use std::time::{Duration, Instant};

use culvert_testkit::origin::{Origin, Service};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};

use crate::transparent::{Client, alone, sh};
use crate::{Side, culvert};

const PATIENCE: Duration = Duration::from_secs(20);

fn said(command: &str) -> String {
    let output = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A forwarder to the origin, for those whom `rule` matches, and for nobody else.
fn forwarder(port: &Port, origin: &Origin, rule: Value, route: Value) -> Value {
    let mut let_in = rule;
    let_in["outbound"] = "out".into();
    let mut config = json!({
        "log": { "level": "debug" },
        "inbounds": [{
            "type": "direct", "tag": "in", "listen": "0.0.0.0", "listen_port": port.number(),
            "override_address": "127.0.0.1", "override_port": origin.port().number()
        }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [let_in, { "action": "reject", "no_drop": true }] }
    });
    for (key, value) in route.as_object().into_iter().flatten() {
        config["route"][key] = value.clone();
    }
    config
}

/// Whether the client's side reaches the origin by the forwarder.
fn reaches(client: &Client, port: &Port) -> bool {
    let text = format!("{}hello", Service::Echo.line());
    client
        .program(&["tcp", "10.77.0.1", &port.number().to_string(), &text])
        .is_ok_and(|got| got == "5 hello\n")
}

#[test]
fn neighbours_are_known_by_their_cards_and_names() {
    alone("surroundings::neighbours_are_known_by_their_cards_and_names", || async {
        let (client, origin, folder) = (Client::new(), Origin::start().await?, TempDir::new()?);
        client.sh("ip link set c address 02:00:00:00:77:02");
        let leases = folder.write("leases", "1900000000 02:00:00:00:77:02 10.77.0.2 laptop *\n")?;
        let route = json!({ "dhcp_lease_files": [leases], "find_neighbor": true });
        for (rule, expected) in [
            (json!({ "source_mac_address": "02:00:00:00:77:02" }), true),
            (json!({ "source_mac_address": "02:00:00:00:77:03" }), false),
            (json!({ "source_hostname": "laptop" }), true),
            (json!({ "source_hostname": "other" }), false),
        ] {
            for side in [Side::Culvert, Side::SingBox] {
                let Some(program) = side.program() else { continue };
                let port = Port::reserve()?;
                let config = forwarder(&port, &origin, rule.clone(), route.clone());
                let mut peer = program.serve(&config).await?;
                let found = reaches(&client, &port);
                ensure!(found == expected, "{side:?} {rule}: {found}\n{}", peer.log().tail(10));
                peer.stop().await?;
            }
        }
        Ok(())
    });
}

/// Two links, `d1` and `d2`, into which nothing goes by itself, and from which nothing comes.
fn links() {
    for name in ["d1", "d2"] {
        sh(&format!(
            "ip link del {name} 2>/dev/null; ip link add {name} type veth peer name {name}p; \
            sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1 net.ipv6.conf.{name}p.disable_ipv6=1; \
            ip link set {name} arp off; ip link set {name}p up; ip link set {name} up"
        ));
    }
}

/// Waits until connections are let in, or not any more.
async fn until(what: &str, expected: bool, mut found: impl FnMut() -> bool) -> Result {
    let begun = Instant::now();
    while found() != expected {
        ensure!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[test]
fn rules_follow_the_interfaces() {
    alone("surroundings::rules_follow_the_interfaces", || async {
        let (client, origin, port) = (Client::new(), Origin::start().await?, Port::reserve()?);
        links();
        sh("ip address add 10.1.0.2/24 dev d1");
        sh("ip route add default dev d1");
        let rule = json!({ "default_interface_address": "10.2.0.0/24" });
        let config = forwarder(&port, &origin, rule, json!({ "auto_detect_interface": false }));
        let mut peer = culvert().serve(&config).await?;
        until("d1 leads", false, || reaches(&client, &port)).await?;
        sh("ip address add 10.2.0.2/24 dev d2; ip route replace default dev d2");
        until("d2 leads", true, || reaches(&client, &port)).await?;
        sh("ip route del default dev d2");
        until("nobody leads", false, || reaches(&client, &port)).await?;
        let status = peer.stop().await?;
        ensure!(status.code() == Some(0), "stopped with {status}");
        Ok(())
    });
}

/// Packets that have left by an interface.
fn sent(interface: &str) -> u64 {
    said(&format!("ip -s -j link show {interface} | python3 -c 'import json,sys; print(json.load(sys.stdin)[0][\"stats64\"][\"tx\"][\"packets\"])'"))
        .parse()
        .unwrap()
}

#[test]
fn sockets_leave_by_the_interface_of_the_default_route() {
    alone("surroundings::sockets_leave_by_the_interface_of_the_default_route", || async {
        for side in [Side::Culvert, Side::SingBox] {
            leave_by_default(side).await?;
        }
        Ok(())
    });
}

async fn leave_by_default(side: Side) -> Result {
    let Some(program) = side.program() else { return Ok(()) };
    links();
    sh("ip address add 10.1.0.2/24 dev d1; ip address add 10.2.0.2/24 dev d2");
    // The default route is that of d1; what nobody binds goes another way, as into a TUN device.
    sh("ip route add default dev d1; ip route replace default dev d2 table 100; \
        ip rule del pref 5 2>/dev/null; ip rule add pref 5 to 203.0.113.0/24 lookup 100");
    let port = Port::reserve()?;
    let config = json!({
        "log": { "level": "debug" },
        "inbounds": [{
            "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number(),
            "override_address": "203.0.113.1", "override_port": 9
        }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "auto_detect_interface": true }
    });
    let mut peer = program.serve(&config).await?;
    let before = (sent("d1"), sent("d2"));
    let stream = tokio::net::TcpStream::connect(port.v4()).await?;
    let udp = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
    udp.send_to(b"x", port.v4()).await?;
    until("packets by d1", true, || sent("d1") >= before.0 + 2).await?;
    ensure!(sent("d2") == before.1, "{side:?}: packets by d2");
    // When another one leads, so do new sockets.
    sh("ip route replace default dev d2; ip route replace default dev d1 table 100");
    let begun = Instant::now();
    loop {
        let (d1, d2) = (sent("d1"), sent("d2"));
        let stream = tokio::net::TcpStream::connect(port.v4()).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(stream);
        if sent("d2") > d2 && sent("d1") - d1 <= 3 {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "{side:?}: no packets by d2: {}", peer.log().tail(10));
    }
    drop(stream);
    peer.stop().await?;
    Ok(())
}
