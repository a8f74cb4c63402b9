//! PEM: the text form of certificates and keys, as far as a configuration is checked for it.
//!
//! Source: RFC 7468. Left out on purpose: what stands inside a section, which TLS and SSH read.

use super::text::decode_base64;
use super::{List, OptionValue};
use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;

/// PEM as one text or as a list of lines. It is only looked at where its section is switched on.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Pem(List<String>);

/// One section of a PEM text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PemSection {
    /// What it says it is: `CERTIFICATE`.
    pub label: String,
    /// Whether it has headers, as encrypted keys of old have.
    pub has_headers: bool,
    /// What it holds.
    pub content: Vec<u8>,
}

impl Pem {
    /// The whole text.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.join("\n")
    }

    /// Whether nothing is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(String::is_empty)
    }
}

impl From<String> for Pem {
    fn from(text: String) -> Self {
        Self(List(vec![text]))
    }
}

impl PemSection {
    /// All sections of a text that can be read; what stands between them is skipped.
    #[must_use]
    pub fn all(text: &str) -> Vec<Self> {
        let mut sections = Vec::new();
        let mut lines = text.lines().map(str::trim_end);
        while let Some(line) = lines.next() {
            let Some(label) = marked(line, "-----BEGIN ") else { continue };
            let mut body = String::new();
            let mut has_headers = false;
            for line in lines.by_ref() {
                if marked(line, "-----END ") == Some(label) {
                    if let Ok(content) = decode_base64(&body) {
                        sections.push(Self { label: label.to_owned(), has_headers, content });
                    }
                    break;
                }
                if line.contains(':') {
                    has_headers = true;
                } else {
                    body.push_str(line.trim());
                }
            }
        }
        sections
    }
}

fn marked<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.strip_prefix(mark)?.strip_suffix("-----")
}

impl OptionValue for Pem {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_between_other_lines() {
        let text = "hello\n-----BEGIN A B-----\nAQID\nBA==\n-----END A B-----\r\n\n\
                    -----BEGIN KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n\r\nAQ==\r\n-----END KEY-----";
        let section = |label: &str, has_headers, content: &[u8]| PemSection {
            label: label.to_owned(),
            has_headers,
            content: content.to_owned(),
        };
        let expected = [section("A B", false, &[1, 2, 3, 4]), section("KEY", true, &[1])];
        assert_eq!(PemSection::all(text), expected);
    }

    #[test]
    fn broken_sections_do_not_count() {
        assert_eq!(PemSection::all("-----BEGIN A-----\n???\n-----END A-----"), []);
        assert_eq!(PemSection::all("-----BEGIN A-----\nAQID\n-----END B-----"), []);
        assert_eq!(PemSection::all("AQID"), []);
    }
}
