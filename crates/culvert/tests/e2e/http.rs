//! The HTTP proxy's finer points, most of them after a report of what went wrong in another program.

use crate::proxy::{Proxy, STEP, read_to_end};
use crate::{culvert, run};
use culvert_testkit::client::{base64, read_head};
use culvert_testkit::http::{HttpOrigin, header};
use culvert_testkit::ports::Port;
use culvert_testkit::upstream::{Step, Upstream};
use culvert_testkit::{Error, Result, ensure, pattern};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// `CONNECT` takes an IPv6 address in brackets only, and needs a port to be a number.
#[test]
fn connect_target_is_an_authority() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "http").await?);
        let port = origin.port().number();
        let head = request(&proxy, &format!("CONNECT [::1]:{port} HTTP/1.1\r\n\r\n")).await?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "bracketed: {head}");
        let head = request(&proxy, &format!("CONNECT localhost:{port} HTTP/1.0\r\n\r\n")).await?;
        ensure!(head.starts_with("HTTP/1.") && head.contains(" 200 "), "HTTP/1.0: {head}");
        for target in
            [format!("::1:{port}"), "localhost:http".into(), "localhost:99999".into(), "[::1".into()]
        {
            let mut stream = proxy.send(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await?;
            let answer = String::from_utf8_lossy(&read_to_end(&mut stream).await?).into_owned();
            ensure!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{target}: {answer}");
        }
        Ok(())
    });
}

/// The scheme's case is free, the alphabet is the standard one, and what is wrong is wrong.
#[test]
fn basic_credentials_are_read_as_the_rfc_says() {
    run(async {
        let program = culvert();
        let origin = HttpOrigin::start().await?;
        let users =
            json!([{ "username": "u", "password": "\u{ff}\u{fb}?>:x" }, { "username": "e", "password": "" }]);
        let inbound = json!({ "type": "http", "users": users });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let right = base64("u:\u{ff}\u{fb}?>:x".as_bytes());
        for (value, status) in [
            (format!("Basic {right}"), 200),
            (format!("bAsIc {right}"), 200),
            (format!("BASIC {}", base64(b"e:")), 200),
            (format!("Basic {}", base64(b"u:wrong")), 407),
            (format!("Basic {}", base64(b"u")), 407),
            (format!("Bearer {right}"), 407),
            ("Basic".into(), 407),
            ("Basic !!!!".into(), 407),
        ] {
            let url = origin.url("/hello");
            let head = request(
                &proxy,
                &format!("GET {url} HTTP/1.1\r\nHost: h\r\nproxy-authorization: {value}\r\n\r\n"),
            )
            .await?;
            ensure!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{value}: {head}");
        }
        Ok(())
    });
}

/// A refused client may try again on the same connection, as browsers do.
#[test]
fn refused_client_may_try_again() {
    run(async {
        let program = culvert();
        let origin = HttpOrigin::start().await?;
        let inbound = json!({ "type": "mixed", "users": [{ "username": "a", "password": "b" }] });
        let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
        let ask = |login: &str| {
            let url = origin.url("/hello");
            format!("GET {url} HTTP/1.1\r\nHost: h\r\nProxy-Connection: Keep-Alive\r\n{login}\r\n")
        };
        let mut stream = proxy.send(ask("").as_bytes()).await?;
        let head = head(&mut stream).await?;
        ensure!(head.starts_with("HTTP/1.1 407 "), "{head}");
        ensure!(
            header(&head, "proxy-authenticate").is_some_and(|value| value.starts_with("Basic ")),
            "{head}"
        );
        let login = format!("Proxy-Authorization: Basic {}\r\n", base64(b"a:b"));
        stream.write_all(ask(&login).as_bytes()).await?;
        let answer = response(&mut stream).await?;
        ensure!(answer.body == b"hello", "{answer:?}");
        Ok(())
    });
}

/// What concerns only the hop between client and proxy stays there; all else arrives as it was written.
#[test]
fn request_arrives_as_it_was_written() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "http").await?);
        let url = origin.url("/head");
        let head = format!(
            "GET {url} HTTP/1.1\r\nHost: example.test\r\nX-CaSe: Kept\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Hop: secret\r\n\
             Connection: close, X-Hop\r\nProxy-Connection: close\r\nProxy-Authorization: Basic eDp5\r\nTE: trailers\r\n\r\n"
        );
        let mut stream = proxy.send(head.as_bytes()).await?;
        let seen = String::from_utf8_lossy(&response(&mut stream).await?.body).into_owned();
        ensure!(seen.starts_with("GET /head HTTP/1.1\r\n"), "{seen}");
        for kept in
            ["\r\nHost: example.test\r\n", "\r\nX-CaSe: Kept\r\n", "\r\nX-Twice: 1\r\n", "\r\nX-Twice: 2\r\n"]
        {
            ensure!(seen.contains(kept), "{kept:?} is missing in {seen}");
        }
        for gone in ["X-Hop", "Proxy-Connection", "Proxy-Authorization", "TE", "User-Agent"] {
            ensure!(header(&seen, gone).is_none(), "{gone} is in {seen}");
        }
        Ok(())
    });
}

/// A binary body is not touched, in HTTP/1.0 and 1.1, with the connection kept alive.
#[test]
fn binary_posts_pass_unchanged() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "mixed").await?);
        let url = origin.url("/echo");
        let mut body = pattern::bytes(5, 70_000);
        body[..300].fill(0);
        for version in ["1.0", "1.1"] {
            let mut stream = proxy.send(b"").await?;
            let rounds = if version == "1.1" { 3 } else { 1 };
            for round in 0..rounds {
                let head = format!(
                    "POST {url} HTTP/{version}\r\nHost: h\r\nContent-Type: application/timestamp-query\r\n\
                     Content-Length: {}\r\nProxy-Connection: keep-alive\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body).await?;
                let answer = response(&mut stream).await?;
                ensure!(
                    answer.body == body,
                    "HTTP/{version} round {round}: {} {}",
                    answer.head,
                    answer.body.len()
                );
            }
        }
        Ok(())
    });
}

/// Interim responses reach the client, and the final one after them.
#[test]
fn interim_responses_pass() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "mixed").await?);
        let url = origin.url("/early");
        let mut stream = proxy.send(format!("GET {url} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await?;
        let first = head(&mut stream).await?;
        ensure!(first.starts_with("HTTP/1.1 103 ") && header(&first, "link").is_some(), "{first}");
        let answer = response(&mut stream).await?;
        ensure!(answer.head.starts_with("HTTP/1.1 200 ") && answer.body == b"after the hints", "{answer:?}");

        // The client waits for its 100 before it sends the body, so a proxy that swallows it stands still.
        for path in ["/echo", "/continue-late"] {
            let url = origin.url(path);
            let head_text = format!(
                "POST {url} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
            );
            let mut stream = proxy.send(head_text.as_bytes()).await?;
            let first = head(&mut stream).await?;
            ensure!(first.starts_with("HTTP/1.1 100 "), "{path}: {first}");
            stream.write_all(b"body").await?;
            let answer = response(&mut stream).await?;
            ensure!(answer.body == b"body", "{path}: {answer:?}");
        }
        Ok(())
    });
}

/// A late last chunk with trailers ends the response, and the next request on the connection works.
#[test]
fn late_chunks_end_the_response() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "mixed").await?);
        let mut stream = proxy.send(b"").await?;
        for path in ["/chunked-late", "/chunked/100000", "/hello"] {
            let url = origin.url(path);
            let ask = format!("GET {url} HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n");
            stream.write_all(ask.as_bytes()).await?;
            let answer = response(&mut stream).await?;
            let expected = match path {
                "/chunked-late" => pattern::bytes(0, 5000),
                "/hello" => b"hello".to_vec(),
                _ => pattern::bytes(0, 100_000),
            };
            ensure!(answer.body == expected, "{path}: {} bytes after {}", answer.body.len(), answer.head);
        }
        Ok(())
    });
}

/// One client connection may ask for several hosts, one after the other.
#[test]
fn one_connection_serves_several_hosts() {
    run(async {
        let program = culvert();
        let (first, second) = (HttpOrigin::start().await?, HttpOrigin::start().await?);
        let proxy = Proxy::plain(&program, "mixed").await?;
        let mut stream = proxy.send(b"").await?;
        for round in 0..5 {
            for (number, origin) in [&first, &second].into_iter().enumerate() {
                let authority = match round % 3 {
                    0 => origin.port().v4().to_string(),
                    1 => origin.port().v6().to_string(),
                    _ => format!("localhost:{}", origin.port().number()),
                };
                let ask = format!(
                    "GET http://{authority}/head HTTP/1.1\r\nHost: {authority}\r\nX-Origin: {number}\r\n\
                     Proxy-Connection: keep-alive\r\n\r\n"
                );
                stream.write_all(ask.as_bytes()).await?;
                let answer = response(&mut stream).await?;
                let seen = String::from_utf8_lossy(&answer.body).into_owned();
                ensure!(seen.contains(&format!("X-Origin: {number}\r\n")), "round {round}: {answer:?}");
            }
        }
        ensure!(first.connections() > 0 && second.connections() > 0, "one origin saw nothing");
        Ok(())
    });
}

/// Pipelined requests are answered in order.
#[test]
fn pipelined_requests_are_answered_in_order() {
    run(async {
        let program = culvert();
        let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "http").await?);
        let ask = |path: &str| {
            let url = origin.url(path);
            format!("GET {url} HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n")
        };
        let mut stream = proxy
            .send([ask("/hello"), ask("/bytes/3000"), ask("/nothing"), ask("/hello")].concat().as_bytes())
            .await?;
        ensure!(response(&mut stream).await?.body == b"hello", "first");
        ensure!(response(&mut stream).await?.body == pattern::bytes(0, 3000), "second");
        ensure!(response(&mut stream).await?.head.contains(" 204 "), "third");
        ensure!(response(&mut stream).await?.body == b"hello", "fourth");
        Ok(())
    });
}

/// A request that the proxy cannot serve is answered with the fitting status.
#[test]
fn impossible_requests_get_a_status() {
    run(async {
        let program = culvert();
        let (nobody, proxy) = (Port::reserve()?, Proxy::plain(&program, "http").await?);
        let head = request(&proxy, "GET /only/a/path HTTP/1.1\r\nHost: h\r\n\r\n").await?;
        ensure!(head.starts_with("HTTP/1.1 400 "), "origin form: {head}");
        let head =
            request(&proxy, &format!("GET http://{}/ HTTP/1.1\r\nHost: h\r\n\r\n", nobody.v4())).await?;
        ensure!(head.starts_with("HTTP/1.1 502 "), "nobody listens: {head}");
        Ok(())
    });
}

/// An upgraded connection is a tunnel from then on, with what came along with the heads.
#[test]
fn upgraded_connection_is_a_tunnel() {
    run(async {
        let program = culvert();
        let upstream = Upstream::start([
            Step::ReadHead,
            Step::Write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhi".to_vec(),
            ),
            Step::Read(4),
            Step::Write(b"pong".to_vec()),
        ])
        .await?;
        let proxy = Proxy::plain(&program, "mixed").await?;
        let ask = format!(
            "GET http://{}/ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
            upstream.address()
        );
        let mut stream = proxy.send(ask.as_bytes()).await?;
        let head = head(&mut stream).await?;
        ensure!(head.starts_with("HTTP/1.1 101 "), "{head}");
        stream.write_all(b"ping").await?;
        let rest = read_to_end(&mut stream).await?;
        ensure!(rest == b"hipong", "{rest:?}");
        Ok(())
    });
}

/// An HTTP upstream gets the credentials byte for byte, and only status 200 opens a tunnel.
#[test]
fn http_upstream_is_asked_as_the_rfc_says() {
    run(async {
        let program = culvert();
        for (status, opens) in
            [("200 OK", true), ("201 Created", false), ("407 No", false), ("503 No", false)]
        {
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            let steps = [
                Step::ReadHead,
                Step::Write(answer.into_bytes()),
                Step::Read(4),
                Step::Write(b"pong".to_vec()),
            ];
            let upstream = Upstream::start(steps).await?;
            let outbound = json!({
                "type": "http", "server": "127.0.0.1", "server_port": upstream.address().port(),
                "username": "al?ce>~", "password": "\u{fc}~~?"
            });
            let proxy = Proxy::start(&program, json!({ "type": "http" }), outbound).await?;
            let mut stream = proxy.send(b"CONNECT example.test:443 HTTP/1.1\r\n\r\n").await?;
            if opens {
                let head = head(&mut stream).await?;
                ensure!(head.contains(" 200 "), "{status}: {head}");
                stream.write_all(b"ping").await?;
                ensure!(read_to_end(&mut stream).await? == b"pong", "{status}: no tunnel");
            } else {
                // The answer may have been given before the upstream was asked.
                drop(stream.write_all(b"ping").await);
                let answer = read_to_end(&mut stream).await?;
                ensure!(!answer.ends_with(b"pong"), "{status} opened a tunnel");
            }
            let asked = String::from_utf8_lossy(&upstream.received().await?).into_owned();
            ensure!(asked.starts_with("CONNECT example.test:443 HTTP/1.1\r\n"), "{asked}");
            ensure!(header(&asked, "host") == Some("example.test:443"), "{asked}");
            let expected = format!("Basic {}", base64("al?ce>~:\u{fc}~~?".as_bytes()));
            ensure!(header(&asked, "proxy-authorization") == Some(&expected), "{asked}");
        }
        Ok(())
    });
}

#[derive(Debug)]
struct Response {
    head: String,
    body: Vec<u8>,
}

/// Sends a request on a connection of its own and returns the head of the answer.
async fn request(proxy: &Proxy, text: &str) -> Result<String> {
    let mut stream = proxy.send(text.as_bytes()).await?;
    head(&mut stream).await
}

async fn head(stream: &mut TcpStream) -> Result<String> {
    Ok(tokio::time::timeout(STEP, read_head(stream)).await.map_err(|_| Error::from("no answer"))??)
}

/// Reads a whole response, with its body in whatever framing.
async fn response(stream: &mut TcpStream) -> Result<Response> {
    let head = head(stream).await?;
    let reading = async {
        let mut body = Vec::new();
        if header(&head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            loop {
                let size = line(stream).await?;
                let size = u64::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)?;
                if size == 0 {
                    while !line(stream).await?.is_empty() {}
                    break;
                }
                stream.take(size).read_to_end(&mut body).await?;
                line(stream).await?;
            }
        } else if let Some(length) = header(&head, "content-length") {
            stream.take(length.parse()?).read_to_end(&mut body).await?;
        } else if !head.contains(" 204 ") {
            stream.read_to_end(&mut body).await?;
        }
        Ok::<_, Error>(body)
    };
    let body =
        tokio::time::timeout(STEP, reading).await.map_err(|_| format!("the body does not end: {head}"))??;
    Ok(Response { head, body })
}

async fn line(stream: &mut TcpStream) -> Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
