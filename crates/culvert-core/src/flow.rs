//! The table of live flows: what the API lists, what an idle limit ends, what a stop waits for.
//!
//! A flow is counted by its relay, which adds to atomics it shares with nobody else. Nothing here wraps a stream, and
//! no flow has a timer: one sweep per second over the table ends the flows that have been idle too long. It ends them
//! by aborting their task, which drops all they hold.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::{Session, SessionId, timeouts};

/// Why a flow ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum EndReason {
    /// Its task was dropped before a reason was known: the program stops.
    Dropped,
    /// Both directions came to their end.
    Finished,
    /// A peer broke off.
    Reset,
    /// Nothing moved for too long.
    Idle,
    /// The API or a group switch asked for it.
    Closed,
    /// It could not be connected.
    Failed,
}

impl EndReason {
    const ALL: [Self; 6] =
        [Self::Dropped, Self::Finished, Self::Reset, Self::Idle, Self::Closed, Self::Failed];
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "stopped",
            Self::Finished => "finished",
            Self::Reset => "reset",
            Self::Idle => "idle",
            Self::Closed => "closed on request",
            Self::Failed => "failed",
        })
    }
}

/// How the router sent a flow on its way.
#[derive(Clone, Debug)]
pub struct Way {
    /// The rule that decided, in words; `final` where none did.
    pub rule: Arc<str>,
    /// Tags from the outbound that dials back to the group that was named.
    pub chain: Vec<Arc<str>>,
}

/// One live flow.
pub struct Flow {
    session: Session,
    started: Instant,
    way: OnceLock<Way>,
    up: AtomicU64,
    down: AtomicU64,
    /// The sweep in which bytes were last seen to move.
    active: AtomicU32,
    /// Sweeps without a byte after which it ends; 0 is never.
    idle_limit: AtomicU32,
    reason: AtomicU8,
    task: OnceLock<AbortHandle>,
    clock: Arc<Clock>,
}

impl Flow {
    /// The session as it was submitted.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How long it has been alive.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How it was routed, once it was.
    #[must_use]
    pub fn way(&self) -> Option<&Way> {
        self.way.get()
    }

    /// Notes how it was routed; only the first note counts.
    pub fn set_way(&self, way: Way) {
        let _ = self.way.set(way);
    }

    /// Bytes from the client so far.
    #[must_use]
    pub fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// Bytes to the client so far.
    #[must_use]
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    /// Counts bytes from the client.
    pub fn count_up(&self, bytes: u64) {
        self.up.fetch_add(bytes, Ordering::Relaxed);
        self.touch();
    }

    /// Counts bytes to the client.
    pub fn count_down(&self, bytes: u64) {
        self.down.fetch_add(bytes, Ordering::Relaxed);
        self.touch();
    }

    fn touch(&self) {
        self.active.store(self.clock.now(), Ordering::Relaxed);
    }

    /// Ends the flow when nothing has moved for `limit`, from here on; rounded up to whole sweeps.
    pub fn set_idle_limit(&self, limit: Duration) {
        let sweeps = limit.as_millis().div_ceil(timeouts::SWEEP.as_millis());
        self.idle_limit.store(u32::try_from(sweeps).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.touch();
    }

    /// Notes why it ends; only the first reason counts.
    pub fn note_end(&self, reason: EndReason) {
        let dropped = EndReason::Dropped as u8;
        let _ = self.reason.compare_exchange(dropped, reason as u8, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Why it ended.
    #[must_use]
    pub fn end_reason(&self) -> EndReason {
        EndReason::ALL[usize::from(self.reason.load(Ordering::Relaxed))]
    }

    /// Ends it, from outside: everything it holds is dropped.
    pub fn close(&self, reason: EndReason) {
        self.note_end(reason);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Names the task to abort when the flow is closed.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let _ = self.task.set(task);
    }
}

/// Counts sweeps; the clock of idle limits.
#[derive(Debug, Default)]
struct Clock(AtomicU32);

impl Clock {
    fn now(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Watches for the end of a busy time.
#[derive(Default)]
struct Load {
    /// Most flows seen since the last calm.
    peak: usize,
    /// Sweeps for which there have been less than half of that.
    calm: u32,
}

impl Load {
    /// Sweeps of calm that count as the end of a busy time.
    const SWEEPS: u32 = 5;

    /// Once a sweep: how many flows there are, and how many there were at most since the last one.
    fn has_fallen(&mut self, flows: usize, busiest: usize) -> bool {
        self.peak = self.peak.max(flows).max(busiest);
        self.calm = if flows * 2 < self.peak { self.calm + 1 } else { 0 };
        let fallen = self.calm >= Self::SWEEPS;
        if fallen {
            *self = Self { peak: flows, calm: 0 };
        }
        fallen
    }

    /// Whether nothing is left to wait for.
    fn is_settled(&self) -> bool {
        self.peak == 0
    }
}

const SHARDS: usize = 16;

/// Sweeps after which a flow counts as resting where others wait.
const RESTING: u32 = (timeouts::IDLE_IN_A_CROWD.as_millis() / timeouts::SWEEP.as_millis()) as u32;
/// Most of them that are ended at a time.
const ROOM: usize = 8;

/// All live flows.
#[derive(Default)]
pub struct Flows {
    shards: [Mutex<HashMap<SessionId, Arc<Flow>>>; SHARDS],
    clock: Arc<Clock>,
    count: AtomicUsize,
    /// Most flows there were since the last sweep.
    busiest: AtomicUsize,
    /// Bytes of the flows that have ended.
    ended_up: AtomicU64,
    ended_down: AtomicU64,
    /// The sweep in which flows to end for others were last looked for.
    looked: AtomicU32,
    /// Wakes the sweep when a first flow comes, so that an idle program has no timer running.
    woken: Notify,
    emptied: Notify,
    /// Set while the program stops: nothing is admitted any more.
    closing: AtomicBool,
}

impl Flows {
    /// An empty table.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Enters a flow. The ticket takes it out again when it is dropped.
    #[must_use]
    pub fn open(self: &Arc<Self>, session: Session) -> FlowTicket {
        let flow = Arc::new(Flow {
            started: Instant::now(),
            way: OnceLock::new(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            active: AtomicU32::new(self.clock.now()),
            idle_limit: AtomicU32::new(0),
            reason: AtomicU8::new(EndReason::Dropped as u8),
            task: OnceLock::new(),
            clock: Arc::clone(&self.clock),
            session,
        });
        self.shard(flow.session.id).insert(flow.session.id, Arc::clone(&flow));
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        self.busiest.fetch_max(before + 1, Ordering::Relaxed);
        if before == 0 {
            self.woken.notify_one();
        }
        FlowTicket { flow, flows: Arc::clone(self) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One flow by its id.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<Arc<Flow>> {
        self.shard(id).get(&id).cloned()
    }

    /// All flows, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Flow>> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            all.extend(lock(shard).values().cloned());
        }
        all
    }

    /// Bytes from clients and to clients since the start, of live and ended flows.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let mut up = self.ended_up.load(Ordering::Relaxed);
        let mut down = self.ended_down.load(Ordering::Relaxed);
        for flow in self.list() {
            up += flow.up();
            down += flow.down();
        }
        (up, down)
    }

    /// Ends some of the flows on which nothing has moved for longest, if that is long enough: where the program carries all
    /// it may, those are not to lock everybody else out. Looks at most once per sweep. Whether there were any.
    pub fn make_room(&self) -> bool {
        let now = self.clock.now();
        if self.looked.swap(now, Ordering::Relaxed) == now {
            return false;
        }
        let resting = |flow: &Arc<Flow>| {
            let since = flow.active.load(Ordering::Relaxed);
            let established = flow.idle_limit.load(Ordering::Relaxed) > 0;
            (established && now.saturating_sub(since) > RESTING).then(|| (since, Arc::clone(flow)))
        };
        let mut resting: Vec<_> = self.list().iter().filter_map(resting).collect();
        resting.sort_by_key(|(since, _)| *since);
        resting.truncate(ROOM);
        resting.iter().for_each(|(_, flow)| flow.close(EndReason::Idle));
        if let Some((since, _)) = resting.first() {
            tracing::warn!(
                "connection limit reached: {} connections without a byte for up to {} s were closed",
                resting.len(),
                now.saturating_sub(*since)
            );
        }
        !resting.is_empty()
    }

    /// Whether flows are still admitted.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Admits no more flows, lets the live ones go on for `grace`, then ends them.
    pub async fn shut_down(&self, grace: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(grace, self.wait_empty()).await;
        self.close_all(EndReason::Dropped);
        // Aborted tasks are dropped by their workers; that takes no longer than a poll.
        let _ = tokio::time::timeout(timeouts::SWEEP, self.wait_empty()).await;
    }

    /// Ends all flows.
    pub fn close_all(&self, reason: EndReason) {
        self.list().iter().for_each(|flow| flow.close(reason));
    }

    async fn wait_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Ends idle flows, once per [`timeouts::SWEEP`] while there are flows. When their number has fallen to less than
    /// half and stayed there, calls `on_calm`, for memory of the busy time to be given back. Runs until it is dropped.
    pub async fn sweep(&self, on_calm: impl Fn()) {
        let mut load = Load::default();
        loop {
            if self.is_empty() && load.is_settled() {
                self.woken.notified().await;
            }
            tokio::time::sleep(timeouts::SWEEP).await;
            let now = self.clock.0.fetch_add(1, Ordering::Relaxed) + 1;
            for shard in &self.shards {
                let idle: Vec<_> = lock(shard).values().filter(|flow| flow.is_idle(now)).cloned().collect();
                idle.iter().for_each(|flow| flow.close(EndReason::Idle));
            }
            if load.has_fallen(self.len(), self.busiest.swap(0, Ordering::Relaxed)) {
                on_calm();
            }
        }
    }

    fn shard(&self, id: SessionId) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<Flow>>> {
        lock(&self.shards[id.get() as usize % SHARDS])
    }
}

impl Flow {
    fn is_idle(&self, now: u32) -> bool {
        let limit = self.idle_limit.load(Ordering::Relaxed);
        // One sweep more than the limit: the last byte may have moved right before a sweep.
        limit > 0 && now.saturating_sub(self.active.load(Ordering::Relaxed)) > limit
    }
}

/// A lock that guards a plain table is still good after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a flow in the table; dropping it takes the flow out and logs its summary.
pub struct FlowTicket {
    flow: Arc<Flow>,
    flows: Arc<Flows>,
}

impl FlowTicket {
    /// The flow.
    #[must_use]
    pub fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }
}

impl Drop for FlowTicket {
    fn drop(&mut self) {
        let (flow, flows) = (&self.flow, &self.flows);
        flows.ended_up.fetch_add(flow.up(), Ordering::Relaxed);
        flows.ended_down.fetch_add(flow.down(), Ordering::Relaxed);
        flows.shard(flow.session.id).remove(&flow.session.id);
        if flows.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            flows.emptied.notify_waiters();
        }
        let session = &flow.session;
        let outbound = flow.way().and_then(|way| way.chain.first()).map_or("-", |tag| tag);
        tracing::debug!(
            conn = session.id.get(),
            age_ms = flow.age().as_millis() as u64,
            network = session.network.as_str(),
            inbound = %session.inbound,
            outbound,
            target = %session.target,
            up = flow.up(),
            down = flow.down(),
            reason = %flow.end_reason(),
            "connection ended: {}, {} bytes up, {} bytes down",
            flow.end_reason(),
            flow.up(),
            flow.down()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_time_ends_once() {
        let mut load = Load::default();
        assert!((0..10).all(|_| !load.has_fallen(100, 0)));
        assert!((0..3).all(|_| !load.has_fallen(20, 0)));
        assert!(!load.has_fallen(80, 0), "it was a lull");
        let calm: Vec<_> = (0..12).map(|_| load.has_fallen(0, 0)).collect();
        assert_eq!(calm.iter().position(|fallen| *fallen), Some(4));
        assert_eq!(calm.iter().filter(|fallen| **fallen).count(), 1);
        assert!(load.is_settled());
        // What began and ended between two sweeps left pipes and buffers too.
        assert!(!load.has_fallen(0, 6));
        assert!((0..4).any(|_| load.has_fallen(0, 0)));
        assert!(load.is_settled());
    }
}
