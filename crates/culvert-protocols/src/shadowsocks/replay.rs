//! What was seen before: salts of streams, and numbers of packets.

use std::collections::{HashSet, VecDeque};

/// How far a clock may be off, in seconds, either way.
pub(super) const CLOCKS: u64 = 30;

/// Whether a message with this time in it may be believed at `now`, both in seconds since 1970.
pub(super) fn is_timely(time: u64, now: u64) -> bool {
    time.abs_diff(now) <= CLOCKS
}

/// Seconds that share one set of salts.
const SLOT: u64 = 10;
/// Most salts at once. Only clients that know a key can add any: this many are a flood.
const SALTS: usize = 1 << 20;

/// As much of a salt as tells it from all others.
type Salt = [u8; 16];

/// The salts of streams that were begun within the time in which a copy of their first bytes could pass as new. Exact:
/// no salt is taken for one it is not.
#[derive(Default)]
pub(super) struct Salts {
    /// Sets with the slot of time at whose end they are forgotten, in order.
    slots: VecDeque<(u64, HashSet<Salt>)>,
}

impl Salts {
    /// Whether a salt is new.
    pub(super) fn is_new(&self, salt: &[u8]) -> bool {
        salt.first_chunk().is_some_and(|salt| !self.slots.iter().any(|(_, set)| set.contains(salt)))
    }

    /// Adds the salt of a stream whose header has this time, which is timely. Whether it is new.
    pub(super) fn insert(&mut self, salt: &[u8], time: u64, now: u64) -> bool {
        while self.slots.front().is_some_and(|(slot, _)| *slot < now / SLOT) {
            self.slots.pop_front();
        }
        let Some(salt) = salt.first_chunk() else { return false };
        let count: usize = self.slots.iter().map(|(_, set)| set.len()).sum();
        if count >= SALTS || self.slots.iter().any(|(_, set)| set.contains(salt)) {
            return false;
        }
        // From then on the time in the header gives it away.
        let slot = (time + CLOCKS + 1) / SLOT;
        let at = self.slots.partition_point(|(other, _)| *other < slot);
        if self.slots.get(at).is_none_or(|(other, _)| *other != slot) {
            self.slots.insert(at, (slot, HashSet::new()));
        }
        self.slots[at].1.insert(*salt)
    }
}

/// Salts in one of the two sets of [`RecentSalts`].
const RECENT: usize = 16 << 10;

/// The last salts, for the edition whose streams carry no time. What has been forgotten passes as new.
#[derive(Default)]
pub(super) struct RecentSalts {
    new: HashSet<Salt>,
    old: HashSet<Salt>,
}

impl RecentSalts {
    /// Whether a salt is new.
    pub(super) fn is_new(&self, salt: &[u8]) -> bool {
        salt.first_chunk::<16>().is_some_and(|salt| !self.old.contains(salt) && !self.new.contains(salt))
    }

    /// Adds a salt. Whether it is new.
    pub(super) fn insert(&mut self, salt: &[u8]) -> bool {
        let Some(salt) = salt.first_chunk() else { return false };
        if self.old.contains(salt) || !self.new.insert(*salt) {
            return false;
        }
        if self.new.len() >= RECENT {
            self.old = std::mem::take(&mut self.new);
        }
        true
    }
}

/// Packets behind the newest one that may still come, in words of the window; as many as sing-box allows.
const WORDS: u64 = 127;

/// Which numbers of packets were seen. It takes no more memory than their spread asks for.
#[derive(Default)]
pub(super) struct Window {
    /// Number of the word at the front.
    first: u64,
    words: VecDeque<u64>,
    last: u64,
}

impl Window {
    /// Whether a packet with this number could be new.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if self.words.is_empty() {
            return true;
        }
        if self.last.saturating_sub(number) > WORDS * 64 {
            return false;
        }
        let word = number / 64;
        let seen = word.checked_sub(self.first).and_then(|at| self.words.get(usize::try_from(at).ok()?));
        seen.is_none_or(|bits| bits >> (number % 64) & 1 == 0)
    }

    /// Notes a number that [is new](Self::is_new) and whose packet has proved genuine.
    pub(super) fn note(&mut self, number: u64) {
        let word = number / 64;
        if self.words.is_empty() || word > self.first + self.words.len() as u64 + WORDS {
            self.words.clear();
            self.words.push_back(0);
            self.first = word;
        }
        while word < self.first {
            self.words.push_front(0);
            self.first -= 1;
        }
        while word >= self.first + self.words.len() as u64 {
            self.words.push_back(0);
        }
        self.last = self.last.max(number);
        // One more than whole words of window: the newest is seldom at the end of its word.
        while self.first + WORDS < self.last / 64 {
            self.words.pop_front();
            self.first += 1;
        }
        let at = usize::try_from(word - self.first).unwrap_or(usize::MAX);
        if let Some(bits) = self.words.get_mut(at) {
            *bits |= 1 << (number % 64);
        }
    }
}
