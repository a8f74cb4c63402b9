//! Patterns in Go's syntax (RE2), as `domain_regex`, `process_path_regex` and `package_name_regex` hold them.
//!
//! They are rewritten for the `regex` crate, which reads almost the same language. Where the two differ Go wins:
//!
//! | text | in Go | in the `regex` crate |
//! |---|---|---|
//! | `\d` `\w` `\s` `\b` | ASCII | Unicode |
//! | `\Q..\E`, `\123` | literal text, octal | refused |
//! | `[a&&b]` `[a--b]` `[[a]` | those characters | set operations |
//! | `\<`, `\_` | the character | word boundary, refused |
//! | `{` `{,5}` `a{01}` | literal | refused, or a repetition |
//! | `(?x)` `(?u)` `(?R)`, `\u0041` | refused | accepted |
//! | `a**` `a{2}{3}`, counts above 1000 | refused | accepted |
//!
//! Left out: `\p{..}` classes by script or category, whose tables would add half a megabyte (refused with a message),
//! and nesting deeper than 250.

use regex::bytes::{RegexSet, RegexSetBuilder};
use thiserror::Error;

/// Compiled size of one item's patterns together, in bytes.
const SIZE_LIMIT: usize = 64 << 20;
/// The most repetitions of one thing that Go allows, all nested counts multiplied.
const MAX_REPEAT: u32 = 1000;

/// A set of patterns; one match is enough. Unanchored.
#[derive(Clone, Debug)]
pub struct Patterns(RegexSet);

/// Why a pattern was refused.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("parse expression {index}: {reason}")]
pub struct PatternError {
    /// Which pattern of the list, from 0.
    pub index: usize,
    /// In the words of Go's parser where it has any: ``error parsing regexp: missing closing ]: `[` ``.
    pub reason: String,
}

impl Patterns {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// For the first pattern that Go refuses, or that this crate leaves out.
    pub fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Self, PatternError> {
        let mut rewritten = Vec::with_capacity(patterns.len());
        for (index, pattern) in patterns.iter().enumerate() {
            let pattern = rewrite(pattern.as_ref()).map_err(|reason| PatternError { index, reason })?;
            rewritten.push(pattern);
        }
        compile(&rewritten).map(Self).map_err(|error| {
            let alone = |pattern| compile(std::slice::from_ref(pattern)).err();
            let (index, error) =
                (0..).zip(&rewritten).find_map(|(i, p)| Some((i, alone(p)?))).unwrap_or((0, error));
            let reason = match error {
                regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
                // The parser's message is a drawing; its last line says what is wrong.
                other => other
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned(),
            };
            PatternError { index, reason }
        })
    }

    /// Whether any pattern matches somewhere in `text`.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text.as_bytes())
    }
}

fn compile(patterns: &[String]) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).size_limit(SIZE_LIMIT).build()
}

/// Rewrites a Go pattern so that the `regex` crate finds the same matches. Only whether there is a match counts, so
/// groups lose their names and greediness is not kept.
fn rewrite(pattern: &str) -> Result<String, String> {
    let mut rewriter =
        Rewriter { rest: pattern, out: String::with_capacity(pattern.len()), groups: Vec::new() };
    let mut last = Last::Nothing;
    while let Some(c) = rewriter.rest.chars().next() {
        last = rewriter.step(c, last)?;
    }
    match rewriter.groups.is_empty() {
        true => Ok(rewriter.out),
        false => Err(error("missing closing )", pattern)),
    }
}

fn error(what: &str, text: &str) -> String {
    format!("error parsing regexp: {what}: `{text}`")
}

struct Rewriter<'a> {
    rest: &'a str,
    out: String,
    /// For each open group the largest repetition count inside so far.
    groups: Vec<u32>,
}

/// What a repetition operator would apply to.
#[derive(Clone, Copy)]
enum Last<'a> {
    Nothing,
    /// Something that repeats its own parts up to so many times.
    Atom(u32),
    /// A repetition, spelled like this.
    Repetition(&'a str),
}

impl<'a> Rewriter<'a> {
    fn step(&mut self, c: char, last: Last<'a>) -> Result<Last<'a>, String> {
        let whole = self.rest;
        match c {
            '(' => {
                self.open()?;
                Ok(Last::Nothing)
            }
            ')' => {
                let inside = self.groups.pop().ok_or_else(|| error("unexpected )", whole))?;
                self.take(c);
                self.out.push(')');
                Ok(self.atom(inside))
            }
            '|' => {
                self.take(c);
                self.out.push('|');
                Ok(Last::Nothing)
            }
            '^' | '$' | '.' => {
                self.take(c);
                self.out.push(c);
                Ok(self.atom(1))
            }
            '[' => {
                self.class()?;
                Ok(self.atom(1))
            }
            '*' | '+' | '?' => {
                self.take(c);
                self.repetition(whole, None, last)
            }
            '{' => match counts(whole) {
                Some((text, min, max)) => {
                    self.rest = &whole[text.len()..];
                    if min > MAX_REPEAT || max.is_some_and(|max| max > MAX_REPEAT || max < min) {
                        return Err(error("invalid repeat count", text));
                    }
                    self.repetition(whole, Some(max.unwrap_or(min)), last)
                }
                None => {
                    self.take(c);
                    self.literal(c);
                    Ok(self.atom(1))
                }
            },
            '\\' => self.escape(),
            _ => {
                self.take(c);
                self.literal(c);
                Ok(self.atom(1))
            }
        }
    }

    fn take(&mut self, c: char) {
        self.rest = &self.rest[c.len_utf8()..];
    }

    fn atom(&mut self, count: u32) -> Last<'a> {
        if let Some(largest) = self.groups.last_mut() {
            *largest = count.max(*largest);
        }
        Last::Atom(count)
    }

    fn literal(&mut self, c: char) {
        if c.is_ascii() && !c.is_ascii_alphanumeric() {
            self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        } else {
            self.out.push(c);
        }
    }

    /// The operator itself is consumed already; `whole` begins with it. A `?` behind it makes it lazy.
    fn repetition(&mut self, whole: &'a str, most: Option<u32>, last: Last<'a>) -> Result<Last<'a>, String> {
        let operator = &whole[..whole.len() - self.rest.len()];
        self.out.push_str(operator);
        self.rest = self.rest.strip_prefix('?').unwrap_or(self.rest);
        let spelled = &whole[..whole.len() - self.rest.len()];
        let inside = match last {
            Last::Nothing => return Err(error("missing argument to repetition operator", operator)),
            Last::Repetition(before) => {
                return Err(error("invalid nested repetition operator", &format!("{before}{spelled}")));
            }
            Last::Atom(inside) => inside,
        };
        let count = inside.saturating_mul(most.unwrap_or(1).max(1));
        if count > MAX_REPEAT {
            return Err(error("invalid repeat count", operator));
        }
        self.atom(count);
        Ok(Last::Repetition(spelled))
    }

    /// `(`, `(?:`, `(?P<name>`, `(?<name>`, `(?flags)` or `(?flags:`.
    fn open(&mut self) -> Result<(), String> {
        let whole = self.rest;
        let Some(special) = whole.strip_prefix("(?") else {
            self.take('(');
            self.out.push_str("(?:");
            self.groups.push(1);
            return Ok(());
        };
        if let Some(named) = special.strip_prefix("P<").or_else(|| special.strip_prefix('<')) {
            let end = named.find('>').ok_or_else(|| error("invalid named capture", whole))?;
            let name = &named[..end];
            if name.is_empty() || !name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
                return Err(error("invalid named capture", &whole[..whole.len() - named.len() + end + 1]));
            }
            self.rest = &named[end + 1..];
            self.out.push_str("(?:");
            self.groups.push(1);
            return Ok(());
        }
        let (mut on, mut off) = (String::new(), String::new());
        let (mut negative, mut seen) = (false, false);
        for (at, flag) in special.char_indices() {
            let spelled = &whole[..2 + at + flag.len_utf8()];
            let refused = || Err(error("invalid or unsupported Perl syntax", spelled));
            match flag {
                // Greediness does not change whether there is a match.
                'U' => seen = true,
                'i' | 'm' | 's' => {
                    let (here, there) = if negative { (&mut off, &mut on) } else { (&mut on, &mut off) };
                    there.retain(|other| other != flag);
                    if !here.contains(flag) {
                        here.push(flag);
                    }
                    seen = true;
                }
                '-' if !negative => (negative, seen) = (true, false),
                ':' | ')' if negative && !seen => return refused(),
                ':' | ')' => {
                    self.rest = &special[at + 1..];
                    let flags = if off.is_empty() { on } else { format!("{on}-{off}") };
                    if flag == ':' {
                        self.out.push_str(&format!("(?{flags}:"));
                        self.groups.push(1);
                    } else if !flags.is_empty() {
                        self.out.push_str(&format!("(?{flags})"));
                    }
                    return Ok(());
                }
                _ => return refused(),
            }
        }
        Err(error("invalid or unsupported Perl syntax", whole))
    }

    fn escape(&mut self) -> Result<Last<'a>, String> {
        let whole = self.rest;
        if let Some(quoted) = whole.strip_prefix("\\Q") {
            let (text, rest) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            self.rest = rest;
            text.chars().for_each(|c| self.literal(c));
            // Only the last character repeats, as in Go.
            return Ok(if text.is_empty() { Last::Nothing } else { self.atom(1) });
        }
        if let Some(class) = perl_class(whole) {
            self.rest = &whole[2..];
            self.out.push_str(class);
            return Ok(self.atom(1));
        }
        match whole.as_bytes().get(1) {
            Some(b'A' | b'z') => self.out.push_str(&whole[..2]),
            // Word boundaries are between ASCII words.
            Some(b'b' | b'B') => self.out.push_str(&format!("(?-u:{})", &whole[..2])),
            Some(b'p' | b'P') => {
                self.unicode_class()?;
                return Ok(self.atom(1));
            }
            _ => {
                let c = self.escaped_char()?;
                self.literal(c);
                return Ok(self.atom(1));
            }
        }
        self.rest = &whole[2..];
        Ok(self.atom(1))
    }

    /// `\pL`, `\p{Greek}`, `\p{^Greek}`, `\PL`.
    fn unicode_class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        let (name, rest) = match whole[2..].strip_prefix('{') {
            Some(braced) => {
                braced.split_once('}').ok_or_else(|| error("invalid character class range", whole))?
            }
            None => {
                let first =
                    whole[2..].chars().next().ok_or_else(|| error("invalid character class range", whole))?;
                whole[2..].split_at(first.len_utf8())
            }
        };
        let (name, flipped) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        let negative = (whole.as_bytes()[1] == b'P') != flipped;
        if !name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphabetic()) || name.is_empty() {
            return Err(error("invalid character class range", &whole[..whole.len() - rest.len()]));
        }
        self.out.push_str(&format!("\\{}{{{name}}}", if negative { 'P' } else { 'p' }));
        self.rest = rest;
        Ok(())
    }

    /// An escape that stands for one character, in a class or outside.
    fn escaped_char(&mut self) -> Result<char, String> {
        let whole = self.rest;
        let mut chars = whole[1..].chars();
        let Some(c) = chars.next() else {
            return Err("error parsing regexp: trailing backslash at end of expression: ``".to_owned());
        };
        let mut rest = chars.as_str();
        let invalid = |rest: &str| error("invalid escape sequence", &whole[..whole.len() - rest.len()]);
        let value = match c {
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                if c != '0' && more == 0 {
                    return Err(invalid(rest));
                }
                let digits = &whole[1..2 + more];
                rest = &rest[more..];
                u32::from_str_radix(digits, 8).map_err(|_| invalid(rest))?
            }
            'x' => {
                let (digits, after) = match rest.strip_prefix('{') {
                    Some(braced) => braced.split_once('}').ok_or_else(|| invalid(rest))?,
                    None => rest.split_at_checked(2).ok_or_else(|| invalid(""))?,
                };
                if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(invalid(after));
                }
                rest = after;
                u32::from_str_radix(digits, 16).map_err(|_| invalid(after))?
            }
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            _ if c.is_ascii() && !c.is_ascii_alphanumeric() => u32::from(c),
            _ => return Err(invalid(rest)),
        };
        self.rest = rest;
        char::from_u32(value).ok_or_else(|| invalid(rest))
    }

    fn class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        let unclosed = || error("missing closing ]", whole);
        self.take('[');
        self.out.push('[');
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            self.out.push('^');
        }
        let mut first = true;
        loop {
            let here = self.rest;
            match here.chars().next().ok_or_else(unclosed)? {
                ']' if !first => break,
                '[' if here.starts_with("[:") && here[2..].contains(":]") => self.posix_class()?,
                '\\' if matches!(here.as_bytes().get(1), Some(b'p' | b'P')) => self.unicode_class()?,
                '\\' if perl_class(here).is_some() => {
                    self.out.push_str(perl_class(here).unwrap_or_default());
                    self.rest = &here[2..];
                }
                _ => self.class_range(unclosed)?,
            }
            first = false;
        }
        self.take(']');
        self.out.push(']');
        Ok(())
    }

    fn class_range(&mut self, unclosed: impl Fn() -> String) -> Result<(), String> {
        let whole = self.rest;
        let low = self.class_char(&unclosed)?;
        self.class_literal(low);
        if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
            self.take('-');
            let high = self.class_char(&unclosed)?;
            if high < low {
                return Err(error("invalid character class range", &whole[..whole.len() - self.rest.len()]));
            }
            self.out.push('-');
            self.class_literal(high);
        }
        Ok(())
    }

    fn class_char(&mut self, unclosed: impl Fn() -> String) -> Result<char, String> {
        match self.rest.chars().next().ok_or_else(unclosed)? {
            '\\' => self.escaped_char(),
            c => {
                self.take(c);
                Ok(c)
            }
        }
    }

    fn class_literal(&mut self, c: char) {
        self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
    }

    fn posix_class(&mut self) -> Result<(), String> {
        const NAMES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
            "space", "upper", "word", "xdigit",
        ];
        let whole = self.rest;
        let end = whole.find(":]").map_or(whole.len(), |at| at + 2);
        let (class, rest) = whole.split_at(end);
        let name = class.trim_start_matches("[:").trim_end_matches(":]");
        if !NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(error("invalid character class range", class));
        }
        self.out.push_str(class);
        self.rest = rest;
        Ok(())
    }
}

/// The class that `\d` and its like stand for, at the start of `text`.
fn perl_class(text: &str) -> Option<&'static str> {
    Some(match text.as_bytes() {
        [b'\\', b'd', ..] => "[0-9]",
        [b'\\', b'D', ..] => "[^0-9]",
        [b'\\', b's', ..] => "[\\t\\n\\x0C\\r\\x20]",
        [b'\\', b'S', ..] => "[^\\t\\n\\x0C\\r\\x20]",
        [b'\\', b'w', ..] => "[0-9A-Za-z_]",
        [b'\\', b'W', ..] => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

/// `{n}`, `{n,}` or `{n,m}` at the start of `text`; anything else is literal. Huge numbers come back as the maximum.
fn counts(text: &str) -> Option<(&str, u32, Option<u32>)> {
    let end = text.find('}')?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        (plain && (digits.len() == 1 || !digits.starts_with('0'))).then(|| digits.parse().unwrap_or(u32::MAX))
    };
    let inner = text.get(1..end)?;
    let (min, max) = match inner.split_once(',') {
        None => (number(inner)?, Some(number(inner)?)),
        Some((min, "")) => (number(min)?, None),
        Some((min, max)) => (number(min)?, Some(number(max)?)),
    };
    Some((&text[..=end], min, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Patterns::new(&[pattern]).unwrap_or_else(|error| panic!("{pattern}: {error}")).is_match(text)
    }

    #[test]
    fn patterns_are_unanchored() {
        assert!(matches("b", "abc") && matches("^a", "abc") && !matches("^b", "abc") && matches("", ""));
        let two = Patterns::new(&["^x$", "c$"]).unwrap();
        assert!(two.is_match("abc") && two.is_match("x") && !two.is_match("xy"));
    }

    #[test]
    fn classes_are_ascii() {
        assert!(matches(r"^\d\w\s$", "1a ") && !matches(r"^\d$", "٣") && !matches(r"^\w$", "é"));
        assert!(matches(r"^[\D]$", "٣") && matches(r"^[^\w.]$", "é") && matches(r"a\b", "aé"));
    }

    #[test]
    fn what_the_crate_reads_otherwise_is_literal() {
        for (pattern, yes, no) in [
            (r"^[a&&b]$", "&", "c"),
            (r"^[a-z--b]$", "-", "|"),
            (r"^[[a]$", "[", "b"),
            (r"^\<$", "<", "a"),
            (r"^a{$", "a{", "a"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^a{01}$", "a{01}", "a"),
            (r"^\Qa.b\E.$", "a.bc", "axbc"),
            (r"^\101\x42\x{43}$", "ABC", "abc"),
            (r"^[]a]$", "]", "b"),
            (r"^(?P<n>a)(?<n>b)$", "ab", "a"),
            (r"^(?i-i:a)(?ii)B(?)$", "ab", "Ab"),
            (r"^[[:alpha:]\]-]$", "-", "1"),
        ] {
            assert!(matches(pattern, yes), "{pattern} {yes}");
            assert!(!matches(pattern, no), "{pattern} {no}");
        }
    }

    /// Verdicts and messages recorded from sing-box 1.14.4 (Go 1.27).
    #[test]
    fn what_go_refuses_is_refused_in_its_words() {
        for (pattern, reason) in [
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("a??+", "invalid nested repetition operator: `??+`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("(a{100}){11}", "invalid repeat count: `{11}`"),
            ("((a{10}){10}){11}", "invalid repeat count: `{11}`"),
            (r"\q", r"invalid escape sequence: `\q`"),
            (r"\1", r"invalid escape sequence: `\1`"),
            (r"\u0041", r"invalid escape sequence: `\u`"),
            (r"\x4", r"invalid escape sequence: `\x4`"),
            (r"[\b]", r"invalid escape sequence: `\b`"),
            (r"[a-\d]", r"invalid escape sequence: `\d`"),
            ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?-u:a)", "invalid or unsupported Perl syntax: `(?-u`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?i-)a", "invalid or unsupported Perl syntax: `(?i-)`"),
            ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
            ("[]", "missing closing ]: `[]`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("(*a)", "missing argument to repetition operator: `*`"),
            ("{1}", "missing argument to repetition operator: `{1}`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
            (r"\p{L", r"invalid character class range: `\p{L`"),
            ("(a", "missing closing ): `(a`"),
            ("a)", "unexpected ): `a)`"),
            ("a\\", "trailing backslash at end of expression: ``"),
        ] {
            // Go quotes the whole expression for a stray bracket, and we only what is left of it.
            let reason = reason.replace("unexpected ): `a)`", "unexpected ): `)`");
            let error = Patterns::new(&["ok", pattern]).expect_err(pattern);
            assert_eq!(error.to_string(), format!("parse expression 1: error parsing regexp: {reason}"));
        }
    }

    #[test]
    fn what_go_accepts_is_accepted() {
        for pattern in [
            r"^*",
            r"$*",
            r"\b*",
            "a+?",
            "(|a)*",
            "(?:)*",
            r"\B",
            "x{0}",
            "(a{100}){10}",
            "a{1}?",
            "}",
            "]",
            "{",
            r"[\d-z]",
            r"[^\x00-\x{10FFFF}]",
            r"\a\f\t\n\r\v",
            "(?U)a",
            "[a-b-c]",
            "é",
            "[é-ü]",
            r"\0",
            r"\07",
            "()",
            "|",
        ] {
            Patterns::new(&[pattern]).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_pattern_panics(pattern in r"[\\(){}\[\]^$*+?|.,:\-<>&aQEpPx0-3dbié]{0,16}") {
            let _ = Patterns::new(&[pattern]);
        }
    }
}
