//! Objects fetched over HTTP/1.1 or HTTPS, as a browser or a package client would: `GET /BYTES`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use crate::chain::Route;
use crate::identity::OwnTls;

/// Longest request head that the target reads.
const HEAD: usize = 4096;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// When things had happened, counted from the start of a fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// The way to the target was open.
    pub(crate) connected: Duration,
    /// The first bytes of the answer were there.
    pub(crate) first_byte: Duration,
    /// The whole object was there.
    pub(crate) total: Duration,
}

/// Fetches an object of `size` bytes on a new connection, over TLS where `tls` says how.
pub(crate) fn fetch(route: Route, tls: Option<&Arc<ClientConfig>>, size: usize) -> io::Result<Fetch> {
    let began = Instant::now();
    let stream = route.connect()?;
    let connected = began.elapsed();
    let timed = Timed { began, connected };
    match tls {
        None => timed.fetch(stream, route, size),
        Some(config) => {
            let name = OwnTls::server_name().map_err(io::Error::other)?;
            let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
            timed.fetch(StreamOwned::new(session, stream), route, size)
        }
    }
}

/// A fetch whose connection stands.
struct Timed {
    began: Instant,
    connected: Duration,
}

impl Timed {
    fn fetch(self, mut stream: impl Read + Write, route: Route, size: usize) -> io::Result<Fetch> {
        let Self { began, connected } = self;
        let request = format!("GET /{size} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", route.target);
        stream.write_all(request.as_bytes())?;
        let mut buffer = vec![0; 256 * 1024];
        let mut held = stream.read(&mut buffer)?;
        let first_byte = began.elapsed();
        let head = loop {
            if let Some(end) = end_of_head(&buffer[..held]) {
                break end;
            }
            let count = stream.read(&mut buffer[held..])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            held += count;
        };
        let mut body = held - head;
        while body < size {
            match stream.read(&mut buffer)? {
                0 => return Err(io::Error::other(format!("ended after {body} of {size} bytes"))),
                count => body += count,
            }
        }
        Ok(Fetch { connected, first_byte, total: began.elapsed() })
    }
}

/// Shakes hands over TLS; `start` is the beginning of the client's hello.
pub(crate) fn accept_tls<'a>(
    stream: &'a mut TcpStream,
    start: &'a [u8],
    config: &Arc<ServerConfig>,
) -> io::Result<StreamOwned<ServerConnection, Started<'a>>> {
    let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut session = StreamOwned::new(session, Started { start, stream });
    while session.conn.is_handshaking() {
        session.conn.complete_io(&mut session.sock)?;
    }
    Ok(session)
}

/// A connection whose first bytes have been read already.
pub(crate) struct Started<'a> {
    start: &'a [u8],
    stream: &'a mut TcpStream,
}

impl Read for Started<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.start.is_empty() { self.stream.read(buffer) } else { self.start.read(buffer) }
    }
}

impl Write for Started<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Answers one request whose first bytes are `start`, from `payload` as often as it takes, and lets the client close.
pub(crate) fn serve(stream: &mut (impl Read + Write), start: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut head = start.to_vec();
    let mut buffer = [0; HEAD];
    while end_of_head(&head).is_none() {
        let count = stream.read(&mut buffer)?;
        head.extend_from_slice(&buffer[..count]);
        if count == 0 || head.len() > HEAD {
            return Ok(());
        }
    }
    let Some(size) = requested(&head) else { return Ok(()) };
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
    let first = size.min(payload.len());
    answer.extend_from_slice(&payload[..first]);
    stream.write_all(&answer)?;
    let mut left = size - first;
    while left > 0 {
        let part = left.min(payload.len());
        stream.write_all(&payload[..part])?;
        left -= part;
    }
    stream.read(&mut buffer).map(|_| ())
}

/// How long the head is, its blank line included.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(END_OF_HEAD.len()).position(|four| four == END_OF_HEAD).map(|at| at + END_OF_HEAD.len())
}

/// The size in `GET /SIZE HTTP/1.1`.
fn requested(head: &[u8]) -> Option<usize> {
    let rest = head.strip_prefix(b"GET /")?;
    let word = rest.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::Entry;
    use crate::target::Target;

    #[test]
    fn objects_of_all_sizes_arrive_whole() {
        let target = Target::start(1).unwrap();
        let address = target.address();
        let route = Route {
            entry: Entry::Plain,
            entry_address: address,
            target: address,
            patience: Duration::from_secs(5),
        };
        for size in [0, 162, 1_500_000] {
            for tls in [None, Some(target.client_tls())] {
                let fetch = fetch(route, tls, size).unwrap();
                assert!(fetch.connected <= fetch.first_byte && fetch.first_byte <= fetch.total);
            }
        }
    }

    #[test]
    fn requests_are_read_strictly() {
        assert_eq!(requested(b"GET /162 HTTP/1.1\r\n"), Some(162));
        assert_eq!(requested(b"GET /x HTTP/1.1\r\n"), None);
        assert_eq!(requested(b"POST /162 HTTP/1.1\r\n"), None);
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\n\r\nrest"), Some(18));
    }
}
