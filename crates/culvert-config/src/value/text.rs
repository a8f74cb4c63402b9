//! Texts with a meaning: secrets, base64 bytes, regular expressions.

use std::fmt;
use std::ops::Deref;

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine};

use super::OptionValue;
use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::schema::Schema;

/// A value that must not show up in logs: its `Debug` form is `***`.
#[derive(Clone, Default, Eq, Hash, PartialEq)]
pub struct Secret<T>(pub T);

/// Bytes, written in standard base64 with padding, or as a list of numbers.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Base64(pub Vec<u8>);

/// Standard base64 with padding. As in Go the last character may carry bits that say nothing.
const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Reads standard base64 with padding, in which line ends do not count.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    STANDARD.decode(text.replace(['\r', '\n'], ""))
}

/// A regular expression, compiled.
#[derive(Clone, Debug)]
pub struct Pattern(regex::Regex);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: OptionValue> OptionValue for Secret<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.0.decode(node, cx);
    }

    fn decode_null(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.0.decode_null(node, cx);
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        self.0.schema(schema)
    }
}

impl OptionValue for Base64 {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match &node.value {
            Value::String(text) => match decode_base64(text) {
                Ok(bytes) => self.0 = bytes,
                Err(error) => cx.error(node.place, format!("not standard base64 with padding: {error}")),
            },
            Value::Array(_) => self.0.decode(node, cx),
            _ => cx.expected("base64 text", node),
        }
    }

    fn encode(&self) -> Node {
        Node::string(STANDARD.encode(&self.0))
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.shared("Bytes", || {
            Schema::any_of([Schema::typed("string"), Schema::list(Schema::integer(u8::MIN, u8::MAX))])
        })
    }
}

impl Pattern {
    /// The compiled expression.
    #[must_use]
    pub const fn regex(&self) -> &regex::Regex {
        &self.0
    }

    /// The text of the expression.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Default for Pattern {
    fn default() -> Self {
        Self(regex::Regex::new("").expect("the empty expression is valid"))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl OptionValue for Pattern {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a string", node);
            return;
        };
        match regex::Regex::new(text) {
            Ok(regex) => self.0 = regex,
            Err(error) => {
                // The message draws a picture over several lines; its last line says what is wrong.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
                cx.error(node.place, format!("bad regular expression `{text}`: {reason}"));
            }
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.as_str())
    }

    fn is_zero(&self) -> bool {
        self.as_str().is_empty()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Node::object([("type", Node::string("string")), ("format", Node::string("regex"))])
    }
}
