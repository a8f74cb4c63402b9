//! What stands in the way of running a configuration, all of it.

use std::fmt;

/// Reasons why a configuration cannot run. Collected, so that a user sees all of them at once.
#[derive(Debug, Default)]
pub struct BuildErrors(Vec<String>);

impl BuildErrors {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The reasons, one text each.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Notes that something is known but has no engine yet.
    pub(crate) fn not_built(&mut self, feature: impl fmt::Display) {
        self.0.push(format!("{feature} is not built yet"));
    }

    /// Notes a value that can never work.
    pub(crate) fn invalid(&mut self, place: impl fmt::Display, reason: impl fmt::Display) {
        self.0.push(format!("{place}: {reason}"));
    }
}

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for BuildErrors {}
