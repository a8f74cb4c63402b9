//! The vectors of `multiplex.md` (recorded from sing-box 1.14.4), client against server in memory, and what may go wrong.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::mux::{Brutal, InboundMux, MuxProtocol, OutboundMux};
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dispatch, Handshake, Incoming, Io, Network, Outbound, PacketBatch,
    ServeError, Session, StreamConn, StreamServer, Tag,
};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;

use super::client::{Client, Rule};
use super::codec::{Agreement, Kind, Request, Response, Start, decode_speed};
use super::frame::Wire;
use super::padding::Padded;
use super::session::Driver;
use super::stream::Link;
use super::{Event, PROTOCOL, Server, sign};
use crate::onward::Onward;
use crate::repeated::testing::{Refusal, Refusing};
use crate::testing::{World, recv_packet, send_packets, session, target, write_in_pieces};

const ALL: [MuxProtocol; 3] = [MuxProtocol::Smux, MuxProtocol::Yamux, MuxProtocol::H2Mux];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| byte.is_ascii_hexdigit()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A server of bare sessions.
struct Bare(Onward);

impl Bare {
    fn server(options: InboundMux) -> Arc<dyn StreamServer> {
        let mux = Server::new(Some(&InboundMux { enabled: true, ..options })).unwrap();
        Arc::new(Self(Onward { mux, uot: true }))
    }
}

#[async_trait]
impl StreamServer for Bare {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        drop(handshake);
        let session = Session { target: sign(), user: Some("alice".into()), ..session };
        let io = Io::Stream(conn);
        let incoming = Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout: None };
        self.0.submit(incoming, dispatch).await
    }
}

/// An outbound that counts its dials, fails the first ones if told to, and can cut what it has dialled.
struct Counting {
    inner: Arc<dyn Outbound>,
    dials: AtomicUsize,
    failing: AtomicUsize,
    /// Cuts the carriers dialled so far when it changes.
    cut: tokio::sync::watch::Sender<usize>,
}

impl Counting {
    fn new(inner: Arc<dyn Outbound>) -> Arc<Self> {
        let cut = tokio::sync::watch::channel(0).0;
        Arc::new(Self { inner, dials: AtomicUsize::new(0), failing: AtomicUsize::new(0), cut })
    }

    fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Outbound for Counting {
    fn tag(&self) -> &Tag {
        self.inner.tag()
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, facts: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        assert_eq!((facts.network, &facts.target), (Network::Tcp, &sign()));
        self.dials.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        if self.failing.load(Ordering::Relaxed) > 0 {
            self.failing.fetch_sub(1, Ordering::Relaxed);
            let source = io::ErrorKind::ConnectionRefused.into();
            return Err(DialError::Connect { target: facts.target.clone(), source });
        }
        let mut far = self.inner.dial(facts, early).await?;
        let (near, mut middle) = duplex(256 << 10);
        let mut cut = self.cut.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut middle, &mut far) => {}
                _ = cut.changed() => {
                    middle.abort();
                    far.abort();
                }
            }
        });
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, _facts: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

/// A client and a server with sessions between them.
struct Pair {
    world: World,
    client: Arc<Client>,
    outbound: Arc<Counting>,
}

impl Pair {
    fn new(protocol: MuxProtocol, client: &OutboundMux, server: InboundMux) -> Self {
        Self::within(World::new(), protocol, client, server)
    }

    fn plain(protocol: MuxProtocol) -> Self {
        Self::new(
            protocol,
            &OutboundMux { max_connections: 1, ..OutboundMux::default() },
            InboundMux::default(),
        )
    }

    fn within(world: World, protocol: MuxProtocol, client: &OutboundMux, server: InboundMux) -> Self {
        let outbound = Counting::new(world.upstream(&Bare::server(server)));
        let client = Client::new(Arc::clone(&outbound) as Arc<dyn Outbound>, protocol, client);
        Self { world, client, outbound }
    }

    /// A stream, once the server has dialled, and its far end.
    async fn stream(&mut self) -> (BoxStream, Duplex) {
        let mut near = self.client.dial(&session("site.test:80"), &mut BufChain::new()).await.unwrap();
        near.flush().await.unwrap();
        let arrived = self.world.next().await;
        assert_eq!(arrived.session.target, target("site.test:80"));
        assert_eq!(arrived.session.user.as_deref(), Some("alice"));
        (near, arrived.stream())
    }
}

// Vectors.

#[test]
fn messages_are_those_of_the_sheet() {
    let encoded = |request: &Request| {
        let mut out = Vec::new();
        request.encode(&mut out);
        out
    };
    let tcp = Request { kind: Kind::Tcp, target: target("127.0.0.1:80") };
    assert_eq!(encoded(&tcp), hex("0000 017f0000010050"));
    let connected = Request { kind: Kind::Connected, ..tcp.clone() };
    assert_eq!(encoded(&connected), hex("0001 017f0000010050"));
    let packets = Request { kind: Kind::Packets, ..tcp };
    assert_eq!(encoded(&packets), hex("0003 017f0000010050"));

    let mut out = Vec::new();
    Response::Failed("refused".to_owned()).encode(&mut out);
    assert_eq!(out, hex("010772656675736564"));
    assert_eq!(Response::decode(&mut Reader::new(&out)), Ok(Response::Failed("refused".to_owned())));
    for cut in 0..out.len() {
        assert_eq!(Response::decode(&mut Reader::new(&out[..cut])), Err(DecodeError::Incomplete));
    }

    let mut start = Vec::new();
    Start { protocol: MuxProtocol::Smux, padded: true }.encode(256, &mut start);
    assert_eq!(start[..5], hex("0100010100"));
    assert_eq!(start.len(), 5 + 256);
    let decoded = Start::decode(&mut Reader::new(&start));
    assert_eq!(decoded, Ok(Start { protocol: MuxProtocol::Smux, padded: true }));
    assert_eq!(Start::decode(&mut Reader::new(&start[..260])), Err(DecodeError::Incomplete));
    assert_eq!(Start::decode(&mut Reader::new(&[2, 0])), Err(DecodeError::Invalid("multiplex version")));
    assert_eq!(Start::decode(&mut Reader::new(&[0, 3])), Err(DecodeError::Invalid("multiplex protocol")));

    let reply = hex("010000000000989680");
    assert_eq!(Agreement::decode(&mut Reader::new(&reply)), Ok(Agreement::Speed(10_000_000)));
    assert_eq!(decode_speed(&mut Reader::new(&hex("0000000000bebc20"))), Ok(12_500_000));
}

#[test]
fn long_error_texts_are_cut_by_us_and_refused_from_others() {
    let mut out = Vec::new();
    Response::Failed("\u{fc}".repeat(5000)).encode(&mut out);
    let Ok(Response::Failed(text)) = Response::decode(&mut Reader::new(&out)) else { panic!("{out:?}") };
    assert_eq!(text.len(), 1024);
    let endless = hex("01 ffffffff7f");
    assert!(matches!(Response::decode(&mut Reader::new(&endless)), Err(DecodeError::Invalid(_))));
    let controls = b"\x01\x03a\x1bb";
    assert_eq!(
        Response::decode(&mut Reader::new(controls)),
        Ok(Response::Failed("a\u{fffd}b".to_owned())),
        "nothing that a terminal would act on"
    );
}

/// Runs a server on what a recorded client sent.
async fn served(world: &World, bytes: &str) -> Duplex {
    let (mut near, _) = world.serve(&Bare::server(InboundMux::default()));
    near.write_all(&hex(bytes)).await.unwrap();
    near
}

async fn expect(conn: &mut Duplex, bytes: &str) {
    let wanted = hex(bytes);
    let mut got = vec![0; wanted.len()];
    conn.read_exact(&mut got).await.unwrap();
    assert_eq!(got, wanted);
}

#[tokio::test]
async fn server_understands_the_recorded_smux_client() {
    let mut world = World::new();
    let hi = "01020b0003000000 0000017f00000100506869";
    let mut near = served(&world, &format!("0000 0100000003000000 {hi} 0103000000000000")).await;
    let mut far = world.next().await.stream();
    let mut got = [0; 2];
    far.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"hi");
    far.write_all(b"yo").await.unwrap();
    expect(&mut near, "0102030003000000 00796f").await;
    near.write_all(&hex("0101000003000000")).await.unwrap();
    assert_eq!(far.read(&mut got).await.unwrap(), 0);
    drop(far);
    expect(&mut near, "0101000003000000").await;
}

#[tokio::test]
async fn server_understands_the_recorded_yamux_client() {
    let mut world = World::new();
    let hi = "00000000000000010000000b 0000017f00000100506869";
    let mut near =
        served(&world, &format!("0001 000100010000000100000000 {hi} 000200010000000000000007")).await;
    expect(&mut near, "000100020000000100000000 000200020000000000000007").await;
    let mut far = world.next().await.stream();
    let mut got = [0; 2];
    far.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"hi");
    far.write_all(b"yo").await.unwrap();
    expect(&mut near, "000000000000000100000003 00796f").await;
    near.write_all(&hex("000100040000000100000000")).await.unwrap();
    assert_eq!(far.read(&mut got).await.unwrap(), 0);
    far.write_all(b"!").await.unwrap();
    expect(&mut near, "000000000000000100000001 21").await;
    drop(far);
    expect(&mut near, "000100040000000100000000").await;
}

#[tokio::test]
async fn server_understands_the_recorded_datagrams() {
    let mut world = World::new();
    let plain = "0102 0d00 03000000 0001017f000001005000026869";
    let mut near = served(&world, &format!("0000 0100000003000000 {plain}")).await;
    let arrived = world.next().await;
    assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("127.0.0.1:80")));
    let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
    let got = recv_packet(&mut far, &mut waiting).await;
    assert_eq!(got, ("127.0.0.1:80".to_owned(), b"hi".to_vec()));
    send_packets(&mut far, &[("127.0.0.1:80", b"yo")]).await;
    expect(&mut near, "0102050003000000 00 0002796f").await;

    let addressed = "0102 1400 05000000 0003017f0000010050017f000001005000026869";
    near.write_all(&hex(&format!("0100000005000000 {addressed}"))).await.unwrap();
    let mut far = world.next().await.packets();
    assert_eq!(recv_packet(&mut far, &mut waiting).await, ("127.0.0.1:80".to_owned(), b"hi".to_vec()));
    send_packets(&mut far, &[("127.0.0.1:53", b"yo")]).await;
    expect(&mut near, "01020c0005000000 00 017f0000010035 0002796f").await;
}

#[tokio::test]
async fn client_sends_what_was_recorded_in_one_write() {
    for (protocol, wanted) in [
        (MuxProtocol::Smux, "0000 0100000003000000 01020b0003000000 0000017f00000100506869"),
        (MuxProtocol::Yamux, "0001 000100010000000100000000 00000000000000010000000b 0000017f00000100506869"),
    ] {
        let (outbound, mut carriers) = Carriers::outbound();
        let client = Client::new(outbound, protocol, &OutboundMux::default());
        let mut early = BufChain::copied(b"hi");
        let _stream = client.dial(&session("127.0.0.1:80"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let mut carrier = carriers.recv().await.unwrap();
        let first = read_chain(&mut carrier, Room::NONE).await.unwrap();
        assert_eq!(first.to_vec(), hex(wanted), "{protocol:?}");
    }
}

/// An outbound whose carriers end in the test.
struct Carriers(Tag, tokio::sync::mpsc::UnboundedSender<Duplex>);

impl Carriers {
    fn outbound() -> (Arc<dyn Outbound>, tokio::sync::mpsc::UnboundedReceiver<Duplex>) {
        let (sender, carriers) = tokio::sync::mpsc::unbounded_channel();
        (Arc::new(Self(Tag::new("direct", "test"), sender)), carriers)
    }
}

#[async_trait]
impl Outbound for Carriers {
    fn tag(&self) -> &Tag {
        &self.0
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, _facts: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        let (near, far) = duplex(64 << 10);
        let _ = self.1.send(far);
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, _facts: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

#[tokio::test]
async fn padded_writes_have_the_recorded_form() {
    let (near, mut far) = duplex(1 << 20);
    let mut start = Vec::new();
    Start { protocol: MuxProtocol::Smux, padded: true }.encode(256, &mut start);
    let mut padded = Padded::new(Box::new(near), BufChain::new(), &start);
    let syn = hex("0100000003000000");
    for _ in 0..17 {
        write_chain(&mut padded, &mut BufChain::copied(&syn)).await.unwrap();
    }
    expect(&mut far, &format!("0100010100{}", "00".repeat(256))).await;
    for _ in 0..16 {
        let mut head = [0; 4];
        far.read_exact(&mut head).await.unwrap();
        let [a, b, c, d] = head;
        let (data, padding) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        assert_eq!(data, 8);
        assert!((256..768).contains(&padding));
        expect(&mut far, "0100000003000000").await;
        let mut rest = vec![1; padding.into()];
        far.read_exact(&mut rest).await.unwrap();
    }
    expect(&mut far, "0100000003000000").await;
}

// Client against server.

#[tokio::test]
async fn streams_carry_bytes_both_ways() {
    for protocol in ALL {
        for padding in [false, true] {
            let client = OutboundMux { max_connections: 1, padding, ..OutboundMux::default() };
            let mut pair = Pair::new(protocol, &client, InboundMux { padding, ..InboundMux::default() });
            let mut held = Vec::new();
            for round in 0u8..3 {
                let (near, far) = pair.stream().await;
                let data: Vec<u8> = (0..400_000u32).map(|i| (i as u8).wrapping_mul(round + 3)).collect();
                held.push(exchange(near, far, &data).await);
            }
            assert_eq!(pair.outbound.dials(), 1, "{protocol:?}");
        }
    }
}

/// Sends `data` both ways at once, and checks it.
async fn exchange(near: BoxStream, far: Duplex, data: &[u8]) -> (BoxStream, Duplex) {
    async fn send_and_check<C: StreamConn>(conn: C, data: &[u8]) -> C {
        let conn = Arc::new(Mutex::new(conn));
        let (mut got, mut sent) = (Vec::new(), BufChain::copied(data));
        std::future::poll_fn(|cx| {
            let mut conn = conn.try_lock().unwrap();
            let written = conn.poll_write_chain(cx, &mut sent).map(Result::unwrap);
            let _ = std::pin::Pin::new(&mut *conn).poll_flush(cx).map(Result::unwrap);
            while got.len() < data.len() {
                match conn.poll_read_chain(cx, Room { head: 5, tail: 17, max: 16384 }) {
                    std::task::Poll::Ready(read) => {
                        let read = read.unwrap();
                        assert!(!read.is_empty(), "ended after {} bytes", got.len());
                        assert!(read.iter().all(|piece| piece.head() >= 5 && piece.spare() >= 17));
                        got.extend(read.to_vec());
                    }
                    std::task::Poll::Pending => return std::task::Poll::Pending,
                }
            }
            written
        })
        .await;
        assert!(got == data);
        Arc::into_inner(conn).unwrap().into_inner()
    }
    tokio::join!(send_and_check(near, data), send_and_check(far, data))
}

#[tokio::test]
async fn ends_are_passed_on_and_told_from_breaks() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        // A half-close, where there is such a thing.
        if protocol != MuxProtocol::Smux {
            let (mut near, mut far) = pair.stream().await;
            near.write_all(b"question").await.unwrap();
            near.shutdown().await.unwrap();
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"question");
            far.write_all(b"answer").await.unwrap();
            drop(far);
            got.clear();
            near.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"answer", "{protocol:?}");
        }
        // The last bytes come before the end.
        let (mut near, mut far) = pair.stream().await;
        far.write_all(&[7; 100_000]).await.unwrap();
        drop(far);
        let mut got = Vec::new();
        near.read_to_end(&mut got).await.unwrap();
        assert_eq!(got.len(), 100_000, "{protocol:?}");
        drop(near);
        // A client that breaks off.
        let (mut near, mut far) = pair.stream().await;
        near.write_all(b"cut").await.unwrap();
        near.flush().await.unwrap();
        let mut got = [0; 3];
        far.read_exact(&mut got).await.unwrap();
        near.abort();
        drop(near);
        let end = far.read(&mut got).await;
        match protocol {
            MuxProtocol::Smux => assert_eq!(end.unwrap(), 0, "it has no word for it"),
            MuxProtocol::Yamux | MuxProtocol::H2Mux => assert!(end.is_err(), "{protocol:?}"),
        }
        // A target that breaks off.
        let (mut near, mut far) = pair.stream().await;
        far.write_all(b"cut").await.unwrap();
        near.read_exact(&mut got).await.unwrap();
        far.abort();
        drop(far);
        let end = near.read(&mut got).await;
        match protocol {
            MuxProtocol::Smux => assert_eq!(end.unwrap(), 0),
            MuxProtocol::Yamux | MuxProtocol::H2Mux => assert!(end.is_err(), "{protocol:?}"),
        }
        assert_eq!(pair.outbound.dials(), 1, "the session goes on");
    }
}

#[tokio::test]
async fn datagrams_keep_their_peers() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        let facts = Session { network: Network::Udp, ..session("192.0.2.1:53") };
        let mut near = pair.client.listen_packet(&facts).await.unwrap();
        let big = vec![9; 60_000];
        let sent: [(&str, &[u8]); 4] = [
            ("192.0.2.1:53", b"one"),
            ("name.test:9", b""),
            ("[2001:db8::1]:1", &big),
            ("192.0.2.1:53", b"x"),
        ];
        send_packets(&mut near, &sent).await;
        let arrived = pair.world.next().await;
        assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &facts.target));
        let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
        for (peer, data) in sent {
            assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
        }
        send_packets(&mut far, &[("198.51.100.1:5", b"back"), ("192.0.2.1:53", &big)]).await;
        let mut waiting = PacketBatch::new();
        assert_eq!(
            recv_packet(&mut near, &mut waiting).await,
            ("198.51.100.1:5".to_owned(), b"back".to_vec())
        );
        assert_eq!(recv_packet(&mut near, &mut waiting).await, ("192.0.2.1:53".to_owned(), big.clone()));
    }
}

#[tokio::test]
async fn a_failed_dial_is_told_with_its_reason() {
    for protocol in ALL {
        let world = World::deciding(|facts| {
            let source = io::ErrorKind::ConnectionRefused.into();
            Err(DialError::Connect { target: facts.target.clone(), source })
        });
        let options = OutboundMux { max_connections: 1, ..OutboundMux::default() };
        let pair = Pair::within(world, protocol, &options, InboundMux::default());
        let mut near =
            pair.client.dial(&session("site.test:80"), &mut BufChain::copied(b"hi")).await.unwrap();
        let error = near.read_u8().await.unwrap_err();
        assert_eq!(error.to_string(), "server: connection refused", "{protocol:?}");
    }
}

// Which session a stream goes to.

#[test]
fn the_rule_gives_the_numbers_of_connections_that_were_measured() {
    let rule = |max_connections, min_streams, max_streams| Rule {
        max_connections,
        min_streams,
        max_streams,
        single: false,
    };
    for (rule, wanted) in [
        (rule(0, 0, 0), [1, 2, 3, 4, 5, 6]),
        (rule(2, 0, 0), [1, 2, 2, 2, 2, 2]),
        (rule(3, 2, 0), [1, 1, 2, 2, 3, 3]),
        (rule(0, 0, 2), [1, 1, 2, 2, 3, 3]),
        (Rule { single: true, ..rule(0, 0, 0) }, [1; 6]),
    ] {
        let mut sessions: Vec<usize> = Vec::new();
        let counts = [(); 6].map(|()| {
            let count = sessions.len();
            match sessions.iter_mut().min() {
                Some(streams) if rule.reuses(*streams, count) => *streams += 1,
                _ => sessions.push(1),
            }
            sessions.len()
        });
        assert_eq!(counts, wanted, "{rule:?}");
    }
}

#[tokio::test]
async fn streams_that_come_at_once_wait_for_one_connection() {
    for protocol in ALL {
        let options = OutboundMux { max_streams: 3, ..OutboundMux::default() };
        let pair = Pair::new(protocol, &options, InboundMux::default());
        let dials = (0..7).map(|_| {
            let client = Arc::clone(&pair.client);
            tokio::spawn(async move { client.dial(&session("site.test:80"), &mut BufChain::new()).await })
        });
        let mut streams = Vec::new();
        for dial in dials.collect::<Vec<_>>() {
            streams.push(dial.await.unwrap().unwrap());
        }
        assert_eq!(pair.outbound.dials(), 3, "{protocol:?}");
    }
}

#[tokio::test]
async fn an_idle_session_is_used_again_and_a_busy_one_is_not() {
    for protocol in ALL {
        let mut pair = Pair::new(protocol, &OutboundMux::default(), InboundMux::default());
        let one = pair.stream().await;
        let two = pair.stream().await;
        assert_eq!(pair.outbound.dials(), 2);
        drop(one);
        let three = pair.stream().await;
        assert_eq!(pair.outbound.dials(), 2, "{protocol:?}");
        drop((two, three));
    }
}

#[tokio::test]
async fn a_session_that_is_cut_is_replaced_and_its_streams_break() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        let (mut near, mut far) = pair.stream().await;
        far.write_all(b"some").await.unwrap();
        let mut got = [0; 4];
        near.read_exact(&mut got).await.unwrap();
        pair.outbound.cut.send_replace(1);
        near.read_exact(&mut got).await.unwrap_err();
        far.read_exact(&mut got).await.unwrap_err();
        let (mut near, mut far) = pair.stream().await;
        far.write_all(b"more").await.unwrap();
        near.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"more");
        assert_eq!(pair.outbound.dials(), 2, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_stream_is_tried_twice() {
    let mut pair = Pair::plain(MuxProtocol::Yamux);
    pair.outbound.failing.store(1, Ordering::Relaxed);
    let _stream = pair.stream().await;
    assert_eq!(pair.outbound.dials(), 2);
    let pair = Pair::plain(MuxProtocol::Yamux);
    pair.outbound.failing.store(2, Ordering::Relaxed);
    let failed = pair.client.dial(&session("site.test:80"), &mut BufChain::new()).await;
    assert!(matches!(failed, Err(DialError::Connect { .. })));
    assert_eq!(pair.outbound.dials(), 2);
}

#[tokio::test]
async fn who_waits_for_a_dial_that_is_given_up_dials_anew() {
    let (near, _far) = duplex(1);
    let stuck =
        Arc::new(Stuck(Tag::new("direct", "test"), AtomicUsize::new(0), std::sync::Mutex::new(Some(near))));
    let options = OutboundMux { max_connections: 1, ..OutboundMux::default() };
    let outbound = Arc::clone(&stuck) as Arc<dyn Outbound>;
    let client = Client::new(outbound, MuxProtocol::Smux, &options);
    let dial = |client: &Arc<Client>| {
        let client = Arc::clone(client);
        tokio::spawn(async move { client.dial(&session("a.test:1"), &mut BufChain::new()).await.map(drop) })
    };
    let first = dial(&client);
    while stuck.1.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let second = dial(&client);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stuck.1.load(Ordering::Relaxed), 1);
    first.abort();
    second.await.unwrap().unwrap();
    assert_eq!(stuck.1.load(Ordering::Relaxed), 2);
}

/// Its first dial never ends.
struct Stuck(Tag, AtomicUsize, std::sync::Mutex<Option<Duplex>>);

#[async_trait]
impl Outbound for Stuck {
    fn tag(&self) -> &Tag {
        &self.0
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, _facts: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            std::future::pending::<()>().await;
        }
        Ok(Box::new(self.2.lock().unwrap().take().unwrap()))
    }

    async fn listen_packet(&self, _facts: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

// Slow streams, dead peers, limits.

/// Writes until nothing more is taken for a while.
async fn fill(conn: &mut (impl StreamConn + ?Sized)) -> usize {
    let mut total = 0;
    loop {
        let mut data = BufChain::copied(&[1; 16 << 10]);
        match tokio::time::timeout(Duration::from_millis(300), write_chain(conn, &mut data)).await {
            Ok(written) => {
                written.unwrap();
                total += 16 << 10;
            }
            Err(_) => return total,
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_stopped_and_stops_no_other_where_there_are_windows() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        let (mut slow, mut far) = pair.stream().await;
        let taken = fill(&mut far).await;
        assert!(taken < 6 << 20, "{protocol:?}: {taken} bytes are held for a stream that nobody reads");
        if protocol != MuxProtocol::Smux {
            let (near, far) = pair.stream().await;
            let data = vec![5; 500_000];
            let exchanged = tokio::time::timeout(Duration::from_secs(10), exchange(near, far, &data)).await;
            assert!(exchanged.is_ok(), "{protocol:?}: a slow stream starves another");
        }
        let mut got = 0;
        while got < taken {
            got += read_chain(&mut slow, Room::NONE).await.unwrap().len();
        }
        let (near, far) = pair.stream().await;
        exchange(near, far, &[6; 50_000]).await;
        assert_eq!(pair.outbound.dials(), 1);
    }
}

#[tokio::test]
async fn many_short_streams_leave_nothing_behind() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        for round in 0..600 {
            let (mut near, mut far) = pair.stream().await;
            near.write_all(b"ping").await.unwrap();
            let mut got = [0; 4];
            far.read_exact(&mut got).await.unwrap();
            far.write_all(b"pong").await.unwrap();
            near.read_exact(&mut got).await.unwrap();
            match round % 3 {
                0 => drop(far),
                1 => near.abort(),
                _ => near.shutdown().await.unwrap(),
            }
        }
        while !pair.world.dispatch.flows().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(pair.outbound.dials(), 1, "{protocol:?}");
        assert_eq!(pair.world.dispatch.waiting().len(), 1, "the idle session");
        let (near, far) = pair.stream().await;
        exchange(near, far, b"still here").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_one_of_many_streams_never_reach_another() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        let mut tasks = Vec::new();
        for number in 0..200u32 {
            let (mut near, mut far) = pair.stream().await;
            let tagged = move |round: u32| {
                let mut bytes = Vec::new();
                (0..300).for_each(|place| bytes.extend((number << 16 | round << 12 | place).to_be_bytes()));
                bytes
            };
            tasks.push(tokio::spawn(async move {
                for round in 0..8 {
                    near.write_all(&tagged(round)).await.unwrap();
                    if round == 5 && number % 7 == 0 {
                        near.abort(); // some break off midway
                        return;
                    }
                    let mut got = vec![0; tagged(round).len()];
                    near.read_exact(&mut got).await.unwrap();
                    assert!(got == tagged(round), "{number}");
                }
            }));
            tasks.push(tokio::spawn(async move {
                for round in 0..8 {
                    let mut got = vec![0; tagged(round).len()];
                    match far.read_exact(&mut got).await {
                        Ok(_) => assert!(got == tagged(round), "{number}"),
                        Err(_) => return assert!(round >= 5 && number % 7 == 0, "{number}: round {round}"),
                    }
                    if far.write_all(&got).await.is_err() {
                        return assert!(round >= 5 && number % 7 == 0, "{number}: round {round}");
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(pair.outbound.dials(), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_driver_forgets_streams_that_are_over() {
    for wire in [Wire::Smux, Wire::Yamux] {
        let (near, far) = duplex(64 << 10);
        let hour = Duration::from_secs(3600);
        let client = Link::new(wire, true);
        let mut near = Driver::new(Arc::clone(&client), Box::new(near), &[], BufChain::new(), 0, hour);
        let mut far = Driver::new(Link::new(wire, false), Box::new(far), &[], BufChain::new(), 100, hour);
        for round in 0..300 {
            let mut stream = client.open().unwrap();
            stream.write_all(b"x").await.unwrap();
            let mut other = loop {
                tokio::select! {
                    _ = near.next() => {}
                    event = far.next() => if let Event::Opened(other) = event { break other },
                }
            };
            match round % 4 {
                0 => other.abort(),
                1 => stream.abort(),
                2 => other.write_all(b"unread").await.unwrap(),
                _ => {}
            }
            if round % 2 == 0 {
                drop(other);
                drop(stream);
            } else {
                drop(stream);
                drop(other);
            }
            for _ in 0..5 {
                let settled =
                    tokio::time::timeout(Duration::ZERO, async { tokio::join!(near.next(), far.next()) });
                let _ = settled.await;
            }
        }
        assert_eq!((near.streams(), far.streams()), (0, 0), "{wire:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_is_opened_again_in_another_session() {
    for how in Refusal::ALL {
        let mut world = World::new();
        let inner = world.upstream(&Bare::server(InboundMux::default()));
        let refusing = Arc::new(Refusing { inner, how, first: 2, dials: AtomicUsize::new(0) });
        let client = Client::new(
            Arc::clone(&refusing) as Arc<dyn Outbound>,
            MuxProtocol::H2Mux,
            &OutboundMux { max_connections: 1, ..OutboundMux::default() },
        );
        let mut early = BufChain::copied(b"said once");
        let mut near = client.dial(&session("site.test:80"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let answer = tokio::spawn(async move {
            let mut answer = [0; 6];
            near.read_exact(&mut answer).await.map(|_| answer)
        });
        let mut far = world.next().await.stream();
        let mut question = [0; 9];
        far.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"said once", "{how:?}");
        far.write_all(b"answer").await.unwrap();
        assert_eq!(&answer.await.unwrap().unwrap(), b"answer", "{how:?}");
        assert_eq!(refusing.dials.load(Ordering::Relaxed), 3, "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_shows_no_life_is_left() {
    for protocol in [MuxProtocol::Yamux, MuxProtocol::H2Mux] {
        let (outbound, mut carriers) = Carriers::outbound();
        let client =
            Client::new(outbound, protocol, &OutboundMux { max_connections: 1, ..OutboundMux::default() });
        let facts = session("127.0.0.1:80");
        let mut stream = client.dial(&facts, &mut BufChain::copied(b"hi")).await.unwrap();
        let _silent = carriers.recv().await.unwrap();
        let began = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(6)).await;
        let _other = client.dial(&facts, &mut BufChain::new()).await.unwrap();
        carriers.try_recv().expect("a session that owes an answer gets no more streams");
        let error = stream.read_u8().await.unwrap_err();
        let waited = began.elapsed().as_secs();
        assert!((39..=45).contains(&waited), "{protocol:?}: {error} after {waited} s");
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_without_streams_are_closed_after_a_while_and_with_them_are_not() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        let (near, far) = pair.stream().await;
        let (near, far) = exchange(near, far, b"hi").await;
        tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
        let both = exchange(near, far, b"still").await;
        drop(both);
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(pair.stream().await);
        assert_eq!(pair.outbound.dials(), 1, "{protocol:?}");
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!(pair.world.dispatch.waiting().len(), 0, "{protocol:?}");
        drop(pair.stream().await);
        assert_eq!(pair.outbound.dials(), 2, "{protocol:?}");
    }
}

#[tokio::test]
async fn idle_sessions_make_room_for_others() {
    for protocol in ALL {
        let mut pair = Pair::plain(protocol);
        drop(pair.stream().await);
        let waiting = Arc::clone(pair.world.dispatch.waiting());
        while waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let ip = "192.0.2.7".parse().unwrap();
        let crowd: Vec<_> = (0..256).map(|_| waiting.enter(ip)).collect();
        // The client notices, and opens another one.
        while let Err(_late) = tokio::time::timeout(Duration::from_millis(100), pair.stream()).await {}
        assert_eq!(pair.outbound.dials(), 2, "{protocol:?}");
        drop(crowd);
    }
}

#[tokio::test]
async fn a_session_without_padding_is_refused_where_it_is_wanted() {
    let world = World::new();
    let (mut near, serving) =
        world.serve(&Bare::server(InboundMux { padding: true, ..InboundMux::default() }));
    near.write_all(&hex("0000")).await.unwrap();
    assert!(matches!(serving.await.unwrap(), Err(ServeError::Denied(_))));
    assert!(near.read_u8().await.is_err());
}

#[tokio::test]
async fn garbage_ends_a_session_and_reaches_no_outbound() {
    for bytes in
        ["02", "0003", "0000 02", "0000 0105", "0001 01", "0001 0004", "0001 000000000000000900010000"]
    {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&Bare::server(InboundMux::default()));
        near.write_all(&hex(bytes)).await.unwrap();
        near.shutdown().await.unwrap();
        let _ = near.read_to_end(&mut Vec::new()).await;
        let _ = serving.await.unwrap();
        assert!(world.arrivals.try_recv().is_err(), "{bytes}");
    }
}

#[tokio::test]
async fn data_beyond_the_window_ends_a_yamux_session() {
    let mut world = World::new();
    let mut near =
        served(&world, "0001 000100010000000100000000 00000000000000010000000b 0000017f00000100506869").await;
    let _far = world.next().await;
    expect(&mut near, "000100020000000100000000").await;
    near.write_all(&hex("000000000000000100100000")).await.unwrap();
    expect(&mut near, "000300000000000000000001").await;
    assert!(near.read_u8().await.is_err());
}

#[tokio::test]
async fn multiplexing_inside_multiplexing_is_refused() {
    let mut pair = Pair::plain(MuxProtocol::Smux);
    let facts = Session { target: sign(), ..session("x:1") };
    let mut near = pair.client.dial(&facts, &mut BufChain::copied(&[0, 0])).await.unwrap();
    let error = near.read_u8().await.unwrap_err();
    assert!(error.to_string().contains("inside multiplexing"), "{error}");
    assert!(pair.world.arrivals.try_recv().is_err());
}

#[tokio::test]
async fn datagrams_over_streams_work_inside_a_session() {
    let mut pair = Pair::plain(MuxProtocol::Yamux);
    let version = crate::uot::Version::V2;
    let facts = Session { target: version.magic_target(), ..session("x:1") };
    let conn = pair.client.dial(&facts, &mut BufChain::new()).await.unwrap();
    let mut near = crate::uot::UotConn::client(version, conn, &target("192.0.2.1:53"));
    send_packets(&mut near, &[("192.0.2.1:53", b"ask")]).await;
    let arrived = pair.world.next().await;
    assert_eq!(arrived.session.network, Network::Udp);
    let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
    assert_eq!(recv_packet(&mut far, &mut waiting).await, ("192.0.2.1:53".to_owned(), b"ask".to_vec()));
    send_packets(&mut far, &[("192.0.2.1:53", b"told")]).await;
    let mut waiting = PacketBatch::new();
    assert_eq!(recv_packet(&mut near, &mut waiting).await, ("192.0.2.1:53".to_owned(), b"told".to_vec()));
}

#[tokio::test]
async fn a_stream_without_a_request_is_closed_in_time_and_the_session_goes_on() {
    tokio::time::pause();
    let mut world = World::new();
    let sweeping = Arc::clone(world.dispatch.handshakes());
    let sweep = tokio::spawn(async move { sweeping.sweep().await });
    let mut near = served(&world, "0000 0100000003000000").await;
    expect(&mut near, "0101000003000000").await;
    near.write_all(&hex("0100000005000000 01020b0005000000 0000017f00000100506869")).await.unwrap();
    let mut far = world.next().await.stream();
    far.write_all(b"yo").await.unwrap();
    expect(&mut near, "0102030005000000 00796f").await;
    sweep.abort();
}

#[tokio::test]
async fn a_client_has_only_so_many_streams_in_a_session() {
    let (mut near, far) = duplex(1 << 20);
    let (link, hour) = (Link::new(Wire::Yamux, false), Duration::from_secs(3600));
    let mut driver = Driver::new(link, Box::new(far), &[], BufChain::new(), 3, hour);
    for id in ["01", "03", "05", "07"] {
        near.write_all(&hex(&format!("00010001000000{id}00000000"))).await.unwrap();
    }
    let (mut streams, mut sent) = (Vec::new(), Vec::new());
    while sent.len() < 4 * 12 {
        tokio::select! {
            event = driver.next() => {
                let Event::Opened(stream) = event else { panic!("the session ends") };
                streams.push(stream);
            }
            read = near.read_buf(&mut sent) => assert!(read.unwrap() > 0),
        }
    }
    assert_eq!(streams.len(), 3);
    assert!(sent.windows(8).any(|frame| frame == hex("0001000800000007")), "the fourth breaks off");
}

/// Streams that are opened and given up at once, signs of life, data for nobody: nothing of it stays, and the session and
/// others are served.
#[tokio::test]
async fn floods_leave_nothing_behind() {
    let smux = |command: u8, id: u32| [&[1, command, 0, 0][..], &id.to_le_bytes()].concat();
    let yamux = |kind: u8, flags: u8, id: u32, len: u32| {
        [&[0, kind, 0, flags][..], &id.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    type Piece<'a> = &'a dyn Fn(u32) -> Vec<u8>;
    let rows: [(&str, &str, Piece<'_>, &str); 7] = [
        ("smux: streams", "0000", &|id| [smux(0, id), smux(1, id)].concat(), "smux"),
        ("smux: nothing", "0000", &|_| smux(3, 0), "smux"),
        (
            "smux: data for nobody",
            "0000",
            &|id| [&[1, 2, 1, 0][..], &id.to_le_bytes(), b"x"].concat(),
            "smux",
        ),
        ("yamux: streams", "0001", &|id| [yamux(1, 1, id, 0), yamux(1, 8, id, 0)].concat(), "yamux"),
        ("yamux: pings", "0001", &|value| yamux(2, 1, 0, value), "yamux"),
        ("yamux: data for nobody", "0001", &|id| [yamux(0, 0, id, 1), vec![7]].concat(), "yamux"),
        ("yamux: windows", "0001", &|id| yamux(1, 0, id, u32::MAX), "yamux"),
    ];
    for (what, start, piece, kind) in rows {
        let mut world = World::new();
        let near = served(&world, start).await;
        let (mut reading, mut writing) = tokio::io::split(near);
        let (found, mut finding) = tokio::sync::mpsc::unbounded_channel();
        let listening = tokio::spawn(async move {
            let (mut last, mut bytes) = (Vec::new(), vec![0; 16 << 10]);
            while let Ok(count @ 1..) = reading.read(&mut bytes).await {
                last.extend_from_slice(&bytes[..count]);
                if last.ends_with(b"yo!") {
                    let _ = found.send(());
                }
                let old = last.len().saturating_sub(16);
                last.drain(..old);
            }
        });
        for round in 0..20_000u32 {
            writing.write_all(&piece(2 * round + 3)).await.unwrap();
        }
        let hi = "0000017f00000100506869";
        let legal = match kind {
            "smux" => format!("0100000001000100 01020b0001000100 {hi}"),
            _ => format!("000100010001000100000000 00000000000100010000000b {hi}"),
        };
        writing.write_all(&hex(&legal)).await.unwrap();
        let mut far = world.next().await.stream();
        far.write_all(b"yo!").await.unwrap();
        let served = tokio::time::timeout(Duration::from_secs(20), finding.recv()).await;
        assert!(served.is_ok(), "{what}: the session is stuck");
        while !world.dispatch.handshakes().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.dispatch.flows().len(), 1, "{what}");
        drop(far);
        writing.shutdown().await.unwrap();
        listening.await.unwrap();
    }
}

/// Signs of life are answered as long as somebody reads the answers.
#[tokio::test]
async fn pings_whose_answers_are_not_read_are_not_taken() {
    let world = World::new();
    let mut near = served(&world, "0001").await;
    let pings = hex("0002000100000000 00000001").repeat(1000);
    let mut taken = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(500), near.write_all(&pings)).await {
        written.unwrap();
        taken += pings.len();
        assert!(taken < 1 << 20, "they are taken without an end");
    }
}

/// The same as the first for HTTP/2 (CVE-2023-44487).
#[tokio::test]
async fn requests_that_are_given_up_leave_nothing_behind() {
    let mut world = World::new();
    let near = served(&world, "0002").await;
    let (mut send, connection) = ::h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let request = || {
        let request = http::Request::builder().method(http::Method::CONNECT).uri("localhost");
        request.body(()).unwrap()
    };
    for _ in 0..5_000 {
        let Ok(()) = std::future::poll_fn(|cx| send.poll_ready(cx)).await else { break };
        let Ok((_response, mut body)) = send.send_request(request(), false) else { break };
        body.send_reset(::h2::Reason::CANCEL);
        tokio::task::yield_now().await;
    }
    while !world.dispatch.handshakes().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(world.dispatch.flows().is_empty() && world.arrivals.try_recv().is_err());
    let mut pair = Pair::within(world, MuxProtocol::H2Mux, &OutboundMux::default(), InboundMux::default());
    let (near, far) = pair.stream().await;
    exchange(near, far, b"others are served").await;
}

// Fixed speeds.

fn brutal() -> Option<Brutal> {
    Some(Brutal { enabled: true, up_mbps: 100, down_mbps: 80 })
}

#[tokio::test]
async fn speeds_are_not_agreed_on_with_a_server_that_does_not_do_it() {
    for (server, wanted) in [
        (InboundMux::default(), "server refused: brutal is not enabled by the server"),
        (
            InboundMux { brutal: brutal(), ..InboundMux::default() },
            "server refused: no TCP socket below the connection",
        ),
    ] {
        let client = OutboundMux { brutal: brutal(), ..OutboundMux::default() };
        let pair = Pair::new(MuxProtocol::Smux, &client, server);
        let failed = pair.client.dial(&session("site.test:80"), &mut BufChain::new()).await;
        assert_eq!(failed.err().unwrap().to_string(), wanted);
        assert_eq!(pair.outbound.dials(), 2);
    }
}

#[tokio::test]
async fn the_agreement_has_the_recorded_form() {
    let (outbound, mut carriers) = Carriers::outbound();
    let options = OutboundMux { brutal: brutal(), ..OutboundMux::default() };
    let client = Client::new(outbound, MuxProtocol::Smux, &options);
    let dialling = {
        let client = Arc::clone(&client);
        tokio::spawn(
            async move { client.dial(&session("127.0.0.1:80"), &mut BufChain::new()).await.map(drop) },
        )
    };
    let mut carrier = carriers.recv().await.unwrap();
    let request = "000003115f42727574616c427745786368616e67650000 0000000000989680";
    expect(&mut carrier, &format!("0000 0100000003000000 01021f0003000000 {request}")).await;
    // Our own system cannot do it, which is logged.
    carrier.write_all(&hex("01020a0003000000 00 010000000000989680 0101000003000000")).await.unwrap();
    dialling.await.unwrap().unwrap();
}

// Any cut, any bytes.

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_cut_gives_the_same_streams(protocol in 0usize..2, padded: bool, cuts in prop::collection::vec(1usize..40, 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // What a client of ours sends, recorded.
            let (outbound, mut carriers) = Carriers::outbound();
            let options = OutboundMux { max_connections: 1, padding: padded, ..OutboundMux::default() };
            let client = Client::new(outbound, ALL[protocol], &options);
            let mut streams = Vec::new();
            for number in 0..3u8 {
                let mut stream = client.dial(&session("site.test:80"), &mut BufChain::new()).await.unwrap();
                stream.write_all(&vec![number; 300 * usize::from(number) + 1]).await.unwrap();
                streams.push(stream);
            }
            for stream in &mut streams {
                stream.shutdown().await.unwrap();
            }
            let mut carrier = carriers.recv().await.unwrap();
            let mut sent = BufChain::new();
            while let Ok(read) = tokio::time::timeout(Duration::from_millis(20), read_chain(&mut carrier, Room::NONE)).await {
                sent.append(&mut read.unwrap());
            }
            let mut world = World::new();
            let (mut near, _serving) = world.serve(&Bare::server(InboundMux { padding: padded, ..InboundMux::default() }));
            write_in_pieces(&mut near, &sent.to_vec(), &cuts).await.unwrap();
            for _ in 0..3 {
                let mut far = world.next().await.stream();
                let number = far.read_u8().await.unwrap();
                let mut rest = vec![0; 300 * usize::from(number)];
                far.read_exact(&mut rest).await.unwrap();
                assert!(rest.iter().all(|byte| *byte == number));
            }
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
        // Bytes that look more like frames.
        for (index, byte) in bytes.iter_mut().enumerate() {
            match index % 12 {
                1 => *byte = 0,
                0 | 5..=7 | 9..=10 => *byte &= 1,
                2 | 4 | 11 => *byte &= 7,
                _ => {}
            }
        }
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}
