//! What is known of a connection's life, shared by its streams and by who looks after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The facts, and a bell that rings when one of them asks for something to be done.
pub(super) struct Traffic {
    start: Instant,
    /// When something last came from the peer, in milliseconds from the start.
    heard: AtomicU64,
    /// When the last stream ended, likewise.
    unused: AtomicU64,
    streams: AtomicUsize,
    /// Bytes that have been taken out of streams.
    taken: AtomicU64,
    /// Streams that the client gave up before it got an answer.
    abandoned: AtomicUsize,
    /// The connection takes no more streams.
    over: AtomicBool,
    /// Somebody wants to know whether the peer is there.
    doubted: AtomicBool,
    bell: Notify,
}

/// Bytes taken out of streams that show that a server's client is known.
pub(super) const KNOWN_AFTER: u64 = 64 << 10;

impl Traffic {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            heard: AtomicU64::new(0),
            unused: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            abandoned: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            bell: Notify::new(),
        })
    }

    /// Waits until something may have to be done.
    pub(super) async fn rings(&self) {
        self.bell.notified().await;
    }

    pub(super) fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// When something last came.
    pub(super) fn heard(&self) -> Instant {
        self.at(&self.heard)
    }

    /// Since when there is no stream, if there is none.
    pub(super) fn unused(&self) -> Option<Instant> {
        (self.streams() == 0).then(|| self.at(&self.unused))
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Acquire)
    }

    /// Enters a stream, unless there are `most`.
    pub(super) fn enter(self: &Arc<Self>, most: usize) -> Option<Place> {
        let enter = |streams| Some(streams + 1).filter(|_| streams < most);
        let before = self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).ok()?;
        if before == 0 {
            self.bell.notify_one();
        }
        Some(Place(Arc::clone(self)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Asks whether the peer is there, if nothing has come for `silence`.
    pub(super) fn doubt_after(&self, silence: Duration) {
        if self.heard().elapsed() >= silence && !self.doubted.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// Whether somebody has asked since this was last called.
    pub(super) fn take_doubt(&self) -> bool {
        self.doubted.swap(false, Ordering::AcqRel)
    }

    /// Whether so much was taken that a server's client must be known.
    pub(super) fn is_known(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= KNOWN_AFTER
    }

    /// How many streams were given up since this was last called.
    pub(super) fn take_abandoned(&self) -> usize {
        self.abandoned.swap(0, Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn at(&self, since: &AtomicU64) -> Instant {
        self.start + Duration::from_millis(since.load(Ordering::Relaxed))
    }
}

/// One stream's place; dropping it says that the stream is gone.
pub(super) struct Place(Arc<Traffic>);

impl Place {
    /// Notes bytes that were taken out of the stream.
    pub(super) fn take(&self, count: usize) {
        let count = count as u64;
        let before = self.0.taken.fetch_add(count, Ordering::Relaxed);
        if before < KNOWN_AFTER && before + count >= KNOWN_AFTER {
            self.0.bell.notify_one();
        }
    }

    /// Notes that the client gave the stream up before it got an answer.
    pub(super) fn abandon(&self) {
        self.0.abandoned.fetch_add(1, Ordering::Relaxed);
        self.0.bell.notify_one();
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.unused.store(self.0.now(), Ordering::Relaxed);
        if self.0.streams.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.bell.notify_one();
        }
    }
}
