//! Sessions of a client that have no stream, kept for the next one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::session::Shared;

/// How long sessions are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Time between two looks.
    pub(super) interval: Duration,
    /// Idle time after which a session is closed.
    pub(super) timeout: Duration,
    /// So many are kept all the same.
    pub(super) least: usize,
}

/// The idle sessions of an outbound.
pub(super) struct Pool {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// How many there ever were.
    made: u64,
    /// By number, which is age.
    idle: BTreeMap<u64, Idle>,
    /// A task looks them over.
    watched: bool,
}

struct Idle {
    session: Arc<Shared>,
    since: Instant,
}

/// A session that has been taken. It goes back when this is dropped, unless it has ended.
pub(super) struct Lease {
    pool: Weak<Pool>,
    number: u64,
    pub(super) session: Arc<Shared>,
}

impl Pool {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// The newest session that lives, and for how long it has been idle.
    pub(super) fn take(self: &Arc<Self>) -> Option<(Lease, Duration)> {
        loop {
            let (number, Idle { session, since }) = self.lock().idle.pop_last()?;
            if session.is_open() {
                let lease = Lease { pool: Arc::downgrade(self), number, session };
                return Some((lease, since.elapsed()));
            }
        }
    }

    /// A session that has just been made.
    pub(super) fn add(self: &Arc<Self>, session: Arc<Shared>) -> Lease {
        let mut table = self.lock();
        table.made += 1;
        Lease { pool: Arc::downgrade(self), number: table.made, session }
    }

    /// Lets go of sessions that have ended by themselves.
    pub(super) fn forget_ended(&self) {
        let ended: Vec<_> = self.lock().idle.extract_if(.., |_, idle| !idle.session.is_open()).collect();
        drop(ended);
    }

    fn give_back(self: Arc<Self>, number: u64, session: Arc<Shared>) {
        let mut table = self.lock();
        table.idle.insert(number, Idle { session, since: Instant::now() });
        if table.watched {
            return;
        }
        // Without a runtime the program is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        table.watched = true;
        drop(table);
        let (interval, pool) = (self.limits.interval, Arc::downgrade(&self));
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                if !pool.upgrade().is_some_and(|pool| pool.look_over()) {
                    return;
                }
            }
        });
    }

    /// Closes those that have been idle for too long. Whether there are some left to watch.
    fn look_over(&self) -> bool {
        let Limits { timeout, least, .. } = self.limits;
        let (mut kept, now) = (0, Instant::now());
        let mut table = self.lock();
        table.idle.retain(|_, idle| idle.session.is_open());
        let mut late = Vec::new();
        for (number, idle) in table.idle.iter_mut().rev() {
            if now.duration_since(idle.since) < timeout {
                kept += 1;
            } else if kept < least {
                kept += 1;
                idle.since = now;
            } else {
                late.push(*number);
            }
        }
        for number in late {
            if let Some(idle) = table.idle.remove(&number) {
                idle.session.close();
            }
        }
        table.watched = !table.idle.is_empty();
        table.watched
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().idle.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outbound is gone: nobody will need them.
impl Drop for Pool {
    fn drop(&mut self) {
        self.lock().idle.values().for_each(|idle| idle.session.close());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.session.is_open() {
            return;
        }
        match self.pool.upgrade() {
            Some(pool) => pool.give_back(self.number, Arc::clone(&self.session)),
            None => self.session.close(),
        }
    }
}
