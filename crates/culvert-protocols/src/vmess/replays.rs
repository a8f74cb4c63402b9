//! What clients have sent that must not come twice.
//!
//! An entry names a second of the client's clock and is of use only until that second is so old that the request would be
//! refused for it: then it is forgotten, not before. So nothing can be replayed at all, and memory follows from the rate of
//! connections. It is bounded: when it is full, users who hold more than their share of it are refused.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use super::users::WINDOW;

/// Entries in all, about 16 MB.
const MOST: usize = 1 << 20;
/// Seconds that are forgotten together.
const SPAN: u64 = 32;

/// What is known of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Fresh,
    Replayed,
    /// There is no memory for it.
    Full,
}

pub(super) struct Replays {
    hasher: RandomState,
    spans: Vec<Span>,
    /// Entries in all spans.
    len: usize,
    most: usize,
}

struct Span {
    /// Its first second is this times [`SPAN`].
    number: u64,
    /// Hashes under a key that nobody knows.
    seen: HashSet<u64>,
    by_user: HashMap<usize, usize>,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self::with_room_for(MOST)
    }

    fn with_room_for(most: usize) -> Self {
        Self { hasher: RandomState::new(), spans: Vec::new(), len: 0, most }
    }

    /// Notes what one of `users` users has sent, with the second that it names. That second is in the window around `now`.
    pub(super) fn note(&mut self, what: &[u8], time: u64, user: usize, users: usize, now: u64) -> Verdict {
        self.spans.retain(|span| (span.number + 1) * SPAN + WINDOW > now);
        self.len = self.spans.iter().map(|span| span.seen.len()).sum();
        let hash = self.hasher.hash_one(what);
        let number = time / SPAN;
        if self.spans.iter().any(|span| span.number == number && span.seen.contains(&hash)) {
            return Verdict::Replayed;
        }
        if self.len >= self.most && self.held_by(user) >= self.most / users.max(1) {
            return Verdict::Full;
        }
        let index = self.spans.iter().position(|span| span.number == number).unwrap_or_else(|| {
            self.spans.push(Span { number, seen: HashSet::new(), by_user: HashMap::new() });
            self.spans.len() - 1
        });
        let span = &mut self.spans[index];
        span.seen.insert(hash);
        *span.by_user.entry(user).or_default() += 1;
        Verdict::Fresh
    }

    fn held_by(&self, user: usize) -> usize {
        self.spans.iter().filter_map(|span| span.by_user.get(&user)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_twice_while_its_time_is_good() {
        let mut replays = Replays::new();
        // From a clock that is as much ahead as it may be, to the last second at which that time is not too old.
        let (sent, time) = (1_700_000_000, 1_700_000_000 + WINDOW);
        assert_eq!(replays.note(b"id", time, 0, 1, sent), Verdict::Fresh);
        for now in (sent..=time + WINDOW).step_by(7).chain([time + WINDOW]) {
            assert_eq!(replays.note(b"id", time, 0, 1, now), Verdict::Replayed, "{}", now - sent);
        }
        assert_eq!(replays.note(b"other", time + 500, 0, 1, time + 500), Verdict::Fresh);
        assert_eq!(replays.spans.len(), 1, "what can never be good again is forgotten");
    }

    #[test]
    fn a_user_who_fills_it_locks_nobody_else_out() {
        let mut replays = Replays::with_room_for(100);
        let mut verdicts = (0..200u8).map(|n| replays.note(&[n], 1000, 0, 2, 1000)).collect::<Vec<_>>();
        assert_eq!(verdicts.split_off(100), [Verdict::Full; 100]);
        assert_eq!(verdicts, [Verdict::Fresh; 100]);
        let other = (0..200u8).filter(|n| replays.note(&[*n, 1], 1000, 1, 2, 1000) == Verdict::Fresh);
        assert_eq!(other.count(), 50, "its share, and no more");
        assert_eq!(replays.note(&[0], 1000, 0, 2, 1000), Verdict::Replayed);
    }
}
