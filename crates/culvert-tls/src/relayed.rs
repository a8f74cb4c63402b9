//! A stream that takes apart the first TLS message somebody else writes to it: what rules with `tls_fragment` and
//! `tls_record_fragment` put around the stream to the server.
//!
//! The message is held until its record is whole, since the name of the server may stand in what a later write brings; a
//! stream that does not begin with one goes through as it is. Reading is never held up.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_core::conn::copy_in;
use culvert_core::dispatch::DialOutcome;
use culvert_core::{BoxStream, Half, NoBypass, StreamConn};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::fragment::{Gap, writes};
use crate::hello::is_whole;
use crate::record::HEADER;
use crate::settings::Fragment;

/// A stream whose first message, if it is one of TLS, is taken apart.
pub struct Fragmenting {
    conn: BoxStream,
    fragment: Fragment,
    state: State,
}

enum State {
    /// The first record, as far as it has come.
    Held(Vec<u8>),
    /// What has not left yet, and the wait before it.
    Leaving { rest: VecDeque<BufChain>, gap: Option<Gap> },
    /// Nothing is done any more.
    Open,
}

/// The longest first record there can be.
const MOST: usize = HEADER + (1 << 14);

impl Fragmenting {
    /// `conn`, written to as `fragment` says.
    #[must_use]
    pub fn new(conn: BoxStream, fragment: Fragment) -> Self {
        Self { conn, fragment, state: State::Held(Vec::new()) }
    }

    /// Takes what belongs to the first record. Whether there is something to send.
    fn hold(&mut self, data: &mut BufChain) -> io::Result<bool> {
        let State::Held(held) = &mut self.state else { return Ok(true) };
        while !data.is_empty() && !is_whole(held) && held.len() < MOST {
            let front = data.front();
            let count = front.len().min(MOST - held.len());
            held.extend_from_slice(&front[..count]);
            data.advance(count);
        }
        let ready = !held.is_empty() && (is_whole(held) || held.len() >= MOST);
        if ready {
            self.release()?;
        }
        Ok(ready)
    }

    /// Lets go of what is held, in pieces.
    fn release(&mut self) -> io::Result<()> {
        if let State::Held(held) = &mut self.state {
            let pieces = if held.is_empty() { Vec::new() } else { writes(held, self.fragment)? };
            let rest = pieces.iter().map(|piece| BufChain::copied(piece)).collect();
            self.state = State::Leaving { rest, gap: None };
        }
        Ok(())
    }

    /// Sends the pieces. Ready if there are none any more.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let State::Leaving { rest, gap } = &mut self.state {
            if let Some(waiting) = gap {
                ready!(waiting.poll(cx, &mut self.conn))?;
                *gap = None;
            }
            let Some(piece) = rest.front_mut() else {
                self.state = State::Open;
                break;
            };
            ready!(self.conn.poll_write_chain(cx, piece))?;
            ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
            rest.pop_front();
            if !rest.is_empty() {
                *gap = Some(Gap::new(self.fragment));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Fragmenting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_read(cx, to)
    }
}

impl AsyncWrite for Fragmenting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if matches!(self.state, State::Held(_)) {
            let mut data = BufChain::copied(from);
            self.hold(&mut data)?;
            return Poll::Ready(Ok(from.len() - data.len()));
        }
        ready!(self.poll_leave(cx))?;
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_leave(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.release()?;
        ready!(self.poll_leave(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

impl StreamConn for Fragmenting {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        match self.state {
            State::Open => self.conn.poll_read_chain(cx, room),
            // An answer may be waited for with pieces on their way.
            _ if room.is_none() => self.conn.poll_read_chain(cx, room),
            _ => copy_in(self, cx, room),
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if !self.hold(data)? {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_leave(cx))?;
        self.conn.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        match (&self.state, half) {
            (State::Open, _) | (_, Half::Read) => self.conn.kernel_socket(half),
            _ => None,
        }
    }

    fn bypass(&mut self, half: Half) -> Result<(), NoBypass> {
        match (&self.state, half) {
            (State::Open, _) | (_, Half::Read) => self.conn.bypass(half),
            _ => Err(NoBypass),
        }
    }

    fn abort(&mut self) {
        self.conn.abort();
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        self.conn.answer(outcome);
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn.outermost_socket()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use culvert_core::conn::write_chain;
    use culvert_testkit::conn::{Script, Step};
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;
    use crate::hello;
    use crate::testing::Conn;

    const SEGMENTS: Fragment = Fragment { segments: true, records: false, fallback_delay: None };
    const RECORDS: Fragment = Fragment { segments: false, records: true, fallback_delay: None };

    /// What arrives when `writes` are written, and in how many pieces.
    async fn heard(writes: &[&[u8]], fragment: Fragment) -> (Vec<u8>, usize) {
        let script = Script::new([Step::Silence]);
        let heard = script.heard();
        let mut conn = Fragmenting::new(Box::new(Conn(script)), fragment);
        for bytes in writes {
            write_chain(&mut conn, &mut BufChain::copied(bytes)).await.unwrap();
        }
        conn.shutdown().await.unwrap();
        let heard = heard();
        (heard.bytes.clone(), heard.writes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_hello_arrives_whole_however_it_was_written() {
        let flight = hello::tests::hello("www.example.test");
        for cut in 0..=flight.len() {
            let (front, back) = flight.split_at(cut);
            let (bytes, pieces) = heard(&[front, back, b"more"], SEGMENTS).await;
            assert_eq!(bytes, [&flight[..], b"more"].concat(), "cut at {cut}");
            assert_eq!(pieces, 4, "cut at {cut}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_hello_goes_through_at_once() {
        let start = Instant::now();
        for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x02\x01", b"\x17\x03\x03\0\x01a"] {
            let (bytes, pieces) = heard(&[text], SEGMENTS).await;
            assert_eq!((&bytes[..], pieces), (text, 1));
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_hello_is_sent_at_the_end_of_the_stream() {
        let flight = hello::tests::hello("www.example.test");
        let half = &flight[..flight.len() / 2];
        assert_eq!(heard(&[half], SEGMENTS).await.0, half);
        assert_eq!(heard(&[], SEGMENTS).await.0, b"");
    }

    #[tokio::test(start_paused = true)]
    async fn records_leave_in_one_write() {
        let flight = hello::tests::hello("www.example.test");
        let (bytes, pieces) = heard(&[&flight], RECORDS).await;
        assert_eq!((bytes.len(), pieces), (flight.len() + 2 * HEADER, 1));
        assert!(!String::from_utf8_lossy(&bytes).contains("example"));
    }
}
