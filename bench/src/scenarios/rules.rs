//! `rules`: what a decision costs. Through traffic, where a row's decision is what its connections cost more than those of
//! a program without rules; through `rule-set match`; and inside Culvert's own matcher, of the version that this program
//! was built with.

use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use culvert_os::counting::allocations;
use culvert_rules::rule::{DefaultRule, Facts, Rule, RuleIndex, RuleSets};
use culvert_rules::ruleset::{Format, RuleSetFile, load, write_binary};
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::failure::Failure;
use crate::plan::{Turns, Values};
use crate::process::Process;
use crate::procfs::Memory;
use crate::programs::Program;
use crate::progress::Progress;
use crate::requests::{self, Pace};
use crate::results::{Better, Entry, Metric, Row, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;

/// How much and how long.
pub(crate) struct Settings {
    pub(crate) workers: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

const RULES: u32 = 10_000;
const NAMES: u32 = 100_000;
const PREFIXES: u32 = 20_000;
/// What connections ask for; no rule and no list knows it.
const ASKED: &str = "www.unlisted.example1.com";
/// A name that the large list holds.
const LISTED: &str = "listed.example1.com";

/// What a program has to look through for each connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Load {
    Nothing,
    Rules,
    Lists,
}

const LOADS: [(Load, &str, &str); 3] = [
    (Load::Nothing, "none", "traffic, no rules"),
    (Load::Rules, "rules", "traffic, 10,000 rules that do not match"),
    (Load::Lists, "lists", "traffic, a list of 100,000 names and 20,000 prefixes"),
];

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("decision", "µs per decision", Better::Lower, 3).main(),
        Metric::new("allocations", "allocations per decision", Better::Lower, 2).main(),
        Metric::new("rate", "connections/s", Better::Higher, 0).main(),
        Metric::new("cpu", "CPU-µs per connection", Better::Lower, 1),
        Metric::new("resident", "RSS after start, MiB", Better::Lower, 1).main(),
        Metric::new("peak", "peak RSS, MiB", Better::Lower, 1),
        Metric::new("start", "start to first connection, ms", Better::Lower, 0),
        Metric::new("ms", "ms to load and match", Better::Lower, 1).main(),
        Metric::new("heap", "heap, MiB", Better::Lower, 2),
    ];
    let mut run = Run::begin("rules", &context.programs, metrics);
    run.set("rounds", settings.rounds);
    run.set("workers", settings.workers);
    run.set("window, s", settings.window.as_secs_f64());
    let list = context.work_dir.path().join("large.srs");
    let binary = write_binary(&large_list()).map_err(|error| Failure::Usage(error.to_string()))?;
    fs::write(&list, &binary).map_err(Failure::file("cannot write", &list))?;

    let entries =
        || -> Vec<Entry> { context.programs.iter().map(|program| Entry::new(&program.name)).collect() };
    let mut progress = Progress::new(settings.rounds * context.programs.len() * (LOADS.len() + 1));
    let work_dir = context.work_dir.path();
    for (load, id, title) in LOADS {
        let example = config(load, 1080, Path::new("/tmp/culvert-bench/large.srs"), 10);
        run.configs.insert(id.to_owned(), example);
        let turns = Turns {
            title,
            parts: vec![(format!("traffic/{id}"), title.to_owned())],
            entries: entries(),
            rounds: settings.rounds,
            work_dir,
        };
        turns.run(&mut run, &mut progress, |turn| {
            let values = traffic(&context.programs[turn.entry], load, &list, &turn.folder, settings)?;
            Ok(vec![Ok(values)])
        })?;
    }
    add_decisions(&mut run.rows);
    let title = "`rule-set match` of that list";
    let turns = Turns {
        title,
        parts: vec![("match".to_owned(), title.to_owned())],
        entries: entries(),
        rounds: settings.rounds,
        work_dir,
    };
    turns.run(&mut run, &mut progress, |turn| {
        Ok(vec![match_once(&context.programs[turn.entry], &list).map(|took| vec![("ms", took)])])
    })?;
    run.rows.extend(in_process(&binary, settings.rounds)?);
    Ok(run)
}

/// What connections cost more than without rules, round by round.
fn add_decisions(rows: &mut [Row]) {
    let Some((base, others)) = rows.split_first_mut() else { return };
    for row in others {
        for (entry, base) in row.entries.iter_mut().zip(&base.entries) {
            let (Some(costs), Some(bases)) = (entry.samples.get("cpu"), base.samples.get("cpu")) else {
                continue;
            };
            let decisions = costs.iter().zip(bases).map(|(cost, base)| (cost - base).max(0.0)).collect();
            entry.samples.insert("decision".to_owned(), decisions);
        }
    }
}

/// Names like those of public lists.
fn names(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| {
        let hash = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        format!("host{:x}.example{}.com", hash & 0xff_ffff, hash % 977)
    })
}

/// Networks all over, without those of this machine.
fn prefixes(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| {
        let [a, b, c, _] = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        format!("{}.{b}.{c}.0/24", 128 + a % 64)
    })
}

fn large_list() -> RuleSetFile {
    let domain_suffix = names(NAMES).chain([LISTED.to_owned()]).collect();
    let rule = DefaultRule { domain_suffix, ip_cidr: prefixes(PREFIXES).collect(), ..Default::default() };
    RuleSetFile { version: 2, rules: vec![rule.into()] }
}

/// Of all kinds that lists of rules have: most by name, some by word, some by network.
fn rule(number: u32, name: &str, network: &str) -> DefaultRule {
    match number % 8 {
        5 => DefaultRule { domain_keyword: vec![format!("word{number}x")], ..Default::default() },
        7 => DefaultRule { ip_cidr: vec![network.to_owned()], ..Default::default() },
        _ => DefaultRule { domain_suffix: vec![name.to_owned()], ..Default::default() },
    }
}

fn many_rules(count: u32) -> impl Iterator<Item = DefaultRule> {
    names(count).zip(prefixes(count)).zip(0..).map(|((name, network), number)| rule(number, &name, &network))
}

fn config(load: Load, port: u16, list: &Path, count: u32) -> Value {
    let mut rules: Vec<Value> = Vec::new();
    match load {
        Load::Nothing => {}
        Load::Rules => rules.extend(many_rules(count).map(|rule| {
            json!({
                "domain_suffix": rule.domain_suffix, "domain_keyword": rule.domain_keyword, "ip_cidr": rule.ip_cidr,
                "action": "reject",
            })
        })),
        Load::Lists => rules.push(json!({ "rule_set": "large", "action": "reject" })),
    }
    // Names lead to the target without a look-up.
    rules.push(json!({ "inbound": "in", "action": "route-options", "override_address": "127.0.0.1" }));
    let mut route = json!({ "rules": rules });
    if load == Load::Lists {
        route["rule_set"] = json!([{ "type": "local", "tag": "large", "format": "binary", "path": list }]);
    }
    json!({
        "log": { "level": "error" },
        "inbounds": [{ "type": "socks", "tag": "in", "listen": "127.0.0.1", "listen_port": port }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": route,
    })
}

fn traffic(
    program: &Program,
    load: Load,
    list: &Path,
    folder: &Path,
    settings: &Settings,
) -> Result<Values, Failure> {
    let target = Target::start(settings.workers)?;
    let port = crate::chain::free_port()?;
    let file = folder.join("config.json");
    fs::write(&file, config(load, port, list, RULES).to_string())
        .map_err(Failure::file("cannot write", &file))?;
    let began = Instant::now();
    let process = Process::spawn(&program.name, &mut program.run(&file), &folder.join("log"))?;
    let pid = process.pid();
    let chain = Chain::through_socks(process, port, &target, ASKED);
    chain.wait_until_ready()?;
    let start = began.elapsed();
    let resident = Memory::of(pid).unwrap_or_default().resident;
    requests::load(&chain, settings.workers, Pace::Full, settings.warm_up)?;
    let outcome = requests::load(&chain, settings.workers, Pace::Full, settings.window)?;
    let count = outcome.latencies.len() as f64;
    let cpu: Duration = outcome.cpu.iter().sum();
    Ok(vec![
        ("rate", count / outcome.time.as_secs_f64()),
        ("cpu", cpu.as_secs_f64() * 1e6 / count),
        ("resident", mib(resident)),
        ("peak", mib(Memory::of(pid).unwrap_or_default().peak)),
        ("start", start.as_secs_f64() * 1e3),
    ])
}

/// Milliseconds of one call for a name in the list.
fn match_once(program: &Program, list: &Path) -> Result<f64, Failure> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).args(["rule-set", "match", "--format", "binary"]).arg(list).arg(LISTED);
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(Failure::io(format!("cannot run {}", program.path.display())))?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() && said.contains("match") {
        return Ok(took);
    }
    let reason =
        format!("`rule-set match` ended with {} and did not say that the name matches", output.status);
    Err(Failure::Start { program: program.name.clone(), reason, log: said })
}

/// Culvert's matcher without anything around it.
fn in_process(binary: &[u8], rounds: usize) -> Result<Vec<Row>, Failure> {
    let refuse = |error: &dyn std::fmt::Display| Failure::Usage(format!("cannot build rules: {error}"));
    let rules: Vec<Rule> = many_rules(RULES)
        .map(|rule| Rule::new(rule.into(), &mut |_| None))
        .collect::<Result<_, _>>()
        .map_err(|error| refuse(&error))?;
    let index = RuleIndex::new(&rules);
    let sets = RuleSets::default();
    let asked = Facts { domain: Some(ASKED), inbound: "in", port: 443, ..Default::default() };
    let list = load("large", Format::Binary, binary).map_err(|error| refuse(&error))?;
    let hits: Vec<String> = names(NAMES).step_by(50).map(|name| format!("www.{name}")).collect();
    let mut next = hits.iter().cycle();
    let mut number = 0u32;
    let mut rows = Vec::new();
    let mut add = |id: &str, title: &str, heap: Option<usize>, decide: &mut dyn FnMut() -> bool| {
        let mut entry = Entry::new("culvert's matcher");
        for _ in 0..rounds {
            let mut values = decisions(decide);
            values.extend(heap.map(|bytes| ("heap", mib(bytes as u64))));
            entry.add(&values);
        }
        rows.push(Row { id: id.to_owned(), title: title.to_owned(), entries: vec![entry] });
    };
    add("inside/rules", "matcher, 10,000 rules that do not match", None, &mut || {
        index.candidates(black_box(&asked), 0).any(|at| rules[at].matches(&asked, &sets))
    });
    add("inside/names", "matcher, a name in 100,000", Some(list.heap_size()), &mut || {
        list.matches(&Facts { domain: next.next().map(String::as_str), ..Default::default() })
    });
    add("inside/addresses", "matcher, an address in 20,000 prefixes", Some(list.heap_size()), &mut || {
        number = number.wrapping_add(0x9e37_79b9);
        let address = IpAddr::V4(Ipv4Addr::from(number));
        list.matches(&Facts { destination: Some(address), ..Default::default() })
    });
    Ok(rows)
}

/// Calls for a tenth of a second.
fn decisions(decide: &mut dyn FnMut() -> bool) -> Values {
    const BATCH: u32 = 100;
    let (began, before, mut count) = (Instant::now(), allocations(), 0u32);
    while began.elapsed() < Duration::from_millis(100) {
        (0..BATCH).for_each(|_| _ = black_box(decide()));
        count += BATCH;
    }
    let took = began.elapsed().as_secs_f64() * 1e6;
    let allocated = (allocations() - before) as f64;
    vec![("decision", took / f64::from(count)), ("allocations", allocated / f64::from(count))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_in_no_rule() {
        let binary = write_binary(&large_list()).unwrap();
        let list = load("large", Format::Binary, &binary).unwrap();
        let local = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(!list.matches(&Facts { domain: Some(ASKED), destination: local, ..Default::default() }));
        assert!(list.matches(&Facts { domain: Some(LISTED), ..Default::default() }));
        let rules = config(Load::Rules, 1, Path::new("/list"), 16);
        assert_eq!(rules["route"]["rules"].as_array().unwrap().len(), 17);
        assert_eq!(rules["route"]["rules"][7]["ip_cidr"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_decision_is_what_connections_cost_more() {
        let row = |cpu: f64| {
            let mut entry = Entry::new("x");
            entry.add(&[("cpu", cpu)]);
            Row { id: "r".into(), title: "r".into(), entries: vec![entry] }
        };
        let mut rows = vec![row(50.0), row(80.0)];
        add_decisions(&mut rows);
        assert_eq!(rows[1].entries[0].samples["decision"], [30.0]);
        assert!(!rows[0].entries[0].samples.contains_key("decision"));
    }
}
