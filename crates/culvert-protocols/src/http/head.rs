//! Heads of requests and responses: read, checked, and rewritten for the next hop.
//!
//! ```text
//! CONNECT host:port HTTP/1.1        becomes a tunnel
//! GET http://host/path HTTP/1.1     becomes   GET /path HTTP/1.1   for the host
//! ```
//!
//! Headers that are about one hop stay behind, and so do those that `Connection` names; all others pass in their order
//! and in their letters. What two readers could understand in two ways is refused: several lengths, a length with
//! chunks, several hosts, folded lines, bare line feeds within them.
//!
//! Lines may end in a line feed alone (RFC 9112 section 2.2); they go on with both bytes, so that the next reader has
//! nothing to guess. A target with a user's name in it (`http://me:secret@host/`) is refused, as RFC 9110 section 4.2.4
//! wants it: clients put that into a header.
//!
//! A `Host` that differs from the target passes: sing-box lets it, and a tunnel would too.
//!
//! Sources: RFC 9110 and 9112 (proxies: sections 7 and 3.2); sing-box 1.14.4 for what keeps a connection alive.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use culvert_core::timeouts;
use culvert_wire::{DecodeError, Reader, Target};

use super::body::Body;
pub use crate::handshake::EndOfHead;

/// Longest head, and most bytes read while waiting for its end.
pub const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

/// Headers about one hop, besides those that `Connection` names. Framing is written anew.
const ONE_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "content-length",
];

/// The version that a message has, and that its answer and its forwarded form have too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.0.
    V10,
    /// HTTP/1.1.
    V11,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V10 => "HTTP/1.0",
            Self::V11 => "HTTP/1.1",
        })
    }
}

/// Name and password of `Proxy-Authorization`.
#[derive(Clone, Eq, PartialEq)]
pub struct Credentials {
    /// The name.
    pub user: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

impl Credentials {
    /// Reads the value of the header. `None` if it is of another scheme, or nonsense.
    fn decode(value: &[u8]) -> Option<Self> {
        /// Clients that leave out the padding are understood.
        const BASE64: GeneralPurpose = GeneralPurpose::new(
            &base64::alphabet::STANDARD,
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
        );
        let value = value.trim_ascii();
        let (scheme, rest) = value.split_at_checked(5)?;
        if !scheme.eq_ignore_ascii_case(b"basic") || !rest.first()?.is_ascii_whitespace() {
            return None;
        }
        let mut user = BASE64.decode(rest.trim_ascii()).ok()?;
        let colon = user.iter().position(|byte| *byte == b':')?;
        let password = user.split_off(colon + 1);
        user.pop();
        Some(Self { user, password })
    }

    /// The value of the header.
    #[must_use]
    pub fn encode(user: &str, password: &str) -> String {
        format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
    }
}

/// Shows nothing of what is in it.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// What a client asks a proxy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Its version.
    pub version: Version,
    /// What it asks for.
    pub ask: Ask,
    /// Who asks.
    pub credentials: Option<Credentials>,
    /// The address that another proxy before us has seen, if it says so.
    pub forwarded_for: Option<IpAddr>,
    /// Whether the client wants to send another request on the same connection.
    pub keep_alive: bool,
    /// What follows the head.
    pub body: Body,
}

/// The ways to use a proxy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask {
    /// A tunnel.
    Connect(Target),
    /// A request that the proxy passes on.
    Forward {
        /// Where to.
        target: Target,
        /// The head for that host.
        head: Vec<u8>,
        /// Whether the response has no body, whatever its head says.
        is_head: bool,
        /// Whether the connection is to change its protocol.
        upgrade: bool,
    },
    /// A proper request, but not one for a proxy.
    Nothing(&'static str),
}

impl Request {
    /// Reads one head; the body stays.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let len = complete(request.parse(r.rest()), r.rest())?;
        r.take(len)?;
        let (Some(method), Some(uri), Some(version)) = (request.method, request.path, request.version) else {
            return Err(DecodeError::Invalid("request line"));
        };
        let version = if version == 0 { Version::V10 } else { Version::V11 };
        let headers = Headers(request.headers);
        let hosts = headers.all("host").count();
        if hosts > 1 {
            return Err(DecodeError::Invalid("request with several hosts"));
        }
        let body = headers.request_body(version)?;
        let closes = headers.lists("connection", "close");
        Ok(Self {
            version,
            ask: if method == "CONNECT" {
                connect(uri)
            } else {
                forward(method, uri, version, body, &headers)
            },
            credentials: headers.all("proxy-authorization").next().and_then(Credentials::decode),
            forwarded_for: headers.forwarded_for(),
            keep_alive: version == Version::V11 && headers.lists("proxy-connection", "keep-alive") && !closes,
            body: if method == "CONNECT" { Body::Empty } else { body },
        })
    }
}

fn connect(uri: &str) -> Ask {
    parse_authority(uri).map_or(Ask::Nothing("target of CONNECT"), Ask::Connect)
}

fn forward(method: &str, uri: &str, version: Version, body: Body, headers: &Headers<'_>) -> Ask {
    const SCHEME: &str = "http://";
    let absolute =
        uri.split_at_checked(SCHEME.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
    let Some((_, rest)) = absolute else { return Ask::Nothing("request without http:// and a host") };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split_once('#').map_or(path, |(path, _)| path);
    let Some(target) = parse_authority(authority) else { return Ask::Nothing("host of the request") };
    let upgrade = headers.lists("connection", "upgrade") && headers.all("upgrade").next().is_some();

    let mut head = Vec::with_capacity(512);
    head.extend(method.bytes());
    head.push(b' ');
    match path.as_bytes() {
        [] if method == "OPTIONS" => head.push(b'*'),
        [b'/', ..] => {}
        _ => head.push(b'/'),
    }
    head.extend(path.bytes());
    head.push(b' ');
    head.extend(version.to_string().bytes());
    head.extend(b"\r\n");
    if headers.all("host").next().is_none() {
        line(&mut head, "Host", without_default_port(authority.as_bytes()));
    }
    for header in headers.end_to_end() {
        if header.name.eq_ignore_ascii_case("host") {
            line(&mut head, header.name, without_default_port(header.value));
        } else {
            line(&mut head, header.name, header.value);
        }
    }
    headers.write_framing(&mut head);
    if upgrade {
        line(&mut head, "Connection", b"Upgrade");
        headers.all("upgrade").for_each(|value| line(&mut head, "Upgrade", value));
    }
    head.extend(b"\r\n");
    // Several lengths have been refused, so what was read is what is written.
    debug_assert!(body != Body::UntilClose);
    Ask::Forward { target, head, is_head: method == "HEAD", upgrade }
}

/// A host with or without a port. What only other parts of a URI can hold is no host, and a user's name has no place.
fn parse_authority(text: &str) -> Option<Target> {
    if text.contains(['/', '?', '#', '@', '\\']) { None } else { Target::parse(text, Some(80)) }
}

fn without_default_port(host: &[u8]) -> &[u8] {
    host.trim_ascii().strip_suffix(b":80").unwrap_or(host)
}

/// What an origin answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// What follows the head.
    pub body: Body,
    /// Whether the client's connection goes on behind it.
    pub keep_alive: bool,
    /// The head for the client.
    pub head: Vec<u8>,
}

impl Response {
    /// Whether a final response follows this one.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Reads one head, in answer to a request that was a HEAD one or not, on a client's connection that is to be kept
    /// or not.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>, is_head: bool, keep_alive: bool) -> Result<Self, DecodeError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let len = complete(response.parse(r.rest()), r.rest())?;
        r.take(len)?;
        let (Some(status), Some(version)) = (response.code, response.version) else {
            return Err(DecodeError::Invalid("status line"));
        };
        let version = if version == 0 { Version::V10 } else { Version::V11 };
        let headers = Headers(response.headers);
        let has_body = !(is_head || status < 200 || status == 204 || status == 304);
        let body = if has_body { headers.response_body()? } else { Body::Empty };
        // After a failure to reach the origin, which the program itself answers like this, nothing is kept.
        let keep_alive = keep_alive && body != Body::UntilClose && !matches!(status, 502 | 504);

        let mut head = Vec::with_capacity(512);
        let reason = response.reason.unwrap_or_default();
        head.extend(format!("{version} {status:03} {reason}\r\n").bytes());
        headers.end_to_end().for_each(|header| line(&mut head, header.name, header.value));
        headers.write_framing(&mut head);
        match status {
            101 => {
                line(&mut head, "Connection", b"Upgrade");
                headers.all("upgrade").for_each(|value| line(&mut head, "Upgrade", value));
            }
            ..200 => {}
            _ if keep_alive => {
                let idle = timeouts::HTTP_KEEP_ALIVE_IDLE.as_secs() - 5; // so that the client is the first to let go
                line(&mut head, "Connection", b"keep-alive");
                line(&mut head, "Keep-Alive", format!("timeout={idle}").as_bytes());
                line(&mut head, "Proxy-Connection", b"keep-alive");
            }
            _ => line(&mut head, "Connection", b"close"),
        }
        head.extend(b"\r\n");
        Ok(Self { status, body, keep_alive, head })
    }
}

/// The status of a response, and nothing else of it.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_status(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let len = complete(response.parse(r.rest()), r.rest())?;
    r.take(len)?;
    response.code.ok_or(DecodeError::Invalid("status line"))
}

fn complete(parsed: httparse::Result<usize>, bytes: &[u8]) -> Result<usize, DecodeError> {
    match parsed {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => Ok(len),
        Ok(httparse::Status::Complete(_)) => Err(DecodeError::Invalid("head: too long")),
        Ok(httparse::Status::Partial) if bytes.len() >= MAX_HEAD => {
            Err(DecodeError::Invalid("head: too long"))
        }
        Ok(httparse::Status::Partial) => Err(DecodeError::Incomplete),
        Err(httparse::Error::TooManyHeaders) => Err(DecodeError::Invalid("head: too many headers")),
        Err(_) => Err(DecodeError::Invalid("head")),
    }
}

fn line(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend(name.bytes());
    head.extend(b": ");
    head.extend(value);
    head.extend(b"\r\n");
}

/// The headers of one head.
struct Headers<'a>(&'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// The items of a header that is a list, over all its lines.
    fn items(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name).flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
    }

    fn lists(&self, name: &'static str, item: &str) -> bool {
        self.items(name).any(|listed| listed.eq_ignore_ascii_case(item.as_bytes()))
    }

    /// The headers that go on to the next hop, but for those that say how the body is framed.
    fn end_to_end(&self) -> impl Iterator<Item = &'a httparse::Header<'a>> {
        let named: Vec<&[u8]> = self.items("connection").collect();
        self.0.iter().filter(move |header| {
            let one_hop = ONE_HOP.iter().any(|name| header.name.eq_ignore_ascii_case(name));
            let named = named.iter().any(|name| name.eq_ignore_ascii_case(header.name.as_bytes()));
            // A host is needed, whatever a client names.
            !one_hop && (!named || header.name.eq_ignore_ascii_case("host"))
        })
    }

    /// Writes how the body is framed: as it was, once.
    fn write_framing(&self, head: &mut Vec<u8>) {
        let first = |name| self.0.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        // Where a response has both, chunks are what counts (RFC 9112 section 6.3).
        if let Some(framing) = first("transfer-encoding").or_else(|| first("content-length")) {
            line(head, framing.name, framing.value);
        }
    }

    fn request_body(&self, version: Version) -> Result<Body, DecodeError> {
        let mut codings = self.all("transfer-encoding");
        let mut lengths = self.all("content-length");
        let (coding, length) = (codings.next(), lengths.next());
        if codings.next().is_some() || lengths.next().is_some() || (coding.is_some() && length.is_some()) {
            return Err(DecodeError::Invalid("request with several lengths"));
        }
        match (coding, length) {
            (Some(coding), _) if version == Version::V11 && is_chunked(coding) => Ok(Body::Chunked),
            (Some(_), _) => Err(DecodeError::Invalid("transfer encoding")),
            (None, Some(length)) => decode_length(length).map(Body::Length),
            (None, None) => Ok(Body::Empty),
        }
    }

    fn response_body(&self) -> Result<Body, DecodeError> {
        let mut codings = self.all("transfer-encoding");
        match (codings.next(), codings.next()) {
            (Some(coding), None) if is_chunked(coding) => return Ok(Body::Chunked),
            (Some(_), _) => return Err(DecodeError::Invalid("transfer encoding")),
            (None, _) => {}
        }
        let mut lengths = self.all("content-length");
        let Some(first) = lengths.next() else { return Ok(Body::UntilClose) };
        if lengths.any(|other| other != first) {
            return Err(DecodeError::Invalid("response with several lengths"));
        }
        decode_length(first).map(Body::Length)
    }

    fn forwarded_for(&self) -> Option<IpAddr> {
        let mut items = self.items("x-forwarded-for").filter_map(|item| std::str::from_utf8(item).ok());
        items.find_map(|item| item.parse().ok()).map(|ip: IpAddr| ip.to_canonical())
    }
}

fn is_chunked(coding: &[u8]) -> bool {
    coding.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

/// Digits and nothing else: no sign, no list, no number that overflows.
fn decode_length(value: &[u8]) -> Result<u64, DecodeError> {
    let value = value.trim_ascii();
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    length.ok_or(DecodeError::Invalid("content length"))
}

/// Fed with random bytes: what is forwarded is a proper head that names one host, and has the length that was read.
pub fn fuzz_request(bytes: &[u8]) {
    let Ok(request) = Request::decode(&mut Reader::new(bytes)) else { return };
    let Ask::Forward { head, .. } = &request.ask else { return };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS + 8];
    let mut parsed = httparse::Request::new(&mut headers);
    assert_eq!(parsed.parse(head), Ok(httparse::Status::Complete(head.len())));
    let headers = Headers(parsed.headers);
    assert_eq!(headers.all("host").count(), 1);
    assert_eq!(headers.request_body(request.version), Ok(request.body));
    assert_eq!(headers.all("proxy-authorization").count(), 0);
}

/// The same for responses.
pub fn fuzz_response(bytes: &[u8]) {
    for (is_head, keep_alive) in [(false, true), (true, false)] {
        let mut r = Reader::new(bytes);
        let Ok(response) = Response::decode(&mut r, is_head, keep_alive) else { continue };
        let mut again = Reader::new(&response.head);
        match Response::decode(&mut again, is_head, keep_alive) {
            // There may be three more than there were.
            Err(DecodeError::Invalid("head: too many headers")) => {}
            again => {
                let again = again.map(|again| (again.status, again.body));
                assert_eq!(again, Ok((response.status, response.body)));
            }
        }
    }
}
