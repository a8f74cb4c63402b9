//! DNS rules over answers that come at different times: the same answers from both programs, and no later than they must.

use crate::client::{PATIENCE, ask};
use crate::{culvert, run};
use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

const SLOW: Duration = Duration::from_millis(700);

/// A server of DNS over UDP that answers every question with one address, after a while.
async fn server(last: u8, delay: Duration) -> Result<u16> {
    let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let port = socket.local_addr()?.port();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            // Header and question; what stands behind it is left out.
            let end = 12 + buffer[12..length].iter().position(|byte| *byte == 0).unwrap_or_default() + 5;
            let mut reply = buffer[..end].to_vec();
            (reply[2], reply[3]) = (0x81, 0x80);
            reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, last]);
            let socket = Arc::clone(&socket);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = socket.send_to(&reply, from).await;
            });
        }
    });
    Ok(port)
}

/// The last byte of the address that each program answers with, and how long ours has taken.
async fn answers(rules: Value) -> Result<Option<([u8; 2], Duration)>> {
    let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(None) };
    let (slow, quick, other) = (
        server(1, SLOW).await?,
        server(2, Duration::from_millis(20)).await?,
        server(3, Duration::ZERO).await?,
    );
    let server = |tag, port| json!({ "type": "udp", "tag": tag, "server": "127.0.0.1", "server_port": port });
    let mut said = [0; 2];
    let mut took = Duration::ZERO;
    for (said, program) in said.iter_mut().zip([&theirs, &ours]) {
        let port = Port::reserve()?;
        let mut peer = program
            .serve(&json!({
                "log": { "level": "debug" },
                "dns": {
                    "disable_cache": true, "final": "other", "rules": rules,
                    "servers": [server("slow", slow), server("quick", quick), server("other", other)]
                },
                "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number() }],
                "route": { "rules": [{ "action": "hijack-dns" }], "default_domain_resolver": "other" }
            }))
            .await?;
        let begun = Instant::now();
        let reply = ask(port.v4(), Ipv4Addr::LOCALHOST, "x.test", 1, PATIENCE).await?.ok_or("silence")?;
        took = begun.elapsed();
        let [(std::net::IpAddr::V4(ip), _)] = reply.addresses[..] else {
            return Err(format!("{}: {reply:?}\n{}", program.name(), peer.log().tail(10)).into());
        };
        *said = ip.octets()[3];
        peer.stop().await?;
    }
    Ok(Some((said, took)))
}

#[test]
fn rules_wait_for_what_they_refer_to_and_race_where_they_may() {
    run(async {
        let evaluate =
            |server: &str, tag: &str| json!({ "action": "evaluate", "server": server, "tag": tag });
        let respond = |tag: &str, cidr: &str, race: bool| {
            let mut rule = json!({ "match_response": tag, "ip_cidr": cidr, "action": "respond" });
            if race {
                rule["race"] = true.into();
            }
            rule
        };
        let both = || vec![evaluate("slow", "s"), evaluate("quick", "q")];
        let (any, none) = ("10.0.0.0/8", "192.0.2.0/24");
        let with = |rules: Vec<Value>| json!([both(), rules].concat());
        let cases = [
            ("in order", with(vec![respond("s", any, false), respond("q", any, false)]), 1, false),
            ("only what is referred to", with(vec![respond("q", any, false)]), 2, true),
            ("a race", with(vec![respond("s", any, true), respond("q", any, true)]), 2, true),
            ("the slow one wins", with(vec![respond("s", any, true), respond("q", none, true)]), 1, false),
            ("nobody wins", with(vec![respond("s", none, true), respond("q", none, true)]), 3, false),
            (
                "others are held back",
                with(vec![respond("s", any, true), json!({ "action": "route", "server": "other" })]),
                1,
                false,
            ),
            (
                "what was started early is used",
                with(vec![
                    respond("s", none, true),
                    json!({ "action": "route", "server": "other", "speculative": true }),
                ]),
                3,
                false,
            ),
            (
                "what was started early is given up",
                with(vec![
                    respond("s", any, true),
                    json!({ "action": "route", "server": "other", "speculative": true }),
                ]),
                1,
                false,
            ),
            (
                "a route in a race",
                with(vec![
                    json!({ "match_response": "s", "ip_cidr": any, "action": "route", "server": "slow", "race": true }),
                    json!({ "match_response": "q", "ip_cidr": any, "action": "route", "server": "other", "race": true }),
                ]),
                3,
                true,
            ),
        ];
        for (name, rules, expected, is_early) in cases {
            let Some(([their, our], took)) = answers(rules).await? else { return Ok(()) };
            ensure!(our == expected && their == expected, "{name}: ours {our}, theirs {their}");
            ensure!((took < SLOW) == is_early, "{name}: {took:?}");
            // Both are asked at the same time.
            ensure!(took < SLOW * 2 - Duration::from_millis(100), "{name}: {took:?}");
        }
        Ok(())
    });
}
