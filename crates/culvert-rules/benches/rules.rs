//! Prints what verdicts and look-ups cost: `cargo bench -p culvert-rules`.
//!
//! Plain wall time of many calls, for a look at one's own machine; nothing is asserted.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // it is a program that prints

use std::{
    hint::black_box,
    net::IpAddr,
    time::{Duration, Instant},
};

use culvert_rules::{
    rule::{DefaultRule, Facts, Rule, RuleIndex, RuleOptions, RuleSets},
    ruleset::{Format, RuleSetFile, build, compile, load, write_binary, write_source},
    sniff::{PacketSniffer, Sniffers, StreamSniffer},
};

fn main() {
    large_list();
    many_rules();
    sniffers();
}

fn names(count: u32) -> Vec<String> {
    let name = |number: u32| {
        let hash = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        format!("host{:x}.example{}.com", hash & 0xff_ffff, hash % 977)
    };
    (0..count).map(name).collect()
}

fn large_list() {
    let domain_suffix = names(100_000);
    let ip_cidr = (0..20_000u32).map(|number| {
        let [a, b, c, _] = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        format!("{a}.{b}.{c}.0/24")
    });
    let hits: Vec<String> = domain_suffix.iter().step_by(50).map(|name| format!("www.{name}")).collect();
    let misses: Vec<String> = hits.iter().map(|name| format!("{name}.org")).collect();
    let near: Vec<String> = hits.iter().map(|name| name.replace("host", "hose")).collect();
    let rule = DefaultRule { domain_suffix, ip_cidr: ip_cidr.collect(), ..Default::default() };
    let file = RuleSetFile { version: 2, rules: vec![rule.into()] };
    let source = write_source(file.clone());
    let binary = write_binary(&file).unwrap();

    println!("100,000 names and 20,000 prefixes");
    let started = Instant::now();
    let set = build("s", file).unwrap();
    println!("  heap                     {:>8} KiB", set.heap_size() / 1024);
    println!("  build from lists         {:>8.1} ms", millis(started.elapsed()));
    let started = Instant::now();
    black_box(load("s", Format::Binary, &binary).unwrap());
    println!("  load .srs ({:>5} KiB)    {:>8.1} ms", binary.len() / 1024, millis(started.elapsed()));
    let started = Instant::now();
    black_box(load("s", Format::Source, source.as_bytes()).unwrap());
    println!("  load .json ({:>4} KiB)    {:>8.1} ms", source.len() / 1024, millis(started.elapsed()));
    let started = Instant::now();
    black_box(compile(source.as_bytes()).unwrap());
    println!("  compile                  {:>8.1} ms", millis(started.elapsed()));

    for (what, names) in [("name, hit", &hits), ("name, miss at once", &misses), ("name, miss late", &near)] {
        let mut next = names.iter().cycle();
        report(what, 400_000, || {
            set.matches(&Facts { domain: next.next().map(String::as_str), ..Default::default() })
        });
    }
    let mut number = 0u32;
    report("address", 1_000_000, || {
        number = number.wrapping_add(0x9e37_79b9);
        set.matches(&Facts { destination: Some(IpAddr::from(number.to_be_bytes())), ..Default::default() })
    });
}

fn many_rules() {
    let rules = |make: &dyn Fn(String) -> RuleOptions| -> Vec<Rule> {
        let build = |name| Rule::new(make(name), &mut |_| None).unwrap();
        names(10_000).into_iter().map(build).collect()
    };
    let suffix = rules(&|name| DefaultRule { domain_suffix: vec![name], ..Default::default() }.into());
    let keyword = rules(&|name| DefaultRule { domain_keyword: vec![name], ..Default::default() }.into());
    let mixed = rules(&|name| {
        DefaultRule {
            domain_suffix: vec![name],
            port: vec![443],
            inbound: vec!["in".into()],
            ..Default::default()
        }
        .into()
    });
    println!("10,000 rules, none of which matches");
    let sets = RuleSets::default();
    let facts =
        Facts { domain: Some("www.unlisted.example1.com"), inbound: "in", port: 443, ..Default::default() };
    for (what, rules) in [("suffix", suffix), ("keyword", keyword), ("inbound, port, suffix", mixed)] {
        let index = RuleIndex::new(&rules);
        report(&format!("{what}, indexed"), 10_000, || {
            index.candidates(black_box(&facts), 0).find(|at| rules[*at].matches(&facts, &sets)).is_some()
        });
        report(what, 200, || rules.iter().position(|rule| rule.matches(black_box(&facts), &sets)).is_some());
    }
}

fn sniffers() {
    println!("sniffers, all enabled");
    let request =
        b"GET /index.html HTTP/1.1\r\nHost: example.com\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
    report("HTTP request", 200_000, || StreamSniffer::new(Sniffers::ALL).sniff(black_box(request)));
    let dump = include_str!("../src/sniff/vectors/rfc9001-a2.hex");
    let digits: Vec<u8> = dump.lines().skip(1).flat_map(str::bytes).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let packet: Vec<u8> = digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    report("QUIC Initial", 20_000, || PacketSniffer::new(Sniffers::ALL).sniff(black_box(&packet)));
    report("random packet", 500_000, || PacketSniffer::new(Sniffers::ALL).sniff(black_box(&[0x47; 188])));
}

/// The best of several rounds: what other programs take of the processor is not ours.
fn report<T>(what: &str, calls: u32, mut work: impl FnMut() -> T) {
    const ROUNDS: u32 = 20;
    let calls = calls / ROUNDS;
    let mut round = || {
        let started = Instant::now();
        (0..calls).for_each(|_| drop(black_box(work())));
        started.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let best = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
    println!("  {what:<32} {best:>8.0} ns");
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
