//! Whether the other end of a session still shows signs of life.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// When something came last, and since when something has been due. Times are milliseconds of the session, from 1 on.
pub(super) struct Life {
    began: Instant,
    heard: AtomicU64,
    /// 0 if nothing is due.
    due: AtomicU64,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), heard: AtomicU64::new(1), due: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// Something has come.
    pub(super) fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
        if self.due.load(Ordering::Relaxed) != 0 {
            self.due.store(0, Ordering::Relaxed);
        }
    }

    /// Something was sent that makes the other end send something.
    pub(super) fn expect(&self) {
        let _ = self.due.compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether what is due has been for longer than `patience`.
    pub(super) fn is_late(&self, patience: Duration) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due > 0 && self.now().saturating_sub(due) > patience.as_millis() as u64
    }

    /// When something came last.
    pub(super) fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard.load(Ordering::Relaxed) - 1)
    }
}
