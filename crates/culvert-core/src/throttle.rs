//! Log lines that a flood must not multiply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Lets one event per interval through and counts the others.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    epoch: Instant,
    /// Milliseconds after `epoch` at which the next event may pass.
    next: AtomicU64,
    held_back: AtomicU64,
}

impl Throttle {
    /// Lets one event per `interval` through, the first at once.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, epoch: Instant::now(), next: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }

    /// Whether an event may be logged, and then how many were held back since the last one.
    pub fn allow(&self) -> Option<u64> {
        let now = self.epoch.elapsed().as_millis() as u64;
        let next = self.next.load(Ordering::Relaxed);
        let later = now + self.interval.as_millis() as u64;
        let passes = now >= next
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if passes {
            Some(self.held_back.swap(0, Ordering::Relaxed))
        } else {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_event_per_interval_passes_and_the_rest_are_counted() {
        let throttle = Throttle::new(Duration::from_secs(1));
        assert_eq!(throttle.allow(), Some(0));
        assert_eq!(throttle.allow(), None);
        assert_eq!(throttle.allow(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.allow(), Some(2));
    }
}
