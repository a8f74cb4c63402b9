//! Limits on clients that are not authenticated yet.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_core::handshake::{Handshake, Handshakes, Limits, read_message};
use culvert_core::{
    BoxStream, Dispatch, Flows, Incoming, Io, Network, ServeError, Session, SessionId, StreamServer, Tag,
};
use culvert_wire::{BufChain, DecodeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn limits(total: usize, per_network: usize) -> Limits {
    Limits { time: Duration::from_secs(15), total, per_network, crowded: "too many" }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn dropping_a_handshake_frees_its_place() {
    let handshakes = Handshakes::new(limits(10, 10));
    let one = handshakes.enter(ip("192.0.2.1"));
    let two = handshakes.enter(ip("192.0.2.2"));
    assert_eq!(handshakes.len(), 2);
    drop(one);
    drop(two);
    assert!(handshakes.is_empty());
}

#[tokio::test]
async fn a_crowded_network_pushes_out_its_own_oldest_only() {
    let handshakes = Handshakes::new(limits(100, 3));
    let other = handshakes.enter(ip("198.51.100.1"));
    let crowd: Vec<_> = (1..=20).map(|host| handshakes.enter(ip(&format!("192.0.2.{host}")))).collect();
    assert_eq!(handshakes.len(), 4, "three of the crowd and the other");
    drop(crowd);
    assert_eq!(handshakes.len(), 1);
    drop(other);
}

#[tokio::test]
async fn the_total_is_bounded() {
    let handshakes = Handshakes::new(limits(5, 100));
    let many: Vec<_> = (1..=50).map(|net| handshakes.enter(ip(&format!("2001:db8:{net:x}::1")))).collect();
    assert_eq!(handshakes.len(), 5);
    drop(many);
    assert!(handshakes.is_empty());
}

/// At the limit of the program those who may be real have a second, and a crowd of one network a tenth of that.
#[tokio::test(start_paused = true)]
async fn where_there_is_no_room_a_crowd_goes_first() {
    let dispatch = Dispatch::new(Flows::new(), Handshakes::new(limits(100, 100)), 10);
    let server: Arc<dyn StreamServer> = Arc::new(Patient);
    let connect = |text: &str| {
        let source = SocketAddr::new(ip(text), 1);
        let session = Session {
            id: SessionId::next(),
            network: Network::Tcp,
            inbound: Tag::new("socks", "in"),
            user: None,
            source,
            target: source.into(),
            sniffed: None,
            alpn: None,
        };
        let (client, conn) = tokio::io::duplex(1);
        dispatch.serve(Arc::clone(&server), Box::new(conn), session);
        client
    };
    let mut real = connect("198.51.100.1");
    assert!(!dispatch.make_room(), "it has just come");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!dispatch.make_room(), "it may be slow");
    let mut crowd: Vec<_> = (1..=4).map(|host| connect(&format!("192.0.2.{host}"))).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(dispatch.make_room());
    assert_eq!(crowd[0].read(&mut [0]).await.unwrap(), 0, "the oldest of the crowd is closed");
    assert!(!dispatch.make_room(), "what is left is none");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(dispatch.make_room());
    assert_eq!(real.read(&mut [0]).await.unwrap(), 0, "now it is the oldest of all");
}

#[tokio::test(start_paused = true)]
async fn slow_ones_leave_the_table_after_their_time() {
    let handshakes = Handshakes::new(limits(10, 10));
    let sweep = {
        let handshakes = Arc::clone(&handshakes);
        tokio::spawn(async move { handshakes.sweep().await })
    };
    let _slow = handshakes.enter(ip("192.0.2.1"));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let _late = handshakes.enter(ip("192.0.2.1"));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(handshakes.len(), 1, "only the late one is left");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(handshakes.is_empty());
    sweep.abort();
}

#[tokio::test]
async fn a_message_is_read_in_any_pieces_and_the_rest_is_kept() {
    let (mut client, server) = tokio::io::duplex(64);
    let mut conn: BoxStream = Box::new(server);
    let writer = tokio::spawn(async move {
        for byte in b"\x03abcrest" {
            client.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        client
    });
    let mut early = BufChain::new();
    let message = read_message(&mut conn, &mut early, 100, |r| {
        let len = r.u8()?;
        r.take(len.into()).map(<[u8]>::to_vec)
    });
    assert_eq!(message.await.unwrap(), b"abc");
    let client = writer.await.unwrap();
    let rest = read_message(&mut conn, &mut early, 100, |r| r.take(4).map(<[u8]>::to_vec));
    assert_eq!(rest.await.unwrap(), b"rest");
    drop(client);
}

#[tokio::test]
async fn a_message_longer_than_allowed_is_refused_also_when_it_comes_at_once() {
    let (mut client, server) = tokio::io::duplex(64);
    let mut conn: BoxStream = Box::new(server);
    client.write_all(&[7; 20]).await.unwrap();
    for (length, fits) in [(17, false), (16, true)] {
        let mut early = BufChain::copied(&[7; 20]);
        let read = read_message(&mut conn, &mut early, 16, |r| r.take(length).map(<[u8]>::to_vec)).await;
        assert_eq!(read.is_ok(), fits);
    }
}

/// Serves nobody: it waits for a request that does not come.
struct Patient;

#[async_trait::async_trait]
impl StreamServer for Patient {
    async fn serve(
        &self,
        mut conn: BoxStream,
        _session: Session,
        _handshake: Handshake,
        _dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        read_message::<_, ()>(&mut conn, &mut early, 16, |_| Err(DecodeError::Incomplete)).await
    }
}

fn session(source: SocketAddr) -> Session {
    Session {
        id: SessionId::next(),
        network: Network::Tcp,
        inbound: Tag::new("direct", "outer"),
        user: None,
        source,
        target: source.into(),
        sniffed: None,
        alpn: None,
    }
}

/// Strangers who are with a site that is imitated: a network that makes too many of them loses its oldest, and others
/// none.
#[tokio::test]
async fn strangers_of_a_network_push_out_their_own_oldest() {
    let flows = Flows::new();
    let dispatch = Dispatch::new(Arc::clone(&flows), Handshakes::new(limits(10, 10)), 10_000);
    let join = |host: [u8; 4]| {
        let ((near, client), (upstream, site)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let session = session(SocketAddr::from((host, 1)));
        dispatch.join(session, "a stranger", Box::new(client), Box::new(upstream), BufChain::new());
        (near, site)
    };
    let mut other = join([198, 51, 100, 1]);
    let most = Limits::STRANGERS.per_network;
    let mut crowd: Vec<_> = (0..most + 3).map(|host| join([192, 0, 2, host as u8])).collect();
    for (near, site) in &mut crowd[..3] {
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(site.read(&mut [0]).await.unwrap(), 0);
    }
    for (near, site) in crowd[3..].iter_mut().chain([&mut other]) {
        near.write_all(b"x").await.unwrap();
        assert_eq!(site.read_u8().await.unwrap(), b'x');
    }
    assert_eq!(flows.len(), most + 1);
    // Who has gone leaves a place.
    drop(crowd.split_off(10));
    while flows.len() > 8 {
        tokio::task::yield_now().await;
    }
    let (mut near, mut site) = join([192, 0, 2, 200]);
    near.write_all(b"x").await.unwrap();
    assert_eq!(site.read_u8().await.unwrap(), b'x');
    assert_eq!(crowd[3].0.write(b"x").await.unwrap(), 1);
}

/// A client that was handed on by another inbound (`detour`) has no more time there than one that came by itself.
#[tokio::test(start_paused = true)]
async fn handshakes_of_injected_streams_end() {
    let handshakes = Handshakes::new(limits(10, 10));
    let sweep = {
        let handshakes = Arc::clone(&handshakes);
        tokio::spawn(async move { handshakes.sweep().await })
    };
    let dispatch = Dispatch::new(Flows::new(), Arc::clone(&handshakes), 10).injecting(Arc::new(Patient));
    let (mut client, server) = tokio::io::duplex(64);
    let source = SocketAddr::from(([192, 0, 2, 1], 1));
    dispatch.submit(Incoming {
        session: session(source),
        io: Io::Stream(Box::new(server)),
        early: BufChain::copied(b"the first byte"),
        reply: None,
        udp_timeout: None,
    });
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert_eq!(handshakes.len(), 1, "it is still waited for");
    // Trickling does not help.
    client.write_all(b"x").await.unwrap();
    let left = tokio::time::timeout(Duration::from_secs(3), client.read(&mut [0])).await;
    assert_eq!(left.expect("it must not be kept").unwrap(), 0);
    assert!(handshakes.is_empty());
    sweep.abort();
}

#[tokio::test]
async fn endless_and_ended_messages_are_refused_with_their_bytes_kept() {
    let (mut client, server) = tokio::io::duplex(64);
    let mut conn: BoxStream = Box::new(server);
    client.write_all(&[7; 20]).await.unwrap();
    let mut early = BufChain::new();
    let error = read_message::<_, ()>(&mut conn, &mut early, 16, |_| Err(DecodeError::Incomplete)).await;
    assert!(matches!(error, Err(ServeError::Invalid("length"))));
    assert_eq!(early.len(), 20, "a fallback must be able to have everything");
    drop(client);
    let error = read_message::<_, ()>(&mut conn, &mut early, 64, |_| Err(DecodeError::Incomplete)).await;
    assert!(matches!(error, Err(ServeError::Left)));
}
