//! The memory behind [`Buf`](crate::Buf): a small stock per thread in four sizes.
//!
//! A buffer is taken after a socket became ready and given back before its task sleeps, so a thread needs about as
//! many as it handles at once, not as many as there are connections. Memory is zeroed once, by the allocator, when
//! it enters the stock; large sizes come as untouched pages, so a 64 KiB buffer that only ever holds datagrams of
//! 1400 bytes costs one page.
//!
//! The stock is bounded per size ([`Class::kept`]). [`trim`] makes every thread drop its stock the next time it
//! touches it; the program calls it when load has fallen.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The sizes a buffer comes in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Class {
    /// Bytes in one buffer of this class.
    pub(crate) size: usize,
    /// How many idle buffers a thread keeps.
    kept: usize,
}

/// Handshake heads, single datagrams and small requests; relayed streams; datagram trains; bulk.
pub(crate) const CLASSES: [Class; 4] = [
    Class { size: 2 << 10, kept: 64 },
    Class { size: 17 << 10, kept: 32 },
    Class { size: 66 << 10, kept: 32 },
    Class { size: 260 << 10, kept: 4 },
];

/// Raised by [`trim`]; a thread whose stock was filled under an older number drops it.
static TRIMS: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
struct Stock {
    idle: [Vec<Box<[u8]>>; CLASSES.len()],
    trims: u32,
}

impl Stock {
    fn heed_trim(&mut self) {
        let trims = TRIMS.load(Ordering::Relaxed);
        if self.trims != trims {
            *self = Self { trims, ..Self::default() };
        }
    }
}

thread_local! {
    static STOCK: RefCell<Stock> = RefCell::default();
}

/// Zeroed-once memory of at least `size` bytes: exactly a class size up to 260 KiB, `size` above that.
pub(crate) fn take(size: usize) -> Box<[u8]> {
    let Some(index) = CLASSES.iter().position(|class| class.size >= size) else {
        return vec![0; size].into_boxed_slice();
    };
    STOCK
        .try_with(|stock| {
            let mut stock = stock.borrow_mut();
            stock.heed_trim();
            stock.idle[index].pop()
        })
        .ok()
        .flatten()
        .unwrap_or_else(|| vec![0; CLASSES[index].size].into_boxed_slice())
}

/// Takes memory back; what is not of a class size, or more than the stock keeps, goes to the allocator.
pub(crate) fn give(memory: Box<[u8]>) {
    let Some(index) = CLASSES.iter().position(|class| class.size == memory.len()) else { return };
    // A thread that is ending has no stock any more; the memory is then simply freed.
    let _ = STOCK.try_with(|stock| {
        let mut stock = stock.borrow_mut();
        stock.heed_trim();
        if stock.idle[index].len() < CLASSES[index].kept {
            stock.idle[index].push(memory);
        }
    });
}

/// Makes every thread free its idle buffers, each when it next takes or gives one; the calling thread at once.
pub fn trim() {
    TRIMS.fetch_add(1, Ordering::Relaxed);
    let _ = STOCK.try_with(|stock| stock.borrow_mut().heed_trim());
}

/// Bytes of idle buffers kept by the calling thread.
#[must_use]
pub fn idle_bytes() -> usize {
    STOCK.with(|stock| {
        let stock = stock.borrow();
        stock.idle.iter().zip(CLASSES).map(|(idle, class)| idle.len() * class.size).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_until_trimmed() {
        trim();
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
    fn stock_is_bounded() {
        trim();
        let many: Vec<_> = (0..100).map(|_| take(200 << 10)).collect();
        many.into_iter().for_each(give);
        assert_eq!(idle_bytes(), CLASSES[3].kept * CLASSES[3].size);
        trim();
    }

    #[test]
    fn sizes_above_the_largest_class_are_exact_and_not_kept() {
        trim();
        let memory = take(1 << 20);
        assert_eq!(memory.len(), 1 << 20);
        give(memory);
        assert_eq!(idle_bytes(), 0);
    }
}
