//! Replies kept for as long as their TTLs allow, and no more of them than was said.
//!
//! One cache belongs to one server; within it the [key](Query::key) of the question tells entries apart. An entry is the
//! reply as it came: whoever reads it gets the same bytes and the number of seconds to take off.
//!
//! All of it can be written down as bytes, and read back by another program ([`Cache::save`], [`Cache::restore`]):
//!
//! ```text
//! version 1 | entries:  length 2 | key | stored: milliseconds since 1970, 8 | length 2 | reply        (numbers big-endian)
//! ```
//!
//! Room is made by second chance: a hand goes round the entries, spares each that was read since it last came by, and
//! takes the first that was not. Reading an entry thereby costs one flag, and no list is kept in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::message::{Answer, Query, Reply, Ttl};

/// Fewest entries a cache may be limited to; smaller limits count as none was given (sing-box 1.14.4).
pub const CAPACITY: usize = 1024;
/// Bytes of replies per entry of the capacity, on average: a cache of 1024 entries keeps at most 2 MiB.
const BYTES_PER_ENTRY: usize = 2 << 10;
/// Form of what is written down; others are not read.
const VERSION: u8 = 1;
/// TTL shown for a reply that is past its time: RFC 8767 section 4.
const STALE_TTL: u32 = 30;

/// How a cache keeps replies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CacheOptions {
    /// Most entries.
    pub capacity: usize,
    /// Replies are good for ever (`disable_expire`).
    pub disable_expire: bool,
    /// How long past its time a reply may still be served while it is fetched again (`optimistic`).
    pub optimistic: Option<Duration>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { capacity: CAPACITY, disable_expire: false, optimistic: None }
    }
}

/// What the cache had.
#[derive(Clone, Debug)]
pub enum Found {
    /// A reply within its time.
    Fresh(Answer),
    /// A reply past its time, to be served once more and fetched again.
    Stale(Answer),
}

/// The replies of one server.
#[derive(Debug)]
pub struct Cache {
    options: CacheOptions,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    index: HashMap<Arc<[u8]>, usize>,
    slots: Vec<Slot>,
    hand: usize,
    bytes: usize,
    /// Whether anything was kept since it was last written down.
    changed: bool,
}

#[derive(Debug)]
struct Slot {
    key: Arc<[u8]>,
    reply: Arc<Reply>,
    stored: Instant,
    read: bool,
}

impl Cache {
    /// An empty cache; takes no memory yet.
    #[must_use]
    pub fn new(options: CacheOptions) -> Self {
        let options = CacheOptions { capacity: options.capacity.max(CAPACITY), ..options };
        Self { options, entries: Mutex::default() }
    }

    /// The reply to `query` as of `now`.
    pub fn find(&self, query: &Query, now: Instant) -> Option<Found> {
        let mut entries = self.lock();
        let at = *entries.index.get(&**query.key())?;
        let slot = &mut entries.slots[at];
        slot.read = true;
        let age = now.saturating_duration_since(slot.stored);
        let reply = Arc::clone(&slot.reply);
        let life = Duration::from_secs(reply.lifetime().into());
        if age < life {
            // Below the lifetime, so it fits.
            return Some(Found::Fresh(Answer { reply, ttl: Ttl::Aged(age.as_secs() as u32) }));
        }
        if self.options.disable_expire {
            return Some(Found::Fresh(Answer { reply, ttl: Ttl::Fresh }));
        }
        if self.options.optimistic.is_some_and(|grace| age < life + grace) {
            return Some(Found::Stale(Answer { reply, ttl: Ttl::Fixed(STALE_TTL) }));
        }
        entries.remove(at);
        None
    }

    /// Keeps `reply`, if it may be kept at all, in place of an older one.
    pub fn keep(&self, query: &Query, reply: &Arc<Reply>, now: Instant) {
        let budget = self.options.capacity * BYTES_PER_ENTRY;
        let size = cost(query.key(), reply);
        if reply.lifetime() == 0 || size > budget / 16 {
            return;
        }
        let mut entries = self.lock();
        if let Some(at) = entries.index.get(&**query.key()).copied() {
            entries.remove(at);
        }
        while entries.slots.len() >= self.options.capacity || entries.bytes + size > budget {
            entries.evict();
        }
        let key = Arc::clone(query.key());
        let at = entries.slots.len();
        entries.index.insert(Arc::clone(&key), at);
        entries.slots.push(Slot { key, reply: Arc::clone(reply), stored: now, read: false });
        entries.bytes += size;
        entries.changed = true;
    }

    /// All replies within their time as bytes, if anything was kept since they were last asked for.
    pub fn save(&self, now: Instant, clock: SystemTime) -> Option<Vec<u8>> {
        let mut entries = self.lock();
        if !std::mem::take(&mut entries.changed) {
            return None;
        }
        let mut bytes = Vec::with_capacity(1 + entries.bytes);
        bytes.push(VERSION);
        for slot in &entries.slots {
            let age = now.saturating_duration_since(slot.stored);
            let stored = clock.checked_sub(age).and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            let reply = slot.reply.as_bytes();
            let lengths = (u16::try_from(slot.key.len()), u16::try_from(reply.len()));
            let (Some(stored), (Ok(key_len), Ok(reply_len))) = (stored, lengths) else { continue };
            if !self.is_of_use(age, slot.reply.lifetime()) {
                continue;
            }
            bytes.extend(key_len.to_be_bytes());
            bytes.extend(&*slot.key);
            bytes.extend((stored.as_millis() as u64).to_be_bytes());
            bytes.extend(reply_len.to_be_bytes());
            bytes.extend(reply);
        }
        Some(bytes)
    }

    /// Keeps what [`Cache::save`] has written, as far as it is still of use. What is damaged ends it.
    pub fn restore(&self, saved: &[u8], now: Instant, clock: SystemTime) {
        let Some((&VERSION, mut rest)) = saved.split_first() else { return };
        while let Some((query, reply, stored)) = take_entry(&mut rest) {
            let stored = SystemTime::UNIX_EPOCH.checked_add(stored);
            let age = stored.and_then(|stored| clock.duration_since(stored).ok());
            let Some((age, stored)) = age.and_then(|age| Some((age, now.checked_sub(age)?))) else {
                continue;
            };
            if self.is_of_use(age, reply.lifetime()) {
                self.keep(&query, &Arc::new(reply), stored);
            }
        }
        self.lock().changed = false;
    }

    /// Whether a reply of this age can still be an answer.
    fn is_of_use(&self, age: Duration, lifetime: u32) -> bool {
        let life = Duration::from_secs(lifetime.into()) + self.options.optimistic.unwrap_or_default();
        self.options.disable_expire || age < life
    }

    /// How many replies are kept, those past their time included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().slots.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.lock() = Entries::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Takes out one entry that was not read lately; there must be one.
    fn evict(&mut self) {
        loop {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            let slot = &mut self.slots[self.hand];
            if !std::mem::take(&mut slot.read) {
                break;
            }
        }
        self.remove(self.hand);
    }

    fn remove(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.index.remove(&slot.key);
        self.bytes -= cost(&slot.key, &slot.reply);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(Arc::clone(&moved.key), at);
        }
    }
}

/// The next entry of what was written down.
fn take_entry(rest: &mut &[u8]) -> Option<(Query, Reply, Duration)> {
    let query = Query::from_key(sized(rest)?)?;
    let (stored, behind) = rest.split_first_chunk()?;
    *rest = behind;
    let reply = Reply::parse(sized(rest)?, &query, 0).ok()?;
    Some((query, reply, Duration::from_millis(u64::from_be_bytes(*stored))))
}

fn sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk()?;
    let (bytes, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *rest = behind;
    Some(bytes)
}

/// What an entry takes, roughly.
fn cost(key: &[u8], reply: &Reply) -> usize {
    key.len() + reply.as_bytes().len() + 128
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordType;
    use crate::testing::{Build, query};

    const SECOND: Duration = Duration::from_secs(1);

    fn reply(query: &Query, ttl: u32) -> Arc<Reply> {
        let name = query.domain().unwrap();
        let bytes = Build::reply_to(&query.encode(0)).address(name.as_str(), ttl, "192.0.2.1").done();
        Arc::new(Reply::parse(&bytes, query, 0).unwrap())
    }

    fn keep(cache: &Cache, name: &str, ttl: u32, now: Instant) {
        let query = query(name, RecordType::A);
        cache.keep(&query, &reply(&query, ttl), now);
    }

    /// The TTL shown, with a mark where the reply is stale.
    fn find(cache: &Cache, name: &str, now: Instant) -> Option<(u32, bool)> {
        let (answer, stale) = match cache.find(&query(name, RecordType::A), now)? {
            Found::Fresh(answer) => (answer, false),
            Found::Stale(answer) => (answer, true),
        };
        let request = crate::Request::parse(&query(name, RecordType::A).encode(1)).unwrap();
        let bytes = request.answer(&answer, crate::message::Carrier::Stream);
        let shown = Reply::parse(&bytes, &query(name, RecordType::A), 1).unwrap();
        Some((shown.lifetime(), stale))
    }

    #[test]
    fn ttls_count_down_to_the_end() {
        let cache = Cache::new(CacheOptions::default());
        let begun = Instant::now();
        keep(&cache, "a.test", 60, begun);
        keep(&cache, "zero.test", 0, begun);
        assert_eq!(find(&cache, "A.test.", begun), Some((60, false)));
        assert_eq!(find(&cache, "a.test", begun + 59 * SECOND), Some((1, false)));
        assert_eq!(find(&cache, "a.test", begun + 60 * SECOND), None);
        assert_eq!(find(&cache, "zero.test", begun), None);
        assert!(cache.is_empty(), "what is past its time is forgotten when asked for");
        keep(&cache, "a.test", 60, begun);
        keep(&cache, "a.test", 30, begun + 10 * SECOND);
        assert_eq!(find(&cache, "a.test", begun + 10 * SECOND), Some((30, false)), "the later reply counts");
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn questions_differ_by_type() {
        let cache = Cache::new(CacheOptions::default());
        let now = Instant::now();
        keep(&cache, "a.test", 60, now);
        assert!(cache.find(&query("a.test", RecordType::AAAA), now).is_none());
    }

    #[test]
    fn stale_replies_are_served_for_their_grace() {
        let cache = Cache::new(CacheOptions { optimistic: Some(100 * SECOND), ..CacheOptions::default() });
        let begun = Instant::now();
        keep(&cache, "a.test", 60, begun);
        assert_eq!(find(&cache, "a.test", begun + 59 * SECOND), Some((1, false)));
        assert_eq!(find(&cache, "a.test", begun + 60 * SECOND), Some((STALE_TTL, true)));
        assert_eq!(find(&cache, "a.test", begun + 159 * SECOND), Some((STALE_TTL, true)));
        assert_eq!(find(&cache, "a.test", begun + 160 * SECOND), None);
    }

    #[test]
    fn without_expiry_replies_stay_as_they_came() {
        let cache = Cache::new(CacheOptions { disable_expire: true, ..CacheOptions::default() });
        let begun = Instant::now();
        keep(&cache, "a.test", 60, begun);
        assert_eq!(find(&cache, "a.test", begun + 1000 * SECOND), Some((60, false)));
    }

    #[test]
    fn what_was_written_down_goes_on_ageing() {
        let (cache, begun) = (Cache::new(CacheOptions::default()), Instant::now());
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert_eq!(cache.save(begun, clock), None, "nothing has changed");
        keep(&cache, "short.test", 20, begun);
        keep(&cache, "long.test", 600, begun);
        let subnet = query("long.test", RecordType::A)
            .with_subnet(Some(crate::message::edns::Subnet::new("192.0.2.0".parse().unwrap(), 24)));
        cache.keep(&subnet, &reply(&query("long.test", RecordType::A), 600), begun);
        let saved = cache.save(begun + 10 * SECOND, clock).unwrap();
        assert_eq!(cache.save(begun + 10 * SECOND, clock), None);
        let (later, restarted) = (Instant::now(), Cache::new(CacheOptions::default()));
        restarted.restore(&saved, later, clock + 50 * SECOND);
        assert_eq!(find(&restarted, "short.test", later), None);
        assert_eq!(find(&restarted, "long.test", later), Some((540, false)));
        assert!(restarted.find(&subnet, later).is_some());
        assert_eq!(restarted.save(later, clock), None);
        // A clock that was set back says nothing about ages.
        let early = Cache::new(CacheOptions::default());
        early.restore(&saved, later, clock - 50 * SECOND);
        assert!(early.is_empty());
        for cut in 0..saved.len() {
            let damaged = Cache::new(CacheOptions::default());
            damaged.restore(&saved[..cut], later, clock);
            let mut bytes = saved.clone();
            bytes[cut] ^= 0x55;
            damaged.restore(&bytes, later, clock);
            assert!(damaged.len() <= 6);
        }
    }

    #[test]
    fn full_caches_spare_what_is_read() {
        let cache = Cache::new(CacheOptions { capacity: 10, ..CacheOptions::default() });
        let now = Instant::now();
        for n in 0..5 * CAPACITY {
            keep(&cache, &format!("{n}.test"), 60, now);
            keep(&cache, "kept.test", 60, now);
            assert!(find(&cache, "kept.test", now).is_some(), "{n}");
        }
        assert_eq!(cache.len(), CAPACITY, "less than 1024 counts as 1024");
        cache.clear();
        assert_eq!((cache.len(), find(&cache, "kept.test", now)), (0, None));
    }

    #[test]
    fn large_replies_do_not_fill_the_memory() {
        let cache = Cache::new(CacheOptions::default());
        let now = Instant::now();
        for n in 0..CAPACITY {
            let query = query(&format!("{n}.test"), RecordType::TXT);
            let build = Build::reply_to(&query.encode(0));
            let bytes = build.record(6, &format!("{n}.test"), 16, 60, &vec![b'x'; 60_000]).done();
            cache.keep(&query, &Arc::new(Reply::parse(&bytes, &query, 0).unwrap()), now);
        }
        assert!(cache.lock().bytes <= CAPACITY * BYTES_PER_ENTRY);
        assert!(cache.len() > 10);
        for n in 0..2 * CAPACITY {
            keep(&cache, &format!("{n}.test"), 60, now);
        }
        assert_eq!(cache.len(), CAPACITY, "small ones take the place of large ones");
    }
}
