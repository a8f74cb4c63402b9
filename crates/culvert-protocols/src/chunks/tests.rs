//! The halves with chunks that are not sealed at all, so that only what they add is seen.

use culvert_core::StreamConn;
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::duplex;
use proptest::prelude::*;

use super::*;
use culvert_wire::BufChain;

/// `| length 2 | data | 0xEE |`
struct Bare {
    max: usize,
}

impl Seal for Bare {
    fn room(&self) -> Room {
        Room { head: 2, tail: 1, max: self.max }
    }

    fn seal(&mut self, piece: &mut Buf) {
        assert!(piece.len() <= self.max);
        let len = piece.len() as u16;
        piece.append(&[0xEE]);
        piece.prepend(&len.to_be_bytes());
    }
}

impl Open for Bare {
    const HEAD: usize = 2;

    fn head(&mut self, head: &mut [u8]) -> Result<usize, Fault> {
        let len = u16::from_be_bytes([head[0], head[1]]);
        if usize::from(len) > self.max { Err(Fault::Length) } else { Ok(usize::from(len) + 1) }
    }

    fn space_for(&self, len: usize) -> usize {
        len - 1
    }

    fn open(&mut self, body: &mut [u8]) -> Result<Range<usize>, Fault> {
        if body.last() == Some(&0xEE) { Ok(0..body.len() - 1) } else { Err(Fault::Tag) }
    }

    fn open_into(&mut self, body: &mut [u8], to: &mut [u8]) -> Result<usize, Fault> {
        let data = self.open(body)?;
        to.copy_from_slice(&body[data.clone()]);
        Ok(data.len())
    }
}

fn pieces(bytes: &[u8], cuts: &[usize], head: usize, tail: usize) -> BufChain {
    let (mut chain, mut rest) = (BufChain::new(), bytes);
    for cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*cut).min(rest.len()));
        let mut piece = Buf::new(now.len(), head, tail);
        piece.append(now);
        chain.push_back(piece);
        rest = later;
    }
    chain
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cut_gives_the_same_bytes(
        len in 0usize..200_000,
        max in 1usize..70_000,
        written in prop::collection::vec(1usize..70_000, 1..6),
        read in prop::collection::vec(1usize..300_000, 1..6),
        room in prop::option::of((0usize..80, 0usize..40, 1usize..20_000)),
        has_room in any::<bool>(),
    ) {
        let max = max.max(len / 500 + 1).min(0xFFFE);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 / 3) as u8).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut near, mut far) = duplex(1 << 24);
            let mut writing = Writing::new(Bare { max }, BufChain::new());
            let (head, tail) = if has_room { (90, 50) } else { (0, 0) };
            let mut data = pieces(&bytes, &written, head, tail);
            std::future::poll_fn(|cx| writing.poll_write_chain(cx, &mut near, &mut data)).await.unwrap();
            assert!(writing.is_empty() && data.is_empty());
            drop(near);
            let mut sealed = Vec::new();
            loop {
                let chain = read_chain(&mut far, Room::NONE).await.unwrap();
                if chain.is_empty() { break }
                sealed.extend(chain.to_vec());
            }

            // What one read brings is one piece each.
            let (mut near, mut far) = duplex(1 << 24);
            let mut raw = pieces(&sealed, &read, 0, 0);
            write_chain(&mut near, &mut raw).await.unwrap();
            drop(near);
            let mut reading = Reading::new(Bare { max }, BufChain::new());
            let room = room.map_or(Room::NONE, |(head, tail, most)| Room { head, tail, max: most });
            let mut plain = Vec::new();
            loop {
                let chain = std::future::poll_fn(|cx| reading.poll_read_chain(cx, &mut far, room)).await.unwrap();
                if chain.is_empty() { break }
                for piece in chain.iter() {
                    assert!(piece.head() >= room.head && piece.spare() >= room.tail);
                }
                plain.extend(chain.to_vec());
            }
            assert!(reading.is_empty());
            assert!(plain == bytes);
        });
    }
}

#[tokio::test]
async fn a_small_piece_in_front_becomes_part_of_the_next() {
    let (mut near, mut far) = duplex(1 << 16);
    let mut writing = Writing::new(Bare { max: 1000 }, BufChain::new());
    let mut data = pieces(b"head", &[4], 0, 0);
    data.append(&mut pieces(b"payload", &[7], 40, 10));
    std::future::poll_fn(|cx| writing.poll_write_chain(cx, &mut near, &mut data)).await.unwrap();
    let sent = read_chain(&mut far, Room::NONE).await.unwrap();
    assert_eq!(sent.to_vec(), b"\0\x0bheadpayload\xee");
}

/// Takes whatever comes, as a layer does, and is pending until `go`.
struct Holding {
    taken: usize,
    go: bool,
}

#[tokio::test]
async fn nothing_more_is_sealed_while_the_layer_below_holds_back() {
    let mut below = Holding { taken: 0, go: false };
    let mut writing = Writing::new(Bare { max: 1000 }, BufChain::new());
    let mut poll = |below: &mut Holding, data: &mut BufChain| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        writing.poll_write_chain(&mut cx, below, data).is_ready()
    };
    assert!(!poll(&mut below, &mut BufChain::copied(b"one")));
    assert_eq!(below.taken, 6);
    assert!(!poll(&mut below, &mut BufChain::new()), "what it holds counts as not written");
    let mut more = BufChain::copied(b"two");
    assert!(!poll(&mut below, &mut more));
    assert_eq!((below.taken, more.len()), (6, 3));
    below.go = true;
    assert!(poll(&mut below, &mut more));
    assert_eq!((below.taken, more.len()), (12, 0));
}

impl StreamConn for Holding {
    fn poll_write_chain(
        &mut self,
        _: &mut std::task::Context<'_>,
        data: &mut BufChain,
    ) -> std::task::Poll<io::Result<()>> {
        self.taken += std::mem::take(data).len();
        if self.go { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
    }
}

impl tokio::io::AsyncRead for Holding {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Pending
    }
}

impl tokio::io::AsyncWrite for Holding {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::task::Poll::Pending
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Pending
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Pending
    }
}

#[test]
fn no_piece_is_larger_than_the_pool_has() {
    let chunk = [&[0xFF, 0xFE][..], &[7; 0xFFFE], &[0xEE]].concat();
    let sealed = chunk.repeat(Buf::LARGEST / chunk.len() + 2);
    let mut reading = Reading::new(Bare { max: 0xFFFE }, pieces(&sealed, &[Buf::LARGEST], 0, 0));
    for room in [Room::NONE, Room { head: 40, tail: 20, max: usize::MAX }] {
        let opened = reading.open(room).unwrap();
        for piece in opened.iter() {
            assert!(piece.head() + piece.len() + piece.spare() <= Buf::LARGEST);
        }
        reading.take_in(pieces(&sealed, &[Buf::LARGEST], 0, 0));
    }
}

#[test]
fn data_comes_out_before_the_fault_behind_it() {
    let mut reading = Reading::new(Bare { max: 9 }, BufChain::copied(b"\0\x02ab\xee\0\x01c!\0\x01d\xee"));
    assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), b"ab");
    assert_eq!(reading.open(Room::NONE).unwrap_err(), Fault::Tag);
    assert_eq!(reading.open(Room::NONE).unwrap_err(), Fault::Failed);
    assert!(reading.is_empty());
    let mut reading = Reading::new(Bare { max: 9 }, BufChain::copied(b"\0\x0a"));
    assert_eq!(reading.open(Room::NONE).unwrap_err(), Fault::Length);
}

#[tokio::test]
async fn only_the_beginning_of_a_chunk_is_held_and_its_end_is_waited_for() {
    let mut reading = Reading::new(Bare { max: 60_000 }, BufChain::new());
    let mut long = Buf::new(256 << 10, 0, 0);
    long.append(b"\0\x02ab\xee\x80\0rest");
    reading.take_in(long.into());
    assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), b"ab");
    assert!(reading.memory() < 70_000, "a long read's memory is held for four bytes");
    let (near, mut far) = duplex(10);
    drop(near);
    let end = std::future::poll_fn(|cx| reading.poll_read_chain(cx, &mut far, Room::NONE)).await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // Also where the stream ends right behind a head.
    let mut reading = Reading::new(Bare { max: 9 }, BufChain::copied(b"\0\x02"));
    let end = std::future::poll_fn(|cx| reading.poll_read_chain(cx, &mut far, Room::NONE)).await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_chunk_alone_is_opened_in_its_own_memory() {
    let mut raw = Buf::new(5, 40, 20);
    raw.append(b"\0\x02ab\xee");
    let place = raw.as_ptr() as usize;
    let mut reading = Reading::new(Bare { max: 9 }, raw.into());
    let opened = reading.open(Room { head: 42, tail: 21, max: 100 }).unwrap();
    assert_eq!(opened.front().as_ptr() as usize, place + 2);
}
