//! Tasks that serve clients until they hand a connection over, or for as long as a connection lasts that carries many:
//! a multiplexed one, one of HTTP/2, one of a proxy that is kept between requests.
//!
//! The table is for the stop: such a task holds sockets and is in no other table that could end it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

#[derive(Default)]
struct Table {
    next: u64,
    /// `None` until the task has a name.
    tasks: HashMap<u64, Option<AbortHandle>>,
    /// The program stops: nobody is served any more.
    closed: bool,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Serving {
    table: Mutex<Table>,
}

impl Serving {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Runs `serve` as a task of its own. `None` if the program stops.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        serve: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        let number = {
            let mut table = self.lock();
            if table.closed {
                return None;
            }
            table.next += 1;
            let number = table.next;
            table.tasks.insert(number, None);
            number
        };
        let place = Place { number, serving: Arc::clone(self) };
        let task = tokio::spawn(async move {
            let _place = place;
            serve.await;
        })
        .abort_handle();
        let mut table = self.lock();
        let closed = table.closed;
        // It may have ended by now, or the table may have been closed before the task had its name in it.
        if let Some(named) = table.tasks.get_mut(&number) {
            *named = Some(task.clone());
        }
        drop(table);
        if closed {
            task.abort();
        }
        Some(task)
    }

    /// Ends all of them, and lets no new ones in.
    pub(crate) fn close(&self) {
        let tasks: Vec<_> = {
            let mut table = self.lock();
            table.closed = true;
            table.tasks.values().flatten().cloned().collect()
        };
        tasks.iter().for_each(AbortHandle::abort);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task's place in the table.
struct Place {
    number: u64,
    serving: Arc<Serving>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serving.lock().tasks.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_ends_those_that_are_served_and_lets_nobody_in() {
        let serving = Arc::new(Serving::default());
        let (ended, is_ended) = tokio::sync::oneshot::channel::<()>();
        serving.spawn(async move {
            let _ended = ended;
            std::future::pending().await
        });
        let done = serving.spawn(async {}).unwrap();
        while !done.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(serving.len(), 1, "one that is done leaves the table");
        serving.close();
        assert!(is_ended.await.is_err());
        assert!(serving.spawn(async {}).is_none());
        assert_eq!(serving.len(), 0);
    }
}
