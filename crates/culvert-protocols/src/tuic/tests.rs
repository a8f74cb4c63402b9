//! Client against server over loopback, and a server against clients that are none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_config::options::users::TuicUser;
use culvert_config::value::{Dur, Secret, Uuid};
use culvert_core::{Network, PacketBatch};
use culvert_quic::{Bytes, Connection, Link, Transport};
use culvert_wire::{Host, Reader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use super::codec::{Command, PacketHead, TOKEN_LEN};
use super::packets::Mode;
use super::*;
use crate::testing::{World, direct, no_dialer, recv_packet, send_packets, session, store, target};

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
const PASSWORD: &str = "tuicpw";
const STEP: Duration = Duration::from_secs(20);

fn id() -> Uuid {
    Uuid::parse(ID).unwrap()
}

/// A running server; sessions arrive in the world.
struct Running {
    world: World,
    inbound: Arc<dyn Inbound>,
    port: u16,
}

async fn server(change: impl FnOnce(&mut TuicInbound)) -> Running {
    let mut options = TuicInbound {
        users: vec![TuicUser {
            name: "alice".to_owned(),
            uuid: Secret(id()),
            password: Secret(PASSWORD.to_owned()),
        }],
        tls: Some(Box::new(InboundTls { enabled: true, insecure: true, ..InboundTls::default() })),
        ..TuicInbound::default()
    };
    change(&mut options);
    let world = World::new();
    let inbound = options
        .build(InboundCx {
            tag: culvert_core::Tag::new("tuic", "in"),
            dialer: &no_dialer,
            networks: None,
            marks: &[],
        })
        .unwrap();
    inbound.start(&world.dispatch).await.unwrap();
    let port = inbound.local_addrs()[0].port();
    Running { world, inbound, port }
}

fn tls() -> OutboundTls {
    OutboundTls { enabled: true, insecure: true, ..OutboundTls::default() }
}

fn client(port: u16, change: impl FnOnce(&mut Client)) -> Arc<dyn Outbound> {
    let tag = culvert_core::Tag::new("tuic", "out");
    let cx = OutboundCx { tag, dialer: direct(), store: store() };
    let mut client = Client::new(cx, &outbound_options(port)).unwrap();
    change(&mut client);
    Arc::new(client)
}

fn outbound_options(port: u16) -> TuicOutbound {
    TuicOutbound {
        server: ServerOptions { server: "127.0.0.1".to_owned(), server_port: port },
        uuid: Secret(id()),
        password: Secret(PASSWORD.to_owned()),
        tls: Some(Box::new(tls())),
        ..TuicOutbound::default()
    }
}

/// A connection without the client's part of the protocol.
async fn raw(port: u16) -> Connection {
    let server = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let tls = crate::quic::client(Some(&tls()), &Host::from(server), &store(), &[], false).unwrap();
    let link = Link::socket(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()).unwrap();
    let connection = culvert_quic::connect(link, &tls, &Transport::default(), (server, port).into()).unwrap();
    connection.established().await.unwrap();
    connection
}

async fn say(connection: &Connection, bytes: &[u8]) {
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
}

fn login(connection: &Connection, password: &str) -> Vec<u8> {
    let mut token = [0; TOKEN_LEN];
    connection.export_keying_material(&mut token, &id().bytes, password.as_bytes()).unwrap();
    Command::Authenticate { id: id().bytes, token }.bytes()
}

async fn code(connection: &Connection) -> Option<u64> {
    tokio::time::timeout(STEP, connection.closed()).await.unwrap().application_code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_go_to_their_targets_and_end() {
    let mut server = server(|_| ()).await;
    let client = client(server.port, |_| ());
    for (name, early) in
        [("example.com:443", &b"first "[..]), ("192.0.2.1:80", b""), ("[2001:db8::1]:1", b"x")]
    {
        let mut early = culvert_wire::BufChain::copied(early);
        let sent = early.len();
        let mut stream = client.dial(&session(name), &mut early).await.unwrap();
        assert!(early.is_empty());
        stream.write_all(b"question").await.unwrap();
        stream.shutdown().await.unwrap();
        let arrived = server.world.next().await;
        assert_eq!(arrived.session.target, target(name));
        assert_eq!(arrived.session.user.as_deref(), Some("alice"));
        let mut far = arrived.stream();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!((got.len(), &got[sent..]), (sent + 8, &b"question"[..]));
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        got.clear();
        stream.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"answer");
    }
    server.inbound.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_of_every_size_in_every_mode() {
    for mode in [Some(Mode::Native), Some(Mode::Streams), None] {
        let mut server = server(|_| ()).await;
        let client = client(server.port, |client| client.mode = mode);
        let udp = culvert_core::Session { network: Network::Udp, ..session("192.0.2.1:53") };
        let mut near = client.listen_packet(&udp).await.unwrap();
        send_packets(&mut near, &[("192.0.2.1:53", b"first")]).await;
        let arrived = server.world.next().await;
        assert_eq!(arrived.session.target, target("192.0.2.1:53"));
        let mut far = arrived.packets();
        let (mut up, mut down) = (PacketBatch::new(), PacketBatch::new());
        assert_eq!(recv_packet(&mut far, &mut up).await, ("192.0.2.1:53".to_owned(), b"first".to_vec()));
        let sizes = (0..4).chain(1100..1500).step_by(7).chain([9000, 65_000]);
        for size in sizes {
            let data: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
            send_packets(&mut near, &[("[2001:db8::7]:4000", &data)]).await;
            let (to, got) = recv_packet(&mut far, &mut up).await;
            assert!(to == "[2001:db8::7]:4000" && got == data, "{size} up");
            send_packets(&mut far, &[("198.51.100.9:9", &data)]).await;
            let (from, got) = recv_packet(&mut near, &mut down).await;
            assert!(from == "198.51.100.9:9" && got == data, "{size} down");
        }
        // The end of the client's association is the end of the server's.
        drop(near);
        let end = std::future::poll_fn(|cx| {
            culvert_core::PacketConn::poll_recv(&mut far, cx, culvert_wire::Room::NONE, &mut up)
        });
        assert!(tokio::time::timeout(STEP, end).await.unwrap().is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_begins_again_where_its_connection_has_ended() {
    let mut first = server(|_| ()).await;
    let client = client(first.port, |_| ());
    let dial = |client: Arc<dyn Outbound>| async move {
        let mut stream = client.dial(&session("192.0.2.1:80"), &mut culvert_wire::BufChain::new()).await?;
        stream.write_all(b"x").await.map(|()| stream).map_err(|_| culvert_core::DialError::Credentials)
    };
    let mut stream = dial(Arc::clone(&client)).await.unwrap();
    let far = first.world.next().await;
    first.inbound.close().await;
    assert!(stream.read_u8().await.is_err(), "the server has gone");
    drop((stream, far));
    let port = first.port;
    // The port is free as soon as the old server's goodbye is over.
    let mut second = loop {
        let world = World::new();
        let mut options = TuicInbound {
            users: vec![TuicUser {
                name: String::new(),
                uuid: Secret(id()),
                password: Secret(PASSWORD.to_owned()),
            }],
            tls: Some(Box::new(InboundTls { enabled: true, insecure: true, ..InboundTls::default() })),
            ..TuicInbound::default()
        };
        options.listen.listen_port = port;
        let inbound = options
            .build(InboundCx {
                tag: culvert_core::Tag::new("tuic", "in"),
                dialer: &no_dialer,
                networks: None,
                marks: &[],
            })
            .unwrap();
        if inbound.start(&world.dispatch).await.is_ok() {
            break Running { world, inbound, port };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let _stream = dial(Arc::clone(&client)).await.unwrap();
    let arrived = tokio::time::timeout(STEP, second.world.next()).await.unwrap();
    assert_eq!(arrived.session.user, None);
    second.inbound.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_packets_with_data_that_are_sent_once_more_open_nothing() {
    let mut server = server(|options| options.zero_rtt_handshake = true).await;
    // Between the client and its server stands somebody who keeps all that the client sends.
    let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = front.local_addr().unwrap().port();
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (keeper, to) = (Arc::clone(&heard), (Ipv4Addr::LOCALHOST, server.port));
    tokio::spawn(async move {
        let mut backs = HashMap::<_, Arc<UdpSocket>>::new();
        let (front, mut packet) = (Arc::new(front), vec![0; 65_536]);
        loop {
            let (len, from) = front.recv_from(&mut packet).await.unwrap();
            keeper.lock().unwrap().push(packet[..len].to_vec());
            if let Entry::Vacant(place) = backs.entry(from) {
                let back = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
                let (front, answers) = (Arc::clone(&front), Arc::clone(&back));
                tokio::spawn(async move {
                    let mut packet = vec![0; 65_536];
                    while let Ok((len, _)) = answers.recv_from(&mut packet).await {
                        front.send_to(&packet[..len], from).await.unwrap();
                    }
                });
                place.insert(back);
            }
            backs[&from].send_to(&packet[..len], to).await.unwrap();
        }
    });
    let make = |early_data| {
        let options = TuicOutbound { zero_rtt_handshake: early_data, ..outbound_options(port) };
        let tag = culvert_core::Tag::new("tuic", "out");
        Client::new(OutboundCx { tag, dialer: direct(), store: store() }, &options).unwrap()
    };
    let client = make(true);
    let dial = async |client: &Client, name: &str| {
        let mut stream = client.dial(&session(name), &mut culvert_wire::BufChain::new()).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream
    };
    let mut first = dial(&client, "192.0.2.1:80").await;
    let mut far = server.world.next().await.stream();
    far.write_all(b"y").await.unwrap();
    // With an answer the client has what it needs to begin so the next time.
    first.read_u8().await.unwrap();
    // The second connection begins with data.
    client.current.get(std::future::pending()).await.unwrap().connection.close(0, b"");
    heard.lock().unwrap().clear();
    let second = dial(&client, "192.0.2.2:80").await;
    assert_eq!(server.world.next().await.session.target, target("192.0.2.2:80"));
    let all = heard.lock().unwrap().clone();
    assert!(all.iter().any(|packet| has_early_data(packet)), "nothing came early");
    for _ in 0..3 {
        let thief = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        for packet in &all {
            thief.send_to(packet, to).await.unwrap();
        }
    }
    let third = dial(&client, "192.0.2.3:80").await;
    assert_eq!(server.world.next().await.session.target, target("192.0.2.3:80"), "and nothing in between");
    drop((second, third));
}

/// Whether there is a packet of 0-RTT in a datagram (RFC 9000 section 17.2): the first, or one behind the first.
fn has_early_data(datagram: &[u8]) -> bool {
    const INITIAL: u8 = 0;
    const EARLY: u8 = 1;
    let mut rest = datagram;
    while let Some(first) = rest.first().filter(|first| *first & 0x80 != 0) {
        // The bit before the type says nothing (RFC 9287).
        let kind = first >> 4 & 3;
        if kind == EARLY {
            return true;
        }
        let mut reader = Reader::new(&rest[5..]);
        let skip = |reader: &mut Reader<'_>| {
            let len = reader.u8().unwrap();
            reader.take(len.into()).unwrap();
        };
        skip(&mut reader);
        skip(&mut reader);
        if kind == INITIAL {
            let token = culvert_quic::h3::take_varint(&mut reader).unwrap();
            reader.take(token as usize).unwrap();
        }
        let len = culvert_quic::h3::take_varint(&mut reader).unwrap() as usize;
        let at = 5 + reader.position() + len;
        rest = rest.get(at..).unwrap_or_default();
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_before_the_login_are_kept_and_served_after_it() {
    let mut server = server(|_| ()).await;
    let connection = raw(server.port).await;
    let mut stream = connection.open_bi().await.unwrap();
    stream.write_all(&Command::Connect(target("192.0.2.1:80")).bytes()).await.unwrap();
    let packet = |association, peer| {
        let head = PacketHead { association, id: 0, total: 1, index: 0, len: 5, peer: Some(target(peer)) };
        [&Command::Packet(head).bytes()[..], b"early"].concat()
    };
    say(&connection, &packet(1, "192.0.2.2:53")).await;
    connection.send_datagram(Bytes::from(packet(2, "192.0.2.3:53"))).unwrap();
    say(&connection, &login(&connection, PASSWORD)).await;
    let mut targets = Vec::new();
    for _ in 0..3 {
        targets
            .push(tokio::time::timeout(STEP, server.world.next()).await.unwrap().session.target.to_string());
    }
    targets.sort();
    assert_eq!(targets, ["192.0.2.1:80", "192.0.2.2:53", "192.0.2.3:53"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_the_password_is_closed_and_nothing_of_it_is_served() {
    let mut server = server(|_| ()).await;
    for bytes in [
        |connection: &Connection| login(connection, "wrong"),
        |connection: &Connection| {
            let mut other = login(connection, PASSWORD);
            other[2] ^= 1;
            other
        },
    ] {
        let connection = raw(server.port).await;
        let mut stream = connection.open_bi().await.unwrap();
        stream.write_all(&Command::Connect(target("192.0.2.1:80")).bytes()).await.unwrap();
        say(&connection, &bytes(&connection)).await;
        assert_eq!(code(&connection).await, Some(0));
    }
    // A proof from another connection is none.
    let (one, two) = (raw(server.port).await, raw(server.port).await);
    say(&two, &login(&one, PASSWORD)).await;
    assert_eq!(code(&two).await, Some(0));
    say(&one, &login(&one, PASSWORD)).await;
    let mut stream = one.open_bi().await.unwrap();
    stream.write_all(&Command::Connect(target("192.0.2.9:80")).bytes()).await.unwrap();
    assert_eq!(server.world.next().await.session.target, target("192.0.2.9:80"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_is_closed_in_time() {
    let server = server(|options| options.auth_timeout = Dur::from_millis(200)).await;
    let connection = raw(server.port).await;
    let _stream = connection.open_bi().await.unwrap();
    assert_eq!(code(&connection).await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_the_protocol_closes_the_connection_or_only_its_stream() {
    let mut server = server(|_| ()).await;
    let known = async || {
        let connection = raw(server.port).await;
        say(&connection, &login(&connection, PASSWORD)).await;
        connection
    };
    for bytes in
        [&b"\x04\x03\x00\x01"[..], b"\x05\x09", b"GET / HTTP/1.1\r\n", b"\x05\x04", b"\x05\x01\x01aaaabb"]
    {
        let connection = known().await;
        say(&connection, bytes).await;
        assert_eq!(code(&connection).await, Some(0), "{bytes:?}");
    }
    let twice = known().await;
    say(&twice, &login(&twice, PASSWORD)).await;
    assert_eq!(code(&twice).await, Some(0));
    let connection = known().await;
    for bytes in [&b"\x04\x01\x01aaaabb"[..], b"\x05\x03\x00\x01", b"\x05\x01\xff"] {
        let mut stream = connection.open_bi().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let _ = stream.shutdown().await;
        let _ = tokio::time::timeout(STEP, stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
    // Datagrams that are cut short or nothing are dropped.
    for bytes in [
        &b""[..],
        b"\x05",
        b"\x05\x02\x00",
        b"\x05\x02\x00\x01\x00\x01\x01\x00\xff\xff\x01aaaabb",
        b"\x05\x77",
    ] {
        connection.send_datagram(Bytes::from_static(bytes)).unwrap();
    }
    let mut stream = connection.open_bi().await.unwrap();
    stream.write_all(&Command::Connect(target("192.0.2.9:80")).bytes()).await.unwrap();
    assert_eq!(server.world.next().await.session.target, target("192.0.2.9:80"));
    connection.send_datagram(Bytes::from_static(b"\x04\x04")).unwrap();
    assert_eq!(code(&connection).await, Some(0));
}
