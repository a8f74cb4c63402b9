//! Rule-sets as files: source JSON, binary `.srs`, AdGuard lists, and the `rule-set` commands over them.
//!
//! A file is read into a [`RuleSetFile`], which holds rules as they are written; [`load`] makes the matching form of
//! it. Both formats are those of sing-box 1.14.4, versions 1 to 5 (`RULESET.md`).

mod adguard;
mod binary;
mod command;
mod json;
mod source;

pub use adguard::{AdGuardError, Converted, Ignored, convert_adguard};
pub use binary::{BinaryError, ReadError, WriteError, read_binary, write_binary};
pub use command::{CommandError, compile, decompile, format, match_lines, merge, upgrade};
pub use source::{SourceError, read_source, write_source};

use thiserror::Error;

use crate::rule::{DefaultRule, Rule, RuleError, RuleOptions, RuleSet};

/// The newest version of both formats.
pub const CURRENT_VERSION: u8 = 5;

/// A rule-set as it stands in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSetFile {
    /// Format version, 1 to 5; a binary file may also say 0.
    pub version: u8,
    /// The rules, any of which may match.
    pub rules: Vec<RuleOptions>,
}

/// Which of the two formats.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Format {
    /// JSON, `.json`.
    Source,
    /// Binary, `.srs`.
    Binary,
}

impl Format {
    /// By the end of a path, or of the path of a URL.
    pub fn from_path(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "json" => Some(Self::Source),
            "srs" => Some(Self::Binary),
            _ => None,
        }
    }

    /// The name in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Binary => "binary",
        }
    }
}

/// Why a rule-set could not be loaded. The one loaded before should stay in use.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum LoadError {
    /// Not a source file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Not a binary file.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// A rule means nothing.
    #[error("parse rule_set.rules.[{index}]: {error}")]
    Rule {
        /// Which rule, from 0.
        index: usize,
        /// What is wrong with it.
        error: RuleError,
    },
}

/// Reads a file and builds its rules, ready to match.
///
/// # Errors
/// When the bytes are not of this format, or a rule in them has no meaning. Nothing is loaded by halves.
pub fn load(tag: &str, format: Format, data: &[u8]) -> Result<RuleSet, LoadError> {
    let file = match format {
        Format::Source => read_source(data)?,
        Format::Binary => read_binary(data)?,
    };
    build(tag, file)
}

/// Builds the rules of a file, or of an inline rule-set.
///
/// # Errors
/// For the first rule that has no meaning.
pub fn build(tag: &str, file: RuleSetFile) -> Result<RuleSet, LoadError> {
    let mut rules = Vec::with_capacity(file.rules.len());
    for (index, options) in file.rules.into_iter().enumerate() {
        rules.push(Rule::headless(options).map_err(|error| LoadError::Rule { index, error })?);
    }
    Ok(RuleSet::new(tag, rules))
}

/// Whether any default rule in the tree satisfies `condition`.
fn any_default(rules: &[RuleOptions], condition: &dyn Fn(&DefaultRule) -> bool) -> bool {
    rules.iter().any(|rule| match rule {
        RuleOptions::Default(rule) => condition(rule),
        RuleOptions::Logical(rule) => any_default(&rule.rules, condition),
    })
}

#[doc(hidden)]
pub use {adguard::fuzz_adguard, binary::fuzz_srs, source::fuzz_source};

#[cfg(test)]
mod tests;
