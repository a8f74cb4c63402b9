use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::load;
use culvert_config::options::inbound::InboundKind;
use culvert_config::options::outbound::OutboundKind;
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Inbound, Outbound, Packet, PacketBatch, Session, Tag,
};
use culvert_quic::{ClientTls, Connection, Link, QuicStream, Transport, connect};
use culvert_wire::{Buf, BufChain, Reader, Room, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use super::auth::Request;
use super::codec::{self, Head, encode_request};
use crate::table::{BuildInbound, BuildOutbound, InboundCx, OutboundCx};
use crate::testing::{NoNames, World, session, store};
use culvert_quic::h3::qpack::{self, Field};
use culvert_quic::h3::{self, Background, HEADERS, put_frame, value};

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn messages_are_those_of_the_vectors() {
    let mut message = Vec::new();
    encode_request(&Target::parse("example.com:80", None).unwrap(), b"PADDING8", &mut message);
    message.extend(b"hi");
    assert_eq!(message, hex("44010e6578616d706c652e636f6d3a38300850414444494e47386869"));
    let mut reply = Vec::new();
    codec::encode_reply(None, b"pad4", &mut reply);
    assert_eq!(reply, hex("00000470616434"));
    reply.clear();
    codec::encode_reply(Some("refused"), b"", &mut reply);
    assert_eq!(reply, hex("01077265667573656400"));
    assert_eq!(codec::decode_reply(&mut Reader::new(&reply)), Ok(Err("refused".to_owned())));
    let mut datagram = Vec::new();
    Head::put(1, 1, [0, 1], "127.0.0.1:53", &mut datagram);
    datagram.extend(b"query");
    assert_eq!(datagram, hex("00000001000100010c3132372e302e302e313a35337175657279"));
    let second = hex("0000000702030102095b3a3a315d3a34343336373839");
    let mut reader = Reader::new(&second);
    let peer = Target::parse("[::1]:443", None).unwrap();
    let head = Head { session: 7, packet: 0x0203, fragment: 1, count: 2, peer };
    assert_eq!(Head::decode(&mut reader), Ok(head));
    assert_eq!(reader.rest(), b"6789");
}

#[test]
fn lengths_beyond_the_limits_are_refused_at_once() {
    for (message, what) in [
        ("4801", "an address of 2049 bytes"),
        ("ffffffffffffffff", "one of four quintillion"),
        ("0e6578616d706c652e636f6d3a38305001", "padding of 4097 bytes"),
        ("00", "no address"),
        ("036162630", "no port"),
    ] {
        let bytes = hex(&message[..message.len() / 2 * 2]);
        let decoded = codec::decode_request(&mut Reader::new(&bytes));
        assert!(matches!(decoded, Err(culvert_wire::DecodeError::Invalid(_))), "{what}: {decoded:?}");
    }
    for reply in ["004801", "020000", "00005001", "01ffffffffffffffff"] {
        assert!(matches!(
            codec::decode_reply(&mut Reader::new(&hex(reply))),
            Err(culvert_wire::DecodeError::Invalid(_))
        ));
    }
    for datagram in ["", "00000001000101010161", "000000010001000000", "0000000100010001c000000000000000"] {
        assert!(Head::decode(&mut Reader::new(&hex(datagram))).is_err());
    }
}

#[test]
fn padding_is_of_letters_and_digits_and_as_long_as_said() {
    for _ in 0..200 {
        let padding = codec::padding(64, 512);
        assert!((64..512).contains(&padding.len()), "{}", padding.len());
        assert!(padding.iter().all(u8::is_ascii_alphanumeric));
    }
}

fn inbound(options: &str) -> Arc<dyn Inbound> {
    let tls = r#""tls": {"enabled": true, "insecure": true}"#;
    let users = r#""users": [{"name": "alice", "password": "secret"}, {"password": "other"}]"#;
    let text = format!(
        r#"{{"inbounds": [{{"type": "hysteria2", "listen": "127.0.0.1", {users}, {tls}{options}}}]}}"#
    );
    let loaded = load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
    let InboundKind::Hysteria2(options) = &loaded.options.inbounds[0].kind else { panic!("another type") };
    options
        .build(InboundCx {
            tag: Tag::new("hysteria2", "in"),
            dialer: &crate::testing::no_dialer,
            networks: None,
            marks: &[],
        })
        .unwrap()
}

fn outbound(server: SocketAddr, options: &str) -> Arc<dyn Outbound> {
    let tls = r#""tls": {"enabled": true, "insecure": true, "server_name": "site.test"}"#;
    let (ip, port) = (server.ip(), server.port());
    let text = format!(
        r#"{{"outbounds": [{{"type": "hysteria2", "server": "{ip}", "server_port": {port}, {tls}{options}}}]}}"#
    );
    let loaded = load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
    let OutboundKind::Hysteria2(options) = &loaded.options.outbounds[0].kind else { panic!("another type") };
    let dialer = Dialer::new(Arc::new(NoNames));
    let cx = OutboundCx { tag: Tag::new("hysteria2", "out"), dialer, store: store() };
    options.build(cx).unwrap()
}

const SECRET: &str = r#", "password": "secret""#;

struct Running {
    world: World,
    inbound: Arc<dyn Inbound>,
    address: SocketAddr,
}

async fn start_in(world: World, options: &str) -> Running {
    let inbound = inbound(options);
    inbound.start(&world.dispatch).await.unwrap();
    let address = inbound.local_addrs()[0];
    Running { world, inbound, address }
}

async fn start(options: &str) -> Running {
    start_in(World::new(), options).await
}

async fn read(conn: &mut BoxStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    conn.read_exact(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn streams_are_carried_with_what_came_early() {
    for options in ["", r#", "obfs": {"type": "salamander", "password": "cry_me"}"#] {
        let mut running = start(options).await;
        let client = outbound(running.address, &format!("{SECRET}{options}"));
        let mut early = BufChain::copied(b"early ");
        let mut conn = client.dial(&session("a.test:80"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let arrived = running.world.next().await;
        assert_eq!(arrived.session.target.to_string(), "a.test:80");
        assert_eq!(arrived.session.user.as_deref(), Some("alice"));
        let mut far = arrived.stream();
        conn.write_all(b"late").await.unwrap();
        let mut seen = [0; 10];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"early late");
        far.write_all(b"answer").await.unwrap();
        assert_eq!(read(&mut conn, 6).await, b"answer");
        conn.shutdown().await.unwrap();
        assert_eq!(far.read(&mut seen).await.unwrap(), 0);
        far.write_all(b"after the end").await.unwrap();
        assert_eq!(read(&mut conn, 13).await, b"after the end");
        drop(far);
        assert!(read_chain(&mut conn, Room::NONE).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let mut running = start("").await;
    let client = outbound(running.address, SECRET);
    let mut conn = client.dial(&session("a.test:25"), &mut BufChain::new()).await.unwrap();
    conn.flush().await.unwrap();
    let mut far = running.world.next().await.stream();
    far.write_all(b"220 hello").await.unwrap();
    assert_eq!(read(&mut conn, 9).await, b"220 hello");
}

#[tokio::test]
async fn a_refusal_says_why() {
    let world = World::deciding(|_| Err(DialError::Rejected("the test")));
    let running = start_in(world, "").await;
    let client = outbound(running.address, SECRET);
    let mut conn = client.dial(&session("a.test:80"), &mut BufChain::copied(b"x")).await.unwrap();
    let error = conn.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("the test"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_told_from_a_right_one() {
    let mut running = start("").await;
    let client = outbound(running.address, r#", "password": "wrong""#);
    let error = client.dial(&session("a.test:80"), &mut BufChain::new()).await.err().unwrap();
    assert!(matches!(error, DialError::Credentials), "{error}");
    let client = outbound(running.address, r#", "password": "other""#);
    let _conn = client.dial(&session("b.test:80"), &mut BufChain::copied(b"x")).await.unwrap();
    let arrived = running.world.next().await;
    assert_eq!(
        (arrived.session.user.as_deref(), arrived.session.target.to_string().as_str()),
        (None, "b.test:80")
    );
}

async fn send(conn: &mut BoxPackets, data: &[u8], peer: &str) {
    let mut batch = PacketBatch::new();
    batch.push(Packet::new(Buf::copied(data), Target::parse(peer, None).unwrap()));
    std::future::poll_fn(|cx| conn.poll_send(cx, &mut batch)).await.unwrap();
}

async fn recv(conn: &mut (impl culvert_core::PacketConn + ?Sized)) -> Vec<(Vec<u8>, String)> {
    let mut batch = PacketBatch::new();
    std::future::poll_fn(|cx| conn.poll_recv(cx, Room::NONE, &mut batch)).await.unwrap();
    batch.iter().map(|packet| (packet.data.to_vec(), packet.peer.to_string())).collect()
}

#[tokio::test]
async fn datagrams_of_every_size_around_the_limits_arrive() {
    let mut running = start("").await;
    let client = outbound(running.address, SECRET);
    let mut conn = client.listen_packet(&session("192.0.2.1:53")).await.unwrap();
    send(&mut conn, b"first", "192.0.2.1:53").await;
    let arrived = running.world.next().await;
    assert_eq!(arrived.session.target.to_string(), "192.0.2.1:53");
    let mut far = arrived.packets();
    assert_eq!(recv(&mut far).await, [(b"first".to_vec(), "192.0.2.1:53".to_owned())]);
    let sizes = (1100..1500).step_by(7).chain([0, 1, 1172, 1173, 1174, 2400, 4095, 4096]);
    for (at, len) in sizes.enumerate() {
        let peer = if at % 2 == 0 { "192.0.2.1:53" } else { "b.test:5353" };
        let data = vec![at as u8; len];
        send(&mut conn, &data, peer).await;
        assert_eq!(recv(&mut far).await, [(data, peer.to_owned())], "{len}");
    }
    send(&mut conn, &[1; 4097], "192.0.2.1:53").await;
    send(&mut conn, b"after one that is too large", "192.0.2.1:53").await;
    assert_eq!(recv(&mut far).await[0].0, b"after one that is too large");
    // And back, another session between them.
    let mut other = client.listen_packet(&session("192.0.2.9:9")).await.unwrap();
    send(&mut other, b"other", "192.0.2.9:9").await;
    let mut other_far = running.world.next().await.packets();
    recv(&mut other_far).await;
    for len in [3, 1300, 4096] {
        let mut batch = PacketBatch::new();
        let from = Target::parse("198.51.100.1:7", None).unwrap();
        batch.push(Packet::new(Buf::from(vec![5; len]), from));
        culvert_core::PacketConn::poll_send(
            &mut far,
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
            &mut batch,
        )
        .is_ready();
        assert_eq!(recv(&mut conn).await, [(vec![5; len], "198.51.100.1:7".to_owned())]);
    }
}

/// A connection as any client of HTTP/3 would make it.
struct Visitor {
    connection: Connection,
    _background: Background,
}

impl Visitor {
    async fn new(server: SocketAddr) -> Self {
        let options = culvert_config::options::tls::OutboundTls {
            enabled: true,
            insecure: true,
            server_name: "site.test".into(),
            ..Default::default()
        };
        let host = culvert_wire::Host::parse("site.test").unwrap();
        let tls: ClientTls = crate::quic::client(Some(&options), &host, &store(), &["h3"], false).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let connection = connect(Link::socket(socket).unwrap(), &tls, &Transport::default(), server).unwrap();
        connection.established().await.unwrap();
        let background = Background::start(&connection).await.unwrap();
        Self { connection, _background: background }
    }

    async fn send(&self, frames: &[u8]) -> QuicStream {
        let mut stream = self.connection.open_bi().await.unwrap();
        write_chain(&mut stream, &mut BufChain::copied(frames)).await.unwrap();
        stream.shutdown().await.unwrap();
        stream
    }

    /// The answer: its fields but the date, and its body.
    async fn ask(&self, frames: &[u8]) -> (Vec<Field>, Vec<u8>) {
        let mut stream = self.send(frames).await;
        let mut early = BufChain::new();
        let mut fields = h3::read_headers(&mut stream, &mut early).await.unwrap();
        fields.retain(|(name, _)| name != b"date");
        let (mut body, mut all) = (h3::Body::default(), Vec::new());
        loop {
            let piece = body.read(&mut stream, &mut early).await.unwrap();
            if piece.is_empty() {
                return (fields, all);
            }
            all.extend(piece.to_vec());
        }
    }

    async fn get(&self, path: &str, more: &[(&str, &str)]) -> (u16, Vec<Field>, String) {
        let (fields, body) = self.ask(&request("GET", "site.test", path, more)).await;
        let status = std::str::from_utf8(value(&fields, ":status").unwrap()).unwrap().parse().unwrap();
        (status, fields, String::from_utf8(body).unwrap())
    }
}

fn request(method: &str, authority: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let base = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path)];
    let (mut section, mut frame) = (Vec::new(), Vec::new());
    qpack::encode(base.iter().chain(more).map(|(name, value)| (*name, value.as_bytes())), &mut section);
    put_frame(HEADERS, &section, &mut frame);
    frame
}

#[tokio::test]
async fn a_wrong_password_gets_what_the_site_says() {
    let fixed =
        r#", "masquerade": {"type": "string", "status_code": 403, "headers": {"X-A": "b"}, "content": "no"}"#;
    for options in ["", fixed] {
        let running = start(options).await;
        let visitor = Visitor::new(running.address).await;
        let denied = visitor.ask(&Request { password: b"wrong", receive: 7 }.encode()).await;
        let site = visitor.ask(&request("POST", "site.test", "/auth", &[])).await;
        assert_eq!(denied, site);
        let status = value(&denied.0, ":status").unwrap();
        if options.is_empty() {
            assert_eq!((status, &denied.1[..]), (&b"404"[..], &b"404 page not found\n"[..]));
            assert_eq!(value(&denied.0, "content-type"), Some(&b"text/plain; charset=utf-8"[..]));
        } else {
            assert_eq!((status, &denied.1[..]), (&b"403"[..], &b"no"[..]));
            assert_eq!(value(&denied.0, "x-a"), Some(&b"b"[..]));
        }
        // What a client may do, a visitor may not.
        let mut stream = visitor.send(&hex("44010e6578616d706c652e636f6d3a38300850414444494e47386869")).await;
        assert!(h3::read_headers(&mut stream, &mut BufChain::new()).await.is_err());
        let error = visitor
            .connection
            .send_datagram(hex("00000001000100010c3132372e302e302e313a35337175657279").into());
        assert!(error.is_ok());
        // The right password on the same connection still opens it.
        let (fields, _) = visitor.ask(&Request { password: b"secret", receive: 0 }.encode()).await;
        assert_eq!(value(&fields, ":status"), Some(&b"233"[..]));
        assert_eq!(value(&fields, "hysteria-cc-rx"), Some(&b"auto"[..]));
        let (fields, _) = visitor.ask(&Request { password: b"secret", receive: 0 }.encode()).await;
        assert_eq!(
            value(&fields, "hysteria-cc-rx"),
            Some(&b"0"[..]),
            "once more, it says what it can receive"
        );
    }
}

#[tokio::test]
async fn rates_are_agreed_on() {
    let running = start(r#", "up_mbps": 100, "down_mbps": 50"#).await;
    let visitor = Visitor::new(running.address).await;
    let (fields, _) = visitor.ask(&Request { password: b"secret", receive: 1_000_000 }.encode()).await;
    assert_eq!(value(&fields, "hysteria-cc-rx"), Some(&b"6250000"[..]));
    let running = start(r#", "up_mbps": 100, "down_mbps": 50, "ignore_client_bandwidth": true"#).await;
    let visitor = Visitor::new(running.address).await;
    let (fields, _) = visitor.ask(&Request { password: b"secret", receive: 0 }.encode()).await;
    assert_eq!(value(&fields, ":status"), Some(&b"404"[..]), "it has to say a rate");
    let stream = hex("44010e6578616d706c652e636f6d3a38300850414444494e47386869");
    let mut stream = visitor.send(&stream).await;
    assert!(h3::read_headers(&mut stream, &mut BufChain::new()).await.is_err(), "and is not served without");
}

#[tokio::test]
async fn a_directory_is_shown_as_a_site() {
    let directory = std::env::temp_dir().join(format!("culvert-hysteria2-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("sub/empty")).unwrap();
    std::fs::write(directory.join("index.html"), "<html>home</html>").unwrap();
    std::fs::write(directory.join("sub/a&b.txt"), "0123456789").unwrap();
    std::fs::write(directory.join("big.bin"), vec![0; 300_000]).unwrap();
    let options = format!(r#", "masquerade": "file://{}""#, directory.display());
    let running = start(&options).await;
    let visitor = Visitor::new(running.address).await;
    let (status, fields, body) = visitor.get("/", &[]).await;
    assert_eq!((status, body.as_str()), (200, "<html>home</html>"));
    assert_eq!(value(&fields, "content-type"), Some(&b"text/html; charset=utf-8"[..]));
    assert_eq!(value(&fields, "content-length"), Some(&b"17"[..]));
    let since = std::str::from_utf8(value(&fields, "last-modified").unwrap()).unwrap().to_owned();
    assert_eq!(visitor.get("/", &[("if-modified-since", &since)]).await.0, 304);
    let (status, fields, _) = visitor.get("/sub?x=1", &[]).await;
    assert_eq!((status, value(&fields, "location")), (301, Some(&b"sub/?x=1"[..])));
    let (status, _, body) = visitor.get("/sub/", &[]).await;
    assert!(status == 200 && body.contains(r#"<a href="a%26b.txt">a&amp;b.txt</a>"#), "{body}");
    assert_eq!(visitor.get("/sub/a%26b.txt", &[]).await.2, "0123456789");
    let (status, fields, body) = visitor.get("/sub/a%26b.txt", &[("range", "bytes=2-4")]).await;
    assert_eq!((status, body.as_str()), (206, "234"));
    assert_eq!(value(&fields, "content-range"), Some(&b"bytes 2-4/10"[..]));
    assert_eq!(visitor.get("/sub/a%26b.txt", &[("range", "bytes=10-")]).await.0, 416);
    assert_eq!(visitor.get("/nothing", &[]).await.0, 404);
    assert_eq!(visitor.get("/../index.html", &[]).await.0, 400);
    assert_eq!(visitor.get("/index.html", &[]).await.0, 301);
    assert_eq!(visitor.get("/big.bin", &[]).await.2.len(), 300_000);
    let (fields, body) = visitor.ask(&request("HEAD", "site.test", "/big.bin", &[])).await;
    assert_eq!((value(&fields, "content-length"), body.len()), (Some(&b"300000"[..]), 0));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn another_server_answers_in_its_place() {
    let mut running =
        start(r#", "masquerade": {"type": "proxy", "url": "http://origin.test:81/base"}"#).await;
    let visitor = Visitor::new(running.address).await;
    let mut frames = request("POST", "site.test", "/x?y", &[("x-a", "b"), ("te", "trailers")]);
    put_frame(h3::DATA, b"the body", &mut frames);
    let (answer, ()) = tokio::join!(visitor.ask(&frames), async {
        let arrived = running.world.next().await;
        assert_eq!(arrived.session.target.to_string(), "origin.test:81");
        let mut origin = arrived.stream();
        let mut seen = String::new();
        while !seen.ends_with("the body") {
            let mut piece = [0; 1000];
            let count = origin.read(&mut piece).await.unwrap();
            assert!(count > 0, "{seen}");
            seen.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        assert!(seen.starts_with("POST /base/x?y HTTP/1.1\r\nhost: site.test\r\n"), "{seen}");
        assert!(
            seen.contains("x-a: b\r\n") && seen.contains("content-length: 8\r\n") && !seen.contains("te:"),
            "{seen}"
        );
        let answer = "HTTP/1.1 201 Created\r\nServer: origin\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        origin.write_all(answer.as_bytes()).await.unwrap();
    });
    assert_eq!((value(&answer.0, ":status"), &answer.1[..]), (Some(&b"201"[..]), &b"hello"[..]));
    assert_eq!(value(&answer.0, "server"), Some(&b"origin"[..]));
    assert_eq!(value(&answer.0, "transfer-encoding"), None);
}

#[tokio::test]
async fn what_is_malformed_ends_no_connection() {
    let mut running = start("").await;
    let visitor = Visitor::new(running.address).await;
    let (fields, _) = visitor.ask(&Request { password: b"secret", receive: 0 }.encode()).await;
    assert_eq!(value(&fields, ":status"), Some(&b"233"[..]));
    for datagram in
        ["", "00", "00000001000101010161", "0000000100010001ffffffffffffffff", "0000000100010001026162"]
    {
        visitor.connection.send_datagram(hex(datagram).into()).unwrap();
    }
    for stream in [
        "44015001",
        "4401ffffffffffffffff",
        "44010161",
        "0001",
        "01ff",
        "44010e6578616d706c652e636f6d3a38305388",
    ] {
        let mut stream = visitor.send(&hex(stream)).await;
        let _ =
            tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
    let _stream = visitor.send(&hex("44010e6578616d706c652e636f6d3a38300850414444494e47386869")).await;
    let arrived = running.world.next().await;
    assert_eq!(arrived.session.target.to_string(), "example.com:80");
    assert!(visitor.connection.error().is_none());
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_at_once() {
    let mut running = start("").await;
    let client = outbound(running.address, SECRET);
    let dial = |session: Session| {
        let client = Arc::clone(&client);
        async move { client.dial(&session, &mut BufChain::copied(b"x")).await }
    };
    let mut held = dial(session("a.test:80")).await.unwrap();
    running.world.next().await;
    running.inbound.close().await;
    let port = running.address.port();
    assert!(held.read(&mut [0]).await.is_err(), "the end of the server ends what it carried");
    let same_port = format!(r#", "listen_port": {port}"#);
    let again = start(&same_port);
    let (dialled, mut running) = tokio::join!(dial(session("b.test:80")), again);
    dialled.unwrap();
    assert_eq!(running.world.next().await.session.target.to_string(), "b.test:80");
}

#[test]
fn nonsense_is_refused_by_name() {
    let build = |options: &str| {
        let text = format!(
            r#"{{"outbounds": [{{"type": "hysteria2", "server": "192.0.2.1", "server_port": 1, "password": "x",
                "tls": {{"enabled": true}}, {options}}}]}}"#
        );
        let loaded = load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
        let OutboundKind::Hysteria2(options) = &loaded.options.outbounds[0].kind else {
            panic!("another type")
        };
        let dialer = Dialer::new(Arc::new(NoNames));
        let cx = OutboundCx { tag: Tag::new("hysteria2", "out"), dialer, store: store() };
        options.build(cx).err().map(|error| error.to_string())
    };
    assert_eq!(build(r#""server_ports": ["60000:65535", ":5"]"#), None);
    for (options, part) in [
        (r#""server_ports": "20:10""#, "server_ports"),
        (r#""up_mbps": -1"#, "up_mbps"),
        (r#""hop_interval_max": "1s", "hop_interval": "2s", "server_ports": "1:2""#, "hop_interval_max"),
        (r#""obfs": {"type": "gecko", "password": "x"}"#, "gecko"),
        (r#""initial_packet_size": 1000"#, "initial_packet_size"),
    ] {
        let error = build(options).unwrap_or_default();
        assert!(error.contains(part), "{options}: {error}");
    }
}
