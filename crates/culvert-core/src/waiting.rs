//! Clients that are known and have nothing going on: an association without a datagram yet, a kept connection between two
//! requests. They are in neither the table of handshakes nor that of flows.
//!
//! Each costs a socket or two, and a client may open many and say nothing. As with handshakes, where there are too many
//! the oldest goes, first of all that of a client that has many. Little is lost: who means it goes on in a moment.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::timeouts;

/// Most of them, and most of one client's.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most over all.
    pub total: usize,
    /// Most from one address.
    pub per_client: usize,
}

impl Limits {
    /// What becomes a program that carries at most so many connections.
    #[must_use]
    pub fn among(connections: usize) -> Self {
        Self { total: (connections / 4).clamp(1, 4096), per_client: (connections / 16).clamp(1, 256) }
    }
}

struct Waiter {
    client: IpAddr,
    since: Instant,
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
    fn oldest_of(&self, client: IpAddr) -> Option<u64> {
        self.all.iter().find(|(_, waiter)| waiter.client == client).map(|(number, _)| *number)
    }

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

/// All that wait.
pub struct Waiting {
    limits: Limits,
    table: Mutex<Table>,
}

impl Waiting {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets go of the oldest, unless it has just come. Whether there was one.
    pub fn make_room(&self) -> bool {
        let mut table = self.lock();
        let Some((number, waiter)) = table.all.first_key_value() else { return false };
        if waiter.since.elapsed() < timeouts::HANDSHAKE_IN_A_CROWD {
            return false;
        }
        let number = *number;
        let waiter = table.remove(number);
        drop(table);
        waiter.is_some_and(|waiter| waiter.let_go.send(()).is_ok())
    }

    /// Enters one of `client`. Where a limit is reached, the oldest one makes room.
    #[must_use]
    pub fn enter(self: &Arc<Self>, client: IpAddr) -> Place {
        let client = client.to_canonical();
        let (let_go, evicted) = oneshot::channel();
        let mut table = self.lock();
        let many = table.by_client.get(&client).is_some_and(|count| *count >= self.limits.per_client);
        let oldest = if many {
            table.oldest_of(client)
        } else if table.all.len() >= self.limits.total {
            // Not simply the oldest: a client that opens many is not to push out those of others.
            let most = table.by_client.values().max().copied();
            let is_of_many = |waiter: &Waiter| table.by_client.get(&waiter.client).copied() == most;
            table.all.iter().find(|(_, waiter)| is_of_many(waiter)).map(|(number, _)| *number)
        } else {
            None
        };
        let oldest = oldest.and_then(|number| table.remove(number));
        let number = table.next;
        table.next += 1;
        table.all.insert(number, Waiter { client, since: Instant::now(), let_go });
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

/// A place in the table; dropping it says that something goes on again, or that the client is gone.
pub struct Place {
    number: u64,
    evicted: oneshot::Receiver<()>,
    waiting: Arc<Waiting>,
}

impl Place {
    /// Ends when this one has to make room.
    pub async fn evicted(&mut self) {
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
        assert!(!is_evicted(&mut good), "a client with one makes no room for one with many");
        let gone = crowd.iter_mut().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(gone.iter().filter(|gone| !**gone).count(), 4);
        assert!(gone[..16].iter().all(|gone| *gone), "the oldest ones went");
        let mut more: Vec<_> =
            (10..30).map(|last| waiting.enter(IpAddr::from([198, 51, 100, last]))).collect();
        assert!(crowd.iter_mut().skip(17).all(is_evicted), "those of the client with many go first");
        assert!(is_evicted(&mut good), "among equals, the oldest goes");
        assert!(more[14..].iter_mut().all(|place| !is_evicted(place)));
        drop((good, crowd, more));
        let table = waiting.lock();
        assert!(table.all.is_empty() && table.by_client.is_empty());
    }
}
