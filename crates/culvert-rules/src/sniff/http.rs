//! HTTP/1 requests, and the preface of HTTP/2 without TLS: the host is that of the target, else of the `Host` line.
//!
//! Two `Host` lines are no request: servers do not agree which of them counts, and sing-box refuses them too. Unlike
//! there, folded lines, a space before the colon and HTTP/3.0 are none either.

use culvert_wire::{DecodeError, Domain, Reader};
use httparse::{Error, Request, Status};

use super::{Protocol, Sniffed, host_domain};

/// Longest method known to be in use; longer ones are not waited for.
const MAX_METHOD: usize = 32;
/// Header lines are counted in steps, so that common requests need little stack.
const HEADERS: [usize; 3] = [32, 128, 512];

pub(super) fn sniff(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    // Requests may follow blank lines, but no client begins with one.
    let method = bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len());
    if method > MAX_METHOD || !bytes[..method].iter().all(|byte| is_method_byte(*byte)) {
        return Err(DecodeError::Invalid("HTTP method"));
    }
    if bytes.starts_with(b"PRI") {
        Reader::new(bytes).expect(b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2 preface")?;
        return Ok(Sniffed::new(Protocol::Http));
    }
    for count in HEADERS {
        let mut headers = vec![httparse::EMPTY_HEADER; count];
        let mut request = Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(Status::Complete(_)) => {
                let hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
                if hosts.count() > 1 {
                    return Err(DecodeError::Invalid("two Host lines"));
                }
                return Ok(Sniffed { domain: requested_host(&request), ..Sniffed::new(Protocol::Http) });
            }
            Ok(Status::Partial) => return Err(DecodeError::Incomplete),
            Err(Error::TooManyHeaders) => {}
            Err(_) => return Err(DecodeError::Invalid("HTTP request")),
        }
    }
    Err(DecodeError::Invalid("HTTP request with too many lines"))
}

/// Letters, digits, dashes. The standard allows more, but waiting for the end of such a method helps no one.
fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn requested_host(request: &Request<'_, '_>) -> Option<Domain> {
    let target = request.path.unwrap_or_default();
    if request.method == Some("CONNECT") {
        return host_domain(target.as_bytes());
    }
    if let Some((_, rest)) = target.split_once("://")
        && !target.starts_with('/')
    {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        if !host.is_empty() {
            return host_domain(host.as_bytes());
        }
    }
    let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    host_domain(host?.value)
}

/// A name found is canonical.
#[doc(hidden)]
pub fn fuzz_http(data: &[u8]) {
    if let Ok(Sniffed { domain: Some(domain), .. }) = sniff(data) {
        assert_eq!(
            crate::domain::canonical_name(domain.as_str()).to_ascii_lowercase(),
            domain.as_str().to_lowercase()
        );
        assert!(domain.as_str().parse::<std::net::IpAddr>().is_err());
    }
}
