//! A verdict allocates nothing: every kind of item, merged and opaque rule-sets, logical rules, hits and misses.

// Counting allocations takes an allocator, and an allocator is unsafe by its trait. It only forwards.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use culvert_rules::{
    domain::canonical_name,
    ip::Prefix,
    rule::{
        DefaultRule, Environment, Facts, Interface, LogicalRule, Mode, Network, NetworkType, Process, Rule,
        RuleOptions, RuleSet, RuleSetId, RuleSets,
    },
};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: both methods hand their arguments to the system's allocator unchanged and return what it returns.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` through `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

fn list(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn rules() -> Vec<RuleOptions> {
    let prefix: Prefix = "10.0.0.0/8".parse().expect("a prefix");
    let all = |rule: DefaultRule| -> RuleOptions { rule.into() };
    vec![
        all(DefaultRule {
            domain: list(&["a.test"]),
            domain_suffix: list(&["b.test", ".c"]),
            ..Default::default()
        }),
        all(DefaultRule { domain_keyword: list(&["one"]), ..Default::default() }),
        all(DefaultRule { domain_keyword: list(&["one", "two", "three"]), ..Default::default() }),
        all(DefaultRule { domain_regex: list(&["^www\\.", "\\.test$"]), ..Default::default() }),
        all(DefaultRule { adguard_domain: list(&["||ads*.test^", "track"]), ..Default::default() }),
        all(DefaultRule {
            ip_cidr: list(&["10.0.0.0/8", "2001:db8::/32"]),
            port: vec![443],
            ..Default::default()
        }),
        all(DefaultRule { source_ip_is_private: true, port_range: list(&["1000:"]), ..Default::default() }),
        all(DefaultRule { inbound: list(&["in", "tun"]), network: list(&["tcp"]), ..Default::default() }),
        all(DefaultRule { process_name: list(&["curl"]), ..Default::default() }),
        all(DefaultRule {
            process_path_regex: list(&["^/usr/"]),
            user: list(&["root"]),
            ..Default::default()
        }),
        all(DefaultRule {
            clash_mode: Some("Global".into()),
            network_type: vec![NetworkType::Wifi],
            ..Default::default()
        }),
        all(DefaultRule { default_interface_address: vec![prefix], ..Default::default() }),
        all(DefaultRule { rule_set: list(&["merged", "opaque"]), port: vec![80], ..Default::default() }),
        LogicalRule {
            mode: Mode::And,
            rules: vec![
                all(DefaultRule { rule_set: list(&["opaque"]), invert: true, ..Default::default() }),
                all(DefaultRule { auth_user: list(&["u"]), protocol: list(&["tls"]), ..Default::default() }),
            ],
            invert: true,
        }
        .into(),
    ]
}

#[test]
fn verdicts_allocate_nothing() {
    let headless = |rule: DefaultRule| Rule::headless(rule.into()).expect("a rule");
    let one = headless(DefaultRule { domain_suffix: list(&["set.test"]), ..Default::default() });
    let other = headless(DefaultRule { ip_cidr: list(&["192.0.2.0/24"]), ..Default::default() });
    let sets = RuleSets(vec![
        Arc::new(RuleSet::new("merged", vec![one.clone()])),
        Arc::new(RuleSet::new("opaque", vec![one, other])),
    ]);
    let mut find =
        |tag: &str| ["merged", "opaque"].iter().position(|it| *it == tag).map(|at| RuleSetId(at as u32));
    let rules: Vec<Rule> =
        rules().into_iter().map(|rule| Rule::new(rule, &mut find).expect("a rule")).collect();

    let process = Process { path: "/usr/bin/curl".into(), user: "root".into(), ..Default::default() };
    let interface = Interface {
        kind: NetworkType::Wifi,
        addresses: vec!["10.1.2.3/24".parse().expect("a prefix")],
        ..Default::default()
    };
    let environment = Environment {
        interfaces: vec![interface],
        default_interface: Some(0),
        clash_mode: Some("global".into()),
        ..Default::default()
    };
    let base = Facts {
        network: Some(Network::Tcp),
        inbound: "in",
        user: Some("u"),
        protocol: Some("tls"),
        source: "192.168.0.7".parse().ok(),
        process: Some(&process),
        environment: Some(&environment),
        ..Default::default()
    };
    let mut flows = Vec::new();
    for name in ["a.test", "x.b.test", "www.one.test", "ads7.test", "x.set.test", "bücher.test", "nothing"] {
        for port in [80, 443, 5000] {
            flows.push(Facts { domain: Some(name), port, ..base });
        }
    }
    for addr in ["10.1.1.1", "2001:db8::1", "192.0.2.9", "8.8.8.8"] {
        flows.push(Facts { destination: addr.parse().ok(), port: 443, ..base });
    }

    let judge_all = || {
        let verdicts = rules.iter().flat_map(|rule| flows.iter().map(|facts| rule.matches(facts, &sets)));
        verdicts.filter(|matched| *matched).count()
    };
    // Patterns make room for their caches once per thread.
    let expected = judge_all();
    assert!(expected > 50, "{expected} matches are no test");
    assert_eq!(allocations(|| assert_eq!(judge_all(), expected)), 0);
    assert_eq!(allocations(|| assert_eq!(canonical_name("www.example.com."), "www.example.com")), 0);
    assert_ne!(
        allocations(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(1)))),
        0,
        "the counter counts"
    );
}
