//! What one direction of a path does to packets.

use std::time::Duration;

/// What one direction of a path does to packets. The default does nothing to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// How long each packet is under way behind the bottleneck.
    pub delay: Duration,
    /// The delay varies evenly by at most this to both sides.
    pub jitter: Duration,
    /// Packets of different delay may overtake each other; else each waits for the one before it.
    pub jitter_reorders: bool,
    /// Which packets get lost.
    pub loss: Loss,
    /// The chance that a packet comes twice.
    pub repeat: f64,
    /// The chance that a packet is held up for [`Shape::late`], so that those behind overtake it.
    pub reorder: f64,
    /// How much later such a packet comes.
    pub late: Duration,
    /// Bits per second through the bottleneck; `None` is no bottleneck.
    pub rate: Option<u64>,
    /// Bytes that wait in front of the bottleneck at most; what comes then is dropped.
    pub queue: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_reorders: false,
            loss: Loss::None,
            repeat: 0.0,
            reorder: 0.0,
            late: Duration::ZERO,
            rate: None,
            queue: usize::MAX,
        }
    }
}

impl Shape {
    /// A bottleneck of `rate` bits per second in a path whose round trip takes `round_trip`, with a queue as long as one
    /// round trip fills it, but not shorter than 64 KiB.
    #[must_use]
    pub fn bottleneck(rate: u64, round_trip: Duration) -> Self {
        let queue = (rate as f64 / 8.0 * round_trip.as_secs_f64()) as usize;
        Self { delay: round_trip / 2, rate: Some(rate), queue: queue.max(64 << 10), ..Self::default() }
    }

    /// The same with this loss.
    #[must_use]
    pub fn losing(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }
}

/// Which packets get lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// None.
    None,
    /// Each with this chance, whatever happened to the others.
    Random(f64),
    /// In bursts: a chain of two states that is advanced by each packet (Gilbert 1960). The good one loses nothing.
    Bursty {
        /// The chance that the bad state begins with a packet.
        begin: f64,
        /// The chance that it ends with one.
        end: f64,
        /// The chance for a packet to get lost in it.
        inside: f64,
    },
}

impl Loss {
    /// Bursts of `length` packets on average that make `mean` of all packets get lost.
    #[must_use]
    pub fn bursts(mean: f64, length: f64) -> Self {
        let end = 1.0 / length.max(1.0);
        Self::Bursty { begin: end * mean / (1.0 - mean), end, inside: 1.0 }
    }
}
