use culvert_config::options::transport::{TransportKind, WsTransport};
use culvert_core::duplex::Duplex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::testing::{Pair, carries, half_closes, holds_back, pattern, resets, server};
use crate::testing::{World, write_in_pieces};

fn options(path: &str, early: u32, header: &str) -> TransportKind {
    TransportKind::Ws(Box::new(WsTransport {
        path: path.into(),
        max_early_data: early,
        early_data_header_name: header.into(),
        ..WsTransport::default()
    }))
}

/// Without early data, with it in a header, in the usual one, and in the path; a little and a lot.
fn all() -> Vec<Pair> {
    let kinds = [
        ("/ws", 0, ""),
        ("/ws", 2048, "X-Early"),
        ("/ws", 3, "Sec-WebSocket-Protocol"),
        ("/ws/", 2048, ""),
        ("/ws/", 2, ""),
        ("", 100, ""),
    ];
    kinds.map(|(path, early, header)| Pair::new(|| options(path, early, header))).into()
}

#[tokio::test]
async fn streams_are_carried() {
    for pair in all() {
        carries(pair).await;
    }
}

#[tokio::test]
async fn ends_pass_one_way_at_a_time() {
    for pair in all() {
        half_closes(pair).await;
    }
}

#[tokio::test]
async fn breaks_pass() {
    for pair in all() {
        resets(pair).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_the_writer_back() {
    holds_back(Pair::new(|| options("/ws", 0, ""))).await;
}

/// First writes around the limit, and more of them before the answer (SagerNet/sing-box#944).
#[tokio::test]
async fn early_data_of_any_length_arrives_once() {
    for header in ["", "X-Early"] {
        for len in [1, 2047, 2048, 2049, 100_000] {
            let mut pair = Pair::new(|| options("/ws/", 2048, header));
            let mut client = pair.connect().await.unwrap();
            let sent = pattern(len);
            let written = sent.clone();
            let writing = tokio::spawn(async move {
                client.write_all(&written).await?;
                client.write_all(b"more").await?;
                client.flush().await?;
                std::io::Result::Ok(client)
            });
            let mut server = pair.caught.recv().await.unwrap().conn;
            let mut got = vec![0; len + 4];
            server.read_exact(&mut got).await.unwrap();
            assert!(got[..len] == sent && got[len..] == *b"more");
            writing.await.unwrap().unwrap();
        }
    }
}

/// Where the server speaks first, nothing is written before the connection is needed.
#[tokio::test]
async fn a_client_that_reads_first_is_connected_without_early_data() {
    let mut pair = Pair::new(|| options("/ws/", 2048, ""));
    let mut client = pair.connect().await.unwrap();
    let reading = tokio::spawn(async move {
        let mut banner = [0; 6];
        client.read_exact(&mut banner).await.map(|_| banner)
    });
    let mut server = pair.caught.recv().await.unwrap().conn;
    server.write_all(b"banner").await.unwrap();
    server.flush().await.unwrap();
    assert_eq!(&reading.await.unwrap().unwrap(), b"banner");
}

#[tokio::test]
async fn a_connection_that_ends_without_a_close_frame_was_cut() {
    let mut pair = Pair::new(|| options("/ws", 0, ""));
    let (mut client, server) = pair.open().await;
    drop(server);
    let error = client.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

const UPGRADE: &str = "Host: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

async fn answer(conn: &mut Duplex) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(conn.read_u8().await.unwrap());
    }
    String::from_utf8(answer).unwrap()
}

/// As sing-box 1.14.4 answers, status by status.
#[tokio::test]
async fn requests_are_answered_as_sing_box_answers_them() {
    let world = World::new();
    let plain = || options("/ws", 0, "");
    let rows = [
        (plain(), "GET /ws HTTP/1.1", "", "101"),
        (plain(), "GET http://h/ws HTTP/1.1", "", "101"),
        (plain(), "GET /wsx HTTP/1.1", "", "404"),
        (plain(), "GET /ws?ed=2 HTTP/1.1", "", "400"),
        (plain(), "GET /%77s HTTP/1.1", "", "404"),
        (plain(), "POST /ws HTTP/1.1", "", "405"),
        (plain(), "GET /ws HTTP/1.0", "", "505"),
        (plain(), "PRI * HTTP/2.0", "", "505"),
        (plain(), "CONNECT a:1 HTTP/1.1", "", "404"),
        (plain(), "garbage", "", "400"),
        (options("/ws", 2048, "X-Early"), "GET /ws?a=b HTTP/1.1", "X-Early: AAE\r\n", "101"),
        (options("/ws", 0, "X-Early"), "GET /ws HTTP/1.1", "X-Early: AAE\r\n", "101"),
        (options("/ws", 2048, "X-Early"), "GET /ws HTTP/1.1", "X-Early: AA=E\r\n", "400"),
        (options("/ws/", 2048, ""), "GET /ws/AAE HTTP/1.1", "", "101"),
        (options("/ws/", 2048, ""), "GET /ws/AAE? HTTP/1.1", "", "400"),
        (options("/ws/", 2048, ""), "GET /ws HTTP/1.1", "", "404"),
    ];
    for (kind, line, more, status) in rows {
        let (server, _caught) = server(kind);
        let (mut conn, _task) = world.serve(&server);
        conn.write_all(format!("{line}\r\n{UPGRADE}{more}\r\n").as_bytes()).await.unwrap();
        let answer = answer(&mut conn).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{line} {more}: {answer}");
    }
    let (server, _caught) = server(plain());
    for (from, to, status) in [
        ("Upgrade: websocket", "Upgrade: h2c", "400"),
        ("keep-alive, Upgrade", "keep-alive", "400"),
        (": 13", ": 12", "426"),
        ("Sec-WebSocket-Version: 13\r\n", "", "400"),
        ("==", "", "400"),
        ("Host: x\r\n", "", "400"),
        ("Host: x", "Host:", "400"),
    ] {
        let (mut conn, _task) = world.serve(&server);
        let head = UPGRADE.replace(from, to);
        conn.write_all(format!("GET /ws HTTP/1.1\r\n{head}\r\n").as_bytes()).await.unwrap();
        let answer = answer(&mut conn).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{from:?} as {to:?}: {answer}");
    }
}

#[tokio::test]
async fn the_answer_to_a_stranger_is_that_of_a_web_server_without_pages() {
    let world = World::new();
    let (server, _caught) = server(options("/ws", 0, ""));
    let (mut conn, task) = world.serve(&server);
    for body in ["", "Content-Length: 3\r\n"] {
        conn.write_all(format!("POST / HTTP/1.1\r\nHost: x\r\n{body}\r\n").as_bytes()).await.unwrap();
        if !body.is_empty() {
            conn.write_all(b"abc").await.unwrap();
        }
        let answer = answer(&mut conn).await;
        let (status, rest) = answer.split_once("\r\nDate: ").unwrap();
        assert_eq!(status, "HTTP/1.1 404 Not Found");
        assert!(rest.ends_with(" GMT\r\nContent-Length: 0\r\n\r\n"), "{answer}");
    }
    conn.write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(answer(&mut conn).await.ends_with("GMT\r\nConnection: close\r\n\r\n"));
    conn.shutdown().await.unwrap();
    let error = task.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "invalid WebSocket request: path");
}

/// Early data, and frames that come with the request, in pieces of any length; a ping is answered, text is dropped.
#[tokio::test]
async fn what_comes_with_the_request_is_not_lost() {
    let world = World::new();
    let (server, mut caught) = server(options("/ws/", 2048, ""));
    for cuts in [&[usize::MAX][..], &[1], &[7, 30]] {
        let (mut conn, _task) = world.serve(&server);
        let mut bytes =
            format!("GET /ws/aGk HTTP/1.1\r\n{UPGRADE}X-Forwarded-For: 198.51.100.9\r\n\r\n").into_bytes();
        bytes.extend(
            b"\x81\x82\0\0\0\0no\x89\x81\x01\x02\x03\x04q\x02\x81\0\0\0\0 \x80\x85\x37\xfa\x21\x3d\x5f\x9f\x4d\x51\x58",
        );
        write_in_pieces(&mut conn, &bytes, cuts).await.unwrap();
        let mut inside = caught.recv().await.unwrap();
        assert_eq!(inside.session.source.to_string(), "198.51.100.9:5000");
        let mut got = [0; 8];
        inside.conn.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hi hello");
        let answer = answer(&mut conn).await;
        assert_eq!(
            answer,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        );
        let mut pong = [0; 3];
        conn.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"\x8a\x01p");
        conn.write_all(b"\x88\x82\0\0\0\0\x03\xe8").await.unwrap();
        assert_eq!(inside.conn.read(&mut got).await.unwrap(), 0);
        inside.conn.shutdown().await.unwrap();
        let mut close = Vec::new();
        conn.read_to_end(&mut close).await.unwrap();
        assert_eq!(close, b"\x88\x02\x03\xe8", "then the connection ends");
    }
}

/// sing-box answers a close frame at once and goes on sending.
#[tokio::test]
async fn data_behind_the_answer_to_our_end_still_counts() {
    let world = World::new();
    let (server, mut caught) = server(options("/ws", 0, ""));
    let (mut conn, _task) = world.serve(&server);
    conn.write_all(format!("GET /ws HTTP/1.1\r\n{UPGRADE}\r\n").as_bytes()).await.unwrap();
    let mut inside = caught.recv().await.unwrap().conn;
    answer(&mut conn).await;
    inside.shutdown().await.unwrap();
    let mut close = [0; 4];
    conn.read_exact(&mut close).await.unwrap();
    conn.write_all(b"\x88\x82\0\0\0\0\x03\xe8\x82\x84\0\0\0\0more").await.unwrap();
    let mut more = [0; 4];
    inside.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"more");
    conn.shutdown().await.unwrap();
    assert_eq!(inside.read(&mut more).await.unwrap(), 0);
}

#[tokio::test]
async fn a_refusal_says_its_status() {
    let world = World::new();
    let (server, _caught) = server(options("/other", 0, ""));
    let carrier = super::super::testing::client(&world, options("/ws", 0, ""), &server);
    let error = carrier.connect(&crate::testing::session("a:1")).await.err().unwrap();
    assert_eq!(error.to_string(), "server refused: WebSocket upgrade answered with status 404");
}
