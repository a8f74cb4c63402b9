//! Streams that wait for room to write, served in the order they came.
//!
//! The library lets all of them go on as soon as there is any room, the last one first, and the first that runs may take all
//! of it. So a stream that is busy at the right moment has it again and again, and others wait for ever. Here who has
//! waited longest is woken first, and keeps its place in the line until it has written; and who does not wait writes no
//! more than a share ([`SHARE`]) before it lets those run who do.

use std::collections::HashMap;
use std::task::Waker;

use quinn_proto::StreamId;

/// Bytes that a stream writes in a row while others wait.
pub(crate) const SHARE: usize = 64 << 10;

/// Streams that wait, or were woken and have not written since.
#[derive(Default)]
pub(crate) struct Writers {
    waiting: HashMap<StreamId, Place>,
    /// Places given away so far.
    places: u64,
}

struct Place {
    number: u64,
    /// Taken by who wakes it.
    waker: Option<Waker>,
}

impl Writers {
    /// Has a stream wait, at the place that it has already or at the end of the line.
    pub(crate) fn wait(&mut self, id: StreamId, waker: &Waker) {
        let place = self.waiting.entry(id).or_insert_with(|| {
            self.places += 1;
            Place { number: self.places, waker: None }
        });
        place.waker = Some(waker.clone());
    }

    /// A stream has written, or writes no more.
    pub(crate) fn leave(&mut self, id: StreamId) {
        self.waiting.remove(&id);
    }

    /// Whether any other stream waits.
    pub(crate) fn others(&self, id: StreamId) -> bool {
        self.waiting.len() > usize::from(self.waiting.contains_key(&id))
    }

    /// Hands out the wakers of those for whom there is room, in the order of the line.
    pub(crate) fn tell(&mut self, mut ids: Vec<StreamId>, wake: &mut Vec<Waker>) {
        ids.sort_unstable_by_key(|id| self.waiting.get(id).map(|place| place.number));
        wake.extend(ids.iter().filter_map(|id| self.waiting.get_mut(id)?.waker.take()));
    }

    /// There will never be room: hands out all.
    pub(crate) fn end(&mut self, wake: &mut Vec<Waker>) {
        wake.extend(self.waiting.drain().filter_map(|(_, place)| place.waker));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::task::Wake;

    use quinn_proto::{Dir, Side};

    use super::*;

    struct Noting(u64, Arc<Mutex<Vec<u64>>>);

    impl Wake for Noting {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn who_waits_longest_is_woken_first_and_keeps_its_place_until_it_has_written() {
        let id = |index| StreamId::new(Side::Client, Dir::Bi, index);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let waker = |index| Waker::from(Arc::new(Noting(index, Arc::clone(&woken))));
        let mut writers = Writers::default();
        let tell = |writers: &mut Writers, ids: &[u64]| {
            let mut wake = Vec::new();
            writers.tell(ids.iter().map(|index| id(*index)).collect(), &mut wake);
            wake.into_iter().for_each(Waker::wake);
            std::mem::take(&mut *woken.lock().unwrap())
        };
        for index in [3, 1, 2] {
            writers.wait(id(index), &waker(index));
        }
        assert_eq!(tell(&mut writers, &[2, 1, 3, 7]), [3, 1, 2]);
        assert_eq!(tell(&mut writers, &[2, 1, 3]), [], "each waker once");
        // 3 has written, the others found no room.
        writers.leave(id(3));
        for index in [2, 3, 1] {
            writers.wait(id(index), &waker(index));
        }
        assert_eq!(tell(&mut writers, &[3, 2, 1]), [1, 2, 3]);
        assert!(writers.others(id(3)) && writers.others(id(9)));
        writers.leave(id(1));
        writers.leave(id(2));
        assert!(!writers.others(id(3)) && writers.others(id(1)));
    }
}
