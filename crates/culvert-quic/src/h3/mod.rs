//! As much of HTTP/3 (RFC 9114) as is needed to be a server or a client of it: frames, field sections, the control stream.
//!
//! ```text
//! stream   of a client, both ways: frames of a request, frames of its response
//!          one way: type (0 control, 1 push, 2 and 3 QPACK), then frames or what belongs to the type
//! frame    type  length  payload         both numbers as QUIC has them: 1, 2, 4 or 8 bytes
//!          0 data, 1 headers, 4 settings; others are skipped
//! ```
//!
//! Left out: the dynamic table of QPACK (a peer may not use what was not offered), push, priorities.

mod huffman;
pub mod qpack;

use crate::{Connection, QuicStream};
use culvert_core::conn::read_chain;
use culvert_core::{ServeError, StreamConn};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::task::JoinSet;

/// The application protocol.
pub const ALPN: &str = "h3";
/// Data of a body.
pub const DATA: u64 = 0;
/// A field section.
pub const HEADERS: u64 = 1;
/// What an end knows of.
const SETTINGS: u64 = 4;
/// Settings: bytes of a field section that are read.
const MAX_FIELD_SECTION_SIZE: u64 = 6;
/// "No error".
pub const NO_ERROR: u64 = 0x100;
/// "The peer does not follow the protocol".
pub const FRAME_UNEXPECTED: u64 = 0x105;
/// "A message is malformed".
pub const MESSAGE_ERROR: u64 = 0x10e;
/// "A stream of this type is not wanted".
const STREAM_CREATION_ERROR: u64 = 0x103;

/// A field section as it comes in a frame, in bytes: none is longer when it is decoded.
const MAX_HEADERS: u64 = 32 << 10;

/// Puts a number of QUIC's kind (RFC 9000 section 16).
pub fn put_varint(number: u64, to: &mut Vec<u8>) {
    match number {
        0..0x40 => to.push(number as u8),
        0x40..0x4000 => to.extend((number as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => to.extend((number as u32 | 0x8000_0000).to_be_bytes()),
        _ => to.extend((number | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Takes one.
pub fn take_varint(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let first = r.u8()?;
    let more = (1usize << (first >> 6)) - 1;
    let start = u64::from(first & 0x3f);
    Ok(r.take(more)?.iter().fold(start, |number, byte| number << 8 | u64::from(*byte)))
}

/// Puts a frame.
pub fn put_frame(kind: u64, payload: &[u8], to: &mut Vec<u8>) {
    put_varint(kind, to);
    put_varint(payload.len() as u64, to);
    to.extend(payload);
}

/// What opens a control stream.
fn control() -> Vec<u8> {
    let mut settings = Vec::new();
    put_varint(MAX_FIELD_SECTION_SIZE, &mut settings);
    put_varint(qpack::MAX_SECTION as u64, &mut settings);
    let mut bytes = vec![0];
    put_frame(SETTINGS, &settings, &mut bytes);
    bytes
}

/// What both ends of a connection do beside requests: a control stream of their own, which lasts as long as this, and
/// reading what comes on the other's. Dropping it ends that.
pub struct Background {
    _control: QuicStream,
    _tasks: JoinSet<()>,
}

impl Background {
    /// Opens the control stream.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn start(connection: &Connection) -> std::io::Result<Self> {
        let mut control_stream = connection.open_uni().await?;
        culvert_core::conn::write_chain(&mut control_stream, &mut BufChain::copied(&control())).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(drain_streams(connection.clone()));
        Ok(Self { _control: control_stream, _tasks: tasks })
    }
}

/// Reads what the peer sends one way: nothing in it matters here, but it must not fill the window.
async fn drain_streams(connection: Connection) {
    /// One of each type, and some that a peer tries us with.
    const MOST: usize = 16;
    let mut streams = JoinSet::new();
    while let Ok(mut stream) = connection.accept_uni().await {
        while streams.try_join_next().is_some() {}
        if streams.len() >= MOST {
            stream.stop(STREAM_CREATION_ERROR);
            continue;
        }
        streams.spawn(async move {
            while let Ok(bytes) = read_chain(&mut stream, Room::NONE).await
                && !bytes.is_empty()
            {}
        });
    }
}

/// Reads the head of the next frame: type and length.
///
/// # Errors
/// [`ServeError::Left`] at the end of the stream.
pub async fn read_frame_head<C: StreamConn + ?Sized>(
    conn: &mut C,
    early: &mut BufChain,
) -> Result<(u64, u64), ServeError> {
    culvert_core::handshake::read_message(conn, early, 16, |r| Ok((take_varint(r)?, take_varint(r)?))).await
}

/// Reads `len` bytes and does nothing with them.
async fn skip<C: StreamConn + ?Sized>(
    conn: &mut C,
    early: &mut BufChain,
    mut len: u64,
) -> Result<(), ServeError> {
    loop {
        let now = len.min(early.len() as u64);
        early.advance(now as usize);
        len -= now;
        if len == 0 {
            return Ok(());
        }
        *early = read_chain(conn, Room::NONE).await?;
        if early.is_empty() {
            return Err(ServeError::Left);
        }
    }
}

/// Reads on to the next field section, over frames of unknown types. `None` is the end of the stream.
///
/// # Errors
/// What is there is not HTTP/3.
pub async fn read_headers<C: StreamConn + ?Sized>(
    conn: &mut C,
    early: &mut BufChain,
) -> Result<Vec<qpack::Field>, ServeError> {
    loop {
        let (kind, len) = read_frame_head(conn, early).await?;
        match kind {
            HEADERS if len <= MAX_HEADERS => {
                let section = culvert_core::handshake::read_message(conn, early, len as usize + 1, |r| {
                    r.take(len as usize).map(<[u8]>::to_vec)
                });
                return qpack::decode(&section.await?).ok_or(ServeError::Invalid("field section"));
            }
            HEADERS => return Err(ServeError::Invalid("length of a field section")),
            // Data has no place before headers, nor have frames of other streams and of HTTP/2.
            DATA | 2..=9 | 0xd => return Err(ServeError::Invalid("frame of HTTP/3")),
            _ => skip(conn, early, len).await?,
        }
    }
}

/// A body as it comes: data frames, until something else or the end comes.
#[derive(Default)]
pub struct Body {
    /// What of the frame at hand is still to come.
    rest: u64,
}

impl Body {
    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// Those of the stream, or what is there is not HTTP/3.
    pub async fn read<C: StreamConn + ?Sized>(
        &mut self,
        conn: &mut C,
        early: &mut BufChain,
    ) -> Result<BufChain, ServeError> {
        while self.rest == 0 {
            match read_frame_head(conn, early).await {
                Ok((DATA, len)) => self.rest = len,
                // Trailers, and what is unknown.
                Ok((_, len)) => skip(conn, early, len).await?,
                Err(ServeError::Left) if early.is_empty() => return Ok(BufChain::new()),
                Err(error) => return Err(error),
            }
        }
        if early.is_empty() {
            *early = read_chain(conn, Room::NONE).await?;
            if early.is_empty() {
                return Err(ServeError::Left);
            }
        }
        let now = self.rest.min(early.len() as u64) as usize;
        self.rest -= now as u64;
        Ok(early.take_front(now))
    }
}

/// The value of a field, of the first one with this name.
pub fn value<'a>(fields: &'a [qpack::Field], name: &str) -> Option<&'a [u8]> {
    fields.iter().find(|(known, _)| known == name.as_bytes()).map(|(_, value)| &value[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        for (number, bytes) in [
            (0, &[0][..]),
            (37, &[0x25]),
            (63, &[0x3f]),
            (64, &[0x40, 0x40]),
            (15293, &[0x7b, 0xbd]),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (151_288_809_941_952_652, &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]),
        ] {
            let mut encoded = Vec::new();
            put_varint(number, &mut encoded);
            assert_eq!(encoded, bytes);
            assert_eq!(take_varint(&mut Reader::new(bytes)), Ok(number));
            assert_eq!(
                take_varint(&mut Reader::new(&bytes[..bytes.len() - 1])),
                Err(DecodeError::Incomplete)
            );
        }
        assert_eq!(take_varint(&mut Reader::new(&[0x40, 0x25])), Ok(37), "a longer form is as good");
    }

    #[tokio::test]
    async fn headers_come_after_what_is_unknown() {
        let mut stream = Vec::new();
        put_frame(0x21, &[7; 5000], &mut stream);
        put_frame(0x401, b"", &mut stream);
        let mut section = Vec::new();
        qpack::encode([(":method", &b"GET"[..])], &mut section);
        put_frame(HEADERS, &section, &mut stream);
        put_frame(DATA, b"abc", &mut stream);
        put_frame(0x2f, b"skipped", &mut stream);
        put_frame(DATA, b"", &mut stream);
        put_frame(DATA, b"def", &mut stream);
        for size in [1, 3, 100, stream.len()] {
            let (mut near, mut far) = tokio::io::duplex(size);
            let bytes = stream.clone();
            tokio::spawn(async move {
                let _ = culvert_core::conn::write_chain(&mut far, &mut BufChain::copied(&bytes)).await;
            });
            let mut early = BufChain::new();
            let fields = read_headers(&mut near, &mut early).await.unwrap();
            assert_eq!(value(&fields, ":method"), Some(&b"GET"[..]));
            let (mut body, mut all) = (Body::default(), Vec::new());
            loop {
                let bytes = body.read(&mut near, &mut early).await.unwrap();
                if bytes.is_empty() {
                    break;
                }
                all.extend(bytes.to_vec());
            }
            assert_eq!(all, b"abcdef");
        }
    }

    #[tokio::test]
    async fn data_before_headers_and_endless_headers_are_refused() {
        for stream in
            [&[0, 1, b'x'][..], &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[4, 0], &[1, 1, 9]]
        {
            let (mut near, mut far) = tokio::io::duplex(100);
            culvert_core::conn::write_chain(&mut far, &mut BufChain::copied(stream)).await.unwrap();
            let result = read_headers(&mut near, &mut BufChain::new()).await;
            assert!(matches!(result, Err(ServeError::Invalid(_))), "{stream:?}");
        }
    }
}
