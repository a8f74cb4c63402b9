//! The reader: text to [`Node`], in one pass and linear time, refusing what is nested absurdly deep.

use super::{Comments, Entry, Node, Place, Value};

/// Deeper than any configuration, shallow enough for the smallest thread stack.
const MAX_DEPTH: usize = 200;

/// Why a text is not JSON, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SyntaxError {
    pub(crate) offset: usize,
    pub(crate) message: String,
}

/// Reads one document. `source` goes into every [`Place`].
pub(crate) fn read(text: &str, source: u32) -> Result<Node, SyntaxError> {
    let mut reader = Reader { text, at: 0, source, open: Vec::new() };
    if text.starts_with('\u{feff}') {
        return Err(reader.error("the file begins with a byte order mark; save it as UTF-8 without one"));
    }
    let before = reader.trivia()?;
    let mut root = reader.value()?;
    let after = reader.trivia()?;
    if let Some(found) = reader.peek() {
        let hint = match found {
            '}' | ']' => ": it is one too many, or one above came too early",
            ',' | '"' => ": all sections stand inside one pair of `{` and `}`",
            _ => "",
        };
        return Err(reader.error(format!("`{found}` after the end of the document{hint}")));
    }
    let (mut beside, mut below) = (Vec::new(), Vec::new());
    split(after, &mut beside, &mut below);
    attach(&mut root, texts(before), beside);
    if !below.is_empty() {
        root.comments_mut().below = below;
    }
    Ok(root)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    source: u32,
    /// Where the brackets stand that are open.
    open: Vec<usize>,
}

/// One comment, and whether a line end stands between it and the token before it.
struct Comment {
    text: String,
    own_line: bool,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Node, SyntaxError> {
        let place = self.place();
        let value = match self.peek() {
            Some('{') => return self.nested(Self::object),
            Some('[') => return self.nested(Self::array),
            Some('"') => Value::String(self.string()?),
            Some('-' | '0'..='9') => Value::Number(self.number()?),
            Some('t') => self.word("true", Value::Bool(true))?,
            Some('f') => self.word("false", Value::Bool(false))?,
            Some('n') => self.word("null", Value::Null)?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node::new(value, place))
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Node, SyntaxError>) -> Result<Node, SyntaxError> {
        if self.open.len() == MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.open.push(self.at);
        let node = read(self)?;
        self.open.pop();
        Ok(node)
    }

    fn object(&mut self) -> Result<Node, SyntaxError> {
        let place = self.place();
        let mut entries: Vec<Entry> = Vec::new();
        let end = self.members('}', "`}`", |reader, mut before| {
            let key_place = reader.place();
            if reader.peek() != Some('"') {
                return Err(reader.unexpected("a key in double quotes"));
            }
            let key = reader.string()?;
            before.extend(texts(reader.trivia()?));
            if !reader.take(':') {
                return Err(reader.unexpected("`:` after the key"));
            }
            before.extend(texts(reader.trivia()?));
            let node = reader.value()?;
            entries.push(Entry { key, key_place, node });
            Ok(before)
        })?;
        let nodes = entries.iter_mut().map(|entry| &mut entry.node);
        let own_end = attach_members(nodes, end);
        Ok(with_end(Node::new(Value::Object(entries), place), own_end))
    }

    fn array(&mut self) -> Result<Node, SyntaxError> {
        let place = self.place();
        let mut items: Vec<Node> = Vec::new();
        let end = self.members(']', "`]`", |reader, before| {
            items.push(reader.value()?);
            Ok(before)
        })?;
        let own_end = attach_members(items.iter_mut(), end);
        Ok(with_end(Node::new(Value::Array(items), place), own_end))
    }

    /// Reads the members of a container with `member`, which gets the comments before it and gives back all that
    /// belong there. The result has the comments of each member, then those before the closing bracket.
    fn members(
        &mut self,
        close: char,
        close_name: &str,
        mut member: impl FnMut(&mut Self, Vec<String>) -> Result<Vec<String>, SyntaxError>,
    ) -> Result<MemberComments, SyntaxError> {
        self.bump();
        let mut comments = MemberComments::default();
        let mut pending = texts(self.trivia()?);
        loop {
            if self.take(close) {
                comments.end = pending;
                return Ok(comments);
            }
            if self.peek() == Some(',') {
                return Err(self.unexpected("a value"));
            }
            let index = comments.count;
            comments.count += 1;
            let before = member(self, std::mem::take(&mut pending))?;
            let mut after = Vec::new();
            split(self.trivia()?, &mut after, &mut pending);
            if self.take(',') {
                let comments = self.trivia()?;
                // As in sing-box: what stands before the comma keeps the line, and what stands behind it moves on.
                if after.is_empty() && pending.is_empty() {
                    split(comments, &mut after, &mut pending);
                } else {
                    pending.extend(texts(comments));
                }
            } else if self.peek() != Some(close) {
                return Err(self.unexpected(&format!("`,` or {close_name}")));
            }
            if !before.is_empty() || !after.is_empty() {
                comments.members.push((index, before, after));
            }
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let start = self.at;
        self.bump();
        let mut out = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let run = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < b' ').unwrap_or(rest.len());
            out.push_str(&self.text[self.at..self.at + run]);
            self.at += run;
            match self.peek() {
                Some('"') => {
                    self.bump();
                    return Ok(out);
                }
                Some('\\') => self.escape(&mut out)?,
                Some('\n' | '\r') => {
                    let message =
                        "this string does not end on its line: the `\"` behind it is missing".to_owned();
                    return Err(SyntaxError { offset: start, message });
                }
                Some(control) => {
                    return Err(self.error(format!(
                        "control character U+{:04X} inside a string; write it as \\u{:04x}",
                        control as u32, control as u32
                    )));
                }
                None => {
                    return Err(SyntaxError {
                        offset: start,
                        message: "this string is never closed".to_owned(),
                    });
                }
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), SyntaxError> {
        let start = self.at;
        self.bump();
        let plain = match self.peek() {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.bump();
                out.push(self.unicode_escape(start)?);
                return Ok(());
            }
            _ => return Err(self.unexpected("one of `\"\\/bfnrtu` after a backslash")),
        };
        self.bump();
        out.push(plain);
        Ok(())
    }

    /// The four digits after `\u`, and the second half of a surrogate pair. A half alone becomes U+FFFD.
    fn unicode_escape(&mut self, start: usize) -> Result<char, SyntaxError> {
        let first = self.four_hex(start)?;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.four_hex(back)?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_hex(&mut self, start: usize) -> Result<u32, SyntaxError> {
        let digits =
            self.text.get(self.at..self.at + 4).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = digits.and_then(|text| u32::from_str_radix(text, 16).ok()) else {
            return Err(SyntaxError {
                offset: start,
                message: "`\\u` needs four hexadecimal digits".to_owned(),
            });
        };
        self.at += 4;
        Ok(code)
    }

    fn number(&mut self) -> Result<String, SyntaxError> {
        let start = self.at;
        self.take('-');
        if !self.take('0') {
            self.digits()?;
        }
        if self.take('.') {
            self.digits()?;
        }
        if self.take('e') || self.take('E') {
            let _ = self.take('+') || self.take('-');
            self.digits()?;
        }
        if matches!(self.peek(), Some(c) if c.is_alphanumeric() || c == '.') {
            return Err(self.unexpected("the end of the number"));
        }
        Ok(self.text[start..self.at].to_owned())
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let rest = &self.text.as_bytes()[self.at..];
        let run = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        if run == 0 {
            return Err(self.unexpected("a digit"));
        }
        self.at += run;
        Ok(())
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, SyntaxError> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if &rest[..end] != word {
            return Err(self.unexpected("a value"));
        }
        self.at += end;
        Ok(value)
    }

    /// Skips white space and comments, and gives the comments.
    fn trivia(&mut self) -> Result<Vec<Comment>, SyntaxError> {
        let mut comments = Vec::new();
        let mut own_line = false;
        loop {
            match self.peek() {
                Some('\n') => {
                    own_line = true;
                    self.bump();
                }
                Some(' ' | '\t' | '\r') => self.bump(),
                Some('#') => comments.push(Comment { text: self.line_comment(), own_line }),
                Some('/') if self.text[self.at..].starts_with("//") => {
                    comments.push(Comment { text: self.line_comment(), own_line });
                }
                Some('/') if self.text[self.at..].starts_with("/*") => {
                    comments.push(Comment { text: self.block_comment()?, own_line });
                }
                Some('/') => return Err(self.error("a lone `/`; a comment begins with `//`, `/*` or `#`")),
                _ => return Ok(comments),
            }
        }
    }

    fn line_comment(&mut self) -> String {
        let rest = &self.text[self.at..];
        let line = &rest[..memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len())];
        self.at += line.len();
        line.trim_end().to_owned()
    }

    fn block_comment(&mut self) -> Result<String, SyntaxError> {
        let rest = &self.text[self.at..];
        let Some(end) = memchr::memmem::find(&rest.as_bytes()[2..], b"*/") else {
            return Err(self.error("this comment is never closed"));
        };
        let comment = &rest[..end + 4];
        self.at += comment.len();
        Ok(comment.replace("\r\n", "\n"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.bump();
        }
        found
    }

    const fn place(&self) -> Place {
        Place { source: self.source, offset: self.at as u32 }
    }

    fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { offset: self.at, message: message.into() }
    }

    fn unexpected(&self, wanted: &str) -> SyntaxError {
        self.error(match self.peek() {
            Some(found) if found.is_control() => {
                format!("expected {wanted}, found `{}`", found.escape_debug())
            }
            Some(found) => format!("expected {wanted}, found `{found}`{}", self.hint(found, wanted)),
            None => format!("expected {wanted}, but the file ends here{}", self.unclosed()),
        })
    }

    /// What is missing at the end of a file.
    fn unclosed(&self) -> String {
        let Some(&at) = self.open.last() else { return String::new() };
        let line = memchr::memchr_iter(b'\n', &self.text.as_bytes()[..at]).count() + 1;
        format!("; the `{}` in line {line} is not closed", &self.text[at..=at])
    }

    /// What people mean who write `found` where something else is wanted.
    fn hint(&self, found: char, wanted: &str) -> String {
        let rest = &self.text[self.at..];
        let wants_value = wanted == "a value";
        let wants_key = wanted.starts_with("a key");
        let hint = match found {
            '\'' | '`' => "strings and keys stand in double quotes, `\"`",
            '\u{2018}'..='\u{201f}' | '«' | '»' => "these are typographic quotes; write `\"`",
            ';' => "entries are set apart by `,`",
            '=' if wanted.starts_with("`:`") => "keys and values are set apart by `:`",
            ',' if wants_value || wants_key => "there is a comma too many",
            '}' | ']' if wanted.starts_with("`,`") => {
                return format!("; brackets do not pair{}", self.unclosed());
            }
            ':' if wanted.ends_with("`]`") => "a list holds values alone; keys stand in an object, `{ }`",
            ':' if wants_value => "there is a `:` too many, or the key before it is missing",
            '"' | '{' | '[' if wanted.starts_with("`,`") => "a comma is missing before it",
            '<' if self.at == 0 => "this looks like a web page, not a configuration",
            '-' | '+' | '.' if wants_value => "numbers begin with a digit or `-`",
            'x' | 'X' if wanted == "the end of the number" => "numbers are written in decimal",
            '0'..='9' if wanted == "the end of the number" => "numbers do not begin with `0`",
            _ if wants_value || wants_key => return self.hint_for_word(rest, wants_key),
            _ if wanted == "the end of the number" => {
                "what is not only a number, such as an address or a time, stands in double quotes"
            }
            _ => return String::new(),
        };
        format!("; {hint}")
    }

    /// For a word without quotes.
    fn hint_for_word(&self, rest: &str, is_key: bool) -> String {
        let end =
            rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '.')).unwrap_or(rest.len());
        let word: String = rest[..end].chars().take(40).collect();
        if word.is_empty() {
            return String::new();
        }
        if self.open.is_empty() {
            let link = rest[end..].starts_with("://");
            let what = if link { "this is a link" } else { "the configuration begins with `{`" };
            return format!("; {what}{}", if link { ", not a configuration" } else { "" });
        }
        let lower = word.to_lowercase();
        match &*lower {
            "true" | "false" | "null" if !is_key => format!("; write `{lower}`"),
            "yes" | "on" if !is_key => "; write `true`".to_owned(),
            "no" | "off" if !is_key => "; write `false`".to_owned(),
            "none" | "nil" | "undefined" | "nan" if !is_key => {
                "; write `null`, or leave the key out".to_owned()
            }
            _ => format!("; write it in double quotes, `\"{word}\"`"),
        }
    }
}

/// Comments found while reading a container; most members have none, so they are listed by index.
#[derive(Default)]
struct MemberComments {
    count: usize,
    members: Vec<(usize, Vec<String>, Vec<String>)>,
    end: Vec<String>,
}

fn attach_members<'a>(nodes: impl Iterator<Item = &'a mut Node>, comments: MemberComments) -> Vec<String> {
    let mut members = comments.members.into_iter().peekable();
    for (index, node) in nodes.enumerate() {
        if let Some((_, before, after)) = members.next_if(|(at, ..)| *at == index) {
            attach(node, before, after);
        }
    }
    comments.end
}

fn attach(node: &mut Node, before: Vec<String>, after: Vec<String>) {
    if before.is_empty() && after.is_empty() {
        return;
    }
    let comments: &mut Comments = node.comments_mut();
    comments.before = before;
    comments.after = after;
}

fn with_end(mut node: Node, end: Vec<String>) -> Node {
    if !end.is_empty() {
        node.comments_mut().end = end;
    }
    node
}

/// Comments on the line of the token before go to `after`; from the first line end on they belong to what follows.
fn split(comments: Vec<Comment>, after: &mut Vec<String>, pending: &mut Vec<String>) {
    for Comment { text, own_line } in comments {
        if own_line || !pending.is_empty() { pending.push(text) } else { after.push(text) }
    }
}

fn texts(comments: Vec<Comment>) -> Vec<String> {
    comments.into_iter().map(|comment| comment.text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{write, write_line};

    fn line(text: &str) -> String {
        read(text, 0)
            .map_or_else(|error| format!("{}: {}", error.offset, error.message), |node| write_line(&node))
    }

    #[test]
    fn comments_and_trailing_commas_are_no_content() {
        assert_eq!(
            line("// a\n{\"x\": [1, 2,], # b\n /* c */ \"y\": {},}\n// d"),
            "{\"x\": [1, 2], \"y\": {}}"
        );
        assert_eq!(
            line("{\"x\": \"// no /* comment */ # here\"}"),
            "{\"x\": \"// no /* comment */ # here\"}"
        );
        assert_eq!(line("[] /"), "3: a lone `/`; a comment begins with `//`, `/*` or `#`");
        assert_eq!(line("[] /* a"), "3: this comment is never closed");
        assert_eq!(line("[/*/ 1 */ 2]"), "[2]");
    }

    #[test]
    fn strings_may_hold_anything_escaped() {
        assert_eq!(line(r#""\u00e9\ud83d\ude00\n\/\"""#), "\"é😀\\n/\\\"\"");
        assert_eq!(line(r#""\ud83d-""#), "\"\u{fffd}-\"");
        assert_eq!(line(r#""\ud83dA""#), "\"\u{fffd}A\"");
        assert_eq!(line("\"a\tb\""), "2: control character U+0009 inside a string; write it as \\u0009");
        assert_eq!(line(r#""\x""#), "2: expected one of `\"\\/bfnrtu` after a backslash, found `x`");
        assert_eq!(line(r#""\u12g4""#), "1: `\\u` needs four hexadecimal digits");
        assert_eq!(line("[\"a]"), "1: this string is never closed");
    }

    #[test]
    fn common_slips_are_named() {
        for (text, place, words) in [
            ("{\"a\": \"b,\n\"c\": 1}", 6, "this string does not end on its line"),
            ("{'a': 1}", 1, "strings and keys stand in double quotes"),
            ("{\"a\": \u{201c}b\u{201d}}", 6, "typographic quotes"),
            ("{\"a\" = 1}", 5, "set apart by `:`"),
            ("{\"a\": 1; \"b\": 2}", 7, "set apart by `,`"),
            ("{\"a\": 1 \"b\": 2}", 8, "a comma is missing before it"),
            ("{\"a\": 1,, \"b\": 2}", 8, "a comma too many"),
            ("[{} {}]", 4, "a comma is missing before it"),
            ("{\"a\": [1, 2}", 11, "brackets do not pair; the `[` in line 1 is not closed"),
            ("[\"a\": 1]", 4, "a list holds values alone"),
            ("{\"a\": True}", 6, "write `true`"),
            ("{\"a\": off}", 6, "write `false`"),
            ("{\"a\": None}", 6, "write `null`, or leave the key out"),
            ("{\"a\": info}", 6, "in double quotes, `\"info\"`"),
            ("{a: 1}", 1, "in double quotes, `\"a\"`"),
            ("{\"a\": 127.0.0.1}", 11, "an address or a time, stands in double quotes"),
            ("{\"a\": 5m}", 7, "an address or a time, stands in double quotes"),
            ("{\"a\": 0x10}", 7, "in decimal"),
            ("{\"a\": 01}", 7, "do not begin with `0`"),
            ("{\"a\": +1}", 6, "begin with a digit"),
            ("{\n\"a\": {\n", 9, "the `{` in line 2 is not closed"),
            ("{}}", 2, "one too many"),
            ("<!DOCTYPE html>", 0, "a web page"),
            ("log:\n  level: info", 0, "begins with `{`"),
            ("vless://id@a.test", 0, "this is a link, not a configuration"),
        ] {
            let told = line(text);
            assert!(told.starts_with(&format!("{place}: ")) && told.contains(words), "{text}: {told}");
        }
    }

    #[test]
    fn numbers_keep_their_text() {
        assert_eq!(line("[-0, 1.50, 2e+3, 12345678901234567890]"), "[-0, 1.50, 2e+3, 12345678901234567890]");
        for text in ["01", "1.", ".5", "-", "1e", "+1", "0x10", "1a"] {
            assert!(read(text, 0).is_err(), "{text}");
        }
    }

    #[test]
    fn every_cut_is_an_error_and_no_panic() {
        let text = "{\"a\": [true, null, -1.5e3, \"\\u00e9\"], /* c */ \"b\": {\"c\": false}} // end";
        let whole = read(text, 0).expect("the whole is JSON");
        let end = text.rfind('}').expect("there is a bracket") + 1;
        for cut in (0..end).filter(|&cut| text.is_char_boundary(cut)) {
            assert!(read(&text[..cut], 0).is_err(), "{}", &text[..cut]);
        }
        assert_eq!(read(&text[..end], 0).as_ref(), Ok(&whole));
    }

    #[test]
    fn depth_is_limited() {
        assert!(read(&"[".repeat(1_000_000), 0).is_err_and(|error| error.message.contains("deeper")));
        let text = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(read(&text, 0).is_ok());
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let text = "{\n  \"a\": [\n    1, // one\n    // own line\n    {} // two\n    // end\n  ]\n}";
        let node = read(text, 0).expect("the text is JSON");
        assert_eq!(write(&node), text);
    }
}
