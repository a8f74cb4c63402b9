//! Clients that have not said yet who they are and what they want.
//!
//! Each costs a socket and a task, and anybody can make many. The table of them limits their time, without a timer
//! each, and their number, over all and per network they come from (IPv4 /24, IPv6 /48). When a limit is reached the
//! oldest goes: a real client is through in a moment and never the oldest, a stalling one always is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::Tag;
use crate::conn::{StreamConn, read_chain};
use crate::inbound::ServeError;
use crate::throttle::Throttle;
use crate::timeouts;

/// Limits of the table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one handshake may take.
    pub time: Duration,
    /// Most at once.
    pub total: usize,
    /// Most at once from one network.
    pub per_network: usize,
    /// What is logged where the oldest had to go.
    pub crowded: &'static str,
}

impl Limits {
    /// Those of strangers that are relayed to a site which an inbound imitates: nobody who looks at a site has as many
    /// connections to it, and who wants to use it up, or us as a way to it, gets no more. Nothing in here sweeps them.
    pub const STRANGERS: Self = Self {
        time: timeouts::STREAM_IDLE,
        total: 1024,
        per_network: 128,
        crowded: "too many strangers with the site that is imitated; the oldest was closed",
    };
}

impl Default for Limits {
    fn default() -> Self {
        let crowded = "too many clients in the handshake; the one that took longest was closed";
        Self { time: timeouts::HANDSHAKE, total: 4096, per_network: 1024, crowded }
    }
}

/// So many handshakes from one network, where there is no room, are more than its real clients have at once.
const SOME: usize = 4;

/// So many handshakes at once leave enough memory behind for it to be given back.
const CROWD: usize = 512;
/// And so many one after the other, whatever became of them.
const MANY: usize = 4096;
/// After this time those of a crowd have gone that were served, and their tasks.
const SETTLING: Duration = Duration::from_secs(2);

/// The network a client comes from, as far as limits go.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Prefix {
    V4([u8; 3]),
    V6([u8; 6]),
}

impl From<IpAddr> for Prefix {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, ..] = ip.octets();
                Self::V6([a, b, c, d, e, f])
            }
        }
    }
}

struct Entry {
    prefix: Prefix,
    /// The client and the inbound that serves it, for logs.
    who: Option<(SocketAddr, Tag)>,
    since: Instant,
    task: Arc<OnceLock<AbortHandle>>,
}

#[derive(Default)]
struct Table {
    /// By order of arrival.
    all: BTreeMap<u64, Entry>,
    by_prefix: HashMap<Prefix, BTreeSet<u64>>,
    /// Most at once since the table was last empty.
    peak: usize,
    /// How many there were since memory was last given back.
    entered: usize,
    /// Those that had to go before their task was named; they are ended when it is.
    evicted_early: HashSet<u64>,
}

impl Table {
    /// Now that it is empty: whether there were so many that their memory is worth being given back.
    fn ends_a_crowd(&mut self) -> bool {
        let ends = std::mem::take(&mut self.peak) >= CROWD || self.entered >= MANY;
        if ends {
            self.entered = 0;
        }
        ends
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.all.remove(&number)?;
        if let Some(same) = self.by_prefix.get_mut(&entry.prefix) {
            same.remove(&number);
            if same.is_empty() {
                self.by_prefix.remove(&entry.prefix);
            }
        }
        Some(entry)
    }
}

fn release() {
    culvert_wire::pool::trim();
    culvert_os::process::release_free_memory();
}

/// All handshakes under way.
pub struct Handshakes {
    limits: Limits,
    next: AtomicU64,
    table: Mutex<Table>,
    woken: Notify,
    throttle: Throttle,
}

impl Handshakes {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            next: AtomicU64::new(0),
            table: Mutex::default(),
            woken: Notify::new(),
            throttle: Throttle::new(Duration::from_secs(10)),
        })
    }

    /// Enters a client. Where a limit is reached, the oldest one makes room.
    #[must_use]
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Handshake {
        self.enter_as(from, None)
    }

    /// The same for a client of `inbound`, which is named where it is closed.
    pub(crate) fn enter_client(self: &Arc<Self>, from: SocketAddr, inbound: &Tag) -> Handshake {
        self.enter_as(from.ip(), Some((from, inbound.clone())))
    }

    fn enter_as(self: &Arc<Self>, from: IpAddr, who: Option<(SocketAddr, Tag)>) -> Handshake {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let prefix = Prefix::from(from);
        let task = Arc::new(OnceLock::new());
        let mut table = self.lock();
        let crowded = table.by_prefix.get(&prefix).filter(|same| same.len() >= self.limits.per_network);
        let oldest = match crowded {
            Some(same) => same.first().copied(),
            None if table.all.len() >= self.limits.total => table.all.keys().next().copied(),
            None => None,
        };
        let evicted = oldest.and_then(|number| {
            let entry = table.remove(number)?;
            if entry.task.get().is_none() {
                table.evicted_early.insert(number);
            }
            Some(entry)
        });
        let was_empty = table.all.is_empty();
        table.by_prefix.entry(prefix).or_default().insert(number);
        table.all.insert(number, Entry { prefix, who, since: Instant::now(), task: Arc::clone(&task) });
        table.peak = table.peak.max(table.all.len());
        table.entered += 1;
        drop(table);
        if was_empty {
            self.woken.notify_one();
        }
        if let Some(entry) = evicted {
            self.abort(&entry, self.limits.crowded);
        }
        Handshake { slot: HandshakeSlot { number, task, handshakes: Arc::clone(self) } }
    }

    /// Ends a client if a real one would be through by now: where the program carries all it may, those who say nothing are
    /// not to keep others waiting. It is the oldest of the network that has most of them, where that is a crowd, else the
    /// oldest of all. Whether there was one.
    pub fn make_room(&self) -> bool {
        let mut table = self.lock();
        let crowd = table.by_prefix.values().max_by_key(|same| same.len()).filter(|same| same.len() >= SOME);
        let (oldest, patience) = match crowd {
            Some(same) => (same.first(), timeouts::HANDSHAKE_OF_A_CROWD),
            None => (table.all.keys().next(), timeouts::HANDSHAKE_IN_A_CROWD),
        };
        let Some(number) = oldest.copied() else { return false };
        // One whose task has no name yet has just come.
        let may_go = |entry: &Entry| entry.since.elapsed() >= patience && entry.task.get().is_some();
        if !table.all.get(&number).is_some_and(may_go) {
            return false;
        }
        let entry = table.remove(number);
        drop(table);
        if let Some(entry) = &entry {
            self.abort(
                entry,
                "closed, as it took longest in its handshake and there is no room for more connections",
            );
        }
        entry.is_some()
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

    /// Ends handshakes that take too long, while there are any, and gives back the memory that a crowd of them took.
    /// Runs until it is dropped.
    pub async fn sweep(&self) {
        loop {
            let oldest = self.lock().all.values().next().map(|entry| entry.since);
            let Some(oldest) = oldest else {
                if self.lock().ends_a_crowd() {
                    release();
                    tokio::spawn(async {
                        tokio::time::sleep(SETTLING).await;
                        release();
                        culvert_os::process::release_program_pages();
                    });
                }
                self.woken.notified().await;
                continue;
            };
            tokio::time::sleep_until(oldest + self.limits.time).await;
            while let Some(entry) = self.pop_expired() {
                self.abort(&entry, "closed, as it did not finish its handshake in time");
            }
        }
    }

    fn pop_expired(&self) -> Option<Entry> {
        let mut table = self.lock();
        let (number, entry) = table.all.first_key_value()?;
        let (number, expired) = (*number, entry.since.elapsed() >= self.limits.time);
        if expired { table.remove(number) } else { None }
    }

    fn abort(&self, entry: &Entry, why: &'static str) {
        if let Some(task) = entry.task.get() {
            task.abort();
        }
        let Some(more) = self.throttle.allow() else { return };
        let who = match &entry.who {
            Some((source, inbound)) => format!("inbound/{inbound}: client {source}: "),
            None => String::new(),
        };
        let others = if more > 0 { format!(" ({more} more such lines held back)") } else { String::new() };
        tracing::info!(held_back = more, "{who}{why}{others}");
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's place in the table; dropping it says that the client is authenticated, or gone.
pub struct Handshake {
    slot: HandshakeSlot,
}

/// Names the task that serves a client, so that the table can end it.
#[derive(Clone)]
pub(crate) struct HandshakeSlot {
    number: u64,
    task: Arc<OnceLock<AbortHandle>>,
    handshakes: Arc<Handshakes>,
}

impl Handshake {
    pub(crate) fn slot(&self) -> HandshakeSlot {
        self.slot.clone()
    }
}

impl HandshakeSlot {
    /// Called once the task runs, which is after the client was entered: it may have been evicted in between.
    pub(crate) fn attach(self, task: AbortHandle) {
        let _ = self.task.set(task);
        // A client that is already authenticated is not in the table either, but then there is no one to end.
        if self.evicted()
            && let Some(task) = self.task.get()
        {
            task.abort();
        }
    }

    fn evicted(&self) -> bool {
        self.handshakes.lock().evicted_early.remove(&self.number)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut table = self.slot.handshakes.lock();
        table.remove(self.slot.number);
        table.evicted_early.remove(&self.slot.number);
    }
}

/// Reads from `conn` until `decode` makes sense of what has come, and returns that. What was read too far stays in
/// `early`; so does everything when it fails, for a fallback to have.
///
/// `max` bounds how much is kept waiting for a message to become whole.
///
/// # Errors
/// [`ServeError::Invalid`] as `decode` says or when `max` is not enough, [`ServeError::Left`] at the end of the stream.
pub async fn read_message<C, T>(
    conn: &mut C,
    early: &mut BufChain,
    max: usize,
    mut decode: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, ServeError>
where
    C: StreamConn + ?Sized,
{
    loop {
        let mut reader = Reader::new(early.contiguous());
        match decode(&mut reader) {
            Ok(message) => {
                let used = reader.position();
                if used > max {
                    return Err(ServeError::Invalid("length"));
                }
                early.advance(used);
                return Ok(message);
            }
            Err(DecodeError::Invalid(what)) => return Err(ServeError::Invalid(what)),
            Err(DecodeError::Incomplete) if early.len() >= max => return Err(ServeError::Invalid("length")),
            Err(DecodeError::Incomplete) => {}
        }
        let mut more = match read_chain(conn, Room::NONE).await {
            Ok(more) if more.is_empty() => return Err(ServeError::Left),
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(ServeError::Left),
            Err(error) => return Err(error.into()),
        };
        early.append(&mut more);
    }
}
