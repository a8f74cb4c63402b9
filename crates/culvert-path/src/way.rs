//! One direction of a path, without I/O.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::shape::{Loss, Shape};

/// What has happened to packets so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Packets that were offered.
    pub offered: u64,
    /// Of those, how many the dice said to lose.
    pub lost: u64,
    /// Of those, how many the queue had no place for.
    pub overflowed: u64,
    /// Packets that were sent on once more.
    pub repeated: u64,
    /// Packets that were held up.
    pub held_up: u64,
    /// Packets that were taken at the other end.
    pub delivered: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A packet under way. The earliest, and of those the first offered, is the greatest.
struct Flight<P> {
    key: Reverse<(Instant, u64)>,
    len: usize,
    packet: P,
}

impl<P> Flight<P> {
    fn at(&self) -> Instant {
        self.key.0.0
    }
}

impl<P> PartialEq for Flight<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<P> Eq for Flight<P> {}

impl<P> PartialOrd for Flight<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Flight<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// One direction of a path. [`Way::offer`] a packet, wait until [`Way::next_arrival`], [`Way::take`] what has arrived.
///
/// A packet costs no search as long as packets arrive in the order they left; only overtakers go through a heap.
pub struct Way<P> {
    shape: Shape,
    losses: Dice,
    repeats: Dice,
    delays: Dice,
    lates: Dice,
    /// The chain of [`Loss::Bursty`] is in its bad state.
    bad: bool,
    /// When the bottleneck has sent all it was given, and what is left of a nanosecond then, times the rate.
    free_at: Option<Instant>,
    rest: u128,
    line: VecDeque<Flight<P>>,
    strays: BinaryHeap<Flight<P>>,
    number: u64,
    counts: Counts,
}

impl<P: Clone> Way<P> {
    /// A way of this shape whose dice fall by `seed`.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self {
            shape,
            losses: Dice::new(seed, 1),
            repeats: Dice::new(seed, 2),
            delays: Dice::new(seed, 3),
            lates: Dice::new(seed, 4),
            bad: false,
            free_at: None,
            rest: 0,
            line: VecDeque::new(),
            strays: BinaryHeap::new(),
            number: 0,
            counts: Counts::default(),
        }
    }

    /// Gives it another shape from here on. What is under way arrives as it would have.
    pub fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty() && self.strays.is_empty()
    }

    /// Bytes that wait in front of the bottleneck.
    #[must_use]
    pub fn backlog(&self, now: Instant) -> usize {
        let (Some(rate), Some(free_at)) = (self.shape.rate, self.free_at) else { return 0 };
        let wait = free_at.saturating_duration_since(now);
        usize::try_from(wait.as_nanos() * u128::from(rate) / 8_000_000_000).unwrap_or(usize::MAX)
    }

    /// Sends a packet of `len` bytes on its way. `now` never goes back from one call to the next.
    pub fn offer(&mut self, packet: P, len: usize, now: Instant) {
        self.counts.offered += 1;
        if self.loses() {
            self.counts.lost += 1;
            return;
        }
        if self.repeats.chance(self.shape.repeat) {
            self.counts.repeated += 1;
            self.pass(packet.clone(), len, now);
        }
        self.pass(packet, len, now);
    }

    fn loses(&mut self) -> bool {
        match self.shape.loss {
            Loss::None => false,
            Loss::Random(chance) => self.losses.chance(chance),
            Loss::Bursty { begin, end, inside } => {
                let turns = self.losses.chance(if self.bad { end } else { begin });
                self.bad ^= turns;
                self.bad && self.losses.chance(inside)
            }
        }
    }

    /// Through the bottleneck and onto the line.
    fn pass(&mut self, packet: P, len: usize, now: Instant) {
        let Some(left) = self.squeeze(len, now) else {
            self.counts.overflowed += 1;
            return;
        };
        let mut delay = self.shape.delay;
        if !self.shape.jitter.is_zero() {
            let shift = self.shape.jitter.mul_f64(2.0 * self.delays.fraction());
            delay = (delay + shift).saturating_sub(self.shape.jitter);
        }
        let mut at = left + delay;
        self.number += 1;
        let stray = self.lates.chance(self.shape.reorder);
        let last = self.line.back().map(Flight::at);
        if stray {
            self.counts.held_up += 1;
            at += self.shape.late;
        } else if !self.shape.jitter_reorders {
            at = last.map_or(at, |last| last.max(at));
        }
        let flight = Flight { key: Reverse((at, self.number)), len, packet };
        if stray || last.is_some_and(|last| last > at) {
            self.strays.push(flight);
        } else {
            self.line.push_back(flight);
        }
    }

    /// When the bottleneck has sent the packet; `None` if the queue has no place for it.
    fn squeeze(&mut self, len: usize, now: Instant) -> Option<Instant> {
        let Some(rate) = self.shape.rate else { return Some(now) };
        let rate = u128::from(rate.max(1));
        let from = match self.free_at {
            Some(free_at) if free_at > now => free_at,
            _ => {
                self.rest = 0;
                now
            }
        };
        // A packet that finds the bottleneck idle never waits, so it needs no place.
        if from > now && self.backlog(now) + len > self.shape.queue {
            return None;
        }
        let scaled = len as u128 * 8_000_000_000 + self.rest;
        self.rest = scaled % rate;
        let left = from + Duration::from_nanos(u64::try_from(scaled / rate).unwrap_or(u64::MAX));
        self.free_at = Some(left);
        Some(left)
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        let line = self.line.front().map(Flight::at);
        let stray = self.strays.peek().map(Flight::at);
        line.into_iter().chain(stray).min()
    }

    /// The next packet that has arrived by `now`.
    pub fn take(&mut self, now: Instant) -> Option<P> {
        let stray_first = match (self.line.front(), self.strays.peek()) {
            (Some(line), Some(stray)) => stray > line,
            (line, _) => line.is_none(),
        };
        let next = if stray_first { self.strays.peek() } else { self.line.front() };
        if next?.at() > now {
            return None;
        }
        let flight = if stray_first { self.strays.pop() } else { self.line.pop_front() }?;
        self.counts.delivered += 1;
        self.counts.bytes += flight.len as u64;
        Some(flight.packet)
    }
}

#[cfg(test)]
mod tests;
