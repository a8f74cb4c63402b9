use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_core::StreamConn;
use culvert_core::conn::{read_chain, write_chain};
use culvert_tls::settings::{ClientAuthentication, Identity, Parameters, StoreBase, Trust};
use culvert_tls::{Acceptor, ClientSettings, Connector, Store, StoreSettings};
use culvert_wire::{BufChain, Host, Room};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use super::*;

pub(crate) fn server_tls() -> ServerTls {
    let settings = culvert_tls::ServerSettings {
        parameters: Parameters::default(),
        identity: Identity::SelfSigned,
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    };
    ServerTls::new(&Acceptor::new(&settings).unwrap(), &["test"], false).unwrap()
}

pub(crate) fn client_tls() -> ClientTls {
    let settings = ClientSettings {
        server_name: Some("server.test".to_owned()),
        trust: Trust::Anyone,
        ..ClientSettings::default()
    };
    let host = Host::parse("server.test").unwrap();
    let nobody = StoreSettings { base: StoreBase::None, ..StoreSettings::default() };
    let connector = Connector::new(settings, &host, &Store::new(nobody)).unwrap();
    ClientTls::new(&connector, &["test"], false).unwrap()
}

async fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

async fn server() -> (Server, SocketAddr) {
    let socket = socket().await;
    let address = socket.local_addr().unwrap();
    let settings = ServerSettings {
        tls: server_tls(),
        transport: Transport::default(),
        secret: [7; 32],
        connections: 100,
    };
    (Server::new(Link::socket(socket).unwrap(), &settings), address)
}

async fn pair() -> (Server, Connection, Connection) {
    let (server, address) = server().await;
    let link = Link::socket(socket().await).unwrap();
    let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
    let accepted = server.accept().await.unwrap();
    client.established().await.unwrap();
    accepted.established().await.unwrap();
    (server, client, accepted)
}

#[tokio::test]
async fn bytes_go_both_ways_and_end() {
    let (_server, client, accepted) = pair().await;
    let mut stream = client.open_bi().await.unwrap();
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut other = accepted.accept_bi().await.unwrap();
    let mut read = Vec::new();
    other.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"question");
    other.write_all(b"answer").await.unwrap();
    drop(other);
    read.clear();
    stream.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"answer");
    assert_eq!(client.facts().0.as_deref(), Some(&b"test"[..]));
    assert_eq!(accepted.facts().1.as_deref(), Some("server.test"));
    let mut exported = [[0; 32]; 2];
    client.export_keying_material(&mut exported[0], &[0xff, 0], b"context").unwrap();
    accepted.export_keying_material(&mut exported[1], &[0xff, 0], b"context").unwrap();
    assert_eq!(exported[0], exported[1]);
    client.close(5, b"bye");
    let error = accepted.closed().await;
    assert_eq!(error.application_code(), Some(5));
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Reads to the end by chains.
async fn read_all(stream: &mut QuicStream, room: Room) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let chain = read_chain(stream, room).await.unwrap();
        if chain.is_empty() {
            return all;
        }
        for piece in chain.iter() {
            assert!(piece.len() <= room.max && piece.head() >= room.head && piece.spare() >= room.tail);
        }
        all.extend(chain.to_vec());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_arrive_whole_whatever_the_room() {
    const LEN: usize = 3 << 20;
    let (_server, client, accepted) = pair().await;
    let rooms = [Room::NONE, Room { head: 5, tail: 17, max: 16 << 10 }, Room { head: 0, tail: 0, max: 1000 }];
    for (seed, room) in rooms.into_iter().enumerate() {
        let mut stream = client.open_bi().await.unwrap();
        let sender = tokio::spawn(async move {
            let bytes = pattern(seed as u64, LEN);
            let mut at = 0;
            for size in [1, 100, 5000, 70_000, 1 << 20].into_iter().cycle() {
                let end = (at + size).min(LEN);
                write_chain(&mut stream, &mut BufChain::copied(&bytes[at..end])).await.unwrap();
                at = end;
                if at == LEN {
                    break;
                }
            }
            stream.shutdown().await.unwrap();
            stream
        });
        let mut other = accepted.accept_bi().await.unwrap();
        assert!(read_all(&mut other, room).await == pattern(seed as u64, LEN));
        drop(sender.await.unwrap());
    }
}

/// The library tells the writers that wait in the order last come, first served, and the first of them could take all the
/// room there is; some never came to it.
#[tokio::test]
async fn of_many_busy_streams_none_starves() {
    const STREAMS: usize = 500;
    const EACH: usize = 256 << 10;
    let (_server, client, accepted) = pair().await;
    let mut writers = tokio::task::JoinSet::new();
    let mut readers = tokio::task::JoinSet::new();
    let arrived: Arc<Vec<AtomicUsize>> = Arc::new((0..STREAMS).map(|_| AtomicUsize::new(0)).collect());
    let mut pairs = Vec::new();
    for _ in 0..STREAMS {
        let mut stream = client.open_bi().await.unwrap();
        stream.write_all(&[0]).await.unwrap();
        pairs.push((stream, accepted.accept_bi().await.unwrap()));
    }
    for (number, (mut stream, mut other)) in pairs.into_iter().enumerate() {
        writers.spawn(async move {
            let block = vec![1; 64 << 10];
            while write_chain(&mut stream, &mut BufChain::copied(&block)).await.is_ok() {}
        });
        let arrived = Arc::clone(&arrived);
        readers.spawn(async move {
            loop {
                let came = read_chain(&mut other, Room::NONE).await.unwrap().len();
                let so_far = arrived[number].fetch_add(came, Ordering::Relaxed) + came;
                let all: usize = arrived.iter().map(|count| count.load(Ordering::Relaxed)).sum();
                if all > STREAMS * EACH {
                    return;
                }
                assert!(came > 0, "a stream has ended after {so_far} bytes");
            }
        });
    }
    readers.join_next().await.unwrap().unwrap();
    let mut counts: Vec<_> = arrived.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    counts.sort_unstable();
    let (least, most) = (counts[0], counts[STREAMS - 1]);
    assert!(least > EACH / 8, "{EACH} bytes each are fair; one stream got {least}, another {most}");
}

#[tokio::test]
async fn a_stream_that_is_broken_off_is_no_end() {
    let (_server, client, accepted) = pair().await;
    let mut stream = client.open_bi().await.unwrap();
    stream.write_all(b"half").await.unwrap();
    let mut other = accepted.accept_bi().await.unwrap();
    let mut half = [0; 4];
    other.read_exact(&mut half).await.unwrap();
    stream.abort();
    drop(stream);
    let error = other.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The drop also said that nothing is read any more.
    let error = loop {
        if let Err(error) = other.write_all(&[0; 1000]).await {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn streams_in_one_direction() {
    let (_server, client, accepted) = pair().await;
    let mut stream = client.open_uni().await.unwrap();
    stream.write_all(b"one way").await.unwrap();
    drop(stream);
    let mut other = accepted.accept_uni().await.unwrap();
    let mut read = Vec::new();
    other.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"one way");
    assert!(other.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn datagrams_up_to_the_largest() {
    let (_server, client, accepted) = pair().await;
    let largest = client.max_datagram().unwrap();
    assert!(largest > 1100, "{largest}");
    for len in [0, 1, largest] {
        client.send_datagram(Bytes::from(vec![3; len])).unwrap();
        let mut got = Vec::new();
        accepted.recv_datagrams(&mut got, 10).await.unwrap();
        assert_eq!(got, [vec![3; len]]);
    }
    let most = client.max_datagram().unwrap();
    let error = client.send_datagram(Bytes::from(vec![0; 20_000])).unwrap_err();
    assert!(matches!(error, DatagramError::TooLarge(max) if max >= most), "{error}");
}

#[tokio::test]
async fn the_last_handle_closes() {
    let (_server, client, accepted) = pair().await;
    let stream = client.open_bi().await.unwrap();
    drop(client);
    assert!(accepted.error().is_none(), "the stream holds it");
    drop(stream);
    assert_eq!(accepted.closed().await.application_code(), Some(0));
}

#[tokio::test]
async fn a_server_that_closes_ends_its_connections() {
    let (server, client, _accepted) = pair().await;
    server.close().await;
    assert_eq!(client.closed().await.application_code(), Some(0));
    assert!(server.accept().await.is_none());
}

/// Adds one to each byte and puts a mark in front.
struct Shift;

impl Disguise for Shift {
    fn overhead(&self) -> usize {
        3
    }

    fn wrap(&self, datagram: &[u8], to: &mut Vec<u8>) {
        to.extend([9, 9, 9]);
        to.extend(datagram.iter().map(|byte| byte.wrapping_add(1)));
    }

    fn unwrap(&self, datagram: &mut [u8]) -> Option<usize> {
        let rest = datagram.strip_prefix(&[9, 9, 9])?.len();
        let front = datagram.len() - rest;
        datagram[front..].iter_mut().for_each(|byte| *byte = byte.wrapping_sub(1));
        Some(front)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disguise_and_hops_between_sockets_change_nothing() {
    const PART: usize = 100_000;
    let socket = socket().await;
    let address = socket.local_addr().unwrap();
    let settings = ServerSettings {
        tls: server_tls(),
        transport: Transport::default(),
        secret: [7; 32],
        connections: 100,
    };
    let server = Server::new(Link::socket(socket).unwrap().disguised(Arc::new(Shift)), &settings);
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let hop = Hop {
        open: Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        }),
        next: Box::new(move || (address.port(), Duration::from_millis(100))),
    };
    // The connection knows the server by a port that nobody has.
    let known = SocketAddr::new(address.ip(), 9);
    let link = Link::hopping(hop, known).unwrap().disguised(Arc::new(Shift));
    let client = connect(link, &client_tls(), &Transport::default(), known).unwrap();
    let accepted = server.accept().await.unwrap();
    client.established().await.unwrap();
    let mut stream = client.open_bi().await.unwrap();
    let echo = tokio::spawn(async move {
        let mut other = accepted.accept_bi().await.unwrap();
        let mut part = vec![0; PART];
        while other.read_exact(&mut part).await.is_ok() {
            other.write_all(&part).await.unwrap();
        }
    });
    let mut rounds = 0;
    while opened.load(Ordering::Relaxed) < 5 {
        let sent = pattern(rounds, PART);
        write_chain(&mut stream, &mut BufChain::copied(&sent)).await.unwrap();
        let mut got = vec![0; PART];
        stream.read_exact(&mut got).await.unwrap();
        assert!(got == sent, "round {rounds}");
        rounds += 1;
    }
    drop(stream);
    echo.await.unwrap();
    assert_eq!(client.remote(), known);
}

/// How a client opens its sockets.
fn opener(opened: Arc<AtomicUsize>) -> link::OpenSocket {
    Box::new(move || {
        opened.fetch_add(1, Ordering::Relaxed);
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    })
}

/// Echoes what comes on the first stream.
async fn echo(connection: Connection) {
    let mut stream = connection.accept_bi().await.unwrap();
    let mut part = vec![0; 10_000];
    while let Ok(count) = stream.read(&mut part).await
        && count > 0
    {
        stream.write_all(&part[..count]).await.unwrap();
    }
}

/// Sends a pattern and takes it back.
async fn round(stream: &mut QuicStream, seed: u64, len: usize) {
    let sent = pattern(seed, len);
    write_chain(stream, &mut BufChain::copied(&sent)).await.unwrap();
    let mut got = vec![0; len];
    stream.read_exact(&mut got).await.unwrap();
    assert!(got == sent, "round {seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_from_another_socket_when_its_network_has_changed() {
    for congestion in
        [Congestion::Cubic, Congestion::Bbr(BbrProfile::Standard), Congestion::Brutal(50_000_000)]
    {
        let (server, address) = server().await;
        let opened = Arc::new(AtomicUsize::new(0));
        let link = Link::opening(opener(Arc::clone(&opened))).unwrap();
        let transport = Transport { congestion, ..Transport::default() };
        let client = connect(link, &client_tls(), &transport, address).unwrap();
        let accepted = server.accept().await.unwrap();
        accepted.set_congestion(congestion);
        client.established().await.unwrap();
        let (before, watched) = (accepted.remote(), accepted.clone());
        tokio::spawn(echo(accepted));
        let mut stream = client.open_bi().await.unwrap();
        for seed in 0..4 {
            round(&mut stream, seed, 300_000).await;
            client.rebind();
        }
        round(&mut stream, 9, 300_000).await;
        assert_eq!(opened.load(Ordering::Relaxed), 5, "{congestion:?}");
        assert_ne!(watched.remote(), before, "the server follows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_several_sockets_knows_clients_that_move_between_them() {
    let first = socket().await;
    let address = first.local_addr().unwrap();
    culvert_os::socket::share_port(std::os::fd::AsFd::as_fd(&first)).unwrap();
    let joining = culvert_os::socket::UdpOptions { reuse_addr: true, ..Default::default() };
    let mut sockets = vec![first];
    for _ in 0..3 {
        let socket = culvert_os::socket::udp_socket(&joining, address).unwrap();
        sockets.push(UdpSocket::from_std(socket).unwrap());
    }
    let settings = ServerSettings {
        tls: server_tls(),
        transport: Transport::default(),
        secret: [7; 32],
        connections: 100,
    };
    let links = sockets.into_iter().map(|socket| Link::socket(socket).unwrap());
    let server = Server::spread(links, &settings);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let link = Link::opening(opener(Arc::default())).unwrap();
        let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
        let accepted = server.accept().await.unwrap();
        client.established().await.unwrap();
        tokio::spawn(echo(accepted));
        let stream = client.open_bi().await.unwrap();
        clients.push((client, stream));
    }
    // Of 48 moves three in four lead to another socket.
    for seed in 0..8 {
        for (client, stream) in &mut clients {
            round(stream, seed, 20_000).await;
            client.rebind();
        }
    }
    for (client, stream) in &mut clients {
        round(stream, 9, 20_000).await;
        assert!(client.error().is_none());
    }
    server.close().await;
    for (client, _) in &clients {
        client.closed().await;
    }
    assert!(server.accept().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brutal_sends_at_its_rate_also_over_a_shared_socket() {
    // Two connections at one server, with different rates; what has come when the faster one is through says it all.
    const RATES: [u64; 2] = [4_000_000, 1_000_000];
    const LEN: usize = 2_000_000;
    let (server, address) = server().await;
    let mut readers = Vec::new();
    let start = std::time::Instant::now();
    for rate in RATES {
        let link = Link::socket(socket().await).unwrap();
        let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
        let accepted = server.accept().await.unwrap();
        client.established().await.unwrap();
        accepted.set_congestion(Congestion::Brutal(rate));
        let mut stream = accepted.open_bi().await.unwrap();
        tokio::spawn(async move {
            let _ = write_chain(&mut stream, &mut BufChain::copied(&pattern(rate, LEN))).await;
            let _ = stream.shutdown().await;
            stream.read_to_end(&mut Vec::new()).await
        });
        readers.push(tokio::spawn(async move {
            let mut stream = client.accept_bi().await.unwrap();
            let bytes = read_all(&mut stream, Room::NONE).await;
            assert!(bytes == pattern(rate, LEN));
            start.elapsed()
        }));
    }
    for (reader, rate) in readers.into_iter().zip(RATES) {
        let took = reader.await.unwrap();
        let least = Duration::from_secs_f64(LEN as f64 * 0.98 / rate as f64);
        assert!(took >= least, "{rate}: {took:?}, not before {least:?}");
    }
}

#[tokio::test]
async fn what_is_no_packet_disturbs_nobody() {
    let (server, client, _accepted) = pair().await;
    let address = server.local_addr().unwrap();
    let stranger = socket().await;
    for len in [0, 1, 5, 7, 13, 20, 21, 100, 1199, 1200, 1452] {
        for first in [0x00, 0x40, 0x80, 0xc0, 0xc3, 0xf0, 0xff] {
            let mut datagram = pattern(len as u64 + first, len);
            if let Some(byte) = datagram.first_mut() {
                *byte = first as u8;
            }
            stranger.send_to(&datagram, address).await.unwrap();
            // The same as version 1.
            if len > 5 {
                datagram[1..5].copy_from_slice(&[0, 0, 0, 1]);
                stranger.send_to(&datagram, address).await.unwrap();
            }
        }
    }
    let link = Link::socket(socket().await).unwrap();
    let another = connect(link, &client_tls(), &Transport::default(), address).unwrap();
    another.established().await.unwrap();
    assert!(client.error().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanished_without_a_word_is_gone_after_the_idle_time() {
    let (front, back) = (socket().await, socket().await);
    let address = front.local_addr().unwrap();
    let through = socket().await;
    let settings = ServerSettings {
        tls: server_tls(),
        transport: Transport {
            idle_timeout: Duration::from_secs(2),
            keep_alive: None,
            ..Transport::default()
        },
        secret: [7; 32],
        connections: 100,
    };
    let to = through.local_addr().unwrap();
    let server = Server::new(Link::socket(through).unwrap(), &settings);
    // All that goes between the two, until it is cut.
    let relay = tokio::spawn(async move {
        let (mut there, mut here, mut client) = (vec![0; 65_536], vec![0; 65_536], None);
        loop {
            tokio::select! {
                came = front.recv_from(&mut there) => {
                    let (len, from) = came.unwrap();
                    client = Some(from);
                    back.send_to(&there[..len], to).await.unwrap();
                }
                came = back.recv_from(&mut here) => {
                    let (len, _) = came.unwrap();
                    front.send_to(&here[..len], client.unwrap()).await.unwrap();
                }
            }
        }
    });
    let link = Link::socket(socket().await).unwrap();
    let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
    let accepted = server.accept().await.unwrap();
    client.established().await.unwrap();
    accepted.established().await.unwrap();
    relay.abort();
    let error = tokio::time::timeout(Duration::from_secs(20), accepted.closed()).await.unwrap();
    assert!(error.is_timeout(), "{error}");
}

/// The first packet of a client that then says nothing more.
async fn first_packet() -> Vec<u8> {
    let catcher = socket().await;
    let link = Link::socket(socket().await).unwrap();
    let _client = connect(link, &client_tls(), &Transport::default(), catcher.local_addr().unwrap()).unwrap();
    let mut packet = vec![0; 2000];
    let len = catcher.recv(&mut packet).await.unwrap();
    packet.truncate(len);
    packet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_first_packets_is_asked_for_its_address_and_others_are_served() {
    const RETRY: u8 = 3;
    let (server, address) = server().await;
    let mut strangers = Vec::new();
    for _ in 0..100 {
        let (stranger, packet) = (socket().await, first_packet().await);
        stranger.send_to(&packet, address).await.unwrap();
        strangers.push(stranger);
    }
    let link = Link::socket(socket().await).unwrap();
    let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
    tokio::time::timeout(Duration::from_secs(20), client.established()).await.unwrap().unwrap();
    let mut retries = 0;
    for stranger in &strangers {
        let (mut answer, mut total) = ([0; 2000], 0);
        while let Ok(len) = stranger.try_recv(&mut answer) {
            retries += usize::from(len > 5 && answer[0] & 0x80 != 0 && answer[0] >> 4 & 3 == RETRY);
            total += len;
        }
        assert!(total <= 3 * 1452, "nobody is sent more than three times what came: {total}");
    }
    assert!(retries > 0, "beyond some clients in the handshake the address has to be shown");
    drop(server);
}

#[tokio::test]
async fn a_server_that_was_started_again_ends_what_it_does_not_know() {
    let (old, address) = server().await;
    let link = Link::socket(socket().await).unwrap();
    let client = connect(link, &client_tls(), &Transport::default(), address).unwrap();
    client.established().await.unwrap();
    // A server that is gone without a word: its socket is silent, then taken over.
    let settings = ServerSettings {
        tls: server_tls(),
        transport: Transport::default(),
        secret: [7; 32],
        connections: 100,
    };
    let fresh = socket().await;
    let fresh_address = fresh.local_addr().unwrap();
    let _new = Server::new(Link::socket(fresh).unwrap(), &settings);
    // Packets of the client come to the new server by way of a relay, as if it had the old one's address.
    let mut stream = client.open_bi().await.unwrap();
    let relay = socket().await;
    let link = Link::socket(socket().await).unwrap();
    let through = connect(link, &client_tls(), &Transport::default(), relay.local_addr().unwrap()).unwrap();
    let mut to = address;
    let mut packet = vec![0; 2000];
    let mut from = None;
    let established = through.established();
    tokio::pin!(established);
    loop {
        tokio::select! {
            done = &mut established => {
                done.unwrap();
                break;
            }
            received = relay.recv_from(&mut packet) => {
                let (len, source) = received.unwrap();
                if source == address {
                    relay.send_to(&packet[..len], from.unwrap()).await.unwrap();
                } else {
                    from = Some(source);
                    relay.send_to(&packet[..len], to).await.unwrap();
                }
            }
        }
    }
    to = fresh_address;
    let mut early = through.open_bi().await.unwrap();
    early.write_all(&[1; 200]).await.unwrap();
    let closed = through.closed();
    tokio::pin!(closed);
    let error = loop {
        tokio::select! {
            error = &mut closed => break error,
            received = relay.recv_from(&mut packet) => {
                let (len, source) = received.unwrap();
                if source == address {
                    continue;
                }
                let to = if source == fresh_address { from.unwrap() } else { to };
                relay.send_to(&packet[..len], to).await.unwrap();
            }
        }
    };
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::ConnectionReset);
    stream.write_all(b"the other one lives").await.unwrap();
    assert!(client.error().is_none());
    drop(old);
}
