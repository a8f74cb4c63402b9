//! What the `rule-set` commands do to their data; files and output are the program's.

use std::net::IpAddr;

use thiserror::Error;

use super::{
    BinaryError, CURRENT_VERSION, LoadError, RuleSetFile, SourceError, WriteError, any_default, binary,
    read_binary, read_source, write_binary, write_source,
};
use crate::{
    domain::canonical_name,
    rule::{Facts, Rule, RuleSets},
};

/// Why a command could not do its work.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum CommandError {
    /// The source file is none.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The binary file is none.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// It cannot be written as binary.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A rule means nothing.
    #[error(transparent)]
    Rule(#[from] LoadError),
    /// AdGuard rules have no source form.
    #[error("unable to decompile binary AdGuard rules to rule-set.")]
    AdGuard,
    /// A binary file without a version cannot become source.
    #[error("unknown rule-set version: 0")]
    NoVersion,
}

/// `compile`: source to binary, in the oldest version that holds it.
///
/// # Errors
/// When the source cannot be read or means nothing.
pub fn compile(source: &[u8]) -> Result<Vec<u8>, CommandError> {
    let mut file = read_source(source)?;
    file.version = binary::lowest_version(&file);
    Ok(write_binary(&file)?)
}

/// `decompile`: binary to source.
///
/// # Errors
/// When the file cannot be read or holds AdGuard rules.
pub fn decompile(data: &[u8]) -> Result<String, CommandError> {
    let file = read_binary(data)?;
    if any_default(&file.rules, &|rule| rule.adguard_set.is_some()) {
        return Err(CommandError::AdGuard);
    }
    if file.version == 0 {
        return Err(CommandError::NoVersion);
    }
    Ok(write_source(file))
}

/// `format`: source in its canonical form.
///
/// # Errors
/// When the source cannot be read.
pub fn format(source: &[u8]) -> Result<String, CommandError> {
    Ok(write_source(read_source(source)?))
}

/// `upgrade`: a version-1 source as the newest version; `None` for one that is up to date.
///
/// # Errors
/// When the source cannot be read.
pub fn upgrade(source: &[u8]) -> Result<Option<String>, CommandError> {
    let file = read_source(source)?;
    Ok((file.version == 1).then(|| write_source(RuleSetFile { version: CURRENT_VERSION, ..file })))
}

/// `merge`: the rules of all files, which must come sorted by path, under the highest version.
///
/// # Errors
/// For the first source that cannot be read, with its position in the list.
pub fn merge<S: AsRef<[u8]>>(sources: &[S]) -> Result<String, (usize, CommandError)> {
    let mut merged = RuleSetFile { version: 0, rules: Vec::new() };
    for (index, source) in sources.iter().enumerate() {
        let file = read_source(source.as_ref()).map_err(|error| (index, error.into()))?;
        merged.version = merged.version.max(file.version);
        merged.rules.extend(file.rules);
    }
    Ok(write_source(merged))
}

/// `match`: one line per rule that matches `text`, which is an address if it reads as one and a name otherwise.
///
/// Conditions on ports, networks and processes do not match; those on interfaces and Wi-Fi are left out of the rules.
/// Unlike sing-box, a dot at the end of the name is dropped, as it is on the data path.
///
/// # Errors
/// When a rule means nothing.
pub fn match_lines(file: RuleSetFile, text: &str) -> Result<Vec<String>, CommandError> {
    let name = canonical_name(text);
    let facts = match text.parse::<IpAddr>() {
        Ok(addr) => Facts { destination: Some(addr), ..Facts::default() },
        Err(_) => Facts { domain: Some(&name), ..Facts::default() },
    };
    let mut lines = Vec::new();
    for (index, options) in file.rules.into_iter().enumerate() {
        let rule =
            Rule::headless_without_environment(options).map_err(|error| LoadError::Rule { index, error })?;
        if rule.matches(&facts, &RuleSets::default()) {
            lines.push(format!("match rules.[{index}]: {rule}"));
        }
    }
    Ok(lines)
}
