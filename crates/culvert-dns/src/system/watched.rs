//! A small file, read again when it changes.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often at most a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What a file says, at most a second old. A file that is missing or unreadable says what an empty one says.
///
/// Such files are small and on a local disk: reading them where they are needed blocks for microseconds, once per change.
pub struct Watched<T> {
    path: PathBuf,
    parse: Box<dyn Fn(&str) -> T + Send + Sync>,
    known: Mutex<Option<Known<T>>>,
}

struct Known<T> {
    looked: Instant,
    /// `None` if the file was not there.
    stamp: Option<Stamp>,
    value: Arc<T>,
    generation: u64,
}

/// Time in seconds and nanoseconds, length, inode: an edit in place changes the first three, a replaced file the last.
type Stamp = (i64, i64, u64, u64);

impl<T: PartialEq> Watched<T> {
    /// The file at `path`; nothing is read before the first look.
    #[must_use]
    pub fn new(path: PathBuf, parse: impl Fn(&str) -> T + Send + Sync + 'static) -> Self {
        Self { path, parse: Box::new(parse), known: Mutex::new(None) }
    }

    /// What the file says.
    #[must_use]
    pub fn view(&self) -> Arc<T> {
        self.view_counted().0
    }

    /// What the file says, and how often it has come to say something else.
    #[must_use]
    pub fn view_counted(&self) -> (Arc<T>, u64) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_with(|| Known {
            looked: now,
            stamp: stamp(&self.path),
            value: Arc::new(self.read()),
            generation: 0,
        });
        if now.saturating_duration_since(known.looked) >= LOOK {
            known.looked = now;
            let stamp = stamp(&self.path);
            if stamp != known.stamp {
                known.stamp = stamp;
                let value = self.read();
                if value != *known.value {
                    known.value = Arc::new(value);
                    known.generation += 1;
                }
            }
        }
        (Arc::clone(&known.value), known.generation)
    }

    fn read(&self) -> T {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        (self.parse)(&String::from_utf8_lossy(&bytes))
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("path", &self.path).finish_non_exhaustive()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.len(), meta.ino()))
}
