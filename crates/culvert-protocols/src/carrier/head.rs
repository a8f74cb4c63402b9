//! Heads of HTTP/1 as transports exchange them.
//!
//! A server answers what is not for it as a web server without pages does: 404 or what else applies, the connection kept
//! where HTTP keeps it. The bytes are those of Go's server, which sing-box has. The whole of it has the time of a handshake.
//!
//! Sources: RFC 9110 and 9112; the answers of sing-box 1.14.4, by captures.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use culvert_config::value::Headers;
use culvert_core::conn::{finish, read_chain};
use culvert_core::handshake::read_message;
use culvert_core::{BoxStream, ServeError, StreamConn};
use culvert_wire::{BufChain, DecodeError, Reader, Room};

use super::{date, path};
use crate::BuildError;
use crate::handshake::{EndOfHead, send};

/// Longest head, and most bytes read while waiting for its end.
pub(super) const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// The longest body of a refused request that is read so that another request can follow.
const MAX_SKIPPED: u64 = 256 << 10;

const MALFORMED: &str = "HTTP request";
const NO_HOST: &str = "HTTP request: no host";
const OTHER_VERSION: &str = "version of HTTP";

/// What a client of HTTP/2 sends first (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether what comes is HTTP/2. Nothing is consumed.
pub(super) async fn is_http2(conn: &mut BoxStream, early: &mut BufChain) -> Result<bool, ServeError> {
    read_message(conn, early, PREFACE.len(), |r| {
        let seen = r.rest().len().min(PREFACE.len());
        match r.rest()[..seen] == PREFACE[..seen] {
            false => Ok(false),
            true if seen == PREFACE.len() => Ok(true),
            true => Err(DecodeError::Incomplete),
        }
    })
    .await
}

/// A request's head.
pub(super) struct Request {
    pub(super) method: String,
    /// What is asked for, as it was written.
    pub(super) target: String,
    /// Its path, decoded.
    pub(super) path: Vec<u8>,
    /// Whom the client believes to speak to; empty in HTTP/1.0 without one.
    pub(super) host: String,
    /// The digit behind the dot of the version.
    pub(super) minor: u8,
    headers: Fields,
}

/// The lines of a head.
struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    fn of(headers: &[httparse::Header<'_>]) -> Self {
        Self(headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect())
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let named = self.0.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim_ascii())
    }

    fn first(&self, name: &str) -> &[u8] {
        self.all(name).next().unwrap_or_default()
    }

    fn lists(&self, name: &str, item: &str) -> bool {
        let mut items = self.all(name).flat_map(|value| value.split(|byte| *byte == b','));
        items.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(item.as_bytes()))
    }
}

impl Request {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let len = match request.parse(r.rest()) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Err(DecodeError::Incomplete),
            Err(httparse::Error::Version) => return Err(DecodeError::Invalid(OTHER_VERSION)),
            Err(_) => return Err(DecodeError::Invalid(MALFORMED)),
        };
        r.take(len)?;
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(DecodeError::Invalid(MALFORMED));
        };
        let fields = Fields::of(request.headers);
        if fields.all("content-length").count() > 1 || fields.all("host").count() > 1 {
            return Err(DecodeError::Invalid(MALFORMED));
        }
        if minor == 1 && fields.all("host").next().is_none() {
            return Err(DecodeError::Invalid(NO_HOST));
        }
        let host = match target.split_once("://") {
            Some((_, rest)) => rest.split(['/', '?']).next().unwrap_or_default().as_bytes(),
            None => fields.first("host"),
        };
        // The target of CONNECT is a host, not a path.
        let path = if method == "CONNECT" { Some(Vec::new()) } else { path::of_target(target) };
        Ok(Self {
            method: method.to_owned(),
            target: target.to_owned(),
            path: path.ok_or(DecodeError::Invalid(MALFORMED))?,
            host: String::from_utf8_lossy(host).into_owned(),
            minor,
            headers: fields,
        })
    }

    /// The first value of a header; empty if there is none.
    pub(super) fn header(&self, name: &str) -> &[u8] {
        self.headers.first(name)
    }

    /// Whether a header has this value, in letters of any size.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.header(name).eq_ignore_ascii_case(value.as_bytes())
    }

    /// Whether a header that is a list has this item.
    pub(super) fn lists(&self, name: &str, item: &str) -> bool {
        self.headers.lists(name, item)
    }

    /// Whose request it is, where the one seen may be a proxy's.
    pub(super) fn source(&self, seen: SocketAddr) -> SocketAddr {
        forwarded(self.header("x-forwarded-for"), seen)
    }

    /// Length of a body that is there to be skipped; `None` if no other request can follow this one.
    fn skippable(&self) -> Option<u64> {
        let closes = self.minor == 0 || self.lists("connection", "close") || self.method == "CONNECT";
        if closes || self.headers.all("transfer-encoding").next().is_some() {
            return None;
        }
        let length = self.header("content-length");
        if length.is_empty() {
            return Some(0);
        }
        let digits = length.len() <= 9 && length.iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(length).ok().filter(|_| digits)?.parse().ok()?;
        (length <= MAX_SKIPPED).then_some(length)
    }
}

/// The client's address where `X-Forwarded-For` names one. sing-box believes it from anybody, since the proxies in front
/// of such a server are other people's.
pub(super) fn forwarded(header: &[u8], seen: SocketAddr) -> SocketAddr {
    let items = header.split(|byte| *byte == b',').filter_map(|item| std::str::from_utf8(item).ok());
    let mut addresses = items.filter_map(|item| item.trim().trim_matches(['[', ']']).parse::<IpAddr>().ok());
    addresses.next().map_or(seen, |ip| SocketAddr::new(ip.to_canonical(), seen.port()))
}

/// Why a request is refused, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// What is wrong, for the log.
    pub(super) what: &'static str,
    pub(super) status: &'static str,
    /// Further headers and a text, in the answers of who has begun to change protocols. The connection ends behind it.
    pub(super) told: Option<(&'static str, &'static str)>,
}

impl Refusal {
    /// Nothing is there.
    pub(super) const fn not_found(what: &'static str) -> Self {
        Self { what, status: "404 Not Found", told: None }
    }

    /// The request makes no sense.
    pub(super) const fn bad(what: &'static str) -> Self {
        Self { what, status: "400 Bad Request", told: None }
    }

    fn response(&self, request: &Request, kept: bool) -> String {
        let Self { status, told, .. } = self;
        if let Some((headers, text)) = told {
            return format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n{headers}Content-Length: {}\r\n\r\n{text}",
                text.len()
            );
        }
        let minor = request.minor;
        let length = if request.method == "HEAD" { "" } else { "Content-Length: 0\r\n" };
        let close = if kept || minor == 0 { "" } else { "Connection: close\r\n" };
        format!("HTTP/1.{minor} {status}\r\nDate: {}\r\n{length}{close}\r\n", date::now())
    }
}

/// Reads requests and refuses them until there is one that `judge` likes; what comes behind its head is in `early`.
pub(super) async fn accept<T>(
    conn: &mut BoxStream,
    early: &mut BufChain,
    judge: impl Fn(&Request) -> Result<T, Refusal>,
) -> Result<(Request, T), ServeError> {
    let mut refused = None;
    loop {
        let request = match read_request(conn, early).await {
            Ok(request) => request,
            Err(ServeError::Invalid(what)) => {
                send(conn, malformed(what).as_bytes()).await?;
                finish(conn).await;
                return Err(ServeError::Invalid(what));
            }
            Err(error) => return Err(refused.map_or(error, ServeError::Invalid)),
        };
        if request.method == "OPTIONS" && request.target == "*" {
            let date = date::now();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: {date}\r\n\r\n");
            send(conn, answer.as_bytes()).await?;
            continue;
        }
        let refusal = match judge(&request) {
            Ok(judged) => return Ok((request, judged)),
            Err(refusal) => refusal,
        };
        let skipped = request.skippable().filter(|_| refusal.told.is_none());
        send(conn, refusal.response(&request, skipped.is_some()).as_bytes()).await?;
        let Some(skipped) = skipped else {
            finish(conn).await;
            return Err(ServeError::Invalid(refusal.what));
        };
        skip(conn, early, skipped).await?;
        refused = Some(refusal.what);
    }
}

async fn read_request(conn: &mut BoxStream, early: &mut BufChain) -> Result<Request, ServeError> {
    let mut end = EndOfHead::default();
    let mut first = true;
    read_message(conn, early, MAX_HEAD, |r| {
        // Once at the beginning, so that what is no HTTP at all is told at once; then when it is all there.
        let tried = !std::mem::replace(&mut first, r.rest().is_empty());
        if end.is_in(r.rest()) || !tried { Request::decode(r) } else { Err(DecodeError::Incomplete) }
    })
    .await
}

/// What Go's server says before it ends the connection.
fn malformed(what: &str) -> String {
    let status = match what {
        NO_HOST => "400 Bad Request: missing required Host header",
        OTHER_VERSION => "505 HTTP Version Not Supported: unsupported protocol version",
        _ => "400 Bad Request",
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{status}"
    )
}

async fn skip(conn: &mut BoxStream, early: &mut BufChain, mut count: u64) -> Result<(), ServeError> {
    while count > 0 {
        if early.is_empty() {
            *early = read_chain(conn, Room::NONE).await?;
            if early.is_empty() {
                return Err(ServeError::Left);
            }
        }
        let here = usize::try_from(count).unwrap_or(usize::MAX).min(early.len());
        early.advance(here);
        count -= here as u64;
    }
    Ok(())
}

/// A response's head.
pub(super) struct Response {
    pub(super) status: u16,
    headers: Fields,
}

impl Response {
    /// Reads one head; the body stays.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let len = match response.parse(r.rest()) {
                Ok(httparse::Status::Complete(len)) => len,
                Ok(httparse::Status::Partial) => return Err(DecodeError::Incomplete),
                Err(_) => return Err(DecodeError::Invalid("HTTP response")),
            };
            r.take(len)?;
            let status = response.code.ok_or(DecodeError::Invalid("HTTP response"))?;
            // What a server says in between is not what it has to say.
            if status == 101 || status >= 200 {
                return Ok(Self { status, headers: Fields::of(response.headers) });
            }
        }
    }

    /// The first value of a header; empty if there is none.
    pub(super) fn header(&self, name: &str) -> &[u8] {
        self.headers.first(name)
    }

    /// Whether a header has this value, in letters of any size.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.header(name).eq_ignore_ascii_case(value.as_bytes())
    }

    /// Whether a header that is a list has this item.
    pub(super) fn lists(&self, name: &str, item: &str) -> bool {
        self.headers.lists(name, item)
    }
}

/// Reads a server's response; what comes behind its head is in `early`.
pub(super) async fn read_response<C: StreamConn + ?Sized>(
    conn: &mut C,
    early: &mut BufChain,
) -> Result<Response, ServeError> {
    let mut end = EndOfHead::default();
    read_message(conn, early, MAX_HEAD, |r| {
        if end.is_in(r.rest()) { Response::decode(r) } else { Err(DecodeError::Incomplete) }
    })
    .await
}

/// The headers of an option: names as Go writes them, sorted, and values that can stand in a head.
#[derive(Clone, Debug, Default)]
pub(super) struct Extra(Vec<(String, String)>);

impl Extra {
    pub(super) fn new(headers: &Headers) -> Result<Self, BuildError> {
        let mut lines = Vec::new();
        for (name, values) in &headers.0.0 {
            http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(name))?;
            for value in values {
                http::HeaderValue::from_str(value).map_err(|_| invalid(name))?;
                lines.push((canonical(name), value.clone()));
            }
        }
        lines.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Self(lines))
    }

    /// The first value of a header.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Takes a header out.
    pub(super) fn remove(&mut self, name: &str) -> Option<String> {
        let value = self.first(name).map(str::to_owned);
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        value
    }

    /// Puts a header in place of what has its name.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        let name = canonical(name);
        let at = self.0.partition_point(|(other, _)| *other < name);
        self.0.insert(at, (name, value.to_owned()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// One line each.
    pub(super) fn write(&self, head: &mut String) {
        for (name, value) in self.iter() {
            let _ = write!(head, "{name}: {value}\r\n");
        }
    }
}

fn invalid(name: &str) -> BuildError {
    BuildError::Invalid { option: "transport.headers", reason: format!("{name:?} cannot stand in a head") }
}

/// `x-a` as `X-A`.
fn canonical(name: &str) -> String {
    let mut at_start = true;
    let upper = |letter: char| {
        let shown = if at_start { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        at_start = letter == '-';
        shown
    };
    name.chars().map(upper).collect()
}

/// Fed with random bytes: a request that is read has a head that ends where reading ended.
pub(crate) fn fuzz_head(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(request) = Request::decode(&mut r) {
        assert!(bytes[..r.position()].ends_with(b"\n"));
        assert!(request.minor <= 1);
        let again = Request::decode(&mut Reader::new(&bytes[..r.position()])).map(|again| again.path);
        assert_eq!(again, Ok(request.path));
    }
    let mut r = Reader::new(bytes);
    if let Ok(response) = Response::decode(&mut r) {
        assert!(response.status == 101 || response.status >= 200);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_of_x_forwarded_for_is_the_source() {
        let seen: SocketAddr = "192.0.2.1:1000".parse().unwrap();
        for (header, source) in [
            ("", "192.0.2.1:1000"),
            ("unknown", "192.0.2.1:1000"),
            ("198.51.100.7, 10.0.0.1", "198.51.100.7:1000"),
            ("x, [2001:db8::1]", "[2001:db8::1]:1000"),
            ("::ffff:198.51.100.7", "198.51.100.7:1000"),
        ] {
            assert_eq!(forwarded(header.as_bytes(), seen).to_string(), source, "{header:?}");
        }
    }

    #[test]
    fn every_cut_of_a_head_wants_more() {
        let head = b"GET /a?b HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n\r\n";
        for cut in 0..head.len() {
            let request = Request::decode(&mut Reader::new(&head[..cut]));
            assert!(matches!(request, Err(DecodeError::Incomplete)), "{cut}");
        }
        let request = Request::decode(&mut Reader::new(head)).unwrap();
        assert_eq!((&*request.path, request.header("x-a")), (&b"/a"[..], &b"1"[..]));
    }

    #[test]
    fn interim_responses_are_passed_over() {
        let mut r =
            Reader::new(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nC: d\r\n\r\nrest");
        let response = Response::decode(&mut r).unwrap();
        assert_eq!((response.status, response.header("c"), r.rest()), (200, &b"d"[..], &b"rest"[..]));
    }

    #[test]
    fn option_headers_are_written_sorted_and_checked() {
        let headers = |name: &str, values: &[&str]| {
            let list = values.iter().map(|value| (*value).to_owned()).collect();
            let mut headers = Headers::default();
            headers.0.0.push((name.to_owned(), list));
            headers.0.0.push(("A-b".to_owned(), ["x".to_owned()].into_iter().collect()));
            headers
        };
        let mut extra = Extra::new(&headers("x-b", &["1", "2"])).unwrap();
        extra.set("user-agent", "u");
        let mut text = String::new();
        extra.write(&mut text);
        assert_eq!(text, "A-B: x\r\nUser-Agent: u\r\nX-B: 1\r\nX-B: 2\r\n");
        assert!(Extra::new(&headers("x", &["a\r\nb"])).is_err());
        assert!(Extra::new(&headers("x y", &["a"])).is_err());
    }

    #[test]
    fn random_bytes_are_no_trouble() {
        for seed in 0..2000_u32 {
            let bytes: Vec<u8> =
                (0..seed % 90).map(|at| (seed.wrapping_mul(at + 7) >> (at % 24)) as u8).collect();
            fuzz_head(&bytes);
        }
    }
}
