//! The cache file: what outlives the program.
//!
//! | table | key | value |
//! |---|---|---|
//! | `selected` | tag of a selector | tag of the member chosen |
//! | `rule-set` | tag of a rule-set | [`SavedRuleSet`] as bytes, see [`mod@rule_set`] |
//! | `fake` | fake address | the name it stands for |
//! | `dns` | tag of a DNS server | its answers, as `culvert_dns::cache` writes them |
//! | `rejected` | DNS server and question | until when its answer passes no rule, in seconds since 1970 |
//! | `state` | `inet4`, `inet6`; `last4`, `last6`; `mode` | fake ranges; addresses given out last; mode of the Clash API |
//!
//! Every name of a table ends in `/` and the `cache_id` of the configuration, so that several can share one file.
//!
//! The store is [`redb`]: one file, copy on write, checked by sums. A program that is killed leaves the last commit behind.
//! Writes are queued in memory and committed together by a thread that lives only while there is something to write, so
//! nobody who changes something waits for a disk. What somebody may have been told meanwhile, as a fake address, is in a
//! [`journal`] before that. A file that is no store of ours, or is damaged, is put aside under the
//! name `….bad`, and an empty one takes its place.
//!
//! Files of sing-box (another kind of store) are put aside likewise; nothing is read from them.

#![forbid(unsafe_code)]

mod fake;
mod journal;
pub mod rule_set;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    TableError, WriteTransaction,
};
use thiserror::Error;
use tracing::warn;

use fake::FakeWrite;
use journal::Journal;
pub use rule_set::SavedRuleSet;

/// Memory for pages of the file.
const PAGES: usize = 256 << 10;
/// How long another process may take to let go of the file: one that is just ending.
const BUSY: (u32, Duration) = (20, Duration::from_millis(50));
/// Stack of the thread that writes.
const STACK: usize = 256 << 10;
/// How far the journal has been committed.
const JOURNAL: TableDefinition<'_, &str, u64> = TableDefinition::new("journal");

/// A cache file, open. Dropping it writes what is queued.
pub struct CacheFile {
    path: PathBuf,
    id: String,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// `None` once closed.
    database: Mutex<Option<Database>>,
}

#[derive(Default)]
struct State {
    queue: Vec<Write>,
    /// The thread that empties the queue.
    writer: Option<std::thread::JoinHandle<()>>,
    /// `None` if there can be none, or it broke.
    journal: Option<Journal>,
    is_closed: bool,
}

enum Write {
    Text { table: String, key: String, value: String },
    Bytes { table: String, key: String, value: Vec<u8> },
    Remove { table: String, key: String },
    Fake(String, FakeWrite),
}

/// Why there is no cache file.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("cache file {0} is in use by another process")]
    Busy(PathBuf),
    /// It can be neither opened nor created.
    #[error("cache file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl CacheFile {
    /// Opens the file, creates it, or replaces one that cannot be used. `id` is the name space inside. Blocks: the whole
    /// file is checked.
    ///
    /// # Errors
    /// It is in use, or the system refuses.
    pub fn open(path: &Path, id: &str) -> Result<Arc<Self>, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let database = match open(path) {
            Ok(database) => database,
            Err(Fault::Busy) => return Err(OpenError::Busy(path.to_owned())),
            Err(Fault::Io(source)) => return Err(failed(source)),
            Err(Fault::Damaged(reason)) => {
                let aside = aside(path);
                std::fs::rename(path, &aside).map_err(failed)?;
                warn!(
                    "cache file {}: {reason}; put aside as {}, an empty one takes its place",
                    path.display(),
                    aside.display()
                );
                match open(path) {
                    Ok(database) => database,
                    Err(Fault::Busy) => return Err(OpenError::Busy(path.to_owned())),
                    Err(Fault::Io(source)) => return Err(failed(source)),
                    Err(Fault::Damaged(reason)) => return Err(failed(io::Error::other(reason))),
                }
            }
        };
        let journal = match take_over(path, &database) {
            Ok(journal) => Some(journal),
            Err(error) => {
                warn!("journal of cache file {}: {error}; a kill may lose what is given out", path.display());
                None
            }
        };
        let state = Mutex::new(State { journal, ..State::default() });
        let shared = Shared { state, database: Mutex::new(Some(database)) };
        Ok(Arc::new(Self { path: path.to_owned(), id: id.to_owned(), shared: Arc::new(shared) }))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The member chosen last in this group.
    #[must_use]
    pub fn selected(&self, group: &str) -> Option<String> {
        self.text("selected", group)
    }

    /// Keeps the choice of a group.
    pub fn set_selected(&self, group: &str, member: &str) {
        self.put_text("selected", group, member);
    }

    /// The mode of the Clash API set last.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        self.text("state", "mode")
    }

    /// Keeps the mode of the Clash API.
    pub fn set_mode(&self, mode: &str) {
        self.put_text("state", "mode", mode);
    }

    /// The last good copy of a rule-set.
    #[must_use]
    pub fn rule_set(&self, tag: &str) -> Option<SavedRuleSet> {
        self.bytes("rule-set", tag, SavedRuleSet::decode)
    }

    fn bytes<T>(&self, table: &str, key: &str, decode: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let name = self.table(table);
        let found = self.read(|database| {
            let read = database.begin_read()?;
            let table = match read.open_table(TableDefinition::<&str, &[u8]>::new(&name)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            Ok(table.get(key)?.and_then(|value| decode(value.value())))
        });
        found.flatten()
    }

    /// The answers of a DNS server, kept by [`CacheFile::set_answers`].
    #[must_use]
    pub fn answers(&self, server: &str) -> Option<Vec<u8>> {
        self.bytes("dns", server, |value| Some(value.to_vec()))
    }

    /// Keeps the answers of a DNS server, all of them at once.
    pub fn set_answers(&self, server: &str, answers: Vec<u8>) {
        let table = self.table("dns");
        self.push(Write::Bytes { table, key: server.to_owned(), value: answers });
    }

    /// Which questions got answers that pass no rule, and until when that counts, in seconds since 1970.
    #[must_use]
    pub fn rejected(&self) -> Vec<(String, u64)> {
        let name = self.table("rejected");
        let found = self.read(|database| {
            let read = database.begin_read()?;
            let table = match read.open_table(TableDefinition::<&str, &str>::new(&name)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            let mut all = Vec::new();
            for entry in table.iter()? {
                let (key, until) = entry?;
                all.push((key.value().to_owned(), until.value().parse().unwrap_or_default()));
            }
            Ok(all)
        });
        found.unwrap_or_default()
    }

    /// Notes such a question; `None` forgets it.
    pub fn set_rejected(&self, question: &str, until: Option<u64>) {
        match until {
            Some(until) => self.put_text("rejected", question, &until.to_string()),
            None => self.push(Write::Remove { table: self.table("rejected"), key: question.to_owned() }),
        }
    }

    /// Keeps a copy of a rule-set.
    pub fn set_rule_set(&self, tag: &str, saved: &SavedRuleSet) {
        let table = self.table("rule-set");
        self.push(Write::Bytes { table, key: tag.to_owned(), value: saved.encode() });
    }

    /// Writes what is queued and lets go of the file. Later changes are lost.
    pub fn close(&self) {
        let writer = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            state.writer.take()
        };
        if let Some(writer) = writer {
            let _ = writer.join();
        }
        let database = self.shared.database.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(journal) = self.shared.lock().journal.take() {
            journal.remove();
        }
        if let Some(Err(error)) = database.map(Database::close) {
            warn!("cache file {}: {error}", self.path.display());
        }
    }

    fn table(&self, name: &str) -> String {
        format!("{name}/{}", self.id)
    }

    fn text(&self, table: &str, key: &str) -> Option<String> {
        let name = self.table(table);
        let found = self.read(|database| {
            let read = database.begin_read()?;
            match read.open_table(TableDefinition::<&str, &str>::new(&name)) {
                Ok(table) => Ok(table.get(key)?.map(|value| value.value().to_owned())),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        });
        found.flatten()
    }

    fn put_text(&self, table: &str, key: &str, value: &str) {
        let table = self.table(table);
        self.push(Write::Text { table, key: key.to_owned(), value: value.to_owned() });
    }

    /// What `read` finds; what cannot be read is as if it were not there.
    fn read<T>(&self, read: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Option<T> {
        let database = self.shared.database.lock().unwrap_or_else(PoisonError::into_inner);
        let found = read(database.as_ref()?);
        found.map_err(|error| warn!("cache file {}: {error}", self.path.display())).ok()
    }

    fn push(&self, write: Write) {
        let mut state = self.shared.lock();
        if state.is_closed {
            return;
        }
        let noted = state.journal.as_mut().map_or(Ok(()), |journal| journal.note(&write));
        if let Err(error) = noted {
            warn!(
                "journal of cache file {}: {error}; a kill may lose what is given out",
                self.path.display()
            );
            state.journal = None;
        }
        state.queue.push(write);
        let is_writing = state.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if state.queue.len() > 1 && is_writing {
            return;
        }
        let (shared, path) = (Arc::clone(&self.shared), self.path.clone());
        let writer = std::thread::Builder::new().name("cache-file".to_owned()).stack_size(STACK);
        match writer.spawn(move || shared.write_queued(&path)) {
            Ok(writer) => state.writer = Some(writer),
            Err(error) => warn!("cache file {}: no thread to write it: {error}", self.path.display()),
        }
    }
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what is queued, until nothing is.
    fn write_queued(&self, path: &Path) {
        // The lock is held from the look at the queue to the commit, so that writes keep their order.
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = &*database else { return };
        loop {
            let (writes, number) = {
                let mut state = self.lock();
                (std::mem::take(&mut state.queue), state.journal.as_ref().map(Journal::number))
            };
            if writes.is_empty() {
                return;
            }
            if let Err(error) = commit(database, &writes, number) {
                warn!("cache file {}: {error}; {} changes are lost", path.display(), writes.len());
                continue;
            }
            let mut state = self.lock();
            let state = &mut *state;
            if let Some(journal) = state.journal.as_mut().filter(|_| state.queue.is_empty())
                && let Err(error) = journal.clear()
            {
                warn!("journal of cache file {}: {error}", path.display());
            }
        }
    }
}

/// Opens the journal, and puts into the store what is in it and was never committed.
fn take_over(path: &Path, database: &Database) -> Result<Journal, redb::Error> {
    let (mut journal, left) = Journal::open(path).map_err(redb::Error::Io)?;
    let last = committed(database)?;
    let new: Vec<Write> =
        left.into_iter().filter(|(number, _)| *number > last).map(|(_, write)| write).collect();
    journal.go_on_from(last);
    if !new.is_empty() {
        commit(database, &new, Some(journal.number()))?;
    }
    journal.clear().map_err(redb::Error::Io)?;
    Ok(journal)
}

/// The last record of the journal that the store has.
fn committed(database: &Database) -> Result<u64, redb::Error> {
    let read = database.begin_read()?;
    match read.open_table(JOURNAL) {
        Ok(table) => Ok(table.get("last")?.map_or(0, |number| number.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// `number` is that of the last record of the journal that is among the writes.
fn commit(database: &Database, writes: &[Write], number: Option<u64>) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    if let Some(number) = number {
        transaction.open_table(JOURNAL)?.insert("last", number)?;
    }
    for write in writes {
        match write {
            Write::Text { table, key, value } => put_text(&transaction, table, key, value)?,
            Write::Bytes { table, key, value } => {
                let mut table = transaction.open_table(TableDefinition::<&str, &[u8]>::new(table))?;
                table.insert(key.as_str(), value.as_slice())?;
            }
            Write::Remove { table, key } => {
                transaction.open_table(TableDefinition::<&str, &str>::new(table))?.remove(key.as_str())?;
            }
            Write::Fake(id, write) => write.apply(&transaction, id)?,
        }
    }
    transaction.commit()?;
    Ok(())
}

fn put_text(transaction: &WriteTransaction, table: &str, key: &str, value: &str) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(TableDefinition::<&str, &str>::new(table))?;
    table.insert(key, value)?;
    Ok(())
}

/// Why a file cannot be used.
enum Fault {
    Busy,
    Io(io::Error),
    Damaged(String),
}

fn open(path: &Path) -> Result<Database, Fault> {
    let (tries, pause) = BUSY;
    for _ in 0..tries {
        let mut builder = Builder::new();
        builder.set_cache_size(PAGES).set_check_integrity_on_open(true);
        // A damaged file is promised to be an error; one that makes the store panic all the same is damaged too.
        let opened = catch_unwind(AssertUnwindSafe(|| builder.create(path)));
        match opened {
            Ok(Ok(database)) => return Ok(database),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => std::thread::sleep(pause),
            Ok(Err(DatabaseError::Storage(StorageError::Io(error)))) => {
                return Err(match error.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                        Fault::Damaged("no cache file of ours".to_owned())
                    }
                    _ => Fault::Io(error),
                });
            }
            Ok(Err(error)) => return Err(Fault::Damaged(error.to_string())),
            Err(_) => return Err(Fault::Damaged("damaged".to_owned())),
        }
    }
    Err(Fault::Busy)
}

/// Where a file goes that cannot be used.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".bad");
    name.into()
}

/// An address as text; all of them are written by us.
fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}
