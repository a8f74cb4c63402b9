use std::net::SocketAddr;

use async_trait::async_trait;
use culvert_core::{Network, SessionId, Tag, UdpConn};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::message::{Answer, Reply, wire};
use crate::plain::write_message;
use crate::testing::{Build, query};
use crate::{Query, RecordType};

/// Answers by the name: `now` at once, `later` after a second, `big` with much, `fail` not, `drop` with silence.
struct ByName;

#[async_trait]
impl Exchange for ByName {
    async fn exchange(&self, request: &Request, _: &Session) -> Result<Answer, DnsError> {
        let query = &request.query;
        let name = query.domain().unwrap();
        let build = Build::reply_to(&query.encode(0));
        let build = match name.as_str().split('.').next().unwrap() {
            "later" => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                build.address(name.as_str(), 60, "192.0.2.2")
            }
            "big" => {
                (0..100).fold(build, |build, n| build.address(name.as_str(), 60, &format!("192.0.2.{n}")))
            }
            "fail" => return Err(DnsError::NoServer),
            "drop" => return Err(DnsError::Dropped),
            _ => build.address(name.as_str(), 60, "192.0.2.1"),
        };
        Ok(Answer::fresh(Reply::parse(&build.done(), query, 0).unwrap()))
    }
}

fn session(network: Network) -> Arc<Session> {
    let server: SocketAddr = "192.0.2.53:53".parse().unwrap();
    Arc::new(Session {
        id: SessionId::next(),
        network,
        inbound: Tag::new("direct", "dns-in"),
        user: None,
        source: "127.0.0.1:1234".parse().unwrap(),
        target: server.into(),
        sniffed: None,
        alpn: None,
    })
}

fn stream() -> (DuplexStream, JoinHandle<io::Result<()>>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let served = tokio::spawn(serve_stream(Box::new(server), Arc::new(ByName), session(Network::Tcp)));
    (client, served)
}

fn ask(name: &str) -> Query {
    query(name, RecordType::A)
}

/// The id and the code of a reply.
fn shown(reply: &[u8]) -> (u16, u16) {
    (wire::u16_at(reply, 0).unwrap(), wire::u16_at(reply, 2).unwrap() & wire::flag::RCODE)
}

#[tokio::test(start_paused = true)]
async fn pipelined_questions_are_answered_as_they_are_ready() {
    // D5.
    let (mut client, served) = stream();
    for id in 0..10 {
        let name = if id == 0 { "later.test" } else { "now.test" };
        write_message(&mut client, &ask(name).encode(id)).await.unwrap();
    }
    for id in (1..10).chain([0]) {
        assert_eq!(shown(&read_message(&mut client).await.unwrap()), (id, 0));
    }
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_stream_still_gets_its_answers() {
    let (mut client, served) = stream();
    write_message(&mut client, &ask("later.test").encode(7)).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(shown(&read_message(&mut client).await.unwrap()), (7, 0));
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_answers_are_whole_on_a_stream() {
    let (mut client, _served) = stream();
    write_message(&mut client, &ask("big.test").encode(7)).await.unwrap();
    let reply = Reply::parse(&read_message(&mut client).await.unwrap(), &ask("big.test"), 7).unwrap();
    assert_eq!(reply.addresses().count(), 100);
}

#[tokio::test(start_paused = true)]
async fn failures_have_codes_and_drops_are_silent() {
    let (mut client, _served) = stream();
    write_message(&mut client, &ask("drop.test").encode(1)).await.unwrap();
    write_message(&mut client, &ask("fail.test").encode(2)).await.unwrap();
    write_message(&mut client, &[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
    write_message(&mut client, b"junk").await.unwrap();
    write_message(&mut client, &[]).await.unwrap();
    write_message(&mut client, &ask("now.test").encode(4)).await.unwrap();
    for expected in [(2, 2), (3, 1), (4, 0)] {
        assert_eq!(shown(&read_message(&mut client).await.unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_may_come_one_at_a_time_but_must_come() {
    let (mut client, served) = stream();
    let mut framed = Vec::new();
    push_framed(&mut framed, &ask("now.test").encode(7)).unwrap();
    for byte in framed {
        client.write_all(&[byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(shown(&read_message(&mut client).await.unwrap()), (7, 0));
    // A length without its message.
    client.write_all(&[0]).await.unwrap();
    let begun = Instant::now();
    served.await.unwrap().unwrap();
    assert!(begun.elapsed() <= IDLE);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_not_read_on_and_let_go() {
    let (client, server) = tokio::io::duplex(4096);
    let served = tokio::spawn(serve_stream(Box::new(server), Arc::new(ByName), session(Network::Tcp)));
    let (_reader, mut writer) = tokio::io::split(client);
    let mut framed = Vec::new();
    push_framed(&mut framed, &ask("big.test").encode(7)).unwrap();
    let mut written = 0;
    while writer.write_all(&framed).await.is_ok() {
        written += 1;
        assert!(written < 2000, "questions pile up");
    }
    assert_eq!(served.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
}

async fn packets() -> (UdpSocket, JoinHandle<io::Result<()>>) {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(server.local_addr().unwrap()).await.unwrap();
    let conn = Box::new(UdpConn::new(server));
    let served = tokio::spawn(serve_packets(conn, Arc::new(ByName), session(Network::Udp)));
    (client, served)
}

async fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2000];
    let length = timeout(Duration::from_secs(5), client.recv(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(length);
    buffer
}

#[tokio::test]
async fn many_questions_of_one_socket_are_answered() {
    // D5: the first answer must not be the last.
    let (client, served) = packets().await;
    client.send(&ask("later.test").encode(100)).await.unwrap();
    for id in 0..10 {
        client.send(&ask("now.test").encode(id)).await.unwrap();
    }
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(shown(&receive(&client).await).0);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    assert_eq!(shown(&receive(&client).await), (100, 0));
    served.abort();
}

#[tokio::test]
async fn datagrams_are_cut_refused_or_passed_over() {
    let (client, served) = packets().await;
    client.send(&ask("big.test").encode(1)).await.unwrap();
    let cut = receive(&client).await;
    assert!(cut.len() <= 512 && wire::u16_at(&cut, 2).unwrap() & wire::flag::TC != 0);
    for junk in [&b""[..], b"junk", &[0x80; 12]] {
        client.send(junk).await.unwrap();
    }
    client.send(&ask("drop.test").encode(2)).await.unwrap();
    client.send(&ask("fail.test").encode(3)).await.unwrap();
    assert_eq!(shown(&receive(&client).await), (3, 2));
    served.abort();
}
