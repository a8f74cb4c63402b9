use culvert_config::options::transport::{HttpTransport, TransportKind};
use culvert_config::value::Headers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::testing::{Pair, carries, client, half_closes, holds_back, resets, server};
use crate::testing::{World, session};

fn options(hosts: &[&str], method: &str) -> TransportKind {
    let mut headers = Headers::default();
    headers.0.0.push(("X-B".to_owned(), ["1".to_owned(), "2".to_owned()].into_iter().collect()));
    TransportKind::Http(Box::new(HttpTransport {
        host: hosts.iter().map(|host| (*host).to_owned()).collect(),
        path: "/h".into(),
        method: method.into(),
        headers,
        ..HttpTransport::default()
    }))
}

#[tokio::test]
async fn streams_are_carried() {
    carries(Pair::new(|| options(&[], ""))).await;
    carries(Pair::new(|| options(&["a.example", "b.example"], "POST"))).await;
}

#[tokio::test]
async fn ends_pass_one_way_at_a_time() {
    half_closes(Pair::new(|| options(&[], ""))).await;
}

#[tokio::test]
async fn breaks_pass() {
    resets(Pair::new(|| options(&[], ""))).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_the_writer_back() {
    holds_back(Pair::new(|| options(&[], ""))).await;
}

/// The head of the request, and the answer, as sing-box 1.14.4 has them.
#[tokio::test]
async fn the_head_leaves_with_the_first_data_and_is_answered() {
    let world = World::new();
    let (server, _caught) = server(options(&["a.example"], ""));
    let (mut conn, _task) = world.serve(&server);
    conn.write_all(b"PUT /hxyz HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1000];
    let len = conn.read(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer[..len].to_vec()).unwrap();
    let (start, rest) = answer.split_once("Date: ").unwrap();
    assert_eq!(start, "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nX-B: 1\r\nX-B: 2\r\n");
    assert!(rest.ends_with(" GMT\r\nTransfer-Encoding: chunked\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn requests_are_answered_as_sing_box_answers_them() {
    let world = World::new();
    let (server, _caught) = server(options(&["a.example"], "PUT"));
    for (request, status) in [
        ("PUT /h HTTP/1.1\r\nHost: a.example", "200"),
        ("PUT /hxyz?q HTTP/1.1\r\nHost: a.example", "200"),
        ("PUT /h HTTP/1.0\r\nHost: a.example", "200"),
        ("PUT /h HTTP/1.1\r\nHost: a.example:80", "400"),
        ("PUT /x HTTP/1.1\r\nHost: a.example", "404"),
        ("GET /h HTTP/1.1\r\nHost: a.example", "404"),
    ] {
        let (mut conn, _task) = world.serve(&server);
        conn.write_all(format!("{request}\r\n\r\n").as_bytes()).await.unwrap();
        let mut line = [0; 12];
        conn.read_exact(&mut line).await.unwrap();
        assert_eq!(&line[9..], status.as_bytes(), "{request}");
    }
}

#[tokio::test]
async fn a_refusal_is_an_error_of_the_stream() {
    let world = World::new();
    let (server, _caught) = server(options(&["a.example"], ""));
    let carrier = client(&world, options(&["b.example"], ""), &server);
    let mut conn = carrier.connect(&session("a:1")).await.unwrap();
    let error = conn.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.to_string(), "server answered with status 400");
}
