//! The token bucket in front of a connection's packets.
//!
//! Bytes flow in at the controller's rate, up to what four milliseconds bring (but ten packets at least), and every sent
//! byte is taken out. A train may take more than there is, which the next one then waits for: over time the rate is
//! exact. So that a fast connection does not send its packets one by one, what there is must be worth a train first.

use std::time::{Duration, Instant};

/// What the bucket holds at most.
const BURST: Duration = Duration::from_millis(4);
/// Packets that it holds at least.
const BURST_PACKETS: u64 = 10;
/// What must have come together before more is sent: the precision of timers.
const QUANTUM: Duration = Duration::from_millis(1);
/// A train of so many packets is worth sending at any rate.
const QUANTUM_PACKETS: u64 = 16;
/// Beyond a terabyte a second nothing needs to be paced; keeps the arithmetic within 64 bits.
const MAX_RATE: u64 = 1_000_000_000_000;

/// Billionths of a byte in a byte: the bucket counts in these, so that nothing is lost at any rate.
const NANO: i64 = 1_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Bytes per second; none: no limit.
    rate: Option<u64>,
    /// In billionths of a byte; below zero after a train that took more than there was.
    budget: i64,
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new(now: Instant) -> Self {
        Self { rate: None, budget: 0, filled: now }
    }

    /// Sets the rate in bytes per second. A bucket that had none begins full.
    pub(crate) fn set_rate(&mut self, rate: Option<u64>, now: Instant, packet: u16) {
        let rate = rate.map(|rate| rate.clamp(1, MAX_RATE));
        if rate == self.rate {
            return;
        }
        self.fill(now, packet);
        let began = self.rate.is_none();
        self.rate = rate;
        self.filled = now;
        if began && let Some(rate) = rate {
            self.budget = Self::burst(rate, packet);
        }
    }

    /// How many packets of this size may leave now, or when to ask again.
    pub(crate) fn packets(&mut self, now: Instant, packet: u16) -> Result<usize, Instant> {
        let Some(rate) = self.rate else { return Ok(usize::MAX) };
        self.fill(now, packet);
        let wanted = over(rate, QUANTUM).min(QUANTUM_PACKETS * u64::from(packet)).max(packet.into());
        let wanted = wanted as i64 * NANO;
        if self.budget >= wanted {
            return Ok((self.budget / NANO / i64::from(packet)).max(1) as usize);
        }
        let missing = (wanted - self.budget) as u64;
        Err(now + Duration::from_nanos(missing.div_ceil(rate)).max(Duration::from_micros(1)))
    }

    /// Whether there is a rate at all.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Takes out what was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if self.rate.is_some() {
            self.budget -= bytes as i64 * NANO;
        }
    }

    fn fill(&mut self, now: Instant, packet: u16) {
        let Some(rate) = self.rate else { return };
        let passed = now.saturating_duration_since(self.filled);
        self.filled = self.filled.max(now);
        let more = passed.as_nanos().saturating_mul(rate.into());
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        self.budget = self.budget.saturating_add(more).min(Self::burst(rate, packet));
    }

    fn burst(rate: u64, packet: u16) -> i64 {
        over(rate, BURST).max(BURST_PACKETS * u64::from(packet)) as i64 * NANO
    }
}

/// Bytes that come in `time`.
fn over(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * time.as_nanos() / NANO as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends whatever may leave for `time`, waking exactly when told plus `late`; returns the bytes sent.
    fn run(rate: u64, packet: u16, time: Duration, late: Duration) -> u64 {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(Some(rate), start, packet);
        let (mut now, mut sent) = (start, 0);
        while now < start + time {
            match bucket.packets(now, packet) {
                Ok(count) => {
                    let bytes = count.min(44) * usize::from(packet);
                    bucket.sent(bytes);
                    sent += bytes as u64;
                }
                Err(next) => {
                    assert!(next > now, "no busy waiting");
                    now = next + late;
                }
            }
        }
        sent
    }

    #[test]
    fn the_rate_is_held_at_every_speed() {
        let time = Duration::from_secs(2);
        for rate in [65_536, 1_000_000, 12_500_000, 125_000_000, 500_000_000, 5_000_000_000] {
            for late in [0, 300, 1500].map(Duration::from_micros) {
                let sent = run(rate, 1350, time, late);
                let wanted = rate * time.as_secs();
                let burst = over(rate, BURST).max(13_500) + 44 * 1350;
                assert!(sent <= wanted + burst, "{rate} {late:?}: {sent} of {wanted}");
                assert!(sent + burst >= wanted, "{rate} {late:?}: {sent} of {wanted}");
            }
        }
    }

    #[test]
    fn what_was_sent_too_much_is_waited_for() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(Some(1_000_000), start, 1000);
        bucket.sent(20_000); // the bucket held 10,000
        let next = bucket.packets(start, 1000).unwrap_err();
        assert_eq!(next - start, Duration::from_millis(11), "10,000 owed and 1,000 to send");
        assert_eq!(bucket.packets(next, 1000), Ok(1));
    }

    #[test]
    fn a_pause_gives_no_more_than_the_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(Some(100_000_000), start, 1000);
        assert_eq!(bucket.packets(start + Duration::from_secs(3600), 1000), Ok(400));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.sent(1 << 40);
        assert_eq!(bucket.packets(start, 1200), Ok(usize::MAX));
        bucket.set_rate(Some(1_000_000), start, 1200);
        assert!(bucket.packets(start, 1200).is_ok(), "a bucket begins full");
        bucket.set_rate(None, start, 1200);
        assert_eq!(bucket.packets(start, 1200), Ok(usize::MAX));
    }
}
