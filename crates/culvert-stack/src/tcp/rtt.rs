//! Round-trip time, and the retransmission time-out made of it (RFC 6298).

use std::time::Duration;

/// Least and most time-out. The least is what Linux uses; one second, as the RFC has it, is for networks of its day.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Before anything has been measured.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// What is known of the round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    min: Option<Duration>,
    backoff: u32,
}

impl Rtt {
    /// Takes in one measurement.
    pub fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                self.smoothed = Some((smoothed * 7 + rtt) / 8);
            }
        }
    }

    /// The smoothed time, once there was a measurement.
    #[must_use]
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest so far.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        self.min
    }

    /// How long to wait for an acknowledgement.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let base = self.smoothed.map_or(FIRST_TIMEOUT, |smoothed| {
            (smoothed + (self.variation * 4).max(Duration::from_millis(1))).max(MIN_TIMEOUT)
        });
        base.saturating_mul(1 << self.backoff.min(10)).min(MAX_TIMEOUT)
    }

    /// Waits twice as long from here on, until there is a measurement.
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_the_measurements_and_doubles() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), FIRST_TIMEOUT);
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), Duration::from_millis(300));
        for _ in 0..100 {
            rtt.sample(Duration::from_millis(100));
        }
        assert_eq!(rtt.timeout(), MIN_TIMEOUT);
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), MIN_TIMEOUT * 4);
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), MAX_TIMEOUT);
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), MIN_TIMEOUT);
    }
}
