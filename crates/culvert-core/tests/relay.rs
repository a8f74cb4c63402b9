//! The relay over real sockets and in memory: every byte once and in order, ends and breaks passed on, nothing held.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_core::relay::stream::Relay;
use culvert_core::{BoxStream, EndReason, Flow, Flows, Network, Session, SessionId, Tag, TcpConn};
use culvert_wire::{BufChain, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

fn session() -> Session {
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    Session {
        id: SessionId::next(),
        network: Network::Tcp,
        inbound: Tag::new("mixed", "in"),
        user: None,
        source: local,
        target: Target::from(local),
        sniffed: None,
        alpn: None,
    }
}

/// A connected pair of kernel sockets.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(connect, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

fn tcp(stream: TcpStream) -> BoxStream {
    Box::new(TcpConn::new(stream))
}

struct Running {
    flow: Arc<Flow>,
    task: JoinHandle<EndReason>,
}

/// Runs a relay between two conns.
fn relay(client: BoxStream, upstream: BoxStream, early: &[u8]) -> Running {
    let ticket = Flows::new().open(session());
    let flow = Arc::clone(ticket.flow());
    let early = BufChain::copied(early);
    let task = tokio::spawn(async move { Relay::new(client, upstream, early, ticket.flow()).await });
    Running { flow, task }
}

/// Bytes that differ by place, so that a lost, doubled or moved one shows.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

async fn exchange(far: TcpStream, send: Vec<u8>) -> (TcpStream, Vec<u8>) {
    let (mut read, mut write) = far.into_split();
    let writer = tokio::spawn(async move {
        write.write_all(&send).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut got = Vec::new();
    read.read_to_end(&mut got).await.unwrap();
    (read.reunite(writer.await.unwrap()).unwrap(), got)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_both_ways_arrives_whole_and_is_counted() {
    let (client, near) = sockets().await;
    let (away, server) = sockets().await;
    let running = relay(tcp(near), tcp(away), b"early");
    let (up, down) = (pattern(9 << 20, 1), pattern(7 << 20, 2));
    let (client, server) = tokio::join!(exchange(client, up.clone()), exchange(server, down.clone()));
    assert_eq!(running.task.await.unwrap(), EndReason::Finished);
    assert!(client.1 == down, "the download differs");
    assert!(server.1[..5] == *b"early" && server.1[5..] == up, "the upload differs");
    assert_eq!((running.flow.up(), running.flow.down()), (up.len() as u64 + 5, down.len() as u64));
}

#[tokio::test]
async fn in_memory_conns_are_copied() {
    let (client, near) = tokio::io::duplex(1000);
    let (away, server) = tokio::io::duplex(700);
    let running = relay(Box::new(near), Box::new(away), b"");
    let (mut client_read, mut client_write) = tokio::io::split(client);
    let (mut server_read, mut server_write) = tokio::io::split(server);
    let data = pattern(200_000, 3);
    let send = async {
        client_write.write_all(&data).await.unwrap();
        client_write.shutdown().await.unwrap();
    };
    let serve = async {
        let mut got = Vec::new();
        server_read.read_to_end(&mut got).await.unwrap();
        server_write.write_all(&got).await.unwrap();
        server_write.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let ((), (), read) = tokio::join!(send, serve, client_read.read_to_end(&mut back));
    read.unwrap();
    assert!(back == data);
    assert_eq!(running.task.await.unwrap(), EndReason::Finished);
}

#[tokio::test]
async fn half_close_is_passed_on_and_the_other_way_stays_open() {
    for spliced in [false, true] {
        let (mut client, near) = sockets().await;
        let (away, mut server) = sockets().await;
        let running = relay(tcp(near), tcp(away), b"");
        let request = pattern(if spliced { 300 << 10 } else { 10 }, 4);
        let upload = async {
            client.write_all(&request).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(upload, server.read_to_end(&mut got));
        assert_eq!(read.unwrap(), request.len());
        assert!(got == request);
        server.write_all(b"late answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "late answer");
        assert_eq!(running.task.await.unwrap(), EndReason::Finished);
    }
}

/// Reads until the stream ends or breaks.
async fn outcome(stream: &mut TcpStream) -> io::Result<usize> {
    stream.read_to_end(&mut Vec::new()).await
}

#[tokio::test]
async fn a_reset_on_either_side_resets_the_other() {
    for (bytes, from_client) in [(10, true), (10, false), (300 << 10, true), (300 << 10, false)] {
        let (client, near) = sockets().await;
        let (away, server) = sockets().await;
        let running = relay(tcp(near), tcp(away), b"");
        let (mut breaks, mut sees) = if from_client { (client, server) } else { (server, client) };
        // Something has passed, so that the relay is in the middle of its work, by copying or by splice.
        let mut seen = vec![0; bytes];
        let sent = seen.clone();
        let (wrote, read) = tokio::join!(breaks.write_all(&sent), sees.read_exact(&mut seen));
        wrote.unwrap();
        read.unwrap();
        socket2::SockRef::from(&breaks).set_linger(Some(Duration::ZERO)).unwrap();
        drop(breaks);
        let error = outcome(&mut sees).await.expect_err("a reset must not look like an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(running.task.await.unwrap(), EndReason::Reset);
    }
}

#[tokio::test]
async fn closing_a_flow_drops_both_conns() {
    let flows = Flows::new();
    let (mut client, near) = sockets().await;
    let (away, mut server) = sockets().await;
    let ticket = flows.open(session());
    let flow = Arc::clone(ticket.flow());
    let task = tokio::spawn(async move {
        Relay::new(tcp(near), tcp(away), BufChain::new(), ticket.flow()).await;
    });
    client.write_all(b"x").await.unwrap();
    server.read_exact(&mut [0]).await.unwrap();
    task.abort();
    assert_eq!(outcome(&mut client).await.unwrap(), 0);
    assert_eq!(outcome(&mut server).await.unwrap(), 0);
    assert!(flows.is_empty(), "the table must forget an ended flow");
    assert_eq!(flow.up(), 1);
    assert_eq!(flows.totals(), (1, 0), "totals keep the bytes of ended flows");
}

#[tokio::test]
async fn a_slow_reader_holds_the_sender_back() {
    let (client, near) = sockets().await;
    let (away, mut server) = sockets().await;
    let running = relay(tcp(near), tcp(away), b"");
    let total = 64 << 20;
    let data = pattern(total, 5);
    let copy = data.clone();
    let sender = tokio::spawn(async move { exchange(client, copy).await });
    // Nobody reads: what is in flight is bounded by socket buffers and one pipe.
    let mut before = u64::MAX;
    while before != running.flow.up() {
        before = running.flow.up();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before < total as u64 / 2, "{before} bytes were taken from a sender whose receiver sleeps");
    let mut got = vec![0; total];
    server.read_exact(&mut got).await.unwrap();
    assert!(got == data);
    drop(server);
    sender.await.unwrap();
    assert_eq!(running.task.await.unwrap(), EndReason::Finished);
}

#[tokio::test(start_paused = true)]
async fn an_idle_flow_ends_at_its_limit_and_an_active_one_does_not() {
    let flows = Flows::new();
    let sweep = {
        let flows = Arc::clone(&flows);
        tokio::spawn(async move { flows.sweep(|| {}).await })
    };
    let open = |limit| {
        let ticket = flows.open(session());
        ticket.flow().set_idle_limit(Duration::from_secs(limit));
        ticket
    };
    let (idle, busy) = (open(5), open(5));
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        busy.flow().count_up(1);
    }
    assert_eq!(idle.flow().end_reason(), EndReason::Idle);
    assert_eq!(busy.flow().end_reason(), EndReason::Dropped, "still alive: no reason yet");
    sweep.abort();
}

/// A layer that takes all it is given, and is pending while the one below does not take it.
#[derive(Clone, Default)]
struct Layer(Arc<std::sync::Mutex<Held>>);

#[derive(Default)]
struct Held {
    taken: usize,
    lets_go: bool,
    writer: Option<std::task::Waker>,
}

impl tokio::io::AsyncRead for Layer {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Pending
    }
}

impl tokio::io::AsyncWrite for Layer {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        panic!("the relay writes chains")
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

impl culvert_core::StreamConn for Layer {
    fn poll_write_chain(
        &mut self,
        cx: &mut std::task::Context<'_>,
        data: &mut BufChain,
    ) -> std::task::Poll<io::Result<()>> {
        let mut held = self.0.lock().unwrap();
        held.taken += std::mem::take(data).len();
        if held.lets_go {
            return std::task::Poll::Ready(Ok(()));
        }
        held.writer = Some(cx.waker().clone());
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn what_a_layer_holds_back_is_waited_for_before_more_is_read() {
    let (near, mut far) = culvert_core::duplex::duplex(1 << 20);
    let layer = Layer::default();
    let ticket = Flows::new().open(session());
    let mut relay = Relay::new(Box::new(near), Box::new(layer.clone()), BufChain::new(), ticket.flow());
    let mut step = async |far: &mut culvert_core::duplex::Duplex| {
        far.write_all(b"piece").await.unwrap();
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut relay).poll(cx)));
        assert!(polled.await.is_pending());
        layer.0.lock().unwrap().taken
    };
    assert_eq!(step(&mut far).await, 5);
    assert_eq!(step(&mut far).await, 5, "more was read, though what came before is still held");
    layer.0.lock().unwrap().lets_go = true;
    assert_eq!(step(&mut far).await, 15);
}
