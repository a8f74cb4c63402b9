//! Datagram conns over loopback, and the table that shares one socket between clients.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::udp::{Associations, ClientPackets, Resolving};
use culvert_core::{Packet, PacketBatch, PacketConn, ResolveError, Resolver, Strategy, UdpConn};
use culvert_wire::{Buf, Domain, Host, Room, Target};
use tokio::net::UdpSocket;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

async fn conn() -> (UdpConn, SocketAddr) {
    let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    (UdpConn::new(socket), address)
}

async fn send(conn: &mut impl PacketConn, batch: &mut PacketBatch) {
    poll_fn(|cx| conn.poll_send(cx, batch)).await.unwrap();
    assert!(batch.is_empty());
}

async fn receive(conn: &mut impl PacketConn) -> PacketBatch {
    let mut batch = PacketBatch::new();
    poll_fn(|cx| conn.poll_recv(cx, Room::NONE, &mut batch)).await.unwrap();
    batch
}

/// Receives until `count` datagrams are there.
async fn receive_payloads(conn: &mut impl PacketConn, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < count {
        for packet in receive(conn).await.iter() {
            all.extend(packet.payloads().map(<[u8]>::to_vec));
        }
    }
    all
}

#[tokio::test]
async fn datagrams_of_every_size_pass_whole() {
    let ((mut a, _), (mut b, to)) = (conn().await, conn().await);
    for len in [0, 1, 1200, 9000, 65507] {
        let mut batch = PacketBatch::new();
        batch.push(Packet::new(Buf::copied(&vec![7; len]), to.into()));
        send(&mut a, &mut batch).await;
        let got = receive(&mut b).await;
        assert_eq!(got.iter().map(|packet| packet.data.len()).collect::<Vec<_>>(), [len]);
    }
}

#[tokio::test]
async fn more_packets_than_one_call_takes_keep_their_order() {
    let ((mut a, from), (mut b, to)) = (conn().await, conn().await);
    let mut batch = PacketBatch::new();
    for number in 0..150u8 {
        batch.push(Packet::new(Buf::copied(&[number; 100]), to.into()));
    }
    send(&mut a, &mut batch).await;
    let got = receive_payloads(&mut b, 150).await;
    assert!(got.iter().zip(0u8..).all(|(payload, number)| *payload == [number; 100]));
    assert_eq!(from.ip(), LOCAL);
}

#[tokio::test]
async fn a_train_arrives_as_its_datagrams() {
    let ((mut a, _), (mut b, to)) = (conn().await, conn().await);
    let mut batch = PacketBatch::new();
    let data: Vec<u8> = (0..40u8).flat_map(|number| [number; 1000]).chain([99; 300]).collect();
    batch.push(Packet { data: data.into(), segment: 1000, peer: to.into() });
    send(&mut a, &mut batch).await;
    let got = receive_payloads(&mut b, 41).await;
    assert!(got[..40].iter().zip(0u8..).all(|(payload, number)| *payload == [number; 1000]));
    assert_eq!(got[40], [99; 300]);
}

#[tokio::test]
async fn one_bad_packet_does_not_stop_the_others() {
    let ((mut a, _), (mut b, to)) = (conn().await, conn().await);
    let mut batch = PacketBatch::new();
    batch.push(Packet::new(Buf::copied(b"one"), to.into()));
    batch.push(Packet::new(Buf::copied(&vec![0; 65508]), to.into())); // larger than any datagram
    batch.push(Packet::new(Buf::copied(b"no port"), Target::new(LOCAL, 0)));
    batch.push(Packet::new(Buf::copied(b"no address"), Target::parse("a.test:1", None).unwrap()));
    batch.push(Packet::new(Buf::copied(b"two"), to.into()));
    send(&mut a, &mut batch).await;
    assert_eq!(receive_payloads(&mut b, 2).await, [b"one", b"two"]);
}

/// Knows one name.
struct OneName;

#[async_trait]
impl Resolver for OneName {
    async fn resolve(&self, name: &Domain, _: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        tokio::task::yield_now().await;
        if name.as_str() == "here.test" { Ok(vec![LOCAL]) } else { Err(ResolveError::NotFound) }
    }
}

#[tokio::test]
async fn names_are_resolved_and_unknown_ones_dropped() {
    let ((a, _), (mut b, to)) = (conn().await, conn().await);
    let mut a = Resolving::new(a, Arc::new(OneName), Strategy::AsIs);
    let named = |name: &str| Target::new(Host::parse(name).unwrap(), to.port());
    for _ in 0..2 {
        let mut batch = PacketBatch::new();
        batch.push(Packet::new(Buf::copied(b"one"), named("here.test")));
        batch.push(Packet::new(Buf::copied(b"lost"), named("gone.test")));
        batch.push(Packet::new(Buf::copied(b"two"), named("here.test")));
        send(&mut a, &mut batch).await;
        assert_eq!(receive_while_polled(&mut a, &mut b, 2).await, [b"one", b"two"]);
    }
}

/// Receives by `b` while `a` is polled as a relay does, which is when its look-ups go on.
async fn receive_while_polled(
    a: &mut impl PacketConn,
    b: &mut impl PacketConn,
    count: usize,
) -> Vec<Vec<u8>> {
    tokio::select! {
        got = receive_payloads(b, count) => got,
        _ = receive(a) => panic!("nothing was sent to it"),
    }
}

/// Fails for one name at once the first time, and later knows it; for another name it takes forever.
#[derive(Default)]
struct Shaky(std::sync::atomic::AtomicBool);

#[async_trait]
impl Resolver for Shaky {
    async fn resolve(&self, name: &Domain, _: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        if name.as_str() == "dead.test" {
            std::future::pending::<()>().await;
        }
        match self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
            true => Ok(vec![LOCAL]),
            false => Err(ResolveError::Timeout),
        }
    }
}

#[tokio::test]
async fn a_name_without_an_answer_holds_up_nobody_else() {
    let ((a, _), (mut b, to)) = (conn().await, conn().await);
    let mut a = Resolving::new(a, Arc::new(Shaky(true.into())), Strategy::AsIs);
    let mut batch = PacketBatch::new();
    for number in 0..100 {
        let dead = Target::new(Host::parse("dead.test").unwrap(), to.port());
        batch.push(Packet::new(Buf::copied(&[number]), dead));
    }
    batch.push(Packet::new(Buf::copied(b"by address"), to.into()));
    batch.push(Packet::new(
        Buf::copied(b"by name"),
        Target::new(Host::parse("alive.test").unwrap(), to.port()),
    ));
    send(&mut a, &mut batch).await;
    let mut got = receive_while_polled(&mut a, &mut b, 2).await;
    got.sort();
    assert_eq!(got, [&b"by address"[..], b"by name"]);
}

#[tokio::test]
async fn a_failed_look_up_is_tried_again_later() {
    let ((a, _), (mut b, to)) = (conn().await, conn().await);
    let mut a = Resolving::new(a, Arc::new(Shaky::default()), Strategy::AsIs);
    let to_name = |text: &[u8]| {
        let mut batch = PacketBatch::new();
        batch.push(Packet::new(Buf::copied(text), Target::new(Host::parse("name.test").unwrap(), to.port())));
        batch
    };
    send(&mut a, &mut to_name(b"in the outage")).await;
    send(&mut a, &mut to_name(b"right behind it")).await;
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(6)).await;
    tokio::time::resume();
    send(&mut a, &mut to_name(b"after it")).await;
    assert_eq!(receive_while_polled(&mut a, &mut b, 1).await, [b"after it"]);
}

fn packet(text: &str) -> Packet {
    Packet::new(Buf::copied(text.as_bytes()), Target::new(LOCAL, 9))
}

#[tokio::test]
async fn an_association_gets_its_own_packets_and_answers_its_client() {
    let socket = Arc::new(UdpSocket::bind((LOCAL, 0)).await.unwrap());
    let (mut client, address) = conn().await;
    let mut table = Associations::new(10);
    let queue = table.deliver(&address, packet("one")).expect("the first packet makes an association");
    assert!(table.deliver(&address, packet("two")).is_none());
    let mut association = ClientPackets::new(queue, Arc::clone(&socket), address);
    assert_eq!(receive_payloads(&mut association, 2).await, [b"one", b"two"]);
    let mut batch = PacketBatch::new();
    batch.push(packet("answer"));
    send(&mut association, &mut batch).await;
    assert_eq!(receive_payloads(&mut client, 1).await, [b"answer"]);
    drop(association);
    table.forget_ended();
    assert!(table.is_empty());
    assert!(table.deliver(&address, packet("again")).is_some(), "an ended association is made anew");
}

#[test]
fn a_flood_of_new_clients_spares_those_in_use() {
    let mut table = Associations::new(8);
    let mut queues: Vec<_> = (0..4).map(|key| table.deliver(&key, packet("first"))).collect();
    assert!(queues.iter().all(Option::is_some));
    for flood in 100..200 {
        queues.push(table.deliver(&flood, packet("spoofed")));
        for key in 0..4 {
            assert!(table.deliver(&key, packet("in use")).is_none(), "client {key} was pushed out");
        }
        assert!(table.len() <= 8);
    }
}

/// However many packets come for associations that nobody serves, what waits is bounded, and goes with them.
#[test]
fn packets_that_wait_are_bounded_over_all_clients() {
    let mut table = Associations::new(4096);
    let large = || Packet::new(Buf::copied(&[1; 1400]), Target::new(LOCAL, 9));
    let queues: Vec<_> = (0..2000).filter_map(|key| table.deliver(&key, large())).collect();
    for _ in 0..40 {
        (0..2000).for_each(|key| assert!(table.deliver(&key, large()).is_none()));
    }
    let full = table.waiting_bytes();
    assert!((16 << 20..48 << 20).contains(&full), "{full} bytes wait");
    // Who is served is so in a crowd too.
    let queue = table.deliver(&5000, packet("one")).expect("a new client");
    assert!(table.deliver(&5000, packet("two")).is_none());
    assert!(table.waiting_bytes() > full);
    drop(queues);
    assert!(table.waiting_bytes() < 1000, "{} bytes wait for nobody", table.waiting_bytes());
    drop(queue);
    assert_eq!(table.waiting_bytes(), 0);
}
