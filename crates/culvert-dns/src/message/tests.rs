use proptest::prelude::*;

use super::*;
use crate::testing::{Build, labels, query};

/// A client's query for `name`, with what `more` adds.
fn ask(name: &str, kind: u16, more: impl Fn(Build) -> Build) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(labels(name));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(1u16.to_be_bytes());
    // `reply_to` makes it a reply; a query it becomes again.
    let mut bytes = more(Build::reply_to(&bytes)).done();
    bytes[2] &= 0x7f;
    bytes[3] &= 0x7f;
    bytes
}

/// The same with an OPT record: payload size, TTL field, options.
fn ask_edns(name: &str, kind: u16, payload: u16, ttl: u32, options: &[u8]) -> Vec<u8> {
    let mut bytes = ask(name, kind, |build| build.record(10, "", kind::OPT, ttl, options));
    let class_at = bytes.len() - options.len() - 8;
    wire::set_u16(&mut bytes, class_at, payload);
    bytes
}

fn parse(build: Build, query: &Query) -> Result<Reply, NoReply> {
    let bytes = build.done();
    Reply::parse(&bytes, query, u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn reply_to(query: &Query) -> Build {
    Build::reply_to(&query.encode(77))
}

fn malformed(build: Build, query: &Query) -> &'static str {
    match parse(build, query) {
        Err(NoReply::Malformed(Malformed(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_query_is_what_its_vector_says() {
    let plain = query("Example.COM.", RecordType::AAAA).encode(0xbeef);
    let expected = b"\xbe\xef\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x1c\x00\x01";
    assert_eq!(plain, expected);
    let subnet = Subnet::new("192.0.2.129".parse().unwrap(), 24);
    let full = query("a.test", RecordType::A).with_subnet(Some(subnet));
    let expected = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x01a\x04test\x00\x00\x01\x00\x01\
                     \x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x0b\x00\x08\x00\x07\x00\x01\x18\x00\xc0\x00\x02";
    assert_eq!(full.encode(7), expected);
    assert_eq!(full.subnet(), Some(subnet));
    assert_eq!(full.with_subnet(None).key(), query("a.test", RecordType::A).key());
}

#[test]
fn spellings_of_one_question_share_a_key() {
    let keys: Vec<_> = ["H.Test", "h.test"]
        .iter()
        .map(|name| Request::parse(&ask(name, 1, |build| build)).unwrap().query.key().clone())
        .collect();
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[0], *query("h.test.", RecordType::A).key());
    // EDNS is not part of the question, save what changes the answer.
    let plain = Request::parse(&ask_edns("h.test", 1, 1232, 0, &[])).unwrap().query;
    let cookie = Request::parse(&ask_edns("h.test", 1, 4096, 0, b"\x00\x0a\x00\x01x")).unwrap().query;
    let signed = Request::parse(&ask_edns("h.test", 1, 1232, 0x8000, &[])).unwrap().query;
    assert_eq!((plain.key(), cookie.key()), (&keys[0], &keys[0]));
    assert_ne!(*signed.key(), keys[0]);
    assert!(signed.dnssec_ok() && !plain.dnssec_ok());
}

#[test]
fn names_at_their_limits() {
    let label = "a".repeat(63);
    // Three labels of 63 and one of 61: 255 bytes on the wire.
    let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
    let asked = Request::parse(&ask(&longest, 1, |build| build)).unwrap();
    assert_eq!(asked.query.domain().unwrap().as_str(), longest);
    assert_eq!(asked.query.wire_name().len(), wire::MAX_NAME);
    let mut long = ask(&longest, 1, |build| build);
    long.splice(HEADER..HEADER, *b"\x01c");
    assert!(matches!(Request::parse(&long), Err(Refusal::Reply(reply)) if reply[3] & 0xf == 1));
    for name in ["a..b", &"a".repeat(64), "x.".repeat(127).as_str()] {
        let name = Domain::new(name).unwrap();
        assert_eq!(
            Query::new(&name, RecordType::A).is_err(),
            name.as_str() != "x.".repeat(126) + "x",
            "{name}"
        );
    }
}

#[test]
fn odd_names_are_asked_and_have_no_text_where_text_would_lie() {
    let named = |name: &[u8]| {
        let mut bytes = ask("", 1, |build| build);
        bytes.splice(HEADER..=HEADER, name.iter().copied());
        Request::parse(&bytes).unwrap().query.domain().map(|name| name.to_string())
    };
    assert_eq!(named(b"\x00"), None, "the root");
    assert_eq!(named(b"\x03a.b\x04test\x00"), None, "a dot within a label");
    assert_eq!(named(b"\x03a\0b\x04test\x00"), None, "NUL");
    assert_eq!(named(b"\x03a b\x04test\x00"), None, "space");
    assert_eq!(named(b"\x02\xff\xfe\x04test\x00"), None, "no UTF-8");
    assert_eq!(named(b"\x01*\x04TEST\x00").as_deref(), Some("*.test"));
    assert_eq!(named("\u{2}ö\u{4}test\0".as_bytes()).as_deref(), Some("ö.test"));
    assert_eq!(named(b"\x05_dns_\x04test\x00").as_deref(), Some("_dns_.test"));
}

#[test]
fn every_type_passes_through() {
    for kind in [1, 28, 65, 64, 12, 16, 33, 255, 257, 5, 2, 6, 15, 43, 46, 65535] {
        let query = query("h.test", RecordType(kind));
        let data: &[u8] = match kind {
            1 => &[192, 0, 2, 1],
            28 => &[0; 16],
            2 | 5 | 12 => &labels("x.test"),
            6 => &[&labels("x.test")[..], &labels("y.test"), &[0; 20]].concat(),
            15 => &[&[0, 1][..], &labels("x.test")].concat(),
            33 => &[&[0; 6][..], &labels("x.test")].concat(),
            _ => b"whatever the type means",
        };
        let reply = parse(reply_to(&query).record(6, "h.test", kind, 60, data), &query).unwrap();
        assert_eq!(reply.lifetime(), 60, "{kind}");
        let request = Request::parse(&query.encode(9)).unwrap();
        let bytes = request.answer(&Answer::fresh(reply), Carrier::Datagram);
        assert_eq!(&bytes[bytes.len() - data.len()..], data, "{kind}");
    }
    assert_eq!(RecordType(65).to_string(), "HTTPS");
    assert_eq!(RecordType(65000).to_string(), "TYPE65000");
}

#[test]
fn an_answer_has_the_clients_id_spelling_and_flags() {
    let query = query("host.test", RecordType::A);
    let reply =
        parse(reply_to(&query).flags(flag::AA).address("host.test", 300, "192.0.2.1"), &query).unwrap();
    let mut asked = ask("HoSt.tEst", 1, |build| build);
    asked[2] &= !0x01; // no recursion desired
    let request = Request::parse(&asked).unwrap();
    let bytes = request.answer(&Answer { reply: reply.into(), ttl: Ttl::Aged(100) }, Carrier::Datagram);
    assert_eq!(bytes[..2], [0x12, 0x34]);
    assert_eq!(wire::u16_at(&bytes, 2), Ok(flag::QR | flag::AA | flag::RA));
    assert_eq!(bytes[HEADER..HEADER + 11], labels("HoSt.tEst"));
    let again = Reply::parse(&bytes, &query, 0x1234).unwrap();
    assert_eq!(again.lifetime(), 200);
}

#[test]
fn edns_is_answered_and_never_counted_down() {
    // D4: the TTL field of OPT holds code, version and flags.
    let query = Request::parse(&ask_edns("h.test", 1, 4096, 0x8000, &[])).unwrap().query;
    let upstream =
        reply_to(&query).address("h.test", 300, "192.0.2.1").record(10, "", kind::OPT, 0x8000, &[]);
    let reply = Arc::new(parse(upstream, &query).unwrap());
    assert_eq!(reply.walk().count(), 1, "OPT is not kept");
    for age in [0, 120] {
        let request = Request::parse(&ask_edns("h.test", 1, 4096, 0x8000, &[])).unwrap();
        let answer = Answer { reply: Arc::clone(&reply), ttl: Ttl::Aged(age) };
        let bytes = request.answer(&answer, Carrier::Datagram);
        let opt = &bytes[bytes.len() - edns::EMPTY_OPT..];
        assert_eq!(
            opt, b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00",
            "version 0, DO kept, nothing counted down"
        );
        assert_eq!(wire::u16_at(&bytes, 10), Ok(1));
    }
    // A client without EDNS gets none.
    let request = Request::parse(&ask("h.test", 1, |build| build)).unwrap();
    let bytes = request.answer(&Answer::fresh(reply), Carrier::Datagram);
    assert_eq!(wire::u16_at(&bytes, 10), Ok(0));
}

#[test]
fn the_clients_subnet_goes_up_and_comes_back() {
    let option = b"\x00\x08\x00\x07\x00\x01\x18\x00\xc6\x33\x64";
    let request = Request::parse(&ask_edns("h.test", 1, 1232, 0, option)).unwrap();
    assert_eq!(request.query.subnet(), Some(Subnet::new("198.51.100.0".parse().unwrap(), 24)));
    assert!(request.query.encode(1).ends_with(option));
    let bytes = request.fail(Rcode::SERVFAIL);
    assert!(bytes.ends_with(option));
    for bad in
        [&b"\x00\x08\x00\x03\x00\x01\x18"[..], b"\x00\x08\x00\x05\x00\x03\x08\x00\x01", b"\x00\x08\xff"]
    {
        assert!(
            matches!(Request::parse(&ask_edns("h.test", 1, 1232, 0, bad)), Err(Refusal::Reply(_))),
            "{bad:?}"
        );
    }
}

#[test]
fn subnets_are_masked() {
    let shown = |ip: &str, prefix| {
        let subnet = Subnet::new(ip.parse().unwrap(), prefix);
        format!("{}/{}", subnet.address(), subnet.prefix())
    };
    assert_eq!(shown("192.0.2.129", 25), "192.0.2.128/25");
    assert_eq!(shown("192.0.2.129", 0), "0.0.0.0/0");
    assert_eq!(shown("192.0.2.129", 99), "192.0.2.129/32");
    assert_eq!(shown("2001:db8:ffff::1", 33), "2001:db8:8000::/33");
    assert_eq!(shown("2001:db8::1", 0), "::/0");
}

#[test]
fn long_answers_are_cut_for_datagrams() {
    // D8: 4 KB of text.
    let query = query("big.test", RecordType::TXT);
    let mut upstream = reply_to(&query);
    for _ in 0..40 {
        let text = [&[100][..], &[b'x'; 100]].concat();
        upstream = upstream.record(6, "big.test", kind::TXT, 60, &text);
    }
    let answer = Answer::fresh(parse(upstream, &query).unwrap());
    let cut = |asked: &[u8], carrier| {
        let request = Request::parse(asked).unwrap();
        let bytes = request.answer(&answer, carrier);
        let id = u16::from_be_bytes([bytes[0], bytes[1]]);
        let flags = wire::u16_at(&bytes, 2).unwrap();
        // Without TC it must read as a whole reply.
        let mut whole = bytes.clone();
        wire::set_u16(&mut whole, 2, flags & !flag::TC);
        let records = Reply::parse(&whole, &query, id).unwrap().walk().count();
        (bytes.len(), records, flags & flag::TC != 0)
    };
    let plain = ask("big.test", 16, |build| build);
    let edns = |payload| ask_edns("big.test", 16, payload, 0, &[]);
    for (asked, limit) in
        [(plain.clone(), 512), (edns(512), 512), (edns(100), 512), (edns(1232), 1232), (edns(4096), 4096)]
    {
        let (length, records, truncated) = cut(&asked, Carrier::Datagram);
        assert!(length <= limit && length > limit - 130, "{length} of {limit}");
        assert!(truncated && records < 40);
    }
    assert_eq!((cut(&edns(65535), Carrier::Datagram).1, cut(&edns(65535), Carrier::Datagram).2), (40, false));
    assert_eq!((cut(&plain, Carrier::Stream).1, cut(&plain, Carrier::Stream).2), (40, false));
}

#[test]
fn additional_records_go_without_a_sign() {
    let query = query("h.test", RecordType::A);
    let filler = [&[200][..], &[b'x'; 200]].concat();
    let upstream = reply_to(&query)
        .address("h.test", 60, "192.0.2.1")
        .record(10, "x.test", kind::TXT, 60, &filler)
        .record(10, "y.test", kind::TXT, 60, &filler)
        .record(10, "z.test", kind::TXT, 60, &filler);
    let answer = Answer::fresh(parse(upstream, &query).unwrap());
    let request = Request::parse(&ask("h.test", 1, |build| build)).unwrap();
    let bytes = request.answer(&answer, Carrier::Datagram);
    assert!(bytes.len() <= 512);
    assert_eq!(wire::u16_at(&bytes, 2).unwrap() & flag::TC, 0);
    assert_eq!((wire::u16_at(&bytes, 6), wire::u16_at(&bytes, 10)), (Ok(1), Ok(2)));
}

#[test]
fn lifetimes_follow_ttls() {
    // D13: TTLs at their extremes.
    let query = query("h.test", RecordType::A);
    let life = |ttl| parse(reply_to(&query).address("h.test", ttl, "192.0.2.1"), &query).unwrap().lifetime();
    assert_eq!((life(0), life(1), life(300)), (0, 1, 300));
    assert_eq!((life(0x7fff_ffff), life(0x8000_0000), life(0xffff_ffff)), (LONGEST_LIFE, 0, 0));
    let two = reply_to(&query).alias("h.test", 30, "x.test").address("x.test", 300, "192.0.2.1");
    assert_eq!(parse(two, &query).unwrap().lifetime(), 30);
    for (ttl, age, shown) in [(0x7fff_ffff, 7, 0x7fff_fff8), (0x8000_0000, 7, 0), (u32::MAX, 7, 0), (5, 7, 0)]
    {
        assert_eq!(Ttl::Aged(age).apply(ttl), shown);
    }
}

#[test]
fn negative_answers_live_as_long_as_their_soa_says() {
    // D7, RFC 2308 section 5.
    let query = query("h.test", RecordType::A);
    for code in [0, 3] {
        let life = |build: Build| parse(build.flags(code), &query).unwrap().lifetime();
        assert_eq!(life(reply_to(&query).soa("test", 60, 900)), 60);
        assert_eq!(life(reply_to(&query).soa("test", 900, 60)), 60);
        assert_eq!(life(reply_to(&query).soa("test", 900, 0)), 0);
        assert_eq!(life(reply_to(&query)), 0, "no SOA, not kept");
        assert_eq!(life(reply_to(&query).alias("h.test", 20, "x.test").soa("test", 900, 60)), 20);
        assert_eq!(life(reply_to(&query).alias("h.test", 20, "x.test")), 0);
    }
    assert_eq!(
        parse(reply_to(&query).flags(2).soa("test", 60, 60), &query).unwrap().lifetime(),
        0,
        "SERVFAIL"
    );
    // Whoever caches behind us must not count from the longer of the two.
    let reply = parse(reply_to(&query).flags(3).soa("test", 900, 60), &query).unwrap();
    assert_eq!(reply.walk().next().unwrap().1.ttl, 60);
}

#[test]
fn replies_to_something_else_are_foreign() {
    let query = query("h.test", RecordType::A);
    let right = reply_to(&query).address("h.test", 60, "192.0.2.1").done();
    assert!(Reply::parse(&right, &query, 77).is_ok());
    assert_eq!(Reply::parse(&right, &query, 78).unwrap_err(), NoReply::Foreign);
    for other in
        [crate::testing::query("x.test", RecordType::A), crate::testing::query("h.test", RecordType::AAAA)]
    {
        assert_eq!(Reply::parse(&right, &other, 77).unwrap_err(), NoReply::Foreign);
    }
    assert_eq!(Reply::parse(&query.encode(77), &query, 77).unwrap_err(), NoReply::Foreign, "our own query");
    let mut spelled = right;
    spelled[HEADER + 1] = b'H';
    assert!(Reply::parse(&spelled, &query, 77).is_ok(), "names compare without case");
    // A bare error without its question is ours by its id.
    let bare = [0, 77, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Reply::parse(&bare, &query, 77).unwrap().rcode(), Rcode::FORMERR);
    let bare = [0, 77, 0x81, 0x80, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(Reply::parse(&bare, &query, 77).is_err());
}

#[test]
fn hostile_replies_are_refused() {
    // D12: pointers in circles, forwards, past the end; lengths that lie; data of the wrong shape.
    let query = query("h.test", RecordType::A);
    let owner_at = (HEADER + 8 + 4) as u8;
    let tail = [0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
    let with_owner = |owner: &[u8]| reply_to(&query).count(6).bytes(owner).bytes(&tail);
    assert!(parse(with_owner(&[0xc0, 12]), &query).is_ok());
    for owner in [
        &[0xc0, owner_at][..],
        &[0xc0, owner_at + 2],
        &[0xff, 0xff],
        &[1, b'a', 0xc0, owner_at],
        &[0x40, b'a', 0],
        &[0x80],
    ] {
        assert!(parse(with_owner(owner), &query).is_err(), "{owner:?}");
    }
    assert!(malformed(reply_to(&query).count(6), &query).contains("too early"));
    assert!(
        malformed(reply_to(&query).record(6, "h.test", kind::A, 1, &[1, 2, 3]), &query).contains("shape")
    );
    assert!(
        malformed(reply_to(&query).record(6, "h.test", kind::AAAA, 1, &[0; 15]), &query).contains("shape")
    );
    // A name in the data that runs over its end into what follows.
    let over =
        reply_to(&query).record(6, "h.test", kind::CNAME, 1, b"\x03ab").address("b.test", 1, "192.0.2.1");
    assert!(parse(over, &query).is_err());
    let itself = reply_to(&query).record(6, "h.test", kind::CNAME, 1, &[0xc0, owner_at + 18]);
    assert!(malformed(itself, &query).contains("backwards"));
    let twice = reply_to(&query).record(10, "", kind::OPT, 0, &[]).record(10, "", kind::OPT, 0, &[]);
    assert!(malformed(twice, &query).contains("OPT"));
    let misplaced = reply_to(&query).record(6, "", kind::OPT, 0, &[]);
    assert!(malformed(misplaced, &query).contains("OPT"));
}

#[test]
fn every_cut_of_a_reply_is_refused() {
    let query = query("h.test", RecordType::A);
    let whole = reply_to(&query)
        .alias("h.test", 9, "x.test")
        .address("x.test", 9, "192.0.2.1")
        .soa("test", 9, 9)
        .done();
    assert!(Reply::parse(&whole, &query, 77).is_ok());
    for cut in 0..whole.len() {
        assert!(Reply::parse(&whole[..cut], &query, 77).is_err(), "cut at {cut}");
    }
    let longer = [&whole[..], b"trailing"].concat();
    assert_eq!(Reply::parse(&longer, &query, 77).unwrap().as_bytes().len(), whole.len());
}

#[test]
fn alias_chains_end() {
    // D14: to itself, in a two-cycle, a hundred long, out of order.
    let query = query("n0.test", RecordType::A);
    let end = |build: Build| {
        let end = parse(build, &query).unwrap().alias_end()?;
        text(end.as_bytes()).map(|name| name.to_string())
    };
    assert_eq!(end(reply_to(&query)), None);
    assert_eq!(end(reply_to(&query).alias("n0.test", 1, "n0.test")).as_deref(), Some("n0.test"));
    assert!(end(reply_to(&query).alias("n0.test", 1, "n1.test").alias("n1.test", 1, "n0.test")).is_some());
    let chain = (0..100).rev().fold(reply_to(&query), |build, n| {
        build.alias(&format!("N{n}.test"), 1, &format!("n{}.test", n + 1))
    });
    assert_eq!(end(chain).as_deref(), Some("n100.test"));
    assert_eq!(end(reply_to(&query).alias("other.test", 1, "x.test")), None);
}

#[test]
fn a_reply_of_64_kib_is_read_whole() {
    // A13: thousands of distinct names, which some encoders compress in quadratic time. Here they are only walked.
    let query = query("h.test", RecordType::A);
    let build = |count: usize| {
        let mut reply = reply_to(&query);
        for n in 0..count {
            reply = reply.address(&format!("l{n:04}.test"), 60, "192.0.2.1");
        }
        reply.done()
    };
    let whole = build(2400);
    assert!(whole.len() > 60_000 && whole.len() <= 65_535);
    let reply = Reply::parse(&whole, &query, 77).unwrap();
    assert_eq!(reply.addresses().count(), 2400);
    let request = Request::parse(&query.encode(1)).unwrap();
    let answer = Answer { reply: reply.into(), ttl: Ttl::Aged(1) };
    assert_eq!(request.answer(&answer, Carrier::Stream).len(), whole.len());
}

#[test]
fn requests_that_ask_nothing_are_refused_at_once() {
    let refusal = |bytes: &[u8]| match Request::parse(bytes) {
        Err(Refusal::Reply(reply)) => Some(reply[3] & 0xf),
        Err(Refusal::Silence) => None,
        Ok(request) => panic!("{request:?}"),
    };
    let whole = ask("h.test", 1, |build| build);
    // F6: no header, several questions, none, a name cut off.
    assert_eq!(refusal(&whole[..11]), None);
    let questions = |count: u16| [&whole[..4], &count.to_be_bytes(), &whole[6..]].concat();
    assert_eq!([0, 2, 65535].map(|count| refusal(&questions(count))), [Some(1); 3]);
    for cut in HEADER..whole.len() {
        assert_eq!(refusal(&whole[..cut]), Some(1), "cut at {cut}");
    }
    assert_eq!(refusal(&[&whole[..2], &[0x28, 0], &whole[4..]].concat()), Some(4), "an update");
    assert_eq!(refusal(&[&whole[..2], &[0x80, 0], &whole[4..]].concat()), None, "an answer");
    let versioned = ask_edns("h.test", 1, 1232, 0x0001_0000, &[]);
    let Err(Refusal::Reply(reply)) = Request::parse(&versioned) else { panic!("version 1 is not known") };
    assert_eq!(reply[HEADER..], *b"\x00\x00\x29\x04\xd0\x01\x00\x00\x00\x00\x00", "BADVERS");
}

#[test]
fn replies_of_our_own_can_be_read() {
    let ips = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    for (kind, shown) in [(RecordType::A, "192.0.2.1"), (RecordType::AAAA, "2001:db8::1")] {
        let query = query("h.test", kind);
        let reply = records::addresses(&query, &ips, 600);
        let addresses: Vec<_> = reply.addresses().map(|ip| ip.to_string()).collect();
        assert_eq!((addresses, reply.lifetime()), (vec![shown.to_owned()], 600));
    }
    let query = query("1.2.0.192.in-addr.arpa", RecordType::PTR);
    let reply = records::pointers(&query, &[Domain::new("h.test").unwrap()], 600);
    let record = reply.walk().next().unwrap().1;
    assert_eq!(reply.as_bytes()[record.data], labels("h.test"));
}

#[test]
fn predefined_answers_give_all_their_records() {
    let record = |owner: &str, kind, data: &[u8]| records::RawRecord {
        owner: labels(owner),
        kind,
        class: 1,
        ttl: 30,
        data: data.to_vec(),
    };
    let answer = vec![record("x.test", kind::A, &[192, 0, 2, 1]), record("x.test", kind::TXT, b"\x02hi")];
    let soa = [&labels("ns.test")[..], &labels("me.test"), &[0; 20]].concat();
    let sections = [answer, vec![record("test", kind::SOA, &soa)], Vec::new()];
    let predefined = records::Predefined { rcode: 3, sections };
    for kind in [RecordType::A, RecordType::HTTPS] {
        let query = query("x.test", kind);
        let reply = predefined.reply(&query).unwrap();
        assert_eq!((reply.rcode(), reply.walk().count(), reply.lifetime()), (Rcode::NXDOMAIN, 3, 0));
        let bytes =
            Request::parse(&query.encode(5)).unwrap().answer(&Answer::fresh(reply), Carrier::Datagram);
        let flags = flag::QR | flag::AA | flag::RD | flag::RA | 3;
        assert_eq!((wire::u16_at(&bytes, 0), wire::u16_at(&bytes, 2)), (Ok(5), Ok(flags)));
    }
    let query = query("x.test", RecordType::A);
    let wrong =
        records::Predefined { rcode: 0, sections: [vec![record("x.test", kind::A, &[1])], vec![], vec![]] };
    assert!(wrong.reply(&query).is_none());
    let huge = vec![record("x.test", kind::TXT, &[b'x'; 60_000]); 2];
    assert!(records::Predefined { rcode: 0, sections: [huge, vec![], vec![]] }.reply(&query).is_none());
}

#[test]
fn ech_configurations_come_from_the_best_record_first() {
    // Priority 2, target root, alpn, ech `two`; priority 1 with ech `one`; an alias; one that is cut off.
    let two = b"\0\x02\0\0\x01\0\x03\x02h2\0\x05\0\x03two";
    let one = b"\0\x01\x01a\0\0\x05\0\x03one";
    let cut = b"\0\x01\0\0\x05\0\x09cut";
    let query = query("h.test", RecordType::HTTPS);
    let mut build = reply_to(&query);
    for data in [&two[..], one, b"\0\0\x01b\0"] {
        build = build.record(6, "h.test", kind::HTTPS, 60, data);
    }
    let reply = parse(build, &query).unwrap();
    assert_eq!(records::ech_configs(&reply), [b"one", b"two"]);
    if let Ok(reply) = parse(reply_to(&query).record(6, "h.test", kind::HTTPS, 60, cut), &query) {
        assert!(records::ech_configs(&reply).is_empty());
    }
}

#[test]
fn refusals_and_authentic_data_have_their_flags() {
    let query = query("h.test", RecordType::A);
    let request = Request::parse(&query.encode(5)).unwrap();
    let bytes = request.answer(&Answer::fresh(Reply::refused(&query)), Carrier::Datagram);
    assert_eq!(wire::u16_at(&bytes, 2), Ok(flag::QR | flag::RD | 5), "REFUSED without RA");
    let reply = parse(reply_to(&query).flags(flag::AD).address("h.test", 60, "192.0.2.1"), &query).unwrap();
    let answer = Answer::fresh(reply);
    let authentic = |asked: &[u8]| {
        let bytes = Request::parse(asked).unwrap().answer(&answer, Carrier::Datagram);
        wire::u16_at(&bytes, 2).unwrap() & flag::AD != 0
    };
    assert!(!authentic(&ask("h.test", 1, |build| build)));
    assert!(authentic(&ask("h.test", 1, |build| build.flags(flag::AD))));
    assert!(authentic(&ask_edns("h.test", 1, 1232, 0x8000, &[])));
}

#[test]
fn rewritten_ttls_count() {
    let query = query("h.test", RecordType::A);
    let mut reply = parse(reply_to(&query).address("h.test", 300, "192.0.2.1"), &query).unwrap();
    reply.rewrite_ttl(7);
    assert_eq!((reply.lifetime(), reply.walk().next().unwrap().1.ttl), (7, 7));
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promise(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_message(&bytes);
    }

    /// Bytes that look like a message reach deeper than noise does.
    #[test]
    fn mangled_messages_keep_the_promise(at in 0usize..200, byte: u8, cut in 0usize..200, counts: [u8; 3]) {
        let query = query("h.test", RecordType::A);
        let mut bytes = reply_to(&query)
            .alias("h.test", 300, "x.test")
            .address("x.test", 300, "192.0.2.1")
            .soa("test", 60, 60)
            .record(10, "", kind::OPT, 0x8000, b"\x00\x08\x00\x07\x00\x01\x18\x00\xc6\x33\x64")
            .done();
        bytes[2] &= 0x7f;
        for (index, count) in counts.into_iter().enumerate() {
            if count < 4 {
                wire::set_u16(&mut bytes, 6 + 2 * index, count.into());
            }
        }
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(length - cut % length / 4);
        fuzz_message(&bytes);
    }
}
