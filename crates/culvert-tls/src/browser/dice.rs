//! Random choices.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

/// Fills `to` with random bytes.
pub(super) fn fill(to: &mut [u8]) {
    SystemRandom::new().fill(to).expect("the system has random numbers, or no key could be made");
}

/// Random bytes.
pub(super) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// A number below `limit`, which is small.
pub(super) fn below(limit: usize) -> usize {
    (u64::from_be_bytes(bytes()) % limit as u64) as usize
}

/// Whether something happens that happens so many times in a hundred.
pub(super) fn happens(percent: usize) -> bool {
    below(100) < percent
}

/// One of these, each as likely as the other.
pub(super) fn one_of<T>(choices: &[T]) -> &T {
    &choices[below(choices.len())]
}

/// Puts these into any order, each as likely as the other.
pub(super) fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(last + 1));
    }
}
