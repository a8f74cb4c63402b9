//! SOCKS's finer points, most of them after a report of what went wrong in another program.

use crate::proxy::{Proxy, STEP, read_exactly, read_to_end};
use crate::{culvert, run};
use culvert_testkit::client::{self, Association, CONNECT, Protocol, Target};
use culvert_testkit::origin::{BANNER, Origin};
use culvert_testkit::upstream::{Step, Upstream};
use culvert_testkit::{Result, ensure};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// A handshake may come in any pieces: one byte per write, for every version and for HTTP.
#[test]
fn handshake_may_come_byte_by_byte() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let users = json!([{ "username": "u", "password": "p" }, { "username": "v", "password": "" }]);
        let inbound = json!({ "type": "mixed", "users": users });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let target = Target::name("localhost", origin.banner_port().number());

        let socks5 = [
            &client::socks5_greeting_bytes(Some(("u", "p")))[..],
            &client::socks5_password_bytes("u", "p"),
            &client::socks5_request_bytes(CONNECT, &target),
        ]
        .concat();
        let mut stream = proxy.trickle(&socks5).await?;
        ensure!(read_exactly(&mut stream).await? == [5, 2, 1, 0], "SOCKS5 login");
        client::socks5_reply(&mut stream).await?;
        ensure!(read_exactly::<{ BANNER.len() }>(&mut stream).await? == *BANNER, "SOCKS5 tunnel");

        let mut stream = proxy.trickle(&client::socks4_request_bytes(b"v", &target)).await?;
        client::socks4_reply(&mut stream).await?;
        ensure!(read_exactly::<{ BANNER.len() }>(&mut stream).await? == *BANNER, "SOCKS4a tunnel");

        let mut stream = proxy.trickle(&client::http_connect_bytes(Some(("u", "p")), &target)).await?;
        client::http_connect_reply(&mut stream).await?;
        ensure!(read_exactly::<{ BANNER.len() }>(&mut stream).await? == *BANNER, "HTTP tunnel");
        Ok(())
    });
}

/// Listening on `::` serves both families, and each association's relay is of its client's family.
#[test]
fn one_listener_serves_both_families() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let proxy =
            Proxy::start(&program, json!({ "type": "mixed", "listen": "::" }), json!({ "type": "direct" }))
                .await?;
        for address in [proxy.address(), proxy.address_v6()] {
            for target in [origin.banner_port().v4(), origin.banner_port().v6()] {
                for protocol in [Protocol::Socks5, Protocol::Http] {
                    let mut stream = client::connect(protocol, address, None, &target.into()).await?;
                    let banner = read_exactly::<{ BANNER.len() }>(&mut stream).await?;
                    ensure!(banner == *BANNER, "{protocol:?} at {address} to {target}");
                }
            }
            for target in [origin.port().v4(), origin.port().v6()] {
                let association = Association::open(address, None).await?;
                association.send_to(&target.into(), b"hello").await?;
                let receiving = tokio::time::timeout(STEP, association.recv()).await;
                let (from, data) =
                    receiving.map_err(|_| format!("no answer at {address} from {target}"))??;
                ensure!(data == b"hello" && from == target.into(), "{data:?} at {address} from {from}");
            }
        }
        Ok(())
    });
}

/// Replies that no RFC knows end the attempt, not the program.
#[test]
fn odd_replies_of_a_socks_server_are_failures() {
    run(async {
        let program = culvert();
        let replies: [&[u8]; 8] = [
            &[5, 0x09, 0, 1, 0, 0, 0, 0, 0, 0],
            &[5, 0xff, 0, 1, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 5, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            &[0, 0x5a, 0, 1, 0, 0, 0, 0, 0, 0],
            &[5, 1],
            &[],
        ];
        for reply in replies {
            let steps = [Step::Read(3), Step::Write(vec![5, 0]), Step::Read(10), Step::Write(reply.to_vec())];
            let (proxy, _upstream) = behind(&program, steps).await?;
            let target = Target::Address("192.0.2.1:80".parse()?);
            let outcome = client::connect(Protocol::Socks5, proxy.address(), None, &target).await;
            ensure!(outcome.is_err(), "{reply:?} opened a tunnel");
            ensure!(proxy.usage().is_ok(), "{reply:?} ended the program");
        }
        // Methods that were not offered.
        for method in [[5, 1], [5, 2], [5, 0xff], [4, 0]] {
            let (proxy, _upstream) =
                behind(&program, [Step::Read(3), Step::Write(method.to_vec()), Step::Hold]).await?;
            let target = Target::Address("192.0.2.1:80".parse()?);
            let attempt = client::connect(Protocol::Socks5, proxy.address(), None, &target);
            let outcome = tokio::time::timeout(STEP, attempt).await;
            ensure!(matches!(outcome, Ok(Err(_))), "method {method:?}: {outcome:?}");
        }
        Ok(())
    });
}

/// The bound address of a reply may be a name or nothing at all, where nobody needs it.
#[test]
fn bound_address_of_a_tunnel_may_be_anything() {
    run(async {
        let program = culvert();
        let replies: [&[u8]; 3] = [
            &[5, 0, 0, 3, 4, b'h', b'o', b's', b't', 0, 80],
            &[5, 0, 0, 3, 0, 0, 0],
            &[5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80],
        ];
        for reply in replies {
            // The first bytes of the tunnel come along with the reply.
            let steps = [
                Step::Read(3),
                Step::Write(vec![5, 0]),
                Step::Read(10),
                Step::Write([reply, b"hello"].concat()),
            ];
            let (proxy, _upstream) = behind(&program, steps).await?;
            let target = Target::Address("192.0.2.1:80".parse()?);
            let mut stream = client::connect(Protocol::Socks5, proxy.address(), None, &target).await?;
            ensure!(read_to_end(&mut stream).await? == b"hello", "{reply:?} lost data");
        }
        Ok(())
    });
}

/// A relay address that is no address fails the association and leaves the program alive.
#[test]
fn odd_relay_addresses_do_no_harm() {
    run(async {
        let program = culvert();
        let replies: [&[u8]; 4] = [
            &[5, 0, 0, 3, 4, b'h', b'o', b's', b't', 0, 80],
            &[5, 0, 0, 3, 0, 0, 0],
            &[5, 0, 0, 5, 1, 2, 3, 4, 5, 6],
            &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        ];
        for reply in replies {
            let steps = [
                Step::Read(3),
                Step::Write(vec![5, 0]),
                Step::Read(5),
                Step::Write(reply.to_vec()),
                Step::Hold,
            ];
            let (proxy, upstream) = behind(&program, steps).await?;
            let association = Association::open(proxy.address(), None).await?;
            association.send_to(&Target::Address("192.0.2.1:53".parse()?), b"query").await?;
            upstream.contacted().await?;
            drop(association);
            upstream.received().await.map_err(|_| format!("after {reply:?} the upstream is not let go"))?;
            ensure!(proxy.usage().is_ok(), "{reply:?} ended the program");
        }
        Ok(())
    });
}

/// The reply names the outbound socket or nothing; some FTP clients believe it.
#[test]
fn reply_names_the_outbound_socket_or_nothing() {
    run(async {
        let program = culvert();
        let proxy = Proxy::plain(&program, "socks").await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut stream = TcpStream::connect(proxy.address()).await?;
        client::socks5_authenticate(&mut stream, None).await?;
        let request = client::socks5_request_bytes(CONNECT, &listener.local_addr()?.into());
        tokio::io::AsyncWriteExt::write_all(&mut stream, &request).await?;
        let bound = client::socks5_reply(&mut stream).await?;
        let (_, seen) = listener.accept().await?;
        let Target::Address(bound) = bound else { return Err(format!("bound to {bound}").into()) };
        ensure!(bound == seen || bound.ip().is_unspecified(), "bound to {bound}, seen as {seen}");
        Ok(())
    });
}

/// What SOCKS4 leaves open: lengths of the user id, the special addresses, a command that is not there.
#[test]
fn socks4_requests_at_the_edge() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "socks").await?);
        let target: Target = origin.banner_port().v4().into();
        for length in [0, 1, 255] {
            let mut stream = proxy.send(&client::socks4_request_bytes(&vec![b'u'; length], &target)).await?;
            client::socks4_reply(&mut stream)
                .await
                .map_err(|error| format!("user id of {length}: {error}"))?;
            ensure!(read_exactly::<{ BANNER.len() }>(&mut stream).await? == *BANNER, "user id of {length}");
        }
        let text = Target::name("127.0.0.1", origin.banner_port().number());
        let mut stream = proxy.send(&client::socks4_request_bytes(b"", &text)).await?;
        client::socks4_reply(&mut stream).await.map_err(|error| format!("address as a name: {error}"))?;

        let bad: [(&str, Vec<u8>); 5] = [
            ("user id of 300", client::socks4_request_bytes(&[b'u'; 300], &target)),
            ("endless name", [&[4, 1, 0, 80, 0, 0, 0, 1, 0][..], &[b'n'; 300]].concat()),
            ("empty name", vec![4, 1, 0, 80, 0, 0, 0, 1, 0, 0]),
            ("BIND", vec![4, 2, 0, 80, 127, 0, 0, 1, 0]),
            ("unknown command", vec![4, 9, 0, 80, 127, 0, 0, 1, 0]),
        ];
        for (what, request) in bad {
            let mut stream = proxy.send(&request).await?;
            let answer = read_to_end(&mut stream).await?;
            // Refused in full, or closed without a word.
            ensure!(answer.is_empty() || (answer.len() == 8 && answer[..2] == [0, 91]), "{what}: {answer:?}");
        }
        Ok(())
    });
}

/// What SOCKS5 refuses, and how.
#[test]
fn socks5_refusals_have_their_codes() {
    run(async {
        let program = culvert();
        let proxy = Proxy::plain(&program, "socks").await?;
        for (what, request, code) in [
            ("BIND", &[5u8, 2, 0, 1, 127, 0, 0, 1, 0, 80][..], Some(7)),
            ("unknown command", &[5, 9, 0, 1, 127, 0, 0, 1, 0, 80], Some(7)),
            ("unknown address type", &[5, 1, 0, 9, 127, 0, 0, 1, 0, 80], Some(8)),
            ("wrong version", &[4, 1, 0, 1, 127, 0, 0, 1, 0, 80], None),
            ("nobody there", &[5, 1, 0, 1, 127, 0, 0, 1, 0, 1], Some(5)),
            ("no such name", b"\x05\x01\x00\x03\x0cname.invalid\x00\x50", Some(0)),
        ] {
            let mut stream = proxy.send(&[5, 1, 0]).await?;
            ensure!(read_exactly(&mut stream).await? == [5, 0], "{what}: greeting");
            tokio::io::AsyncWriteExt::write_all(&mut stream, request).await?;
            let answer = read_to_end(&mut stream).await?;
            match (code, &answer[..]) {
                // Closed without a word is allowed for what is hardly SOCKS5 at all.
                (None | Some(8), []) => {}
                (None, [5, 8, 0, 1, ..]) => {}
                // Looking a name up can fail in several ways.
                (Some(0), [5, 1..=4, 0, 1, ..]) => {}
                (Some(code), [5, got, 0, 1, ..]) if *got == code && answer.len() == 10 => {}
                _ => return Err(format!("{what}: {answer:?}").into()),
            }
        }

        let inbound = json!({ "type": "socks", "users": [{ "username": "u", "password": "p" }] });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let mut stream = proxy.send(&[5, 1, 0]).await?;
        ensure!(read_to_end(&mut stream).await? == [5, 0xff], "no acceptable method");
        Ok(())
    });
}

/// An HTTP request at a SOCKS port is closed without an answer, and a flood of them does not flood the log.
#[test]
fn http_at_a_socks_port_is_closed_quietly() {
    run(async {
        let program = culvert();
        let proxy = Proxy::plain(&program, "socks").await?;
        for _ in 0..300 {
            let mut stream = proxy.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await?;
            let answer = read_to_end(&mut stream).await?;
            ensure!(answer.is_empty(), "answered {answer:?}");
        }
        let complaints = proxy.peer.log().text().lines().filter(|line| loud(line)).count();
        ensure!(complaints <= 20, "{complaints} warnings and errors for 300 connections");
        Ok(())
    });
}

fn loud(line: &str) -> bool {
    line.starts_with("WARN") || line.starts_with("ERROR")
}

/// Datagrams that are not in the protocol are dropped and harm nothing.
#[test]
fn odd_datagrams_are_dropped() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "socks").await?);
        let association = Association::open(proxy.address(), None).await?;
        let target: Target = origin.port().v4().into();
        let address = client::socks5_address_bytes(&target);
        let odd: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0\0\0",
            b"\0\0\0\x01\x7f",
            b"\0\0\0\x03\xffshort",
            b"\0\0\0\x03\0\0\x35data",
            b"\0\0\0\x09\x7f\0\0\x01\0\x35data",
            &[&b"\0\0\x01"[..], &address, b"a fragment"].concat(),
        ];
        for datagram in odd {
            association.socket().send(datagram).await?;
        }
        association.send_to(&target, b"regular").await?;
        let (_, data) = tokio::time::timeout(STEP, association.recv()).await??;
        ensure!(data == b"regular", "{:?} came back", String::from_utf8_lossy(&data));
        Ok(())
    });
}

/// Another local program cannot take an association over.
#[test]
fn association_belongs_to_its_client() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "socks").await?);
        let association = Association::open(proxy.address(), None).await?;
        let target: Target = origin.port().v4().into();
        association.send_to(&target, b"first").await?;
        tokio::time::timeout(STEP, association.recv()).await??;
        // Another address of this machine, which is not the client's.
        let thief = UdpSocket::bind("127.0.0.2:0").await?;
        let datagram = [&[0, 0, 0][..], &client::socks5_address_bytes(&target), b"stolen"].concat();
        thief.send_to(&datagram, association.socket().peer_addr()?).await?;
        association.send_to(&target, b"second").await?;
        let (_, data) = tokio::time::timeout(STEP, association.recv()).await??;
        ensure!(data == b"second", "{:?} came back", String::from_utf8_lossy(&data));
        Ok(())
    });
}

/// An association ends with its control connection.
#[test]
fn association_ends_with_its_control_connection() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (Origin::start().await?, Proxy::plain(&program, "socks").await?);
        let idle = proxy.usage()?.descriptors;
        let mut associations = Vec::new();
        for _ in 0..100 {
            let association = Association::open(proxy.address(), None).await?;
            association.send_to(&origin.port().v4().into(), b"hello").await?;
            tokio::time::timeout(STEP, association.recv()).await??;
            associations.push(association);
        }
        ensure!(proxy.usage()?.descriptors >= idle + 200, "where are the sockets?");
        drop(associations);
        proxy.descriptors_fall_to(idle + 4).await
    });
}

/// An idle association gives its sockets back after the timeout, though its control connection lives.
#[test]
fn idle_association_is_reclaimed() {
    run(async {
        let program = culvert();
        let origin = Origin::start().await?;
        let inbound = json!({ "type": "socks", "udp_timeout": "1s" });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let idle = proxy.usage()?.descriptors;
        let target: Target = origin.port().v4().into();
        let mut association = Association::open(proxy.address(), None).await?;
        association.send_to(&target, b"hello").await?;
        tokio::time::timeout(STEP, association.recv()).await??;
        let outer_socket_closed = proxy.descriptors_fall_to(idle + 2);
        tokio::time::timeout(Duration::from_secs(10), outer_socket_closed).await??;
        // Either the association is over, which the client is told, or it works again.
        let mut end = [0];
        let control =
            tokio::time::timeout(Duration::from_millis(500), association.control().read(&mut end)).await;
        if control.is_err() {
            association.send_to(&target, b"again").await?;
            tokio::time::timeout(STEP, association.recv()).await??;
        }
        Ok(())
    });
}

/// A proxy with a SOCKS5 upstream that follows these steps.
async fn behind(
    program: &culvert_testkit::peer::Program,
    steps: impl IntoIterator<Item = Step>,
) -> Result<(Proxy, Upstream)> {
    let upstream = Upstream::start(steps).await?;
    let outbound =
        json!({ "type": "socks", "server": "127.0.0.1", "server_port": upstream.address().port() });
    Ok((Proxy::start(program, json!({ "type": "socks" }), outbound).await?, upstream))
}
