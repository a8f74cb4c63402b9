use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::transport::{GrpcTransport, TransportKind};
use culvert_config::value::{Dur, Typed};
use culvert_core::{
    BoxPackets, BoxStream, Chain, DialError, Dispatch, Handshake, Network, Outbound, ServeError, Session,
    StreamConn, StreamServer, Tag,
};
use culvert_wire::BufChain;
use h2::client::SendRequest;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::super::Carrier;
use super::super::testing::{
    Caught, Pair, carries, client, half_closes, holds_back, pattern, resets, server,
};
use crate::testing::{World, session};

fn options(service: &str, idle: i64) -> TransportKind {
    TransportKind::Grpc(Box::new(GrpcTransport {
        service_name: service.into(),
        idle_timeout: Dur::from_secs(idle),
        ..GrpcTransport::default()
    }))
}

#[tokio::test]
async fn streams_are_carried() {
    carries(Pair::new(|| options("svc a/b", 0))).await;
    carries(Pair::new(|| options("", 0))).await;
}

#[tokio::test]
async fn ends_pass_one_way_at_a_time() {
    half_closes(Pair::new(|| options("s", 0))).await;
}

#[tokio::test]
async fn breaks_pass() {
    resets(Pair::new(|| options("s", 0))).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_the_writer_back() {
    holds_back(Pair::new(|| options("s", 0))).await;
}

/// Counts connections.
struct Counted(Arc<dyn StreamServer>, Arc<AtomicUsize>);

#[async_trait]
impl StreamServer for Counted {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.serve(conn, session, handshake, dispatch).await
    }
}

/// A pair, and how many connections it has had.
fn counted(client_idle: i64, server_idle: i64) -> (Pair, Arc<AtomicUsize>) {
    let world = World::new();
    let (server, caught) = server(options("s", server_idle));
    let count = Arc::new(AtomicUsize::new(0));
    let server: Arc<dyn StreamServer> = Arc::new(Counted(server, Arc::clone(&count)));
    let carrier = client(&world, options("s", client_idle), &server);
    (Pair { _world: world, carrier, caught }, count)
}

#[tokio::test]
async fn streams_share_connections_and_another_is_opened_when_one_is_full() {
    let (mut pair, count) = counted(0, 0);
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(pair.open().await);
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    for _ in 0..200 {
        streams.push(pair.open().await);
    }
    assert_eq!(count.load(Ordering::Relaxed), 2, "the server takes 250 streams");
    // What is said on one arrives on that one.
    for (number, (client, _)) in streams.iter_mut().enumerate() {
        client.write_all(&(number as u32).to_be_bytes()).await.unwrap();
    }
    for (number, (_, server)) in streams.iter_mut().enumerate() {
        assert_eq!(server.read_u32().await.unwrap() as usize, number);
    }
}

/// Dials after a while, or fails then.
struct Slow {
    upstream: Option<Arc<dyn Outbound>>,
    dials: AtomicUsize,
    tag: Tag,
}

impl Slow {
    fn new(upstream: Option<Arc<dyn Outbound>>) -> Arc<Self> {
        Arc::new(Self { upstream, dials: AtomicUsize::new(0), tag: Tag::new("direct", "slow") })
    }
}

#[async_trait]
impl Outbound for Slow {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        match &self.upstream {
            Some(upstream) => upstream.dial(session, early).await,
            None => Err(DialError::Rejected("out of order")),
        }
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

fn carrier_over(outbound: &Arc<Slow>) -> Carrier {
    let dialer = crate::testing::dialer(Arc::clone(outbound) as Arc<dyn Outbound>);
    let address = ServerOptions { server: "server.test".into(), server_port: 443 };
    Carrier::new(dialer, &crate::testing::store(), &address, None, &Typed(Some(options("s", 0)))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn dials_that_come_together_share_one_connection() {
    let world = World::new();
    let (server, _caught) = server(options("s", 0));
    let slow = Slow::new(Some(world.upstream(&server)));
    let carrier = carrier_over(&slow);
    let session = session("a:1");
    let start = tokio::time::Instant::now();
    let all = joined((0..50).map(|_| carrier.connect(&session)).collect()).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!((slow.dials.load(Ordering::Relaxed), start.elapsed().as_secs()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn dials_that_come_together_fail_together() {
    let slow = Slow::new(None);
    let carrier = carrier_over(&slow);
    let session = session("a:1");
    let start = tokio::time::Instant::now();
    for error in joined((0..50).map(|_| carrier.connect(&session)).collect()).await {
        let error = error.err().unwrap();
        assert!(Chain(&error).to_string().contains("out of order"), "{}", Chain(&error));
    }
    assert_eq!((slow.dials.load(Ordering::Relaxed), start.elapsed().as_secs()), (1, 3));
    assert!(carrier.connect(&session).await.is_err());
    assert_eq!(slow.dials.load(Ordering::Relaxed), 2, "the next one tries anew");
}

#[tokio::test(start_paused = true)]
async fn a_dial_goes_on_for_others_when_who_began_it_leaves() {
    let world = World::new();
    let (server, _caught) = server(options("s", 0));
    let slow = Slow::new(Some(world.upstream(&server)));
    let carrier = carrier_over(&slow);
    let session = session("a:1");
    let first = tokio::time::timeout(Duration::from_secs(1), carrier.connect(&session));
    let (first, second) = tokio::join!(first, carrier.connect(&session));
    assert!(first.is_err() && second.is_ok());
}

/// All of them, polled at once.
async fn joined<T>(all: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.into_iter().map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut all {
            if output.is_none()
                && let std::task::Poll::Ready(done) = future.as_mut().poll(cx)
            {
                *output = Some(done);
            }
        }
        if all.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_the_server_closed_is_replaced() {
    let (mut pair, count) = counted(0, 20);
    drop(pair.open().await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(pair.open().await);
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_is_closed() {
    let (mut pair, count) = counted(0, 0);
    let streams = pair.open().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    drop(pair.open().await);
    assert_eq!(count.load(Ordering::Relaxed), 1, "as long as there is a stream it is used");
    drop(streams);
    tokio::time::sleep(Duration::from_secs(600)).await;
    drop(pair.open().await);
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

/// Takes all and never answers.
struct Silent;

#[async_trait]
impl StreamServer for Silent {
    async fn serve(
        &self,
        conn: BoxStream,
        _session: Session,
        _handshake: Handshake,
        _dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let _conn = conn;
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_noticed_by_pings() {
    let world = World::new();
    let dead: Arc<dyn StreamServer> = Arc::new(Silent);
    let carrier = client(&world, options("s", 10), &dead);
    let start = tokio::time::Instant::now();
    let mut conn = carrier.connect(&session("a:1")).await.unwrap();
    assert!(conn.read(&mut [0; 1]).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 25, "ten seconds of silence and fifteen for the ping");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_doubted_when_it_gets_a_stream() {
    let world = World::new();
    let dead: Arc<dyn StreamServer> = Arc::new(Silent);
    let carrier = client(&world, options("s", 0), &dead);
    let mut first = carrier.connect(&session("a:1")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let start = tokio::time::Instant::now();
    let _second = carrier.connect(&session("a:1")).await.unwrap();
    assert!(first.read(&mut [0; 1]).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 15);
}

#[tokio::test(start_paused = true)]
async fn a_live_connection_stays() {
    let (mut pair, _count) = counted(10, 0);
    let (mut client, mut server) = pair.open().await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    server.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
}

/// A client of HTTP/2 that is not ours.
async fn raw(
    world: &World,
    server: &Arc<dyn StreamServer>,
) -> (SendRequest<Bytes>, JoinHandle<Result<(), ServeError>>) {
    let (conn, serving) = world.serve(server);
    let (send, connection) = h2::client::handshake(conn).await.unwrap();
    tokio::spawn(connection);
    (send, serving)
}

fn request(path: &str) -> Request<()> {
    Request::post(format!("https://x{path}"))
        .header("content-type", "application/grpc+proto")
        .header("x-forwarded-for", "198.51.100.9")
        .body(())
        .unwrap()
}

#[tokio::test]
async fn requests_are_answered_as_sing_box_answers_them() {
    let world = World::new();
    let (server, mut caught) = server(options("svc a", 0));
    let (mut send, _serving) = raw(&world, &server).await;
    let mut other_type = request("/svc%20a/Tun");
    other_type.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    let mut other_method = request("/svc%20a/Tun");
    *other_method.method_mut() = http::Method::GET;
    for request in [request("/"), request("/svc%20a/TunMulti"), other_type, other_method] {
        let (response, _) = send.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 404);
        assert_eq!(response.headers()["content-length"], "0");
        assert!(response.headers().contains_key("date"));
    }
    let (response, mut body) = send.send_request(request("/svc%20a/Tun"), false).unwrap();
    body.send_data(Bytes::from_static(b"\0\0\0\0\x04\x0a\x02hi"), false).unwrap();
    let Caught { mut conn, session } = caught.recv().await.unwrap();
    assert_eq!(session.source.to_string(), "198.51.100.9:5000");
    let mut hi = [0; 2];
    conn.read_exact(&mut hi).await.unwrap();
    assert_eq!(&hi, b"hi");
    conn.write_all(b"hello").await.unwrap();
    let mut response = response.await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let data = response.body_mut().data().await.unwrap().unwrap();
    assert_eq!(&data[..], b"\0\0\0\0\x07\x0a\x05hello");
}

#[tokio::test]
async fn over_http_1_nothing_is_there() {
    let world = World::new();
    let (server, _caught) = server(options("s", 0));
    let (mut conn, _serving) = world.serve(&server);
    conn.write_all(b"POST /s/Tun HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc\r\n\r\n")
        .await
        .unwrap();
    let mut line = [0; 24];
    conn.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 404 Not Found\r\n");
}

#[tokio::test]
async fn a_body_that_ends_within_a_message_was_cut() {
    let world = World::new();
    let (server, mut caught) = server(options("s", 0));
    let (mut send, _serving) = raw(&world, &server).await;
    let (_response, mut body) = send.send_request(request("/s/Tun"), false).unwrap();
    body.send_data(Bytes::from_static(b"\0\0\0\0\x07\x0a\x05hel"), true).unwrap();
    let mut conn = caught.recv().await.unwrap().conn;
    let mut hel = Vec::new();
    let error = conn.read_to_end(&mut hel).await.unwrap_err();
    assert_eq!((&hel[..], error.kind()), (&b"hel"[..], std::io::ErrorKind::UnexpectedEof));
}

/// Whoever is refused inside cannot be told from one whom a server without anything to say has answered.
#[tokio::test]
async fn a_stream_that_is_dropped_without_a_word_is_answered_empty() {
    let world = World::new();
    let (server, mut caught) = server(options("s", 0));
    let (mut send, _serving) = raw(&world, &server).await;
    for aborts in [false, true] {
        let (response, mut body) = send.send_request(request("/s/Tun"), false).unwrap();
        body.send_data(Bytes::from_static(b"garbage"), false).unwrap();
        let mut conn = caught.recv().await.unwrap().conn;
        if aborts {
            conn.abort();
        }
        drop(conn);
        assert_eq!(response.await.is_err(), aborts);
    }
}

/// CVE-2023-44487: streams opened and given up, over and over.
#[tokio::test]
async fn a_client_that_gives_up_all_its_streams_is_cut_off() {
    let world = World::new();
    let (server, mut caught) = server(options("s", 0));
    tokio::spawn(async move {
        while let Some(Caught { mut conn, .. }) = caught.recv().await {
            tokio::spawn(async move { conn.read_to_end(&mut Vec::new()).await });
        }
    });
    for lets_them_be_seen in [false, true] {
        let (mut send, serving) = raw(&world, &server).await;
        for _ in 0..10_000 {
            let Ok(()) = std::future::poll_fn(|cx| send.poll_ready(cx)).await else { break };
            let Ok((_response, mut body)) = send.send_request(request("/s/Tun"), false) else { break };
            for _ in 0..if lets_them_be_seen { 20 } else { 0 } {
                tokio::task::yield_now().await;
            }
            body.send_reset(h2::Reason::CANCEL);
            tokio::task::yield_now().await;
        }
        assert!(serving.await.unwrap().is_err());
    }
}

/// Streams that end early by the thousand (SagerNet/sing-box#1170): nothing is left of them, and the connection stays.
#[tokio::test]
async fn streams_given_up_after_an_answer_leave_nothing_behind() {
    let (mut pair, count) = counted(0, 0);
    for number in 0..3000 {
        let (mut client, mut server) = pair.open().await;
        server.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        if number % 2 == 0 {
            client.abort();
        }
        drop(client);
        assert!(server.read(&mut [0; 1]).await.is_err());
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_stalled_stream_does_not_stop_the_others() {
    let (mut pair, _count) = counted(0, 0);
    let (stalled, mut writer) = pair.open().await;
    let flood = async {
        let block = pattern(100_000);
        loop {
            writer.write_all(&block).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(300), flood).await.is_err());
    carries(pair).await;
    drop(stalled);
}

#[tokio::test]
async fn a_refusal_is_an_error_of_the_stream() {
    let world = World::new();
    let (server, _caught) = server(options("s", 0));
    let mut conn = client(&world, options("t", 0), &server).connect(&session("a:1")).await.unwrap();
    let error = conn.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.to_string(), "server answered with status 404");
}

/// The first bytes of a client, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Frames that cost their sender next to nothing, over and over: headers that never end (VU#421644), settings and pings
/// whose answers nobody reads. A server takes only so much of them, and others are served.
#[tokio::test]
async fn floods_of_frames_are_not_taken() {
    const MOST: usize = 2 << 20;
    // An incompressible field that is not indexed.
    let field = [&[0x10, 1, b'x', 0x7f, 0x80, 0x7e][..], &vec![b'y'; 127 + 16_000]].concat();
    for (what, start, piece) in [
        ("headers without an end", frame(1, 0, 1, &[0x82]), frame(9, 0, 1, &field)),
        ("empty headers without an end", frame(1, 0, 1, &[0x82]), frame(9, 0, 1, b"")),
        ("settings", Vec::new(), frame(4, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("pings", Vec::new(), frame(6, 0, 0, b"12345678")),
    ] {
        let mut world = World::new();
        let (server, mut caught) = server(options("s", 0));
        let (mut conn, serving) = world.serve(&server);
        conn.write_all(&[PREFACE, &start].concat()).await.unwrap();
        let mut taken = 0;
        let many = piece.repeat(1 + 16_384 / piece.len());
        let ended = loop {
            assert!(taken < MOST, "{what} are taken without an end");
            match tokio::time::timeout(Duration::from_millis(500), conn.write_all(&many)).await {
                Ok(Ok(())) => taken += many.len(),
                Ok(Err(_)) => break true,
                Err(_) => break false,
            }
        };
        if ended {
            assert!(serving.await.unwrap().is_err(), "{what}");
        }
        assert!(caught.try_recv().is_err() && world.arrivals.try_recv().is_err(), "{what}");
        let (mut send, _serving) = raw(&world, &server).await;
        let (_response, _body) = send.send_request(request("/s/Tun"), false).unwrap();
        assert!(caught.recv().await.is_some(), "{what}");
    }
}
