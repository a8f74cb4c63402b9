//! AdGuard DNS filter lists into rule-sets (`rule-set convert -t adguard`).
//!
//! A list is lines; `RULESET.md` section 5 says which are taken and how. Lines it cannot express are left out and
//! reported, so that one odd line does not lose the list.

use std::net::IpAddr;

use thiserror::Error;

use super::RuleSetFile;
use crate::rule::{DefaultRule, LogicalRule, Mode, RuleOptions};

/// The version that conversion writes.
const VERSION: u8 = 2;

/// A converted list.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The rule-set, to be written as binary.
    pub file: RuleSetFile,
    /// How many lines went in.
    pub taken: usize,
    /// The lines left out because nothing here means the same.
    pub ignored: Vec<Ignored>,
}

/// A line that was left out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ignored {
    /// Line number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// Why.
    pub reason: &'static str,
}

/// No line could be used.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("AdGuard rule-set is empty or all rules are unsupported")]
pub struct AdGuardError;

/// Converts a list.
///
/// # Errors
/// When no line could be used.
pub fn convert_adguard(list: &str) -> Result<Converted, AdGuardError> {
    let (mut lines, mut ignored) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(list.lines()) {
        match parse_line(text) {
            Ok(rule) => lines.extend(rule),
            Err(reason) => ignored.push(Ignored { line, text: text.to_owned(), reason }),
        }
    }
    if lines.is_empty() {
        return Err(AdGuardError);
    }
    let taken = lines.len();
    let rule = if lines.iter().all(|line| line.bare) {
        DefaultRule { domain: lines.into_iter().map(|line| line.name).collect(), ..Default::default() }.into()
    } else {
        nest(&lines)
    };
    Ok(Converted { file: RuleSetFile { version: VERSION, rules: vec![rule] }, taken, ignored })
}

/// One rule of the list.
#[derive(Default)]
struct Line {
    /// The name or pattern, without anchors.
    name: String,
    /// Nothing but a name, or a hosts line.
    bare: bool,
    exception: bool,
    important: bool,
    pattern: bool,
    /// `||`
    subdomains: bool,
    /// `|`
    start: bool,
    /// `^`
    end: bool,
}

impl Line {
    fn anchored(&self) -> String {
        let start = if self.subdomains {
            "||"
        } else if self.start {
            "|"
        } else {
            ""
        };
        format!("{start}{}{}", self.name, if self.end { "^" } else { "" })
    }
}

/// `Ok(None)` for lines without meaning, `Err` with a reason for lines that have one we cannot express.
fn parse_line(text: &str) -> Result<Option<Line>, &'static str> {
    if text.is_empty() || text.starts_with(['!', '#']) {
        return Ok(None);
    }
    if is_domain_name(text) {
        return Ok(Some(Line { name: text.to_owned(), bare: true, ..Default::default() }));
    }
    if let Some((addr, name)) = text.split_once(' ')
        && let Ok(addr) = addr.parse::<IpAddr>()
    {
        if !addr.is_unspecified() {
            return Ok(None);
        }
        if is_domain_name(name) {
            return Ok(Some(Line {
                name: name.to_owned(),
                bare: true,
                start: true,
                end: true,
                ..Default::default()
            }));
        }
    }

    let mut line = Line::default();
    let mut rest = text.strip_suffix('|').unwrap_or(text);
    if !rest.starts_with('/')
        && let Some((rule, modifiers)) = rest.split_once('$')
    {
        for modifier in modifiers.split(',') {
            match modifier.split('=').collect::<Vec<_>>()[..] {
                ["important"] | ["important", _] => line.important = true,
                ["dnsrewrite", addr] if addr.parse().is_ok_and(|addr: IpAddr| addr.is_unspecified()) => {}
                _ => return Err("unsupported modifier"),
            }
        }
        rest = rule;
    }
    (line.exception, rest) = strip(rest, "@@");
    rest = rest.strip_suffix('|').unwrap_or(rest);
    (line.subdomains, rest) = strip(rest, "||");
    if !line.subdomains {
        (line.start, rest) = strip(rest, "|");
    }
    if let Some(name) = rest.strip_suffix('^') {
        line.end = true;
        rest = name;
    }
    if rest.starts_with('/') && rest.ends_with('/') {
        rest = rest.get(1..rest.len() - 1).unwrap_or_default();
        if is_address_pattern(rest) {
            return Err("pattern for addresses");
        }
        line.pattern = true;
    } else {
        if let Some((_, host)) = rest.split_once("://") {
            line.subdomains = true;
            rest = host;
        }
        if let Some(reason) = unsupported(rest) {
            return Err(reason);
        }
    }
    line.name = rest.to_owned();
    Ok(Some(line))
}

fn strip<'a>(text: &'a str, mark: &str) -> (bool, &'a str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

fn unsupported(name: &str) -> Option<&'static str> {
    if name.contains('/') {
        return Some("path");
    }
    if name.contains(['?', '&']) {
        return Some("query");
    }
    if name.contains(['[', ']', '(', ')', '!', '#']) {
        return Some("cosmetic filter");
    }
    if name.contains('~') {
        return Some("unsupported modifier");
    }
    if name.is_empty() {
        return Some("empty name");
    }
    // A rule may begin in the middle of a name.
    let start = if name.starts_with(['.', '-']) { "r" } else { "" };
    let filled = format!("{start}{}", name.replace('*', "x"));
    (!is_domain_name(&filled)).then_some("address, port or invalid name")
}

/// Whether a pattern starts with a number below 256 and then has a dot or nothing: it is meant for addresses.
fn is_address_pattern(pattern: &str) -> bool {
    let starts = ["(http?:\\/\\/)", "(https?:\\/\\/)", "^"];
    let pattern = starts.iter().find_map(|start| pattern.strip_prefix(start)).unwrap_or(pattern);
    let number = |dot: &str| {
        let digits = pattern.split(dot).next().unwrap_or_default();
        digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u8>().is_ok()
    };
    number("\\.") || number(".")
}

/// Go's test for names that resolvers take: labels of letters, digits, `_` and inner `-`, at least one not a digit.
fn is_domain_name(name: &str) -> bool {
    if name == "." {
        return true;
    }
    let dotless = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || dotless.len() > 253 {
        return false;
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    dotless.split('.').all(is_label) && dotless.bytes().any(|byte| !byte.is_ascii_digit() && byte != b'.')
}

/// Important exceptions win over important rules, those over exceptions, and those over ordinary rules.
fn nest(lines: &[Line]) -> RuleOptions {
    let class = |important: bool, exception: bool| {
        let pick = |pattern: bool| -> Vec<String> {
            let of_class = |line: &&Line| {
                (line.important, line.exception, line.pattern) == (important, exception, pattern)
            };
            lines.iter().filter(of_class).map(Line::anchored).collect()
        };
        DefaultRule {
            adguard_domain: pick(false),
            domain_regex: pick(true),
            invert: exception,
            ..Default::default()
        }
    };
    let is_empty = |rule: &DefaultRule| rule.adguard_domain.is_empty() && rule.domain_regex.is_empty();
    let mut rule = RuleOptions::from(class(false, false));
    for (important, exception, mode) in
        [(false, true, Mode::And), (true, false, Mode::Or), (true, true, Mode::And)]
    {
        let outer = class(important, exception);
        if !is_empty(&outer) {
            rule = LogicalRule { mode, rules: vec![outer.into(), rule], invert: false }.into();
        }
    }
    rule
}

/// Whatever converts can be written and read again.
#[doc(hidden)]
pub fn fuzz_adguard(data: &[u8]) {
    let Ok(list) = std::str::from_utf8(data) else { return };
    let Ok(converted) = convert_adguard(list) else { return };
    assert!(converted.taken + converted.ignored.len() <= list.lines().count());
    let written = super::write_binary(&converted.file).expect("names and patterns fit every version");
    let read = super::read_binary(&written).expect("what was written is readable");
    assert_eq!(super::write_binary(&read).expect("and writable again"), written);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_names_are_those_of_go() {
        for yes in ["a", "a.b", "a_b.c", "a.b.", ".", "1a.2", "xn--a", "a-1.b", "_dmarc.x"] {
            assert!(is_domain_name(yes), "{yes}");
        }
        for no in ["", "1.2.3.4", "1", "a..b", ".a", "-a.b", "a-.b", "a b", "é.x", "a.b:1", "*.a"] {
            assert!(!is_domain_name(no), "{no}");
        }
        assert!(
            is_domain_name(&format!("{}.x", "a".repeat(63)))
                && !is_domain_name(&format!("{}.x", "a".repeat(64)))
        );
        let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        assert!(
            is_domain_name(&long)
                && is_domain_name(&format!("{long}."))
                && !is_domain_name(&format!("{long}d"))
        );
    }

    #[test]
    fn one_odd_line_does_not_lose_the_list() {
        let mut list: String = (0..999).map(|number| format!("||d{number}.test^\n")).collect();
        list.insert_str(0, "||ok.test^\n! comment\n||bad.test^$denyallow=x\n");
        let converted = convert_adguard(&list).unwrap();
        assert_eq!(converted.taken, 1000);
        let [ignored] = &converted.ignored[..] else { panic!("{:?}", converted.ignored) };
        assert_eq!((ignored.line, ignored.reason), (3, "unsupported modifier"));
    }

    #[test]
    fn nothing_usable_is_an_error() {
        assert_eq!(convert_adguard("! only\n\n127.0.0.1 x.test\n"), Err(AdGuardError));
    }
}
