//! Sending the first message of a client in pieces, none of which has a whole label of the server's name.
//!
//! The cuts are at a random place within each label but the last one. With `records` the pieces become TLS records,
//! which any server puts together again; with `segments` they are written one by one, each after the one before was
//! acknowledged, so that no network stack joins them; with both, each record is a segment.
//!
//! As in sing-box an acknowledgement within 20 ms came from something near, a proxy on the way perhaps, and says nothing
//! about the network beyond: then, and where there is no socket to ask, a fixed time is waited. Other than there, `segments`
//! works without `records`, and the cut respects no list of public suffixes: it only makes one more piece.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use culvert_core::conn::write_chain;
use culvert_core::{BoxStream, Half, StreamConn};
use culvert_wire::BufChain;
use tokio::time::{Instant, Sleep, sleep};

use crate::hello;
use crate::record::HEADER;
use crate::settings::Fragment;

/// What is waited where acknowledgements say nothing.
const FALLBACK_DELAY: Duration = Duration::from_millis(500);
/// How often to look for an acknowledgement.
const POLL: Duration = Duration::from_millis(10);
/// An acknowledgement that comes sooner came from something near.
const NEAR: Duration = Duration::from_millis(20);

/// Writes a flight of handshake messages, in pieces if it begins with a hello that names a server.
pub(crate) async fn write(conn: &mut BoxStream, flight: &[u8], fragment: Fragment) -> io::Result<()> {
    for (number, piece) in writes(flight, fragment)?.iter().enumerate() {
        if number > 0 {
            let mut gap = Gap::new(fragment);
            std::future::poll_fn(|cx| gap.poll(cx, conn)).await?;
        }
        write_chain(conn, &mut BufChain::copied(piece)).await?;
    }
    Ok(())
}

/// What is to be written at a time, with a [`Gap`] before each but the first.
pub(crate) fn writes(flight: &[u8], fragment: Fragment) -> io::Result<Vec<Vec<u8>>> {
    let pieces = match hello::server_name(flight) {
        Some(name) if fragment.segments || fragment.records => {
            let mut seeds = [0; 32];
            SystemRandom::new().fill(&mut seeds).map_err(|_| io::Error::other("no randomness"))?;
            pieces(flight, name, fragment.records, &seeds)
        }
        _ => vec![flight.to_vec()],
    };
    Ok(if fragment.segments { pieces } else { vec![pieces.concat()] })
}

/// The wait until what was written has been acknowledged.
pub(crate) struct Gap {
    since: Instant,
    fallback: Duration,
    timer: Pin<Box<Sleep>>,
    /// Nothing is asked for any more when the timer ends.
    last: bool,
}

impl Gap {
    pub(crate) fn new(fragment: Fragment) -> Self {
        let fallback = fragment.fallback_delay.unwrap_or(FALLBACK_DELAY);
        Self { since: Instant::now(), fallback, timer: Box::pin(sleep(Duration::ZERO)), last: false }
    }

    /// Ready once the next piece may be written to `conn`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, conn: &mut BoxStream) -> Poll<io::Result<()>> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if self.last {
                return Poll::Ready(Ok(()));
            }
            let wait = match conn.kernel_socket(Half::Write) {
                Some(socket) if culvert_os::socket::send_queue(socket.as_fd())?.unacknowledged > 0 => POLL,
                Some(_) if self.since.elapsed() > NEAR => return Poll::Ready(Ok(())),
                _ => {
                    self.last = true;
                    self.fallback
                }
            };
            self.timer.as_mut().reset(Instant::now() + wait);
        }
    }
}

/// Cuts `flight` within the labels of the name at `name`. `seeds` chooses the places.
fn pieces(flight: &[u8], name: Range<usize>, records: bool, seeds: &[u8]) -> Vec<Vec<u8>> {
    let cuts = cuts(&flight[name.clone()], seeds);
    let mut places: Vec<_> = cuts.into_iter().map(|cut| name.start + cut).collect();
    places.push(flight.len());
    if !records {
        let mut start = 0;
        return places
            .into_iter()
            .map(|end| flight[std::mem::replace(&mut start, end)..end].to_vec())
            .collect();
    }
    // The hello's own record is taken apart; what may stand behind it stays as it is.
    let record = HEADER + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
    let end = record.min(flight.len());
    *places.last_mut().expect("pushed above") = end;
    let mut start = HEADER;
    let mut pieces: Vec<Vec<u8>> = places
        .into_iter()
        .map(|end| {
            let body = &flight[std::mem::replace(&mut start, end)..end];
            let mut piece = flight[..3].to_vec();
            piece.extend((body.len() as u16).to_be_bytes());
            piece.extend(body);
            piece
        })
        .collect();
    if let Some(last) = pieces.last_mut() {
        last.extend(&flight[end..]);
    }
    pieces
}

/// Where to cut a name: once inside of every label but the last, and inside of that if it is the only one.
fn cuts(name: &[u8], seeds: &[u8]) -> Vec<usize> {
    let labels: Vec<&[u8]> = name.split(|byte| *byte == b'.').collect();
    let wanted = (labels.len() - 1).max(1);
    let mut start = 0;
    let mut cuts = Vec::with_capacity(wanted);
    for (label, seed) in labels.iter().zip(seeds.iter().cycle()).take(wanted) {
        if label.len() > 1 {
            cuts.push(start + 1 + usize::from(*seed) % (label.len() - 1));
        }
        start += label.len() + 1;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use culvert_testkit::conn::{Script, Step};
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::testing::Conn;

    fn flight() -> Vec<u8> {
        hello::tests::hello("www.example.test")
    }

    /// The payloads of the records in `bytes`, each with its header checked.
    fn bodies(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..3], [22, 3, 1]);
            let len = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
            bodies.push(bytes[5..5 + len].to_vec());
            bytes = &bytes[5 + len..];
        }
        bodies
    }

    #[test]
    fn no_piece_has_a_whole_label_and_together_they_are_the_flight() {
        let flight = flight();
        let name = hello::server_name(&flight).unwrap();
        for seed in 0..=255 {
            let cut = pieces(&flight, name.clone(), false, &[seed]);
            assert_eq!(cut.concat(), flight);
            assert_eq!(cut.len(), 3);
            for piece in &cut {
                let text = String::from_utf8_lossy(piece);
                assert!(!text.contains("www") && !text.contains("example"), "seed {seed}");
            }
        }
        assert_eq!(cuts(b"localhost", &[0]), [1]);
        assert_eq!(cuts(b"a.b", &[9]), [0; 0]);
    }

    #[test]
    fn records_carry_the_same_message() {
        let flight = flight();
        let name = hello::server_name(&flight).unwrap();
        let cut = pieces(&flight, name, true, &[3]);
        assert_eq!(cut.len(), 3);
        assert_eq!(bodies(&cut.concat()).concat(), flight[5..]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_socket_segments_wait_the_fixed_time() {
        let script = Script::new([Step::Silence]);
        let heard = script.heard();
        let mut conn: BoxStream = Box::new(Conn(script));
        let start = Instant::now();
        let fragment = Fragment { segments: true, records: true, fallback_delay: None };
        write(&mut conn, &flight(), fragment).await.unwrap();
        assert_eq!(start.elapsed(), 2 * FALLBACK_DELAY);
        assert_eq!(heard().writes.len(), 3);
        assert_eq!(bodies(&heard().bytes).concat(), flight()[5..]);
    }

    #[tokio::test]
    async fn segments_over_a_socket_arrive_whole() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut conn: BoxStream = Box::new(culvert_core::TcpConn::new(near));
        let delay = Some(Duration::from_millis(1));
        let fragment = Fragment { segments: true, records: false, fallback_delay: delay };
        write(&mut conn, &flight(), fragment).await.unwrap();
        drop(conn);
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, flight());
    }
}
