//! What the two sides of handshakes share: writing a message, finding the end of one of HTTP, and telling failures of a
//! server as dial errors.

use std::future::Future;
use std::io;

use culvert_core::{BoxStream, DialError, Half, ServeError, StreamConn, timeouts};
use culvert_wire::BufChain;
use tokio::io::AsyncWriteExt;

/// Writes `message` so that it leaves at once.
pub(crate) async fn send<C: StreamConn + ?Sized>(conn: &mut C, message: &[u8]) -> io::Result<()> {
    conn.write_all(message).await?;
    conn.flush().await
}

/// Gives an outbound's handshake with its server the time that it may take.
pub(crate) async fn within_limit<T>(
    phase: &'static str,
    handshake: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    let limit = timeouts::OUTBOUND_HANDSHAKE;
    let result = tokio::time::timeout(limit, handshake).await;
    result.unwrap_or(Err(DialError::Timeout { phase, limit }))
}

/// What a failed read of a server's message is to the one who dials.
pub(crate) fn dial_error(phase: &'static str) -> impl Fn(ServeError) -> DialError {
    move |error| {
        let source = match error {
            ServeError::Left => io::Error::new(io::ErrorKind::UnexpectedEof, "server closed the connection"),
            ServeError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        };
        DialError::Handshake { phase, source }
    }
}

/// The same for a write.
pub(crate) fn write_error(phase: &'static str) -> impl Fn(io::Error) -> DialError {
    move |source| DialError::Handshake { phase, source }
}

/// Closes the connection of somebody who is no client, without a word, as sing-box does: a plain socket by a reset, TLS by
/// its goodbye.
pub(crate) async fn turn_away(conn: &mut BoxStream) {
    if conn.kernel_socket(Half::Write).is_some() {
        conn.abort();
    } else {
        let _ = tokio::time::timeout(timeouts::GOODBYE, conn.shutdown()).await;
    }
}

/// Looks for the empty line that ends a head, without looking at any byte twice however slowly they come.
#[derive(Debug, Default)]
pub struct EndOfHead {
    seen: usize,
}

impl EndOfHead {
    /// Whether it is among `bytes`, which begin with those of the last call.
    pub fn is_in(&mut self, bytes: &[u8]) -> bool {
        let from = self.seen.saturating_sub(2);
        self.seen = bytes.len();
        let rest = bytes.get(from..).unwrap_or_default();
        let ends = |at: usize| matches!(&rest[at..], [b'\n', b'\n', ..] | [b'\n', b'\r', b'\n', ..]);
        rest.iter().enumerate().any(|(at, byte)| *byte == b'\n' && ends(at))
    }
}

/// What first bytes that are not the protocol look like, where that is something people mix up.
pub(crate) fn foreign(first: &[u8]) -> Option<&'static str> {
    const METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"PUT ", b"CONNECT ", b"PRI * HTTP"];
    match first {
        // A record of a handshake, with a ClientHello in it.
        [0x16, 3, _, _, _, 1, ..] => Some("another protocol: a TLS hello (has this inbound no `tls`?)"),
        _ if METHODS.iter().any(|method| first.starts_with(method)) => {
            Some("another protocol: an HTTP request (has this inbound no `transport`?)")
        }
        _ => None,
    }
}

/// [`foreign`] of what was read, or else `error`.
pub(crate) fn foreign_or(read: &BufChain, error: ServeError) -> ServeError {
    let mut first = [0; 16];
    let count = read.peek(&mut first);
    match error {
        ServeError::Invalid(_) | ServeError::Denied(_) => {
            foreign(&first[..count]).map_or(error, ServeError::Denied)
        }
        other => other,
    }
}
