//! Connections that are kept, one for each server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::link::Link;
use crate::url::Server;

/// Servers whose connections are kept. A client speaks to one or two.
const SERVERS: usize = 8;

/// The connection to one server. Whoever holds the lock makes it, so that several requests make one only.
pub(crate) type Slot = Arc<AsyncMutex<Option<Link>>>;

#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<Server, Slot>>);

impl Pool {
    pub(crate) fn slot(&self, server: &Server) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SERVERS && !slots.contains_key(server) {
            // Those without a connection first; a connection that is in use outlives its place here.
            let is_empty = |slot: &Slot| slot.try_lock().is_ok_and(|link| link.is_none());
            let place = slots.iter().find(|(_, slot)| is_empty(slot)).or_else(|| slots.iter().next());
            if let Some(gone) = place.map(|(server, _)| server.clone()) {
                slots.remove(&gone);
            }
        }
        Arc::clone(slots.entry(server.clone()).or_default())
    }
}

/// The kept connection, if it is still good: a share of it, or the connection itself, which is back by [`keep`] later.
pub(crate) fn take(kept: &mut OwnedMutexGuard<Option<Link>>) -> Option<Link> {
    let link = kept.take().filter(Link::is_open)?;
    match link.share() {
        Some(share) => {
            **kept = Some(link);
            Some(share)
        }
        None => Some(link),
    }
}

/// Gives a connection back, unless there is another one by now.
pub(crate) fn keep(slot: &Slot, link: Link) {
    if let Ok(mut kept) = slot.try_lock() {
        kept.get_or_insert(link);
    }
}

/// Forgets a connection that has shown itself dead.
pub(crate) fn forget(slot: &Slot, link: &Link) {
    if let Ok(mut kept) = slot.try_lock()
        && kept.as_ref().is_some_and(|kept| kept.is_same(link))
    {
        *kept = None;
    }
}
