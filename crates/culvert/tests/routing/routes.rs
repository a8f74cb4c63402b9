//! Random route rules and flows: the same verdicts from both programs.

use crate::client::{Flow, verdict};
use crate::dice::Dice;
use crate::exits::Exit;
use crate::{culvert, run, setting};
use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Map, Value, json};
use std::net::Ipv4Addr;

const NAMES: [&str; 7] = ["a.test", "b.test", "x.a.test", "ab.test", "c.example", "xa.test", "none.example"];
const ADDRESSES: [&str; 6] = ["10.1.2.3", "192.0.2.7", "198.51.100.1", "2001:db8::7", "fd00::1", "127.0.0.9"];
const PORTS: [u16; 4] = [80, 443, 8080, 5000];
const EXITS: usize = 4;
const FLOWS: usize = 60;
/// One of so many flows is explained too: each takes a process.
const EXPLAINED: usize = 6;

/// The conditions of one rule. `headless` leaves out what rules of rule-sets do not have.
fn conditions(dice: &mut Dice, headless: bool, sets: &[String]) -> Map<String, Value> {
    let mut rule = Map::new();
    for _ in 0..1 + dice.below(3) {
        let (key, value) = match dice.below(if headless { 9 } else { 17 }) {
            0 => ("domain", dice.some(&NAMES)),
            1 => ("domain_suffix", dice.some(&[".a.test", "a.test", "test", "example", "est"])),
            2 => ("domain_keyword", dice.some(&["a.", "b", "xam", "zz"])),
            3 => ("domain_regex", dice.some(&["^a", "b.*t$", "[0-9]", "^x\\.a"])),
            4 => ("ip_cidr", dice.some(&["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32", "198.51.100.1"])),
            5 => ("port", dice.some_numbers(&PORTS)),
            6 => ("port_range", dice.some(&["400:500", ":90", "5000:", "8080:8080"])),
            7 => ("source_ip_cidr", dice.some(&["127.0.0.2/31", "127.0.0.1", "127.0.0.0/8"])),
            8 => ("network", dice.some(&["tcp", "udp"])),
            9 => ("ip_is_private", json!(true)),
            10 => ("source_ip_is_private", json!(true)),
            11 => ("auth_user", dice.some(&["anna", "bert", "carl"])),
            12 => ("inbound", dice.some(&["in", "other"])),
            13 => ("ip_version", json!(*dice.pick(&[4, 6]))),
            14 => ("protocol", dice.some(&["http", "tls"])),
            15 => ("rule_set_ip_cidr_match_source", json!(true)),
            _ => ("rule_set", json!([dice.pick(sets)])),
        };
        rule.insert(key.into(), value);
    }
    if rule.keys().all(|key| key == "rule_set_ip_cidr_match_source") {
        rule.insert("port".into(), json!([80]));
    }
    if dice.chance(15) {
        rule.insert("invert".into(), json!(true));
    }
    rule
}

fn condition(dice: &mut Dice, headless: bool, sets: &[String]) -> Map<String, Value> {
    if !dice.chance(15) {
        return conditions(dice, headless, sets);
    }
    let rules: Vec<_> = (0..1 + dice.below(3)).map(|_| conditions(dice, headless, sets)).collect();
    let mut rule = Map::new();
    rule.insert("type".into(), json!("logical"));
    rule.insert("mode".into(), json!(dice.pick(&["and", "or"])));
    rule.insert("rules".into(), json!(rules));
    if dice.chance(20) {
        rule.insert("invert".into(), json!(true));
    }
    rule
}

fn rule(dice: &mut Dice, sets: &[String]) -> Value {
    let mut rule = condition(dice, false, sets);
    let mut set = |key: &str, value: Value| rule.insert(key.into(), value);
    match dice.below(20) {
        0 => {
            set("action", json!("reject"));
            set("no_drop", json!(true));
        }
        1 => {
            set("action", json!("route-options"));
            set("override_port", json!(dice.pick(&PORTS)));
        }
        2 => {
            set("action", json!("route-options"));
            set("override_address", json!(dice.pick(&["b.test", "10.9.9.9", "2001:db8::9"])));
        }
        3 | 4 => {
            set("action", json!("sniff"));
        }
        5 | 6 => {
            set("action", json!("resolve"));
            set("strategy", json!(dice.pick(&["prefer_ipv4", "prefer_ipv6", "ipv4_only"])));
        }
        _ => {
            set("outbound", json!(format!("exit{}", dice.below(EXITS))));
        }
    }
    json!(rule)
}

fn config(dice: &mut Dice, exits: &[Exit]) -> Value {
    let sets: Vec<String> = (0..4).map(|index| format!("set{index}")).collect();
    let rule_sets: Vec<_> = sets
        .iter()
        .map(|tag| {
            let rules: Vec<_> = (0..1 + dice.below(2)).map(|_| condition(dice, true, &[])).collect();
            json!({ "tag": tag, "rules": rules })
        })
        .collect();
    let mut rules = Vec::new();
    // Most configurations begin with these two, without conditions.
    for action in ["sniff", "resolve"] {
        if dice.chance(40) {
            rules.push(json!({ "action": action }));
        }
    }
    rules.extend((0..6 + dice.below(10)).map(|_| rule(dice, &sets)));
    let outbounds: Vec<_> = exits
        .iter()
        .enumerate()
        .map(|(index, exit)| {
            json!({ "type": "socks", "tag": format!("exit{index}"), "server": "127.0.0.1",
                    "server_port": exit.port() })
        })
        .collect();
    let users: Vec<_> =
        ["anna", "bert"].iter().map(|name| json!({ "username": name, "password": "pw" })).collect();
    json!({
        "log": { "level": "debug" },
        "dns": { "servers": [{
            "type": "hosts", "tag": "hosts", "path": "/nonexistent",
            "predefined": {
                "a.test": "10.0.0.1", "b.test": ["192.0.2.5", "2001:db8::5"], "x.a.test": "198.51.100.1",
                "ab.test": "2001:db8::ab", "c.example": ["10.0.0.9", "192.0.2.9"], "xa.test": "127.0.0.9"
            }
        }] },
        "inbounds": [{ "type": "socks", "tag": "in", "listen": "127.0.0.1", "users": users }],
        "outbounds": outbounds,
        "route": { "rules": rules, "rule_set": rule_sets }
    })
}

fn flow(dice: &mut Dice) -> Flow {
    let host = if dice.chance(60) { *dice.pick(&NAMES) } else { *dice.pick(&ADDRESSES) };
    let payload = if dice.chance(70) {
        format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", dice.pick(&NAMES)).into_bytes()
    } else {
        b"\0\0nothing that anybody knows\r\n\r\n".to_vec()
    };
    Flow {
        source: Ipv4Addr::new(127, 0, 0, 1 + dice.below(4) as u8),
        user: Some(*dice.pick(&["anna", "bert"])),
        host: host.into(),
        port: *dice.pick(&PORTS),
        payload,
    }
}

/// What `explain` says of a flow, line by line.
async fn explain(program: &Program, folder: &TempDir, flow: &Flow) -> Result<Vec<String>> {
    let host = if flow.host.contains(':') { format!("[{}]", flow.host) } else { flow.host.clone() };
    let (target, source) = (format!("{host}:{}", flow.port), format!("{}:1", flow.source));
    let mut arguments = vec!["explain", &target, "--inbound", "in", "--source", &source];
    arguments.extend(flow.user.iter().flat_map(|user| ["--user", user]));
    let payload = String::from_utf8_lossy(&flow.payload).into_owned();
    if let Some(sniffed) = payload.lines().find_map(|line| line.strip_prefix("Host: ")) {
        arguments.extend(["--protocol", "http", "--sniffed-domain", sniffed]);
    }
    let finished = program.launch(arguments).directory(folder.path()).run().await?;
    ensure!(finished.code == Some(0), "{finished:?}");
    Ok(finished.stdout.lines().map(str::to_owned).collect())
}

/// The exit that the last line of an explanation names, or `refused`.
fn exit_of(end: &str) -> &str {
    match end.strip_prefix("outbound socks[") {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => "refused",
    }
}

#[test]
fn random_rules_have_the_verdicts_of_sing_box() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let mut exits = Vec::new();
        for index in 0..EXITS {
            exits.push(Exit::start(format!("exit{index}")).await?);
        }
        let first = setting("ROUTING_SEED", 1);
        for seed in first..first + setting("ROUTING_ROUNDS", 12) {
            round(&ours, &theirs, &exits, seed).await?;
        }
        Ok(())
    });
}

async fn round(ours: &Program, theirs: &Program, exits: &[Exit], seed: u64) -> Result {
    let mut dice = Dice::new(seed);
    let mut config = config(&mut dice, exits);
    let mut listening = Vec::new();
    for program in [ours, theirs] {
        let port = Port::reserve()?;
        config["inbounds"][0]["listen_port"] = json!(port.number());
        listening.push((program.serve(&config).await?, port));
    }
    let folder = TempDir::new()?;
    folder.write("config.json", config.to_string())?;
    for number in 0..FLOWS {
        let flow = flow(&mut dice);
        let [(our_peer, our_port), (their_peer, their_port)] = &listening[..] else { unreachable!() };
        let (our, their) = tokio::try_join!(verdict(our_port.v4(), &flow), verdict(their_port.v4(), &flow))?;
        ensure!(
            our == their,
            "seed {seed}: {flow:?}\nours: {our}\ntheirs: {their}\nrules: {:#}\nsets: {:#}\n--- ours\n{}\n--- theirs\n{}",
            config["route"]["rules"],
            config["route"]["rule_set"],
            our_peer.log().tail(12),
            their_peer.log().tail(12)
        );
        if number % EXPLAINED == 0 {
            let explained = explain(ours, &folder, &flow).await?;
            ensure!(
                explained.last().map(|end| exit_of(end)) == Some(our.split(' ').next().unwrap_or_default()),
                "seed {seed}: {flow:?} is {our}, and explained as {explained:#?}"
            );
        }
    }
    for (mut peer, _) in listening {
        peer.stop().await?;
    }
    Ok(())
}
