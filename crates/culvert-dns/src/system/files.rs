//! The two files, read again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Hosts, ResolvConf};

/// How often at most the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The hosts file and resolv.conf, as they are.
#[derive(Debug)]
pub(super) struct Files {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    port: u16,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    looked: Instant,
    hosts: Versioned<Hosts>,
    conf: Versioned<ResolvConf>,
    generation: u64,
}

/// What a file held when it bore this stamp; no stamp if it could not be read.
#[derive(Debug)]
struct Versioned<T> {
    stamp: Option<Stamp>,
    value: Arc<T>,
}

/// Time in nanoseconds, length, inode: an edit in place changes the first two, a replaced file the last.
type Stamp = (i64, i64, u64, u64);

/// The contents of both files.
pub(super) struct View {
    pub(super) hosts: Arc<Hosts>,
    pub(super) conf: Arc<ResolvConf>,
    /// Counts how often resolv.conf has come to mean something else.
    pub(super) generation: u64,
}

impl Files {
    pub(super) fn new(hosts: PathBuf, resolv_conf: PathBuf, port: u16) -> Self {
        Self { hosts, resolv_conf, port, known: Mutex::new(None) }
    }

    /// The contents, at most [`LOOK`] old. The files are small and on a local disk: reading them here blocks for
    /// microseconds, once per change.
    pub(super) fn view(&self) -> View {
        let parse_conf = |text: &str| ResolvConf::parse(text, self.port);
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match &mut *known {
            Some(known) => {
                if now.saturating_duration_since(known.looked) >= LOOK {
                    known.looked = now;
                    known.hosts.refresh(&self.hosts, Hosts::parse);
                    known.generation += u64::from(known.conf.refresh(&self.resolv_conf, parse_conf));
                }
                known
            }
            none => none.insert(Known {
                looked: now,
                hosts: Versioned::read(&self.hosts, Hosts::parse),
                conf: Versioned::read(&self.resolv_conf, parse_conf),
                generation: 0,
            }),
        };
        let (hosts, conf) = (Arc::clone(&known.hosts.value), Arc::clone(&known.conf.value));
        View { hosts, conf, generation: known.generation }
    }
}

impl<T: PartialEq> Versioned<T> {
    /// A file that is missing counts as empty.
    fn read(path: &Path, parse: impl Fn(&str) -> T) -> Self {
        let stamp = stamp(path);
        let bytes = std::fs::read(path).unwrap_or_default();
        Self { stamp, value: Arc::new(parse(&String::from_utf8_lossy(&bytes))) }
    }

    /// Reads the file again if its stamp has changed, and tells whether the contents mean something else.
    fn refresh(&mut self, path: &Path, parse: impl Fn(&str) -> T) -> bool {
        if stamp(path) == self.stamp {
            return false;
        }
        let fresh = Self::read(path, parse);
        let changed = fresh.value != self.value;
        *self = fresh;
        changed
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.len(), meta.ino()))
}
