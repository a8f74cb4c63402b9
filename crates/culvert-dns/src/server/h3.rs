//! The server of type `h3`: each question is a request on a stream of its own, all of them on one connection of QUIC.
//!
//! ```text
//! POST /dns-query                         200
//! content-type: application/dns-message   content-type: application/dns-message
//! | message, id 0 |                       | message, id 0 |
//! ```
//!
//! The connection is [`quic`](mod@super::quic)'s, as are the rules by which a question is asked again.
//!
//! Source: RFC 8484 over RFC 9114. Requests are POST whatever `method` says (sing-box 1.14.4).

use std::io;

use async_trait::async_trait;
use culvert_core::ServeError;
use culvert_core::conn::write_chain;
use culvert_http::http::{HeaderMap, header};
use culvert_quic::h3::{self, Background, Body, qpack};
use culvert_quic::{Connection, QuicStream};
use culvert_wire::BufChain;
use tokio::io::AsyncWriteExt;

use super::quic::Ask;

/// Heads of responses before the last one (status 1xx) that are read.
const MOST_HEADS: usize = 8;
/// What a connection of HTTP/3 says of itself, which no request may.
const OF_CONNECTIONS: [header::HeaderName; 4] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::CONTENT_LENGTH];
const MEDIA_TYPE: &[u8] = b"application/dns-message";

/// Requests to one URL.
pub struct Requests {
    /// The fields of all of them, as one section.
    section: Vec<u8>,
}

impl Requests {
    /// Requests to `path` at `authority`, with `headers` beside those that belong to it.
    #[must_use]
    pub fn new(authority: &[u8], path: &[u8], headers: &HeaderMap) -> Self {
        let own: [(&str, &[u8]); 6] = [
            (":method", b"POST"),
            (":scheme", b"https"),
            (":authority", authority),
            (":path", path),
            ("content-type", MEDIA_TYPE),
            ("accept", MEDIA_TYPE),
        ];
        let is_further = |name: &header::HeaderName| {
            *name != header::CONTENT_TYPE && *name != header::ACCEPT && !OF_CONNECTIONS.contains(name)
        };
        let further = headers.iter().filter(|(name, _)| is_further(name));
        let further = further.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let mut section = Vec::new();
        qpack::encode(own.into_iter().chain(further), &mut section);
        Self { section }
    }
}

#[async_trait]
impl Ask for Requests {
    type Beside = Background;
    const ALPN: &'static str = h3::ALPN;
    const UNI_STREAMS: u64 = 16;
    const NO_ERROR: u64 = h3::NO_ERROR;

    async fn begin(&self, connection: &Connection) -> io::Result<Background> {
        Background::start(connection).await
    }

    async fn ask(&self, mut stream: QuicStream, message: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut request = Vec::new();
        h3::put_frame(h3::HEADERS, &self.section, &mut request);
        h3::put_frame(h3::DATA, &message, &mut request);
        write_chain(&mut stream, &mut BufChain::copied(&request)).await?;
        stream.shutdown().await?;
        read(&mut stream).await.map_err(|error| match error {
            ServeError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, format!("HTTP/3: {other}")),
        })
    }
}

/// Reads the response, down to its end.
async fn read(stream: &mut QuicStream) -> Result<Vec<u8>, ServeError> {
    let mut early = BufChain::new();
    let mut heads = 0;
    loop {
        let fields = h3::read_headers(stream, &mut early).await?;
        match h3::value(&fields, ":status") {
            Some(b"200") => break,
            Some([b'1', _, _]) if heads < MOST_HEADS => heads += 1,
            Some(status) => {
                let status = String::from_utf8_lossy(status).into_owned();
                return Err(ServeError::Io(io::Error::other(format!("the server answered {status}"))));
            }
            None => return Err(ServeError::Invalid("response without a status")),
        }
    }
    let (mut body, mut message) = (Body::default(), Vec::new());
    loop {
        let bytes = body.read(stream, &mut early).await?;
        if bytes.is_empty() {
            return Ok(message);
        }
        if message.len() + bytes.len() > usize::from(u16::MAX) {
            return Err(ServeError::Invalid("length of a message"));
        }
        message.extend(bytes.to_vec());
    }
}
