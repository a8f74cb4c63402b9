//! Log lines that a flood must not multiply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets a few events per interval through and counts the others.
#[derive(Debug)]
pub struct Throttle {
    burst: u64,
    interval: Duration,
    epoch: Instant,
    /// The interval that the last event fell into, and how many have passed in it.
    current: Mutex<(u64, u64)>,
    held_back: AtomicU64,
}

impl Throttle {
    /// Lets one event per `interval` through, the first at once.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self::bursts(1, interval)
    }

    /// Lets `burst` events per `interval` through.
    #[must_use]
    pub fn bursts(burst: u64, interval: Duration) -> Self {
        let current = Mutex::new((0, 0));
        Self { burst, interval, epoch: Instant::now(), current, held_back: AtomicU64::new(0) }
    }

    /// Whether an event may be logged, and then how many were held back since the last one.
    pub fn allow(&self) -> Option<u64> {
        let now = self.epoch.elapsed().as_millis() as u64 / self.interval.as_millis().max(1) as u64;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != now {
            *current = (now, 0);
        }
        current.1 += 1;
        if current.1 <= self.burst {
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

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_whole() {
        let throttle = Throttle::bursts(3, Duration::from_secs(1));
        let passed: Vec<_> = (0..5).map(|_| throttle.allow()).collect();
        assert_eq!(passed, [Some(0), Some(0), Some(0), None, None]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.allow(), Some(2));
    }
}
