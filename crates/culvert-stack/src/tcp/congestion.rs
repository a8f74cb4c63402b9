//! How many bytes may be on their way: CUBIC (RFC 9438).

use std::time::{Duration, Instant};

/// `C` and `beta` of the RFC.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// The congestion window of one connection.
#[derive(Clone, Debug)]
pub struct Cubic {
    mss: f64,
    window: f64,
    threshold: f64,
    /// The window before the last reduction.
    max: f64,
    /// When the growth after the last reduction began.
    epoch: Option<Instant>,
    /// Time from there to `max`, in seconds.
    k: f64,
    /// What Reno would have.
    reno: f64,
}

impl Cubic {
    /// A window of `initial` bytes for segments of `mss` bytes.
    #[must_use]
    pub fn new(mss: u32, initial: u32) -> Self {
        let window = f64::from(initial.max(mss));
        Self {
            mss: f64::from(mss.max(1)),
            window,
            threshold: f64::INFINITY,
            max: 0.0,
            epoch: None,
            k: 0.0,
            reno: 0.0,
        }
    }

    /// The window in bytes.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window as u32
    }

    /// `acked` bytes have arrived, and the window was what held the sender back.
    pub fn on_ack(&mut self, acked: u32, rtt: Duration, now: Instant) {
        let acked = f64::from(acked);
        if self.window < self.threshold {
            self.window += acked;
            return;
        }
        if self.epoch.is_none() {
            self.epoch = Some(now);
            self.reno = self.window;
            self.max = self.max.max(self.window);
            self.k = ((self.max - self.window) / self.mss / C).cbrt();
        }
        let epoch = self.epoch.unwrap_or(now);
        let time = (now.saturating_duration_since(epoch) + rtt).as_secs_f64();
        let cubic = (C * (time - self.k).powi(3)).mul_add(self.mss, self.max);
        // Reno with the same average (section 4.3).
        let alpha = if self.reno < self.max { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.reno += alpha * self.mss * acked / self.window;
        let target = cubic.max(self.reno).clamp(self.window, self.window * 1.5);
        self.window += (target - self.window) * acked / self.window;
    }

    /// Something was lost: once per window of data.
    pub fn on_loss(&mut self) {
        // Fast convergence (section 4.7).
        self.max = if self.window < self.max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0 * self.mss);
        self.threshold = self.window;
        self.epoch = None;
    }

    /// Nothing was acknowledged for a whole time-out.
    pub fn on_timeout(&mut self) {
        self.on_loss();
        self.window = self.mss;
    }

    /// Segments have another size from here on.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = f64::from(mss.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_then_shrinks_then_comes_back_to_where_it_was() {
        let (mut cubic, mut now, rtt) = (Cubic::new(1000, 10_000), Instant::now(), Duration::from_millis(50));
        for _ in 0..5 {
            cubic.on_ack(cubic.window(), rtt, now);
        }
        assert_eq!(cubic.window(), 320_000);
        cubic.on_loss();
        assert_eq!(cubic.window(), 224_000);
        // K is the cube root of 96 segments / 0.4: 6.2 seconds.
        let mut window = cubic.window();
        for _ in 0..124 {
            now += rtt;
            cubic.on_ack(cubic.window(), rtt, now);
            assert!(cubic.window() >= window);
            window = cubic.window();
        }
        assert!((300_000..=345_000).contains(&window), "{window}");
        cubic.on_timeout();
        assert_eq!(cubic.window(), 1000);
    }
}
