//! Clients that know no key, or not the right one, or come twice.

use std::io;
use std::time::Duration;

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{ServeError, timeouts};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::cipher::{Cipher, Key, Stream};
use super::super::codec::{Request, Salt, fill_random};
use super::super::conn::{Hello, ShadowConn, unix_now};
use super::super::key::Secret;
use super::super::server::Access;
use super::{aead_users, key_of, one, server, users_2022};
use crate::testing::{World, target};

type Serving = JoinHandle<Result<(), ServeError>>;

/// Servers of the 2022 edition, with bytes of their first header.
fn servers_2022() -> Vec<(Access, usize)> {
    let plain = |cipher| Access::Edition2022 { cipher, key: key_of(cipher, 1).into(), users: None };
    vec![
        (plain(Cipher::Aes128Gcm), 16 + 27),
        (plain(Cipher::Aes256Gcm), 32 + 27),
        (plain(Cipher::ChaCha20Poly1305), 32 + 27),
        (users_2022(Cipher::Aes128Gcm), 16 + 16 + 27),
        (users_2022(Cipher::Aes256Gcm), 32 + 16 + 27),
    ]
}

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_random(&mut bytes);
    bytes
}

/// What a client of the 2022 edition sends first.
fn request(cipher: Cipher, keys: &[Secret], salt: &Salt, now: u64) -> Vec<u8> {
    let target = target("target.test:80");
    let request = Request { cipher, keys, salt, target: &target, now, padding: 5 };
    request.seal(&mut BufChain::copied(b"hello"), Room::NONE).0.to_vec()
}

/// Waits until the server has closed, and says how.
async fn how_it_ends(mut conn: Duplex, serving: Serving) -> (Option<io::ErrorKind>, ServeError) {
    let end = conn.read(&mut [0]).await;
    let error = serving.await.unwrap().unwrap_err();
    (end.err().map(|error| error.kind()), error)
}

async fn is_reset(world: &mut World, conn: Duplex, serving: Serving, what: &str) {
    let (end, _) = how_it_ends(conn, serving).await;
    assert_eq!(end, Some(io::ErrorKind::ConnectionReset), "{what}");
    assert!(world.arrivals.try_recv().is_err(), "{what}: a stranger was dialled for");
}

#[tokio::test(start_paused = true)]
async fn the_2022_edition_resets_at_once_whatever_comes() {
    let mut world = World::new();
    for (access, head) in servers_2022() {
        let server = server(access);
        for len in [1, 15, 16, 31, 32, head - 1, head, head + 1, 300, 5000] {
            let (mut conn, serving) = world.serve(&server);
            let start = Instant::now();
            conn.write_all(&random(len)).await.unwrap();
            is_reset(&mut world, conn, serving, &format!("{len} random bytes")).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "{len} random bytes");
        }
        // Also one who says nothing and leaves.
        let (mut conn, serving) = world.serve(&server);
        conn.shutdown().await.unwrap();
        is_reset(&mut world, conn, serving, "nothing").await;
    }
}

#[tokio::test]
async fn the_2022_edition_takes_a_request_once_and_at_its_time() {
    let cipher = Cipher::Aes128Gcm;
    let keys = [key_of(cipher, 1), key_of(cipher, 40)];
    for (access, keys) in [(servers_2022().swap_remove(0).0, &keys[..1]), (users_2022(cipher), &keys[..])] {
        let server = server(access);
        let mut world = World::new();
        let now = unix_now();
        let good = request(cipher, keys, &Salt::random(16), now);
        // A damaged copy that comes first burns nothing.
        for at in [0, 20, 45, good.len() - 1] {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            let (mut conn, serving) = world.serve(&server);
            conn.write_all(&damaged).await.unwrap();
            is_reset(&mut world, conn, serving, &format!("damaged at {at}")).await;
        }
        // Of two copies that both wait for their second half, the first to be whole is the one.
        let (mut half, halved) = world.serve(&server);
        half.write_all(&good[..good.len() - 1]).await.unwrap();
        let (mut conn, _) = world.serve(&server);
        conn.write_all(&good).await.unwrap();
        let mut origin = world.next().await.stream();
        let mut hello = [0; 5];
        origin.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        half.write_all(&good[good.len() - 1..]).await.unwrap();
        is_reset(&mut world, half, halved, "the second to be whole").await;
        for _ in 0..2 {
            let (mut copy, serving) = world.serve(&server);
            copy.write_all(&good).await.unwrap();
            is_reset(&mut world, copy, serving, "a copy").await;
        }
        for time in [now - 40, now + 40, 0, u64::MAX] {
            let (mut conn, serving) = world.serve(&server);
            conn.write_all(&request(cipher, keys, &Salt::random(16), time)).await.unwrap();
            is_reset(&mut world, conn, serving, "another time").await;
        }
        for time in [now - 25, now + 25] {
            let (mut conn, _) = world.serve(&server);
            conn.write_all(&request(cipher, keys, &Salt::random(16), time)).await.unwrap();
            drop(world.next().await);
        }
    }
}

#[tokio::test]
async fn the_2022_edition_refuses_other_keys_and_what_a_server_sends() {
    let mut world = World::new();
    let cipher = Cipher::Aes256Gcm;
    let with_users = server(users_2022(cipher));
    for keys in [
        vec![key_of(cipher, 2)],
        vec![key_of(cipher, 1)],
        vec![key_of(cipher, 40)],
        vec![key_of(cipher, 2), key_of(cipher, 40)],
        vec![key_of(cipher, 1), key_of(cipher, 41)],
        vec![key_of(cipher, 1), key_of(cipher, 90), key_of(cipher, 40)],
    ] {
        let (mut conn, serving) = world.serve(&with_users);
        conn.write_all(&request(cipher, &keys, &Salt::random(32), unix_now())).await.unwrap();
        is_reset(&mut world, conn, serving, &format!("{} other keys", keys.len())).await;
    }
    // An answer, sent to the server.
    let salts = [&Salt::random(32), &Salt::random(32)];
    let answer = super::super::codec::seal_response_with(
        cipher,
        &key_of(cipher, 1),
        salts,
        unix_now(),
        &mut BufChain::copied(b"x"),
        Room::NONE,
    );
    let plain = server(servers_2022().swap_remove(1).0);
    let (mut conn, serving) = world.serve(&plain);
    conn.write_all(&answer.0).await.unwrap();
    is_reset(&mut world, conn, serving, "an answer").await;
}

/// Whoever knows the key may still send nonsense (XTLS/Xray-core#6162): it breaks that one stream.
#[tokio::test]
async fn headers_of_odd_lengths_and_paddings_are_taken_or_refused_in_order() {
    let cipher = Cipher::Aes128Gcm;
    let server = server(servers_2022().swap_remove(0).0);
    let address = b"\x01\x01\x02\x03\x04\0\x50";
    let padded = |padding: usize, payload: &[u8]| {
        let mut body = address.to_vec();
        body.extend((padding as u16).to_be_bytes());
        body.resize(body.len() + padding, 0);
        body.extend(payload);
        body
    };
    let bodies = [
        (vec![], false),
        (vec![0; 65_535], false),
        (address.to_vec(), false),
        (padded(0, b""), false),
        (padded(0, b"x"), true),
        (padded(1, b""), true),
        (padded(900, b""), true),
        (padded(901, b""), true),
        (padded(65_000, b"x"), true),
        ([padded(0, b""), vec![]].concat(), false),
        (padded(5, b"")[..12].to_vec(), false),
        (b"\x03\0\0\x50\0\x01\0".to_vec(), false),
        (b"\x09\0\0\x50\0\x01\0".to_vec(), false),
    ];
    for (body, good) in bodies {
        let mut world = World::new();
        let salt = Salt::random(16);
        let key = Key::new(cipher, key_of(cipher, 1).session_subkey(salt.bytes()).bytes());
        let mut stream = Stream::new(key);
        let mut head = vec![0];
        head.extend(unix_now().to_be_bytes());
        head.extend((body.len() as u16).to_be_bytes());
        let mut sent = salt.bytes().to_vec();
        for part in [&head, &body] {
            let at = sent.len();
            sent.extend(part);
            sent.resize(sent.len() + 16, 0);
            stream.seal_region(&mut sent[at..]);
        }
        let (mut conn, serving) = world.serve(&server);
        conn.write_all(&sent).await.unwrap();
        if good {
            assert_eq!(world.next().await.session.target, target("1.2.3.4:80"));
        } else {
            is_reset(&mut world, conn, serving, &format!("a header of {} bytes", body.len())).await;
        }
    }
}

#[tokio::test]
async fn what_is_damaged_later_breaks_the_stream_behind_what_was_whole() {
    let mut world = World::new();
    let cipher = Cipher::Aes128Gcm;
    let server = server(servers_2022().swap_remove(0).0);
    let (near, mut far) = duplex(1 << 20);
    let hello = Hello::Edition2022([key_of(cipher, 1)].into());
    let mut client = ShadowConn::client(Box::new(near), cipher, hello, target("target.test:80"));
    for part in [&b"first"[..], b"second"] {
        write_chain(&mut client, &mut BufChain::copied(part)).await.unwrap();
    }
    let mut sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
    *sent.last_mut().unwrap() ^= 1;
    let (mut conn, _) = world.serve(&server);
    conn.write_all(&sent).await.unwrap();
    let mut origin = world.next().await.stream();
    let mut first = [0; 5];
    origin.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    assert_eq!(origin.read(&mut first).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(conn.read(&mut first).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// Garbage, too little, a copy, another key: all the same to look at.
#[tokio::test(start_paused = true)]
async fn the_aead_edition_says_nothing_for_a_time_that_tells_nothing() {
    let cipher = Cipher::ChaCha20Poly1305;
    let own = || Secret::of_password(super::PASSWORD, 32);
    for access in [one(cipher, own()), aead_users(cipher)] {
        let server = server(access);
        let mut world = World::new();
        let (near, mut far) = duplex(1 << 20);
        let mut client =
            ShadowConn::client(Box::new(near), cipher, Hello::Aead(own()), target("target.test:80"));
        write_chain(&mut client, &mut BufChain::copied(b"hello")).await.unwrap();
        let good = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
        // A copy with a damaged address that comes first burns nothing.
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() ^= 1;
        damaged[32 + 2 + 16] ^= 1;
        let (mut conn, serving) = world.serve(&server);
        conn.write_all(&damaged).await.unwrap();
        is_reset(&mut world, conn, serving, "a damaged copy").await;
        let (mut conn, _) = world.serve(&server);
        conn.write_all(&good).await.unwrap();
        drop(world.next().await);

        let mut damaged = good.clone();
        damaged[60] ^= 1;
        damaged[3] ^= 1;
        let mut times = Vec::new();
        for bytes in [vec![], random(1), random(49), random(50), random(51), random(9000), good, damaged] {
            let (mut conn, serving) = world.serve(&server);
            let start = Instant::now();
            conn.write_all(&bytes).await.unwrap();
            // More is taken all the time.
            tokio::time::sleep(Duration::from_secs(3)).await;
            conn.write_all(&random(1000)).await.unwrap();
            is_reset(&mut world, conn, serving, &format!("{} bytes", bytes.len())).await;
            times.push(start.elapsed());
        }
        for time in &times {
            assert!((timeouts::HANDSHAKE / 2..timeouts::HANDSHAKE).contains(time), "{times:?}");
        }
        times.sort();
        times.dedup();
        assert!(times.len() > 3, "the time is always the same: {times:?}");
    }
}

#[tokio::test]
async fn none_resets_what_is_no_address() {
    let mut world = World::new();
    let server = server(Access::None);
    for bytes in [&b"\x05"[..], b"\x02", b"GET / HTTP/1.1\r\n", b"\x03\0\0\x50"] {
        let (mut conn, serving) = world.serve(&server);
        conn.write_all(bytes).await.unwrap();
        is_reset(&mut world, conn, serving, &format!("{bytes:?}")).await;
    }
}

#[tokio::test]
async fn a_relay_resets_whom_it_does_not_know() {
    let cipher = Cipher::Aes128Gcm;
    let mut destinations = super::super::relay::Destinations::default();
    destinations.add("next".into(), target("next.test:1"), &key_of(cipher, 40));
    let relay =
        super::super::relay::Relay { key: key_of(cipher, 1).into(), destinations: destinations.into() };
    let relay: std::sync::Arc<dyn culvert_core::StreamServer> = std::sync::Arc::new(relay);
    let mut world = World::new();
    for bytes in [random(1), random(31), random(32), random(200)] {
        let (mut conn, serving) = world.serve(&relay);
        conn.write_all(&bytes).await.unwrap();
        is_reset(&mut world, conn, serving, &format!("{} random bytes", bytes.len())).await;
    }
}
