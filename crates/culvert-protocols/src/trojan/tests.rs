//! Vectors of the sheet, cuts, strangers, and client against server in memory.

use std::sync::Arc;

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::inbound::vmess::TrojanInbound;
use culvert_config::options::outbound::vmess::TrojanOutbound;
use culvert_config::options::users::PasswordUser;
use culvert_config::value::{Map, Secret, SortedMap};
use culvert_core::conn::read_chain;
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{DialError, Network, Outbound, PacketBatch, ServeError, StreamServer, Tag, timeouts};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::codec::{Command, KEY_LEN, Opening, Request, decode_head, encode_head, key, opening};
use super::inbound::TrojanServer;
use super::outbound::Client;
use super::*;
use crate::testing::{World, dialer, recv_packet, send_packets, session, store, target, write_in_pieces};

const DIGITS: &[u8; KEY_LEN] = b"d63dc919e201d7bc4c825630d2cf25fdc93d4b2f0d46706d29038d01";

#[test]
fn keys_are_digits_of_a_digest() {
    assert_eq!(&key(b"password"), DIGITS);
    assert_eq!(&key(b"pw"), b"bebeef056d2fc0c96fbdd3372c8b766a0d3b5bac45cc56a4f15235cd");
}

#[test]
fn sheet_vectors() {
    let cases: [(&[u8], Command, &str); 2] = [
        (b"\r\n\x01\x03\x0bexample.com\x01\xbb\r\n", Command::Connect, "example.com:443"),
        (b"\r\n\x03\x01\x01\x02\x03\x04\x00\x35\r\n", Command::Associate, "1.2.3.4:53"),
    ];
    for (rest, command, to) in cases {
        let bytes = [DIGITS, rest].concat();
        let request = Request { command, target: target(to) };
        let mut out = Vec::new();
        request.encode(&key(b"password"), &mut out);
        assert_eq!(out, bytes);
        assert_eq!(opening(&bytes), Opening::Key(*DIGITS));
        assert_eq!(Request::decode(&mut Reader::new(rest)), Ok(request));
        for cut in 0..rest.len() {
            assert_eq!(Request::decode(&mut Reader::new(&rest[..cut])), Err(DecodeError::Incomplete));
        }
    }
    let datagram = b"\x01\x7f\x00\x00\x01\xec\xc0\x00\x09\r\necho:ping";
    let mut r = Reader::new(datagram);
    assert_eq!(decode_head(&mut r), Ok((target("127.0.0.1:60608"), 9)));
    assert_eq!(r.rest(), b"echo:ping");
    let mut out = Vec::new();
    encode_head(&target("127.0.0.1:60608"), 9, &mut out);
    assert_eq!(out, datagram[..11]);
}

#[test]
fn line_ends_are_not_looked_at_and_the_rest_is() {
    let decode = |bytes: &[u8]| Request::decode(&mut Reader::new(bytes)).map(|request| request.target);
    assert_eq!(decode(b"xx\x01\x01\x01\x02\x03\x04\x00\x35yy"), Ok(target("1.2.3.4:53")));
    for bad in [&b"\r\n\x02\x01"[..], b"\r\n\x00", b"\r\n\x01\x02", b"\r\n\x01\x03\x01 \x00\x35\r\n"] {
        assert!(matches!(decode(bad), Err(DecodeError::Invalid(_))), "{bad:?}");
    }
}

#[test]
fn only_lower_case_digits_begin_a_key() {
    assert_eq!(opening(b""), Opening::Incomplete);
    assert_eq!(opening(&DIGITS[..KEY_LEN - 1]), Opening::Incomplete);
    assert_eq!(opening(&[&DIGITS[..], b"GET"].concat()), Opening::Key(*DIGITS));
    for foreign in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"abcG", b"D63D", b"0\r\n"] {
        assert_eq!(opening(foreign), Opening::Foreign, "{foreign:?}");
    }
    let mut upper = DIGITS.to_ascii_uppercase();
    assert_eq!(opening(&upper), Opening::Foreign);
    upper.make_ascii_lowercase();
    assert_eq!(opening(&upper), Opening::Key(*DIGITS));
}

fn options() -> TrojanInbound {
    let user = |name: &str, password: &str| PasswordUser {
        name: name.to_owned(),
        password: Secret(password.to_owned()),
    };
    TrojanInbound { users: vec![user("alice", "password"), user("", "pw")], ..TrojanInbound::default() }
}

fn site(host: &str, port: u16) -> ServerOptions {
    ServerOptions { server: host.to_owned(), server_port: port }
}

fn with_fallback() -> TrojanInbound {
    TrojanInbound { fallback: Some(site("site.test", 80)), ..options() }
}

fn server(options: &TrojanInbound) -> Arc<dyn StreamServer> {
    Arc::new(TrojanServer::new(options, None).unwrap())
}

fn client(world: &World, server: &Arc<dyn StreamServer>, password: &str) -> Arc<dyn Outbound> {
    let options = TrojanOutbound {
        server: site("192.0.2.1", 443),
        password: Secret(password.to_owned()),
        ..TrojanOutbound::default()
    };
    let tag = Tag::new("trojan", "out");
    let cx = OutboundCx { tag, dialer: dialer(world.upstream(server)), store: store() };
    Arc::new(Client::new(cx, &options).unwrap())
}

async fn read_some(conn: &mut Duplex) -> Vec<u8> {
    read_chain(conn, Room::NONE).await.unwrap().to_vec()
}

#[tokio::test]
async fn streams_pass_both_ways_and_know_their_user() {
    let mut world = World::new();
    let server = server(&options());
    for (password, user) in [("password", Some("alice")), ("pw", None)] {
        let client = client(&world, &server, password);
        let mut early = BufChain::copied(b"early");
        let mut near = client.dial(&session("a.test:443"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let arrived = world.next().await;
        assert_eq!(arrived.session.user.as_deref(), user);
        assert_eq!(arrived.session.target, target("a.test:443"));
        let mut far = arrived.stream();
        near.write_all(b" and late").await.unwrap();
        near.shutdown().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"early and late");
        far.write_all(b"back").await.unwrap();
        drop(far);
        all.clear();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"back");
    }
}

#[tokio::test]
async fn datagrams_pass_both_ways() {
    let mut world = World::new();
    let client = client(&world, &server(&options()), "password");
    let mut near = client.listen_packet(&session("1.2.3.4:53")).await.unwrap();
    let large = vec![7; 65_000];
    let sent = [("1.2.3.4:53", &b"one"[..]), ("a.test:9", b""), ("[2001:db8::1]:1", &large)];
    send_packets(&mut *near, &sent).await;
    let arrived = world.next().await;
    assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("1.2.3.4:53")));
    let mut far = arrived.packets();
    let mut waiting = PacketBatch::new();
    for (peer, data) in sent {
        assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
    }
    send_packets(&mut far, &[("[2001:db8::1]:1", b"back"), ("1.2.3.4:53", b"")]).await;
    assert_eq!(recv_packet(&mut *near, &mut waiting).await, ("[2001:db8::1]:1".into(), b"back".to_vec()));
    assert_eq!(recv_packet(&mut *near, &mut waiting).await, ("1.2.3.4:53".into(), vec![]));
}

#[tokio::test]
async fn an_association_to_nowhere_goes_where_its_first_datagram_does() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server(&options()));
    let mut bytes = Vec::new();
    Request { command: Command::Associate, target: target("0.0.0.0:0") }.encode(&key(b"pw"), &mut bytes);
    near.write_all(&bytes).await.unwrap();
    near.write_all(b"\x03\x06a.test\x00\x09\x00\x02\r\nhi").await.unwrap();
    let arrived = world.next().await;
    assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("a.test:9")));
    let mut waiting = PacketBatch::new();
    assert_eq!(recv_packet(&mut arrived.packets(), &mut waiting).await, ("a.test:9".into(), b"hi".to_vec()));
}

#[tokio::test]
async fn strangers_get_the_fallback_with_every_byte() {
    let server = server(&with_fallback());
    let wrong = [&key(b"wrong")[..], b"\r\n\x01\x01\x01\x02\x03\x04\x00\x35\r\npayload"].concat();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"[..], b"\x16\x03\x01\x02", &wrong, b"a\n"] {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server);
        near.write_all(bytes).await.unwrap();
        let arrived = world.next().await;
        assert_eq!(
            (arrived.session.user.as_deref(), &arrived.session.target),
            (None, &target("site.test:80"))
        );
        let mut far = arrived.stream();
        let mut all = vec![0; bytes.len()];
        far.read_exact(&mut all).await.unwrap();
        assert_eq!(all, bytes);
        near.write_all(b"more").await.unwrap();
        assert_eq!(read_some(&mut far).await, b"more");
        far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        assert_eq!(read_some(&mut near).await, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        near.shutdown().await.unwrap();
        assert_eq!(read_some(&mut far).await, b"", "the stranger's end reaches the site");
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn strangers_who_say_little_get_the_fallback_in_time() {
    let server = server(&with_fallback());
    for (bytes, ends) in [(&b""[..], false), (b"abc", false), (b"", true), (b"abc", true)] {
        let mut world = World::new();
        let (mut near, _serving) = world.serve(&server);
        near.write_all(bytes).await.unwrap();
        if ends {
            near.shutdown().await.unwrap();
        }
        let start = tokio::time::Instant::now();
        let mut far = world.next().await.stream();
        let waited = if ends { std::time::Duration::ZERO } else { timeouts::STRANGER };
        assert_eq!(start.elapsed(), waited);
        let mut all = vec![0; bytes.len()];
        far.read_exact(&mut all).await.unwrap();
        assert_eq!(all, bytes);
        if !ends {
            near.write_all(b"more").await.unwrap();
            assert_eq!(read_some(&mut far).await, b"more");
        }
    }
}

#[tokio::test]
async fn strangers_without_a_fallback_are_closed_without_a_word() {
    let server = server(&options());
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &key(b"wrong"), &DIGITS.to_ascii_uppercase(), b"\0"] {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server);
        near.write_all(bytes).await.unwrap();
        let mut all = Vec::new();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"");
        assert!(matches!(serving.await.unwrap(), Err(ServeError::Denied(_))));
        assert!(world.arrivals.try_recv().is_err(), "a dial before authentication");
    }
}

#[tokio::test]
async fn a_known_key_with_a_bad_request_has_no_fallback() {
    let server = server(&with_fallback());
    let rests: [&[u8]; 4] = [
        b"\r\n\x02\x01\x01\x02\x03\x04\x00\x35\r\n",
        b"\r\n\x01\x05\x01\x02\x03\x04\x00\x35\r\n",
        b"\r\n\x01\x03\x00\x00\x35\r\n",
        b"\r\n\x01\x03\x14sp.udp-over-tcp.arpa\x00\x00\r\n",
    ];
    for rest in rests {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server);
        near.write_all(&[DIGITS, rest].concat()).await.unwrap();
        let mut all = Vec::new();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"");
        assert!(serving.await.unwrap().is_err());
        assert!(world.arrivals.try_recv().is_err());
    }
    // Cut off anywhere behind the key.
    for cut in KEY_LEN..KEY_LEN + 12 {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server);
        let whole = [&DIGITS[..], b"\r\n\x01\x01\x01\x02\x03\x04\x00\x35\r\n"].concat();
        near.write_all(&whole[..cut]).await.unwrap();
        near.shutdown().await.unwrap();
        assert!(matches!(serving.await.unwrap(), Err(ServeError::Left)));
        assert!(world.arrivals.try_recv().is_err());
    }
}

#[tokio::test]
async fn fallbacks_are_chosen_by_alpn() {
    let by_alpn = SortedMap(Map(vec![("h2".to_owned(), site("h2.test", 81))]));
    let both = TrojanInbound { fallback_for_alpn: by_alpn, ..with_fallback() };
    let only_alpn = TrojanInbound { fallback: None, ..both.clone() };
    let cases = [
        (&with_fallback(), Some("h2"), Some("site.test:80")),
        (&with_fallback(), None, Some("site.test:80")),
        (&both, Some("h2"), Some("h2.test:81")),
        (&both, Some("http/1.1"), None),
        (&both, None, Some("site.test:80")),
        (&only_alpn, Some("h2"), Some("h2.test:81")),
        (&only_alpn, Some("http/1.1"), None),
        (&only_alpn, None, None),
    ];
    for (options, alpn, to) in cases {
        let mut world = World::new();
        let (mut near, far) = duplex(1 << 10);
        let mut session = session("inbound.test:1");
        session.alpn = alpn.map(Into::into);
        let (server, dispatch) = (server(options), world.dispatch.clone());
        let handshake = dispatch.handshakes().enter(session.source.ip());
        let serving =
            tokio::spawn(async move { server.serve(Box::new(far), session, handshake, &dispatch).await });
        near.write_all(b"GET /").await.unwrap();
        assert_eq!(serving.await.unwrap().is_ok(), to.is_some(), "{alpn:?}");
        if let Some(to) = to {
            assert_eq!(world.next().await.session.target, target(to));
        }
    }
}

#[tokio::test]
async fn the_mux_of_trojan_go_carries_streams_and_datagrams() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server(&options()));
    let mut bytes = Vec::new();
    Request { command: Command::Mux, target: target("mux_conn:0") }.encode(&key(b"pw"), &mut bytes);
    // Stream 3 to 127.0.0.1:80 as the sheet has it, its payload in another frame as well; then datagrams on stream 5.
    bytes.extend(
        b"\x01\x00\x00\x00\x03\x00\x00\x00\x01\x02\x0a\x00\x03\x00\x00\x00\x01\x01\x7f\x00\x00\x01\x00\x50hi",
    );
    bytes.extend(b"\x01\x02\x02\x00\x03\x00\x00\x00 !");
    bytes.extend(
        b"\x01\x00\x00\x00\x05\x00\x00\x00\x01\x02\x15\x00\x05\x00\x00\x00\x03\x01\x01\x02\x03\x04\x00\x35",
    );
    bytes.extend(b"\x01\x01\x02\x03\x04\x00\x35\x00\x02\r\nyo");
    near.write_all(&bytes).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(arrived.session.target, target("127.0.0.1:80"));
    let mut far = arrived.stream();
    let mut all = [0; 4];
    far.read_exact(&mut all).await.unwrap();
    assert_eq!(&all, b"hi !");
    let arrived = world.next().await;
    assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("1.2.3.4:53")));
    let mut packets = arrived.packets();
    let mut waiting = PacketBatch::new();
    assert_eq!(recv_packet(&mut packets, &mut waiting).await, ("1.2.3.4:53".into(), b"yo".to_vec()));
    far.write_all(b"back").await.unwrap();
    let mut answer = [0; 12];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"\x01\x02\x04\x00\x03\x00\x00\x00back");
}

#[tokio::test]
async fn a_failed_dial_breaks_the_stream() {
    let world = World::deciding(|_| Err(DialError::Rejected("a test")));
    let client = client(&world, &server(&options()), "password");
    let mut near = client.dial(&session("a.test:443"), &mut BufChain::copied(b"hi")).await.unwrap();
    let mut all = Vec::new();
    assert!(near.read_to_end(&mut all).await.is_err());
    assert_eq!(all, b"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_of_a_stream_is_the_same_stream(udp: bool, cuts in prop::collection::vec(1usize..40, 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let (mut near, _serving) = world.serve(&server(&with_fallback()));
            let command = if udp { Command::Associate } else { Command::Connect };
            let mut bytes = Vec::new();
            Request { command, target: target("a.test:9") }.encode(DIGITS, &mut bytes);
            if udp {
                encode_head(&target("[::1]:1"), 300, &mut bytes);
                bytes.extend([7; 300]);
                encode_head(&target("a.test:9"), 2, &mut bytes);
            }
            bytes.extend(b"hi");
            write_in_pieces(&mut near, &bytes, &cuts).await.unwrap();
            let arrived = world.next().await;
            assert_eq!(arrived.session.target, target("a.test:9"));
            if udp {
                let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
                assert_eq!(recv_packet(&mut far, &mut waiting).await, ("[::1]:1".into(), vec![7; 300]));
                assert_eq!(recv_packet(&mut far, &mut waiting).await, ("a.test:9".into(), b"hi".to_vec()));
            } else {
                let mut all = [0; 2];
                arrived.stream().read_exact(&mut all).await.unwrap();
                assert_eq!(&all, b"hi");
            }
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}
