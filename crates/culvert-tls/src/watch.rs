//! Things made of files, made anew when the files change.
//!
//! There is no watcher: whoever needs the thing asks for it, and at most once a second the files are looked at (one
//! stat(2) each). So an idle inbound costs nothing, renaming, replacing, writing in place and files on network mounts
//! are all seen alike, and nothing has to be started or stopped.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How often the files are looked at, at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// A file that changed so recently may still be in the middle of its change.
const RECENT: Duration = Duration::from_secs(2);

/// A thing made of files.
pub(crate) struct Watched<T> {
    what: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    thing: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
    /// Raised with each new thing, so that whoever derives something from it sees that it is another one.
    generation: u64,
}

/// What tells one content of a file from the next. Without the file, nothing.
type Stamp = Option<(SystemTime, u64, u64)>;

impl<T> Watched<T> {
    /// Makes the thing for the first time. `what` is what messages call it.
    ///
    /// # Errors
    /// Those of `load`.
    pub(crate) fn new<E: fmt::Display>(
        what: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Before the content, so that a change in between is seen as one.
        let stamps = paths.iter().map(stamp).collect();
        let thing = Arc::new(load()?);
        let state = State { thing, stamps, looked: Instant::now(), generation: 0 };
        let load = Box::new(move || load().map_err(|error| error.to_string()));
        Ok(Self { what, paths, load, state: Mutex::new(state) })
    }

    /// The thing as its files say, and the number of its generation. If they cannot be read or make no sense, the last
    /// one that did, with one warning for each change.
    pub(crate) fn current(&self) -> (Arc<T>, u64) {
        let mut state = self.lock();
        if !self.paths.is_empty() && state.looked.elapsed() >= INTERVAL {
            state.looked = Instant::now();
            self.look(&mut state);
        }
        (Arc::clone(&state.thing), state.generation)
    }

    fn look(&self, state: &mut State<T>) {
        let stamps: Vec<_> = self.paths.iter().map(stamp).collect();
        if stamps == state.stamps {
            return;
        }
        match (self.load)() {
            Ok(thing) => {
                state.thing = Arc::new(thing);
                state.generation += 1;
                state.stamps = stamps;
                tracing::info!("{} reloaded", self.what);
            }
            // Half of a pair, or half of a file: the other half is on its way.
            Err(_) if stamps.iter().flatten().any(|(changed, ..)| is_recent(*changed)) => {}
            Err(error) => {
                state.stamps = stamps;
                tracing::warn!("{} not reloaded, the last good one stays in use: {error}", self.what);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.what)
    }
}

fn stamp(path: &PathBuf) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

fn is_recent(changed: SystemTime) -> bool {
    changed.elapsed().is_ok_and(|age| age < RECENT)
}

/// Reads a whole text file.
pub(crate) fn read_text(path: &PathBuf) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};
    use std::path::Path;

    use culvert_testkit::temp::TempDir;

    use super::*;

    fn watched(path: &Path) -> Watched<u32> {
        let file = path.to_owned();
        let load = move || {
            let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
            text.trim().parse::<u32>().map_err(|error| error.to_string())
        };
        Watched::new("number", vec![path.to_owned()], load).unwrap()
    }

    async fn after_a_second<T>(watched: &Watched<T>) -> (Arc<T>, u64) {
        tokio::time::advance(INTERVAL).await;
        watched.current()
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again_and_a_broken_one_is_not_used() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("number");
        write(&path, "1").unwrap();
        let number = watched(&path);
        write(&path, "22").unwrap();
        assert_eq!(*number.current().0, 1, "the file was looked at less than a second ago");
        assert_eq!(after_a_second(&number).await, (Arc::new(22), 1));
        write(&path, "broken").unwrap();
        assert_eq!(*after_a_second(&number).await.0, 22);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(*after_a_second(&number).await.0, 22);
        // By renaming, with a time of change that lies in the past.
        let other = folder.path().join("other");
        write(&other, "33").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        File::options().write(true).open(&other).unwrap().set_modified(long_ago).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(after_a_second(&number).await, (Arc::new(33), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_broken_for_long_is_read_once_only() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("number");
        write(&path, "1").unwrap();
        let number = watched(&path);
        write(&path, "broken").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(*after_a_second(&number).await.0, 1);
        let seen = number.lock().stamps.clone();
        assert_eq!(seen, [stamp(&path)], "the broken content is remembered");
    }
}
