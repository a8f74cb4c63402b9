use culvert_config::options::transport::{HttpUpgradeTransport, TransportKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::testing::{Pair, carries, client, half_closes, holds_back, resets, server};
use crate::testing::{World, session, write_in_pieces};

fn options(host: &str) -> TransportKind {
    TransportKind::HttpUpgrade(Box::new(HttpUpgradeTransport {
        path: "/up".into(),
        host: host.into(),
        ..HttpUpgradeTransport::default()
    }))
}

#[tokio::test]
async fn streams_are_carried() {
    carries(Pair::new(|| options(""))).await;
    carries(Pair::new(|| options("a.example"))).await;
}

#[tokio::test]
async fn ends_pass_one_way_at_a_time() {
    half_closes(Pair::new(|| options(""))).await;
}

#[tokio::test]
async fn breaks_pass() {
    resets(Pair::new(|| options(""))).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_the_writer_back() {
    holds_back(Pair::new(|| options(""))).await;
}

/// As sing-box 1.14.4 answers, status by status.
#[tokio::test]
async fn requests_are_answered_as_sing_box_answers_them() {
    let world = World::new();
    let (server, _caught) = server(options("a.example"));
    let request = "GET /up HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for (from, to, status) in [
        ("", "", "101"),
        ("/up", "/up?q", "101"),
        ("/up", "/%75p", "101"),
        ("/up", "/up2", "404"),
        ("a.example", "b.example", "400"),
        ("GET", "POST", "404"),
        ("Connection: U", "Connection: keep-alive, U", "404"),
        ("websocket", "h2c", "404"),
        ("\r\n\r\n", "\r\nSec-WebSocket-Key: x\r\n\r\n", "404"),
    ] {
        let (mut conn, _task) = world.serve(&server);
        conn.write_all(request.replacen(from, to, 1).as_bytes()).await.unwrap();
        let mut line = [0; 12];
        conn.read_exact(&mut line).await.unwrap();
        assert_eq!(&line[9..], status.as_bytes(), "{from:?} as {to:?}");
    }
}

#[tokio::test]
async fn what_comes_with_the_request_is_not_lost() {
    let world = World::new();
    let (server, mut caught) = server(options(""));
    for cuts in [&[usize::MAX][..], &[1], &[11, 40]] {
        let (mut conn, _task) = world.serve(&server);
        let bytes = b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
        write_in_pieces(&mut conn, bytes, cuts).await.unwrap();
        let mut inside = caught.recv().await.unwrap().conn;
        let mut hello = [0; 5];
        inside.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
    }
}

#[tokio::test]
async fn a_refusal_says_its_status() {
    let world = World::new();
    let (server, _caught) = server(options("a.example"));
    let error = client(&world, options("b.example"), &server).connect(&session("a:1")).await.err().unwrap();
    assert_eq!(error.to_string(), "server refused: HTTP upgrade answered with status 400");
}
