//! A TUN device, and what was reported of others: everything by every kind of stack and queue, what may go but one hop, floods,
//! QUIC.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use culvert_testkit::client::{self, Protocol, Target};
use culvert_testkit::origin::{self, Service, confirmation, fresh_seed};
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure, pattern};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};

use crate::culvert;
use crate::table::{behind_tls, in_tls};
use crate::tun::{Network, STACKS, alone, ip, ping};

/// Longest a step may take.
const STEP: Duration = Duration::from_secs(20);

/// A socket that is connected to a port of one of the hosts behind the device.
async fn connected(host: &str, port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" }).await?;
    socket.connect((host, port)).await?;
    Ok(socket)
}

/// A datagram there and back.
async fn echoes(socket: &UdpSocket, size: usize) -> Result {
    let sent = pattern::bytes(size as u64, size);
    socket.send(&sent).await?;
    let mut buffer = vec![0; 65_536];
    let received = tokio::time::timeout(STEP, socket.recv(&mut buffer)).await;
    let length = received.map_err(|_| format!("{size} bytes do not come back"))??;
    ensure!(buffer[..length] == sent, "{size} bytes come back as {length} others");
    Ok(())
}

/// T4: with the system's trains of packets and without, by a queue for each core and by one.
#[test]
fn every_stack_carries_everything_with_trains_and_without() {
    alone("tun_faults::every_stack_carries_everything_with_trains_and_without", || async {
        for (plain, mtu) in [(false, 1500), (false, 1280), (true, 1500), (true, 1280)] {
            for stack in STACKS {
                if plain {
                    // A device that is there already, with one queue.
                    ip("tuntap add dev tunt mode tun");
                    ip("link set dev tunt gso_max_segs 1");
                }
                let at = |error| format!("{stack}, mtu {mtu}, plain {plain}: {error}");
                let network = Network::routed(json!({ "stack": stack, "mtu": mtu })).await?;
                carries_everything(&network).await.map_err(at)?;
                network.stop().await?;
                if plain {
                    ip("link del dev tunt");
                }
            }
        }
        Ok(())
    });
}

async fn carries_everything(network: &Network) -> Result {
    for host in ["10.99.1.2", "fd99::2"] {
        network.bulk(host, 4 << 20).await.map_err(|error| format!("{host}: {error}"))?;
        let socket = connected(host, network.origin.port().number()).await?;
        for size in [1, 1200, 1252, 1253, 4000] {
            echoes(&socket, size).await.map_err(|error| format!("{host}: {error}"))?;
        }
    }
    pinged("10.99.1.2", 64).await
}

async fn pinged(host: &'static str, hops: u32) -> Result {
    let ping = move || ping(host, hops).map_err(|error| error.to_string());
    let answer = tokio::task::spawn_blocking(ping).await??;
    ensure!(answer == Some(0), "{host}, {hops} hops: the answer to a ping is {answer:?}");
    Ok(())
}

/// T17: a device is no hop on the way: who traces it sees the target at once. What is sent on from here begins anew.
#[test]
fn what_may_go_but_one_hop_gets_to_its_target() {
    alone("tun_faults::what_may_go_but_one_hop_gets_to_its_target", || async {
        for stack in STACKS {
            let network = Network::routed(json!({ "stack": stack })).await?;
            for hops in [1, 2] {
                for host in ["10.99.1.2", "fd99::2"] {
                    let at = |error| format!("{stack}, {host}, {hops} hops: {error}");
                    hops_to(&network, host, hops).await.map_err(at)?;
                }
                pinged("10.99.1.2", hops).await.map_err(|error| format!("{stack}: {error}"))?;
            }
            network.stop().await?;
        }
        Ok(())
    });
}

async fn hops_to(network: &Network, host: &str, hops: u32) -> Result {
    let target = SocketAddr::new(host.parse()?, network.origin.port().number());
    let limit = |socket: SockRef<'_>| match target {
        SocketAddr::V4(_) => socket.set_ttl_v4(hops),
        SocketAddr::V6(_) => socket.set_unicast_hops_v6(hops),
    };
    let datagrams = connected(host, target.port()).await?;
    limit(SockRef::from(&datagrams))?;
    echoes(&datagrams, 100).await?;
    // In pieces, each of which may go but as far.
    echoes(&datagrams, 8000).await?;
    let socket = if target.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    limit(SockRef::from(&socket))?;
    let mut stream = tokio::time::timeout(STEP, socket.connect(target)).await??;
    let (seed, length) = (fresh_seed(), 100_000);
    stream.write_all(Service::Send { seed, length }.line().as_bytes()).await?;
    let received = origin::take(&mut stream, seed, None, |_| ()).await?;
    ensure!(received == length, "{received} of {length} bytes");
    Ok(())
}

/// U8: a flood from sources without number takes what there is for it and gives it back, and takes nothing from who was there.
#[test]
fn a_hundred_thousand_sources_leave_alone_who_was_there() {
    /// Associations that there may be, and what they may take.
    const ASSOCIATIONS: usize = 2000;
    const DURING: u64 = 64 << 20;
    const AFTER: u64 = 16 << 20;
    alone("tun_faults::a_hundred_thousand_sources_leave_alone_who_was_there", || async {
        let options = json!({ "udp_timeout": "10s", "udp_nat_max": ASSOCIATIONS });
        let network = Network::routed(options).await?;
        // All of them are this host.
        ip("route add local 10.128.0.0/9 dev lo");
        let sink = UdpSocket::bind(("127.0.0.1", 0)).await?;
        let port = sink.local_addr()?.port();
        let port_of_all = network.origin.port().number();
        let old = [connected("10.99.1.2", port_of_all).await?, connected("fd99::2", port_of_all).await?];
        for socket in &old {
            echoes(socket, 100).await?;
        }
        let before = network.peer.usage()?;
        for group in 0..100u8 {
            let flood = move || {
                for number in 0..1000u16 {
                    let source = Ipv4Addr::new(10, 128 + group, (number >> 8) as u8, number as u8);
                    let target = (Ipv4Addr::new(10, 99, 1, 3), port);
                    std::net::UdpSocket::bind((source, 0))?.send_to(&[0; 1000], target)?;
                }
                std::io::Result::Ok(())
            };
            tokio::task::spawn_blocking(flood).await??;
            for socket in &old {
                answered(socket).await.map_err(|error| format!("after {group} thousand sources: {error}"))?;
            }
            let usage = network.peer.usage()?;
            let grown = usage.memory.saturating_sub(before.memory);
            ensure!(grown < DURING, "{grown} bytes more after {group} thousand sources");
            // Those that are pushed out end a moment later.
            let begun = Instant::now();
            while network.peer.usage()?.descriptors > before.descriptors + ASSOCIATIONS + 100 {
                ensure!(begun.elapsed() < STEP, "more than {ASSOCIATIONS} associations stay");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let (length, _) = tokio::time::timeout(STEP, sink.recv_from(&mut [0; 2000])).await??;
        ensure!(length == 1000, "{length} bytes came out");
        network.bulk("10.99.1.2", 1 << 20).await?;
        let begun = Instant::now();
        loop {
            let usage = network.peer.usage()?;
            let more = usage.memory.saturating_sub(before.memory);
            if usage.descriptors < before.descriptors + 20 && more < AFTER {
                break;
            }
            ensure!(begun.elapsed() < 2 * STEP, "{more} bytes and {} descriptors stay", usage.descriptors);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        network.stop().await
    });
}

/// An answer to one of a few datagrams: in a flood some get lost.
async fn answered(socket: &UdpSocket) -> Result {
    let mut buffer = [0; 1000];
    for _ in 0..20 {
        socket.send(b"still there?").await?;
        if let Ok(received) = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await {
            ensure!(&buffer[..received?] == b"still there?", "an answer to something else");
            return Ok(());
        }
    }
    Err("no answer".into())
}

/// T10: what goes to many costs no more than what goes to one, and nothing of IPv6 gets around the device.
#[test]
fn a_thousand_targets_of_one_socket_take_no_more_than_one() {
    alone("tun_faults::a_thousand_targets_of_one_socket_take_no_more_than_one", || async {
        for stack in STACKS {
            let network = Network::routed(json!({ "stack": stack })).await?;
            let socket = connected("fd99::2", network.origin.port().number()).await?;
            echoes(&socket, 100).await?;
            let before = network.peer.usage()?;
            let many = std::net::UdpSocket::bind("[::]:0")?;
            let flood = move || {
                for number in 0..100_000u32 {
                    let host = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 1, (number % 1000) as u16);
                    many.send_to(&[0; 300], SocketAddrV6::new(host, 9, 0, 0))?;
                }
                std::io::Result::Ok(())
            };
            tokio::task::spawn_blocking(flood).await??;
            answered(&socket).await.map_err(|error| format!("{stack}: {error}"))?;
            let usage = network.peer.usage()?;
            let grown = usage.memory.saturating_sub(before.memory);
            ensure!(grown < 24 << 20, "{stack}: {grown} bytes more");
            let more = usage.descriptors.saturating_sub(before.descriptors);
            ensure!(more < 100, "{stack}: {more} descriptors more");
            network.stop().await?;
        }
        Ok(())
    });
}

/// T6: a connection of QUIC gets through every kind of stack.
///
/// ```text
/// client ─SOCKS▶ culvert ─Hysteria 2▶ tunt ─▶ culvert with the device ─▶ culvert, the server ─▶ origin
/// ```
#[test]
fn quic_passes_every_stack_at_every_mtu() {
    alone("tun_faults::quic_passes_every_stack_at_every_mtu", || async {
        let (entry, server) = (Port::reserve()?, Port::reserve()?);
        let inbound = behind_tls(json!({
            "type": "hysteria2", "listen": "127.0.0.1", "listen_port": server.number(),
            "users": [{ "password": "pw" }]
        }));
        let _server =
            culvert().serve(&json!({ "inbounds": [inbound], "outbounds": [{ "type": "direct" }] })).await?;
        for (stack, mtu) in [("gvisor", 65_535), ("gvisor", 1500), ("system", 1280), ("mixed", 9000)] {
            let network = Network::routed(json!({ "stack": stack, "mtu": mtu })).await?;
            let outbound = in_tls(json!({
                "type": "hysteria2", "server": "10.99.1.2", "server_port": server.number(), "password": "pw"
            }));
            let config = json!({
                "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": entry.number() }],
                "outbounds": [outbound]
            });
            let mut client = culvert().serve(&config).await?;
            let at = |error| format!("{stack}, mtu {mtu}: {error}");
            both_ways(entry.v4(), network.origin.port().v4().into(), 8 << 20).await.map_err(at)?;
            client.stop().await?;
            network.stop().await?;
        }
        Ok(())
    });
}

async fn both_ways(proxy: SocketAddr, target: Target, length: u64) -> Result {
    let dial = || async {
        tokio::time::timeout(STEP, client::connect(Protocol::Socks5, proxy, None, &target)).await
    };
    let (seed, mut stream) = (fresh_seed(), dial().await??);
    stream.write_all(Service::Send { seed, length }.line().as_bytes()).await?;
    let received = origin::take(&mut stream, seed, Some(length), |_| ()).await?;
    ensure!(received == length, "{received} of {length} bytes came down");
    let (seed, mut stream) = (fresh_seed(), dial().await??);
    stream.write_all(Service::Take { seed, length }.line().as_bytes()).await?;
    origin::send(&mut stream, seed, length, |_| ()).await?;
    let mut said = String::new();
    tokio::time::timeout(STEP, stream.read_to_string(&mut said)).await??;
    ensure!(said == confirmation(length), "the origin answered {said:?}");
    Ok(())
}
