//! Associations that wait for their first datagram. Until that comes they are in no other table that has a limit.
//!
//! Each costs two sockets, and a client may open many and send nothing. As with handshakes, where there are too many the
//! oldest goes, first of all that of a client that has many: one who means it sends its first datagram in a moment.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Most of them, and most of one client's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) total: usize,
    pub(super) per_client: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { total: 1024, per_client: 256 }
    }
}

struct Waiter {
    client: IpAddr,
    let_go: oneshot::Sender<()>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By order of arrival.
    all: BTreeMap<u64, Waiter>,
    by_client: HashMap<IpAddr, usize>,
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.all.remove(&number)?;
        if let Some(count) = self.by_client.get_mut(&waiter.client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&waiter.client);
            }
        }
        Some(waiter)
    }
}

/// All that wait at one server.
pub(super) struct Waiting {
    limits: Limits,
    table: Mutex<Table>,
}

impl Waiting {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// Enters an association of `client`. Where a limit is reached, the oldest one makes room.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr) -> Place {
        let client = client.to_canonical();
        let (let_go, evicted) = oneshot::channel();
        let mut table = self.lock();
        let many = table.by_client.get(&client).is_some_and(|count| *count >= self.limits.per_client);
        let oldest = if many {
            table.all.iter().find(|(_, waiter)| waiter.client == client).map(|(number, _)| *number)
        } else if table.all.len() >= self.limits.total {
            table.all.keys().next().copied()
        } else {
            None
        };
        let oldest = oldest.and_then(|number| table.remove(number));
        let number = table.next;
        table.next += 1;
        table.all.insert(number, Waiter { client, let_go });
        *table.by_client.entry(client).or_default() += 1;
        drop(table);
        if let Some(oldest) = oldest {
            let _ = oldest.let_go.send(());
        }
        Place { number, evicted, waiting: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One association's place in the table.
pub(super) struct Place {
    number: u64,
    evicted: oneshot::Receiver<()>,
    waiting: Arc<Waiting>,
}

impl Place {
    /// Ends when this association has to make room.
    pub(super) async fn evicted(&mut self) {
        // The sending end lives in the table for as long as this place does.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(place: &mut Place) -> bool {
        place.evicted.try_recv().is_ok()
    }

    #[test]
    fn the_oldest_makes_room_first_of_who_has_many() {
        let waiting = Waiting::new(Limits { total: 6, per_client: 4 });
        let (greedy, other): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut good = waiting.enter(other);
        let mut crowd: Vec<_> = (0..20).map(|_| waiting.enter(greedy)).collect();
        assert!(!is_evicted(&mut good), "a client with one association makes no room for one with many");
        let gone = crowd.iter_mut().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(gone.iter().filter(|gone| !**gone).count(), 4);
        assert!(gone[..16].iter().all(|gone| *gone), "the oldest ones went");
        let mut more: Vec<_> =
            (10..30).map(|last| waiting.enter(IpAddr::from([198, 51, 100, last]))).collect();
        assert!(is_evicted(&mut good), "over all, the oldest goes");
        assert!(more[14..].iter_mut().all(|place| !is_evicted(place)));
        drop((good, crowd, more));
        let table = waiting.lock();
        assert!(table.all.is_empty() && table.by_client.is_empty());
    }
}
