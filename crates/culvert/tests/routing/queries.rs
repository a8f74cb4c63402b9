//! Random DNS rules and queries: the same answers from both programs.

use crate::client::{Reply, ask};
use crate::dice::Dice;
use crate::{culvert, run, setting};
use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Map, Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;

const NAMES: [&str; 6] = ["a.test", "b.test", "x.a.test", "ab.test", "c.example", "none.example"];
const SERVERS: usize = 3;
const QUERIES: usize = 50;
/// Longest wait for an answer of servers without a network.
const SILENCE: Duration = Duration::from_millis(400);
/// The same where one of the programs has been silent and the other has not.
const LONG_SILENCE: Duration = Duration::from_secs(10);

/// What the configurations of a round may use.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Neither conditions on addresses nor evaluated answers.
    Plain,
    /// Rules that ask first and then look at the addresses.
    Filters,
    /// Evaluated answers.
    Evaluate,
}

fn conditions(dice: &mut Dice, mode: Mode, sets: &[String], headless: bool) -> Map<String, Value> {
    let mut rule = Map::new();
    let addresses = ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32", "10.0.1.0/24"];
    for _ in 0..1 + dice.below(2) {
        let kinds = match (headless, mode) {
            (true, _) => 6,
            (false, Mode::Filters) => 13,
            (false, Mode::Plain | Mode::Evaluate) => 10,
        };
        let (key, value) = match dice.below(kinds) {
            0 => ("domain", dice.some(&NAMES)),
            1 => ("domain_suffix", dice.some(&[".a.test", "a.test", "test", "example"])),
            2 => ("domain_keyword", dice.some(&["a.", "b", "xam"])),
            3 if mode != Mode::Filters => ("query_type", dice.some(&["A", "AAAA", "TXT"])),
            4 => ("source_ip_cidr", dice.some(&["127.0.0.2/31", "127.0.0.1"])),
            5 if mode == Mode::Filters => ("ip_cidr", dice.some(&addresses)),
            5 => ("domain_regex", dice.some(&["^a", "e$"])),
            6 if mode != Mode::Filters => ("ip_version", json!(*dice.pick(&[4, 6]))),
            3 | 6 | 7 => ("network", dice.some(&["tcp", "udp"])),
            8 => ("inbound", dice.some(&["in", "other"])),
            9 => {
                if mode == Mode::Filters && dice.chance(40) {
                    rule.insert("rule_set_ip_cidr_accept_empty".into(), json!(true));
                }
                ("rule_set", json!([dice.pick(sets)]))
            }
            10 => ("ip_is_private", json!(true)),
            11 => ("ip_accept_any", json!(true)),
            _ => ("ip_cidr", dice.some(&addresses)),
        };
        rule.insert(key.into(), value);
    }
    if dice.chance(15) {
        rule.insert("invert".into(), json!(true));
    }
    rule
}

fn response_conditions(dice: &mut Dice) -> Map<String, Value> {
    let mut rule = Map::new();
    rule.insert("match_response".into(), if dice.chance(50) { json!(true) } else { json!("t") });
    let (key, value) = match dice.below(5) {
        0 => ("ip_cidr", dice.some(&["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"])),
        1 => ("ip_is_private", json!(true)),
        2 => ("ip_accept_any", json!(true)),
        3 => ("response_rcode", json!(*dice.pick(&["NOERROR", "NXDOMAIN"]))),
        _ => (
            "response_answer",
            json!([format!("{}. IN A 10.0.{}.1", dice.pick(&NAMES), dice.below(SERVERS))]),
        ),
    };
    rule.insert(key.into(), value);
    if dice.chance(20) {
        rule.insert("invert".into(), json!(true));
    }
    if dice.chance(30) {
        rule.insert("domain_suffix".into(), dice.some(&["test", "example"]));
    }
    rule
}

fn rule(dice: &mut Dice, mode: Mode, sets: &[String]) -> Value {
    let by_response = mode == Mode::Evaluate && dice.chance(50);
    let mut rule = if by_response { response_conditions(dice) } else { conditions(dice, mode, sets, false) };
    let server = json!(format!("h{}", dice.below(SERVERS)));
    let mut set = |key: &str, value: Value| rule.insert(key.into(), value);
    match dice.below(12) {
        0 => {
            set("action", json!("reject"));
            set("no_drop", json!(true));
        }
        1 => {
            set("action", json!("predefined"));
            set("rcode", json!(dice.pick(&["NOERROR", "NXDOMAIN", "REFUSED"])));
            set("answer", json!(["p.test. 77 IN A 203.0.113.1"]));
        }
        2 => {
            set("action", json!("route-options"));
            set("rewrite_ttl", json!(100 + dice.below(3)));
        }
        3 | 4 if by_response => {
            set("action", json!("respond"));
        }
        3 if mode == Mode::Evaluate => {
            set("action", json!("evaluate"));
            set("server", server);
        }
        _ => {
            set("server", server);
            if dice.chance(20) {
                set("disable_cache", json!(true));
            }
        }
    }
    json!(rule)
}

fn config(dice: &mut Dice, mode: Mode) -> Value {
    let sets: Vec<String> = (0..3).map(|index| format!("set{index}")).collect();
    let rule_sets: Vec<_> = sets
        .iter()
        .map(|tag| {
            let rules: Vec<_> = (0..1 + dice.below(2)).map(|_| conditions(dice, mode, &[], true)).collect();
            json!({ "tag": tag, "rules": rules })
        })
        .collect();
    let servers: Vec<_> = (0..SERVERS)
        .map(|index| {
            let mut names = Map::new();
            for (at, name) in NAMES[..5].iter().enumerate() {
                let addresses = match (at + index) % 4 {
                    0 => json!([format!("10.0.{index}.1")]),
                    1 => json!([format!("10.0.{index}.1"), format!("2001:db8::{index}")]),
                    2 => json!([format!("192.0.2.{index}"), format!("fd00::{index}")]),
                    _ => json!([format!("198.51.100.{index}")]),
                };
                names.insert((*name).into(), addresses);
            }
            json!({ "type": "hosts", "tag": format!("h{index}"), "path": "/nonexistent", "predefined": names })
        })
        .collect();
    let mut rules = Vec::new();
    if mode == Mode::Evaluate {
        rules.push(json!({ "action": "evaluate", "server": "h0", "tag": "t" }));
        rules.push(json!({ "action": "evaluate", "server": "h1" }));
    }
    rules.extend((0..4 + dice.below(8)).map(|_| rule(dice, mode, &sets)));
    json!({
        "log": { "level": "debug" },
        "dns": { "disable_cache": true, "servers": servers, "rules": rules, "final": format!("h{}", dice.below(SERVERS)) },
        "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1" }],
        "route": {
            "rules": [{ "action": "hijack-dns" }], "rule_set": rule_sets, "default_domain_resolver": "h0"
        }
    })
}

#[test]
fn random_dns_rules_have_the_answers_of_sing_box() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let first = setting("ROUTING_SEED", 1);
        for seed in first..first + setting("ROUTING_ROUNDS", 12) {
            for mode in [Mode::Plain, Mode::Filters, Mode::Evaluate] {
                round(&ours, &theirs, mode, seed).await?;
            }
        }
        Ok(())
    });
}

async fn round(ours: &Program, theirs: &Program, mode: Mode, seed: u64) -> Result {
    let mut dice = Dice::new(seed * 3 + mode as u64);
    let mut config = config(&mut dice, mode);
    let mut listening = Vec::new();
    for program in [ours, theirs] {
        let port = Port::reserve()?;
        config["inbounds"][0]["listen_port"] = json!(port.number());
        listening.push((program.serve(&config).await?, port));
    }
    for _ in 0..QUERIES {
        let (name, kind) = (*dice.pick(&NAMES), *dice.pick(&[1, 28]));
        let source = Ipv4Addr::new(127, 0, 0, 1 + dice.below(4) as u8);
        let [(our_peer, our_port), (their_peer, their_port)] = &listening[..] else { unreachable!() };
        let both = async |patience| {
            tokio::try_join!(
                ask(our_port.v4(), source, name, kind, patience),
                ask(their_port.v4(), source, name, kind, patience)
            )
        };
        let (mut our, mut their) = both(SILENCE).await?;
        if comparable(our.clone()) != comparable(their.clone()) {
            // Who was slow is not silent.
            (our, their) = both(LONG_SILENCE).await?;
        }
        ensure!(
            comparable(our.clone()) == comparable(their.clone()),
            "seed {seed}, {name} {kind} from {source}\nours: {our:?}\ntheirs: {their:?}\nrules: {:#}\nsets: {:#}\n--- ours\n{}\n--- theirs\n{}",
            config["dns"],
            config["route"]["rule_set"],
            our_peer.log().tail(12),
            their_peer.log().tail(12)
        );
    }
    for (mut peer, _) in listening {
        peer.stop().await?;
    }
    Ok(())
}

/// A query that fails has silence from sing-box and SERVFAIL from us.
fn comparable(reply: Option<Reply>) -> Option<Reply> {
    reply.filter(|reply| reply.rcode != 2)
}
