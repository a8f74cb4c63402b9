//! Repeatable random choices.

use serde_json::{Value, json};

/// A generator of random numbers (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// One to three of the list, as a JSON array.
    pub(crate) fn some(&mut self, list: &[&str]) -> Value {
        let count = 1 + self.below(3);
        json!((0..count).map(|_| *self.pick(list)).collect::<Vec<_>>())
    }

    /// The same of numbers.
    pub(crate) fn some_numbers(&mut self, list: &[u16]) -> Value {
        let count = 1 + self.below(2);
        json!((0..count).map(|_| *self.pick(list)).collect::<Vec<_>>())
    }
}
