//! TCP connections, one [`Conn`] each, without I/O: segments in, segments out, time passed in.
//!
//! | file | holds |
//! |---|---|
//! | [`segment`] | heads and options, read and written |
//! | [`receive`] | what has come: in order, and out of it |
//! | [`send`] | what is to go, what is on its way, what is lost (SACK, RACK) |
//! | [`congestion`] | how much may be on its way (CUBIC) |
//! | [`rtt`] | how long a round trip takes, and when to give up waiting |
//! | [`conn`] | the state machine that joins them |
//!
//! What is left out on purpose: urgent data (it is payload), delayed ACKs for longer than a batch of packets needs,
//! Nagle's algorithm (a proxy's writes are what its peer has flushed), TCP Fast Open, ECN, keep-alive (the relay's idle
//! limits end what is dead).

pub mod congestion;
pub mod conn;
pub mod receive;
pub mod rtt;
pub mod segment;
pub mod send;

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

pub(crate) use conn::Conn;

/// A sequence number: a place on a circle, so only distances of less than half of it mean anything.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Seq(pub u32);

impl Seq {
    /// How far `self` is behind `other` in the order of the stream: negative if it comes first.
    #[must_use]
    pub fn after(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether it comes before `other`.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.after(other) < 0
    }

    /// The later one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

/// Bytes from `other` to `self`, which does not come before it.
impl Sub for Seq {
    type Output = u32;

    fn sub(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
