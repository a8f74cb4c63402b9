//! VLESS.

use super::{behind_tls, in_tls};
use crate::proxy::Proxy;
use crate::site::{ALL, Carries, ENDS_TOGETHER, Link, linked};
use crate::{Side, run};
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

links! {
    vless: client => server, ALL;
    vless_tls: || in_tls(client()) => || behind_tls(server()), ALL;
    vless_vision: || in_tls(with(client(), "flow", VISION)) => || behind_tls(with_flow(server())), VISION_CARRIES;
}

light_links! {
    vless_packetaddr: || with(client(), "packet_encoding", "packetaddr") => server, NO_NAMES;
    vless_plain_packets: || with(client(), "packet_encoding", "") => server, NO_NAMES;
    vless_id_of_words: || with(client(), "uuid", "no uuid at all") => words, ALL;
}

/// packetaddr has no names, and without an encoding sing-box's client has no answers from one.
const NO_NAMES: Carries = Carries { names: false, ..ALL };

const VISION: &str = "xtls-rprx-vision";

/// What sing-box ends in one direction by this flow it ends in both.
const VISION_CARRIES: Carries = Carries { resets: false, ..ENDS_TOGETHER };

fn client() -> Value {
    json!({ "type": "vless", "uuid": ID })
}

fn server() -> Value {
    json!({ "type": "vless", "users": [{ "name": "bob", "uuid": "another" }, { "name": "alice", "uuid": ID }] })
}

fn with_flow(mut server: Value) -> Value {
    for user in server["users"].as_array_mut().into_iter().flatten() {
        user["flow"] = VISION.into();
    }
    server
}

fn words() -> Value {
    json!({ "type": "vless", "users": [{ "name": "alice", "uuid": "no uuid at all" }] })
}

fn with(mut options: Value, key: &str, value: &str) -> Value {
    options[key] = value.into();
    options
}

/// What somebody sees who tries what a server does.
#[derive(Debug, PartialEq)]
enum Reaction {
    Reset,
    End,
    /// Nothing yet.
    Silence,
    Bytes(Vec<u8>),
}

#[test]
fn probers_see_what_they_see_of_sing_box() {
    run(async {
        let mut seen = Vec::new();
        for side in [Side::Culvert, Side::SingBox] {
            let Some(program) = side.program() else { return Ok(()) };
            let proxy = Proxy::start(&program, server(), json!({ "type": "direct" })).await?;
            let mut reactions = Vec::new();
            for (name, probe) in probes() {
                reactions.push((name, react(&proxy, &probe).await?));
            }
            seen.push(reactions);
        }
        ensure!(seen[0] == seen[1], "{seen:#?}");
        Ok(())
    });
}

fn probes() -> Vec<(&'static str, Vec<u8>)> {
    let known: [u8; 16] = *b"\xb8\x31\x38\x1d\x63\x24\x4d\x53\xad\x4f\x8c\xda\x48\xb3\x08\x11";
    let request = |id: [u8; 16], addons: &[u8], rest: &[u8]| {
        [&[0][..], &id, &[addons.len() as u8], addons, rest].concat()
    };
    // Port 1 of this machine, where nobody listens.
    let nowhere = b"\x01\0\x01\x01\x7f\0\0\x01";
    let stranger = request([7; 16], b"", nowhere);
    vec![
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec()),
        ("nothing but zeros", vec![0; 600]),
        ("a stranger", stranger.clone()),
        ("half of a stranger", stranger[..20].to_vec()),
        ("another command", request(known, b"", b"\x09\0\x01\x01\x7f\0\0\x01")),
        ("another flow", request(known, b"\x0a\x10xtls-rprx-vision", nowhere)),
        ("a target that refuses", request(known, b"", nowhere)),
    ]
}

async fn react(proxy: &Proxy, probe: &[u8]) -> Result<Reaction> {
    const MOMENT: Duration = Duration::from_millis(500);
    let mut stream = proxy.send(probe).await?;
    let mut bytes = vec![0; 1024];
    Ok(match tokio::time::timeout(MOMENT, stream.read(&mut bytes)).await {
        Err(_) => Reaction::Silence,
        Ok(Err(_)) => Reaction::Reset,
        Ok(Ok(0)) => Reaction::End,
        Ok(Ok(count)) => Reaction::Bytes(bytes[..count].to_vec()),
    })
}
