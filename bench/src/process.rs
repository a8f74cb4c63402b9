//! Programs under test as child processes that never outlive this one.
//!
//! Each child stands in a process group of its own, so that Ctrl-C in the terminal reaches this program alone, which
//! then ends its children by the list kept here. Dropping a [`Process`] ends it as well.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::failure::Failure;

/// How many of a program's own last lines explain its end.
const LOG_LINES: usize = 12;

/// A running program whose output goes to a log file.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pid: u32,
    child: Arc<Mutex<Child>>,
    log: PathBuf,
}

/// A child in the list of those that must not outlive this program.
struct Running {
    child: Arc<Mutex<Child>>,
    /// A file that it leaves behind when it is killed.
    leaves: Option<PathBuf>,
}

impl Process {
    /// Starts `command` under the name that messages use.
    pub(crate) fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self, Failure> {
        Self::spawn_leaving(name, command, log, None)
    }

    /// As [`Process::spawn`], for a program that leaves a file behind when it is killed.
    pub(crate) fn spawn_leaving(
        name: &str,
        command: &mut Command,
        log: &Path,
        leaves: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let output = File::create(log).map_err(Failure::file("cannot create", log))?;
        let errors = output.try_clone().map_err(Failure::file("cannot open", log))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        // The list stays locked so that a signal finds either no child yet or one that it can end.
        let mut running = lock(&RUNNING);
        let child = command.spawn().map_err(|error| Failure::Start {
            program: name.to_owned(),
            reason: format!("{}: {error}", command.get_program().display()),
            log: String::new(),
        })?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        running.insert(pid, Running { child: Arc::clone(&child), leaves });
        drop(running);
        Ok(Self { name: name.to_owned(), pid, child, log: log.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Fails once the program has ended.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(Failure::Died {
                program: self.name.clone(),
                status: status.to_string(),
                log: self.log_tail(),
            }),
        }
    }

    /// The failure of a program that was expected to work by now.
    pub(crate) fn start_failure(&self, waited_for: &str) -> Failure {
        let reason = match self.exited() {
            Some(status) => format!("it ended with {status}"),
            None => waited_for.to_owned(),
        };
        Failure::Start { program: self.name.clone(), reason, log: self.log_tail() }
    }

    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().ok().flatten()
    }

    fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = without_colors(&String::from_utf8_lossy(&text));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let running = lock(&RUNNING).remove(&self.pid);
        end(&self.child, running.and_then(|running| running.leaves).as_deref());
    }
}

/// Text without a terminal's colours.
fn without_colors(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Children by process id.
static RUNNING: Mutex<BTreeMap<u32, Running>> = Mutex::new(BTreeMap::new());

/// Watches for SIGINT, SIGTERM and SIGHUP on a thread of its own; on the first one ends all children, removes
/// `work_dir` and ends this program with the code a shell expects.
pub(crate) fn end_children_on_signal(work_dir: PathBuf) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};

    let doing = "cannot watch for signals";
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(Failure::io(doing))?;
    let guard = runtime.enter();
    let listen = |kind: SignalKind| signal(kind).map_err(Failure::io(doing));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    drop(guard);
    let watch = move || {
        // Whichever comes first.
        let number = runtime.block_on(std::future::poll_fn(|cx| {
            for (signal, number) in [(&mut interrupt, 2), (&mut terminate, 15), (&mut hangup, 1)] {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(number);
                }
            }
            Poll::Pending
        }));
        // Never unlocked: nothing may start from here on.
        let running = lock(&RUNNING);
        for Running { child, leaves } in running.values() {
            end(child, leaves.as_deref());
        }
        let _ = fs::remove_dir_all(&work_dir);
        std::process::exit(128 + number);
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(Failure::io(doing))?;
    Ok(())
}

/// Kills and reaps. Both steps fail only for a child that is gone already.
fn end(child: &Mutex<Child>, leaves: Option<&Path>) {
    let mut child = lock(child);
    let _: io::Result<()> = child.kill();
    let _ = child.wait();
    let _ = leaves.map(fs::remove_file);
}

/// Process ids stay valid whatever panicked while the lock was held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("culvert-bench-test-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_program_that_ends_tells_its_last_lines() {
        let log = log_path("ends");
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo the reason >&2; exit 3"]);
        let process = Process::spawn("fake", &mut command, &log).unwrap();
        while process.exited().is_none() {
            std::thread::yield_now();
        }
        let message = process.check().unwrap_err().to_string();
        assert!(message.contains("exit status: 3"), "{message}");
        assert!(message.ends_with("| the reason"), "{message}");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn colours_are_left_out() {
        assert_eq!(without_colors("\x1b[31mFATAL\x1b[0m[0000] no"), "FATAL[0000] no");
        assert_eq!(without_colors("plain"), "plain");
    }

    #[test]
    fn dropping_ends_the_program() {
        let log = log_path("drop");
        let process = Process::spawn("fake", Command::new("sleep").arg("60"), &log).unwrap();
        let proc_entry = PathBuf::from(format!("/proc/{}", process.pid()));
        assert!(proc_entry.exists());
        drop(process);
        assert!(!proc_entry.exists());
        let left = log_path("left");
        fs::write(&left, "").unwrap();
        let mut command = Command::new("sleep");
        drop(Process::spawn_leaving("fake", command.arg("60"), &log, Some(left.clone())).unwrap());
        assert!(!left.exists());
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let log = log_path("absent");
        let failure = Process::spawn("fake", &mut Command::new("/does/not/exist"), &log).unwrap_err();
        assert!(failure.to_string().starts_with("fake did not start: /does/not/exist: "), "{failure}");
        fs::remove_file(log).unwrap();
    }
}
