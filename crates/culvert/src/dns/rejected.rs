//! Questions whose answers passed no rule, so that they are not asked again for a while (`store_rdrc`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use culvert_cache::CacheFile;
use culvert_dns::Query;

/// How long that counts where the options say nothing (sing-box 1.14.4).
const TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most questions at once. When there are more, all are forgotten: it costs asking them again.
const MOST: usize = 16 << 10;

/// The questions. Knows none before it was told where to keep them.
#[derive(Default)]
pub(super) struct Rejected(OnceLock<Kept>);

struct Kept {
    file: Arc<CacheFile>,
    timeout: Duration,
    /// Until when, in seconds since 1970.
    until: Mutex<HashMap<String, u64>>,
}

impl Rejected {
    /// Goes on with what the file has.
    pub(super) fn keep_in(&self, file: &Arc<CacheFile>, timeout: Option<Duration>) {
        let now = seconds();
        let (kept, past): (HashMap<_, _>, HashMap<_, _>) =
            file.rejected().into_iter().partition(|(_, until)| *until > now);
        for question in past.keys() {
            file.set_rejected(question, None);
        }
        let (file, timeout) = (Arc::clone(file), timeout.unwrap_or(TIMEOUT));
        let _ = self.0.set(Kept { file, timeout, until: Mutex::new(kept) });
    }

    /// Whether the server's answer to this passed no rule not long ago.
    pub(super) fn contains(&self, server: &str, query: &Query) -> bool {
        let Some(kept) = self.0.get() else { return false };
        let until = kept.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.get(&key(server, query)).is_some_and(|until| *until > seconds())
    }

    /// Notes that it did not pass.
    pub(super) fn insert(&self, server: &str, query: &Query) {
        let Some(kept) = self.0.get() else { return };
        let (key, end) = (key(server, query), seconds() + kept.timeout.as_secs());
        kept.file.set_rejected(&key, Some(end));
        let mut until = kept.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.len() >= MOST {
            for gone in until.drain() {
                kept.file.set_rejected(&gone.0, None);
            }
        }
        until.insert(key, end);
    }
}

fn key(server: &str, query: &Query) -> String {
    format!("{query} {server}")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
