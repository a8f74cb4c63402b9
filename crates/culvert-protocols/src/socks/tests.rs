//! Vectors, cuts, client against server, and clients that misbehave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::options::users::LoginUser;
use culvert_config::value::Secret;
use culvert_core::{
    DialError, Network, Outbound, Packet, PacketBatch, PacketConn, StreamServer, Tag, TcpConn,
};
use culvert_os::socket::UdpOptions;
use culvert_wire::{Buf, DecodeError, Host, Reader, Room, Target};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::codec::*;
use super::outbound::{Client, Version};
use super::udp::{decapsulate, encapsulate, room};
use super::*;
use crate::testing::{World, dialer, recv_packet, send_packets, session, target, write_in_pieces};
use crate::uot;

/// A password that must not show up anywhere.
const CANARY: &str = "canary-7c1f";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn users(list: &[(&str, &str)]) -> Arc<Users> {
    let user = |(name, password): &(&str, &str)| LoginUser {
        username: (*name).to_owned(),
        password: Secret((*password).to_owned()),
    };
    Arc::new(Users::new(&list.iter().map(user).collect::<Vec<_>>()))
}

fn server(list: &[(&str, &str)]) -> Arc<dyn StreamServer> {
    Arc::new(SocksServer::new(users(list), UdpOptions::default(), None))
}

fn decode<T>(
    bytes: &[u8],
    decode: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let whole = decode(&mut Reader::new(bytes))?;
    for cut in 0..bytes.len() {
        let error = decode(&mut Reader::new(&bytes[..cut])).err();
        assert_eq!(error, Some(DecodeError::Incomplete), "cut at {cut} of {bytes:x?}");
    }
    Ok(whole)
}

// Vectors: captured between a peer written from the RFCs and sing-box 1.14.4.

#[test]
fn greetings_and_logins() {
    assert_eq!(decode(&hex("050100"), Greeting::decode), Ok(Greeting { none: true, password: false }));
    assert_eq!(decode(&hex("05020002"), Greeting::decode), Ok(Greeting { none: true, password: true }));
    assert_eq!(decode(&hex("0500"), Greeting::decode), Ok(Greeting::default()));
    let login = Login { user: b"u".to_vec(), password: b"p".to_vec() };
    assert_eq!(decode(&hex("0101750170"), Login::decode), Ok(login));
    let empty = Login { user: b"u".to_vec(), password: vec![] };
    assert_eq!(decode(&hex("01017500"), Login::decode), Ok(empty));
    assert_eq!(decode(&hex("0500"), decode_method), Ok(Method::None));
    assert_eq!(decode(&hex("0100"), decode_login_status), Ok(true));
    assert_eq!(decode(&hex("0101"), decode_login_status), Ok(false));
    let mut out = Vec::new();
    Greeting::encode_one(Method::Password, &mut out);
    Login::encode(b"u", b"p", &mut out);
    assert_eq!(out, hex("050102 0101750170"));
}

#[test]
fn requests_and_replies() {
    let request = hex("050100030b6578616d706c652e636f6d1f90");
    let decoded = Request { command: Command::Connect, target: Some(target("example.com:8080")) };
    assert_eq!(decode(&request, Request::decode), Ok(decoded));
    let mut out = Vec::new();
    Request::encode(Command::Connect, &target("example.com:8080"), &mut out);
    assert_eq!(out, request);

    let reply = |text: &str| decode(&hex(text), Reply::decode).unwrap();
    let udp = reply("050000017f000001e44b");
    assert_eq!(
        (udp.code, udp.host, udp.port),
        (ReplyCode::SUCCEEDED, Some(Host::Ip([127, 0, 0, 1].into())), 58443)
    );
    for (message, code) in
        [("050500", ReplyCode::REFUSED), ("050700", ReplyCode::COMMAND), ("05ff00", ReplyCode(0xff))]
    {
        assert_eq!(reply(message).code, code);
    }
    let name = reply("0500000300 0050");
    assert_eq!((name.host, name.port), (None, 80));
    let wrong = Reply::decode(&mut Reader::new(&hex("050000050000"))).unwrap_err();
    assert_eq!(wrong, DecodeError::Invalid("address type"));
    let mut out = Vec::new();
    Reply::encode(ReplyCode::REFUSED, None, &mut out);
    assert_eq!(out, hex("05050001000000000000"));
}

#[test]
fn version_4() {
    let plain = decode(&hex("040100507f0000016d6500"), Request4::decode).unwrap();
    assert_eq!((plain.target, &plain.user[..]), (target("127.0.0.1:80"), &b"me"[..]));
    let named = hex("04011f90000000016d65006578616d706c652e636f6d00");
    let decoded = decode(&named, Request4::decode).unwrap();
    assert_eq!((&decoded.target, &decoded.user[..]), (&target("example.com:8080"), &b"me"[..]));
    let mut out = Vec::new();
    Request4::encode_name(&decoded.target.host, 8080, b"me", &mut out);
    assert_eq!(out, named);
    // 0.0.0.0 is an address and no sign of a name.
    let zero = decode(&hex("04010050000000006d6500"), Request4::decode).unwrap();
    assert_eq!(zero.target, target("0.0.0.0:80"));
    // A name that is an address.
    let mut text = hex("040100500000000100");
    text.extend(b"::1\0");
    assert_eq!(decode(&text, Request4::decode).unwrap().target, target("[::1]:80"));

    out.clear();
    encode_reply4(false, None, &mut out);
    assert_eq!(out, hex("005b000000000000"));
    out.clear();
    encode_reply4(true, Some("[::1]:80".parse().unwrap()), &mut out);
    assert_eq!(out, hex("005a000000000000"));
    assert_eq!(decode_reply4(&mut Reader::new(&hex("005b0000"))), Ok(false));
    assert_eq!(decode(&hex("005a005001020304"), decode_reply4), Ok(true));
}

#[test]
fn strings_of_version_4_are_bounded() {
    for (fill, fits) in [(255, true), (256, false)] {
        let mut request = hex("040100507f000001");
        request.extend(vec![b'u'; fill]);
        assert_eq!(Request4::decode(&mut Reader::new(&request)).err() == Some(DecodeError::Incomplete), fits);
    }
}

#[test]
fn datagrams() {
    let datagram = hex("00000001010203040035646e73");
    let (peer, head) = decode_datagram(&datagram).unwrap();
    assert_eq!((peer, &datagram[head..]), (target("1.2.3.4:53"), &b"dns"[..]));
    let mut out = Vec::new();
    encode_datagram_head(&target("1.2.3.4:53"), &mut out);
    assert_eq!(out, &datagram[..head]);
    for bad in
        ["", "00", "0000", "000001 01 01020304 0035", "000000 02", "000000 03 00 0035", "000000 01 0102"]
    {
        assert!(decode_datagram(&hex(bad)).is_err(), "{bad}");
    }
}

#[test]
fn heads_go_into_the_room_without_a_copy() {
    let to = target("192.0.2.1:1080");
    let mut batch = PacketBatch::new();
    let room = room(None, Room::NONE);
    let mut data = Buf::new(5, room.head, room.tail);
    data.append(b"hello");
    let place = data.as_ptr();
    batch.push(Packet::new(data, target("[2001:db8::1]:53")));
    batch.push(Packet::new(Buf::copied(b"no room"), target("a-name.test:53")));
    encapsulate(&mut batch, 0, &to);
    encapsulate(&mut batch, 2, &to); // offered again: nothing changes
    assert!(batch.iter().all(|packet| packet.peer == to));
    let in_place = &batch.front().unwrap().data;
    assert_eq!(in_place.as_ptr() as usize + HEAD_V6, place as usize);
    decapsulate(&mut batch, 0, Room::NONE, |source| *source == to);
    let seen: Vec<_> = batch.iter().map(|packet| (packet.peer.to_string(), packet.data.to_vec())).collect();
    let expected = [("[2001:db8::1]:53", &b"hello"[..]), ("a-name.test:53", b"no room")];
    assert_eq!(seen, expected.map(|(peer, data)| (peer.to_owned(), data.to_vec())));
    encapsulate(&mut batch, 0, &to);
    decapsulate(&mut batch, 0, Room::NONE, |_| false);
    assert!(batch.is_empty());
}

const HEAD_V6: usize = 22;

#[test]
fn trains_stay_trains_and_come_apart_with_room() {
    let to = target("192.0.2.1:1080");
    for (segment, datagrams) in [(1000, 60), (1, 3), (30_000, 2)] {
        let bytes: Vec<u8> = (0..segment * datagrams - segment / 2).map(|at| at as u8).collect();
        let mut batch = PacketBatch::new();
        let train =
            Packet { data: Buf::copied(&bytes), segment: segment as u16, peer: target("192.0.2.9:9") };
        let whole: Vec<Vec<u8>> = train.payloads().map(<[u8]>::to_vec).collect();
        batch.push(train);
        encapsulate(&mut batch, 0, &to);
        assert!(batch.iter().all(|packet| packet.data.len() <= 65_507));
        assert!(batch.len() <= 2, "{segment}: {} messages", batch.len());
        decapsulate(&mut batch, 0, Room { head: 9, tail: 3, max: usize::MAX }, |_| true);
        let parts: Vec<Vec<u8>> = batch.iter().map(|packet| packet.data.to_vec()).collect();
        assert!(parts == whole, "{segment}: {} parts of {}", parts.len(), whole.len());
    }
}

#[test]
fn secrets_are_not_shown() {
    let login = Login { user: b"u".to_vec(), password: CANARY.into() };
    let shown = format!("{login:?} {:?}", users(&[("u", CANARY)]));
    assert!(!shown.contains(CANARY), "{shown}");
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }

    #[test]
    fn nearly_right_bytes_keep_the_promises(
        which in 0usize..6, at in any::<prop::sample::Index>(), byte in any::<u8>(), tail in prop::collection::vec(any::<u8>(), 0..20)
    ) {
        let seeds = ["050100030b6578616d706c652e636f6d1f90", "040100507f0000016d6500", "04011f90000000016d65006578616d706c652e636f6d00",
            "0101750170", "050000017f000001e44b", "00000001010203040035646e73"];
        let mut bytes = hex(seeds[which]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.extend(tail);
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}

// The server.

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// A whole conversation in one go: greeting, login, request, and the first bytes of the connection.
fn conversation(login: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Greeting::encode_one(if login { Method::Password } else { Method::None }, &mut bytes);
    if login {
        Login::encode(b"u", CANARY.as_bytes(), &mut bytes);
    }
    Request::encode(Command::Connect, &target("target.test:80"), &mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cut_of_the_conversation_gives_the_same(login in any::<bool>(), cuts in prop::collection::vec(1usize..9, 1..6)) {
        block_on(async {
            let mut world = World::new();
            let list: &[(&str, &str)] = if login { &[("u", CANARY)] } else { &[] };
            let (mut client, _) = world.serve(&server(list));
            let bytes = [&conversation(login)[..], b"and the payload"].concat();
            write_in_pieces(&mut client, &bytes, &cuts).await.unwrap();
            client.shutdown().await.unwrap();
            let arrived = world.next().await;
            assert_eq!(arrived.session.target, target("target.test:80"));
            assert_eq!(arrived.session.user.as_deref(), login.then_some("u"));
            let mut origin = arrived.stream();
            let mut payload = Vec::new();
            origin.read_to_end(&mut payload).await.unwrap();
            assert_eq!(payload, b"and the payload");
            drop(origin);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            let expected = if login { "0502 0100 05000001000000000000" } else { "0500 05000001000000000000" };
            assert_eq!(answer, hex(expected));
        });
    }

    /// CVE-2023-43644: nothing that a client sends makes a dial without a proper login.
    #[test]
    fn a_dial_implies_an_authenticated_user(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        skip in 0usize..12, seed in 0usize..4, noise in prop::collection::vec(any::<u8>(), 0..40)
    ) {
        block_on(async {
            let mut world = World::new();
            let seeds = [conversation(true), conversation(false), hex("040100507f0000017500"), noise.clone()];
            let mut bytes = [&seeds[seed][skip.min(seeds[seed].len())..], &noise].concat();
            for (at, byte) in edits {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let (mut client, serving) = world.serve(&server(&[("u", CANARY)]));
            let _ = client.write_all(&bytes).await;
            let _ = client.shutdown().await;
            let result = serving.await.unwrap();
            if let Ok(arrived) = world.arrivals.try_recv() {
                assert_eq!(arrived.session.user.as_deref(), Some("u"));
            }
            assert!(!format!("{result:?}").contains(CANARY));
        });
    }
}

#[tokio::test]
async fn refusals_have_their_codes_and_end_in_order() {
    use std::io::ErrorKind;
    let cases: [(MakeError, &str); 7] = [
        (|| connect_error(ErrorKind::ConnectionRefused), "05"),
        (|| connect_error(ErrorKind::HostUnreachable), "04"),
        (|| connect_error(ErrorKind::NetworkUnreachable), "03"),
        (|| connect_error(ErrorKind::PermissionDenied), "02"),
        (|| connect_error(ErrorKind::TimedOut), "01"),
        (|| DialError::Rejected("a rule"), "01"),
        (|| DialError::Network(Network::Tcp), "01"),
    ];
    for (error, code) in cases {
        let world = World::deciding(move |_| Err(error()));
        let (mut client, _) = world.serve(&server(&[]));
        client.write_all(&conversation(false)).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, hex(&format!("0500 05{code}0001000000000000")));
    }
    let world = World::deciding(|_| Err(connect_error(ErrorKind::ConnectionRefused)));
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(&hex("040100507f0000016d6500")).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, hex("005b000000000000"));
}

type MakeError = fn() -> DialError;

fn connect_error(kind: std::io::ErrorKind) -> DialError {
    DialError::Connect { target: target("target.test:80"), source: kind.into() }
}

#[tokio::test]
async fn what_the_server_answers() {
    let open: &[(&str, &str)] = &[];
    let closed: &[(&str, &str)] = &[("u", CANARY), ("nobody", "")];
    let cases = [
        (open, "050100 050200 01 7f000001 0050", "0500 05070001000000000000"),
        (open, "050100 050900 01 7f000001 0050", "0500 05070001000000000000"),
        (open, "050100 050100 09 7f000001 0050", "0500 05080001000000000000"),
        (open, "050100 050100 03 00 0050", "0500 05080001000000000000"),
        (open, "050100 040100 01 7f000001 0050", "0500"),
        (open, "0500 050200 01 7f000001 0050", "0500 05070001000000000000"),
        (open, "04020050 7f000001 6d6500", "005b000000000000"),
        (open, "474554202f", ""),
        (open, "060100", ""),
        (closed, "050100", "05ff"),
        (closed, "0500", "05ff"),
        (closed, "05020002 01 0175 0170", "0502 0101"),
        (closed, "050102 01 00 00", "0502 0101"),
        (closed, "050102 05 01 00 01", "0502"),
        (closed, "04010050 7f000001 7500", "005b000000000000"),
        (closed, "04010050 7f000001 00", "005b000000000000"),
    ];
    for (list, sent, expected) in cases {
        let mut world = World::new();
        let (mut client, serving) = world.serve(&server(list));
        client.write_all(&hex(sent)).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, hex(expected), "to {sent}");
        drop(client);
        assert!(serving.await.unwrap().is_err(), "{sent}");
        assert!(world.arrivals.try_recv().is_err(), "{sent}");
    }
    let mut world = World::new();
    let (mut client, _) = world.serve(&server(closed));
    client.write_all(&[&hex("04010050 7f000001")[..], b"nobody\0"].concat()).await.unwrap();
    assert_eq!(world.next().await.session.user.as_deref(), Some("nobody"));
}

#[tokio::test]
async fn a_stream_without_a_socket_cannot_associate() {
    let world = World::new();
    let (mut client, _) = world.serve(&server(&[]));
    client.write_all(&hex("050100 05030001000000000000")).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, hex("0500 05010001000000000000"));
}

// Client against server.

fn client(
    world: &World,
    server: &Arc<dyn StreamServer>,
    version: Version,
    user: &str,
    password: &str,
) -> Client {
    Client {
        tag: Tag::new("socks", "out"),
        dialer: dialer(world.upstream(server)),
        server: target("proxy.test:1080"),
        version,
        user: user.as_bytes().into(),
        password: password.as_bytes().into(),
        tcp: true,
        udp: true,
        udp_over_tcp: None,
    }
}

#[tokio::test]
async fn client_and_server_agree() {
    let list: &[(&str, &str)] = &[("u", CANARY), ("old", "")];
    let cases = [
        (Version::V5, "u", CANARY, "target.test:443"),
        (Version::V5, "u", CANARY, "192.0.2.1:443"),
        (Version::V5, "u", CANARY, "[2001:db8::1]:443"),
        (Version::V4, "old", "", "192.0.2.1:443"),
        (Version::V4a, "old", "", "192.0.2.1:443"),
        (Version::V4a, "old", "", "target.test:443"),
        (Version::V4a, "old", "", "[2001:db8::1]:443"),
    ];
    for (version, user, password, to) in cases {
        let mut world = World::new();
        let client = client(&world, &server(list), version, user, password);
        let mut near = client.dial(&session(to), &mut Default::default()).await.unwrap();
        let arrived = world.next().await;
        assert_eq!(arrived.session.target, target(to), "{version:?}");
        assert_eq!(arrived.session.user.as_deref(), Some(user));
        let mut far = arrived.stream();
        near.write_all(b"up").await.unwrap();
        far.write_all(b"down").await.unwrap();
        let (mut up, mut down) = ([0; 2], [0; 4]);
        far.read_exact(&mut up).await.unwrap();
        near.read_exact(&mut down).await.unwrap();
        assert_eq!((&up, &down), (b"up", b"down"));
    }
}

#[tokio::test]
async fn client_tells_why_it_failed() {
    let list: &[(&str, &str)] = &[("u", CANARY)];
    let world = World::deciding(|_| Err(connect_error(std::io::ErrorKind::HostUnreachable)));
    let dial = async |version, user, password, to: &str| {
        let client = client(&world, &server(list), version, user, password);
        client.dial(&session(to), &mut Default::default()).await.err().expect("it fails")
    };
    let error = dial(Version::V5, "u", CANARY, "target.test:1").await;
    assert_eq!(error.to_string(), "server refused: host unreachable");
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable);
    for (user, password) in [("u", "wrong"), ("x", CANARY), ("", "")] {
        let error = dial(Version::V5, user, password, "target.test:1").await;
        assert!(matches!(error, DialError::Credentials), "{error:?}");
        assert!(!format!("{error:?}").contains(CANARY));
    }
    let error = dial(Version::V4, "u", "", "target.test:1").await;
    assert_eq!(error.to_string(), "resolve target.test");
    assert!(matches!(dial(Version::V4, "u", "", "[::1]:1").await, DialError::Target { .. }));
    assert!(matches!(dial(Version::V4a, "u", "", "a.test:1").await, DialError::Refused { .. }));
}

#[tokio::test]
async fn udp_over_tcp_goes_through() {
    for version in [uot::Version::V1, uot::Version::V2] {
        let mut world = World::new();
        let mut client = client(&world, &server(&[]), Version::V5, "", "");
        client.udp_over_tcp = Some(version);
        let session = culvert_core::Session { network: Network::Udp, ..session("192.0.2.53:53") };
        let mut near = client.listen_packet(&session).await.unwrap();
        send_packets(&mut near, &[("192.0.2.53:53", b"one"), ("name.test:53", b"two")]).await;
        let arrived = world.next().await;
        assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &session.target));
        let mut far = arrived.packets();
        let mut waiting = PacketBatch::new();
        assert_eq!(recv_packet(&mut far, &mut waiting).await, ("192.0.2.53:53".into(), b"one".to_vec()));
        assert_eq!(recv_packet(&mut far, &mut waiting).await, ("name.test:53".into(), b"two".to_vec()));
        send_packets(&mut far, &[("192.0.2.53:53", b"answer")]).await;
        assert_eq!(
            recv_packet(&mut near, &mut PacketBatch::new()).await,
            ("192.0.2.53:53".into(), b"answer".to_vec())
        );
    }
}

// Associations, over loopback sockets since they need local addresses.

struct Associated {
    world: World,
    control: TcpStream,
    relay: SocketAddr,
    local: UdpSocket,
}

async fn associate(udp_timeout: Option<Duration>) -> Associated {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut control = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, source) = listener.accept().await.unwrap();
    let server: Arc<dyn StreamServer> =
        Arc::new(SocksServer::new(users(&[]), UdpOptions::default(), udp_timeout));
    world.serve_on(&server, Box::new(TcpConn::new(accepted)), source);
    control.write_all(&hex("050100 05030001000000000000")).await.unwrap();
    let mut answer = [0; 12];
    control.read_exact(&mut answer).await.unwrap();
    let reply = Reply::decode(&mut Reader::new(&answer[2..])).unwrap();
    let relay = Target { host: reply.host.unwrap(), port: reply.port }.socket_addr().unwrap();
    assert_eq!(relay.ip(), listener.local_addr().unwrap().ip());
    let local = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    Associated { world, control, relay, local }
}

#[tokio::test]
async fn associations_carry_datagrams_both_ways() {
    let Associated { mut world, control: _control, relay, local } = associate(None).await;
    let thief = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    thief.send_to(&hex("000000 01 01020304 0035 ff"), relay).await.unwrap();
    // A fragment, a stump, nothing, then a proper one.
    for datagram in ["000001 01 01020304 0035 ff", "000000", "", "000000 01 01020304 0035 646e73"] {
        local.send_to(&hex(datagram), relay).await.unwrap();
    }
    let arrived = world.next().await;
    assert_eq!(
        (arrived.session.network, arrived.session.target.to_string()),
        (Network::Udp, "1.2.3.4:53".into())
    );
    let mut far = arrived.packets();
    assert_eq!(recv_packet(&mut far, &mut PacketBatch::new()).await, ("1.2.3.4:53".into(), b"dns".to_vec()));
    send_packets(&mut far, &[("1.2.3.4:53", b"answer"), ("[2001:db8::1]:9", b"other")]).await;
    let mut answer = [0; 100];
    let len = local.recv(&mut answer).await.unwrap();
    assert_eq!(&answer[..len], [&hex("000000 01 01020304 0035")[..], b"answer"].concat());
    let len = local.recv(&mut answer).await.unwrap();
    assert_eq!(decode_datagram(&answer[..len]).unwrap().0, target("[2001:db8::1]:9"));
    // Another port of the client takes over the answers; another address does not.
    let moved = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    moved.send_to(&hex("000000 03 01 61 0035 78"), relay).await.unwrap();
    assert_eq!(recv_packet(&mut far, &mut PacketBatch::new()).await, ("a:53".into(), b"x".to_vec()));
    thief.send_to(&hex("000000 01 01020304 0035 ff"), relay).await.unwrap();
    send_packets(&mut far, &[("1.2.3.4:53", b"again")]).await;
    let len = moved.recv(&mut answer).await.unwrap();
    assert!(answer[..len].ends_with(b"again"));
}

#[tokio::test]
async fn association_ends_with_its_control_connection() {
    let Associated { mut world, control, relay, local } = associate(None).await;
    local.send_to(&hex("000000 01 01020304 0035 646e73"), relay).await.unwrap();
    let mut far = world.next().await.packets();
    recv_packet(&mut far, &mut PacketBatch::new()).await;
    drop(control);
    let mut batch = PacketBatch::new();
    let end = std::future::poll_fn(|cx| far.poll_recv(cx, Room::NONE, &mut batch)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn control_connection_closes_when_no_datagram_comes() {
    let Associated { mut control, world, .. } = associate(Some(Duration::from_millis(50))).await;
    assert_eq!(control.read(&mut [0; 8]).await.unwrap(), 0);
    assert!(world.dispatch.flows().is_empty());
}

/// One who opens associations and sends nothing keeps nobody out, not even itself.
#[tokio::test]
async fn associations_that_send_nothing_make_room() {
    let mut world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server: Arc<dyn StreamServer> = Arc::new(SocksServer::new(users(&[]), UdpOptions::default(), None));
    let mut crowd = Vec::new();
    let mut relay = None;
    for _ in 0..300 {
        let mut control = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, source) = listener.accept().await.unwrap();
        world.serve_on(&server, Box::new(TcpConn::new(accepted)), source);
        control.write_all(&hex("050100 05030001000000000000")).await.unwrap();
        let mut answer = [0; 12];
        control.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[3], 0, "refused");
        relay =
            Target { host: Reply::decode(&mut Reader::new(&answer[2..])).unwrap().host.unwrap(), port: 0 }
                .socket_addr()
                .map(|to| SocketAddr::new(to.ip(), u16::from_be_bytes([answer[10], answer[11]])));
        crowd.push(control);
    }
    assert_eq!(crowd[0].read(&mut [0; 8]).await.unwrap(), 0, "the oldest is let go");
    let local = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    local.send_to(&hex("000000 01 01020304 0035 646e73"), relay.unwrap()).await.unwrap();
    assert_eq!(world.next().await.session.target.to_string(), "1.2.3.4:53");
}

#[tokio::test]
async fn client_and_server_associate() {
    // The server on a loopback socket, the client through its own dialer.
    let mut world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = client(&world, &server(&[]), Version::V5, "", "");
    client.dialer.detour = None;
    client.server = address.into();
    let session = culvert_core::Session { network: Network::Udp, ..session("name.test:53") };
    let accept = async {
        let (accepted, source) = listener.accept().await.unwrap();
        world.serve_on(&server(&[]), Box::new(TcpConn::new(accepted)), source);
    };
    let (near, ()) = tokio::join!(client.listen_packet(&session), accept);
    let mut near = near.unwrap();
    send_packets(&mut near, &[("name.test:53", b"query")]).await;
    let mut far = world.next().await.packets();
    assert_eq!(
        recv_packet(&mut far, &mut PacketBatch::new()).await,
        ("name.test:53".into(), b"query".to_vec())
    );
    send_packets(&mut far, &[("192.0.2.53:53", b"answer")]).await;
    let answer = recv_packet(&mut near, &mut PacketBatch::new()).await;
    assert_eq!(answer, ("192.0.2.53:53".into(), b"answer".to_vec()));
    // The server lets go: so do we.
    drop(far);
    let mut batch = PacketBatch::new();
    let end = std::future::poll_fn(|cx| near.poll_recv(cx, Room::NONE, &mut batch)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}
