//! A queue of pieces that together are one run of bytes.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;

use crate::{Buf, Room};

/// Pieces in order. No piece is ever empty, so `is_empty` on the chain means there are no bytes.
///
/// The first piece is held inline: a chain of one piece, the common case, allocates nothing besides the piece.
#[derive(Default)]
pub struct BufChain {
    first: Option<Buf>,
    rest: VecDeque<Buf>,
    len: usize,
}

impl BufChain {
    /// A chain without bytes; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: None, rest: VecDeque::new(), len: 0 }
    }

    /// A chain holding a copy of `bytes`.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut chain = Self::new();
        chain.append_copy(bytes);
        chain
    }

    /// Bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many pieces there are.
    #[must_use]
    pub fn pieces(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Puts a piece at the end; an empty one is dropped.
    pub fn push_back(&mut self, piece: Buf) {
        if piece.is_empty() {
            return;
        }
        self.len += piece.len();
        match self.first {
            None => self.first = Some(piece),
            Some(_) => self.rest.push_back(piece),
        }
    }

    /// Puts a piece at the front; an empty one is dropped.
    pub fn push_front(&mut self, piece: Buf) {
        if piece.is_empty() {
            return;
        }
        self.len += piece.len();
        if let Some(second) = self.first.replace(piece) {
            self.rest.push_front(second);
        }
    }

    /// Takes the first piece.
    pub fn pop_front(&mut self) -> Option<Buf> {
        let piece = std::mem::replace(&mut self.first, self.rest.pop_front())?;
        self.len -= piece.len();
        Some(piece)
    }

    /// Moves all of `other`'s pieces to the end of this chain.
    pub fn append(&mut self, other: &mut Self) {
        while let Some(piece) = other.pop_front() {
            self.push_back(piece);
        }
    }

    /// Copies `bytes` to the end: into the spare of the last piece as far as it goes, then into new pieces.
    pub fn append_copy(&mut self, mut bytes: &[u8]) {
        const PIECE: usize = 16 << 10;
        if let Some(last) = self.rest.back_mut().or(self.first.as_mut()) {
            let fits = last.spare().min(bytes.len());
            last.append(&bytes[..fits]);
            self.len += fits;
            bytes = &bytes[fits..];
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE));
            self.push_back(Buf::copied(now));
            bytes = later;
        }
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advance beyond the chain");
        while count > 0 {
            let first = self.first.as_mut().expect("bytes are left, so there is a piece");
            if first.len() > count {
                first.advance(count);
                self.len -= count;
                return;
            }
            count -= first.len();
            self.pop_front();
        }
    }

    /// Takes the first `count` bytes as a chain of their own: whole pieces are moved, the piece at the cut is copied.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn take_front(&mut self, mut count: usize) -> Self {
        assert!(count <= self.len, "take beyond the chain");
        let mut taken = Self::new();
        while count > 0 {
            let first = self.first.as_ref().expect("bytes are left, so there is a piece");
            if first.len() > count {
                taken.push_back(Buf::copied(&first[..count]));
                self.advance(count);
                break;
            }
            count -= first.len();
            taken.push_back(self.pop_front().expect("the piece just looked at"));
        }
        taken
    }

    /// Copies the pieces that have not `room` around them, or are too long for it, into ones that do.
    pub fn fit(&mut self, room: Room) {
        let fits =
            |piece: &Buf| piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max;
        if room.is_none() || self.iter().all(fits) {
            return;
        }
        let mut fitting = Self::new();
        while let Some(piece) = self.pop_front() {
            if fits(&piece) {
                fitting.push_back(piece);
                continue;
            }
            for part in piece.chunks(room.max) {
                let mut copy = Buf::new(part.len(), room.head, room.tail);
                copy.append(part);
                fitting.push_back(copy);
            }
        }
        *self = fitting;
    }

    /// The pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = &Buf> {
        self.first.iter().chain(&self.rest)
    }

    /// Fills `slices` from the front for a vectored write and returns how many were filled.
    pub fn io_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.iter()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Copies the first bytes into `to` without consuming them and returns how many were there.
    pub fn peek(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.iter() {
            let count = piece.len().min(to.len() - done);
            to[done..done + count].copy_from_slice(&piece[..count]);
            done += count;
        }
        done
    }

    /// The first piece's bytes; empty if there are none.
    #[must_use]
    pub fn front(&self) -> &[u8] {
        self.first.as_deref().unwrap_or_default()
    }

    /// All bytes in one slice: joins the pieces into one first where there are several, which copies them.
    pub fn contiguous(&mut self) -> &[u8] {
        if !self.rest.is_empty() {
            let mut joined = Buf::new(self.len, 0, 0);
            for piece in self.iter() {
                joined.append(piece);
            }
            *self = Self { len: joined.len(), first: Some(joined), rest: VecDeque::new() };
        }
        self.front()
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

impl From<Buf> for BufChain {
    fn from(piece: Buf) -> Self {
        let mut chain = Self::new();
        chain.push_back(piece);
        chain
    }
}

impl Extend<Buf> for BufChain {
    fn extend<I: IntoIterator<Item = Buf>>(&mut self, pieces: I) {
        pieces.into_iter().for_each(|piece| self.push_back(piece));
    }
}

/// Shows the shape only: payload never reaches a log.
impl fmt::Debug for BufChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufChain({} bytes in {} pieces)", self.len, self.pieces())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(pieces: &[&[u8]]) -> BufChain {
        let mut chain = BufChain::new();
        chain.extend(pieces.iter().map(|piece| Buf::copied(piece)));
        chain
    }

    #[test]
    fn empty_pieces_vanish() {
        let chain = chain(&[b"", b"a", b"", b"b"]);
        assert_eq!((chain.len(), chain.pieces()), (2, 2));
    }

    #[test]
    fn push_front_comes_first() {
        let mut chain = chain(&[b"b", b"c"]);
        chain.push_front(Buf::copied(b"a"));
        assert_eq!(chain.to_vec(), b"abc");
        assert_eq!(chain.contiguous(), b"abc");
        assert_eq!(chain.pieces(), 1);
    }

    proptest! {
        #[test]
        fn any_cut_keeps_every_byte(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8), cut in 0usize..400) {
            let whole: Vec<u8> = pieces.concat();
            let mut chain = BufChain::new();
            chain.extend(pieces.iter().map(|piece| Buf::copied(piece)));
            let cut = cut.min(whole.len());
            let mut seen = vec![0; cut];
            prop_assert_eq!(chain.peek(&mut seen), cut);
            prop_assert_eq!(&seen, &whole[..cut]);
            let taken = chain.take_front(cut);
            prop_assert_eq!(taken.to_vec(), &whole[..cut]);
            prop_assert_eq!(taken.len(), cut);
            prop_assert_eq!(chain.to_vec(), &whole[cut..]);
            let half = chain.len() / 2;
            chain.advance(half);
            prop_assert_eq!(chain.to_vec(), &whole[cut + half..]);
            let mut both = taken;
            both.append(&mut chain);
            prop_assert!(chain.is_empty());
            both.append_copy(b"tail");
            prop_assert_eq!(both.len(), whole.len() - half + 4);
            let mut slices = [IoSlice::new(&[]); 64];
            let count = both.io_slices(&mut slices);
            prop_assert_eq!(slices[..count].iter().map(|s| s.len()).sum::<usize>(), both.len());
        }
    }
}
