//! Both ends in memory.

use std::sync::Arc;

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{BoxStream, Network, Outbound, StreamConn, Tag, timeouts};
use culvert_wire::{BufChain, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::cipher::Cipher;
use super::super::conn::{Hello, ShadowConn};
use super::super::outbound::{Client, Proof};
use super::super::relay::{Destinations, Relay};
use super::{key_of, methods, server, users_2022};
use crate::testing::{World, dialer, session, target, write_in_pieces};
use crate::uot;

pub(super) fn client(upstream: Arc<dyn Outbound>, proof: Proof) -> Client {
    Client {
        tag: Tag::new("shadowsocks", "out"),
        dialer: dialer(upstream),
        server: target("server.test:8388"),
        proof,
        plugin: None,
        tcp: true,
        udp: true,
        udp_over_tcp: None,
    }
}

async fn read_all(conn: &mut (impl StreamConn + ?Sized)) -> Vec<u8> {
    let mut all = Vec::new();
    conn.read_to_end(&mut all).await.unwrap();
    all
}

#[tokio::test]
async fn every_method_carries_both_ways_with_half_closes() {
    for (name, access, proof) in methods() {
        let mut world = World::new();
        let client = client(world.upstream(&server(access)), proof);
        for early in [&b""[..], b"early"] {
            let session = session("target.test:80");
            let mut data = BufChain::copied(early);
            let mut conn = client.dial(&session, &mut data).await.unwrap();
            write_chain(&mut conn, &mut data).await.unwrap();
            let long: Vec<u8> = (0..300_000u32).map(|at| (at / 3) as u8).collect();
            let (mut from_client, mut to_client) = (conn, long.clone());
            let sending = {
                let long = long.clone();
                async move {
                    from_client.write_all(&long).await.unwrap();
                    from_client.shutdown().await.unwrap();
                    let back = read_all(&mut from_client).await;
                    (from_client, back)
                }
            };
            let sending = tokio::spawn(sending);
            let arrived = world.next().await;
            assert_eq!(arrived.session.target, target("target.test:80"), "{name}");
            let known = name.contains("users");
            assert_eq!(arrived.session.user.as_deref(), known.then_some("carol"), "{name}");
            let mut far = arrived.stream();
            let up = read_all(&mut far).await;
            assert!(up[..early.len()] == *early && up[early.len()..] == long, "{name}: {} up", up.len());
            to_client.reverse();
            far.write_all(&to_client).await.unwrap();
            far.shutdown().await.unwrap();
            let (_, down) = sending.await.unwrap();
            assert!(down == to_client, "{name}: {} down", down.len());
        }
    }
}

#[tokio::test]
async fn header_and_first_payload_leave_in_one_write() {
    for (name, _, proof) in methods() {
        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof);
        let mut data = BufChain::copied(&[5; 40_000]);
        write_chain(&mut conn, &mut data).await.unwrap();
        let sent = read_chain(&mut far, Room::NONE).await.unwrap();
        assert!(sent.len() > 40_000, "{name}: {} bytes at first", sent.len());
    }
}

#[tokio::test(start_paused = true)]
async fn header_leaves_alone_after_a_moment_or_with_the_first_read() {
    for (name, _, proof) in methods().into_iter().filter(|(name, ..)| *name != "none") {
        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof);
        let start = tokio::time::Instant::now();
        conn.flush().await.unwrap();
        assert_eq!(start.elapsed(), timeouts::FIRST_PAYLOAD, "{name}");
        assert!(read_chain(&mut far, Room::NONE).await.unwrap().len() > 32, "{name}");
    }
    for (name, _, proof) in methods().into_iter().filter(|(name, ..)| *name != "none") {
        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof);
        let reading = tokio::spawn(async move { read_chain(&mut conn, Room::NONE).await.map(drop) });
        assert!(read_chain(&mut far, Room::NONE).await.unwrap().len() > 32, "{name}");
        drop(far);
        reading.await.unwrap().unwrap();
    }
}

fn in_memory(near: Duplex, proof: Proof) -> BoxStream {
    let target = target("target.test:80");
    match proof {
        Proof::None => {
            let mut header = Vec::new();
            culvert_wire::AddressCodec::SOCKS.encode(&target, &mut header);
            Box::new(crate::headed::Headed::new(header, Box::new(near)))
        }
        Proof::Aead(cipher, key) => {
            Box::new(ShadowConn::client(Box::new(near), cipher, Hello::Aead(key), target))
        }
        Proof::Edition2022(cipher, keys) => {
            Box::new(ShadowConn::client(Box::new(near), cipher, Hello::Edition2022(keys), target))
        }
    }
}

#[tokio::test]
async fn padding_comes_only_where_there_is_little_payload() {
    let keys: Arc<[_]> = [key_of(Cipher::Aes128Gcm, 1)].into();
    // Salt, both headers with their tags, a name and two lengths.
    let plain = 16 + 27 + (1 + 1 + 11 + 2 + 2) + 16;
    let mut lengths = std::collections::HashSet::new();
    for _ in 0..20 {
        for payload in [1usize, 899, 900, 5000] {
            let (near, mut far) = duplex(1 << 20);
            let mut conn = in_memory(near, Proof::Edition2022(Cipher::Aes128Gcm, Arc::clone(&keys)));
            write_chain(&mut conn, &mut BufChain::copied(&vec![1; payload])).await.unwrap();
            let padding = read_chain(&mut far, Room::NONE).await.unwrap().len() - plain - payload;
            assert_eq!((1..=900).contains(&padding), payload < 900, "{padding} with {payload}");
            lengths.insert(padding);
        }
    }
    assert!(lengths.len() > 10);
}

#[tokio::test]
async fn an_answer_to_something_else_is_refused() {
    for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
        let keys: Arc<[_]> = [key_of(cipher, 1)].into();
        let proof = || Proof::Edition2022(cipher, Arc::clone(&keys));
        // The answer to another request.
        let world = World::new();
        let access = super::Access::Edition2022 { cipher, key: Arc::new(key_of(cipher, 1)), users: None };
        let (mut raw, _) = world.serve(&server(access));
        let (near, mut far) = duplex(1 << 20);
        let mut other = in_memory(near, proof());
        write_chain(&mut other, &mut BufChain::copied(b"x")).await.unwrap();
        raw.write_all(&read_chain(&mut far, Room::NONE).await.unwrap().to_vec()).await.unwrap();
        let mut world = world;
        let mut origin = world.next().await.stream();
        origin.write_all(b"answer").await.unwrap();
        let answer = read_chain(&mut raw, Room::NONE).await.unwrap().to_vec();

        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof());
        write_chain(&mut conn, &mut BufChain::copied(b"y")).await.unwrap();
        let own = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
        far.write_all(&answer).await.unwrap();
        assert_eq!(
            read_chain(&mut conn, Room::NONE).await.unwrap_err().kind(),
            std::io::ErrorKind::InvalidData
        );

        // The request itself, sent back.
        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof());
        write_chain(&mut conn, &mut BufChain::copied(b"z")).await.unwrap();
        far.write_all(&own).await.unwrap();
        assert_eq!(
            read_chain(&mut conn, Room::NONE).await.unwrap_err().kind(),
            std::io::ErrorKind::InvalidData
        );
    }
}

#[tokio::test]
async fn server_that_says_nothing_ends_in_order_and_one_that_is_cut_does_not() {
    for (name, _, proof) in methods().into_iter().filter(|(name, ..)| *name != "none") {
        let (near, far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof);
        drop(far);
        assert!(read_chain(&mut conn, Room::NONE).await.unwrap().is_empty(), "{name}");
    }
    for (name, _, proof) in methods().into_iter().filter(|(name, ..)| *name != "none") {
        let (near, mut far) = duplex(1 << 20);
        let mut conn = in_memory(near, proof);
        far.write_all(b"salt").await.unwrap();
        drop(far);
        let error = read_chain(&mut conn, Room::NONE).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{name}");
    }
}

#[tokio::test]
async fn datagrams_go_over_a_stream() {
    for version in [uot::Version::V1, uot::Version::V2] {
        let mut world = World::new();
        let (_, access, proof) = methods().swap_remove(1);
        let mut client = client(world.upstream(&server(access)), proof);
        client.udp_over_tcp = Some(version);
        let asked = culvert_core::Session { network: Network::Udp, ..session("1.2.3.4:53") };
        let mut packets = client.listen_packet(&asked).await.unwrap();
        crate::testing::send_packets(&mut packets, &[("1.2.3.4:53", b"query")]).await;
        let arrived = world.next().await;
        assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("1.2.3.4:53")));
        let mut far = arrived.packets();
        let mut waiting = culvert_core::PacketBatch::new();
        let received = crate::testing::recv_packet(&mut far, &mut waiting).await;
        assert_eq!(received, ("1.2.3.4:53".to_owned(), b"query".to_vec()));
    }
}

#[tokio::test]
async fn a_relay_passes_on_what_it_cannot_read() {
    let cipher = Cipher::Aes256Gcm;
    let mut world = World::new();
    let mut destinations = Destinations::default();
    assert!(destinations.add("next".into(), target("next.test:1"), &key_of(cipher, 1)));
    let relay = Relay { key: Arc::new(key_of(cipher, 200)), destinations: Arc::new(destinations) };
    let relay: Arc<dyn culvert_core::StreamServer> = Arc::new(relay);
    let keys = [key_of(cipher, 200), key_of(cipher, 1), key_of(cipher, 40)];
    let first = client(world.upstream(&relay), Proof::Edition2022(cipher, keys.into()));
    let mut conn = first.dial(&session("target.test:80"), &mut BufChain::new()).await.unwrap();
    write_chain(&mut conn, &mut BufChain::copied(b"hello")).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(arrived.session.target, target("next.test:1"));
    assert_eq!(arrived.session.user.as_deref(), Some("next"));
    let mut between = arrived.stream();

    let (mut near, _) = world.serve(&server(users_2022(cipher)));
    let mut first = read_chain(&mut between, Room::NONE).await.unwrap();
    write_chain(&mut near, &mut first).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(arrived.session.target, target("target.test:80"));
    assert_eq!(arrived.session.user.as_deref(), Some("carol"));
    let mut far = arrived.stream();
    let mut hello = [0; 5];
    far.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    far.write_all(b"world").await.unwrap();
    let mut answer = read_chain(&mut near, Room::NONE).await.unwrap();
    write_chain(&mut between, &mut answer).await.unwrap();
    conn.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"world");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_cut_behind_the_first_header_gives_the_same_bytes(
        method in 1usize..16,
        early in 0usize..2000,
        cuts in prop::collection::vec(1usize..400, 1..6),
        back in prop::collection::vec(1usize..400, 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (name, access, proof) = methods().swap_remove(method);
            let mut world = World::new();
            let (near, mut far) = duplex(1 << 20);
            let mut conn = in_memory(near, proof);
            let up: Vec<u8> = (0..early + 3000).map(|at| at as u8).collect();
            if early > 0 {
                write_chain(&mut conn, &mut BufChain::copied(&up[..early])).await.unwrap();
            }
            write_chain(&mut conn, &mut BufChain::copied(&up[early..])).await.unwrap();
            conn.shutdown().await.unwrap();
            let sent = read_all(&mut far).await;

            // The 2022 edition wants the first header in one read.
            let (mut raw, _) = world.serve(&server(access));
            let first = if name.contains("2022") { 75 } else { 1 };
            raw.write_all(&sent[..first]).await.unwrap();
            tokio::task::yield_now().await;
            let feeding = async {
                write_in_pieces(&mut raw, &sent[first..], &cuts).await.unwrap();
                raw.shutdown().await.unwrap();
                let arrived = world.next().await;
                let mut origin = arrived.stream();
                assert!(read_all(&mut origin).await == up, "{name}");
                origin.write_all(&up).await.unwrap();
                origin.shutdown().await.unwrap();
                read_all(&mut raw).await
            };
            let answer = feeding.await;
            let (feeding, reading) = tokio::join!(write_in_pieces(&mut far, &answer, &back), async {
                let mut down = vec![0; up.len()];
                conn.read_exact(&mut down).await.unwrap();
                assert!(down == up, "{name}");
            });
            feeding.unwrap();
            let () = reading;
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        super::super::PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}
