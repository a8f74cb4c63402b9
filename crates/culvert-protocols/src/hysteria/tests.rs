//! Client against server over loopback, and a server against clients that are none.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_config::options::users::HysteriaUser;
use culvert_config::value::Secret;
use culvert_core::{DialError, Network, PacketBatch};
use culvert_quic::{Connection, Link, QuicStream, Transport};
use culvert_wire::{BufChain, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use super::codec::{ClientHello, Request};
use super::*;
use crate::testing::{World, direct, no_dialer, recv_packet, send_packets, session, store, target};

const PASSWORD: &str = "hy1pw";
const STEP: Duration = Duration::from_secs(20);

async fn server(world: &World, change: impl FnOnce(&mut HysteriaInbound)) -> (Arc<dyn Inbound>, u16) {
    let mut options = HysteriaInbound {
        up_mbps: 100,
        down_mbps: 100,
        users: vec![HysteriaUser {
            name: "alice".to_owned(),
            auth_str: Secret(PASSWORD.to_owned()),
            ..HysteriaUser::default()
        }],
        tls: Some(Box::new(InboundTls { enabled: true, insecure: true, ..InboundTls::default() })),
        ..HysteriaInbound::default()
    };
    change(&mut options);
    let inbound = options
        .build(InboundCx {
            tag: culvert_core::Tag::new("hysteria", "in"),
            dialer: &no_dialer,
            networks: None,
            marks: &[],
        })
        .unwrap();
    inbound.start(&world.dispatch).await.unwrap();
    let port = inbound.local_addrs()[0].port();
    (inbound, port)
}

fn tls() -> OutboundTls {
    OutboundTls { enabled: true, insecure: true, ..OutboundTls::default() }
}

fn client(port: u16, change: impl FnOnce(&mut HysteriaOutbound)) -> Arc<dyn Outbound> {
    let mut options = HysteriaOutbound {
        server: ServerOptions { server: "127.0.0.1".to_owned(), server_port: port },
        up_mbps: 50,
        down_mbps: 80,
        auth_str: Secret(PASSWORD.to_owned()),
        tls: Some(Box::new(tls())),
        ..HysteriaOutbound::default()
    };
    change(&mut options);
    let tag = culvert_core::Tag::new("hysteria", "out");
    options.build(OutboundCx { tag, dialer: direct(), store: store() }).unwrap()
}

/// A connection without the client's part of the protocol, and its first stream.
async fn raw(port: u16) -> (Connection, QuicStream) {
    let server = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let tls = crate::quic::client(Some(&tls()), &Host::from(server), &store(), ALPN, false).unwrap();
    let link = Link::socket(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()).unwrap();
    let connection = culvert_quic::connect(link, &tls, &Transport::default(), (server, port).into()).unwrap();
    connection.established().await.unwrap();
    let stream = connection.open_bi().await.unwrap();
    (connection, stream)
}

async fn code(connection: &Connection) -> Option<u64> {
    tokio::time::timeout(STEP, connection.closed()).await.unwrap().application_code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_go_to_their_targets_also_in_disguise() {
    for obfs in ["", "xplus-pw"] {
        let mut world = World::new();
        let (inbound, port) = server(&world, |options| options.obfs = Secret(obfs.to_owned())).await;
        let client = client(port, |options| options.obfs = Secret(obfs.to_owned()));
        for (name, early) in
            [("example.com:443", &b"first "[..]), ("192.0.2.1:80", b""), ("[2001:db8::1]:1", b"x")]
        {
            let mut early = BufChain::copied(early);
            let sent = early.len();
            let mut stream = client.dial(&session(name), &mut early).await.unwrap();
            stream.write_all(b"question").await.unwrap();
            stream.shutdown().await.unwrap();
            let arrived = world.next().await;
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
        let udp = culvert_core::Session { network: Network::Udp, ..session("192.0.2.1:53") };
        let mut near = client.listen_packet(&udp).await.unwrap();
        let arrived = world.next().await;
        assert_eq!(arrived.session.target, target("192.0.2.1:53"));
        let mut far = arrived.packets();
        let (mut up, mut down) = (PacketBatch::new(), PacketBatch::new());
        for size in (0..4).chain(1100..1500).step_by(7).chain([9000, 65_000]) {
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
        inbound.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_fails_is_told_with_the_reason() {
    let world = World::deciding(|_| Err(DialError::Rejected("test")));
    let (_inbound, port) = server(&world, |_| ()).await;
    let client = client(port, |_| ());
    let mut stream = client.dial(&session("192.0.2.1:80"), &mut BufChain::copied(b"x")).await.unwrap();
    let error = tokio::time::timeout(STEP, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "server refused: outbound/direct[test]: rejected by test");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_from_other_trouble() {
    let world = World::new();
    let (_inbound, port) = server(&world, |_| ()).await;
    let client = client(port, |options| options.auth_str = Secret("wrong".to_owned()));
    let error = client.dial(&session("192.0.2.1:80"), &mut BufChain::new()).await.err().unwrap();
    assert!(matches!(error, DialError::Credentials), "{error}");
    let (connection, mut stream) = raw(port).await;
    let hello = ClientHello { send: 1, receive: 1, auth: b"wrong".to_vec() };
    stream.write_all(&hello.bytes()).await.unwrap();
    assert_eq!(code(&connection).await, Some(WRONG_PASSWORD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_hello_closes_the_connection() {
    let world = World::new();
    let (_inbound, port) = server(&world, |_| ()).await;
    let zero = ClientHello { send: 0, receive: 1, auth: PASSWORD.as_bytes().to_vec() }.bytes();
    let long = [&[3; 17][..], &[0xff; 3000]].concat();
    for bytes in [&b"\x02"[..], b"GET / HTTP/1.1\r\n", &zero, &long] {
        let (connection, mut stream) = raw(port).await;
        stream.write_all(bytes).await.unwrap();
        assert_eq!(code(&connection).await, Some(WRONG_VERSION), "{bytes:?}");
    }
    // A second stream before the hello waits.
    let mut world = world;
    let (connection, mut stream) = raw(port).await;
    let mut early = connection.open_bi().await.unwrap();
    let hello = ClientHello { send: 1 << 40, receive: 1 << 40, auth: PASSWORD.as_bytes().to_vec() };
    stream.write_all(&hello.bytes()).await.unwrap();
    let request = Request { udp: false, target: Some(target("192.0.2.5:80")) };
    early.write_all(&request.bytes()).await.unwrap();
    assert_eq!(world.next().await.session.target, target("192.0.2.5:80"));
    // What is no request ends its stream, what is no datagram nothing.
    let mut junk = connection.open_bi().await.unwrap();
    junk.write_all(&[7; 300]).await.unwrap();
    let _ = tokio::time::timeout(STEP, junk.read_to_end(&mut Vec::new())).await.unwrap();
    for bytes in [&b""[..], b"\x00", &[0xff; 200], &[0; 200]] {
        connection.send_datagram(culvert_quic::Bytes::copy_from_slice(bytes)).unwrap();
    }
    let mut stream = connection.open_bi().await.unwrap();
    stream.write_all(&request.bytes()).await.unwrap();
    assert_eq!(world.next().await.session.target, target("192.0.2.5:80"));
}
