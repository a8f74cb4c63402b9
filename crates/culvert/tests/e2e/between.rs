//! Somebody on the way between two Culverts, who cuts first flights short, changes bytes, and sends datagrams again; and
//! a client with a good password that abuses multiplexing. Nothing false arrives, nothing is dialled for a part of a
//! request, and others are served all the while.

use crate::proxy::{Proxy, STEP, read_to_end};
use crate::table::{behind_tls, in_tls};
use crate::{culvert, run};
use culvert_testkit::client::{self, Association, Protocol, Target};
use culvert_testkit::origin::{self, End, Origin, Service, fresh_seed};
use culvert_testkit::{Error, Result, ensure, pattern};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
const PASSWORD: &str = "secret";
/// SHA-224 of the password, which a Trojan client sends.
const KEY: &str = "95c7fbca92ac5083afda62a564a3d014fc3b72c9140e3cb99ea6bf12";
const KEY_2022: &str = "AAECAwQFBgcICQoLDA0ODw==";

/// What is done to one connection.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// So many bytes of the client pass, then it seems to end.
    Cut(usize),
    /// The byte at this place is changed, on the way up or down.
    FlipUp(usize),
    FlipDown(usize),
}

/// What a server answered to one connection.
#[derive(Debug)]
struct Answered {
    act: Act,
    bytes: Vec<u8>,
}

/// Passes connections on to a server, and does to the first one what the first act says, and so on.
struct Between {
    address: SocketAddr,
    answers: mpsc::UnboundedReceiver<Answered>,
    _tasks: JoinSet<()>,
}

impl Between {
    async fn start(server: SocketAddr, acts: Vec<Act>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (sender, answers) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut running = JoinSet::new();
            for act in acts {
                let Ok((client, _)) = listener.accept().await else { return };
                let sender = sender.clone();
                running.spawn(async move {
                    let bytes = pass(client, server, act).await.unwrap_or_default();
                    // Nobody may wait for it any more.
                    drop(sender.send(Answered { act, bytes }));
                });
            }
            running.join_all().await;
        });
        Ok(Self { address, answers, _tasks: tasks })
    }

    async fn answer(&mut self) -> Result<Answered> {
        let answer = tokio::time::timeout(STEP * 2, self.answers.recv()).await;
        Ok(answer.map_err(|_| "a server keeps a connection that was cut")?.ok_or("no connection is left")?)
    }
}

/// Passes one connection on, to its end. Returns what the server has said.
async fn pass(client: TcpStream, server: SocketAddr, act: Act) -> Result<Vec<u8>> {
    let server = TcpStream::connect(server).await?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (cut, up, down) = match act {
        Act::Cut(at) => (at, None, None),
        Act::FlipUp(at) => (usize::MAX, Some(at), None),
        Act::FlipDown(at) => (usize::MAX, None, Some(at)),
    };
    let (_, bytes) =
        tokio::join!(copy(from_client, to_server, cut, up), copy(from_server, to_client, usize::MAX, down));
    Ok(bytes)
}

/// Copies up to `most` bytes, the one at `flip` changed, and then the end. Returns the first bytes that came.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, most: usize, flip: Option<usize>) -> Vec<u8> {
    let (mut block, mut at, mut seen) = (vec![0; 16_384], 0, Vec::new());
    while at < most {
        let Ok(length @ 1..) = from.read(&mut block).await else { break };
        let part = &mut block[..length.min(most - at)];
        let here = flip.and_then(|flip| flip.checked_sub(at));
        if let Some(byte) = here.and_then(|here| part.get_mut(here)) {
            *byte ^= 1;
        }
        if seen.len() < 64 {
            seen.extend_from_slice(part);
        }
        at += part.len();
        if to.write_all(part).await.is_err() {
            break;
        }
    }
    drop(to.shutdown().await);
    seen
}

/// A client, the way to `address` by this outbound.
async fn client_to(address: SocketAddr, mut outbound: Value) -> Result<Proxy> {
    outbound["server"] = address.ip().to_string().into();
    outbound["server_port"] = address.port().into();
    Proxy::start(&culvert(), json!({ "type": "mixed" }), outbound).await
}

async fn server_of(inbound: Value) -> Result<Proxy> {
    Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await
}

fn vless() -> (Value, Value) {
    (json!({ "type": "vless", "uuid": ID }), json!({ "type": "vless", "users": [{ "uuid": ID }] }))
}

fn vmess() -> (Value, Value) {
    let outbound = json!({ "type": "vmess", "uuid": ID, "security": "aes-128-gcm" });
    (outbound, json!({ "type": "vmess", "users": [{ "uuid": ID }] }))
}

fn trojan() -> (Value, Value) {
    let users = json!([{ "password": PASSWORD }]);
    (json!({ "type": "trojan", "password": PASSWORD }), json!({ "type": "trojan", "users": users }))
}

fn anytls() -> (Value, Value) {
    let users = json!([{ "password": PASSWORD }]);
    let outbound = json!({ "type": "anytls", "password": PASSWORD });
    (in_tls(outbound), behind_tls(json!({ "type": "anytls", "users": users })))
}

fn shadowsocks(method: &str, password: &str) -> (Value, Value) {
    let both = json!({ "type": "shadowsocks", "method": method, "password": password });
    (both.clone(), both)
}

/// A target that only the `number`th connection has.
fn numbered(number: usize, port: u16) -> SocketAddr {
    let [.., high, low] = (number as u32).to_be_bytes();
    (Ipv4Addr::new(127, 9, high, low), port).into()
}

/// First flights of fresh connections, cut at these lengths, of which the last is longer than any: no part of a request is
/// dialled for, no part is answered, and all of them are closed. `least` is the shortest header of all.
async fn cuts_are_nothing((outbound, inbound): (Value, Value), least: usize, cuts: Vec<usize>) -> Result {
    let listener = TcpListener::bind(("0.0.0.0", 0)).await?;
    let port = listener.local_addr()?.port();
    let server = server_of(inbound).await?;
    let idle = server.usage()?.descriptors;
    let acts = cuts.iter().map(|cut| Act::Cut(*cut)).collect();
    let mut between = Between::start(server.address(), acts).await?;
    let client = client_to(between.address, outbound).await?;
    let dialled = tokio::spawn(async move {
        let mut numbers = BTreeSet::new();
        // It ends when one comes that is not from the server.
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(IpAddr::V4(to)) = stream.local_addr().map(|address| address.ip()) else { continue };
            let [.., high, low] = to.octets();
            match usize::from(high) << 8 | usize::from(low) {
                0 => break,
                number => drop(numbers.insert(number)),
            }
        }
        numbers
    });
    let mut streams = JoinSet::new();
    for cut in &cuts {
        // One after the other, so that the acts go to the connections that they are for.
        let target = numbered(*cut, port).into();
        let dialling = client::connect(Protocol::Socks5, client.address(), None, &target);
        let Ok(mut stream) = tokio::time::timeout(STEP, dialling).await? else { continue };
        streams.spawn(async move {
            let _ = stream.write_all(b"the first of its words").await;
            read_to_end(&mut stream).await
        });
    }
    for _ in &cuts {
        let Answered { act, bytes } = between.answer().await?;
        let is_part = matches!(act, Act::Cut(cut) if cut < least);
        ensure!(!is_part || bytes.is_empty(), "{act:?} is answered {bytes:x?}");
    }
    for seen in streams.join_all().await {
        ensure!(seen?.is_empty(), "a client got bytes from nobody");
    }
    // This ends the count.
    let _last = TcpStream::connect(numbered(0, port)).await?;
    let numbers = tokio::time::timeout(STEP, dialled).await??;
    let early: Vec<_> = numbers.range(..least).collect();
    ensure!(early.is_empty(), "dialled for the first {early:?} bytes of a request");
    ensure!(numbers.last() == cuts.last(), "not even the longest was a whole request: {numbers:?}");
    drop(client);
    server.descriptors_fall_to(idle + 8).await
}

#[test]
fn cut_first_flights_of_vless_are_nothing() {
    run(cuts_are_nothing(vless(), 26, (1..60).collect()));
}

#[test]
fn cut_first_flights_of_trojan_are_nothing() {
    run(cuts_are_nothing(trojan(), 68, (1..100).collect()));
}

#[test]
fn cut_first_flights_of_vmess_are_nothing() {
    // Padding makes some a little longer than others.
    run(cuts_are_nothing(vmess(), 100, (1..180).collect()));
}

#[test]
fn cut_first_flights_of_shadowsocks_are_nothing() {
    run(async {
        let first = shadowsocks("aes-128-gcm", PASSWORD);
        cuts_are_nothing(first, 16 + 18 + 7 + 16, (1..130).collect()).await?;
        let newest = shadowsocks("2022-blake3-aes-128-gcm", KEY_2022);
        // Where there is no payload at hand it has up to 900 bytes of padding.
        let cuts = (1..120).chain((120..1200).step_by(60)).collect();
        cuts_are_nothing(newest, 16 + 27 + 10 + 16, cuts).await
    });
}

/// Wherever a byte is changed, what arrives is the beginning of what was sent, and never the end of it.
async fn changes_are_noticed((outbound, inbound): (Value, Value)) -> Result {
    const LENGTH: u64 = 1 << 20;
    let origin = Origin::start().await?;
    let server = server_of(inbound).await?;
    let places = [0, 3, 17, 40, 70, 150, 1_000, 5_000, 20_000, 300_000, 900_000];
    let acts = places.iter().flat_map(|&at| [Act::FlipUp(at), Act::FlipDown(at)]);
    for act in acts {
        let between = Between::start(server.address(), vec![act]).await?;
        let client = client_to(between.address, outbound.clone()).await?;
        let target: Target = origin.port().v4().into();
        let dialling = client::connect(Protocol::Socks5, client.address(), None, &target);
        // A handshake that was changed may fail at once.
        let Ok(mut stream) = tokio::time::timeout(STEP, dialling).await? else { continue };
        let seed = fresh_seed();
        match act {
            Act::FlipUp(_) | Act::Cut(_) => {
                // It may have ended by now.
                let _ = stream.write_all(Service::Take { seed, length: LENGTH }.line().as_bytes()).await;
                let _ = origin::send(&mut stream, seed, LENGTH, |_| ()).await;
                let answer = read_to_end(&mut stream).await?;
                ensure!(answer.is_empty(), "{act:?}: the origin says {:?}", String::from_utf8_lossy(&answer));
                let record = origin.record(seed);
                ensure!(record.received < LENGTH, "{act:?}: all of it arrived");
                if let Some(End::Failed(why)) = record.end {
                    ensure!(why.contains("ended after"), "{act:?}: the origin got wrong bytes: {why}");
                }
            }
            Act::FlipDown(_) => {
                let _ = stream.write_all(Service::Send { seed, length: LENGTH }.line().as_bytes()).await;
                let mut seen = 0;
                let taking = origin::take(&mut stream, seed, Some(LENGTH), |total| seen = total);
                let taken = tokio::time::timeout(STEP, taking).await.map_err(|_| format!("{act:?} hangs"))?;
                let Err(error) = taken else { return Err(format!("{act:?}: all of it arrived").into()) };
                let is_an_end = error.downcast_ref::<std::io::Error>().is_some()
                    || error.to_string().contains("stream ended after");
                ensure!(is_an_end, "{act:?}: wrong bytes after {seen}: {error}");
            }
        }
    }
    serves(&server, &origin, outbound).await
}

/// A client without anybody between is served.
async fn serves(server: &Proxy, origin: &Origin, outbound: Value) -> Result {
    let client = client_to(server.address(), outbound).await?;
    let seed = fresh_seed();
    let target: Target = origin.port().v4().into();
    let mut stream = client::connect(Protocol::Socks5, client.address(), None, &target).await?;
    stream.write_all(Service::Send { seed, length: 1000 }.line().as_bytes()).await?;
    let taking = tokio::time::timeout(STEP, origin::take(&mut stream, seed, None, |_| ())).await;
    let received = taking.map_err(|_| "a good client is not answered")??;
    ensure!(received == 1000, "a good client got {received} of 1000 bytes");
    Ok(())
}

#[test]
fn changed_bytes_inside_shadowsocks_are_noticed() {
    run(async {
        changes_are_noticed(shadowsocks("aes-128-gcm", PASSWORD)).await?;
        changes_are_noticed(shadowsocks("2022-blake3-aes-128-gcm", KEY_2022)).await
    });
}

#[test]
fn changed_bytes_inside_vmess_are_noticed() {
    run(changes_are_noticed(vmess()));
}

#[test]
fn changed_bytes_inside_tls_are_noticed() {
    run(async {
        let (outbound, inbound) = vless();
        changes_are_noticed((in_tls(outbound), behind_tls(inbound))).await?;
        changes_are_noticed(anytls()).await
    });
}

#[test]
fn changed_bytes_inside_a_multiplexed_connection_are_noticed() {
    run(async {
        for protocol in ["smux", "yamux", "h2mux"] {
            let (mut outbound, mut inbound) = shadowsocks("2022-blake3-aes-128-gcm", KEY_2022);
            outbound["multiplex"] = json!({ "enabled": true, "protocol": protocol });
            inbound["multiplex"] = json!({ "enabled": true });
            let outcome = changes_are_noticed((outbound, inbound)).await;
            outcome.map_err(|error| Error::from(format!("{protocol}: {error}")))?;
        }
        Ok(())
    });
}

/// Sends every datagram on three times, and a changed copy ahead of it. Counts those that come back.
async fn threefold(socket: UdpSocket, server: SocketAddr, back: Arc<AtomicUsize>) {
    let Ok(to_server) = UdpSocket::bind(("127.0.0.1", 0)).await else { return };
    let mut client = None;
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            Ok((length, from)) = socket.recv_from(&mut up) => {
                client = Some(from);
                let mut changed = up[..length].to_vec();
                changed[length - 1] ^= 1;
                let _ = to_server.send_to(&changed, server).await;
                for _ in 0..3 {
                    let _ = to_server.send_to(&up[..length], server).await;
                }
            }
            Ok((length, _)) = to_server.recv_from(&mut down) => {
                back.fetch_add(1, Ordering::Relaxed);
                let Some(client) = client else { continue };
                for _ in 0..3 {
                    let _ = socket.send_to(&down[..length], client).await;
                }
            }
        }
    }
}

/// In the 2022 edition a datagram is taken once in each direction, and what was changed not at all.
#[test]
fn repeated_datagrams_of_shadowsocks_2022_arrive_once() {
    run(async {
        const DATAGRAMS: usize = 50;
        for (method, key) in [
            ("2022-blake3-aes-128-gcm", KEY_2022),
            ("2022-blake3-chacha20-poly1305", "AAECAwQFBgcICQoLDA0ODwABAgMEBQYHCAkKCwwNDg8="),
        ] {
            let (outbound, inbound) = shadowsocks(method, key);
            let (origin, server) = (Origin::start().await?, server_of(inbound).await?);
            let socket = UdpSocket::bind(("127.0.0.1", 0)).await?;
            let between = socket.local_addr()?;
            let back = Arc::new(AtomicUsize::new(0));
            let passing = tokio::spawn(threefold(socket, server.address(), Arc::clone(&back)));
            let client = client_to(between, outbound).await?;
            let association = Association::open(client.address(), None).await?;
            let target: Target = origin.port().v4().into();
            for number in 0..DATAGRAMS {
                let data = pattern::bytes(number as u64, 100 + number);
                association.send_to(&target, &data).await?;
                // The next answer is this one's: had the one before come twice, it would be seen here.
                let (from, answer) = tokio::time::timeout(STEP, association.recv()).await??;
                ensure!(from == target && answer == data, "{method}: not the answer to datagram {number}");
            }
            let back = back.load(Ordering::Relaxed);
            ensure!(back == DATAGRAMS, "{method}: {back} answers to {DATAGRAMS} datagrams");
            passing.abort();
        }
        Ok(())
    });
}

/// The beginning of a Trojan client's connection for multiplexed ones, of this protocol.
fn multiplexed(protocol: u8) -> Vec<u8> {
    let mut bytes = format!("{KEY}\r\n").into_bytes();
    bytes.extend([1, 3, 20]);
    bytes.extend(b"sp.mux.sing-box.arpa");
    bytes.extend(444_u16.to_be_bytes());
    bytes.extend(b"\r\n");
    bytes.extend([0, protocol]);
    bytes
}

fn smux(command: u8, id: u32, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, command];
    frame.extend((data.len() as u16).to_le_bytes());
    frame.extend(id.to_le_bytes());
    frame.extend(data);
    frame
}

fn yamux(kind: u8, flags: u16, id: u32, length: u32) -> Vec<u8> {
    let mut frame = vec![0, kind];
    frame.extend(flags.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame
}

/// A frame of HTTP/2.
fn h2(kind: u8, flags: u8, id: u32, data: &[u8]) -> Vec<u8> {
    let mut frame = (data.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend(data);
    frame
}

fn server_for_multiplexing() -> Value {
    json!({
        "type": "trojan", "users": [{ "password": PASSWORD }], "multiplex": { "enabled": true }
    })
}

/// What cannot be in a session ends it at once.
#[test]
fn nonsense_in_a_multiplexed_connection_ends_it() {
    run(async {
        let origin = Origin::start().await?;
        let server = server_of(server_for_multiplexing()).await?;
        let idle = server.usage()?.descriptors;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let settled = [&preface[..], &h2(4, 0, 0, b"")].concat();
        for (protocol, name, bytes) in [
            (0, "another version", vec![2, 0, 0, 0, 3, 0, 0, 0]),
            (0, "an unknown command", smux(9, 3, b"")),
            (0, "garbage", pattern::bytes(1, 5000)),
            (1, "another version", [&[7_u8][..], &yamux(0, 1, 1, 0)[1..]].concat()),
            (1, "an unknown type", yamux(9, 0, 0, 0)),
            (1, "more data than the window", [yamux(1, 1, 1, 0), yamux(0, 0, 1, u32::MAX)].concat()),
            (1, "garbage", pattern::bytes(2, 5000)),
            (2, "no preface", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            (2, "an endless frame", [&settled[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat()),
            (2, "data for no stream", [settled.clone(), h2(0, 0, 5, b"data")].concat()),
            (2, "a window of nothing", [settled.clone(), h2(8, 0, 0, &[0; 4])].concat()),
            (2, "garbage", [settled.clone(), pattern::bytes(3, 5000)].concat()),
            (9, "an unknown protocol", b"anything".to_vec()),
        ] {
            let mut stream = server.send(&[multiplexed(protocol), bytes].concat()).await?;
            let ended = read_to_end(&mut stream).await;
            ended.map_err(|error| Error::from(format!("protocol {protocol}, {name}: {error}")))?;
        }
        server.descriptors_fall_to(idle + 8).await?;
        let (mut outbound, _) = trojan();
        outbound["multiplex"] = json!({ "enabled": true });
        serves(&server, &origin, outbound).await
    });
}

/// A client that opens streams without end, or sends them more than anybody takes, costs a bounded amount of memory, and
/// others are served meanwhile.
#[test]
fn floods_in_a_multiplexed_connection_are_bounded() {
    run(async {
        let origin = Origin::start().await?;
        let server = server_of(server_for_multiplexing()).await?;
        let before = server.usage()?.memory;
        let silent = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut request = vec![0, 0];
        request.extend(client::socks5_address_bytes(&silent.local_addr()?.into()));
        // One stream to somebody who never reads, with 64 MiB for it.
        let mut stuffed = [multiplexed(0), smux(0, 3, b""), smux(2, 3, &request)].concat();
        stuffed.extend(smux(2, 3, &[7; 60_000]).repeat(1100));
        // Streams without end, none of which says where it wants to go.
        let opened = |open: &dyn Fn(u32) -> Vec<u8>, protocol| {
            let opens = (0..100_000).flat_map(|number| open(1 + 2 * number));
            multiplexed(protocol).into_iter().chain(opens).collect::<Vec<_>>()
        };
        // Pings without end, whose answers nobody reads; and streams that are reset as soon as they are open.
        let pings = [multiplexed(1), yamux(2, 1, 0, 7).repeat(500_000)].concat();
        let rapid = |id| [yamux(1, 1, id, 0), yamux(1, 8, id, 0)].concat();
        let floods = [
            stuffed,
            opened(&|id| smux(0, id + 2, b""), 0),
            opened(&|id| yamux(1, 1, id, 0), 1),
            opened(&rapid, 1),
            pings,
        ];
        let mut attackers = JoinSet::new();
        for flood in floods {
            let address = server.address();
            attackers.spawn(async move {
                let Ok(stream) = TcpStream::connect(address).await else { return };
                let (_kept, mut writer) = stream.into_split();
                // Until it is closed, or takes no more.
                let _ = tokio::time::timeout(STEP / 2, writer.write_all(&flood)).await;
                std::future::pending().await
            });
        }
        let (mut outbound, _) = trojan();
        for _ in 0..10 {
            serves(&server, &origin, outbound.clone()).await?;
        }
        outbound["multiplex"] = json!({ "enabled": true, "protocol": "smux" });
        serves(&server, &origin, outbound).await?;
        let grown = server.usage()?.memory.saturating_sub(before);
        ensure!(grown < 96 << 20, "{grown} bytes of memory grew");
        Ok(())
    });
}
