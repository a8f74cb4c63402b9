//! An HTTP/1 origin written by hand (RFC 9110, RFC 9112) with every framing a proxy must pass on.
//!
//! | path               | answer                                                                                |
//! |--------------------|---------------------------------------------------------------------------------------|
//! | `/hello`           | `hello`, with a length                                                                |
//! | `/bytes/N`         | N bytes of pattern 0, with a length                                                   |
//! | `/chunked/N`       | N bytes of pattern 0 in chunks of odd sizes, then a trailer                           |
//! | `/chunked-late`    | chunked, its last chunk a second late, then a trailer                                 |
//! | `/close/N`         | N bytes of pattern 0 that end with the connection                                     |
//! | `/early`           | 103 with a header, then 200                                                           |
//! | `/continue-late`   | 100 only half a second after the head, then what `/echo` answers                      |
//! | `/echo`            | the request's body                                                                    |
//! | `/head`            | the request's head as it arrived                                                      |
//! | `/redirect?URL`    | 302 to the URL                                                                        |
//! | `/nothing`         | 204                                                                                   |
//!
//! `Expect: 100-continue` is answered with 100 before the body is read. HEAD gets the head alone. Connections are kept
//! alive as the request says. Left out: pipelining limits, conditional and range requests.

use crate::client::read_head;
use crate::pattern;
use crate::ports::Port;
use crate::{Error, Result};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A running HTTP origin on `127.0.0.1` and `::1`; its tasks end when it is dropped.
#[derive(Debug)]
pub struct HttpOrigin {
    port: Port,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl HttpOrigin {
    /// Binds its sockets and serves.
    ///
    /// # Errors
    /// When a socket cannot be bound.
    pub async fn start() -> Result<Self> {
        let port = Port::reserve()?;
        let connections = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for address in [port.v4(), port.v6()] {
            let listener = TcpListener::bind(address).await?;
            let connections = Arc::clone(&connections);
            tasks.spawn(async move {
                let mut serving = JoinSet::new();
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        connections.fetch_add(1, Ordering::Relaxed);
                        serving.spawn(async move { drop(serve(stream).await) });
                    }
                    while serving.try_join_next().is_some() {}
                }
            });
        }
        Ok(Self { port, connections, _tasks: tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The URL of a path, by IPv4 address.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.port.v4())
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A request's head.
#[derive(Debug)]
struct Request {
    raw: String,
    method: String,
    path: String,
    http_1_1: bool,
}

impl Request {
    fn parse(raw: String) -> Option<Self> {
        let mut words = raw.lines().next()?.split(' ');
        let (method, path, version) = (words.next()?, words.next()?, words.next()?);
        let (method, path, http_1_1) = (method.to_owned(), path.to_owned(), version == "HTTP/1.1");
        Some(Self { raw, method, path, http_1_1 })
    }

    fn header(&self, name: &str) -> Option<&str> {
        header(&self.raw, name)
    }

    fn keeps_alive(&self) -> bool {
        let connection = self.header("connection").unwrap_or_default().to_ascii_lowercase();
        if self.http_1_1 { connection != "close" } else { connection == "keep-alive" }
    }
}

/// The first value of a header in a raw head.
#[must_use]
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

async fn serve(stream: TcpStream) -> Result {
    let mut stream = BufReader::new(stream);
    loop {
        let request = match read_head(&mut stream).await {
            Ok(head) => Request::parse(head).ok_or("not an HTTP request")?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !answer(&request, &mut stream).await? {
            stream.shutdown().await?;
            return Ok(());
        }
    }
}

/// Answers one request; false when the connection is to be closed.
async fn answer(request: &Request, stream: &mut BufReader<TcpStream>) -> Result<bool> {
    let expects = request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
    if request.path == "/continue-late" {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    if expects || request.path == "/continue-late" {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let body = read_body(request, stream).await?;
    let size =
        || request.path.rsplit('/').next().and_then(|text| text.parse().ok()).ok_or("no size in the path");
    match request.path.split(['/', '?']).nth(1).unwrap_or_default() {
        "hello" => whole(request, stream, "200 OK", "", b"hello").await,
        "bytes" => whole(request, stream, "200 OK", "", &pattern::bytes(0, size()?)).await,
        "echo" | "continue-late" => whole(request, stream, "200 OK", "", &body).await,
        "head" => whole(request, stream, "200 OK", "", request.raw.as_bytes()).await,
        "early" => {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n").await?;
            whole(request, stream, "200 OK", "", b"after the hints").await
        }
        "redirect" => {
            let url = request.path.split_once('?').map_or("/", |(_, url)| url);
            whole(request, stream, "302 Found", &format!("Location: {url}\r\n"), b"").await
        }
        "nothing" => {
            stream
                .write_all(format!("HTTP/1.1 204 No Content\r\n{}\r\n", connection(request)).as_bytes())
                .await?;
            Ok(request.keeps_alive())
        }
        "chunked" => chunked(request, stream, &pattern::bytes(0, size()?), Duration::ZERO).await,
        "chunked-late" => chunked(request, stream, &pattern::bytes(0, 5000), Duration::from_secs(1)).await,
        "close" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await?;
            stream.write_all(&pattern::bytes(0, size()?)).await?;
            Ok(false)
        }
        _ => whole(request, stream, "404 Not Found", "", b"no such path").await,
    }
}

fn connection(request: &Request) -> &'static str {
    match (request.keeps_alive(), request.http_1_1) {
        (true, true) => "",
        (true, false) => "Connection: keep-alive\r\n",
        (false, _) => "Connection: close\r\n",
    }
}

async fn whole(
    request: &Request,
    stream: &mut BufReader<TcpStream>,
    status: &str,
    headers: &str,
    body: &[u8],
) -> Result<bool> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}{}\r\n",
        body.len(),
        connection(request)
    );
    stream.write_all(head.as_bytes()).await?;
    if request.method != "HEAD" {
        stream.write_all(body).await?;
    }
    Ok(request.keeps_alive())
}

/// Sends the body in chunks of 1, 2, 4, ... bytes; the last one, and the trailer, come late.
async fn chunked(
    request: &Request,
    stream: &mut BufReader<TcpStream>,
    body: &[u8],
    late: Duration,
) -> Result<bool> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n{}\r\n",
        connection(request)
    );
    stream.write_all(head.as_bytes()).await?;
    let (mut rest, mut size) = (body, 1);
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(size));
        let mut bytes = format!("{:x};note=\"x\"\r\n", chunk.len()).into_bytes();
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
        stream.write_all(&bytes).await?;
        (rest, size) = (after, size * 2);
    }
    tokio::time::sleep(late).await;
    stream.write_all(b"0\r\nX-End: yes\r\n\r\n").await?;
    Ok(request.keeps_alive())
}

async fn read_body(request: &Request, stream: &mut BufReader<TcpStream>) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    if request.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            let size = line(stream).await?;
            let size = u64::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)?;
            if size == 0 {
                while !line(stream).await?.is_empty() {}
                return Ok(body);
            }
            stream.take(size).read_to_end(&mut body).await?;
            line(stream).await?;
        }
    }
    if let Some(length) = request.header("content-length") {
        let length = length.parse()?;
        stream.take(length).read_to_end(&mut body).await?;
        if (body.len() as u64) < length {
            return Err(Error::from("the request's body was cut"));
        }
    }
    Ok(body)
}

async fn line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| "line without an end".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn talk(request: &str) -> String {
        let origin = HttpOrigin::start().await.unwrap();
        let mut stream = TcpStream::connect(origin.port().v4()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn connection_is_kept_until_the_client_says_close() {
        let answer =
            talk("GET /hello HTTP/1.1\r\n\r\nGET /hello HTTP/1.1\r\nConnection: close\r\n\r\n").await;
        assert_eq!(answer.matches("hello").count(), 2);
        assert!(answer.ends_with("Content-Length: 5\r\nConnection: close\r\n\r\nhello"));
    }

    #[tokio::test]
    async fn http_1_0_is_closed_unless_it_asks() {
        let answer = talk("GET /hello HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains("Connection: close"));
        let answer =
            talk("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /nothing HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains("Connection: keep-alive") && answer.contains("204"));
    }

    #[tokio::test]
    async fn chunked_upload_comes_back() {
        let answer = talk(
            "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
             3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nT: t\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"));
        assert!(answer.ends_with("\r\n\r\nabcdefg"));
    }

    #[tokio::test]
    async fn chunked_answer_ends_with_a_trailer() {
        let origin = HttpOrigin::start().await.unwrap();
        let mut stream = TcpStream::connect(origin.port().v6()).await.unwrap();
        stream.write_all(b"GET /chunked/3 HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"\r\n0\r\nX-End: yes\r\n\r\n"));
        assert_eq!(origin.connections(), 1);
    }
}
