//! Congestion control: which controller a connection has, and changing it while the connection runs.
//!
//! A controller is a `quinn_proto::congestion::Controller`. One that wants its packets paced says the rate in
//! `metrics().pacing_rate`, in bits per second; the driver holds it (see the crate's docs). One that says none is paced by
//! the library, a little faster than a window per round trip.

pub mod bbr;
#[cfg(test)]
mod bench;
pub mod brutal;

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig};

use self::bbr::Bbr;
use self::brutal::Brutal;

/// What finds out how fast to send.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Congestion {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 9002.
    NewReno,
    /// The bottleneck's bandwidth and round trip, measured.
    Bbr(BbrProfile),
    /// A rate in bytes per second, kept up under loss: see [`brutal`].
    Brutal(u64),
}

/// How hard BBR tries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BbrProfile {
    /// Leaves more to others.
    Conservative,
    /// As it was published.
    #[default]
    Standard,
    /// Takes more.
    Aggressive,
}

/// Packets that may be on their way at first.
const INITIAL_WINDOW: u64 = 32 * 1200;

impl Congestion {
    fn controller(self, now: Instant, mtu: u16, rtt: Option<Duration>) -> Box<dyn Controller> {
        match self {
            Self::Cubic => {
                let mut config = CubicConfig::default();
                config.initial_window(INITIAL_WINDOW);
                Arc::new(config).build(now, mtu)
            }
            Self::NewReno => {
                let mut config = NewRenoConfig::default();
                config.initial_window(INITIAL_WINDOW);
                Arc::new(config).build(now, mtu)
            }
            Self::Bbr(profile) => {
                // Connections that begin together are not to ask the path at the same times.
                let phase = RandomState::new().hash_one(mtu);
                Box::new(Bbr::new(profile, now, mtu, rtt, phase))
            }
            Self::Brutal(rate) => Box::new(Brutal::new(rate, now, mtu, rtt)),
        }
    }
}

/// What a connection's controller is to be. Shared with the handles of the connection, who may change it.
#[derive(Debug)]
pub(crate) struct Choice {
    generation: AtomicU32,
    chosen: Mutex<Congestion>,
}

impl Choice {
    pub(crate) fn new(congestion: Congestion) -> Arc<Self> {
        Arc::new(Self { generation: AtomicU32::new(0), chosen: Mutex::new(congestion) })
    }

    /// Takes effect with the next packet that is sent or acknowledged.
    pub(crate) fn set(&self, congestion: Congestion) {
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = congestion;
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn get(&self) -> (u32, Congestion) {
        let generation = self.generation.load(Ordering::Acquire);
        (generation, *self.chosen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes the controllers of one connection: another one for each path it moves to.
pub(crate) struct Factory(pub(crate) Arc<Choice>);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let (seen, congestion) = self.0.get();
        let inner = congestion.controller(now, mtu, None);
        Box::new(Switched { choice: Arc::clone(&self.0), seen, mtu, rtt: None, inner })
    }
}

/// A controller that becomes another one when that is chosen.
struct Switched {
    choice: Arc<Choice>,
    seen: u32,
    mtu: u16,
    rtt: Option<Duration>,
    inner: Box<dyn Controller>,
}

impl Switched {
    fn current(&mut self, now: Instant) -> &mut dyn Controller {
        if self.choice.generation.load(Ordering::Relaxed) != self.seen {
            let (seen, congestion) = self.choice.get();
            self.seen = seen;
            self.inner = congestion.controller(now, self.mtu, self.rtt);
        }
        &mut *self.inner
    }
}

impl Controller for Switched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.current(now).on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.rtt = Some(rtt.get());
        self.current(now).on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.current(now).on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.current(now).on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu;
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            choice: Arc::clone(&self.choice),
            seen: self.seen,
            mtu: self.mtu,
            rtt: self.rtt,
            inner: self.inner.clone_box(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_choice_takes_effect_with_the_next_packet() {
        let now = Instant::now();
        let choice = Choice::new(Congestion::Cubic);
        let mut controller = Arc::new(Factory(Arc::clone(&choice))).build(now, 1200);
        assert_eq!((controller.window(), controller.metrics().pacing_rate), (INITIAL_WINDOW, None));
        choice.set(Congestion::Brutal(1_000_000));
        controller.on_sent(now, 1200, 0);
        assert_eq!(controller.metrics().pacing_rate, Some(8_000_000));
        assert_eq!(controller.clone_box().window(), controller.window());
        let moved = Arc::new(Factory(choice)).build(now, 1200);
        assert_eq!(moved.metrics().pacing_rate, Some(8_000_000), "the choice outlives the path");
    }
}
