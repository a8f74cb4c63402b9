//! Datagrams: both ends of the codec, then whole servers over loopback.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_core::{
    Dialer, Network, Outbound, Packet, PacketBatch, PacketConn, Resolver, Session, Strategy, Tag,
};
use culvert_os::socket::UdpOptions;
use culvert_wire::{Buf, Domain, Room, Target};
use tokio::net::UdpSocket;

use super::super::cipher::Cipher;
use super::super::client_packets::Sessions;
use super::super::conn::unix_now;
use super::super::key::Secret;
use super::super::outbound::{Client, Proof};
use super::super::packet::{Outgoing, new_session, open_packet};
use super::super::server::Access;
use super::super::server_packets::{PacketListener, Service};
use super::{aead_users, key_of, methods, users_2022};
use crate::testing::{World, recv_packet, send_packets, session, target};

const NOW: u64 = 1_700_000_000;

fn packets(sizes: &[usize], peer: &str) -> PacketBatch {
    let mut batch = PacketBatch::new();
    for size in sizes {
        batch.push(Packet::new(Buf::copied(&vec![*size as u8; *size]), target(peer)));
    }
    batch
}

#[test]
fn packets_are_sealed_in_place_and_trains_stay_trains() {
    let outgoing = || {
        [
            Outgoing::none(),
            Outgoing::aead(Cipher::Aes256Gcm, key_of(Cipher::Aes256Gcm, 1)),
            Outgoing::to_server(Cipher::Aes128Gcm, &[key_of(Cipher::Aes128Gcm, 1)], new_session()).unwrap(),
            Outgoing::to_server(Cipher::ChaCha20Poly1305, &[key_of(Cipher::Aes256Gcm, 1)], new_session())
                .unwrap(),
            Outgoing::to_client(
                Cipher::Aes128Gcm,
                &key_of(Cipher::Aes128Gcm, 1),
                (new_session(), Arc::default()),
                new_session(),
            ),
        ]
    };
    for mut outgoing in outgoing() {
        let room = outgoing.room(Room { head: 3, tail: 2, max: usize::MAX });
        let mut data = Buf::new(1200, room.head, room.tail);
        data.append(&[1; 1200]);
        let end = data.as_ptr() as usize + 1200;
        let mut batch = PacketBatch::new();
        batch.push(Packet::new(data, target("[2001:db8::1]:9")));
        outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:1"), NOW);
        let sealed = batch.pop().unwrap();
        assert!(sealed.data.head() >= 3 && sealed.data.spare() >= 2);
        let place = sealed.data.as_ptr() as usize + sealed.data.len();
        assert!(place == end || place == end + 16, "the payload was copied");
    }
    for mut outgoing in outgoing() {
        let mut batch = PacketBatch::new();
        let bytes: Vec<u8> = (0..50_500u32).map(|at| (at / 1000) as u8).collect();
        batch.push(Packet { data: Buf::copied(&bytes), segment: 1000, peer: target("192.0.2.9:9") });
        outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:1"), NOW);
        assert!(batch.len() <= 2, "{} messages", batch.len());
        assert_eq!(batch.iter().map(Packet::datagrams).sum::<usize>(), 51);
        // What is sealed already is not sealed again.
        let before: Vec<_> = batch.iter().map(|packet| packet.data.to_vec()).collect();
        outgoing.seal_batch(&mut batch, before.len(), &target("192.0.2.1:1"), NOW);
        assert!(batch.iter().zip(&before).all(|(packet, before)| *packet.data == **before));
    }
}

#[test]
fn what_is_in_a_train_goes_on_as_trains() {
    let train = |parts: &[&[u8]]| {
        let mut data = Buf::new(1000, 0, 0);
        parts.iter().for_each(|part| data.append(part));
        Packet { data, segment: parts[0].len() as u16, peer: target("192.0.2.1:1") }
    };
    // `| peer | mark | payload `; payloads begin with `!` where nothing opens.
    let open = |data: &mut [u8], _: &Target| {
        (data[2] != b'!').then(|| ((2..data.len(), target(&format!("192.0.2.9:{}", data[0]))), data[1]))
    };
    let mut given = Vec::new();
    open_packet(
        train(&[b"11aa", b"11bb", b"11!!", b"11cc", b"21dd", b"21ee", b"22ff", b"22g"]),
        Room::NONE,
        open,
        |packet, mark| {
            given.push((packet.data.to_vec(), packet.segment, packet.peer.port, mark));
        },
    );
    assert_eq!(
        given,
        [
            (b"aabbcc".to_vec(), 2, u16::from(b'1'), b'1'),
            (b"ddee".to_vec(), 2, u16::from(b'2'), b'1'),
            (b"ffg".to_vec(), 2, u16::from(b'2'), b'2'),
        ]
    );
}

#[test]
fn only_small_packets_of_the_2022_edition_to_and_from_port_53_are_padded() {
    let key = key_of(Cipher::Aes128Gcm, 1);
    let mut outgoing = Outgoing::to_server(Cipher::Aes128Gcm, &[key], new_session()).unwrap();
    for (size, peer, padded) in [
        (30, "1.2.3.4:53", true),
        (899, "1.2.3.4:53", true),
        (900, "1.2.3.4:53", false),
        (30, "1.2.3.4:54", false),
    ] {
        let mut batch = packets(&[size], peer);
        outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:1"), NOW);
        let padding = batch.pop().unwrap().data.len() - 16 - 11 - 7 - size - 16;
        assert_eq!((1..=900 - size.min(899)).contains(&padding), padded, "{padding} with {size} to {peer}");
    }
}

/// What a server would send in its session to ours.
fn answers(cipher: Cipher, key: &Secret, server: [u8; 8], client: [u8; 8]) -> Outgoing {
    Outgoing::to_client(cipher, key, (server, Arc::default()), client)
}

fn sealed(outgoing: &mut Outgoing, now: u64) -> Vec<u8> {
    let mut batch = packets(&[100], "192.0.2.7:7");
    outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:1"), now);
    batch.pop().unwrap().data.to_vec()
}

#[tokio::test(start_paused = true)]
async fn client_takes_each_answer_once_and_of_two_sessions_at_most() {
    for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
        let (key, own) = (key_of(cipher, 1), new_session());
        let mut sessions = Sessions::new(cipher, key.clone(), own);
        let mut open = |bytes: &[u8]| sessions.open(&mut bytes.to_vec(), NOW).is_some();
        let mut first = answers(cipher, &key, *b"server 1", own);
        let packets: Vec<_> = (0..3).map(|_| sealed(&mut first, NOW)).collect();
        assert!(open(&packets[1]) && open(&packets[0]) && !open(&packets[1]) && !open(&packets[0]));
        let mut damaged = packets[2].clone();
        damaged[70] ^= 1;
        assert!(!open(&damaged) && open(&packets[2]), "a damaged copy burns nothing");
        assert!(!open(&sealed(&mut first, NOW - 31)) && !open(&sealed(&mut first, NOW + 31)));
        assert!(open(&sealed(&mut first, NOW - 30)) && open(&sealed(&mut first, NOW + 30)));
        assert!(
            !open(&sealed(&mut answers(cipher, &key, *b"server 9", *b"stranger"), NOW)),
            "another's session"
        );
        assert!(
            !open(&sealed(&mut answers(cipher, &key_of(cipher, 2), *b"server 9", own), NOW)),
            "another key"
        );
        let mut request = Outgoing::to_server(cipher, std::slice::from_ref(&key), own).unwrap();
        assert!(!open(&sealed(&mut request, NOW)), "a request");
        for len in [0, 1, 16, 31, 32, 33, 60, 500] {
            assert!(!open(&vec![7; len]));
        }
        let (mut second, mut third) =
            (answers(cipher, &key, *b"server 2", own), answers(cipher, &key, *b"server 3", own));
        assert!(
            open(&sealed(&mut second, NOW)) && open(&sealed(&mut first, NOW)),
            "a new one and the one before"
        );
        assert!(!open(&sealed(&mut third, NOW)), "a third at once");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(
            open(&sealed(&mut third, NOW))
                && open(&sealed(&mut second, NOW))
                && !open(&sealed(&mut first, NOW))
        );
    }
}

struct NoNames;

#[async_trait::async_trait]
impl Resolver for NoNames {
    async fn resolve(
        &self,
        _name: &Domain,
        _strategy: Strategy,
    ) -> Result<Vec<std::net::IpAddr>, culvert_core::ResolveError> {
        Err(culvert_core::ResolveError::NotFound)
    }
}

/// A server on a port of its own.
fn listen(world: &World, service: Service) -> (PacketListener, SocketAddr) {
    let listener = PacketListener {
        tag: Tag::new("shadowsocks", "in"),
        address: "127.0.0.1:0".parse().unwrap(),
        options: UdpOptions::default(),
        udp_timeout: None,
        service,
        running: crate::running::Running::default(),
    };
    listener.start(&world.dispatch, None).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn client(server: SocketAddr, proof: Proof) -> Client {
    Client {
        tag: Tag::new("shadowsocks", "out"),
        dialer: Dialer::new(Arc::new(NoNames)),
        server: server.into(),
        proof,
        plugin: None,
        tcp: true,
        udp: true,
        udp_over_tcp: None,
    }
}

fn udp_session(target: &str) -> Session {
    Session { network: Network::Udp, ..session(target) }
}

#[tokio::test]
async fn every_method_carries_datagrams_of_all_sizes_and_peers_both_ways() {
    for (name, access, proof) in methods() {
        let mut world = World::new();
        let (_listener, address) = listen(&world, Service::Open(Arc::new(access)));
        let client = client(address, proof);
        let mut conn = client.listen_packet(&udp_session("192.0.2.1:1")).await.unwrap();
        send_packets(&mut *conn, &[("192.0.2.1:1", b"first")]).await;
        let arrived = world.next().await;
        assert_eq!(
            (arrived.session.network, &arrived.session.target),
            (Network::Udp, &target("192.0.2.1:1"))
        );
        assert_eq!(arrived.session.user.as_deref(), name.contains("users").then_some("carol"), "{name}");
        let mut far = arrived.packets();
        let (mut up, mut down) = (PacketBatch::new(), PacketBatch::new());
        assert_eq!(recv_packet(&mut far, &mut up).await, ("192.0.2.1:1".to_owned(), b"first".to_vec()));
        for (round, size) in [0usize, 1, 500, 1472, 9000, 65_000].into_iter().enumerate() {
            let payload: Vec<u8> = (0..size).map(|at| (at + round) as u8).collect();
            let peer = ["192.0.2.1:53", "[2001:db8::1]:9", "name.test:443"][round % 3];
            send_packets(&mut *conn, &[(peer, &payload)]).await;
            assert!(
                recv_packet(&mut far, &mut up).await == (peer.to_owned(), payload.clone()),
                "{name}: {size} up"
            );
            send_packets(&mut far, &[(peer, &payload)]).await;
            assert!(
                recv_packet(&mut *conn, &mut down).await == (peer.to_owned(), payload),
                "{name}: {size} down"
            );
        }
        // Trains, as the kernel joins them.
        let bytes: Vec<u8> = (0..30_000u32).map(|at| (at / 7) as u8).collect();
        let mut batch = PacketBatch::new();
        batch.push(Packet { data: Buf::copied(&bytes), segment: 1200, peer: target("192.0.2.1:1") });
        std::future::poll_fn(|cx| conn.poll_send(cx, &mut batch)).await.unwrap();
        let mut arrived: Vec<u8> = Vec::new();
        while arrived.len() < bytes.len() {
            if up.is_empty() {
                std::future::poll_fn(|cx| far.poll_recv(cx, Room::NONE, &mut up)).await.unwrap();
            }
            let packet = up.pop().unwrap();
            assert!(packet.payloads().all(|payload| payload.len() <= 1200));
            arrived.extend(&*packet.data);
        }
        assert!(arrived == bytes, "{name}: a train");
    }
}

/// Seals one datagram as a client would, for a socket that sends it by hand.
fn datagram(outgoing: &mut Outgoing, payload: &[u8], now: u64) -> Vec<u8> {
    let mut batch = PacketBatch::new();
    batch.push(Packet::new(Buf::copied(payload), target("192.0.2.1:1")));
    outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:1"), now);
    batch.pop().unwrap().data.to_vec()
}

#[tokio::test]
async fn strangers_and_copies_do_nothing() {
    let now = unix_now();
    for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
        let mut world = World::new();
        let with_users = cipher == Cipher::Aes128Gcm;
        let (access, keys) = if with_users {
            (users_2022(cipher), vec![key_of(cipher, 1), key_of(cipher, 40)])
        } else {
            (
                Access::Edition2022 { cipher, key: key_of(cipher, 1).into(), users: None },
                vec![key_of(cipher, 1)],
            )
        };
        let (_listener, address) = listen(&world, Service::Open(Arc::new(access)));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(address).await.unwrap();
        let mut bad: Vec<Vec<u8>> = [0, 1, 15, 16, 31, 32, 48, 60, 200].map(|len| vec![9; len]).to_vec();
        let mut outgoing = Outgoing::to_server(cipher, &keys, new_session()).unwrap();
        bad.push(datagram(&mut outgoing, b"old", now - 40));
        bad.push(datagram(&mut outgoing, b"young", now + 40));
        let stranger = [key_of(cipher, 2), key_of(cipher, 40)];
        let stranger = if with_users { &stranger[..] } else { &stranger[..1] };
        bad.push(datagram(&mut Outgoing::to_server(cipher, stranger, new_session()).unwrap(), b"x", now));
        if with_users {
            let unknown = [key_of(cipher, 1), key_of(cipher, 41)];
            bad.push(datagram(&mut Outgoing::to_server(cipher, &unknown, new_session()).unwrap(), b"x", now));
            bad.push(datagram(
                &mut Outgoing::to_server(cipher, &unknown[..1], new_session()).unwrap(),
                b"x",
                now,
            ));
        }
        let mut answer = answers(cipher, keys.last().unwrap(), new_session(), new_session());
        bad.push(datagram(&mut answer, b"an answer", now));
        let mut damaged = datagram(&mut outgoing, b"damaged", now);
        *damaged.last_mut().unwrap() ^= 1;
        bad.push(damaged);
        for datagram in &bad {
            socket.send(datagram).await.unwrap();
        }
        // Datagrams on loopback keep their order: once this one has come, the bad ones have been looked at.
        let good = datagram(&mut outgoing, b"good", now);
        socket.send(&good).await.unwrap();
        let mut far = world.next().await.packets();
        let mut waiting = PacketBatch::new();
        assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"good");
        socket.send(&good).await.unwrap();
        for datagram in &bad {
            socket.send(datagram).await.unwrap();
        }
        socket.send(&datagram(&mut outgoing, b"next", now)).await.unwrap();
        assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"next");
        assert!(world.arrivals.try_recv().is_err());
    }
}

#[tokio::test]
async fn answers_follow_a_client_to_its_new_address() {
    let mut world = World::new();
    let cipher = Cipher::Aes128Gcm;
    let access = Access::Edition2022 { cipher, key: key_of(cipher, 1).into(), users: None };
    let (_listener, address) = listen(&world, Service::Open(Arc::new(access)));
    let mut outgoing = Outgoing::to_server(cipher, &[key_of(cipher, 1)], new_session()).unwrap();
    let mut far = None;
    let mut waiting = PacketBatch::new();
    for _ in 0..2 {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&datagram(&mut outgoing, b"x", unix_now()), address).await.unwrap();
        if far.is_none() {
            far = Some(world.next().await.packets());
        }
        let far = far.as_mut().unwrap();
        assert_eq!(recv_packet(far, &mut waiting).await.1, b"x");
        send_packets(far, &[("192.0.2.1:1", b"y")]).await;
        let mut buffer = [0; 200];
        assert!(socket.recv(&mut buffer).await.unwrap() > 40);
    }
    assert!(world.arrivals.try_recv().is_err(), "one session is one association");
}

#[tokio::test]
async fn users_of_the_aead_edition_are_told_apart_and_many_clients_served() {
    let mut world = World::new();
    let cipher = Cipher::ChaCha20Poly1305;
    let (_listener, address) = listen(&world, Service::Open(Arc::new(aead_users(cipher))));
    let mut names = HashSet::new();
    let mut open = Vec::new();
    for number in 0..300 {
        let password = ["one", "two", super::PASSWORD][number % 3];
        let proof = Proof::Aead(cipher, Secret::of_password(password, 32));
        let client = client(address, proof);
        let mut conn = client.listen_packet(&udp_session("192.0.2.1:1")).await.unwrap();
        send_packets(&mut *conn, &[("192.0.2.1:1", number.to_string().as_bytes())]).await;
        let arrived = world.next().await;
        names.insert(arrived.session.user.clone().unwrap());
        open.push((conn, arrived.packets()));
    }
    assert_eq!(names.len(), 3);
    let (mut up, mut down) = (PacketBatch::new(), PacketBatch::new());
    for (number, (conn, far)) in open.iter_mut().enumerate() {
        assert_eq!(recv_packet(far, &mut up).await.1, number.to_string().as_bytes());
        send_packets(far, &[("192.0.2.1:1", number.to_string().as_bytes())]).await;
        assert_eq!(recv_packet(&mut **conn, &mut down).await.1, number.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_relay_passes_packets_on() {
    let cipher = Cipher::Aes128Gcm;
    let mut world = World::new();
    let mut destinations = super::super::relay::Destinations::default();
    assert!(destinations.add("next".into(), target("192.0.2.8:8"), &key_of(cipher, 1)));
    let service = Service::Relay(Arc::new(key_of(cipher, 200)), Arc::new(destinations));
    let (_relay, relay_address) = listen(&world, service);
    let (_server, server_address) = listen(&world, Service::Open(Arc::new(users_2022(cipher))));
    let keys = [key_of(cipher, 200), key_of(cipher, 1), key_of(cipher, 40)];
    let client = client(relay_address, Proof::Edition2022(cipher, keys.into()));
    let mut conn = client.listen_packet(&udp_session("192.0.2.1:1")).await.unwrap();
    send_packets(&mut *conn, &[("192.0.2.1:1", b"hello")]).await;
    let arrived = world.next().await;
    assert_eq!(
        (&arrived.session.target, arrived.session.user.as_deref()),
        (&target("192.0.2.8:8"), Some("next"))
    );
    let mut between = arrived.packets();
    let mut waiting = PacketBatch::new();
    let (_, passed) = recv_packet(&mut between, &mut waiting).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&passed, server_address).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(arrived.session.user.as_deref(), Some("carol"));
    let mut far = arrived.packets();
    assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"hello");
    send_packets(&mut far, &[("192.0.2.1:1", b"world")]).await;
    let mut buffer = [0; 200];
    let len = socket.recv(&mut buffer).await.unwrap();
    send_packets(&mut between, &[("192.0.2.8:8", &buffer[..len])]).await;
    let received = recv_packet(&mut *conn, &mut waiting).await;
    assert_eq!(received, ("192.0.2.1:1".to_owned(), b"world".to_vec()));
}
