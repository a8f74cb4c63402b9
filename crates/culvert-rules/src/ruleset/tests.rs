//! Vectors written by sing-box 1.14.4 (`RULESET.md` section 7), every cut of them, and round trips of random sets. The
//! program itself is asked in `tests/sing_box.rs`.

use std::io::Read;

use proptest::prelude::*;

use super::{BinaryError, CommandError, ReadError, command::*, *};
use crate::{
    domain::canonical_name,
    rule::{Facts, LogicalRule, Mode},
};

const A_SOURCE: &str = r#"{"version":3,"rules":[{"domain":["a.example"],"domain_suffix":["b.example",".c.example"],"ip_cidr":["192.0.2.0/24"]}]}"#;
const A_FILE: &str = "5352530278da14c4b10984301400d0f7c37185a00bb84386b1b28d924ec1d299\
    32859b456c5e48025804cc6b6b533daeb3dc35976d1ff2f80f40fc1ec947efde0100f5bd0a44";
const A_PAYLOAD: &str = "01000200010000000000005200010000 00001b58aaaa0e656c706d6178652e6162630a2e0d\
    0601000000000000000104c000020004c00002ffff00";
const B_SOURCE: &str = r#"{"version":5,"rules":[{"type":"logical","mode":"and","rules":[{"query_type":["A",65],"port":[443],"port_range":["8000:9000"]},{"package_name_regex":["^x"],"network_type":["cellular"],"network_interface_address":{"wifi":["10.0.0.0/8"]},"invert":true}],"invert":true}]}"#;
const B_FILE: &str = "5352530578da04c0310d80301406e1bb1706da918460e31f810d23e8c01be2da\
    4f2928e469fa77db99e4be920c38acf7db7417970eac43e7008e06061f";
const C_LIST: &str = "||ads.example^\n@@||ok.example^\nsub*x\n";
const C_PAYLOAD: &str = "01010002 0010000100000000000008000100000000006aaaaa0b656c706d6178652e6b6f0aff01\
    001000010000000000082000010000006aad5555541308 65786c2a70626d756173780d652e7364610aff00 00";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn payload(file: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    flate2::read::ZlibDecoder::new(&file[4..]).read_to_end(&mut payload).unwrap();
    payload
}

#[test]
fn what_we_compile_inflates_to_the_bytes_of_sing_box() {
    let a = compile(A_SOURCE.as_bytes()).unwrap();
    assert_eq!((a[3], payload(&a)), (2, hex(A_PAYLOAD)));
    assert_eq!(payload(&a), payload(&hex(A_FILE)));
    let b = compile(B_SOURCE.as_bytes()).unwrap();
    assert_eq!((b[3], payload(&b)), (5, payload(&hex(B_FILE))));
    let c = write_binary(&convert_adguard(C_LIST).unwrap().file).unwrap();
    assert_eq!((c[3], payload(&c)), (2, hex(C_PAYLOAD)));
}

#[test]
fn what_sing_box_compiled_decompiles_to_its_source() {
    let canonical = |source: &str| format(source.as_bytes()).unwrap();
    let sorted = A_SOURCE.replace(r#""b.example",".c.example""#, r#"".c.example","b.example""#);
    let sorted = sorted.replace(r#""version":3"#, r#""version":2"#);
    assert_eq!(decompile(&hex(A_FILE)).unwrap(), canonical(&sorted));
    assert_eq!(decompile(&hex(B_FILE)).unwrap(), canonical(B_SOURCE));
    let c = write_binary(&convert_adguard(C_LIST).unwrap().file).unwrap();
    assert_eq!(decompile(&c), Err(CommandError::AdGuard));
}

#[test]
fn a_loaded_set_matches_the_same_from_either_format() {
    for (format, data) in [(Format::Source, A_SOURCE.as_bytes().to_vec()), (Format::Binary, hex(A_FILE))] {
        let set = load("s", format, &data).unwrap();
        let judge = |name: &str| set.matches(&Facts { domain: Some(name), ..Default::default() });
        assert!(judge("a.example") && judge("x.b.example") && judge("b.example") && judge("x.c.example"));
        assert!(!judge("c.example") && !judge("x.a.example"));
        assert!(set.matches(&Facts { destination: "192.0.2.1".parse().ok(), ..Default::default() }));
    }
}

#[test]
fn adguard_classes_override_each_other() {
    let list = "||x.test^\n@@||ok.x.test^\n||bad.ok.x.test^$important\n@@||good.bad.ok.x.test^$important\n";
    let list =
        list.to_owned() + "/^re[0-9]\\./\n@@/^re1\\./\n||r.test^$dnsrewrite=0.0.0.0\n||c.test^$client=1\n";
    let converted = convert_adguard(&list).unwrap();
    assert_eq!((converted.taken, converted.ignored.len()), (7, 1));
    let set = load("s", Format::Binary, &write_binary(&converted.file).unwrap()).unwrap();
    for (name, expected) in [
        ("x.test", true),
        ("y.x.test", true),
        ("ok.x.test", false),
        ("z.ok.x.test", false),
        ("bad.ok.x.test", true),
        ("good.bad.ok.x.test", false),
        ("re2.test", true),
        ("re1.test", false),
        ("r.test", true),
        ("c.test", false),
    ] {
        assert_eq!(set.matches(&Facts { domain: Some(name), ..Default::default() }), expected, "{name}");
    }
}

#[test]
fn bare_lists_become_names() {
    let converted = convert_adguard("a.test\n0.0.0.0 b.test\n127.0.0.1 c.test\n# x\n").unwrap();
    let lines = match_lines(converted.file, "b.test").unwrap();
    assert_eq!(lines, ["match rules.[0]: domain=[a.test b.test]"]);
}

#[test]
fn versions_are_lowered_as_far_as_the_items_allow() {
    for (version, rule, expected) in [
        (5, r#"{"domain":"a"}"#, Ok(2)),
        (1, r#"{"domain_suffix":"a"}"#, Ok(1)),
        (3, r#"{"network_is_expensive":true}"#, Ok(3)),
        (5, r#"{"type":"logical","mode":"or","rules":[{"default_interface_address":"::1"}]}"#, Ok(4)),
        (5, r#"{"package_name_regex":"a"}"#, Ok(5)),
        (4, r#"{"package_name_regex":"a"}"#, Err(("package_name_regex", 5))),
        (3, r#"{"default_interface_address":"::1"}"#, Err(("default_interface_address", 4))),
        (2, r#"{"network_type":"wifi"}"#, Err(("network_type", 3))),
    ] {
        let source = format!("{{\"version\":{version},\"rules\":[{rule}]}}");
        let expected =
            expected.map_err(|(item, version)| CommandError::Write(WriteError::Version { item, version }));
        assert_eq!(compile(source.as_bytes()).map(|file| file[3]), expected, "{source}");
    }
}

#[test]
fn source_errors_name_the_place() {
    for (source, error) in [
        (r#"{"rules":[]}"#, "missing rule-set version"),
        (r#"{"version":6}"#, "unknown rule-set version: 6"),
        (r#"{"version":2,"x":1}"#, "x: json: unknown field \"x\""),
        (r#"{"version":2,"rules":[{"domain":"a","foo":1}]}"#, "rules[0].foo: json: unknown field \"foo\""),
        (
            r#"{"version":2,"rules":[{"domain":"a"},{"type":"logical","mode":"and","rules":[{"bar":1}]}]}"#,
            "rules[1].rules[0].bar: json: unknown field \"bar\"",
        ),
        (r#"{"version":2,"rules":[{"mode":"and"}]}"#, "rules[0].mode: json: unknown field \"mode\""),
        (
            r#"{"version":2,"rules":[{"domain":1}]}"#,
            "rules[0].domain: (json: cannot unmarshal number into Go value of type string | \
             json: cannot unmarshal number into Go value of type []string)",
        ),
        (
            r#"{"version":2,"rules":[{"domain":["a",1]}]}"#,
            "rules[0].domain: (json: cannot unmarshal array into Go value of type string | \
             [1]: json: cannot unmarshal number into Go value of type string)",
        ),
        (
            r#"{"version":2,"rules":[{"port":70000}]}"#,
            "rules[0].port: (json: cannot unmarshal number 70000 into Go value of type uint16 | \
             json: cannot unmarshal number into Go value of type []uint16)",
        ),
        (
            r#"{"version":2,"rules":[{"query_type":["A",65,"TYPE9"]}]}"#,
            "rules[0].query_type: (json: cannot unmarshal array into Go value of type option.DNSQueryType | \
             [2]: unknown DNS query type: \"TYPE9\")",
        ),
        (
            r#"{"version":4,"rules":[{"default_interface_address":"x"}]}"#,
            "rules[0].default_interface_address: (netip.ParsePrefix(\"x\"): no '/' | \
             json: cannot unmarshal string into Go value of type []*badoption.Prefixable)",
        ),
        (r#"{"version":2,"rules":[null]}"#, "rules[0]: expected json object start, but starts with null"),
        (r#"{"version":2,"rules":[{"type":"x"}]}"#, "rules[0]: unknown rule type: x"),
        (r#"{"version":2,"rules":[{"type":"logical","mode":"x"}]}"#, "rules[0]: unknown logical mode: x"),
        (r#"{"version":2} x"#, "trailing characters: row 1, column 15"),
    ] {
        assert_eq!(read_source(source.as_bytes()).unwrap_err().to_string(), error, "{source}");
    }
    let no_suffix = r#"{"version":2,"rules":[{"domain_suffix":""}]}"#;
    assert!(matches!(compile(no_suffix.as_bytes()), Err(CommandError::Write(WriteError::Suffix(_)))));
    let error = load("s", Format::Source, br#"{"version":2,"rules":[{"domain":"a"},{}]}"#).unwrap_err();
    assert_eq!(error.to_string(), "parse rule_set.rules.[1]: missing conditions");
}

#[test]
fn the_dialect_and_the_canonical_form() {
    let source = "{\"version\":2,\"rules\":[{\"Domain\":[\"a\",],\"port\":[],\"invert\":false,\"type\":\"default\"},],} # x";
    assert_eq!(
        format(source.as_bytes()).unwrap(),
        "{\n  \"version\": 2,\n  \"rules\": [\n    {\n      \"domain\": \"a\"\n    }\n  ]\n}\n"
    );
    assert_eq!(format(br#"{"version":1,"rules":null}"#).unwrap(), "{\n  \"version\": 1\n}\n");
}

#[test]
fn upgrade_and_merge() {
    assert_eq!(upgrade(br#"{"version":2}"#), Ok(None));
    assert_eq!(upgrade(br#"{"version":1}"#), Ok(Some("{\n  \"version\": 5\n}\n".into())));
    let merged =
        merge(&[r#"{"version":1,"rules":[{"domain":"a"}]}"#, r#"{"version":3,"rules":[{"domain":"b"}]}"#]);
    assert_eq!(merged.unwrap(), format(br#"{"version":3,"rules":[{"domain":"a"},{"domain":"b"}]}"#).unwrap());
    assert_eq!(merge(&["{\"version\":1}", "{}"]).unwrap_err().0, 1);
}

#[test]
fn every_cut_of_a_file_is_an_error() {
    for file in [hex(A_FILE), hex(B_FILE)] {
        for len in 0..file.len() {
            let error = read_binary(&file[..len]).expect_err("a cut file was accepted");
            assert_eq!(error, BinaryError::Truncated, "{len}");
        }
        assert!(read_binary(&file).is_ok());
        let mut longer = file.clone();
        longer.extend(b"more");
        assert_eq!(read_binary(&longer), read_binary(&file), "bytes behind the stream do not count");
    }
}

fn deflated(payload: &[u8]) -> Vec<u8> {
    let mut file = b"SRS\x02".to_vec();
    let mut encoder = flate2::write::ZlibEncoder::new(&mut file, flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, payload).unwrap();
    encoder.finish().unwrap();
    file
}

#[test]
fn hostile_files_are_refused() {
    let rule = |reason| BinaryError::Rule { path: vec![0], reason };
    for (payload, error) in [
        (&b""[..], BinaryError::Count(ReadError::Truncated)),
        (b"\x01\x02\x00\x00", rule(ReadError::RuleType(2))),
        (b"\x01\x01\x02\x00\x00", rule(ReadError::Mode(2))),
        (b"\x01\x00\x63\x00", rule(ReadError::ItemType { code: 0x63, last: 0 })),
        // Counts and lengths of billions, with nothing behind them.
        (b"\x01\x00\x00\xff\xff\xff\xff\x0f", rule(ReadError::Truncated)),
        (b"\x01\x00\x03\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f", rule(ReadError::Truncated)),
        (b"\x01\x00\x06\x01\xff\xff\xff\xff\xff\xff\xff\xff", rule(ReadError::Truncated)),
        (b"\x01\x00\x02\x00\xff\xff\xff\xff\x0f", rule(ReadError::Truncated)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0", BinaryError::Count(ReadError::Overflow)),
        (b"\x01\x00\x01\x01\x01\xff\xff\x00", rule(ReadError::Text(1))),
        (b"\x01\x00\x06\x02", rule(ReadError::Value("version of an IP set"))),
        (
            b"\x01\x00\x06\x01\0\0\0\0\0\0\0\x01\x04\x02\0\0\0\x04\x01\0\0\0\xff\0",
            rule(ReadError::Value("address range")),
        ),
        (b"\x01\x00\x12\x01\x04\xff\x00", rule(ReadError::Value("network type"))),
        (b"\x01\x00\x02\x00\x00\x00\x00\xff\x00", rule(ReadError::Trie(crate::domain::TrieError::Empty))),
    ] {
        assert_eq!(read_binary(&deflated(payload)).unwrap_err(), error, "{payload:02x?}");
    }
    assert_eq!(read_binary(b"SRX\x02"), Err(BinaryError::Magic));
    assert_eq!(read_binary(b"SRS\x06"), Err(BinaryError::Version(6)));
    assert!(matches!(read_binary(b"SRS\x02junkjunk"), Err(BinaryError::Zlib(_))));
    let mut damaged = hex(A_FILE);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(read_binary(&damaged), Err(BinaryError::Zlib(_))), "the checksum counts");

    let mut deep = vec![1];
    (0..200).for_each(|_| deep.extend([1, 0, 1]));
    deep.extend([0, 255, 0]);
    deep.extend([0; 200]);
    let error = read_binary(&deflated(&deep)).unwrap_err();
    assert!(matches!(error, BinaryError::Rule { ref path, reason: ReadError::Depth } if path.len() == 64));
    assert!(error.to_string().starts_with("read rule[0]: read logical rule [0]: "));

    let bomb = deflated(&vec![0; 24 << 20]);
    assert!(bomb.len() < 150_000);
    assert!(matches!(read_binary(&bomb), Err(BinaryError::TooLarge(_))));
}

/// 100,000 names and 20,000 prefixes in 4 MiB, descriptions and all.
#[test]
fn a_large_list_is_small() {
    let domain = (0..100_000).map(|number| {
        let number = u64::from(number as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        format!("host{:x}.example{}.com", number & 0xff_ffff, number % 977)
    });
    let cidr = (0..20_000u32).map(|number| {
        let [a, b, c, _] = (number.wrapping_mul(0x9e37_79b9)).to_be_bytes();
        format!("{a}.{b}.{c}.0/24")
    });
    let rule = DefaultRule { domain_suffix: domain.collect(), ip_cidr: cidr.collect(), ..Default::default() };
    let file = RuleSetFile { version: 2, rules: vec![rule.clone().into()] };
    let written = write_binary(&file).unwrap();
    for set in [build("s", file).unwrap(), load("s", Format::Binary, &written).unwrap()] {
        assert!(set.heap_size() <= 4 << 20, "{} bytes", set.heap_size());
        assert!(rule.domain_suffix.iter().step_by(97).all(|name| {
            let below = format!("www.{name}");
            set.matches(&Facts { domain: Some(&below), ..Default::default() })
        }));
        assert!(!set.matches(&Facts { domain: Some("www.example.com"), ..Default::default() }));
    }
}

fn texts(pattern: &'static str) -> impl Strategy<Value = Vec<String>> {
    prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(pattern, 1..4)]
}

fn any_rule() -> impl Strategy<Value = RuleOptions> {
    let names = (texts("[a-c.é]{1,6}"), texts("\\.?[a-c]{1,3}"), texts("[a-z]{1,3}"), texts("[a-z]{0,3}"));
    let numbers = (
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any::<u16>(), 1..4)],
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any::<u16>(), 1..4)],
        any::<[bool; 3]>(),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(0u32..1 << 20, 1..6)],
    );
    let leaf = (names, numbers).prop_map(
        |((domain, domain_suffix, keyword, regex), (port, kinds, flags, addrs))| {
            DefaultRule {
                domain,
                domain_suffix,
                domain_keyword: keyword.clone(),
                package_name_regex: regex,
                wifi_ssid: keyword,
                port,
                query_type: kinds,
                network_is_expensive: flags[0],
                network_is_constrained: flags[1],
                invert: flags[2],
                ip_cidr: addrs
                    .iter()
                    .map(|addr| format!("10.{}.{}.0/24", addr >> 8 & 255, addr & 255))
                    .collect(),
                default_interface_address: addrs.iter().map(|_| "fe80::1/64".parse().unwrap()).collect(),
                ..Default::default()
            }
            .into()
        },
    );
    leaf.prop_recursive(3, 12, 3, |inner| {
        (prop::collection::vec(inner, 0..3), any::<bool>(), any::<bool>()).prop_map(|(rules, and, invert)| {
            LogicalRule { mode: if and { Mode::And } else { Mode::Or }, rules, invert }.into()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_set_survives_both_formats(rules in prop::collection::vec(any_rule(), 0..4)) {
        let file = RuleSetFile { version: 5, rules };
        let source = write_source(file.clone());
        prop_assert_eq!(&read_source(source.as_bytes()).unwrap(), &file);
        let binary = write_binary(&file).unwrap();
        let read = read_binary(&binary).unwrap();
        prop_assert_eq!(payload(&write_binary(&read).unwrap()), payload(&binary));
        // Lists come back sorted; compiling them again gives the same set.
        let decompiled = decompile(&binary).unwrap();
        let again = write_binary(&read_source(decompiled.as_bytes()).unwrap()).unwrap();
        let folded = file.rules.iter().any(|rule| any_default(std::slice::from_ref(rule), &|rule| {
            rule.domain.iter().any(|name| rule.domain_suffix.contains(&format!(".{name}")))
        }));
        if !folded {
            prop_assert_eq!(payload(&again), payload(&binary));
        }
    }

    #[test]
    fn damaged_files_are_survived(
        rules in prop::collection::vec(any_rule(), 1..3),
        flips in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut payload = payload(&write_binary(&RuleSetFile { version: 5, rules }).unwrap());
        for (at, value) in flips {
            let at = usize::from(at) % payload.len();
            payload[at] = value;
        }
        fuzz_srs(&payload);
        fuzz_srs(&deflated(&payload));
    }

    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_srs(&data);
        fuzz_srs(&deflated(&data));
        fuzz_source(&data);
        fuzz_adguard(&data);
    }

    #[test]
    fn any_text_is_survived(
        text in "[\\[\\]{}:,\" a/*#0-9\\\\\n]{0,80}",
        list in "([|@]{0,2}[a.*/-]{0,5}[\\^$|/]{0,2}(\\$important|\\$x=y)?\n){0,6}",
    ) {
        fuzz_source(text.as_bytes());
        fuzz_source(format!("{{\"version\":2,\"rules\":[{text}]}}").as_bytes());
        fuzz_adguard(list.as_bytes());
    }
}

#[test]
fn match_lines_take_addresses_and_names() {
    let file = read_source(A_SOURCE.as_bytes()).unwrap();
    let line = "match rules.[0]: domain=a.example domain_suffix=[b.example .c.example] ip_cidr=192.0.2.0/24";
    for text in ["A.Example", "192.0.2.77", "x.b.example"] {
        assert_eq!(match_lines(file.clone(), text).unwrap(), [line], "{text} {}", canonical_name(text));
    }
    assert_eq!(match_lines(file, "c.example").unwrap(), Vec::<String>::new());
}
