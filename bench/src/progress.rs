//! How far a run is, on standard error: one line that is written over on a terminal, one line per step elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Counts the steps of a run.
pub(crate) struct Progress {
    steps: usize,
    done: usize,
    began: Instant,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Self {
        Self { steps, done: 0, began: Instant::now(), terminal: io::stderr().is_terminal() }
    }

    /// Announces the next step.
    pub(crate) fn step(&mut self, what: &str) {
        let left = time_left(self.began.elapsed(), self.done, self.steps);
        let left = left.map_or_else(String::new, |left| format!(", {} left", clock(left)));
        self.done += 1;
        self.show(&format!("[{}/{}] {what}{left}", self.done, self.steps));
    }

    /// Passes over steps that will not happen.
    pub(crate) fn skip(&mut self, steps: usize) {
        self.steps -= steps;
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(io::stderr(), "{start}{text}");
    }

    fn show(&self, line: &str) {
        let mut stderr = io::stderr();
        // Progress that cannot be shown is no reason to stop measuring.
        let _ = if self.terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
        let _ = stderr.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            self.show("");
        }
    }
}

/// What the remaining steps take if they are like those done.
fn time_left(elapsed: Duration, done: usize, steps: usize) -> Option<Duration> {
    let done = u32::try_from(done).ok().filter(|done| *done > 0)?;
    let left = u32::try_from(steps).ok()?.saturating_sub(done);
    Some(elapsed / done * left)
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_steps_done() {
        assert_eq!(time_left(Duration::from_secs(10), 0, 5), None);
        assert_eq!(time_left(Duration::from_secs(10), 2, 5), Some(Duration::from_secs(15)));
        assert_eq!(time_left(Duration::from_secs(10), 5, 5), Some(Duration::ZERO));
    }

    #[test]
    fn long_times_are_minutes() {
        assert_eq!(clock(Duration::from_secs(99)), "99 s");
        assert_eq!(clock(Duration::from_secs(121)), "3 min");
    }
}
