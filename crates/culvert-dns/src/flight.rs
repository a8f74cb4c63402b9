//! One exchange for all who ask the same at the same time.
//!
//! The first asker starts a task, the others join it. The task belongs to those who wait: when the last of them is gone,
//! answered or cancelled, it ends and its entry with it, so that a silent upstream holds nothing (tasks, sockets,
//! memory) for clients that have left.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;

type Key = Arc<[u8]>;

/// The exchanges under way.
#[derive(Debug)]
pub(crate) struct Flights<V> {
    table: Arc<Table<V>>,
}

#[derive(Debug)]
struct Table<V>(Mutex<HashMap<Key, Weak<Flight<V>>>>);

impl<V> Table<V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<Flight<V>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One exchange; held by those who wait for it.
#[derive(Debug)]
struct Flight<V> {
    key: Key,
    done: watch::Receiver<Option<V>>,
    task: AbortHandle,
    table: Arc<Table<V>>,
}

impl<V: Clone + Send + Sync + 'static> Flights<V> {
    pub(crate) fn new() -> Self {
        Self { table: Arc::new(Table(Mutex::default())) }
    }

    /// Waits for the exchange of `key`, which `start` begins if none is under way. `None` if it broke off by a panic.
    pub(crate) async fn join<F>(&self, key: &Key, start: impl FnOnce() -> F) -> Option<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let flight = self.board(key, start);
        let mut done = flight.done.clone();
        let landed = done.wait_for(Option::is_some).await.ok()?;
        landed.clone()
    }

    /// Whether somebody waits for the exchange of `key`.
    pub(crate) fn is_under_way(&self, key: &Key) -> bool {
        self.table.lock().contains_key(key)
    }

    /// How many exchanges are under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }

    fn board<F>(&self, key: &Key, start: impl FnOnce() -> F) -> Arc<Flight<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut table = self.table.lock();
        if let Some(flight) = table.get(key).and_then(Weak::upgrade) {
            return flight;
        }
        let (landed, done) = watch::channel(None);
        let exchange = start();
        let task = tokio::spawn(async move {
            landed.send_replace(Some(exchange.await));
        });
        let (key, task) = (Arc::clone(key), task.abort_handle());
        let flight = Arc::new(Flight { key: Arc::clone(&key), done, task, table: Arc::clone(&self.table) });
        table.insert(key, Arc::downgrade(&flight));
        flight
    }
}

impl<V> Drop for Flight<V> {
    fn drop(&mut self) {
        self.task.abort();
        let mut table = self.table.lock();
        // Somebody may have begun anew between the last waiter's leaving and this.
        if table.get(&self.key).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;

    struct Counted(Arc<AtomicUsize>);

    impl Counted {
        fn new(alive: &Arc<AtomicUsize>) -> Self {
            alive.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(alive))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_askers_share_one_exchange() {
        let flights = Arc::new(Flights::new());
        let started = Arc::new(AtomicUsize::new(0));
        let mut askers = JoinSet::new();
        for _ in 0..1000 {
            let (flights, started) = (Arc::clone(&flights), Arc::clone(&started));
            askers.spawn(async move {
                let start = || async move {
                    started.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    7
                };
                flights.join(&b"key"[..].into(), start).await
            });
        }
        while let Some(answer) = askers.join_next().await {
            assert_eq!(answer.unwrap(), Some(7));
        }
        assert_eq!((started.load(Ordering::SeqCst), flights.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_exchange_ends_with_its_last_asker() {
        let flights = Arc::new(Flights::<u8>::new());
        let alive = Arc::new(AtomicUsize::new(0));
        let mut askers = JoinSet::new();
        for _ in 0..1000 {
            let (flights, alive) = (Arc::clone(&flights), Arc::clone(&alive));
            askers.spawn(async move {
                let start = || {
                    let counted = Counted::new(&alive);
                    async move {
                        let _counted = counted;
                        std::future::pending().await
                    }
                };
                flights.join(&b"key"[..].into(), start).await
            });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((alive.load(Ordering::SeqCst), flights.len()), (1, 1));
        // All but one leave: the exchange goes on for that one.
        let mut last = JoinSet::new();
        let (waiting, still) = (Arc::clone(&flights), Arc::clone(&alive));
        last.spawn(async move {
            let start = || async move {
                let _counted = Counted::new(&still);
                std::future::pending().await
            };
            waiting.join(&b"key"[..].into(), start).await
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        askers.shutdown().await;
        assert_eq!((alive.load(Ordering::SeqCst), flights.len()), (1, 1));
        last.shutdown().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((alive.load(Ordering::SeqCst), flights.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_panic_is_no_hang() {
        let flights = Flights::<u8>::new();
        let start = || async { panic!("upstream code panics") };
        assert_eq!(flights.join(&b"key"[..].into(), start).await, None);
        assert_eq!(flights.join(&b"key"[..].into(), || async { 1 }).await, Some(1));
    }
}
