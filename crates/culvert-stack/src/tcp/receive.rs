//! What a connection has received: bytes in order that nobody has taken yet, and pieces beyond a gap.
//!
//! Payload stays in the piece of memory it came in, unless that is far larger than the payload: then it is copied to the
//! end of what is there, so that small segments do not each hold a receive buffer.

use culvert_wire::{Buf, BufChain};

use super::Seq;
use super::segment::Blocks;

/// Most pieces that are kept beyond a gap.
const MOST_PIECES: usize = 256;

/// A piece whose memory is more than so many times its bytes is copied.
const WASTE: usize = 4;

/// The receiving side of a connection's data.
#[derive(Default)]
pub struct Receiver {
    /// In order, not taken yet.
    ready: BufChain,
    /// Beyond a gap: where each begins, in order, without overlaps.
    beyond: Vec<(Seq, Buf)>,
    /// The piece beyond that came last, which SACK names first (RFC 2018 section 4).
    newest: Option<Seq>,
}

impl Receiver {
    /// Bytes in order that wait to be taken.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes all of them.
    pub fn take(&mut self) -> BufChain {
        std::mem::take(&mut self.ready)
    }

    /// Whether something lies beyond a gap.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Gives all memory back.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes in a payload that begins at `seq` and lies within the window; `next` is the byte waited for. Returns the
    /// byte waited for from here on.
    pub fn add(&mut self, next: Seq, seq: Seq, mut payload: Buf) -> Seq {
        let old = next.after(seq);
        if old > 0 {
            if old as usize >= payload.len() {
                return next;
            }
            payload.advance(old as usize);
        } else if old < 0 {
            self.add_beyond(seq, payload);
            return next;
        }
        let mut next = next + payload.len() as u32;
        self.push_ready(payload);
        // The gap may be closed now.
        let mut closed = 0;
        for at in 0..self.beyond.len() {
            let (seq, piece) = &self.beyond[at];
            let old = next.after(*seq);
            if old < 0 {
                break;
            }
            closed += 1;
            let fresh = piece.len().saturating_sub(old as usize);
            if fresh == 0 {
                continue;
            }
            let mut piece = std::mem::replace(&mut self.beyond[at].1, Buf::from(Vec::new()));
            piece.advance(old as usize);
            next += fresh as u32;
            self.push_ready(piece);
        }
        self.beyond.drain(..closed);
        if self.beyond.is_empty() {
            self.beyond = Vec::new(); // gives its memory back
            self.newest = None;
        }
        next
    }

    fn push_ready(&mut self, piece: Buf) {
        if is_wasteful(&piece) {
            self.ready.append_copy(&piece);
        } else {
            self.ready.push_back(piece);
        }
    }

    /// Keeps what is not there yet.
    fn add_beyond(&mut self, mut seq: Seq, mut payload: Buf) {
        self.newest = Some(seq);
        let mut at = self.beyond.partition_point(|(start, _)| start.after(seq) <= 0);
        // What the one before has already.
        if let Some((start, piece)) = at.checked_sub(1).and_then(|before| self.beyond.get(before)) {
            let old = (*start + piece.len() as u32).after(seq);
            if old > 0 {
                if old as usize >= payload.len() {
                    return;
                }
                payload.advance(old as usize);
                seq += old as u32;
            }
        }
        while !payload.is_empty() && self.beyond.len() < MOST_PIECES {
            let end = seq + payload.len() as u32;
            let Some((start, piece)) = self.beyond.get(at) else {
                self.beyond.insert(at, (seq, snug(payload)));
                return;
            };
            let (start, piece_end) = (*start, *start + piece.len() as u32);
            if start.after(end) >= 0 {
                self.beyond.insert(at, (seq, snug(payload)));
                return;
            }
            // It reaches into the next one: the part before that is new, and perhaps one behind it.
            let fresh = start.after(seq).max(0) as usize;
            if fresh > 0 {
                self.beyond.insert(at, (seq, Buf::copied(&payload[..fresh])));
                at += 1;
            }
            at += 1;
            let covered = (piece_end - seq) as usize;
            if covered >= payload.len() {
                return;
            }
            payload.advance(covered);
            seq = piece_end;
        }
    }

    /// What lies beyond gaps as runs, the newest first.
    #[must_use]
    pub fn blocks(&self) -> Blocks {
        let mut runs: Vec<(Seq, Seq)> = Vec::new();
        for (start, piece) in &self.beyond {
            let end = *start + piece.len() as u32;
            match runs.last_mut() {
                Some((_, last)) if *last == *start => *last = end,
                _ => runs.push((*start, end)),
            }
        }
        let holds = |(from, to): &(Seq, Seq)| {
            self.newest.is_some_and(|newest| !newest.is_before(*from) && newest.is_before(*to))
        };
        let mut blocks = Blocks::default();
        for (from, to) in runs.iter().filter(|run| holds(run)).chain(runs.iter().filter(|run| !holds(run))) {
            blocks.push(*from, *to);
        }
        blocks
    }
}

/// Whether a piece takes far more memory than it has bytes.
fn is_wasteful(piece: &Buf) -> bool {
    piece.head() + piece.len() + piece.spare() > piece.len() * WASTE
}

fn snug(piece: Buf) -> Buf {
    if is_wasteful(&piece) { Buf::from(piece.to_vec()) } else { piece }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(from: usize, to: usize) -> Buf {
        Buf::copied(&(from..to).map(|at| (at * 7) as u8).collect::<Vec<_>>())
    }

    #[test]
    fn the_newest_run_is_named_first() {
        let mut receiver = Receiver::default();
        let next = Seq(0);
        for (from, to) in [(10, 20), (40, 50), (20, 25)] {
            assert_eq!(receiver.add(next, Seq(from), bytes(from as usize, to)), next);
        }
        assert_eq!(receiver.blocks().as_slice(), [(Seq(10), Seq(25)), (Seq(40), Seq(50))]);
        assert_eq!(receiver.add(next, Seq(0), bytes(0, 10)), Seq(25));
        assert_eq!(receiver.blocks().as_slice(), [(Seq(40), Seq(50))]);
        assert_eq!(receiver.ready(), 25);
    }

    #[test]
    fn small_segments_do_not_hold_large_buffers() {
        let mut receiver = Receiver::default();
        let mut next = Seq(0);
        for at in 0..100 {
            let mut piece = Buf::new(64 << 10, 0, 0);
            piece.append(&[at as u8; 10]);
            next = receiver.add(next, next, piece);
        }
        assert_eq!(next, Seq(1000));
        assert_eq!(receiver.take().pieces(), 1);
    }

    proptest! {
        #[test]
        fn any_pieces_in_any_order_give_the_stream(
            start in any::<u32>(),
            len in 1usize..500,
            pieces in prop::collection::vec((0usize..500, 1usize..80), 0..60),
        ) {
            let start = Seq(start);
            let mut receiver = Receiver::default();
            let mut next = start;
            let whole: Vec<(usize, usize)> = (0..len).step_by(9).map(|at| (at, 9)).collect();
            for (from, count) in pieces.into_iter().chain(whole.into_iter().rev()) {
                let (from, to) = (from.min(len - 1), (from + count).min(len));
                if from >= to {
                    continue;
                }
                next = receiver.add(next, start + from as u32, bytes(from, to));
                let got = receiver.ready();
                prop_assert_eq!(next - start, got as u32);
                for (from, to) in receiver.blocks().as_slice() {
                    prop_assert!(next.is_before(*from) && from.is_before(*to));
                }
            }
            prop_assert_eq!(next, start + len as u32);
            prop_assert_eq!(receiver.take().to_vec(), bytes(0, len).to_vec());
            prop_assert!(!receiver.has_gap());
        }
    }
}
