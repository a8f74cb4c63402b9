//! Why a measurement did not happen or must not be believed.

use std::io;
use std::path::PathBuf;

/// One operation's failure. What spoils a single row ends up as the reason beside it; the rest ends the run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A program ended or did not carry a connection in time. `log` holds its own last lines.
    #[error("{program} did not start: {reason}{}", indent(.log))]
    Start { program: String, reason: String, log: String },
    /// A program ended while it was being measured.
    #[error("{program} ended during the measurement ({status}){}", indent(.log))]
    Died { program: String, status: String, log: String },
    /// Streams broke.
    #[error("{count} of {of} streams failed, the first with: {first}")]
    Streams { count: usize, of: usize, first: String },
    /// Streams stood still.
    #[error("{count} of {of} streams moved no byte in {seconds:.1} s")]
    Stalled { count: usize, of: usize, seconds: f64 },
    /// Bytes arrived changed, or too few, or too many.
    #[error("integrity: {0}")]
    Integrity(String),
    /// The caller asked for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// A file or socket of our own.
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
}

/// How programs say that a part of them was left out when they were built.
const LEFT_OUT: [&str; 3] = ["not included in this build", "not in this build", "not built yet"];

impl Failure {
    /// The program's own line about a part that its build leaves out, if that is why it did not start.
    pub(crate) fn left_out_of_build(&self) -> Option<&str> {
        let Self::Start { log, .. } = self else { return None };
        log.lines().find(|line| LEFT_OUT.iter().any(|words| line.contains(words)))
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    pub(crate) fn file(doing: &str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{doing} {}", PathBuf::from(path).display()))
    }
}

/// A program's log lines, set below the message they explain.
fn indent(log: &str) -> String {
    log.lines().map(|line| format!("\n    | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_failure_shows_the_programs_own_lines() {
        let failure = Failure::Start {
            program: "a".into(),
            reason: "it ended with exit status: 1".into(),
            log: "one\ntwo".into(),
        };
        assert_eq!(
            failure.to_string(),
            "a did not start: it ended with exit status: 1\n    | one\n    | two"
        );
    }
}
