//! Both directions of a path.

use std::time::Instant;

use crate::shape::Shape;
use crate::way::{Counts, Way};

/// A path between end 0 and end 1.
pub struct Path<P> {
    /// By the end that sends.
    ways: [Way<P>; 2],
}

impl<P: Clone> Path<P> {
    /// A path whose directions have these shapes, each by the end that sends.
    #[must_use]
    pub fn new(shapes: [Shape; 2], seed: u64) -> Self {
        let [forth, back] = shapes;
        Self { ways: [Way::new(forth, seed), Way::new(back, !seed)] }
    }

    /// Gives both directions other shapes from here on.
    pub fn reshape(&mut self, shapes: [Shape; 2]) {
        for (way, shape) in self.ways.iter_mut().zip(shapes) {
            way.reshape(shape);
        }
    }

    /// End `from` sends a packet of `len` bytes.
    ///
    /// # Panics
    /// `from` is neither 0 nor 1.
    pub fn offer(&mut self, from: usize, packet: P, len: usize, now: Instant) {
        self.ways[from].offer(packet, len, now);
    }

    /// When the next packet arrives, at either end.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.ways.iter().filter_map(Way::next_arrival).min()
    }

    /// The next packet that has arrived at end `to` by `now`.
    ///
    /// # Panics
    /// `to` is neither 0 nor 1.
    pub fn take(&mut self, to: usize, now: Instant) -> Option<P> {
        self.ways[1 - to].take(now)
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ways.iter().all(Way::is_empty)
    }

    /// What has happened to the packets of each end.
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        [self.ways[0].counts(), self.ways[1].counts()]
    }
}
