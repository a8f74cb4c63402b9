//! What a client does that has come to the real site: it looks at a page, as the browser would whose hello it sent.
//!
//! A connection that ends right after its handshake is one that no browser makes. So the page is asked for, over
//! HTTP/2 or HTTP/1.1 as the site wants, its answer is read, and the connection closed. Nothing of the user's is said.
//!
//! ```text
//! HTTP/2   preface | SETTINGS | WINDOW_UPDATE | HEADERS        frame: length 3 | type | flags | stream 4 | payload
//! ```
//!
//! Sources: RFC 9113, RFC 7541 (literals without indexing only), the first frames of Chrome, Firefox and Safari.

use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::browser::{Family, Fingerprint};
use crate::conn::TlsConn;

/// How long a visit takes at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much is read of the page.
const MOST: usize = 256 << 10;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Looks at the site's first page and leaves.
pub(crate) async fn visit(
    mut conn: TlsConn,
    name: String,
    fingerprint: Fingerprint,
    protocol: Option<String>,
) {
    let look = async {
        if protocol.as_deref() == Some("h2") {
            conn.write_all(&request_h2(&name, fingerprint)).await?;
            conn.flush().await?;
            read_h2(&mut conn).await?;
        } else {
            conn.write_all(&request_h1(&name, fingerprint)).await?;
            conn.flush().await?;
            let mut page = vec![0; 16 << 10];
            let mut read = 0;
            while read < MOST {
                match conn.read(&mut page).await? {
                    0 => break,
                    more => read += more,
                }
            }
        }
        conn.shutdown().await
    };
    // Whatever comes of it is of no interest, but that it was done.
    let _ = tokio::time::timeout(PATIENCE, look).await;
}

/// Reads frames until the page is there.
async fn read_h2(conn: &mut TlsConn) -> std::io::Result<()> {
    let mut read = 0;
    while read < MOST {
        let mut head = [0; 9];
        conn.read_exact(&mut head).await?;
        let [high, middle, low, kind, flags, ..] = head;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        let mut rest = len;
        let mut piece = [0; 4096];
        while rest > 0 {
            let part = &mut piece[..rest.min(4096)];
            conn.read_exact(part).await?;
            rest -= part.len();
        }
        read += 9 + len;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                conn.write_all(&frame(SETTINGS, ACK, 0, &[])).await?;
                conn.flush().await?;
            }
            DATA | HEADERS if flags & END_STREAM != 0 => return Ok(()),
            GOAWAY => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn request_h2(name: &str, fingerprint: Fingerprint) -> Vec<u8> {
    let family = fingerprint.family();
    let (settings, window): (&[(u16, u32)], u32) = match family {
        Family::Chrome => (&[(1, 65536), (2, 0), (4, 6_291_456), (6, 262_144)], 15_663_105),
        Family::Firefox => (&[(1, 65536), (2, 0), (4, 131_072), (5, 16384)], 12_517_377),
        Family::Safari => (&[(2, 0), (3, 100), (4, 2_097_152), (9, 1)], 10_420_225),
    };
    let settings: Vec<u8> = settings
        .iter()
        .flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    let order: [(&str, &str); 4] = match family {
        Family::Chrome => [(":method", "GET"), (":authority", name), (":scheme", "https"), (":path", "/")],
        Family::Firefox => [(":method", "GET"), (":path", "/"), (":authority", name), (":scheme", "https")],
        Family::Safari => [(":method", "GET"), (":scheme", "https"), (":authority", name), (":path", "/")],
    };
    let mut block = Vec::new();
    let headers = headers(family);
    let headers = headers.iter().map(|(key, value)| (*key, value.as_str()));
    for (key, value) in order.into_iter().chain(headers) {
        block.push(0);
        literal(&mut block, &key.to_ascii_lowercase());
        literal(&mut block, value);
    }
    [
        PREFACE,
        &frame(SETTINGS, 0, 0, &settings),
        &frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes()),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, &block),
    ]
    .concat()
}

fn request_h1(name: &str, fingerprint: Fingerprint) -> Vec<u8> {
    let mut text = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: keep-alive\r\n");
    for (key, value) in headers(fingerprint.family()) {
        text += &format!("{key}: {value}\r\n");
    }
    (text + "\r\n").into_bytes()
}

/// A string of HPACK, not compressed: its length in seven bits and more, and its bytes.
fn literal(block: &mut Vec<u8>, text: &str) {
    const MOST: usize = 127;
    if text.len() < MOST {
        block.push(text.len() as u8);
    } else {
        block.push(MOST as u8);
        let mut rest = text.len() - MOST;
        while rest >= 128 {
            block.push(rest as u8 & 127 | 128);
            rest >>= 7;
        }
        block.push(rest as u8);
    }
    block.extend(text.bytes());
}

/// What the browser says of itself, and a cookie of some length, so that no two visits are equally long.
fn headers(family: Family) -> Vec<(&'static str, String)> {
    let mut length = [0];
    let _ = SystemRandom::new().fill(&mut length);
    let cookie = format!("padding={}", "0".repeat(30 + usize::from(length[0] % 32)));
    let words: &[(&'static str, &str)] = match family {
        Family::Chrome => &[
            ("Upgrade-Insecure-Requests", "1"),
            (
                "User-Agent",
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) \
                 Chrome/151.0.0.0 Safari/537.36",
            ),
            (
                "Accept",
                "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8",
            ),
            ("Sec-Fetch-Site", "none"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-User", "?1"),
            ("Sec-Fetch-Dest", "document"),
            ("Accept-Encoding", "gzip, deflate, br, zstd"),
            ("Accept-Language", "en-US,en;q=0.9"),
        ],
        Family::Firefox => &[
            (
                "User-Agent",
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:154.0) Gecko/20100101 Firefox/154.0",
            ),
            ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            ("Accept-Language", "en-US,en;q=0.9"),
            ("Accept-Encoding", "gzip, deflate, br, zstd"),
            ("Upgrade-Insecure-Requests", "1"),
            ("Sec-Fetch-Dest", "document"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-Site", "none"),
            ("Sec-Fetch-User", "?1"),
        ],
        Family::Safari => &[
            ("Sec-Fetch-Dest", "document"),
            (
                "User-Agent",
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) \
                 Version/26.3 Safari/605.1.15",
            ),
            ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            ("Sec-Fetch-Site", "none"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Accept-Language", "en-US,en;q=0.9"),
            ("Accept-Encoding", "gzip, deflate, br"),
        ],
    };
    let words = words.iter().map(|(key, value)| (*key, (*value).to_owned()));
    words.chain([("Cookie", cookie)]).collect()
}
