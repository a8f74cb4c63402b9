//! The memory behind [`Buf`](crate::Buf): a small stock per thread in four sizes.
//!
//! A buffer is taken after a socket became ready and given back before its task sleeps, so a thread needs about as
//! many as it handles at once, not as many as there are connections. Memory is zeroed once, by the allocator, when
//! it enters the stock; large sizes come as untouched pages, so a 64 KiB buffer that only ever holds datagrams of
//! 1400 bytes costs one page.
//!
//! Where one thread fills buffers and another one empties them, a stock that is full hands half of itself to a common one,
//! and a stock that is empty looks there before it asks the allocator, which would map and clear each buffer anew.
//!
//! Both are bounded per size ([`Class::kept`], [`Class::common`]). [`trim`] empties the stocks of all threads and the common
//! one; the program calls it when load has fallen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sizes a buffer comes in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Class {
    /// Bytes in one buffer of this class.
    pub(crate) size: usize,
    /// How many idle buffers a thread keeps.
    kept: usize,
    /// How many more all threads keep together.
    common: usize,
}

/// Handshake heads, single datagrams and small requests; relayed streams; datagram trains; bulk.
pub(crate) const CLASSES: [Class; 4] = [
    Class { size: 2 << 10, kept: 64, common: 256 },
    Class { size: 17 << 10, kept: 32, common: 128 },
    Class { size: 66 << 10, kept: 32, common: 128 },
    Class { size: 260 << 10, kept: 4, common: 16 },
];

/// One thread's idle buffers. Only that thread takes and gives; the lock is there for [`trim`], which must reach the
/// stocks of threads that have nothing to do, and is otherwise never waited for.
#[derive(Default)]
struct Stock(Mutex<[Vec<Box<[u8]>>; CLASSES.len()]>);

impl Stock {
    fn lock(&self) -> MutexGuard<'_, [Vec<Box<[u8]>>; CLASSES.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What threads have too much of and others may need.
static COMMON: Mutex<[Vec<Box<[u8]>>; CLASSES.len()]> = Mutex::new([const { Vec::new() }; CLASSES.len()]);

fn common() -> MutexGuard<'static, [Vec<Box<[u8]>>; CLASSES.len()]> {
    COMMON.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Class {
    /// How many change hands at once.
    fn load(self) -> usize {
        self.kept / 2
    }
}

/// The stocks of all threads, for [`trim`].
static STOCKS: Mutex<Vec<Arc<Stock>>> = Mutex::new(Vec::new());

fn stocks() -> MutexGuard<'static, Vec<Arc<Stock>>> {
    STOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's entry in [`STOCKS`], taken out when the thread ends.
struct Mine(Arc<Stock>);

impl Mine {
    fn enter() -> Self {
        let stock = Arc::<Stock>::default();
        stocks().push(Arc::clone(&stock));
        Self(stock)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        stocks().retain(|stock| !Arc::ptr_eq(stock, &self.0));
    }
}

thread_local! {
    static MINE: Mine = Mine::enter();
}

/// Zeroed-once memory of at least `size` bytes: exactly a class size up to 260 KiB, `size` above that.
pub(crate) fn take(size: usize) -> Box<[u8]> {
    let Some(index) = CLASSES.iter().position(|class| class.size >= size) else {
        return vec![0; size].into_boxed_slice();
    };
    MINE.try_with(|mine| {
        let idle = &mut mine.0.lock()[index];
        if idle.is_empty() {
            let common = &mut common()[index];
            let left = common.len().saturating_sub(CLASSES[index].load());
            idle.extend(common.drain(left..));
        }
        idle.pop()
    })
    .ok()
    .flatten()
    .unwrap_or_else(|| vec![0; CLASSES[index].size].into_boxed_slice())
}

/// Takes memory back; what is not of a class size, or more than the stocks keep, goes to the allocator.
pub(crate) fn give(memory: Box<[u8]>) {
    let Some(index) = CLASSES.iter().position(|class| class.size == memory.len()) else { return };
    // A thread that is ending has no stock any more; the memory is then simply freed.
    let _ = MINE.try_with(|mine| {
        let class = CLASSES[index];
        let idle = &mut mine.0.lock()[index];
        if idle.len() >= class.kept {
            let common = &mut common()[index];
            if common.len() + class.load() > class.common {
                return;
            }
            common.extend(idle.drain(..class.load()));
        }
        idle.push(memory);
    });
}

/// Frees the idle buffers of all threads.
pub fn trim() {
    drop(std::mem::take(&mut *common()));
    for stock in stocks().iter() {
        // Freed after the lock is released: the owner may want it.
        let idle = std::mem::take(&mut *stock.lock());
        drop(idle);
    }
}

/// Bytes of idle buffers kept by the calling thread.
#[must_use]
pub fn idle_bytes() -> usize {
    MINE.with(|mine| mine.0.lock().iter().zip(CLASSES).map(|(idle, class)| idle.len() * class.size).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests share the process, and one's [`trim`] must not empty the stock another one counts.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        trim();
        guard
    }

    #[test]
    fn memory_is_reused_until_trimmed() {
        let _alone = alone();
        let memory = take(1000);
        assert_eq!(memory.len(), CLASSES[0].size);
        let place = memory.as_ptr();
        give(memory);
        assert_eq!(idle_bytes(), CLASSES[0].size);
        let again = take(CLASSES[0].size);
        assert_eq!(again.as_ptr(), place);
        give(again);
        trim();
        assert_eq!(idle_bytes(), 0);
    }

    #[test]
    fn stocks_are_bounded() {
        let _alone = alone();
        let many: Vec<_> = (0..100).map(|_| take(200 << 10)).collect();
        many.into_iter().for_each(give);
        assert_eq!(idle_bytes(), CLASSES[3].kept * CLASSES[3].size);
        assert_eq!(common()[3].len(), CLASSES[3].common);
        trim();
        assert_eq!((idle_bytes(), common()[3].len()), (0, 0));
    }

    #[test]
    fn what_one_thread_has_too_much_of_another_one_takes() {
        let _alone = alone();
        let many: Vec<_> = (0..100).map(|_| take(60 << 10)).collect();
        let places: Vec<_> = many.iter().map(|memory| memory.as_ptr() as usize).collect();
        std::thread::spawn(|| many.into_iter().for_each(give)).join().unwrap();
        let again = take(60 << 10);
        assert!(places.contains(&(again.as_ptr() as usize)), "the allocator was not asked");
        assert!(idle_bytes() > 0, "and some more came along");
    }

    #[test]
    fn sizes_above_the_largest_class_are_exact_and_not_kept() {
        let _alone = alone();
        let memory = take(1 << 20);
        assert_eq!(memory.len(), 1 << 20);
        give(memory);
        assert_eq!(idle_bytes(), 0);
    }

    #[test]
    fn trim_reaches_the_stock_of_a_thread_that_waits() {
        let _alone = alone();
        let (filled, trimmed) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                give(take(1000));
                let before = idle_bytes();
                filled.wait();
                trimmed.wait();
                assert_eq!((before, idle_bytes()), (CLASSES[0].size, 0));
            });
            filled.wait();
            trim();
            trimmed.wait();
        });
    }
}
