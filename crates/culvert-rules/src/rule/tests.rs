//! Rules against tables from `SURFACE.md` section 12.2, and against a second evaluator written from the same section.

use std::{net::IpAddr, sync::Arc};

use super::*;
use crate::ip::{Prefix, is_private};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn list(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn rule(options: DefaultRule) -> Rule {
    Rule::new(options.into(), &mut |_| None).unwrap()
}

fn matches(options: DefaultRule, facts: Facts<'_>) -> bool {
    rule(options).matches(&facts, &RuleSets::default())
}

/// Rule-sets by tag, numbered as listed.
fn sets(list: &[(&str, Vec<RuleOptions>)]) -> RuleSets {
    let build =
        |rules: &Vec<RuleOptions>| rules.iter().cloned().map(|rule| Rule::headless(rule).unwrap()).collect();
    RuleSets(list.iter().map(|(tag, rules)| Arc::new(RuleSet::new(*tag, build(rules)))).collect())
}

fn id_of(list: &[(&str, Vec<RuleOptions>)], tag: &str) -> Option<RuleSetId> {
    list.iter().position(|entry| entry.0 == tag).map(|at| RuleSetId(at as u32))
}

fn domain(name: &str) -> DefaultRule {
    DefaultRule { domain: list(&[name]), ..Default::default() }
}

#[test]
fn groups_are_anded_and_their_items_ored() {
    let options = DefaultRule {
        domain: list(&["a.test"]),
        ip_cidr: list(&["192.0.2.0/24"]),
        port: vec![80],
        port_range: list(&["1000:2000"]),
        ..Default::default()
    };
    let rule = rule(options);
    let judge = |domain, destination, port| {
        rule.matches(&Facts { domain, destination, port, ..Default::default() }, &RuleSets::default())
    };
    assert!(judge(Some("a.test"), None, 80));
    assert!(judge(None, Some(ip("192.0.2.9")), 1500));
    assert!(judge(Some("a.test"), Some(ip("198.51.100.1")), 1000));
    assert!(!judge(Some("b.test"), Some(ip("198.51.100.1")), 80));
    assert!(!judge(Some("a.test"), None, 81));
}

#[test]
fn a_rule_without_conditions_matches_whatever_its_invert() {
    for invert in [false, true] {
        assert!(matches(DefaultRule { invert, ..Default::default() }, Facts::default()));
    }
    let headless = Rule::headless(DefaultRule { invert: true, ..Default::default() }.into());
    assert_eq!(headless.unwrap_err(), RuleError::MissingConditions);
}

#[test]
fn rule_values_are_not_folded() {
    let facts = Facts { domain: Some("a.example"), ..Default::default() };
    assert!(!matches(domain("A.Example"), facts));
    assert!(!matches(DefaultRule { domain_regex: list(&["^A"]), ..Default::default() }, facts));
    assert!(matches(DefaultRule { domain_regex: list(&["(?i)^A"]), ..Default::default() }, facts));
}

/// A name spelled with a trailing dot or in capitals must not walk past a rule (apernet/hysteria#1574).
#[test]
fn every_spelling_of_a_name_gets_one_verdict() {
    let rules = [
        domain("a.example"),
        DefaultRule { domain_suffix: list(&["example"]), ..Default::default() },
        DefaultRule { domain_keyword: list(&["exam"]), ..Default::default() },
        DefaultRule { domain_regex: list(&["\\.example$"]), ..Default::default() },
    ];
    for options in rules {
        for spelling in ["a.example", "a.example.", "A.EXAMPLE", "a.Example."] {
            let name = crate::domain::canonical_name(spelling);
            assert!(
                matches(options.clone(), Facts { domain: Some(&name), ..Default::default() }),
                "{spelling}"
            );
        }
    }
}

#[test]
fn an_unresolved_name_has_no_address() {
    let options = DefaultRule { ip_cidr: list(&["0.0.0.0/0"]), ..Default::default() };
    let facts = Facts { domain: Some("a.test"), ..Default::default() };
    assert!(!matches(options.clone(), facts));
    let found = [ip("192.0.2.1"), ip("2001:db8::1")];
    assert!(matches(options.clone(), Facts { addresses: &found, ..facts }));
    let found = [ip("2001:db8::1")];
    assert!(!matches(options, Facts { addresses: &found, ..facts }));
    // The literal destination wins over addresses found for something else.
    let private = DefaultRule { ip_is_private: true, ..Default::default() };
    let facts =
        Facts { destination: Some(ip("192.0.2.1")), addresses: &[IpAddr::V4([10, 0, 0, 1].into())], ..facts };
    assert!(!matches(private, facts));
}

/// A fake address stands for a name: it is no private address, in neither family's usual range (F7).
#[test]
fn fake_addresses_are_not_private() {
    let options = DefaultRule { ip_is_private: true, ..Default::default() };
    for fake in ["198.18.0.5", "198.19.255.255", "100.64.0.1"] {
        assert!(
            !matches(options.clone(), Facts { destination: Some(ip(fake)), ..Default::default() }),
            "{fake}"
        );
    }
}

#[test]
fn merged_and_opaque_rule_sets() {
    let port = DefaultRule { port: vec![443], ..Default::default() };
    let table = [
        ("suffix", vec![DefaultRule { domain_suffix: list(&["y"]), ..Default::default() }.into()]),
        ("port", vec![port.into()]),
        ("two", vec![domain("a").into(), domain("b").into()]),
        ("both", vec![DefaultRule { domain: list(&["y"]), port: vec![443], ..Default::default() }.into()]),
        ("source", vec![DefaultRule { ip_cidr: list(&["127.0.0.0/8"]), ..Default::default() }.into()]),
        ("inverted", vec![DefaultRule { invert: true, ..domain("a") }.into()]),
    ];
    let sets = sets(&table);
    let refer = |tags: &[&str]| DefaultRule { rule_set: list(tags), ..Default::default() };
    let flows = ["x", "y", "a"].into_iter().flat_map(|name| [(name, 80), (name, 443)]);
    let verdicts = |options: DefaultRule| -> String {
        let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
        let source = Some(ip("127.0.0.1"));
        let judge = |(name, port)| {
            rule.matches(&Facts { domain: Some(name), port, source, ..Default::default() }, &sets)
        };
        flows.clone().map(|flow| if judge(flow) { '1' } else { '0' }).collect()
    };
    // Probed with sing-box 1.14.4: flows x:80 x:443 y:80 y:443 a:80 a:443.
    for (options, expected) in [
        (DefaultRule { domain: list(&["x"]), ..refer(&["suffix"]) }, "111100"),
        (DefaultRule { domain: list(&["x"]), ..refer(&["two"]) }, "000000"),
        (refer(&["two"]), "000011"),
        (DefaultRule { port: vec![80], ..refer(&["port"]) }, "111111"),
        (DefaultRule { domain: list(&["x"]), ..refer(&["suffix", "port"]) }, "111100"),
        (DefaultRule { domain: list(&["x"]), ..refer(&["both"]) }, "010100"),
        (DefaultRule { domain: list(&["x"]), invert: true, ..refer(&["both"]) }, "101011"),
        (DefaultRule { rule_set_ip_cidr_match_source: true, ..refer(&["source"]) }, "111111"),
        (
            DefaultRule { rule_set_ip_cidr_match_source: true, domain: list(&["x"]), ..refer(&["source"]) },
            "110000",
        ),
        (
            DefaultRule {
                rule_set_ip_cidr_match_source: true,
                source_ip_cidr: list(&["1.2.3.4"]),
                ..refer(&["source"])
            },
            "111111",
        ),
        (refer(&["inverted"]), "111100"),
        (DefaultRule { domain: list(&["a"]), ..refer(&["inverted"]) }, "000000"),
    ] {
        assert_eq!(verdicts(options.clone()), expected, "{options:?}");
    }
}

#[test]
fn an_answer_without_addresses_passes_where_the_rule_says_so() {
    let cidr = DefaultRule { ip_cidr: list(&["192.0.2.0/24"]), ..Default::default() };
    let table = [("one", vec![cidr.clone().into()]), ("two", vec![cidr.clone().into(), domain("a").into()])];
    let sets = sets(&table);
    let inside = [ip("192.0.2.1")];
    let outside = [ip("198.51.100.1")];
    for tag in ["one", "two"] {
        for accept in [false, true] {
            let options = DefaultRule {
                rule_set: list(&[tag]),
                rule_set_ip_cidr_accept_empty: accept,
                ..Default::default()
            };
            let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
            let judge = |addresses| rule.matches(&Facts { addresses, ..Default::default() }, &sets);
            assert_eq!([judge(&inside), judge(&outside), judge(&[])], [true, false, accept], "{tag}");
        }
    }
    // Nor does it reach into logical rules.
    let logical = LogicalRule { mode: Mode::And, rules: vec![cidr.clone().into()], invert: false };
    let table = [("logical", vec![logical.into()])];
    let options = DefaultRule {
        rule_set: list(&["logical"]),
        rule_set_ip_cidr_accept_empty: true,
        ..Default::default()
    };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    assert!(!rule.matches(&Facts::default(), &self::sets(&table)));
    // A condition of the rule's own is none of a rule-set's.
    let options = DefaultRule { rule_set_ip_cidr_accept_empty: true, ..cidr };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    assert!(!rule.matches(&Facts::default(), &sets));
}

#[test]
fn rule_sets_can_be_replaced_under_a_rule() {
    let table = [("s", vec![domain("a").into()])];
    let options = DefaultRule { rule_set: list(&["s"]), ..Default::default() };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    let facts = Facts { domain: Some("b"), ..Default::default() };
    assert!(!rule.matches(&facts, &sets(&table)));
    assert!(rule.matches(&facts, &sets(&[("s", vec![domain("b").into()])])));
    assert!(!rule.matches(&facts, &RuleSets(vec![Arc::default()])), "an empty set matches nothing");
    assert!(!rule.matches(&facts, &RuleSets::default()), "nor does one that is not there");
}

#[test]
fn every_other_item_matches_and_fails() {
    let process = Process {
        path: "/usr/bin/curl".into(),
        packages: list(&["org.a", "org.b"]),
        user: "root".into(),
        user_id: Some(0),
    };
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    let interface = |name: &str, kind, addresses: &[&str]| Interface {
        name: name.into(),
        kind,
        addresses: addresses.iter().map(|text| prefix(text)).collect(),
        expensive: kind == NetworkType::Cellular,
        constrained: kind == NetworkType::Cellular,
    };
    let environment = Environment {
        interfaces: vec![
            interface("wlan0", NetworkType::Wifi, &["192.168.1.5/24", "fe80::1/64"]),
            interface("rmnet0", NetworkType::Cellular, &["10.1.2.3/8"]),
        ],
        default_interface: Some(1),
        wifi_ssid: "home".into(),
        wifi_bssid: "aa:bb".into(),
        clash_mode: Some("Global".into()),
    };
    struct Prefers;
    impl Preferences for Prefers {
        fn prefers_domain(&self, outbound: &str, domain: &str) -> bool {
            outbound == "ts" && domain.ends_with(".ts.net")
        }
        fn prefers_address(&self, outbound: &str, address: IpAddr) -> bool {
            outbound == "wg" && address == ip("10.9.0.1")
        }
    }
    let query = Query { kind: 65, dnssec: true, client_subnet: Some(prefix("203.0.113.0/24")) };
    let facts = Facts {
        network: Some(Network::Udp),
        inbound: "tun",
        ip_version: None,
        user: Some("ann"),
        protocol: Some("quic"),
        client: Some("chromium"),
        domain: Some("a.ts.net"),
        destination: Some(ip("10.9.0.1")),
        source: Some(ip("192.168.1.77")),
        source_port: 4000,
        source_mac: Some([0, 1, 2, 0xaa, 0xbb, 0xcc]),
        source_hostname: Some("tv"),
        process: Some(&process),
        query: Some(query),
        outbound: Some("proxy"),
        environment: Some(&environment),
        preferences: Some(&Prefers),
        ..Default::default()
    };
    macro_rules! item {
        ($($field:ident: $yes:expr, $no:expr;)*) => {$(
            for (value, expected) in [($yes, true), ($no, false)] {
                let options = DefaultRule { $field: value, ..Default::default() };
                assert_eq!(matches(options.clone(), facts), expected, "{options:?}");
                assert_eq!(matches(DefaultRule { invert: true, ..options }, facts), !expected);
                if !expected {
                    continue;
                }
                let options = DefaultRule { $field: $yes, ..Default::default() };
                assert!(!matches(options, Facts { port: 1, ..Default::default() }), "an unknown fact matches");
            }
        )*};
    }
    item! {
        inbound: list(&["x", "tun"]), list(&["x", "y"]);
        ip_version: Some(IpVersion::V4), Some(IpVersion::V6);
        query_type: vec![1, 65], vec![1];
        query_client_subnet: list(&["203.0.0.0/16"]), list(&["203.0.112.0/24"]);
        network: list(&["udp", "sctp"]), list(&["tcp"]);
        auth_user: list(&["ann"]), list(&["Ann"]);
        protocol: list(&["tls", "quic"]), list(&["tls"]);
        client: list(&["chromium"]), list(&["firefox"]);
        source_ip_cidr: list(&["192.168.0.0/16"]), list(&["192.168.1.1"]);
        source_port: vec![1, 4000], vec![1];
        source_port_range: list(&["1:2", "3999:"]), list(&["4001:", "4000:3999"]);
        process_name: list(&["curl"]), list(&["/usr/bin/curl"]);
        process_path: list(&["/usr/bin/curl"]), list(&["curl"]);
        process_path_regex: list(&["^/usr/.*curl$"]), list(&["^curl"]);
        package_name: list(&["org.b"]), list(&["org"]);
        package_name_regex: list(&["\\.b$"]), list(&["^b"]);
        user: list(&["root"]), list(&["nobody"]);
        user_id: vec![0, 1000], vec![-1];
        outbound: list(&["any"]), list(&["other"]);
        clash_mode: Some("gLOBAL".into()), Some("rule".into());
        network_type: vec![NetworkType::Cellular], vec![NetworkType::Wifi];
        wifi_ssid: list(&["home"]), list(&["Home"]);
        wifi_bssid: list(&["aa:bb"]), list(&["aa:bc"]);
        interface_address: vec![("wlan0".into(), vec![prefix("192.168.0.0/16")])], vec![("wlan0".into(), vec![prefix("10.0.0.0/8")])];
        network_interface_address: vec![(NetworkType::Cellular, vec![prefix("10.0.0.0/8")])], vec![(NetworkType::Ethernet, vec![prefix("10.0.0.0/8")])];
        default_interface_address: vec![prefix("10.1.0.0/16")], vec![prefix("10.1.0.0/16"), prefix("192.168.0.0/16")];
        source_mac_address: list(&["00-01-02-AA-BB-CC"]), list(&["00:01:02:aa:bb:cd", "junk"]);
        source_hostname: list(&["tv"]), list(&["radio"]);
        preferred_by: list(&["ts"]), list(&["other"]);
    }
    macro_rules! flag {
        ($($field:ident, $no:expr;)*) => {$(
            let options = DefaultRule { $field: true, ..Default::default() };
            assert!(matches(options.clone(), facts), "{options:?}");
            assert!(!matches(options, $no));
        )*};
    }
    let other = Environment { default_interface: Some(0), ..environment.clone() };
    flag! {
        query_dnssec, Facts { query: Some(Query { dnssec: false, ..query }), ..facts };
        source_ip_is_private, Facts { source: Some(ip("8.8.8.8")), ..facts };
        ip_is_private, Facts { destination: Some(ip("8.8.8.8")), ..facts };
        ip_accept_any, Facts { destination: None, ..facts };
        network_is_expensive, Facts { environment: Some(&other), ..facts };
        network_is_constrained, Facts { environment: Some(&other), ..facts };
    }
    assert!(matches(
        DefaultRule { preferred_by: list(&["wg"]), ..Default::default() },
        Facts { domain: None, ..facts }
    ));
    let version = |ip_version| DefaultRule { ip_version, ..Default::default() };
    assert!(matches(
        version(Some(IpVersion::V6)),
        Facts { ip_version: Some(IpVersion::V6), ..Default::default() }
    ));
    assert!(!matches(
        version(Some(IpVersion::V6)),
        Facts { destination: Some(ip("::ffff:1.2.3.4")), ..Default::default() }
    ));
}

struct Answers {
    latest: Option<Answer>,
    tagged: Option<Answer>,
}

struct Answer(Vec<IpAddr>, u16);

impl Responses for Answers {
    fn response(&self, tag: Option<&str>) -> Option<&dyn Response> {
        let answer = if tag == Some("t") { &self.tagged } else { &self.latest };
        answer.as_ref().map(|answer| answer as &dyn Response)
    }
}

impl Response for Answer {
    fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    fn rcode(&self) -> u16 {
        self.1
    }

    fn has_record(&self, section: Section, record: &[u8]) -> bool {
        section == Section::Answer && record == b"record"
    }
}

#[test]
fn response_conditions_look_at_the_answer_they_name() {
    let answers = Answers {
        latest: Some(Answer(vec![ip("10.0.0.1")], 0)),
        tagged: Some(Answer(vec![ip("192.0.2.1")], 3)),
    };
    let facts = Facts { responses: Some(&answers), domain: Some("a"), ..Default::default() };
    let tagged = Some(MatchResponse::Tagged("t".into()));
    let latest = Some(MatchResponse::Latest);
    let private = DefaultRule { ip_is_private: true, ..Default::default() };
    assert!(matches(DefaultRule { match_response: latest.clone(), ..private.clone() }, facts));
    assert!(!matches(DefaultRule { match_response: tagged.clone(), ..private.clone() }, facts));
    assert!(!matches(private, facts), "without match_response there is no answer to look at");
    let rcode = DefaultRule { response_rcode: Some(3), match_response: tagged.clone(), ..Default::default() };
    assert!(matches(rcode.clone(), facts));
    assert!(!matches(DefaultRule { match_response: latest.clone(), ..rcode.clone() }, facts));
    let record = |text: &str| Record { text: text.into(), data: text.into() };
    let answer = |text| DefaultRule {
        response_answer: vec![record(text)],
        match_response: latest.clone(),
        ..Default::default()
    };
    assert!(matches(answer("record"), facts) && !matches(answer("other"), facts));
    let ns =
        DefaultRule { response_ns: vec![record("record")], match_response: latest, ..Default::default() };
    assert!(!matches(ns, facts));
    let failed = Answers { latest: None, tagged: None };
    let facts = Facts { responses: Some(&failed), ..facts };
    assert!(!matches(rcode.clone(), facts) && !matches(DefaultRule { invert: true, ..rcode }, facts));
    // Rule-sets of addresses look at the answer as well.
    let table = [("s", vec![DefaultRule { ip_cidr: list(&["192.0.2.0/24"]), ..Default::default() }.into()])];
    let options = DefaultRule { rule_set: list(&["s"]), match_response: tagged, ..Default::default() };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    assert!(rule.matches(&Facts { responses: Some(&answers), ..Default::default() }, &sets(&table)));
}

#[test]
fn pending_addresses_hold_back_address_conditions_only() {
    let facts = Facts { addresses_pending: true, domain: Some("a"), ..Default::default() };
    let cidr = DefaultRule { ip_cidr: list(&["10.0.0.0/8"]), ..Default::default() };
    assert!(matches(cidr.clone(), facts));
    assert!(matches(DefaultRule { invert: true, ..cidr.clone() }, facts));
    assert!(matches(DefaultRule { domain: list(&["a"]), ..cidr.clone() }, facts));
    assert!(!matches(DefaultRule { domain: list(&["b"]), ..cidr.clone() }, facts));
    assert!(!matches(DefaultRule { port: vec![1], ..cidr.clone() }, facts));
    let table = [("s", vec![cidr.into()])];
    let options = DefaultRule { rule_set: list(&["s"]), ..Default::default() };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    assert!(rule.matches(&facts, &sets(&table)));
}

/// Probed with sing-box 1.14.4: its verdict on an inverted rule is the one that the addresses give in the end.
#[test]
fn inverted_rules_wait_for_addresses_whatever_else_they_look_at() {
    let pending = Facts { addresses_pending: true, domain: Some("a"), port: 1, ..Default::default() };
    let cidr = DefaultRule { ip_cidr: list(&["10.0.0.0/8"]), ..Default::default() };
    let with_port = DefaultRule { port: vec![1], ..cidr.clone() };
    let inverted = |rule: DefaultRule| DefaultRule { invert: true, ..rule };
    let table = [
        ("one", vec![cidr.clone().into()]),
        ("two", vec![cidr.clone().into(), domain("b").into()]),
        ("turned", vec![inverted(with_port.clone()).into()]),
        ("names", vec![domain("b").into()]),
    ];
    let sets = sets(&table);
    let judge = |options: RuleOptions| {
        let rule = Rule::new(options, &mut |tag| id_of(&table, tag)).unwrap();
        rule.matches(&pending, &sets)
    };
    let refer = |tag: &str| DefaultRule { rule_set: list(&[tag]), ..Default::default() };
    let logical = |rules: Vec<RuleOptions>, invert| LogicalRule { mode: Mode::And, rules, invert }.into();
    let port = DefaultRule { port: vec![1], ..Default::default() };
    assert!(judge(inverted(with_port.clone()).into()));
    assert!(judge(inverted(refer("one")).into()));
    assert!(judge(inverted(refer("two")).into()));
    assert!(judge(refer("turned").into()));
    assert!(judge(logical(vec![cidr.into(), port.clone().into()], true)));
    assert!(judge(logical(vec![inverted(with_port).into()], false)));
    // Without addresses in it a rule is judged at once.
    assert!(!judge(inverted(port.clone()).into()));
    assert!(judge(inverted(refer("names")).into()));
    let from_source = DefaultRule { rule_set_ip_cidr_match_source: true, ..refer("two") };
    assert!(judge(inverted(from_source).into()), "the source is in no set");
    assert!(!judge(logical(vec![port.into()], true)));
}

/// Probed with sing-box 1.14.4, as above.
#[test]
fn what_a_name_decides_waits_for_no_addresses() {
    let cidr = DefaultRule { ip_cidr: list(&["10.0.0.0/8"]), ..Default::default() };
    let name = DefaultRule { domain: list(&["a"]), ..Default::default() };
    let both = DefaultRule { domain: list(&["a"]), ..cidr.clone() };
    let source = DefaultRule { source_ip_cidr: list(&["127.0.0.1"]), ..Default::default() };
    let logical =
        |mode, rules: Vec<RuleOptions>, invert| -> RuleOptions { LogicalRule { mode, rules, invert }.into() };
    let parts = || vec![cidr.clone().into(), name.clone().into()];
    let table = [
        ("addresses", vec![cidr.clone().into()]),
        ("opaque", vec![cidr.clone().into(), domain("z").into()]),
        ("both", vec![both.clone().into()]),
        ("all", vec![logical(Mode::And, parts(), false)]),
        ("not_all", vec![logical(Mode::And, parts(), true)]),
        ("turned", vec![DefaultRule { invert: true, ..both.clone() }.into()]),
    ];
    let sets = sets(&table);
    let inverted = |rule: &DefaultRule| DefaultRule { invert: true, ..rule.clone() };
    let refer = |tag: &str| DefaultRule { rule_set: list(&[tag]), ..Default::default() };
    let named = |tag: &str| DefaultRule { domain: list(&["a"]), ..refer(tag) };
    // With the name `a`, and with another one.
    let cases: [(&str, RuleOptions, [bool; 2]); 13] = [
        ("a name beside addresses", inverted(&both).into(), [false, true]),
        ("a set of both", inverted(&refer("both")).into(), [false, true]),
        ("a name outside", inverted(&named("addresses")).into(), [false, true]),
        ("a name outside an opaque set", inverted(&named("opaque")).into(), [false, true]),
        ("a name outside a logical set", inverted(&named("all")).into(), [false, true]),
        ("an opaque set", inverted(&refer("opaque")).into(), [true, true]),
        ("an inverted set of all", inverted(&refer("not_all")).into(), [true, false]),
        ("an inverted set of both", inverted(&refer("turned")).into(), [true, false]),
        ("none of two", logical(Mode::Or, parts(), true), [false, true]),
        ("not both of two", logical(Mode::And, parts(), true), [true, true]),
        (
            "neither",
            logical(Mode::Or, vec![cidr.clone().into(), source.clone().into()], true),
            [false, false],
        ),
        (
            "not both inside",
            logical(Mode::And, vec![inverted(&both).into(), source.into()], true),
            [true, false],
        ),
        (
            "opaque or a name",
            logical(Mode::Or, vec![refer("opaque").into(), name.clone().into()], true),
            [false, true],
        ),
    ];
    for (what, options, expected) in cases {
        let rule = Rule::new(options, &mut |tag| id_of(&table, tag)).unwrap();
        let judge = |domain| {
            let source = Some(ip("127.0.0.1"));
            rule.matches(
                &Facts { addresses_pending: true, domain: Some(domain), source, ..Default::default() },
                &sets,
            )
        };
        assert_eq!([judge("a"), judge("b")], expected, "{what}");
    }
}

#[test]
fn errors_are_worded_as_in_sing_box() {
    let error = |options: RuleOptions| Rule::new(options, &mut |_| None).unwrap_err().to_string();
    for (options, text) in [
        (
            DefaultRule { source_ip_cidr: list(&["1.1.1.1", "lan"]), ..Default::default() },
            "source_ip_cidr: parse [1]: netip.ParsePrefix(\"lan\"): no '/'",
        ),
        (
            DefaultRule { ip_cidr: list(&["192.0.2.0/33"]), ..Default::default() },
            "ipcidr: parse [0]: netip.ParsePrefix(\"192.0.2.0/33\"): prefix length out of range",
        ),
        (
            DefaultRule { domain_suffix: list(&[""]), ..Default::default() },
            "domain_suffix: empty item is not allowed",
        ),
        (domain(""), "domain: empty item is not allowed"),
        (DefaultRule { port_range: list(&["443"]), ..Default::default() }, "port_range: bad port range: 443"),
        (
            DefaultRule { source_port_range: list(&["a:b"]), ..Default::default() },
            "source_port_range: bad port range: a:b: strconv.ParseUint: parsing \"a\": invalid syntax",
        ),
        (
            DefaultRule { domain_regex: list(&["(unclosed"]), ..Default::default() },
            "parse expression 0: error parsing regexp: missing closing ): `(unclosed`",
        ),
        (DefaultRule { rule_set: list(&["nope"]), ..Default::default() }, "rule-set not found: nope"),
    ] {
        assert_eq!(error(options.into()), text);
    }
    let nested = |rules: Vec<RuleOptions>| LogicalRule { mode: Mode::And, rules, invert: false };
    let inner = nested(vec![
        domain("a").into(),
        DefaultRule { process_path_regex: list(&["("]), ..Default::default() }.into(),
    ]);
    assert_eq!(
        error(nested(vec![inner.into()]).into()),
        "sub rule[0]: sub rule[1]: process_path_regex: parse expression 0: error parsing regexp: missing closing ): `(`"
    );
    assert_eq!(error(nested(vec![]).into()), "missing conditions");
    assert_eq!(error(nested(vec![DefaultRule::default().into()]).into()), "missing conditions");
    // An address with a zone is an address to Go, and in no set.
    assert!(!matches(DefaultRule { ip_cidr: list(&["fe80::1%lo"]), ..Default::default() }, Facts::default()));
}

/// The line `rule-set match` printed for a rule with every item, and nested logical rules.
#[test]
fn descriptions_are_those_of_sing_box() {
    let options = DefaultRule {
        query_type: vec![1, 65, 1234],
        network: list(&["tcp", "udp"]),
        domain: list(&["a"]),
        domain_suffix: list(&["b"]),
        domain_keyword: list(&["k", "l", "m", "n"]),
        domain_regex: list(&["r"]),
        source_ip_cidr: list(&["1.1.1.1"]),
        ip_cidr: list(&["2.2.2.2"]),
        source_port: vec![2, 1],
        source_port_range: list(&["1:2", ":3"]),
        port: vec![1],
        port_range: list(&["1:2"]),
        process_name: list(&["n"]),
        process_path: list(&["p"]),
        process_path_regex: list(&["pr"]),
        package_name: list(&["pn"]),
        package_name_regex: list(&["x", "y", "z", "w"]),
        network_type: vec![NetworkType::Wifi],
        wifi_ssid: list(&["s"]),
        invert: true,
        ..Default::default()
    };
    let rule = Rule::headless_without_environment(options.into()).unwrap();
    assert_eq!(
        rule.to_string(),
        "!(query_type=[A HTTPS 1234] network=[tcp udp] domain=a domain_suffix=b domain_keyword=[k l m...] \
         domain_regex=r source_ip_cidr=1.1.1.1 ip_cidr=2.2.2.2 source_port=[2 1] source_port_range=[1:2 :3] port=1 \
         port_range=1:2 process_name=n process_path=p process_path_regex=pr package_name=pn \
         package_name_regex=[x y z])"
    );
    let port = DefaultRule { port: vec![1], invert: true, ..Default::default() };
    let inner = LogicalRule { mode: Mode::And, rules: vec![domain("q").into(), port.into()], invert: true };
    let outer = LogicalRule { mode: Mode::Or, rules: vec![inner.into(), domain("z").into()], invert: false };
    let rule = Rule::headless(outer.into()).unwrap();
    assert_eq!(rule.to_string(), "!(domain=q && !(port=1)) || domain=z");
}

#[test]
fn explaining_tells_what_was_looked_at() {
    let table = [("s", vec![domain("a").into()]), ("two", vec![domain("a").into(), domain("b").into()])];
    let part = DefaultRule { rule_set: list(&["s", "two"]), port: vec![443], ..Default::default() };
    let options = LogicalRule { mode: Mode::Or, rules: vec![domain("x").into(), part.into()], invert: false };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    let facts = Facts { domain: Some("b"), port: 443, ..Default::default() };
    let mut log = Vec::new();
    let matched = rule.explain(&facts, &sets(&table), &mut |event: Event<'_>| {
        log.push(match event {
            Event::Item { item, matched } => format!("{item} {matched}"),
            Event::RuleSets { text, matched } => format!("{text} {matched}"),
            Event::EnterRuleSet { tag, merged } => format!("> {tag} {merged}"),
            Event::LeaveRuleSet { tag, matched } => format!("< {tag} {matched}"),
            Event::EnterPart { index, rule } => format!("> {index} {rule}"),
            Event::LeavePart { index, matched } => format!("< {index} {matched}"),
        });
    });
    assert!(matched);
    assert_eq!(
        log,
        [
            "> 0 domain=x",
            "domain=x false",
            "< 0 false",
            "> 1 port=443 rule_set=[s two]",
            "port=443 true",
            "> s true",
            "domain=a false",
            "< s false",
            "> two false",
            "> 0 domain=a",
            "domain=a false",
            "< 0 false",
            "> 1 domain=b",
            "domain=b true",
            "< 1 true",
            "< two true",
            "rule_set=[s two] true",
            "< 1 true",
        ]
    );
}

#[test]
fn needs_are_found_in_parts_and_rule_sets() {
    let table = [(
        "s",
        vec![
            DefaultRule { process_name: list(&["p"]), ip_cidr: list(&["::/0"]), ..Default::default() }.into(),
        ],
    )];
    let wifi = DefaultRule { wifi_ssid: list(&["w"]), ..Default::default() };
    let set = DefaultRule { rule_set: list(&["s"]), ..Default::default() };
    let options = LogicalRule { mode: Mode::And, rules: vec![wifi.into(), set.into()], invert: false };
    let rule = Rule::new(options.into(), &mut |tag| id_of(&table, tag)).unwrap();
    let expected = Needs { process: true, wifi: true, destination_addresses: true, neighbor: false };
    assert_eq!(rule.needs(&sets(&table)), expected);
    assert_eq!(rule.needs(&RuleSets::default()), Needs { wifi: true, ..Default::default() });
}

#[test]
fn address_sets_of_a_rule_set_are_found_in_all_its_rules() {
    let cidr = |text: &str| DefaultRule {
        ip_cidr: list(&[text]),
        source_ip_cidr: list(&["::1"]),
        ..Default::default()
    };
    let both = vec![cidr("10.0.0.0/8").into(), domain("a").into()];
    let logical = LogicalRule { mode: Mode::Or, rules: both, invert: true };
    let sets = sets(&[("s", vec![cidr("192.0.2.0/24").into(), logical.into()])]);
    let found: Vec<String> =
        sets.0[0].ip_sets().iter().flat_map(|set| set.prefixes()).map(|prefix| prefix.to_string()).collect();
    assert_eq!(found, ["192.0.2.0/24", "10.0.0.0/8"]);
}

/// Tasks hold these across waits and share them between threads.
#[test]
fn facts_and_rules_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Facts<'_>>();
    shared::<(Rule, RuleSets, RuleIndex, Candidates<'_>)>();
    shared::<(crate::sniff::StreamSniffer, crate::sniff::PacketSniffer)>();
}

/// A small generator, so that failures name a seed and nothing else.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn sometimes(&mut self) -> bool {
        self.below(4) == 0
    }

    fn some<T: Clone>(&mut self, values: &[T]) -> Vec<T> {
        if !self.sometimes() {
            return Vec::new();
        }
        (0..=self.below(2)).map(|_| values[self.below(values.len())].clone()).collect()
    }

    fn texts(&mut self, values: &[&str]) -> Vec<String> {
        list(&self.some(values))
    }

    fn default_rule(&mut self, sets: &[&str]) -> DefaultRule {
        DefaultRule {
            inbound: if sets.is_empty() { vec![] } else { self.texts(&["in1", "in2"]) },
            network: self.texts(&["tcp", "udp"]),
            domain: self.texts(&["a.x", "b.y", "x"]),
            domain_suffix: self.texts(&["x", ".y", ".x"]),
            domain_keyword: self.texts(&["a", ".y"]),
            // Seldom: building one takes as long as a hundred verdicts.
            domain_regex: if self.below(6) == 0 { self.texts(&["^b", "x$"]) } else { vec![] },
            source_ip_cidr: self.texts(&["10.0.0.0/8", "192.0.2.1"]),
            source_ip_is_private: !sets.is_empty() && self.sometimes(),
            ip_cidr: self.texts(&["10.1.0.0/16", "2001:db8::/32", "192.0.2.0/24"]),
            ip_is_private: !sets.is_empty() && self.sometimes(),
            source_port: self.some(&[1, 2]),
            source_port_range: self.texts(&["2:3", "5:"]),
            port: self.some(&[1, 2]),
            port_range: self.texts(&[":1", "3:4"]),
            rule_set: if sets.is_empty() { vec![] } else { self.texts(sets) },
            rule_set_ip_cidr_match_source: self.sometimes(),
            invert: self.sometimes(),
            ..Default::default()
        }
    }

    fn rule(&mut self, sets: &[&str], depth: usize) -> RuleOptions {
        if depth > 0 && self.sometimes() {
            let rules = (0..=self.below(2)).map(|_| self.rule(sets, depth - 1)).collect();
            let mode = if self.below(2) == 0 { Mode::And } else { Mode::Or };
            return LogicalRule { mode, rules, invert: self.sometimes() }.into();
        }
        loop {
            let rule = self.default_rule(sets);
            // Flags that mean nothing alone do not make a rule.
            let bare = DefaultRule { invert: false, rule_set_ip_cidr_match_source: false, ..rule.clone() };
            if bare != DefaultRule::default() {
                return rule.into();
            }
        }
    }
}

/// The text of `SURFACE.md` 12.2, the slow way.
mod naive {
    use super::*;

    pub(super) type Sets<'a> = [(&'a str, Vec<RuleOptions>)];

    pub(super) fn judge(rule: &RuleOptions, facts: &Facts<'_>, sets: &Sets<'_>, from_source: bool) -> bool {
        match rule {
            RuleOptions::Logical(rule) => {
                let mut parts = rule.rules.iter().map(|part| judge(part, facts, sets, from_source));
                rule.invert != if rule.mode == Mode::And { parts.all(|it| it) } else { parts.any(|it| it) }
            }
            RuleOptions::Default(rule) => rule.invert != default(rule, facts, sets, from_source),
        }
    }

    fn default(rule: &DefaultRule, facts: &Facts<'_>, sets: &Sets<'_>, from_source: bool) -> bool {
        let own = groups(rule, facts, from_source);
        let passes =
            |groups: &[Vec<bool>; 4]| groups.iter().all(|group| group.is_empty() || group.contains(&true));
        let others_hold = others(rule, facts);
        if rule.rule_set.is_empty() {
            return others_hold && passes(&own);
        }
        rule.rule_set.iter().any(|tag| {
            let rules = &sets.iter().find(|set| set.0 == tag).unwrap().1;
            let from_source = rule.rule_set_ip_cidr_match_source;
            if let [RuleOptions::Default(inner)] = &rules[..]
                && !inner.invert
            {
                let mut joined = own.clone();
                for (group, more) in joined.iter_mut().zip(groups(inner, facts, from_source)) {
                    group.extend(more);
                }
                return others_hold && others(inner, facts) && passes(&joined);
            }
            others_hold && passes(&own) && rules.iter().any(|rule| judge(rule, facts, sets, from_source))
        })
    }

    fn others(rule: &DefaultRule, facts: &Facts<'_>) -> bool {
        (rule.inbound.is_empty() || rule.inbound.iter().any(|it| it == facts.inbound))
            && (rule.network.is_empty()
                || facts.network.is_some_and(|network| rule.network.iter().any(|it| it == network.as_str())))
    }

    /// For each group the results of all values in it.
    fn groups(rule: &DefaultRule, facts: &Facts<'_>, from_source: bool) -> [Vec<bool>; 4] {
        let name = facts.domain.unwrap_or_default();
        let mut destination: Vec<bool> = Vec::new();
        destination.extend(rule.domain.iter().map(|it| it == name));
        destination.extend(rule.domain_suffix.iter().map(|it| {
            let dotted = format!(".{}", it.trim_start_matches('.'));
            name.ends_with(&dotted) || !it.starts_with('.') && it == name
        }));
        destination.extend(rule.domain_keyword.iter().map(|it| name.contains(it.as_str())));
        destination.extend(rule.domain_regex.iter().map(|it| match it.as_str() {
            "^b" => name.starts_with('b'),
            "x$" => name.ends_with('x'),
            other => unreachable!("{other}"),
        }));
        let own = facts.destination.map(|addr| vec![addr]).unwrap_or(facts.addresses.to_vec());
        let within = |text: &String, addr: IpAddr| {
            let (first, last) = text.parse::<Prefix>().unwrap().range();
            first.is_ipv4() == addr.is_ipv4() && first <= addr && addr <= last
        };
        let mut source: Vec<bool> = Vec::new();
        source.extend(rule.source_ip_cidr.iter().map(|it| within(it, facts.source.unwrap())));
        if rule.source_ip_is_private {
            source.push(is_private(facts.source.unwrap()));
        }
        for cidr in &rule.ip_cidr {
            match from_source {
                true => source.push(within(cidr, facts.source.unwrap())),
                false => destination.push(own.iter().any(|&addr| within(cidr, addr))),
            }
        }
        if rule.ip_is_private {
            destination.push(own.iter().any(|&addr| is_private(addr)));
        }
        let ports = |ports: &[u16], ranges: &[String], port: u16| {
            let in_range = |range: &String| {
                let (first, last) = range.split_once(':').unwrap();
                first.parse().unwrap_or(0) <= port && port <= last.parse().unwrap_or(u16::MAX)
            };
            ports.iter().map(|&it| it == port).chain(ranges.iter().map(in_range)).collect()
        };
        [
            destination,
            source,
            ports(&rule.port, &rule.port_range, facts.port),
            ports(&rule.source_port, &rule.source_port_range, facts.source_port),
        ]
    }
}

#[test]
fn random_rules_get_the_verdict_of_the_text() {
    const TAGS: [&str; 4] = ["one", "two", "three", "four"];
    let found = [ip("10.1.2.3"), ip("2001:db8::1")];
    let (mut verdicts, mut matched) = (0, 0);
    for seed in 0..4000 {
        let mut dice = Dice(seed);
        let table: Vec<(&str, Vec<RuleOptions>)> =
            TAGS.iter().map(|tag| (*tag, (0..=dice.below(2)).map(|_| dice.rule(&[], 1)).collect())).collect();
        let options = dice.rule(&TAGS, 2);
        let built = sets(&table);
        let rule = Rule::new(options.clone(), &mut |tag| id_of(&table, tag)).unwrap();
        for _ in 0..12 {
            let names = [None, Some("a.x"), Some("b.y"), Some("x"), Some("z"), Some("c.x")];
            let addresses = [None, Some(ip("10.1.0.1")), Some(ip("192.0.2.9")), Some(ip("2001:db8::7"))];
            let domain = names[dice.below(names.len())];
            let destination = addresses[dice.below(addresses.len())];
            let facts = Facts {
                network: [None, Some(Network::Tcp), Some(Network::Udp)][dice.below(3)],
                inbound: ["in1", "in3"][dice.below(2)],
                domain,
                destination,
                addresses: if dice.sometimes() { &found } else { &[] },
                port: dice.below(5) as u16,
                source: Some([ip("10.1.0.1"), ip("192.0.2.1"), ip("198.51.100.1")][dice.below(3)]),
                source_port: dice.below(6) as u16,
                ..Default::default()
            };
            let verdict = rule.matches(&facts, &built);
            assert_eq!(
                verdict,
                naive::judge(&options, &facts, &table, false),
                "seed {seed}: {rule}\n{options:#?}"
            );
            assert_eq!(verdict, rule.explain(&facts, &built, &mut |_: Event<'_>| ()), "seed {seed}");
            verdicts += 1;
            matched += usize::from(verdict);
        }
    }
    assert!(matched * 10 > verdicts && matched * 10 < verdicts * 9, "{matched} of {verdicts} is no test");
}

#[test]
fn the_index_leaves_out_only_what_does_not_match() {
    const TAGS: [&str; 2] = ["one", "two"];
    let (mut asked, mut skipped) = (0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let table: Vec<(&str, Vec<RuleOptions>)> =
            TAGS.iter().map(|tag| (*tag, vec![dice.rule(&[], 0)])).collect();
        let built = sets(&table);
        let build = |options| Rule::new(options, &mut |tag| id_of(&table, tag)).unwrap();
        let rules: Vec<Rule> = (0..80)
            .map(|_| match dice.below(3) {
                0 => build(dice.rule(&TAGS, 2)),
                1 if dice.below(2) == 0 => {
                    let invert = dice.below(9) == 0;
                    let one = match dice.below(3) {
                        0 => DefaultRule {
                            ip_cidr: dice.texts(&["10.0.0.0/8", "192.0.2.0/24"]),
                            ..Default::default()
                        },
                        1 => {
                            let words = dice.texts(&["x", "y"]);
                            let domain_suffix = dice.texts(&["x", ".y"]);
                            DefaultRule { domain_keyword: words, domain_suffix, ..Default::default() }
                        }
                        _ => {
                            let word = ["a", "b.", ".x", "y", "w.a", "zz"][dice.below(6)];
                            DefaultRule { domain_keyword: list(&[word]), ..Default::default() }
                        }
                    };
                    build(DefaultRule { invert, ..one }.into())
                }
                _ => {
                    let domain = list(&[["a.x", "b.y", "x"][dice.below(3)]]);
                    let domain_suffix = dice.texts(&["x", ".y", ".x", "a.x"]);
                    let invert = dice.below(9) == 0;
                    build(DefaultRule { domain, domain_suffix, invert, ..Default::default() }.into())
                }
            })
            .collect();
        let index = RuleIndex::new(&rules);
        for name in
            [None, Some("a.x"), Some("c.b.y"), Some("x"), Some("q.w.a.x"), Some("y"), Some("z"), Some("ax")]
        {
            let facts = Facts {
                domain: name,
                network: Some(Network::Tcp),
                source: Some(ip("10.1.0.1")),
                destination: (dice.below(3) == 0).then(|| ip("10.0.0.1")),
                addresses_pending: dice.below(4) == 0,
                ..Default::default()
            };
            let from = dice.below(20);
            let candidates: Vec<usize> = index.candidates(&facts, from).collect();
            assert!(
                candidates.is_sorted_by(|a, b| a < b)
                    && candidates.first().is_none_or(|first| *first >= from)
            );
            for (at, rule) in rules.iter().enumerate().skip(from) {
                let listed = candidates.contains(&at);
                assert!(listed || !rule.matches(&facts, &built), "seed {seed}: {at} {rule} on {name:?}");
                asked += 1;
                skipped += usize::from(!listed);
            }
        }
    }
    assert!(skipped * 4 > asked, "{skipped} of {asked}: the index is of no use");
}

#[test]
fn the_index_gives_up_on_names_with_very_many_hits() {
    let labels: Vec<String> = (0..40).map(|number| format!("l{number}")).collect();
    let suffix =
        |from: usize| DefaultRule { domain_suffix: vec![labels[from..].join(".")], ..Default::default() };
    let rules: Vec<Rule> = (0..40).map(|from| rule(suffix(from))).collect();
    let name = labels.join(".");
    let facts = Facts { domain: Some(&name), ..Default::default() };
    let index = RuleIndex::new(&rules);
    assert_eq!(index.candidates(&facts, 3).collect::<Vec<_>>(), (3..40).collect::<Vec<_>>());
    assert_eq!(
        index.candidates(&Facts { domain: Some("l39"), ..Default::default() }, 0).collect::<Vec<_>>(),
        [39]
    );
    assert_eq!(index.candidates(&Facts::default(), 0).count(), 0);
    assert_eq!(RuleIndex::new(&[rule(DefaultRule::default())]).candidates(&facts, 0).count(), 1);
}
