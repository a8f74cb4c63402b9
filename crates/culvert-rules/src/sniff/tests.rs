//! Every sniffer on every prefix of what it knows and of what it does not, and the field reports N4 to N10.

use proptest::prelude::*;

use super::{
    quic::{
        MAX_CRYPTO, MAX_DATAGRAMS,
        seal::{crypto, initial},
    },
    *,
};

const V1: u32 = 1;
const V2: u32 = 0x6b33_43cf;
const DRAFT_29: u32 = 0xff00_001d;

fn hex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn name(domain: &str) -> Option<Domain> {
    Some(Domain::new(domain).unwrap())
}

fn found(protocol: Protocol, domain: Option<&str>) -> Verdict {
    Verdict::Match(Sniffed { domain: domain.and_then(name), ..Sniffed::new(protocol) })
}

fn sniff(bytes: &[u8]) -> Verdict {
    StreamSniffer::new(Sniffers::ALL).sniff(bytes)
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
}

fn counted(numbers: &[u16]) -> Vec<u8> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
}

fn server_name(host: &[u8]) -> Vec<u8> {
    let entry = [&[0][..], &(host.len() as u16).to_be_bytes(), host].concat();
    extension(0, &[&(entry.len() as u16).to_be_bytes()[..], &entry].concat())
}

/// A hello with these suites and extensions.
fn hello_of(suites: &[u16], extensions: &[Vec<u8>]) -> Vec<u8> {
    let extensions = extensions.concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[32],
        &[9; 32],
        &counted(suites),
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        &extensions,
    ]
    .concat();
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
}

/// An ordinary hello with GREASE in it, padded to about `len` bytes.
fn hello(host: &str, len: usize) -> Vec<u8> {
    let alpn = extension(16, b"\0\x0c\x02h2\x08http/1.1");
    let grease = extension(0x1a1a, &[]);
    let padding = extension(21, &vec![0; len]);
    hello_of(&[0x2a2a, 0x1301], &[grease, alpn, server_name(host.as_bytes()), padding])
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
    message.chunks(size).flat_map(record).collect()
}

const DNS_QUERY: &str = "740701000001000000000000012a06676f6f676c6503636f6d0000010001";

/// One of each protocol for streams, and what it should give.
fn streams() -> Vec<(Vec<u8>, Verdict)> {
    let dns = hex(DNS_QUERY);
    let ssh = Sniffed { client: Some("OpenSSH_9.6 Debian".into()), ..Sniffed::new(Protocol::Ssh) };
    vec![
        (records(&hello("tls.test", 10), 16 << 10), found(Protocol::Tls, Some("tls.test"))),
        (records(&hello("tls.test", 10), 1), found(Protocol::Tls, Some("tls.test"))),
        (records(&hello("tls.test", 15 << 10), 4000), found(Protocol::Tls, Some("tls.test"))),
        (records(&hello_of(&[0x1301], &[]), 100), found(Protocol::Tls, None)),
        (
            b"GET /a?u=http://x/ HTTP/1.1\r\nA: b\r\nHost: http.test\r\n\r\n".to_vec(),
            found(Protocol::Http, Some("http.test")),
        ),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), found(Protocol::Http, None)),
        ([&(dns.len() as u16).to_be_bytes()[..], &dns].concat(), found(Protocol::Dns, None)),
        (b"\x13BitTorrent protocol".to_vec(), found(Protocol::BitTorrent, None)),
        (b"SSH-2.0-OpenSSH_9.6 Debian\r\n".to_vec(), Verdict::Match(ssh)),
        (hex("030000130ee000000000000100080000000000")[..14].to_vec(), found(Protocol::Rdp, None)),
    ]
}

#[test]
fn every_prefix_of_a_stream_waits_and_the_whole_matches() {
    for (stream, expected) in streams() {
        let Verdict::Match(Sniffed { protocol, .. }) = &expected else { unreachable!() };
        for sniffers in [Sniffers::ALL, Sniffers::of(&[*protocol])] {
            let mut growing = StreamSniffer::new(sniffers);
            let step = stream.len() / 700 + 1;
            for len in (0..stream.len()).step_by(step) {
                assert_eq!(
                    growing.sniff(&stream[..len]),
                    Verdict::NeedMore,
                    "{protocol}, {len} of {}",
                    stream.len()
                );
            }
            assert_eq!(growing.sniff(&stream), expected);
            let longer = [&stream[..], b"\r\nmore\0"].concat();
            assert_eq!(
                StreamSniffer::new(sniffers).sniff(&longer),
                expected,
                "{protocol} with more behind it"
            );
        }
        let others = Sniffers::ALL.without(*protocol);
        assert_eq!(StreamSniffer::new(others).sniff(&stream), Verdict::No, "{protocol} is no other protocol");
    }
}

/// Nothing may wait for the time-out that cannot become anything: each of these is decided at its last byte, not before.
#[test]
fn foreign_streams_are_given_up_at_once() {
    let without_dns = Sniffers::ALL.without(Protocol::Dns);
    for (sniffers, bytes) in [
        (without_dns, &b"\x05"[..]),
        (without_dns, b"\x16\x03\x01\x02\x00\x02"),
        (without_dns, b"\x16\x02"),
        (without_dns, b"\x16\x03\x01\x00\x00"),
        (without_dns, b"GET\x00"),
        (without_dns, b"\x13BitTorrent protocom"),
        (without_dns, b"SSH-1."),
        (without_dns, b"\x03\x00\x00\x14"),
        // For a while these could be the length of a DNS query.
        (Sniffers::ALL, b"\x00\x05"),
        (Sniffers::ALL, b"\x05\x01\x00\x05\x80"),
        (Sniffers::ALL, b"\xff\xff\x00\x00\x00\x00\x00\x00"),
        (Sniffers::ALL, b"\x05\x01\x00\x05\x01\x00\x03\x09\x00\x10"),
    ] {
        let mut growing = StreamSniffer::new(sniffers);
        for len in 0..bytes.len() {
            assert_eq!(growing.sniff(&bytes[..len]), Verdict::NeedMore, "{bytes:?} {len}");
        }
        assert_eq!(growing.sniff(bytes), Verdict::No, "{bytes:?}");
    }
    assert_eq!(StreamSniffer::new(Sniffers::NONE).sniff(b""), Verdict::No);
    assert_eq!(
        StreamSniffer::new(Sniffers::of(&[Protocol::Quic])).sniff(b""),
        Verdict::No,
        "no sniffer for streams"
    );
    let endless = [b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; StreamSniffer::LIMIT]].concat();
    assert_eq!(sniff(&endless), Verdict::No);
}

#[test]
fn hosts_come_in_many_spellings() {
    for (head, expected) in [
        ("Host: h.test:8080", Some("h.test")),
        ("Host: H.TEST", Some("h.test")),
        ("hOsT:   h.test.  ", Some("h.test")),
        ("Host: h.test.:80", Some("h.test")),
        ("Host: [2001:db8::1]:80", None),
        ("Host: [2001:db8::1]", None),
        ("Host: 2001:db8::1", None),
        ("Host: 192.0.2.1:80", None),
        ("Host: h.test:http", Some("h.test")),
        ("Host:", None),
        ("Host: .", None),
        ("Host: a b", None),
        ("Accept: */*", None),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{head}\r\n\r\n");
        assert_eq!(sniff(request.as_bytes()), found(Protocol::Http, expected), "{head}");
    }
    for (request, expected) in [
        ("CONNECT h.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n", Some("h.test")),
        ("GET http://u@h.test:80/x HTTP/1.1\r\nHost: other.test\r\n\r\n", Some("h.test")),
        ("GET http://h.test HTTP/1.0\r\n\r\n", Some("h.test")),
        ("GET http:///x HTTP/1.1\r\nHost: h.test\r\n\r\n", Some("h.test")),
        ("GET //other.test/ HTTP/1.1\r\nHost: h.test\r\n\r\n", Some("h.test")),
        ("get / HTTP/1.1\r\nHost: h.test\r\n\r\n", Some("h.test")),
        ("OPTIONS * HTTP/1.1\r\nHost: h.test\r\n\r\n", Some("h.test")),
        ("GET / HTTP/1.1\nHost: h.test\n\n", Some("h.test")),
    ] {
        assert_eq!(sniff(request.as_bytes()), found(Protocol::Http, expected), "{request}");
    }
    // What a server makes of these is anyone's guess.
    for head in ["Host: a\r\n b", "Host: a\r\nHost: b", "Host: a\r\nHost: a", "Host : a"] {
        assert_eq!(sniff(format!("GET / HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()), Verdict::No, "{head}");
    }
    let many = format!("GET / HTTP/1.1\r\n{}Host: h.test\r\n\r\n", "A: b\r\n".repeat(300));
    assert_eq!(sniff(many.as_bytes()), found(Protocol::Http, Some("h.test")));
}

#[test]
fn an_ssh_line_that_does_not_end_is_ssh_in_the_end() {
    let mut sniffer = StreamSniffer::new(Sniffers::ALL);
    assert_eq!(sniffer.sniff(b"SSH-2.0-Open"), Verdict::NeedMore);
    assert_eq!(sniffer.give_up(b"SSH-2.0-Open"), Some(Sniffed::new(Protocol::Ssh)));
    assert_eq!(sniffer.give_up(b"SSH-2.0"), None);
    let sniffer = StreamSniffer::new(Sniffers::ALL.without(Protocol::Ssh));
    assert_eq!(sniffer.give_up(b"SSH-2.0-Open"), None, "not enabled");
}

#[test]
fn names_in_hellos_are_canonical() {
    for (host, expected) in [
        ("A.Test", Some("a.test")),
        ("a.test.", Some("a.test")),
        ("192.0.2.1", None),
        ("", None),
        ("a b", None),
    ] {
        assert_eq!(sniff(&records(&hello(host, 0), 9000)), found(Protocol::Tls, expected), "{host:?}");
    }
}

#[test]
fn a_hello_tells_its_lists() {
    let message = hello_of(
        &[0x0a0a, 0x1301],
        &[
            server_name(b"a.test"),
            extension(10, &counted(&[0x1a1a, 29])),
            extension(13, &counted(&[0x0403])),
            extension(16, b"\0\x03\x02h2"),
            extension(43, b"\x04\x2a\x2a\x03\x04"),
        ],
    );
    let hello = ClientHello::decode(&message).unwrap();
    assert_eq!((hello.version, hello.session_id), (0x0303, &[9; 32][..]));
    assert_eq!((hello.cipher_suites, hello.extensions), (vec![0x0a0a, 0x1301], vec![0, 10, 13, 16, 43]));
    assert_eq!((hello.groups, hello.versions), (vec![0x1a1a, 29], vec![0x2a2a, 0x0304]));
    assert_eq!((hello.signature_algorithms, hello.alpn), (vec![0x0403], vec![&b"h2"[..]]));
    assert_eq!(hello.server_name, Some(&b"a.test"[..]));
    // Lengths that do not add up are no hello, and nothing to wait for.
    for at in 4..message.len() {
        let mut damaged = message.clone();
        damaged[at] ^= 0xff;
        assert_ne!(ClientHello::decode(&damaged), Err(DecodeError::Incomplete), "{at}");
    }
}

#[test]
fn packets_that_one_look_decides() {
    for (packet, expected) in [
        (hex(DNS_QUERY), Some(Protocol::Dns)),
        (hex("740781800001000100000000012a06676f6f676c6503636f6d0000010001"), None),
        (hex("7407010000010000000000010361626300001c00010000291000000000000000"), Some(Protocol::Dns)),
        (hex("740701000001000000000001036162630000010001c00c00010001000000000000"), Some(Protocol::Dns)),
        (hex("7407010000010000000000010361626300001c0001"), Some(Protocol::Dns)),
        (hex("7407010000010000000000010361626300001c00010000"), None),
        (hex("74070100000100000000000003616263c0ff00010001"), None),
        (hex("000100002112a44224b1a025d0c180c484341306"), Some(Protocol::Stun)),
        (hex("000100042112a44224b1a025d0c180c484341306"), None),
        (hex("21001ecb6817f2805d044fd700100000dbd03029"), Some(Protocol::BitTorrent)),
        (hex("410277ef0b1fb1f60000000000040000c233000000080000000000000000"), Some(Protocol::BitTorrent)),
        (hex("0102736470696e674958d580121500000000000079"), None),
        (hex("00000417271019800000000078e90560"), Some(Protocol::BitTorrent)),
        (hex("00000417271019800000000178e90560"), None),
        (b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe".to_vec(), Some(Protocol::BitTorrent)),
        (b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:q".to_vec(), None),
        (hex("16fefd000000000000000000000100"), Some(Protocol::Dtls)),
        (hex("16fefc000000000000000000000100"), None),
        (hex(&("1b00060000000000".to_owned() + &"00".repeat(40))), Some(Protocol::Ntp)),
        (hex(&("2300060000100001".to_owned() + &"00".repeat(40))), None),
        (hex(&("1c00060000000000".to_owned() + &"00".repeat(40))), None),
        (vec![], None),
        (vec![0; 100], None),
    ] {
        let expected = expected.map_or(Verdict::No, |protocol| found(protocol, None));
        assert_eq!(PacketSniffer::new(Sniffers::ALL).sniff(&packet), expected, "{packet:02x?}");
        if let Verdict::Match(Sniffed { protocol, .. }) = expected {
            let others = Sniffers::ALL.without(protocol);
            assert_eq!(PacketSniffer::new(others).sniff(&packet), Verdict::No, "{protocol} disabled");
            fuzz_packets(&packet[..packet.len() - 1]);
        }
    }
}

fn quic_found(domain: &str, client: &'static str) -> Verdict {
    Verdict::Match(Sniffed { protocol: Protocol::Quic, domain: name(domain), client: Some(client.into()) })
}

fn feed(packets: &[Vec<u8>]) -> Verdict {
    let mut sniffer = PacketSniffer::new(Sniffers::ALL);
    let mut verdict = Verdict::NeedMore;
    for packet in packets {
        if verdict != Verdict::NeedMore {
            break;
        }
        verdict = sniffer.sniff(packet);
    }
    verdict
}

#[test]
fn the_vectors_of_the_standards_are_read() {
    for vector in [include_str!("vectors/rfc9001-a2.hex"), include_str!("vectors/rfc9369-a2.hex")] {
        let packet = hex(vector);
        assert_eq!(feed(std::slice::from_ref(&packet)), quic_found("example.com", "unknown"));
        for len in (0..packet.len()).step_by(7) {
            assert_eq!(feed(&[packet[..len].to_vec()]), Verdict::No, "{len}");
        }
        for at in (0..packet.len()).step_by(11) {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x10;
            assert_eq!(feed(&[damaged]), Verdict::No, "bit at {at}");
        }
    }
}

#[test]
fn initials_of_all_versions_in_all_shapes() {
    let hello = hello("quic.test", 0);
    for version in [V1, V2, DRAFT_29] {
        let whole = crypto(0, &hello);
        let (head, tail) = hello.split_at(60);
        let ack = [2, 0, 0, 0, 0];
        for (frames, client) in [
            (whole.clone(), "firefox"),
            ([&[0; 50][..], &whole].concat(), "quic-go"),
            ([&[1][..], &whole, &[0; 50]].concat(), "chromium"),
            ([&crypto(60, tail)[..], &[0, 1], &crypto(0, head)].concat(), "chromium"),
            ([&ack[..], &whole].concat(), "unknown"),
            ([&whole[..], &[0; 9]].concat(), "unknown"),
        ] {
            for number in [0, 1, 255] {
                let packet = initial(version, &[1; 8], number, &frames);
                assert_eq!(feed(&[packet]), quic_found("quic.test", client), "{version:x} {frames:x?}");
            }
        }
    }
}

#[test]
fn clients_are_told_apart_by_their_hello() {
    let of = |suites: &[u16], groups: &[u16], versions: &[u8], more: Vec<u8>| {
        let message = hello_of(
            suites,
            &[
                server_name(b"a.test"),
                extension(10, &counted(groups)),
                extension(13, &counted(&[0x0403])),
                extension(43, versions),
                more,
            ],
        );
        (crypto(0, &message), message)
    };
    let safari = of(&[0x1301], &[0x2a2a, 29, 23, 24, 25], b"\x04\x3a\x3a\x03\x04", vec![]);
    let relay = of(&[0x1302], &[29], b"\x02\x03\x04", vec![]);
    let go = of(&[0x1301], &[0x11ec, 29], b"\x02\x03\x04", vec![]);
    let renegotiation = of(&[0x1301], &[29], b"\x02\x03\x04", extension(0xff01, &[0]));
    for (frame, padding_before, ping, client) in [
        (&safari.0, 0, false, "safari"),
        (&relay.0, 0, false, "safari"),
        (&go.0, 20, false, "quic-go"),
        (&go.0, 0, true, "quic-go"),
        (&renegotiation.0, 0, true, "quic-go"),
        (&safari.0, 0, true, "chromium"),
    ] {
        let padding_after = if padding_before == 0 { 20 } else { 0 };
        let frames =
            [&vec![0; padding_before][..], &vec![1; ping.into()], frame, &vec![0; padding_after]].concat();
        assert_eq!(feed(&[initial(V1, &[3; 8], 0, &frames)]), quic_found("a.test", client));
    }
}

fn permutations(items: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    match items.len() {
        0 => vec![vec![]],
        _ => (0..items.len())
            .flat_map(|at| {
                let mut rest = items.clone();
                let first = rest.remove(at);
                permutations(rest).into_iter().map(move |mut tail| {
                    tail.insert(0, first.clone());
                    tail
                })
            })
            .collect(),
    }
}

/// Post-quantum hellos of two kilobytes come in several Initials, in any order, with duplicates in between.
#[test]
fn hellos_in_several_datagrams_in_any_order() {
    let hello = hello("big.test", 1900);
    let packet =
        |number: u8, from: usize, to: usize| initial(V1, &[5; 8], number, &crypto(from, &hello[from..to]));
    let end = hello.len();
    let packets = vec![packet(0, 0, 500), packet(1, 500, 1000), packet(2, 1000, 1500), packet(3, 1500, end)];
    let found = quic_found("big.test", "firefox");
    for order in permutations(packets.clone()) {
        assert_eq!(feed(&order), found);
        let mut sniffer = PacketSniffer::new(Sniffers::ALL);
        for packet in &order[..3] {
            assert_eq!(sniffer.sniff(packet), Verdict::NeedMore);
            assert_eq!(sniffer.sniff(packet), Verdict::NeedMore, "a duplicate changes nothing");
        }
        assert_eq!(sniffer.give_up(), Some(Sniffed::new(Protocol::Quic)));
        assert_eq!(sniffer.sniff(&order[3]), found);
    }
    // Overlapping pieces, and two packets in one datagram.
    let overlapping = [packet(0, 0, 700), packet(1, 300, 1600), packet(2, 200, 400), packet(3, 1500, end)];
    assert_eq!(feed(&overlapping), found);
    assert_eq!(
        feed(&[[&packets[0][..], &packets[1]].concat(), [&packets[3][..], &packets[2]].concat()]),
        found
    );
    // Where copies differ the first counts, so a later forgery cannot change the name.
    let forged = initial(V1, &[5; 8], 9, &crypto(0, &vec![0xee; 500]));
    assert_eq!(
        feed(&[packets[0].clone(), forged, packets[1].clone(), packets[2].clone(), packets[3].clone()]),
        found
    );
    // Datagrams of other kinds in between change nothing.
    let strays = [
        packets[0].clone(),
        b"stray".to_vec(),
        vec![],
        packets[1].clone(),
        packets[3].clone(),
        packets[2].clone(),
    ];
    assert_eq!(feed(&strays), found);
}

#[test]
fn a_gap_that_never_fills_ends() {
    let hello = hello("gap.test", 1900);
    let first = initial(V1, &[5; 8], 0, &crypto(0, &hello[..500]));
    let last = initial(V1, &[5; 8], 1, &crypto(1000, &hello[1000..]));
    let mut sniffer = PacketSniffer::new(Sniffers::ALL);
    for count in 1..MAX_DATAGRAMS {
        assert_eq!(sniffer.sniff(if count == 1 { &first } else { &last }), Verdict::NeedMore, "{count}");
    }
    assert_eq!(sniffer.sniff(&last), Verdict::No);
}

/// Reports of crashes and of memory taken at a peer's word (A2, A3, N7).
#[test]
fn odd_initials_are_survived() {
    assert_eq!(feed(&[hex("c0000000010000000400000000")]), Verdict::No);
    let seal = |frames: &[u8]| initial(V1, &[5; 8], 0, frames);
    let varint = |value: u64| (value | 3 << 62).to_be_bytes();
    for frames in [
        // Lengths, offsets and counts of billions.
        [&[6, 0][..], &varint(1 << 40), &[1, 2, 3]].concat(),
        [&[6][..], &varint(1 << 40), &[1, 0xaa]].concat(),
        [&[6][..], &varint(u64::MAX >> 2), &[1, 0xaa]].concat(),
        [&[2, 0, 0][..], &varint(1 << 40), &[0]].concat(),
        [&[0x1c, 0, 0][..], &varint(1 << 40)].concat(),
        // A frame that no Initial has.
        vec![0x08, 1, 2, 3],
        // Handshake data that is no hello.
        crypto(0, &[2, 0, 0, 4, 3, 3, 0, 0]),
        crypto(0, &[1, 1, 0, 1]),
        vec![0, 0, 0, 6],
    ] {
        assert_eq!(feed(&[seal(&frames)]), Verdict::No, "{frames:x?}");
    }
    // More than is kept: neither in one piece nor in many.
    let mut sniffer = QuicSniffer::new();
    let piece = vec![0; 1000];
    let verdicts = (1..=20).map(|at| sniffer.packet(&seal(&crypto(at * 1000, &piece)))).collect::<Vec<_>>();
    assert_eq!(verdicts.iter().filter(|it| **it == Verdict::NeedMore).count(), MAX_CRYPTO / 1000 - 1);
    let mut sniffer = QuicSniffer::new();
    let scattered: Vec<u8> = (1..=100).flat_map(|at| crypto(at * 10, &[0])).collect();
    assert_eq!(sniffer.packet(&seal(&scattered)), Verdict::No);
    // Nothing but padding: wait, but it is QUIC.
    let mut sniffer = PacketSniffer::new(Sniffers::ALL);
    assert_eq!(sniffer.give_up(), None);
    assert_eq!(sniffer.sniff(&seal(&[0; 100])), Verdict::NeedMore);
    assert_eq!(sniffer.give_up(), Some(Sniffed::new(Protocol::Quic)));
}

#[test]
fn names_of_sniffers_come_back() {
    for protocol in Protocol::ALL {
        assert_eq!(Protocol::from_name(protocol.as_str()), Some(protocol));
        assert!(Sniffers::ALL.has(protocol) && !Sniffers::NONE.has(protocol));
        assert!(!Sniffers::ALL.without(protocol).has(protocol));
    }
    assert_eq!(Protocol::from_name("smtp"), None);
    assert!(server_speaks_first(25) && server_may_speak_first(22) && !server_speaks_first(22));
}

fn damaged(seed: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = seed.len().max(1);
    (prop::collection::vec((0..len, any::<u8>()), 0..4), 0..=len).prop_map(move |(changes, keep)| {
        let mut bytes = seed.clone();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(keep.max(len / 2));
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_stream(&data);
        fuzz_packets(&data);
        fuzz_tls(&data);
        fuzz_dns(&data);
        fuzz_http(&data);
        fuzz_quic(&data);
        fuzz_client_hello(&data);
    }

    #[test]
    fn damaged_streams_are_survived(at in 0usize..10, data in any::<prop::sample::Index>(), rest in damaged(vec![0; 8])) {
        let (mut stream, _) = streams().swap_remove(at);
        stream.truncate(2000);
        let at = data.index(stream.len());
        for (byte, new) in stream[at..].iter_mut().zip(&rest) {
            *byte ^= new;
        }
        fuzz_stream(&stream);
        fuzz_http(&stream);
        fuzz_dns(&stream);
    }

    #[test]
    fn damaged_hellos_are_survived(message in damaged(hello("a.test", 40))) {
        fuzz_client_hello(&message);
        fuzz_tls(&message);
        fuzz_quic(&crypto(0, &message));
        let packet = initial(V1, &[1; 8], 0, &crypto(0, &message));
        fuzz_quic(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat());
    }

    #[test]
    fn hellos_in_any_pieces(cuts in prop::collection::vec(1usize..400, 0..6), order in any::<u64>()) {
        let hello = hello("a.test", 300);
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < hello.len()).collect();
        cuts.extend([0, hello.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut packets: Vec<Vec<u8>> = cuts
            .windows(2)
            .map(|cut| initial(V1, &[1; 8], 0, &crypto(cut[0], &hello[cut[0]..cut[1]])))
            .collect();
        let len = packets.len();
        (0..len).for_each(|at| packets.swap(at, (order >> (at * 8)) as usize % len));
        prop_assert_eq!(feed(&packets), quic_found("a.test", "firefox"));
        let mut stream = records(&hello, 1 + order as usize % 300);
        stream.extend(b"behind");
        prop_assert_eq!(sniff(&stream), found(Protocol::Tls, Some("a.test")));
    }
}
