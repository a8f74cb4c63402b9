//! DNS servers that ask the links: `dhcp`, with a network that names its name server, and `mdns`, with a responder.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};

use crate::culvert;
use crate::transparent::{Client, alone, sh};

/// A DHCP server that offers nothing but a name server, and that name server.
const NETWORK: &str = r#"
import socket, threading
def names():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("10.77.0.2", 53))
    while True:
        query, peer = s.recvfrom(4096)
        end = query.index(b"\0", 12) + 5
        head = query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0"
        s.sendto(head + query[12:end] + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\x4d", peer)
threading.Thread(target=names, daemon=True).start()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.bind(("", 67))
print("ready", flush=True)
while True:
    request, peer = s.recvfrom(4096)
    assert request[240:243] == b"\x35\1\1", request
    offer = b"\2" + request[1:240] + b"\x35\1\2\6\4\x0a\x4d\0\2\xff"
    s.sendto(b"\2noise", ("255.255.255.255", 68))
    s.sendto(offer, ("255.255.255.255", 68))
"#;

/// A responder of multicast DNS that knows one name.
const RESPONDER: &str = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5353))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
    socket.inet_aton("224.0.0.251") + socket.inet_aton("10.77.0.2"))
print("ready", flush=True)
while True:
    query, peer = s.recvfrom(4096)
    end = query.index(b"\0", 12) + 5
    if query[12:end - 4].lower() != b"\3box\5local\0" or query[end - 4:end - 2] != b"\0\1": continue
    head = query[:2] + b"\x84\0\0\1\0\1\0\0\0\0"
    s.sendto(head + query[12:end] + b"\xc0\x0c\0\1\0\1\0\0\0\x0a\0\4\xc0\0\2\x58", peer)
"#;

/// A program in the client's namespace that says when it is ready.
fn start(client: &Client, program: &str) -> Result<Child> {
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "nsenter", "-t", &client.process(), "-n", "python3", "-c", program])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let out = child.stdout.take().ok_or("no output")?;
    BufReader::new(out).read_line(&mut said)?;
    ensure!(said == "ready\n", "the network says {said:?}");
    Ok(child)
}

/// What is asked by dig through a program with this DNS server.
async fn dig(server: Value, name: &str) -> Result<String> {
    let port = Port::reserve()?;
    let mut peer = culvert()
        .serve(&json!({
            "dns": { "servers": [server] },
            "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number() }],
            "route": { "rules": [{ "action": "hijack-dns" }] }
        }))
        .await?;
    let port = port.number().to_string();
    let output = Command::new("dig")
        .args(["@127.0.0.1", "-p", &port, "+noall", "+answer", "+comments", "+time=8", "+tries=1", name])
        .output()?;
    peer.stop().await?;
    let text = String::from_utf8(output.stdout)?;
    let words: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let status = text.split("status: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("silence");
    let address = words.iter().find(|word| word.starts_with("192.0.2.")).copied().unwrap_or_default();
    Ok(format!("{status} {address}"))
}

#[test]
fn names_under_local_are_asked_of_everybody_on_the_link() {
    alone("links::names_under_local_are_asked_of_everybody_on_the_link", || async {
        let client = Client::new();
        let mut responder = start(&client, RESPONDER)?;
        for interface in [json!([]), json!(["s"])] {
            let server = json!({ "type": "mdns", "tag": "m", "interface": interface });
            let said = dig(server, "box.local").await?;
            ensure!(said == "NOERROR 192.0.2.88", "{interface}: {said}");
        }
        let said = dig(json!({ "type": "mdns", "tag": "m" }), "none.local").await?;
        ensure!(said == "NXDOMAIN ", "{said}");
        responder.kill()?;
        responder.wait()?;
        Ok(())
    });
}

#[test]
fn the_network_of_an_interface_names_the_servers() {
    alone("links::the_network_of_an_interface_names_the_servers", || async {
        let network = Client::new();
        let mut server = start(&network, NETWORK)?;
        for (interface, route) in [("s", None), ("auto", Some("ip route add default via 10.77.0.2"))] {
            if let Some(route) = route {
                sh(route);
            }
            let said = dig(json!({ "type": "dhcp", "tag": "d", "interface": interface }), "x.test").await?;
            ensure!(said == "NOERROR 192.0.2.77", "{interface}: {said}");
        }
        server.kill()?;
        server.wait()?;
        Ok(())
    });
}
