//! JSON in the dialect of sing-box, as a tree that keeps the order of keys, and back in the spelling of Go.
//!
//! `//`, `#` and `/* */` comments and commas before a closing bracket are taken; they are blanked out, so that positions
//! in errors stay true, and `serde_json` reads the rest.

use std::{fmt, fmt::Write as _};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    Array(Vec<Self>),
    /// Keys in order; a repeated key stands once, with its last value.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// What Go calls the type in its errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Integer(_) | Self::Float(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }
}

/// Parses a document.
///
/// # Errors
/// With what is wrong and where, by row and column from 1.
pub(super) fn parse(text: &str) -> Result<Json, String> {
    let plain = blank_comments(text)?;
    serde_json::from_str(&plain).map_err(|error| {
        let text = error.to_string();
        let reason = text.split(" at line ").next().unwrap_or(&text);
        format!("{reason}: row {}, column {}", error.line(), error.column())
    })
}

/// Replaces comments and needless commas by spaces.
fn blank_comments(text: &str) -> Result<String, String> {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    // The last comma behind a value, with nothing but blanks and comments behind it so far.
    let mut comma = None;
    let mut previous = b',';
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                comma = None;
                at += 1;
                while let Some(&byte) = bytes.get(at) {
                    match byte {
                        b'"' => break,
                        b'\\' => at += 2,
                        _ => at += 1,
                    }
                }
                previous = byte;
                at += 1;
            }
            b'#' => at = blank_line(&mut bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = blank_line(&mut bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(len) = memchr::memmem::find(&bytes[at + 2..], b"*/") else {
                    let row = text[..at].matches('\n').count() + 1;
                    let column = at - text[..at].rfind('\n').map_or(0, |newline| newline + 1) + 1;
                    return Err(format!("unexpected end of JSON comment: row {row}, column {column}"));
                };
                let end = at + 2 + len + 2;
                bytes[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
                at = end;
            }
            b',' => {
                comma = (!matches!(previous, b'[' | b'{' | b',' | b':')).then_some(at);
                previous = byte;
                at += 1;
            }
            b']' | b'}' => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
                previous = byte;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            _ => {
                comma = None;
                previous = byte;
                at += 1;
            }
        }
    }
    // Only whole comments were replaced, byte for byte, and they begin and end with ASCII.
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

fn blank_line(bytes: &mut [u8], at: usize) -> usize {
    let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |len| at + len);
    bytes[at..end].fill(b' ');
    end
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object: Vec<(String, Json)> = Vec::new();
        while let Some((key, value)) = entries.next_entry()? {
            match object.iter_mut().find(|entry| entry.0 == key) {
                Some(entry) => entry.1 = value,
                None => object.push((key, value)),
            }
        }
        Ok(Json::Object(object))
    }
}

/// Indented by two spaces, without a line end behind it.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write(&mut text, self, 0);
        f.write_str(&text)
    }
}

fn write(out: &mut String, json: &Json, depth: usize) {
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str("  "));
    };
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Integer(value) => out.push_str(&value.to_string()),
        Json::Float(value) => out.push_str(&value.to_string()),
        Json::String(value) => write_string(out, value),
        Json::Array(items) if items.is_empty() => out.push_str("[]"),
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                line(out, depth + 1);
                write(out, item, depth + 1);
            }
            line(out, depth);
            out.push(']');
        }
        Json::Object(entries) if entries.is_empty() => out.push_str("{}"),
        Json::Object(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                line(out, depth + 1);
                write_string(out, key);
                out.push_str(": ");
                write(out, value, depth + 1);
            }
            line(out, depth);
            out.push('}');
        }
    }
}

/// Go escapes what could end a script element or break a line in JavaScript.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default();
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_blanks() {
        let text = "# one\n{ // two\n \"a\": [1, 2 /* three */ , ], /* \n */ \"b//#\": \"/* , ] */\\\"\", }\n// four";
        let expected = r#"{"a": [1, 2], "b//#": "/* , ] */\""}"#;
        assert_eq!(parse(text), parse(expected));
        assert!(parse(text).is_ok());
    }

    #[test]
    fn what_stays_wrong_is_told_with_its_place() {
        for (text, error) in [
            ("{} x", "trailing characters: row 1, column 4"),
            ("{\n \"a\": /* ", "unexpected end of JSON comment: row 2, column 7"),
            ("[,]", "expected value: row 1, column 2"),
            ("[1,,]", "expected value: row 1, column 4"),
            ("/", "expected value: row 1, column 1"),
            ("\"a", "EOF while parsing a string: row 1, column 2"),
            ("", "EOF while parsing a value: row 1, column 0"),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text:?}");
        }
    }

    #[test]
    fn strings_are_spelled_as_in_go() {
        let text = Json::String("<>&\u{2028}\u{1}é\u{7f}\\\"\n\u{8}/".into()).to_string();
        assert_eq!(text, r#""\u003c\u003e\u0026\u2028\u0001é"#.to_owned() + "\u{7f}" + r#"\\\"\n\b/""#);
    }

    #[test]
    fn the_last_of_equal_keys_counts() {
        assert_eq!(parse(r#"{"a":1,"b":2,"a":3}"#), parse(r#"{"a":3,"b":2}"#));
    }

    #[test]
    fn deep_nesting_is_an_error() {
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
