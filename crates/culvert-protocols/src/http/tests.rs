//! Heads and bodies as vectors, a smuggling corpus, conversations in memory, and the client against the server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::options::users::LoginUser;
use culvert_config::value::{List, Map, Secret};
use culvert_core::duplex::Duplex;
use culvert_core::{DialError, Network, Outbound, PacketBatch, StreamServer, Tag};
use culvert_wire::{BufChain, DecodeError, Reader};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::body::{Body, Framer};
use super::head::{Ask, Credentials, EndOfHead, MAX_HEAD, Request, Response, Version, decode_status};
use super::*;
use crate::testing::{World, dialer, recv_packet, send_packets, session, target, write_in_pieces};
use crate::uot;

/// A password that must not show up anywhere.
const CANARY: &str = "canary-7c1f";

fn server(list: &[(&str, &str)]) -> Arc<dyn StreamServer> {
    let user = |(name, password): &(&str, &str)| LoginUser {
        username: (*name).to_owned(),
        password: Secret((*password).to_owned()),
    };
    let users = Users::new(&list.iter().map(user).collect::<Vec<_>>());
    Arc::new(HttpServer::new(Arc::new(users), None))
}

fn request(text: &str) -> Result<Request, DecodeError> {
    for cut in 0..text.len() {
        let cut = Request::decode(&mut Reader::new(&text.as_bytes()[..cut]));
        assert!(cut.is_err(), "a part of {text:?} is a request");
    }
    Request::decode(&mut Reader::new(text.as_bytes()))
}

/// What the origin gets to see of a request.
fn forwarded(text: &str) -> (String, String) {
    match request(text).unwrap().ask {
        Ask::Forward { target, head, .. } => (target.to_string(), String::from_utf8(head).unwrap()),
        other => panic!("{text:?} asks for {other:?}"),
    }
}

// Heads.

#[test]
fn connect_targets() {
    let connect = |target: &str| request(&format!("CONNECT {target} HTTP/1.1\r\n\r\n")).unwrap().ask;
    for (text, expected) in
        [("a:443", "a:443"), ("a", "a:80"), ("[::1]:443", "[::1]:443"), ("[::1]", "[::1]:80")]
    {
        assert_eq!(connect(text), Ask::Connect(target(expected)));
    }
    for text in ["::1:443", "a:http", "a:99999", "[::1", "/", "a:-1", ":443"] {
        assert!(matches!(connect(text), Ask::Nothing(_)), "{text}");
    }
    let old = request("CONNECT a:1 HTTP/1.0\r\nContent-Length: 5\r\n\r\n").unwrap();
    assert_eq!((old.version, old.body), (Version::V10, Body::Empty));
}

#[test]
fn requests_are_rewritten_for_the_origin() {
    let (to, head) = forwarded(
        "GET HTTP://Example.TEST:8080/a?b=c HTTP/1.1\r\nHOST: other.test:80\r\nX-CaSe: Kept\r\nX-Twice: 1\r\nX-Twice: 2\r\n\
         X-Hop: x\r\nConnection: close, X-Hop, Host, Content-Length\r\nProxy-Connection: close\r\nKeep-Alive: 3\r\n\
         Proxy-Authorization: Basic eDp5\r\nTE: trailers\r\nUpgrade: h2c\r\nContent-Length: 3\r\nX-Last: \r\n\r\n",
    );
    assert_eq!(to, "example.test:8080");
    assert_eq!(
        head,
        "GET /a?b=c HTTP/1.1\r\nHOST: other.test\r\nX-CaSe: Kept\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Last: \r\n\
         Content-Length: 3\r\n\r\n"
    );
    let line = |text: &str| forwarded(text).1.lines().next().map(str::to_owned).unwrap();
    assert_eq!(line("GET http://a HTTP/1.1\r\n\r\n"), "GET / HTTP/1.1");
    assert_eq!(line("GET http://a?b HTTP/1.1\r\n\r\n"), "GET /?b HTTP/1.1");
    assert_eq!(line("GET http://a/b#c HTTP/1.0\r\n\r\n"), "GET /b HTTP/1.0");
    assert_eq!(line("OPTIONS http://a HTTP/1.1\r\n\r\n"), "OPTIONS * HTTP/1.1");
    let (to, head) = forwarded("GET http://[2001:db8::1]:80/ HTTP/1.1\r\n\r\n");
    assert_eq!(
        (to.as_str(), head.as_str()),
        ("[2001:db8::1]:80", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n")
    );
    let (_, head) = forwarded(
        "POST http://a/ HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    assert_eq!(head, "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n");
    let (_, head) = forwarded(
        "GET http://a/ws HTTP/1.1\r\nHost: a\r\nconnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
    );
    assert!(head.ends_with("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), "{head}");
    for (options, upgrades) in [("keep-alive, Upgrade", true), ("UPGRADE,x", true), ("keep-alive", false)] {
        let (_, head) = forwarded(&format!(
            "GET http://a/ws HTTP/1.1\r\nHost: a\r\nConnection: {options}\r\nUpgrade: websocket\r\n\r\n"
        ));
        assert_eq!(
            head.ends_with("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
            upgrades,
            "{options}: {head}"
        );
    }
}

#[test]
fn requests_that_are_none_for_a_proxy() {
    for text in [
        "GET / HTTP/1.1",
        "GET https://a/ HTTP/1.1",
        "GET http:///x HTTP/1.1",
        "GET http://u@a/ HTTP/1.1",
        "GET http://a:x/ HTTP/1.1",
        "GET a HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ] {
        assert!(matches!(request(&format!("{text}\r\n\r\n")).unwrap().ask, Ask::Nothing(_)), "{text}");
    }
}

/// What could be read in two ways is not passed on.
#[test]
fn smuggling_is_refused() {
    let corpus = [
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: 3, 3",
        "Content-Length: +3",
        "Content-Length: 0x3",
        "Content-Length: -1",
        "Content-Length:",
        "Content-Length: 99999999999999999999",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding : chunked",
        " Transfer-Encoding: chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\r\n\tfolded",
        "X: y\rTransfer-Encoding: chunked",
        "Host: b",
        "X\0: y",
        "X: \0",
        ": y",
        "X y",
    ];
    for headers in corpus {
        let text = format!("POST http://a/ HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\nabc");
        let error = Request::decode(&mut Reader::new(text.as_bytes()));
        assert!(matches!(error, Err(DecodeError::Invalid(_))), "{headers:?}: {error:?}");
    }
    let old = "POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(matches!(request(old), Err(DecodeError::Invalid(_))));
    // A bare line feed ends a line for lenient readers; what we write has proper ends.
    let (_, head) = forwarded("GET http://a/ HTTP/1.1\nHost: a\nX: y\n\n");
    assert_eq!(head, "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n");
}

#[test]
fn who_asks_and_whether_it_stays() {
    let given = |value: &str| {
        let text = format!("GET http://a/ HTTP/1.1\r\nproxy-authorization: {value}\r\n\r\n");
        let credentials = request(&text).unwrap().credentials?;
        Some((String::from_utf8(credentials.user).unwrap(), String::from_utf8(credentials.password).unwrap()))
    };
    let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
    assert_eq!(given("Basic YWxpY2U6c2VjcmV0"), pair("alice", "secret"));
    assert_eq!(given("bAsIc  YWxpY2U6c2VjcmV0 "), pair("alice", "secret"));
    assert_eq!(given("Basic dTpwOnE="), pair("u", "p:q"));
    assert_eq!(given("Basic dTpwOnE"), pair("u", "p:q"));
    assert_eq!(given("Basic dTo="), pair("u", ""));
    assert_eq!(given("Basic dTo+Pz8/"), pair("u", ">???"));
    for nonsense in [
        "Basic",
        "Basic ",
        "Basic !!!!",
        "Basic dQ==",
        "Bearer YWxpY2U6c2VjcmV0",
        "BasicYWxpY2U6c2VjcmV0",
        "",
    ] {
        assert_eq!(given(nonsense), None, "{nonsense}");
    }
    assert_eq!(Credentials::encode("alice", "secret"), "Basic YWxpY2U6c2VjcmV0");

    let stays = |headers: &str| request(&format!("GET http://a/ {headers}\r\n\r\n")).unwrap().keep_alive;
    assert!(stays("HTTP/1.1\r\nProxy-Connection: Keep-Alive"));
    for headers in [
        "HTTP/1.0\r\nProxy-Connection: keep-alive",
        "HTTP/1.1\r\nConnection: keep-alive",
        "HTTP/1.1",
        "HTTP/1.1\r\nProxy-Connection: keep-alive\r\nConnection: close",
    ] {
        assert!(!stays(headers), "{headers}");
    }
    let seen = |value: &str| {
        request(&format!("GET http://a/ HTTP/1.1\r\nX-Forwarded-For: {value}\r\n\r\n")).unwrap().forwarded_for
    };
    assert_eq!(seen("unknown, 10.0.0.9, 10.0.0.8"), Some(IpAddr::from([10, 0, 0, 9])));
    assert_eq!(seen("::ffff:10.0.0.9"), Some(IpAddr::from([10, 0, 0, 9])));
    assert_eq!(seen("nobody"), None);
}

#[test]
fn responses_are_rewritten_for_the_client() {
    let response = |text: &str, is_head, keep_alive| {
        let response = Response::decode(&mut Reader::new(text.as_bytes()), is_head, keep_alive)?;
        Ok((response.body, response.keep_alive, String::from_utf8(response.head).unwrap()))
    };
    let (body, kept, head) = response(
        "HTTP/1.1 200 Fine\r\nX-CaSe: Kept\r\nConnection: close, X-Hop\r\nX-Hop: x\r\nKeep-Alive: timeout=1\r\n\
         Proxy-Authenticate: Basic\r\nContent-Length: 5\r\n\r\nhello",
        false,
        true,
    )
    .unwrap();
    assert_eq!((body, kept), (Body::Length(5), true));
    assert_eq!(
        head,
        "HTTP/1.1 200 Fine\r\nX-CaSe: Kept\r\nContent-Length: 5\r\nConnection: keep-alive\r\nKeep-Alive: timeout=55\r\n\
         Proxy-Connection: keep-alive\r\n\r\n"
    );
    let cases = [
        ("200 OK\r\nTransfer-Encoding: chunked", false, Body::Chunked, true),
        ("200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", false, Body::Chunked, true),
        ("200 OK", false, Body::UntilClose, false),
        ("200 OK\r\nContent-Length: 5\r\nContent-Length: 5", false, Body::Length(5), true),
        ("200 OK\r\nContent-Length: 5", true, Body::Empty, true),
        ("200 OK\r\nTransfer-Encoding: chunked", true, Body::Empty, true),
        ("204 No\r\nContent-Length: 5", false, Body::Empty, true),
        ("304 No\r\nContent-Length: 5", false, Body::Empty, true),
        ("502 Bad\r\nContent-Length: 0", false, Body::Length(0), false),
    ];
    for (text, is_head, body, kept) in cases {
        let (seen, keeps, head) = response(&format!("HTTP/1.1 {text}\r\n\r\n"), is_head, true).unwrap();
        assert_eq!((seen, keeps), (body, kept), "{text}");
        assert_eq!(head.contains("Connection: close"), !kept, "{head}");
        let both = head.contains("Transfer-Encoding") && head.contains("Content-Length");
        assert!(!both, "{head}");
    }
    for text in [
        "200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        "200 OK\r\nTransfer-Encoding: gzip",
        "200 OK\r\nContent-Length: x",
    ] {
        let text = format!("HTTP/1.1 {text}\r\n\r\n");
        assert!(matches!(response(&text, false, true), Err(DecodeError::Invalid(_))), "{text}");
    }
    let (_, _, early) = response("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", false, true).unwrap();
    assert_eq!(early, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    assert_eq!(decode_status(&mut Reader::new(b"HTTP/1.1 200 OK\r\n\r\n")), Ok(200));
}

#[test]
fn end_of_head_is_found_in_any_pieces() {
    for text in ["GET / HTTP/1.1\r\nA: b\r\n\r\n", "GET / HTTP/1.1\nA: b\n\n", "A\r\n\n"] {
        for step in 1..text.len() {
            let mut end = EndOfHead::default();
            for seen in (0..text.len()).step_by(step) {
                assert!(!end.is_in(&text.as_bytes()[..seen]), "{text:?} at {seen}");
            }
            assert!(end.is_in(text.as_bytes()), "{text:?} by {step}");
        }
    }
}

// Bodies.

fn body_of(body: Body, text: &str) -> Result<usize, DecodeError> {
    let mut framer = Framer::new(body);
    let mut bytes = BufChain::copied(text.as_bytes());
    let taken = framer.take(&mut bytes)?;
    if !framer.is_done() {
        return Err(DecodeError::Incomplete);
    }
    assert_eq!(taken.len() + bytes.len(), text.len());
    Ok(taken.len())
}

#[test]
fn chunks_end_where_they_say() {
    let bodies = [
        "0\r\n\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "A;x=\"y\"\r\n0123456789\r\n0;last\r\nX-Sum: 1\r\nY:\r\n\r\n",
        "1  \r\na\r\n00\r\n\r\n",
    ];
    for text in bodies {
        assert_eq!(body_of(Body::Chunked, &format!("{text}GET next")), Ok(text.len()), "{text:?}");
        for cut in 0..text.len() {
            assert_eq!(
                body_of(Body::Chunked, &text[..cut]),
                Err(DecodeError::Incomplete),
                "{text:?} at {cut}"
            );
        }
    }
    assert_eq!(body_of(Body::Length(3), "abcd"), Ok(3));
    assert_eq!(body_of(Body::Empty, "abcd"), Ok(0));
    assert_eq!(body_of(Body::UntilClose, "abcd"), Err(DecodeError::Incomplete));
}

#[test]
fn chunks_that_could_be_read_otherwise_are_refused() {
    for text in [
        "\r\n",
        "3\nabc",
        "3\r\nabcd\r\n",
        "3\r\nabc\n0",
        "-3\r\n",
        "0x3\r\n",
        "3\r\nabc\rX",
        "3;a\nb\r\n",
        "10000000000000000\r\n",
        "00000000000000000\r\n",
        "0\r\n X: folded\r\n",
        "0\r\nX: y\r\n z",
        "0\r\nX y\r\n",
        "0\r\nX: y\n",
        "0\r\n\rX",
        "3 4\r\nabc\0",
        "; \r\n",
    ] {
        let refused = body_of(Body::Chunked, text);
        assert!(
            matches!(refused, Err(DecodeError::Invalid(_))) || text == "3 4\r\nabc\0",
            "{text:?}: {refused:?}"
        );
    }
    let long = format!("3;{}\r\n", "x".repeat(20 << 10));
    assert!(matches!(body_of(Body::Chunked, &long), Err(DecodeError::Invalid(_))));
    let many = format!("0\r\n{}", "X: y\r\n".repeat(4 << 10));
    assert!(matches!(body_of(Body::Chunked, &many), Err(DecodeError::Invalid(_))));
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }

    #[test]
    fn nearly_right_bytes_keep_the_promises(
        which in 0usize..5, edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
    ) {
        let seeds = [
            "GET http://a.test:80/b?c HTTP/1.1\r\nHost: a.test:80\r\nConnection: X-Hop\r\nX-Hop: y\r\nContent-Length: 12\r\n\r\n",
            "POST http://[::1]/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nProxy-Authorization: Basic dTpw\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, Foo\r\nFoo: bar\r\n\r\n",
            "HTTP/1.0 304 No\r\nTransfer-Encoding: chunked\r\n\r\n",
            "\u{7}a;x=y\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
        ];
        let mut bytes = seeds[which].as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}

// Conversations.

async fn read_head(conn: &mut Duplex) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(
            conn.read_u8()
                .await
                .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&head))),
        );
    }
    String::from_utf8(head).unwrap()
}

async fn read_text(conn: &mut Duplex, len: usize) -> String {
    let mut bytes = vec![0; len];
    conn.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn rest(conn: &mut Duplex) -> String {
    let mut bytes = Vec::new();
    conn.read_to_end(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_of_a_connect_gives_the_same(cuts in prop::collection::vec(1usize..30, 1..6)) {
        block_on(async {
            let mut world = World::new();
            let (mut client, _) = world.serve(&server(&[("u", CANARY)]));
            let login = Credentials::encode("u", CANARY);
            let text = format!("CONNECT target.test:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {login}\r\n\r\npayload");
            write_in_pieces(&mut client, text.as_bytes(), &cuts).await.unwrap();
            client.shutdown().await.unwrap();
            let arrived = world.next().await;
            assert_eq!((arrived.session.target.clone(), arrived.session.user.as_deref()), (target("target.test:443"), Some("u")));
            let mut origin = arrived.stream();
            assert_eq!(rest(&mut origin).await, "payload");
            origin.write_all(b"answer").await.unwrap();
            drop(origin);
            assert_eq!(rest(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\nanswer");
        });
    }

    #[test]
    fn any_cut_of_two_requests_gives_the_same(
        up in prop::collection::vec(1usize..40, 1..6), down in prop::collection::vec(1usize..40, 1..6)
    ) {
        block_on(async {
            let mut world = World::new();
            let (client, _) = world.serve(&server(&[]));
            let (mut read, mut write) = tokio::io::split(client);
            let text = "POST http://a.test/one HTTP/1.1\r\nProxy-Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n\
                        3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\nGET http://b.test:81/two HTTP/1.1\r\n\r\n";
            let sending = tokio::spawn(async move {
                for part in pieces(text.as_bytes(), &up) {
                    write.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                write
            });
            let mut origin = world.next().await;
            assert_eq!(origin.session.target, target("a.test:80"));
            let mut stream = origin.stream();
            assert!(read_head(&mut stream).await.starts_with("POST /one HTTP/1.1\r\nHost: a.test\r\n"));
            assert_eq!(read_text(&mut stream, 23).await, "3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n");
            let answer = "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: 1\r\n\r\n";
            write_in_pieces(&mut stream, answer.as_bytes(), &down).await.unwrap();
            origin = world.next().await;
            assert_eq!(origin.session.target, target("b.test:81"));
            let mut stream = origin.stream();
            assert!(read_head(&mut stream).await.starts_with("GET /two HTTP/1.1\r\n"));
            write_in_pieces(&mut stream, b"HTTP/1.1 200 OK\r\n\r\nuntil the end", &down).await.unwrap();
            drop(stream);
            let mut seen = String::new();
            read.read_to_string(&mut seen).await.unwrap();
            assert_eq!(seen, "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\
                Connection: keep-alive\r\nKeep-Alive: timeout=55\r\nProxy-Connection: keep-alive\r\n\r\n\
                5\r\nhello\r\n0\r\nT: 1\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
            drop(sending.await.unwrap());
        });
    }

    #[test]
    fn a_dial_implies_an_authenticated_user(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), right in any::<bool>(), connect in any::<bool>()
    ) {
        block_on(async {
            let mut world = World::new();
            let login = Credentials::encode("u", if right { CANARY } else { "wrong" });
            let line = if connect { "CONNECT a:1" } else { "GET http://a/" };
            let mut bytes = format!("{line} HTTP/1.1\r\nProxy-Authorization: {login}\r\nProxy-Connection: keep-alive\r\n\r\n").repeat(2).into_bytes();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let (mut client, serving) = world.serve(&server(&[("u", CANARY)]));
            let _ = client.write_all(&bytes).await;
            let _ = client.shutdown().await;
            while let Ok(arrived) = tokio::time::timeout(Duration::from_secs(2), world.next()).await {
                assert_eq!(arrived.session.user.as_deref(), Some("u"));
            }
            drop(client);
            let result = serving.await.unwrap();
            assert!(!format!("{result:?}").contains(CANARY));
        });
    }
}

fn pieces<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        let (now, later) = rest.split_at((*length).min(rest.len()));
        pieces.push(now);
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

#[tokio::test(start_paused = true)]
async fn a_client_may_log_in_on_the_same_connection() {
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(&[("u", CANARY)]));
    client.write_all(b"CONNECT a:1 HTTP/1.1\r\nProxy-Connection: Keep-Alive\r\n\r\n").await.unwrap();
    let head = read_head(&mut client).await;
    assert!(
        head.starts_with("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\""),
        "{head}"
    );
    assert!(head.contains("Content-Length: 0\r\n") && !head.contains("close"), "{head}");
    let login = Credentials::encode("u", CANARY);
    client
        .write_all(format!("CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: {login}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(world.next().await.session.target, target("a:1"));
    assert_eq!(read_head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");

    for head in
        ["GET http://a/ HTTP/1.1\r\n\r\n", "GET http://a/ HTTP/1.0\r\nProxy-Connection: keep-alive\r\n\r\n"]
    {
        let (mut client, _) = world.serve(&server(&[("u", CANARY)]));
        client.write_all(head.as_bytes()).await.unwrap();
        let answer = rest(&mut client).await;
        assert!(answer.contains(" 407 ") && answer.contains("Connection: close\r\n"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_and_end_in_order() {
    use std::io::ErrorKind;
    let cases: [(MakeError, &str, &str); 3] = [
        (|| connect_error(ErrorKind::ConnectionRefused), "502 Bad Gateway", "502 Bad Gateway"),
        (|| connect_error(ErrorKind::TimedOut), "504 Gateway Timeout", "504 Gateway Timeout"),
        (|| DialError::Rejected("a rule"), "403 Forbidden", "502 Bad Gateway"),
    ];
    for (error, tunnel, plain) in cases {
        let world = World::deciding(move |_| Err(error()));
        for (ask, status) in [("CONNECT a:1", tunnel), ("GET http://a/", plain)] {
            let (mut client, _) = world.serve(&server(&[]));
            client
                .write_all(format!("{ask} HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let answer = rest(&mut client).await;
            let (head, text) = answer.split_once("\r\n\r\n").unwrap();
            let length = format!("\r\nContent-Length: {}\r\nConnection: close", text.len());
            assert!(
                head.starts_with(&format!("HTTP/1.1 {status}\r\n")) && head.ends_with(&length),
                "{ask}: {head}"
            );
            assert!(
                text.starts_with(&format!("{status}: ")) && text.contains("destination"),
                "{ask}: {text}"
            );
        }
    }
    let world = World::deciding(|_| Err(connect_error(ErrorKind::Other)));
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(b"CONNECT a:1 HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(rest(&mut client).await.starts_with("HTTP/1.0 502 "));
}

type MakeError = fn() -> DialError;

fn connect_error(kind: std::io::ErrorKind) -> DialError {
    DialError::Connect { target: target("target.test:80"), source: kind.into() }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_request_is_answered() {
    for (sent, kept) in [
        ("\u{16}\u{3}\u{1}", false),
        ("GET / HTTP/1.1\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n", true),
        ("CONNECT ::1:443 HTTP/1.1\r\n\r\n", false),
        ("GET http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", false),
        ("GET http://a/ HTTP/3.0\r\n\r\n", false),
        ("GET http://me:secret@a/ HTTP/1.1\r\n\r\n", false),
        ("CONNECT me@a:443 HTTP/1.1\r\n\r\n", false),
    ] {
        let mut world = World::new();
        let (mut client, _) = world.serve(&server(&[]));
        client.write_all(sent.as_bytes()).await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n"), "{sent:?}: {head}");
        assert_eq!(head.contains("Connection: close"), !kept, "{sent:?}");
        if kept {
            client.write_all(b"CONNECT a:1 HTTP/1.1\r\n\r\n").await.unwrap();
            world.next().await;
        } else {
            assert_eq!(rest(&mut client).await, "");
            assert!(world.arrivals.try_recv().is_err());
        }
    }
    let world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(b"GET http://a/ HTTP/1.1\r\nX: ").await.unwrap();
    let _ = client.write_all(&vec![b'a'; MAX_HEAD + 100]).await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 400 "));
}

#[test]
fn the_longest_head_is_the_limit_also_when_it_is_all_there() {
    let start = "GET http://a/ HTTP/1.1\r\nX: ";
    for (length, fits) in [(MAX_HEAD, true), (MAX_HEAD + 1, false)] {
        let head = format!("{start}{}\r\n\r\n", "a".repeat(length - start.len() - 4));
        assert_eq!(head.len(), length);
        assert_eq!(Request::decode(&mut Reader::new(head.as_bytes())).is_ok(), fits);
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(length - 24));
        assert_eq!(head.len(), length);
        assert_eq!(Response::decode(&mut Reader::new(head.as_bytes()), false, true).is_ok(), fits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_may_become_a_tunnel_and_does_not_wait_forever() {
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").await.unwrap();
    let mut origin = world.next().await.stream();
    origin.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert!(
        read_head(&mut client).await.starts_with("HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n")
    );
    client.write_all(b"CONNECT b:1 HTTP/1.1\r\n\r\nearly").await.unwrap();
    let mut origin = world.next().await.stream();
    assert_eq!(read_text(&mut origin, 5).await, "early");
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));

    let (mut client, serving) = world.serve(&server(&[]));
    client.write_all(b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").await.unwrap();
    world.next().await.stream().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    read_head(&mut client).await;
    let silent_since = tokio::time::Instant::now();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(silent_since.elapsed().as_secs(), culvert_core::timeouts::HTTP_KEEP_ALIVE_IDLE.as_secs());
    assert!(serving.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn cut_off_responses_look_cut_off() {
    for (answer, broken) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", true),
        ("HTTP/1.1 200 OK\r\n\r\nhalf", false),
        ("HTTP/1.1 200 OK\r\nContent-Le", false),
        ("", false),
        ("nonsense that is no response\r\n\r\n", false),
        ("HTTP/1.1 101 Surprise\r\n\r\n", false),
    ] {
        let mut world = World::new();
        let (mut client, _) = world.serve(&server(&[]));
        client.write_all(b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").await.unwrap();
        let mut origin = world.next().await.stream();
        origin.write_all(answer.as_bytes()).await.unwrap();
        drop(origin);
        let mut seen = Vec::new();
        let end = client.read_to_end(&mut seen).await;
        assert_eq!(end.is_err(), broken, "{answer:?}");
        let seen = String::from_utf8(seen).unwrap();
        let status =
            if answer.contains(" 200 OK\r\n") && answer.contains("\r\n\r\n") { "200" } else { "502" };
        assert!(seen.starts_with(&format!("HTTP/1.1 {status} ")), "{answer:?}: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_ends_the_connection_after_it() {
    let mut world = World::new();
    let (client, _) = world.serve(&server(&[]));
    let (mut read, mut write) = tokio::io::split(client);
    write
        .write_all(
            b"POST http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\nContent-Length: 1000000\r\n\r\nsome",
        )
        .await
        .unwrap();
    let mut origin = world.next().await.stream();
    origin.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
    let mut seen = String::new();
    read.read_to_string(&mut seen).await.unwrap();
    assert!(seen.starts_with("HTTP/1.1 413 ") && seen.ends_with("\r\n\r\nno"), "{seen}");
}

#[tokio::test(start_paused = true)]
async fn a_truncated_request_is_not_passed_off_as_whole() {
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(b"POST http://a/ HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    client.shutdown().await.unwrap();
    let mut origin = world.next().await.stream();
    let mut seen = Vec::new();
    assert!(origin.read_to_end(&mut seen).await.is_err(), "{:?}", String::from_utf8_lossy(&seen));
}

#[tokio::test(start_paused = true)]
async fn upgrades_become_tunnels() {
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client
        .write_all(b"GET http://a/ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nearly")
        .await
        .unwrap();
    let mut origin = world.next().await.stream();
    assert_eq!(
        read_head(&mut origin).await,
        "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    );
    origin
        .write_all(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello")
        .await
        .unwrap();
    assert_eq!(
        read_head(&mut client).await,
        "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    );
    assert_eq!(read_text(&mut client, 5).await, "hello");
    assert_eq!(read_text(&mut origin, 5).await, "early");
    client.write_all(b"up").await.unwrap();
    assert_eq!(read_text(&mut origin, 2).await, "up");
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut origin).await, "");
    origin.write_all(b"down").await.unwrap();
    drop(origin);
    assert_eq!(rest(&mut client).await, "down");

    // Where the origin does not want to, the connection goes on as it was.
    let (mut client, _) = world.serve(&server(&[]));
    client
        .write_all(b"GET http://a/ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nProxy-Connection: keep-alive\r\n\r\n")
        .await
        .unwrap();
    world.next().await.stream().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    read_head(&mut client).await;
    client.write_all(b"GET http://b/ HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(world.next().await.session.target, target("b:80"));
}

#[tokio::test(start_paused = true)]
async fn forwarded_for_counts_from_this_machine_only() {
    for (source, expected) in
        [("127.0.0.1:9", "10.0.0.9:9"), ("[::1]:9", "10.0.0.9:9"), ("192.0.2.1:9", "192.0.2.1:9")]
    {
        let mut world = World::new();
        let (mut client, far) = culvert_core::duplex::duplex(1 << 16);
        world.serve_on(&server(&[]), Box::new(far), source.parse().unwrap());
        client.write_all(b"CONNECT a:1 HTTP/1.1\r\nX-Forwarded-For: 10.0.0.9\r\n\r\n").await.unwrap();
        assert_eq!(world.next().await.session.source.to_string(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_body_passes_both_ways_at_once() {
    const SIZE: usize = 3 << 20;
    let mut world = World::new();
    let (client, _) = world.serve(&server(&[]));
    let (mut read, mut write) = tokio::io::split(client);
    let body: Vec<u8> = (0..SIZE).map(|at| (at * 7 % 251) as u8).collect();
    let sent = body.clone();
    let sending = tokio::spawn(async move {
        write
            .write_all(format!("POST http://a/ HTTP/1.1\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        write.write_all(&sent).await.unwrap();
        write
    });
    let mut origin = world.next().await.stream();
    read_head(&mut origin).await;
    let (mut origin_read, mut origin_write) = tokio::io::split(origin);
    let echo = tokio::spawn(async move {
        origin_write.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await.unwrap();
        tokio::io::copy(&mut (&mut origin_read).take(SIZE as u64), &mut origin_write).await.unwrap();
        origin_write.shutdown().await.unwrap();
    });
    let mut seen = Vec::new();
    read.read_to_end(&mut seen).await.unwrap();
    assert!(seen.ends_with(&body), "{} bytes came back", seen.len());
    echo.await.unwrap();
    drop(sending.await.unwrap());
}

/// A client that is gone while the origin is silent takes its session along, on the first request and on later ones.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_is_not_waited_for() {
    const GET: &[u8] = b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n";
    for kept in [false, true] {
        let mut world = World::new();
        let (mut client, serving) = world.serve(&server(&[]));
        if kept {
            client.write_all(GET).await.unwrap();
            world.next().await.stream().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            read_head(&mut client).await;
        }
        client.write_all(GET).await.unwrap();
        let mut origin = world.next().await.stream();
        read_head(&mut origin).await;
        client.write_all(b"GET http://b/ HT").await.unwrap(); // the beginning of another
        culvert_core::StreamConn::abort(&mut client);
        drop(client);
        assert!(origin.read(&mut [0; 8]).await.is_err(), "the origin is not told");
        assert!(serving.await.unwrap().is_ok());
    }
}

/// A client that ends its side only has said all it has to say and gets its answers.
#[tokio::test(start_paused = true)]
async fn a_client_that_ends_its_side_is_answered() {
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client
        .write_all(
            b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\nGET http://b/ HTTP/1.1\r\n\r\n",
        )
        .await
        .unwrap();
    client.shutdown().await.unwrap();
    for host in ["a:80", "b:80"] {
        let arrived = world.next().await;
        assert_eq!(arrived.session.target, target(host));
        let mut origin = arrived.stream();
        assert!(rest(&mut origin).await.starts_with("GET / HTTP/1.1\r\n"), "the end is passed on");
        origin.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    }
    let seen = rest(&mut client).await;
    assert_eq!(seen.matches("\r\n\r\nok").count(), 2, "{seen}");
}

/// Answers that the program itself gives are not waited for either, when nobody reads them.
#[tokio::test(start_paused = true)]
async fn a_client_that_only_asks_is_let_go() {
    let mut world = World::new();
    let (client, far) = culvert_core::duplex::duplex(1000);
    let serving = world.serve_on(&server(&[]), Box::new(far), "192.0.2.1:9".parse().unwrap());
    let (_read, mut write) = tokio::io::split(client);
    let flood = tokio::spawn(async move {
        write.write_all(b"GET http://a/ HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").await?;
        loop {
            write.write_all(b"GET / HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n").await?;
        }
        #[allow(unreachable_code, reason = "names the type of the error")]
        std::io::Result::Ok(())
    });
    world.next().await.stream().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    let limit = culvert_core::timeouts::HANDSHAKE * 2;
    let served = tokio::time::timeout(limit, serving).await.expect("it is let go").unwrap();
    assert!(served.is_err());
    assert!(flood.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_does_not_hold_on_forever() {
    let mut world = World::new();
    let (mut client, far) = culvert_core::duplex::duplex(10);
    let serving = world.serve_on(&server(&[]), Box::new(far), "192.0.2.1:9".parse().unwrap());
    client.write_all(b"GET http://a/ HTTP/1.1\r\n\r\n").await.unwrap();
    let mut origin = world.next().await.stream();
    origin.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n").await.unwrap();
    origin.write_all(&[b'a'; 3000]).await.unwrap();
    let hour = Duration::from_secs(3600);
    assert!(
        tokio::time::timeout(hour, async {
            while !serving.is_finished() {
                tokio::time::sleep(hour / 60).await
            }
        })
        .await
        .is_err()
    );
    drop(origin);
    serving.await.unwrap().unwrap();
    let mut seen = Vec::new();
    assert!(client.read_to_end(&mut seen).await.is_err(), "it looks complete");
}

// The client.

fn options(username: &str, path: &str, headers: &[(&str, &str)]) -> HttpOutbound {
    let mut options = HttpOutbound::default();
    options.server.server = "proxy.test".to_owned();
    options.server.server_port = 8080;
    options.username = username.to_owned();
    options.password = Secret(CANARY.to_owned());
    options.path = path.to_owned();
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), List(vec![(*value).to_owned()])));
    options.headers.0 = Map(headers.collect());
    options
}

fn outbound(
    world: &World,
    server: &Arc<dyn StreamServer>,
    options: &HttpOutbound,
) -> Result<Client, BuildError> {
    let cx = OutboundCx {
        tag: Tag::new("http", "out"),
        dialer: dialer(world.upstream(server)),
        store: crate::testing::store(),
    };
    Client::new(cx, options)
}

#[tokio::test]
async fn client_and_server_agree() {
    let mut world = World::new();
    let server = server(&[("u", CANARY)]);
    for to in ["target.test:443", "192.0.2.1:1", "[2001:db8::1]:443"] {
        let client = outbound(&world, &server, &options("u", "", &[])).unwrap();
        assert!(client.carries(Network::Tcp) && !client.carries(Network::Udp));
        let mut near = client.dial(&session(to), &mut BufChain::new()).await.unwrap();
        let arrived = world.next().await;
        assert_eq!((&arrived.session.target, arrived.session.user.as_deref()), (&target(to), Some("u")));
        let mut far = arrived.stream();
        near.write_all(b"up").await.unwrap();
        assert_eq!(read_text(&mut far, 2).await, "up");
    }
    let client = outbound(&world, &server, &options("", "", &[])).unwrap();
    let error = client.dial(&session("a:1"), &mut BufChain::new()).await.err().unwrap();
    assert!(matches!(error, DialError::Credentials), "{error:?}");
}

#[tokio::test]
async fn udp_over_tcp_goes_through_a_tunnel() {
    let mut world = World::new();
    let client = outbound(&world, &server(&[]), &options("", "", &[])).unwrap();
    let magic = culvert_core::Session { target: uot::Version::V2.magic_target(), ..session("x:1") };
    let conn = client.dial(&magic, &mut BufChain::new()).await.unwrap();
    let mut near = uot::UotConn::client(uot::Version::V2, conn, &target("a.test:53"));
    send_packets(&mut near, &[("a.test:53", b"query")]).await;
    let mut far = world.next().await.packets();
    assert_eq!(recv_packet(&mut far, &mut PacketBatch::new()).await, ("a.test:53".into(), b"query".to_vec()));
}

/// A server that answers with these bytes, whatever is asked.
struct Answers(&'static str, tokio::sync::mpsc::UnboundedSender<String>);

#[async_trait::async_trait]
impl StreamServer for Answers {
    async fn serve(
        &self,
        mut conn: culvert_core::BoxStream,
        _session: culvert_core::Session,
        _handshake: culvert_core::Handshake,
        _dispatch: &culvert_core::Dispatch,
    ) -> Result<(), culvert_core::ServeError> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(conn.read_u8().await?);
        }
        let _ = self.1.send(String::from_utf8(head).unwrap());
        conn.write_all(self.0.as_bytes()).await?;
        culvert_core::conn::finish(&mut conn).await;
        Ok(())
    }
}

async fn asked(answer: &'static str, options: &HttpOutbound) -> (String, Result<String, DialError>) {
    let world = World::new();
    let (sender, mut heads) = tokio::sync::mpsc::unbounded_channel();
    let server: Arc<dyn StreamServer> = Arc::new(Answers(answer, sender));
    let client = outbound(&world, &server, options).unwrap();
    let result = match client.dial(&session("target.test:443"), &mut BufChain::new()).await {
        Ok(mut conn) => {
            let mut text = String::new();
            conn.read_to_string(&mut text).await.unwrap();
            Ok(text)
        }
        Err(error) => Err(error),
    };
    (heads.try_recv().unwrap_or_default(), result)
}

#[tokio::test]
async fn client_asks_as_its_options_say() {
    const OK: &str = "HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello";
    let (head, text) = asked(OK, &options("alice", "", &[])).await;
    let login = Credentials::encode("alice", CANARY);
    assert_eq!(
        head,
        format!(
            "CONNECT target.test:443 HTTP/1.1\r\nHost: target.test:443\r\nUser-Agent: Go-http-client/1.1\r\n\
             Proxy-Connection: Keep-Alive\r\nProxy-Authorization: {login}\r\n\r\n"
        )
    );
    assert_eq!(text.unwrap(), "hello");
    let headers = [("User-Agent", "me"), ("X-Two", "1"), ("X-Two", "2"), ("host", "front.test")];
    let (head, _) = asked(OK, &options("", "", &headers)).await;
    assert_eq!(
        head,
        "CONNECT target.test:443 HTTP/1.1\r\nHost: front.test\r\nUser-Agent: me\r\nX-Two: 1\r\nX-Two: 2\r\n\
         Proxy-Connection: Keep-Alive\r\n\r\n"
    );
    let (head, _) = asked(OK, &options("", "abc", &[])).await;
    assert!(head.starts_with("CONNECT /abc HTTP/1.1\r\nHost: target.test:443\r\n"), "{head}");
    let (_, refused) = asked(OK, &options("", "abc", &[("Host", "x")])).await;
    assert!(matches!(refused, Err(DialError::Target { .. })));
    for bad in [("X", "a\r\nY: b"), ("X: y", "z"), ("", "z")] {
        let world = World::new();
        assert!(outbound(&world, &server(&[]), &options("", "", &[bad])).is_err(), "{bad:?}");
    }
    let world = World::new();
    assert!(outbound(&world, &server(&[]), &options("", "/a b", &[])).is_err());
}

#[tokio::test]
async fn only_status_200_is_a_tunnel() {
    for (answer, fine) in [
        ("HTTP/1.1 200 OK\r\n\r\n", true),
        ("HTTP/1.1 100 Wait\r\n\r\nHTTP/1.0 200 OK\r\n\r\n", true),
        ("HTTP/1.1 201 Created\r\n\r\n", false),
        ("HTTP/1.1 204 No\r\n\r\n", false),
        ("HTTP/1.1 407 No\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\n", false),
        ("nonsense\r\n\r\n", false),
        ("", false),
    ] {
        let (_, result) = asked(answer, &options("u", "", &[])).await;
        assert_eq!(result.is_ok(), fine, "{answer:?}: {result:?}");
        if let Err(error) = result {
            assert!(!format!("{error:?} {}", culvert_core::Chain(&error)).contains(CANARY));
        }
    }
}
