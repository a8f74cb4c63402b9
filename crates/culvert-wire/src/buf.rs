//! One piece of pooled memory and the bytes in it.
//!
//! ```text
//!  0        start            end        capacity
//!  |  head  |  bytes (Deref)  |  spare   |
//! ```
//!
//! A layer that must put something around the bytes (a length, a tag) says how much in a [`Room`]; whoever fills the
//! piece leaves that much, and the layer then works in place.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::pool;

/// Space that a layer wants around each piece given to it, so that it can seal in place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Bytes before the data.
    pub head: usize,
    /// Bytes after the data.
    pub tail: usize,
    /// Most bytes of data in one piece (a record layer's limit).
    pub max: usize,
}

impl Room {
    /// No space at all and pieces of any length.
    pub const NONE: Self = Self { head: 0, tail: 0, max: usize::MAX };

    /// What an outer layer needs together with an inner one: the data of one piece passes through both.
    #[must_use]
    pub fn around(self, inner: Self) -> Self {
        Self {
            head: self.head + inner.head,
            tail: self.tail + inner.tail,
            max: inner.max.min(self.max.saturating_sub(inner.head + inner.tail)),
        }
    }

    /// Whether pieces of any shape will do.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl Default for Room {
    fn default() -> Self {
        Self::NONE
    }
}

/// A piece of memory from the thread's pool with bytes in its middle. Dropping it gives the memory back.
pub struct Buf {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buf {
    /// Most bytes of memory that come from the pool, room included. Larger pieces are mapped and cleared for each use.
    pub const LARGEST: usize = pool::CLASSES[pool::CLASSES.len() - 1].size;

    /// An empty piece that can take at least `capacity` bytes between `head` and `tail` bytes of room.
    #[must_use]
    pub fn new(capacity: usize, head: usize, tail: usize) -> Self {
        Self { memory: pool::take(head + capacity + tail), start: head, end: head }
    }

    /// A piece holding a copy of `bytes`, with no room promised.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len(), 0, 0);
        buf.append(bytes);
        buf
    }

    /// How many bytes could still be put before the data.
    #[must_use]
    pub fn head(&self) -> usize {
        self.start
    }

    /// The unused memory after the data; [`Buf::grow`] makes what was written there part of the data.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.end..]
    }

    /// How many bytes could still be put after the data.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.memory.len() - self.end
    }

    /// Makes the first `count` bytes of the spare part of the data.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn grow(&mut self, count: usize) {
        assert!(count <= self.spare(), "grow beyond the spare");
        self.end += count;
    }

    /// Puts `bytes` before the data.
    ///
    /// # Panics
    /// If the head has no room for them; a layer asks for what it needs through its [`Room`].
    pub fn prepend(&mut self, bytes: &[u8]) {
        self.start = self.start.checked_sub(bytes.len()).expect("prepend beyond the head room");
        self.memory[self.start..self.start + bytes.len()].copy_from_slice(bytes);
    }

    /// Puts `bytes` after the data.
    ///
    /// # Panics
    /// If the spare has no room for them.
    pub fn append(&mut self, bytes: &[u8]) {
        self.memory[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Drops the first `count` bytes of the data.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance beyond the data");
        self.start += count;
    }

    /// Keeps the first `len` bytes of the data; does nothing if there are not more.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }
}

/// So that a piece can be the memory behind other kinds of buffers.
impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        pool::give(std::mem::take(&mut self.memory));
    }
}

/// Takes over the memory of a vector; it does not come from the pool and does not go there.
impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { memory: bytes.into_boxed_slice(), start: 0, end }
    }
}

/// Shows the shape only: payload never reaches a log.
impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({}+{}+{})", self.start, self.len(), self.spare())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_there_on_both_sides() {
        let mut buf = Buf::new(3, 2, 4);
        buf.append(b"abc");
        buf.prepend(b"12");
        buf.append(b"wxyz");
        assert_eq!(&*buf, b"12abcwxyz");
        assert_eq!(buf.head(), 0);
    }

    #[test]
    fn advance_and_truncate_keep_the_middle() {
        let mut buf = Buf::copied(b"abcdef");
        buf.advance(2);
        buf.truncate(2);
        buf.truncate(100);
        assert_eq!(&*buf, b"cd");
    }

    #[test]
    fn nested_rooms_add_up() {
        let tls = Room { head: 5, tail: 17, max: 16384 };
        let chunk = Room { head: 2, tail: 16, max: 0x3fff };
        let both = tls.around(chunk);
        assert_eq!((both.head, both.tail), (7, 33));
        assert_eq!(both.max, 16384 - 18, "the chunk with its head and tail must fit into one record");
        assert_eq!(Room::NONE.around(Room::NONE), Room { head: 0, tail: 0, max: usize::MAX });
    }

    #[test]
    fn debug_shows_no_payload() {
        assert!(!format!("{:?}", Buf::copied(b"secret")).contains("secret"));
    }
}
