//! Datagrams that come in parts.
//!
//! Parts come in any order, some twice, some never. What is not whole after ten seconds is forgotten, and what more than a
//! connection may hold comes in pushes out the oldest.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use culvert_wire::Target;

/// How long parts are kept.
const AGE: Duration = Duration::from_secs(10);
/// Datagrams that a connection may have in parts.
const PENDING: usize = 64;
/// Bytes of them all.
const BYTES: usize = 1 << 20;
/// Bytes of one, where a protocol knows no less.
const LARGEST: usize = 65_535;

/// Where a part belongs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The association.
    pub(crate) association: u32,
    /// The datagram.
    pub(crate) id: u16,
    /// In how many parts it comes.
    pub(crate) total: u8,
    /// Which of them this is.
    pub(crate) index: u8,
}

struct Pending {
    association: u32,
    id: u16,
    parts: Vec<Option<Box<[u8]>>>,
    missing: usize,
    bytes: usize,
    peer: Option<Target>,
    since: Instant,
}

/// The datagrams of a connection that are not whole.
pub(crate) struct Fragments {
    /// The oldest first.
    pending: VecDeque<Pending>,
    bytes: usize,
    /// Bytes that one may have.
    largest: usize,
}

impl Default for Fragments {
    fn default() -> Self {
        Self::at_most(LARGEST)
    }
}

impl Fragments {
    /// Where no datagram has more than `largest` bytes.
    pub(crate) fn at_most(largest: usize) -> Self {
        Self { pending: VecDeque::new(), bytes: 0, largest }
    }

    /// Takes a part. The datagram, with the peer that came with its first part, if that makes it whole.
    pub(crate) fn add(
        &mut self,
        place: &Place,
        peer: Option<Target>,
        data: &[u8],
        now: Instant,
    ) -> Option<(Target, Vec<u8>)> {
        while self.pending.front().is_some_and(|pending| pending.since + AGE < now) {
            self.forget(0);
        }
        if place.index >= place.total {
            return None;
        }
        let same = |pending: &Pending| pending.association == place.association && pending.id == place.id;
        let mut at = self.pending.iter().position(same);
        if let Some(found) = at.filter(|&found| self.pending[found].parts.len() != usize::from(place.total)) {
            // The number was used before, for another datagram.
            self.forget(found);
            at = None;
        }
        let at = at.unwrap_or_else(|| {
            self.pending.push_back(Pending {
                association: place.association,
                id: place.id,
                parts: vec![None; place.total.into()],
                missing: place.total.into(),
                bytes: 0,
                peer: None,
                since: now,
            });
            self.pending.len() - 1
        });
        let pending = &mut self.pending[at];
        let part = &mut pending.parts[usize::from(place.index)];
        if part.is_some() {
            return None;
        }
        if pending.bytes + data.len() > self.largest {
            self.forget(at);
            return None;
        }
        *part = Some(data.into());
        pending.missing -= 1;
        pending.bytes += data.len();
        self.bytes += data.len();
        if place.index == 0 {
            pending.peer = peer;
        }
        if pending.missing == 0 {
            let whole = self.forget(at)?;
            return Some((whole.peer?, whole.parts.into_iter().flatten().flatten().collect()));
        }
        while self.pending.len() > PENDING || self.bytes > BYTES {
            self.forget(0);
        }
        None
    }

    fn forget(&mut self, at: usize) -> Option<Pending> {
        let pending = self.pending.remove(at)?;
        self.bytes -= pending.bytes;
        if self.pending.is_empty() {
            self.pending = VecDeque::new(); // gives its memory back
        }
        Some(pending)
    }
}

/// Fed with random bytes, each four of them a part: no more is held than may be, and what comes out went in.
pub(crate) fn fuzz_fragments(bytes: &[u8]) {
    let mut fragments = Fragments::default();
    let now = Instant::now();
    let peer = Target::new(std::net::IpAddr::from([127, 0, 0, 1]), 53);
    for (at, part) in bytes.chunks_exact(4).enumerate() {
        let place =
            Place { association: part[0].into(), id: (part[1] >> 6).into(), total: part[2], index: part[3] };
        let data = vec![place.index; usize::from(part[1] & 63) * 64];
        let now = now + Duration::from_millis(100 * at as u64);
        if let Some((_, whole)) = fragments.add(&place, Some(peer.clone()), &data, now) {
            assert!(whole.len() <= LARGEST && whole.is_sorted());
        }
        assert!(fragments.bytes <= BYTES && fragments.pending.len() <= PENDING);
        assert_eq!(fragments.bytes, fragments.pending.iter().map(|pending| pending.bytes).sum::<usize>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Target {
        Target::new(std::net::IpAddr::from([127, 0, 0, 1]), 53)
    }

    fn place(id: u16, total: u8, index: u8) -> Place {
        Place { association: 1, id, total, index }
    }

    /// Adds parts of datagram 1, given as total, index and data; what came out last.
    fn add(fragments: &mut Fragments, parts: &[(u8, u8, &str)]) -> Option<String> {
        let now = Instant::now();
        let add = |&(total, index, data): &(u8, u8, &str)| {
            let peer = (index == 0).then(peer);
            fragments.add(&place(1, total, index), peer, data.as_bytes(), now)
        };
        let whole = parts.iter().map(add).last().flatten();
        whole.map(|(from, data)| {
            assert_eq!(from, peer());
            String::from_utf8(data).unwrap()
        })
    }

    #[test]
    fn parts_in_any_order_become_the_datagram() {
        let parts = [(3, 0, "aa"), (3, 1, "bb"), (3, 2, "c")];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut fragments = Fragments::default();
            let whole = add(&mut fragments, &order.map(|at| parts[at]));
            assert_eq!(whole.as_deref(), Some("aabbc"));
            assert_eq!((fragments.bytes, fragments.pending.len()), (0, 0));
        }
    }

    #[test]
    fn parts_that_come_twice_or_do_not_fit_are_dropped() {
        let mut fragments = Fragments::default();
        assert_eq!(add(&mut fragments, &[(2, 0, "aa"), (2, 0, "xx"), (2, 2, "yy"), (2, 255, "zz")]), None);
        assert_eq!(add(&mut fragments, &[(2, 1, "bb")]).as_deref(), Some("aabb"));
        assert_eq!(add(&mut fragments, &[(0, 0, "aa")]), None);
        assert_eq!(fragments.pending.len(), 0);
    }

    #[test]
    fn another_number_of_parts_is_another_datagram() {
        let mut fragments = Fragments::default();
        assert_eq!(add(&mut fragments, &[(2, 0, "old"), (3, 0, "a"), (3, 1, "b")]), None);
        assert_eq!(add(&mut fragments, &[(3, 2, "c")]).as_deref(), Some("abc"));
    }

    #[test]
    fn what_never_becomes_whole_is_forgotten() {
        let mut fragments = Fragments::default();
        let now = Instant::now();
        for id in 0..500 {
            fragments.add(&place(id, 2, 0), Some(peer()), &[0; 1000], now);
        }
        assert_eq!(fragments.pending.len(), PENDING);
        let late = now + AGE + Duration::from_millis(1);
        assert!(fragments.add(&place(499, 2, 1), None, b"x", late).is_none());
        assert_eq!(fragments.pending.len(), 1);
    }

    #[test]
    fn no_datagram_and_no_connection_holds_more_than_it_may() {
        let mut fragments = Fragments::default();
        let now = Instant::now();
        for index in 0..255 {
            assert!(fragments.add(&place(1, 255, index), Some(peer()), &[0; 40_000], now).is_none());
            assert!(fragments.bytes <= LARGEST);
        }
        for id in 0..200 {
            fragments.add(&place(id, 2, 0), Some(peer()), &[0; 60_000], now);
            assert!(fragments.bytes <= BYTES);
        }
    }
}
