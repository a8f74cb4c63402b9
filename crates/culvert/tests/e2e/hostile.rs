//! Clients that send garbage, stall, vanish, or come in crowds. Whatever they do, others are served meanwhile, nothing
//! of theirs stays, and none of it takes much memory or time.

use crate::proxy::{Proxy, STEP, read_to_end};
use crate::{culvert, run};
use culvert_testkit::client::{self, Association, CONNECT, Protocol, Target};
use culvert_testkit::http::HttpOrigin;
use culvert_testkit::origin::{self, Origin, Service, fresh_seed};
use culvert_testkit::{Result, ensure, pattern};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// A handshake may take 15 seconds; this allows for a busy machine.
const HANDSHAKE: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_secs(25);

/// Descriptors that a program may open on first use and keep.
const ALLOWANCE: usize = 8;

const INBOUNDS: [&str; 3] = ["socks", "http", "mixed"];

#[test]
fn garbage_is_survived() {
    run(async {
        let program = culvert();
        for inbound in INBOUNDS {
            let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, inbound).await?);
            let idle = proxy.usage()?.descriptors;
            for seed in 0..300 {
                let mut garbage = pattern::bytes(seed, 1 + seed as usize * 7 % 600);
                // A third begins like each of the protocols.
                match seed % 3 {
                    0 => garbage[0] = 5,
                    1 => garbage[0] = 4,
                    _ => garbage.splice(0..0, *b"GET ").for_each(drop),
                }
                let mut stream = proxy.send(&garbage).await?;
                // Half of the clients wait for the answer to their end of stream, half are gone at once.
                if seed % 2 == 0 {
                    stream.shutdown().await?;
                    read_to_end(&mut stream).await?;
                }
            }
            serves(&proxy, inbound, &origin).await?;
            proxy.descriptors_fall_to(idle + ALLOWANCE).await?;
        }
        Ok(())
    });
}

/// A client that stops at any byte of any handshake, and one that never lets a second pass without a byte, is let go
/// in time; meanwhile others are served.
#[test]
fn slow_handshakes_are_let_go() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let inbound = json!({ "type": "mixed", "users": [{ "username": "u", "password": "p" }] });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let idle = proxy.usage()?.descriptors;
        let target = Target::name("localhost", origin.port().number());
        let socks5 = [
            &client::socks5_greeting_bytes(Some(("u", "p")))[..],
            &client::socks5_password_bytes("u", "p"),
            &client::socks5_request_bytes(CONNECT, &target),
        ]
        .concat();
        let socks4 = client::socks4_request_bytes(b"u", &target);
        let http = client::http_connect_bytes(Some(("u", "p")), &target);

        let start = Instant::now();
        let mut stalled = JoinSet::new();
        for handshake in [&socks5, &socks4, &http] {
            for length in 0..handshake.len() {
                let mut stream = proxy.send(&handshake[..length]).await?;
                stalled.spawn(async move {
                    let answer =
                        tokio::time::timeout(HANDSHAKE.end, stream.read_to_end(&mut Vec::new())).await;
                    (length, answer.is_ok().then(|| start.elapsed()))
                });
            }
            // One byte a second from the start: the time is for the whole handshake.
            let (mut stream, handshake) = (proxy.send(b"").await?, handshake.repeat(10));
            stalled.spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let trickle = async {
                    for byte in handshake.iter().map(|byte| if *byte == b'\n' { &b' ' } else { byte }) {
                        if writer.write_all(&[*byte]).await.is_err() {
                            break;
                        }
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                };
                let mut answer = Vec::new();
                tokio::select! {
                    _ = reader.read_to_end(&mut answer) => (usize::MAX, Some(start.elapsed())),
                    () = trickle => (usize::MAX, Some(start.elapsed())),
                    () = tokio::time::sleep(HANDSHAKE.end) => (usize::MAX, None),
                }
            });
        }
        let stream =
            client::connect(Protocol::Socks5, proxy.address(), Some(("u", "p")), &origin.port().v4().into())
                .await?;
        exchange(stream).await?;
        for (length, ended) in stalled.join_all().await {
            let Some(after) = ended else {
                return Err(format!("a client that stopped after {length} bytes is kept").into());
            };
            // SOCKS5's cuts inside a step may be refused at once when wrong; stalling alone takes the whole time.
            ensure!(after < HANDSHAKE.end, "let go after {after:?} only");
        }
        ensure!(start.elapsed() > HANDSHAKE.start, "everybody was let go after {:?}", start.elapsed());
        proxy.descriptors_fall_to(idle + ALLOWANCE).await
    });
}

/// Fields without an end are cut off early.
#[test]
fn endless_fields_are_cut() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "mixed").await?);
        let before = proxy.usage()?.memory;
        let begins: [&[u8]; 7] = [
            &[4, 1, 0, 80, 127, 0, 0, 1],
            &[4, 1, 0, 80, 0, 0, 0, 1, 0],
            b"GET http://",
            b"GET http://h.test/ HTTP/1.1\r\n",
            b"GET http://h.test/ HTTP/1.1\r\nX: ",
            b"CONNECT h.test:80 HTTP/1.1\r\nX-",
            b"\n",
        ];
        for begin in begins {
            for filler in [vec![b'a'; 65_536], b"b: c\r\n".repeat(10_000)] {
                let mut stream = proxy.send(begin).await?;
                let flood = async {
                    for _ in 0..1000 {
                        if stream.write_all(&filler).await.is_err() {
                            return true;
                        }
                    }
                    false
                };
                let cut = tokio::time::timeout(STEP, flood).await?;
                ensure!(cut, "{:?} may be followed by 60 MB", String::from_utf8_lossy(begin));
            }
        }
        let grown = proxy.usage()?.memory.saturating_sub(before);
        ensure!(grown < 16 << 20, "{grown} bytes of memory grew");
        serves(&proxy, "mixed", &origin).await
    });
}

/// A crowd that never finishes its handshake does not keep others out.
#[test]
fn half_open_crowd_keeps_nobody_out() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "mixed").await?);
        let before = proxy.usage()?;
        let mut crowd = Vec::new();
        for number in 0..500 {
            let begins: [&[u8]; 5] = [b"", b"\x05", b"\x05\x01\0", b"\x04\x01", b"CONNECT h"];
            crowd.push(proxy.send(begins[number % 5]).await?);
        }
        for inbound in ["socks", "http"] {
            for _ in 0..20 {
                serves(&proxy, inbound, &origin).await?;
            }
        }
        let memory = proxy.usage()?.memory.saturating_sub(before.memory);
        ensure!(memory < 500 * 32 * 1024, "500 half-open clients take {memory} bytes");
        drop(crowd);
        proxy.descriptors_fall_to(before.descriptors + ALLOWANCE).await
    });
}

/// Out of descriptors the program waits without spinning, and goes on when there are some again.
#[test]
fn exhausted_descriptors_are_survived() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let proxy =
            Proxy::limited(&program, json!({ "type": "mixed" }), json!({ "type": "direct" }), Some(64))
                .await?;
        let idle = proxy.usage()?.descriptors;
        let tunnel =
            [&[5, 1, 0][..], &client::socks5_request_bytes(CONNECT, &origin.port().v4().into())].concat();
        let mut crowd = Vec::new();
        for _ in 0..200 {
            crowd.push(proxy.send(&tunnel).await?);
        }
        // At the limit: as many as there are places have been let in, and no more.
        let mut last = 0;
        loop {
            // That nothing changes any more is no event; only time shows it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            match proxy.usage()?.descriptors {
                now if now == last && now > idle => break,
                now => last = now,
            }
        }
        ensure!((24..=64).contains(&last), "{last} of 64 descriptors are in use");
        let before = proxy.usage()?.processor;
        let window = Duration::from_secs(1);
        // Processor time is measured over time.
        tokio::time::sleep(window).await;
        let spent = proxy.usage()?.processor - before;
        ensure!(spent < window / 10, "{spent:?} of processor time in {window:?} of waiting");
        drop(crowd);
        proxy.descriptors_fall_to(idle + ALLOWANCE).await?;
        serves(&proxy, "socks", &origin).await
    });
}

/// Clients that reset right after they connect, or right after they asked, do not stop the listener.
#[test]
fn early_resets_are_survived() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "mixed").await?);
        let idle = proxy.usage()?.descriptors;
        let request =
            [&[5, 1, 0][..], &client::socks5_request_bytes(CONNECT, &origin.port().v4().into())].concat();
        for round in 0..400 {
            let cut = [0, 1, 3, request.len()][round % 4];
            origin::reset(proxy.send(&request[..cut]).await?)?;
        }
        serves(&proxy, "http", &origin).await?;
        proxy.descriptors_fall_to(idle + ALLOWANCE).await
    });
}

/// However clients vanish, round after round, neither descriptors nor memory stay.
#[test]
fn vanished_clients_leave_nothing() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "mixed").await?);
        let idle = proxy.usage()?.descriptors;
        let mut memory = Vec::new();
        for _ in 0..6 {
            let mut clients = JoinSet::new();
            for number in 0..240 {
                let (proxy, target) = (proxy.address(), origin.port().v4().into());
                clients.spawn(async move { vanish(number, proxy, &target).await });
            }
            clients.join_all().await.into_iter().collect::<Result<()>>()?;
            proxy.descriptors_fall_to(idle + ALLOWANCE).await?;
            memory.push(proxy.usage()?.memory);
        }
        // The first rounds fill pools and caches.
        let growth = memory[5].saturating_sub(memory[1]);
        ensure!(growth < 4 << 20, "memory after each round: {memory:?}");
        serves(&proxy, "socks", &origin).await
    });
}

/// One of ten ways to go.
async fn vanish(number: usize, proxy: std::net::SocketAddr, target: &Target) -> Result {
    let tunnel = || client::connect(Protocol::Socks5, proxy, None, target);
    let seed = fresh_seed();
    match number % 10 {
        // In the handshake: by FIN, and by reset.
        0 => drop(TcpStream::connect(proxy).await?),
        1 => origin::reset(TcpStream::connect(proxy).await?)?,
        2 => {
            let mut stream = TcpStream::connect(proxy).await?;
            stream.write_all(&[5, 1, 0, 5, 1]).await?;
        }
        3 => {
            let mut stream = TcpStream::connect(proxy).await?;
            stream.write_all(b"CONNECT h.test:80 HT").await?;
            origin::reset(stream)?;
        }
        // In the tunnel: before a word, in mid-stream by FIN and by reset, half-closed, without reading.
        4 => drop(tunnel().await?),
        5 => origin::reset(tunnel().await?)?,
        6 => {
            let mut stream = tunnel().await?;
            stream.write_all(Service::Send { seed, length: 1 << 24 }.line().as_bytes()).await?;
            stream.read_u8().await?;
        }
        7 => {
            let mut stream = tunnel().await?;
            stream.write_all(Service::Take { seed, length: 1 << 24 }.line().as_bytes()).await?;
            stream.write_all(&[0; 10_000]).await?;
            origin::reset(stream)?;
        }
        8 => {
            let mut stream = tunnel().await?;
            stream.write_all(Service::Echo.line().as_bytes()).await?;
            stream.shutdown().await?;
            stream.read_to_end(&mut Vec::new()).await?;
        }
        // With an association in use.
        _ => {
            let association = Association::open(proxy, None).await?;
            association.send_to(target, b"hello").await?;
            association.recv().await?;
        }
    }
    Ok(())
}

/// Thousands of HTTP clients that stop in a head or in a body and then leave keep nothing.
#[test]
fn http_clients_that_stop_midway_leave_nothing() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "http").await?);
        let before = proxy.usage()?;
        let url = origin.url("/echo");
        let in_head = format!("POST {url} HTTP/1.1\r\nHost: h\r\nContent-Le");
        let in_body = format!("POST {url} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nonly a part");
        for _ in 0..4 {
            let mut crowd = Vec::new();
            for number in 0..500 {
                let request = if number % 2 == 0 { &in_head } else { &in_body };
                crowd.push(proxy.send(request.as_bytes()).await?);
            }
            drop(crowd);
        }
        proxy.descriptors_fall_to(before.descriptors + ALLOWANCE).await?;
        let grown = proxy.usage()?.memory.saturating_sub(before.memory);
        ensure!(grown < 24 << 20, "{grown} bytes of memory stay");
        let answer =
            proxy.send(format!("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", origin.url("/hello")).as_bytes()).await;
        let answer = read_to_end(&mut answer?).await?;
        ensure!(answer.ends_with(b"hello"), "{:?}", String::from_utf8_lossy(&answer));
        Ok(())
    });
}

/// Clients that ask an origin which never answers, and vanish, take their sessions along.
#[test]
fn http_clients_that_leave_a_silent_origin_leave_nothing() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "http").await?);
        let silent = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}/", silent.local_addr()?);
        let idle = proxy.usage()?.descriptors;
        let mut held = Vec::new();
        for number in 0..60 {
            let request = format!("GET {url} HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n");
            let client = proxy.send(request.as_bytes()).await?;
            let (accepted, _) = tokio::time::timeout(STEP, silent.accept()).await??;
            held.push((accepted, number));
            origin::reset(client)?;
        }
        proxy.descriptors_fall_to(idle + ALLOWANCE).await?;
        drop(held);
        serves(&proxy, "http", &origin).await
    });
}

/// Where the program carries all it may, a crowd that says nothing makes room before its handshakes' time is over.
#[test]
fn silent_crowd_at_the_limit_makes_room() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let direct = json!({ "type": "direct" });
        let proxy = Proxy::limited(&program, json!({ "type": "mixed" }), direct, Some(64)).await?;
        let mut crowd = Vec::new();
        for _ in 0..60 {
            crowd.push(proxy.send(b"\x05").await?);
        }
        let start = Instant::now();
        serves(&proxy, "socks", &origin).await?;
        ensure!(start.elapsed() < HANDSHAKE.end, "served after {:?} only", start.elapsed());
        drop(crowd);
        Ok(())
    });
}

/// Nor does it keep those out who are there already, whatever they open next.
#[test]
fn silent_crowd_at_the_limit_leaves_users_alone() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let direct = json!({ "type": "direct" });
        let proxy = Proxy::limited(&program, json!({ "type": "mixed" }), direct, Some(64)).await?;
        let target: Target = origin.port().v4().into();
        let mut users = Vec::new();
        for _ in 0..10 {
            let mut stream = client::connect(Protocol::Socks5, proxy.address(), None, &target).await?;
            stream.write_all(Service::Echo.line().as_bytes()).await?;
            users.push(stream);
        }
        let mut crowd = Vec::new();
        for _ in 0..200 {
            crowd.push(proxy.send(b"\x05").await?);
        }
        serves(&proxy, "socks", &origin).await?;
        let association = tokio::time::timeout(STEP, Association::open(proxy.address(), None)).await;
        let association = association.map_err(|_| "an association waits in vain")??;
        association.send_to(&target, b"hello").await?;
        let (_, answer) = tokio::time::timeout(STEP, association.recv()).await??;
        ensure!(answer == b"hello", "{answer:?}");
        for user in &mut users {
            user.write_all(b"word").await?;
            let mut echo = [0; 4];
            tokio::time::timeout(STEP, user.read_exact(&mut echo)).await??;
            ensure!(echo == *b"word", "{echo:?}");
        }
        drop(crowd);
        Ok(())
    });
}

/// Datagrams cost nothing, nor do the addresses they claim to come from: they do not take the places of all others.
#[test]
fn datagrams_from_everywhere_leave_room_for_streams() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let inbound = json!({
            "type": "direct", "override_address": "127.0.0.1", "override_port": origin.port().number()
        });
        let proxy = Proxy::limited(&program, inbound, json!({ "type": "direct" }), Some(256)).await?;
        let mut crowd = Vec::new();
        for _ in 0..400 {
            let socket = UdpSocket::bind(("127.0.0.1", 0)).await?;
            socket.send_to(b"one of many", proxy.address()).await?;
            crowd.push(socket);
        }
        let stream = tokio::time::timeout(STEP, TcpStream::connect(proxy.address())).await??;
        exchange(stream).await
    });
}

/// U8: a flood from sources without number takes the memory and the descriptors that are set aside for it, and gives both
/// back.
#[test]
fn a_hundred_thousand_sources_of_datagrams_take_what_there_is_for_them() {
    /// What may be there more than before while it lasts, and afterwards.
    const DURING: u64 = 64 << 20;
    const AFTER: u64 = 16 << 20;
    run(async {
        let program = culvert();
        let sink = UdpSocket::bind(("127.0.0.1", 0)).await?;
        let inbound = json!({
            "type": "direct", "override_address": "127.0.0.1", "override_port": sink.local_addr()?.port(),
            "udp_timeout": "2s"
        });
        let proxy = Proxy::limited(&program, inbound, json!({ "type": "direct" }), Some(4096)).await?;
        let (before, address) = (proxy.usage()?, proxy.address());
        for group in 0..100u8 {
            let flood = move || {
                for number in 0..1000u16 {
                    let source = std::net::Ipv4Addr::new(127, 1 + group, (number >> 8) as u8, number as u8);
                    std::net::UdpSocket::bind((source, 0))?.send_to(&[0; 1000], address)?;
                }
                std::io::Result::Ok(())
            };
            tokio::task::spawn_blocking(flood).await??;
            let usage = proxy.usage()?;
            ensure!(usage.descriptors <= 4096, "{} descriptors", usage.descriptors);
            let grown = usage.memory.saturating_sub(before.memory);
            ensure!(grown < DURING, "{grown} bytes more after {group} thousand sources");
        }
        let (length, _) = tokio::time::timeout(STEP, sink.recv_from(&mut [0; 2000])).await??;
        ensure!(length == 1000, "{length} bytes came out");
        proxy.descriptors_fall_to(before.descriptors + ALLOWANCE).await?;
        let begun = Instant::now();
        while proxy.usage()?.memory > before.memory + AFTER {
            ensure!(begun.elapsed() < STEP, "{} bytes stay", proxy.usage()?.memory - before.memory);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    });
}

/// Kept connections between two requests leave descriptors for those who have something to say.
#[test]
fn idle_kept_connections_make_room() {
    run(async {
        let program = culvert();
        let (origin, pages) = (Origin::start().await?, HttpOrigin::start().await?);
        let direct = json!({ "type": "direct" });
        let proxy = Proxy::limited(&program, json!({ "type": "mixed" }), direct, Some(128)).await?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n",
            pages.url("/hello")
        );
        let mut crowd = Vec::new();
        for _ in 0..160 {
            let mut client = proxy.send(request.as_bytes()).await?;
            let mut answer = [0; 12];
            tokio::time::timeout(STEP, client.read_exact(&mut answer)).await??;
            ensure!(answer == *b"HTTP/1.1 200", "{:?}", String::from_utf8_lossy(&answer));
            crowd.push(client);
        }
        serves(&proxy, "socks", &origin).await?;
        drop(crowd);
        Ok(())
    });
}

/// A well-behaved client is served.
async fn serves(proxy: &Proxy, inbound: &str, origin: &Origin) -> Result {
    let protocol = if inbound == "http" { Protocol::Http } else { Protocol::Socks5 };
    let target = origin.port().v4().into();
    let dialing = client::connect(protocol, proxy.address(), None, &target);
    exchange(tokio::time::timeout(STEP, dialing).await.map_err(|_| "a good client waits in vain")??).await
}

async fn exchange(mut stream: TcpStream) -> Result {
    let seed = fresh_seed();
    stream.write_all(Service::Send { seed, length: 1000 }.line().as_bytes()).await?;
    let taking = tokio::time::timeout(STEP, origin::take(&mut stream, seed, None, |_| ())).await;
    let received = taking.map_err(|_| "a good client is not answered")??;
    ensure!(received == 1000, "a good client got {received} of 1000 bytes");
    Ok(())
}
