//! BBR, version 1, with the profiles that Hysteria 2 has: a model of the path instead of a reaction to loss.
//!
//! ```text
//! Startup ──▶ Drain ──▶ ProbeBandwidth ◀──▶ ProbeRtt
//!  × 2.885     ÷ 2.885    × 1.25, 0.75, 1 …     four packets
//! ```
//!
//! The model has two numbers: the highest rate of delivery of the last ten rounds, and the shortest round trip of the
//! last ten seconds. Packets leave at the first one times a gain, and the window is their product times another one.
//! A round is the time in which everything that was under way gets acknowledged.
//!
//! Rates are sampled as Linux does: for the packet that was sent last among those that an acknowledgement covers, what was
//! delivered since it left, over the longer of the time that took and the time in which it was sent. The QUIC library
//! names packets by the time they were sent, so that is the key here.
//!
//! Sources: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016, and
//! draft-cardwell-iccrg-bbr-congestion-control-00; the numbers of the profiles are those that apernet's hysteria documents.
//! Left out: what else its conservative profile does about samples that are too high, which those taken as here are not.

use std::any::Any;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics};

use super::BbrProfile;

/// Packets of the first window.
const INITIAL_PACKETS: u64 = 32;
/// Packets under way at least.
const LEAST_PACKETS: u64 = 4;
/// Bytes under way at most: 10,000 packets of an Ethernet.
const MOST_BYTES: u64 = 10_000 * 1452;
/// Rounds that a maximum counts for.
const ROUNDS: usize = 10;
/// How long the shortest round trip counts.
const ROUND_TRIP_AGE: Duration = Duration::from_secs(10);
/// How long few packets are under way in order to see the shortest round trip.
const PROBE_RTT: Duration = Duration::from_millis(200);
/// The round trip before there is one.
const GUESS: Duration = Duration::from_millis(100);
/// Bytes per second at least.
const LEAST_RATE: f64 = 65_536.0;
/// The gains of a cycle, each for one round trip.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// By how much the rate must grow in a round of the start.
const GROWTH: f64 = 1.25;
/// The start ends with a round without growth in which so many losses were seen, of more than such a part of what was
/// under way.
const LOSS_EVENTS: u32 = 8;
const LOSS_SHARE: f64 = 0.02;

/// The numbers of a profile.
#[derive(Clone, Copy, Debug)]
struct Gains {
    high: f64,
    startup_window: f64,
    probe_window: f64,
    startup_rounds: u32,
    /// Keeps the low gain until no more is under way than the path holds.
    drain_to_target: bool,
    /// Slows down in the start when more than the first window was lost.
    detect_overshoot: bool,
    /// Counts the gathering of acknowledgements in the start too.
    early_aggregation: bool,
}

impl Gains {
    fn of(profile: BbrProfile) -> Self {
        let standard = Self {
            high: 2.885,
            startup_window: 2.0,
            probe_window: 2.0,
            startup_rounds: 3,
            drain_to_target: false,
            detect_overshoot: false,
            early_aggregation: false,
        };
        match profile {
            BbrProfile::Conservative => Self {
                high: 2.25,
                startup_window: 1.75,
                probe_window: 1.75,
                startup_rounds: 2,
                drain_to_target: true,
                detect_overshoot: true,
                ..standard
            },
            BbrProfile::Standard => standard,
            BbrProfile::Aggressive => Self {
                high: 3.0,
                startup_window: 2.25,
                probe_window: 2.5,
                startup_rounds: 4,
                early_aggregation: true,
                ..standard
            },
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Recovery {
    No,
    /// As many bytes leave as arrive.
    Conservation,
    Growth,
}

/// The greatest value of the last [`ROUNDS`] rounds before the one in which there was a value last: as long as nobody asks
/// the path, what is known of it stays.
#[derive(Clone, Debug, Default)]
struct Greatest {
    rounds: [(u64, f64); ROUNDS],
    last: u64,
}

impl Greatest {
    fn add(&mut self, round: u64, value: f64) {
        let slot = &mut self.rounds[round as usize % ROUNDS];
        if slot.0 != round {
            *slot = (round, 0.0);
        }
        slot.1 = slot.1.max(value);
        self.last = round;
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    fn get(&self) -> f64 {
        let recent = self.rounds.iter().filter(|(at, _)| at + ROUNDS as u64 > self.last);
        recent.map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

/// What was the case when packets left, all at one time.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// Bytes of which nothing has been heard.
    open: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    app_limited: bool,
}

/// The state of one sender.
#[derive(Clone, Debug)]
pub struct Bbr {
    gains: Gains,
    mtu: u64,
    mode: Mode,
    /// Rates in bytes per second.
    bandwidth: Greatest,
    round: u64,
    /// The round ends when a packet is acknowledged that was sent after so many bytes had been delivered.
    round_end: u64,
    sent: VecDeque<Sent>,
    first_sent: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// Samples of packets are of the application's rate until so much is delivered.
    app_limited_until: u64,
    in_flight: u64,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,

    /// Of the batch of acknowledgements that is coming in.
    acked: u64,
    lost: u64,
    newest: Option<Sent>,

    full: bool,
    full_rate: f64,
    full_rounds: u32,
    loss_events: u32,
    lost_in_round: u64,
    /// Bytes lost in the start, until it was slowed down once.
    overshoot: Option<u64>,

    cycle: usize,
    cycle_at: Instant,
    pacing_gain: f64,
    pacing: f64,
    window: u64,

    recovery: Recovery,
    recovery_window: u64,
    /// Recovery and its first round end when something is acknowledged that was sent after this.
    recovery_end: u64,

    probe_rtt_until: Option<(Instant, u64)>,

    heights: Greatest,
    gathered: u64,
    gathered_since: Instant,
}

impl Bbr {
    /// A sender on a path where packets have `mtu` bytes. `rtt` is what is known already; `phase`, any number, says where
    /// in the cycle of gains it begins.
    #[must_use]
    pub fn new(profile: BbrProfile, now: Instant, mtu: u16, rtt: Option<Duration>, phase: u64) -> Self {
        let gains = Gains::of(profile);
        let mtu = u64::from(mtu);
        let rtt = rtt.filter(|rtt| !rtt.is_zero()).unwrap_or(GUESS);
        Self {
            gains,
            mtu,
            mode: Mode::Startup,
            bandwidth: Greatest::default(),
            round: 0,
            round_end: 0,
            sent: VecDeque::new(),
            first_sent: now,
            delivered: 0,
            delivered_at: now,
            app_limited_until: 0,
            in_flight: 0,
            min_rtt: None,
            min_rtt_at: now,
            acked: 0,
            lost: 0,
            newest: None,
            full: false,
            full_rate: 0.0,
            full_rounds: 0,
            loss_events: 0,
            lost_in_round: 0,
            overshoot: gains.detect_overshoot.then_some(0),
            // Any but the second, which would begin by slowing down.
            cycle: [0, 2, 3, 4, 5, 6, 7][(phase % 7) as usize],
            cycle_at: now,
            pacing_gain: gains.high,
            pacing: gains.high * (INITIAL_PACKETS * mtu) as f64 / rtt.as_secs_f64(),
            window: INITIAL_PACKETS * mtu,
            recovery: Recovery::No,
            recovery_window: 0,
            recovery_end: 0,
            probe_rtt_until: None,
            heights: Greatest::default(),
            gathered: 0,
            gathered_since: now,
        }
    }

    /// Bytes per second at which packets are to leave.
    #[must_use]
    pub fn pacing_rate(&self) -> u64 {
        self.pacing.max(LEAST_RATE) as u64
    }

    /// Bytes that may be under way.
    #[must_use]
    pub fn congestion_window(&self) -> u64 {
        if self.mode == Mode::ProbeRtt {
            return self.window.min(LEAST_PACKETS * self.mtu);
        }
        if self.recovery == Recovery::No { self.window } else { self.window.min(self.recovery_window) }
    }

    fn estimate(&self) -> f64 {
        self.bandwidth.get()
    }

    /// The bytes that fill the path, times `gain`.
    fn target(&self, gain: f64) -> u64 {
        let (rate, rtt) = (self.estimate(), self.min_rtt.unwrap_or_default());
        let product = rate * rtt.as_secs_f64();
        let product = if product > 0.0 { product } else { (INITIAL_PACKETS * self.mtu) as f64 };
        ((product * gain) as u64).max(LEAST_PACKETS * self.mtu)
    }

    fn sent_packets(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 {
            // Nothing was under way: time without packets is no time in which they were delivered slowly.
            self.first_sent = now;
            self.delivered_at = now;
        }
        self.in_flight += bytes;
        match self.sent.back_mut() {
            Some(last) if last.at == now => last.open += bytes,
            _ => self.sent.push_back(Sent {
                at: now,
                open: bytes,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                first_sent: self.first_sent,
                app_limited: self.app_limited_until > self.delivered,
            }),
        }
    }

    fn acked_packet(&mut self, sent: Instant, bytes: u64) {
        self.acked += bytes;
        let at = self.sent.partition_point(|entry| entry.at < sent);
        let Some(entry) = self.sent.get_mut(at).filter(|entry| entry.at == sent) else { return };
        entry.open = entry.open.saturating_sub(bytes);
        if self.newest.is_none_or(|newest| newest.at < sent) {
            self.newest = Some(*entry);
        }
    }

    fn lost_bytes(&mut self, bytes: u64) {
        self.lost += bytes;
        self.lost_in_round += bytes;
        self.loss_events += 1;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// All of a batch of acknowledgements is known. `in_flight` is what is left under way.
    fn end_batch(&mut self, now: Instant, in_flight: u64, app_limited: bool) {
        let (acked, lost) = (std::mem::take(&mut self.acked), std::mem::take(&mut self.lost));
        let before = in_flight + acked;
        self.in_flight = in_flight;
        self.delivered += acked;
        self.delivered_at = now;
        let newest = self.newest.take();
        let mut round_began = false;
        let mut expired = false;
        let mut sample_app_limited = false;
        if let Some(newest) = newest {
            self.first_sent = newest.at;
            round_began = newest.delivered >= self.round_end;
            if round_began {
                self.round += 1;
                self.round_end = self.delivered;
            }
            expired = self.see_round_trip(now, now - newest.at);
            sample_app_limited = newest.app_limited;
            self.see_rate(now, newest);
        }
        if app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
        self.update_recovery(newest, lost > 0, round_began);
        let extra = self.see_gathering(now, acked);
        if self.mode == Mode::ProbeBandwidth {
            self.advance_cycle(now, before, in_flight, lost > 0);
        }
        if round_began && !self.full {
            self.look_for_full(sample_app_limited, in_flight);
        }
        if round_began {
            (self.loss_events, self.lost_in_round) = (0, 0);
        }
        self.change_mode(now, in_flight, expired, round_began);
        self.set_pacing(lost);
        self.set_window(acked, extra);
        self.set_recovery_window(acked, lost, in_flight);
        self.forget(now);
    }

    /// Whether the shortest round trip had not been seen for too long.
    fn see_round_trip(&mut self, now: Instant, sample: Duration) -> bool {
        let expired = self.min_rtt.is_some() && now > self.min_rtt_at + ROUND_TRIP_AGE;
        if expired || self.min_rtt.is_none_or(|least| sample <= least) {
            self.min_rtt = Some(sample);
            self.min_rtt_at = now;
        }
        expired
    }

    fn see_rate(&mut self, now: Instant, newest: Sent) {
        let delivering = now - newest.delivered_at;
        let sending = newest.at - newest.first_sent;
        let interval = delivering.max(sending);
        // Shorter than a round trip it says nothing about the path: acknowledgements came in a lump.
        if interval.is_zero() || self.min_rtt.is_some_and(|least| interval < least) {
            return;
        }
        let rate = (self.delivered - newest.delivered) as f64 / interval.as_secs_f64();
        if !newest.app_limited || rate >= self.estimate() {
            self.bandwidth.add(self.round, rate);
        }
    }

    fn update_recovery(&mut self, newest: Option<Sent>, losses: bool, round_began: bool) {
        if losses {
            self.recovery_end = self.delivered;
        }
        // In the start the model itself reacts to losses.
        if !self.full {
            return;
        }
        match self.recovery {
            Recovery::No if losses => {
                self.recovery = Recovery::Conservation;
                self.recovery_window = 0;
                // The round of conservation begins with this loss.
                self.round_end = self.delivered;
            }
            Recovery::No => {}
            Recovery::Conservation | Recovery::Growth => {
                if self.recovery == Recovery::Conservation && round_began {
                    self.recovery = Recovery::Growth;
                }
                if !losses && newest.is_some_and(|newest| newest.delivered >= self.recovery_end) {
                    self.recovery = Recovery::No;
                }
            }
        }
    }

    /// How many bytes more than the rate explains came in a lump.
    fn see_gathering(&mut self, now: Instant, acked: u64) -> u64 {
        let expected = self.estimate() * (now - self.gathered_since).as_secs_f64();
        if self.gathered as f64 <= expected {
            self.gathered = acked;
            self.gathered_since = now;
            return 0;
        }
        self.gathered += acked;
        let extra = (self.gathered as f64 - expected).max(0.0);
        self.heights.add(self.round, extra);
        extra as u64
    }

    fn advance_cycle(&mut self, now: Instant, before: u64, in_flight: u64, losses: bool) {
        let mut advance = now - self.cycle_at > self.min_rtt.unwrap_or_default();
        // What is above the rate must be under way, or the path was not asked.
        if self.pacing_gain > 1.0 && !losses && before < self.target(self.pacing_gain) {
            advance = false;
        }
        if self.pacing_gain < 1.0 && in_flight <= self.target(1.0) {
            advance = true;
        }
        if !advance {
            return;
        }
        self.cycle = (self.cycle + 1) % CYCLE.len();
        self.cycle_at = now;
        let draining = self.gains.drain_to_target
            && self.pacing_gain < 1.0
            && CYCLE[self.cycle] == 1.0
            && in_flight > self.target(1.0);
        if !draining {
            self.pacing_gain = CYCLE[self.cycle];
        }
    }

    /// Whether the start has filled the path: no more growth.
    fn look_for_full(&mut self, app_limited: bool, in_flight: u64) {
        if app_limited {
            return;
        }
        if self.estimate() >= self.full_rate * GROWTH {
            self.full_rate = self.estimate();
            self.full_rounds = 0;
            if self.gains.early_aggregation {
                self.heights.clear();
            }
            return;
        }
        self.full_rounds += 1;
        let lossy = self.loss_events >= LOSS_EVENTS
            && self.lost_in_round as f64 > LOSS_SHARE * (in_flight + self.lost_in_round) as f64;
        self.full = self.full_rounds >= self.gains.startup_rounds || lossy;
    }

    fn change_mode(&mut self, now: Instant, in_flight: u64, expired: bool, round_began: bool) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
            self.pacing_gain = 1.0 / self.gains.high;
        }
        if self.mode == Mode::Drain && in_flight <= self.target(1.0) {
            self.probe_bandwidth(now);
        }
        if expired && self.mode != Mode::ProbeRtt {
            self.mode = Mode::ProbeRtt;
            self.pacing_gain = 1.0;
            self.probe_rtt_until = None;
        }
        if self.mode != Mode::ProbeRtt {
            return;
        }
        // What is sent so slowly says nothing about the path's rate.
        self.app_limited_until = self.delivered + in_flight.max(1);
        match self.probe_rtt_until {
            None if in_flight < (LEAST_PACKETS + 1) * self.mtu => {
                self.probe_rtt_until = Some((now + PROBE_RTT, self.round));
            }
            Some((until, round)) if now >= until && (round_began || self.round > round) => {
                self.min_rtt_at = now;
                if self.full {
                    self.probe_bandwidth(now);
                } else {
                    self.mode = Mode::Startup;
                    self.pacing_gain = self.gains.high;
                }
            }
            _ => {}
        }
    }

    fn probe_bandwidth(&mut self, now: Instant) {
        self.mode = Mode::ProbeBandwidth;
        self.cycle_at = now;
        if self.cycle == 1 {
            self.cycle = 2;
        }
        self.pacing_gain = CYCLE[self.cycle];
    }

    fn set_pacing(&mut self, lost: u64) {
        let rate = self.estimate();
        if rate == 0.0 {
            if let Some(rtt) = self.min_rtt.filter(|rtt| !rtt.is_zero()) {
                self.pacing = self.gains.high * (INITIAL_PACKETS * self.mtu) as f64 / rtt.as_secs_f64();
            }
            return;
        }
        let target = rate * self.pacing_gain;
        if self.full || self.mode == Mode::ProbeRtt {
            self.pacing = target;
            return;
        }
        if let Some(overshoot) = &mut self.overshoot {
            *overshoot += lost;
            if self.pacing > rate && *overshoot > INITIAL_PACKETS * self.mtu {
                self.overshoot = None;
                self.pacing = rate;
                return;
            }
        }
        self.pacing = self.pacing.max(target);
    }

    fn set_window(&mut self, acked: u64, extra: u64) {
        if self.mode == Mode::ProbeRtt {
            return;
        }
        let gain = if self.full { self.gains.probe_window } else { self.gains.startup_window };
        let mut target = self.target(gain);
        if self.full {
            target += self.heights.get() as u64;
        } else if self.gains.early_aggregation {
            target += extra;
        }
        if self.full {
            self.window = target.min(self.window + acked);
        } else if self.window < target || self.delivered < INITIAL_PACKETS * self.mtu {
            self.window += acked;
        }
        self.window = self.window.clamp(LEAST_PACKETS * self.mtu, MOST_BYTES);
    }

    fn set_recovery_window(&mut self, acked: u64, lost: u64, in_flight: u64) {
        if self.recovery == Recovery::No {
            return;
        }
        let least = (in_flight + acked).max(LEAST_PACKETS * self.mtu);
        let mut window = self.recovery_window.saturating_sub(lost);
        if self.recovery == Recovery::Growth {
            window += acked;
        }
        self.recovery_window = window.max(least);
    }

    /// Drops what will not be heard of any more: all acknowledged, or lost long ago.
    fn forget(&mut self, now: Instant) {
        let age = self.min_rtt.unwrap_or(GUESS) * 8 + Duration::from_millis(50);
        while self.sent.front().is_some_and(|sent| sent.open == 0 || sent.at + age < now) {
            self.sent.pop_front();
        }
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.sent_packets(now, bytes);
    }

    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, _app_limited: bool, _rtt: &RttEstimator) {
        self.acked_packet(sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _largest: Option<u64>) {
        self.end_batch(now, in_flight, app_limited);
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, _persistent: bool, lost_bytes: u64) {
        // A mark of congestion (no bytes) is no loss; the model sees the queue as a rate that does not grow.
        if lost_bytes > 0 {
            self.lost_bytes(lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.window = self.window.max(LEAST_PACKETS * self.mtu);
    }

    fn window(&self) -> u64 {
        self.congestion_window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.congestion_window();
        metrics.pacing_rate = Some(self.pacing_rate() * 8);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
