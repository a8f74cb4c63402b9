//! Which counters have been seen: a window of bits that slides (RFC 6479).

/// Bits in the window. One word of them is being cleared while the window moves on.
const BITS: u64 = 8192;
const WORD: u64 = 64;
const WORDS: usize = (BITS / WORD) as usize;

/// How far a counter may lie behind the highest one.
pub(crate) const WINDOW: u64 = BITS - WORD;

/// The counters of one direction of a session.
pub(crate) struct Replay {
    /// One more than the highest counter.
    next: u64,
    seen: [u64; WORDS],
}

impl Default for Replay {
    fn default() -> Self {
        Self { next: 0, seen: [0; WORDS] }
    }
}

impl Replay {
    /// Whether this counter comes for the first time; from then on it has been seen.
    pub(crate) fn accept(&mut self, counter: u64) -> bool {
        if counter >= self.next {
            let (from, to) = (self.next.saturating_sub(1) / WORD, counter / WORD);
            for word in from + 1..=to.min(from + WORDS as u64) {
                self.seen[word as usize % WORDS] = 0;
            }
            self.next = counter + 1;
        } else if self.next - counter > WINDOW {
            return false;
        }
        let (word, bit) = ((counter / WORD) as usize % WORDS, 1 << (counter % WORD));
        let seen = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        !seen
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_counter_comes_once_and_old_ones_not_at_all() {
        let mut replay = Replay::default();
        assert!(replay.accept(0));
        assert!(!replay.accept(0));
        assert!(replay.accept(WINDOW));
        assert!(replay.accept(1), "the last that is in");
        assert!(!replay.accept(0), "the first that is out");
        assert!(replay.accept(WINDOW - 1) && !replay.accept(WINDOW - 1));
        assert!(replay.accept(1 << 40), "a leap clears everything");
        assert!(!replay.accept(WINDOW));
        assert!(replay.accept((1 << 40) - WINDOW + 1));
        assert!(!replay.accept((1 << 40) - WINDOW));
    }

    proptest! {
        #[test]
        fn it_is_a_set_that_forgets(steps in prop::collection::vec((any::<bool>(), 0u64..20_000), 1..400)) {
            let (mut replay, mut model, mut base) = (Replay::default(), HashSet::new(), 0u64);
            for (forward, step) in steps {
                let counter = if forward { base + step % 300 } else { base.saturating_sub(step) };
                let in_window = counter >= base || base + 1 - counter <= WINDOW;
                let expected = in_window && !model.contains(&counter);
                prop_assert_eq!(replay.accept(counter), expected, "{} at {}", counter, base);
                model.insert(counter);
                base = base.max(counter);
            }
        }
    }
}
