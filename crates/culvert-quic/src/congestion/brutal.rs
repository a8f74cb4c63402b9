//! Brutal: a rate that the user promises the path has, kept up whatever is lost.
//!
//! Packets acknowledged and lost are counted per second over five seconds. With fifty or more of them the rate is divided
//! by the part that arrived, but by no less than 0.8, so that as much as was asked for gets through. The window is
//! two round trips of that. Nothing else changes it: not loss, not marks, not a timeout.
//!
//! Source: the description in hysteria's `core/internal/congestion`, by its constants.
//!
//! The library tells how many bytes were lost, not how many packets. Those that get lost are nearly always full ones, so
//! bytes divided by the size of a packet stand for them.

use std::any::Any;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics};

/// Seconds that are counted.
const SLOTS: u64 = 5;
/// So few packets say nothing.
const FEWEST: u64 = 50;
/// The rate is divided by no less.
const LEAST_ACKED: f64 = 0.8;
/// A round trip counts as no shorter: packets leave in trains as far apart as timers are precise, and the window must
/// have room for two of them.
const LEAST_RTT: Duration = Duration::from_millis(4);
/// The window before the round trip is known, in bytes.
const INITIAL_WINDOW: u64 = 10_240;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    second: u64,
    acked: u64,
    lost: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Brutal {
    rate: u64,
    start: Instant,
    mtu: u16,
    rtt: Option<Duration>,
    slots: [Slot; SLOTS as usize],
    acked_part: f64,
}

impl Brutal {
    /// `rate` in bytes per second. `rtt` is what is known already.
    #[must_use]
    pub fn new(rate: u64, now: Instant, mtu: u16, rtt: Option<Duration>) -> Self {
        Self { rate, start: now, mtu, rtt, slots: [Slot::default(); SLOTS as usize], acked_part: 1.0 }
    }

    /// Counts packets in the second `second` of the connection.
    fn count(&mut self, second: u64, acked: u64, lost: u64) {
        // Seconds begin with 5, so that an unused slot is an old one.
        let second = second + SLOTS;
        let slot = &mut self.slots[(second % SLOTS) as usize];
        if slot.second != second {
            *slot = Slot { second, ..Slot::default() };
        }
        slot.acked += acked;
        slot.lost += lost;
        let recent = self.slots.iter().filter(|slot| slot.second + SLOTS >= second);
        let (acked, lost) = recent.fold((0, 0), |(a, l), slot| (a + slot.acked, l + slot.lost));
        self.acked_part =
            if acked + lost < FEWEST { 1.0 } else { (acked as f64 / (acked + lost) as f64).max(LEAST_ACKED) };
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs()
    }

    /// Bytes per second on the wire.
    fn pacing_rate(&self) -> u64 {
        (self.rate as f64 / self.acked_part) as u64
    }
}

impl Controller for Brutal {
    fn on_ack(&mut self, now: Instant, _sent: Instant, _bytes: u64, _limited: bool, rtt: &RttEstimator) {
        self.rtt = Some(rtt.get());
        self.count(self.second(now), 1, 0);
    }

    fn on_congestion_event(&mut self, now: Instant, _sent: Instant, _persistent: bool, lost_bytes: u64) {
        let lost = lost_bytes.div_ceil(self.mtu.max(1).into());
        if lost > 0 {
            self.count(self.second(now), 0, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    fn window(&self) -> u64 {
        let window = match self.rtt {
            Some(rtt) => (self.rate as f64 * rtt.max(LEAST_RTT).as_secs_f64() * 2.0 / self.acked_part) as u64,
            None => INITIAL_WINDOW,
        };
        // Where the round trip is next to nothing a packet must be able to leave all the same: the library wants a
        // window that is larger than what is on its way with it.
        window.max(4 * u64::from(self.mtu))
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = Some(self.pacing_rate().saturating_mul(8));
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_window_follow_the_vectors() {
        let rtt = Some(Duration::from_millis(50));
        let mut brutal = Brutal::new(12_500_000, Instant::now(), 1200, rtt);
        for (second, acked, lost, rate, window) in [
            (1000, 40, 0, 12_500_000, 1_250_000),
            (1000, 50, 10, 13_888_888, 1_388_888),
            (1001, 10, 90, 15_625_000, 1_562_500),
            (1005, 100, 0, 15_625_000, 1_562_500),
            (1006, 100, 0, 12_500_000, 1_250_000),
            (1012, 30, 0, 12_500_000, 1_250_000),
        ] {
            brutal.count(second, acked, lost);
            assert_eq!((brutal.pacing_rate(), brutal.window()), (rate, window), "{second} {acked} {lost}");
        }
    }

    #[test]
    fn the_first_seconds_count_from_nothing() {
        let mut brutal = Brutal::new(1_000_000, Instant::now(), 1200, None);
        assert_eq!(brutal.window(), INITIAL_WINDOW);
        brutal.count(0, 45, 15);
        assert_eq!(
            brutal.pacing_rate(),
            1_250_000,
            "three quarters arrived, four fifths are the least that counts"
        );
        brutal.count(6, 60, 0);
        assert_eq!(brutal.pacing_rate(), 1_000_000);
    }

    #[test]
    fn a_tiny_round_trip_leaves_room_for_packets() {
        let brutal = Brutal::new(65_536, Instant::now(), 1452, Some(Duration::from_micros(20)));
        assert_eq!(brutal.window(), 4 * 1452);
    }

    #[test]
    fn lost_bytes_count_as_full_packets() {
        let now = Instant::now();
        let mut brutal = Brutal::new(1_000_000, now, 1200, None);
        brutal.on_congestion_event(now, now, false, 0);
        brutal.on_congestion_event(now, now, true, 12 * 1200 + 1);
        brutal.count(0, 117, 0);
        assert_eq!(brutal.pacing_rate(), 1_111_111, "13 of 130 lost");
    }
}
