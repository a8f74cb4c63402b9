use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::transport::{HttpTransport, TransportKind};
use culvert_config::value::Typed;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
use culvert_wire::BufChain;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::Carrier;
use super::super::testing::{Caught, Pair, server};
use crate::repeated::testing::{Refusal, Refusing};
use crate::testing::{World, session, store};

/// The server of `http` takes HTTP/2 without TLS; its client speaks it with TLS only, so this one is the library's.
#[tokio::test]
async fn bodies_are_streams() {
    let options = HttpTransport { path: "/h".into(), ..HttpTransport::default() };
    let world = World::new();
    let (server, mut caught) = server(TransportKind::Http(Box::new(options)));
    let (conn, _serving) = world.serve(&server);
    let (mut send, connection) = h2::client::handshake(conn).await.unwrap();
    tokio::spawn(connection);
    let (response, _) = send.send_request(Request::put("https://x/other").body(()).unwrap(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 404);
    let (response, mut body) =
        send.send_request(Request::put("https://x/h/more?q").body(()).unwrap(), false).unwrap();
    let mut response = response.await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    body.send_data(Bytes::from_static(b"up"), true).unwrap();
    let Caught { mut conn, .. } = caught.recv().await.unwrap();
    let mut up = Vec::new();
    conn.read_to_end(&mut up).await.unwrap();
    assert_eq!(up, b"up");
    conn.write_all(b"down").await.unwrap();
    conn.shutdown().await.unwrap();
    let mut down = Vec::new();
    while let Some(data) = response.body_mut().data().await {
        down.extend(data.unwrap());
    }
    assert_eq!(down, b"down");
}

fn grpc() -> TransportKind {
    TransportKind::Grpc(Box::default())
}

/// A client whose first connections refuse all, and what reaches the server behind the others.
fn refused(how: Refusal, first: usize) -> (Pair, Arc<Refusing>) {
    let world = World::new();
    let (server, caught) = server(grpc());
    let refusing = Refusing { inner: world.upstream(&server), how, first, dials: AtomicUsize::new(0) };
    let refusing = Arc::new(refusing);
    let carrier = carrier(Arc::clone(&refusing) as Arc<dyn Outbound>);
    (Pair { _world: world, carrier, caught }, refusing)
}

fn carrier(outbound: Arc<dyn Outbound>) -> Carrier {
    let address = ServerOptions { server: "server.test".into(), server_port: 443 };
    Carrier::new(crate::testing::dialer(outbound), &store(), &address, None, &Typed(Some(grpc()))).unwrap()
}

#[tokio::test]
async fn a_stream_that_is_refused_is_opened_again_elsewhere() {
    for how in Refusal::ALL {
        let (mut pair, refusing) = refused(how, 2);
        let mut conn = pair.connect().await.unwrap();
        let talk = async {
            conn.write_all(b"said once").await.unwrap();
            conn.shutdown().await.unwrap();
            let mut answer = Vec::new();
            conn.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let serve = async {
            let Caught { mut conn, .. } = pair.caught.recv().await.unwrap();
            let mut question = Vec::new();
            conn.read_to_end(&mut question).await.unwrap();
            assert_eq!(question, b"said once", "{how:?}");
            conn.write_all(b"answer").await.unwrap();
            conn.shutdown().await.unwrap();
        };
        let (answer, ()) = tokio::join!(talk, serve);
        assert_eq!(answer, b"answer", "{how:?}");
        assert_eq!(refusing.dials.load(Ordering::Relaxed), 3, "{how:?}");
        // Nor does the next one go where one was refused.
        pair.open().await;
        assert_eq!(refusing.dials.load(Ordering::Relaxed), 3, "{how:?}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_always_is_left_alone_after_some_tries() {
    for how in Refusal::ALL {
        let (pair, refusing) = refused(how, usize::MAX);
        let mut conn = pair.connect().await.unwrap();
        // Whichever of the two comes to know of it first.
        let said = conn.write_all(b"said").await;
        assert!(said.is_err() || conn.read_u8().await.is_err());
        assert_eq!(refusing.dials.load(Ordering::Relaxed), 4, "{how:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_said_again_is_an_error() {
    let (pair, refusing) = refused(Refusal::ResetLate, 1);
    let mut conn = pair.connect().await.unwrap();
    let much = vec![7; 40_000];
    let fault = match conn.write_all(&much).await {
        Ok(()) => conn.read_u8().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(fault.is_err());
    assert_eq!(refusing.dials.load(Ordering::Relaxed), 1);
}

/// Answers one call with what it says, and says that it takes no other one.
struct Leaving(Tag, AtomicUsize);

#[async_trait]
impl Outbound for Leaving {
    fn tag(&self) -> &Tag {
        &self.0
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, _session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut conn = h2::server::handshake(far).await.unwrap();
            let (request, mut respond) = conn.accept().await.unwrap().unwrap();
            conn.graceful_shutdown();
            let mut send = respond.send_response(http::Response::new(()), false).unwrap();
            let mut body = request.into_body();
            tokio::spawn(async move {
                while let Some(Ok(data)) = body.data().await {
                    let _ = body.flow_control().release_capacity(data.len());
                    send.send_data(data, false).unwrap();
                }
            });
            while conn.accept().await.is_some() {}
        });
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

#[tokio::test]
async fn a_connection_that_is_about_to_end_gets_no_more_streams_and_keeps_what_it_has() {
    let leaving = Arc::new(Leaving(Tag::new("direct", "leaving"), AtomicUsize::new(0)));
    let carrier = carrier(Arc::clone(&leaving) as Arc<dyn Outbound>);
    let mut streams = Vec::new();
    for number in 1..=3 {
        let mut conn = carrier.connect(&session("target.test:80")).await.unwrap();
        conn.write_all(b"ping").await.unwrap();
        let mut pong = [0; 4];
        conn.read_exact(&mut pong).await.unwrap();
        streams.push(conn);
        for conn in &mut streams {
            conn.write_all(b"ping").await.unwrap();
            conn.read_exact(&mut pong).await.unwrap();
        }
        assert_eq!(leaving.1.load(Ordering::Relaxed), number);
    }
}
