//! Findings: what is wrong or outdated in a configuration, and where.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use crate::json::Place;
use crate::source::Document;

/// More findings than this help nobody; the rest is only counted.
const MAX_SHOWN: usize = 200;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Accepted, but somebody should look.
    Warning,
    /// The configuration is refused.
    Error,
}

/// One finding. Displayed as `config.json:41:7: outbounds[3] "jp" .tls.severname: unknown field ...`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Diagnostic {
    /// Whether it refuses the configuration.
    pub severity: Severity,
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// JSON path, with the tags of the objects it passes in quotes; empty for the document itself.
    pub path: String,
    /// Tag of the innermost object that has one.
    pub tag: Option<String>,
    /// What is the matter, without a full stop.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All findings of one look at a configuration, in the order of the files.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    dropped: usize,
}

impl Diagnostics {
    /// The findings, in the order of the files.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.shown.iter()
    }

    /// How many findings there are to show.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shown.len()
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// Whether any finding refuses the configuration.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.shown.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

impl From<Vec<Diagnostic>> for Diagnostics {
    fn from(shown: Vec<Diagnostic>) -> Self {
        Self { shown, dropped: 0 }
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One finding a line; errors need no mark, warnings have one.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.shown.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            let mark = if diagnostic.severity == Severity::Warning { "warning: " } else { "" };
            write!(f, "{line_end}{mark}{diagnostic}")?;
        }
        if self.dropped > 0 {
            write!(f, "\nand {} more", self.dropped)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Findings while they are collected: places instead of lines and paths.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<(Severity, Place, String)>,
    seen: HashSet<(Place, String)>,
    errors: usize,
}

impl Report {
    /// Notes that the configuration cannot be used because of what stands at `place`.
    pub(crate) fn error(&mut self, place: Place, message: impl Into<String>) {
        self.errors += 1;
        self.add(Severity::Error, place, message.into());
    }

    /// Notes something accepted that somebody should look at.
    pub(crate) fn warn(&mut self, place: Place, message: impl Into<String>) {
        self.add(Severity::Warning, place, message.into());
    }

    /// Whether so much was found already that the wording of further findings hardly matters.
    pub(crate) const fn is_full(&self) -> bool {
        self.findings.len() >= MAX_SHOWN
    }

    /// How many errors were noted.
    pub(crate) const fn errors(&self) -> usize {
        self.errors
    }

    /// What the first error says.
    pub(crate) fn first_error(&self) -> Option<&str> {
        self.findings
            .iter()
            .find(|(severity, ..)| *severity == Severity::Error)
            .map(|(.., message)| message.as_str())
    }

    /// Takes over the errors of another look at the same sources.
    pub(crate) fn take_errors(&mut self, other: Self) {
        for (severity, place, message) in other.findings {
            if severity == Severity::Error {
                self.error(place, message);
            }
        }
    }

    /// Drops the warnings, keeping the errors.
    pub(crate) fn forget_warnings(&mut self) {
        self.findings.retain(|(severity, ..)| *severity == Severity::Error);
    }

    /// The findings with their places told in full, sorted by file and offset.
    pub(crate) fn finish(mut self, documents: &[Document<'_>]) -> Diagnostics {
        // Errors first where the list has to be cut, then the order of the files.
        self.findings.sort_by_key(|(severity, place, _)| (std::cmp::Reverse(*severity), *place));
        let dropped = self.findings.len().saturating_sub(MAX_SHOWN);
        self.findings.truncate(MAX_SHOWN);
        self.findings.sort_by_key(|(_, place, _)| *place);
        let shown = self.findings.into_iter().filter_map(|(severity, place, message)| {
            let document = documents.get(place.source as usize)?;
            Some(document.diagnostic(severity, place, message))
        });
        Diagnostics { shown: shown.collect(), dropped }
    }

    /// The same finding can come up twice, once in a file alone and once in the merged configuration.
    fn add(&mut self, severity: Severity, place: Place, message: String) {
        let message = shortened(message);
        if self.seen.insert((place, message.clone())) {
            self.findings.push((severity, place, message));
        }
    }
}

/// Longest word and longest text of a finding, in characters. What a configuration holds is quoted in findings, and a
/// reader needs no more of it to find the spot.
const MAX_WORD: usize = 200;
const MAX_TEXT: usize = 2000;

/// `text` with the middle of each very long word left out, and its own where that does not do.
pub(crate) fn shortened(text: String) -> String {
    if text.len() <= MAX_WORD {
        return text;
    }
    let words: Vec<_> = text.split(' ').map(|word| without_middle(word, MAX_WORD)).collect();
    without_middle(&words.join(" "), MAX_TEXT).into_owned()
}

fn without_middle(text: &str, most: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= most {
        return text.into();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(length - most / 8).collect();
    format!("{head}…{tail}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_and_texts_lose_their_middle() {
        assert_eq!(shortened("as it is".to_owned()), "as it is");
        let number = format!("found {}8, not 1", "9".repeat(100_000));
        let (head, tail) = ("9".repeat(100), "9".repeat(23));
        assert_eq!(shortened(number), format!("found {head}…{tail}8, not 1"));
        let words = "é ".repeat(100_000);
        assert!(shortened(words.clone()).chars().count() <= MAX_TEXT);
        assert!(shortened(words).starts_with("é é é"));
    }
}
