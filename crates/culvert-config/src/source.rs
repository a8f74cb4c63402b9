//! Source files, and the way from a byte offset back to line, column, JSON path and tag.

use std::sync::OnceLock;

use crate::diagnostics::{Diagnostic, Severity, shortened};
use crate::json::{Node, Place, SyntaxError, Value, read};

/// One configuration file as it was read from disk or standard input.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    is_utf_16: bool,
}

impl Source {
    /// A source called `name` in messages. Bytes that are not UTF-8 become U+FFFD.
    pub fn new(name: impl Into<String>, bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Self { name: name.into(), text, is_utf_16: is_utf_16(bytes) }
    }

    /// What messages call this source: a path, or `stdin`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text, as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Whether a file was saved as UTF-16, as some editors do: it begins with the mark of that, or every other one of its first
/// bytes is zero.
fn is_utf_16(bytes: &[u8]) -> bool {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => true,
        [a, b, c, d, ..] => matches!((a, b, c, d), (0, 1.., 0, 1..) | (1.., 0, 1.., 0)),
        _ => false,
    }
}

/// A source that was read, able to name any place in it.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    source: &'a Source,
    pub(crate) root: Node,
    lines: OnceLock<Vec<usize>>,
}

impl<'a> Document<'a> {
    /// Reads `source`, which is number `index` of its list.
    pub(crate) fn read(source: &'a Source, index: u32) -> Result<Self, Diagnostic> {
        let document = |root| Self { source, root, lines: OnceLock::new() };
        match read(&source.text, index) {
            Ok(root) => Ok(document(root)),
            Err(SyntaxError { offset, message }) => {
                let (offset, message) = if source.is_utf_16 {
                    (0, "the file is UTF-16; save it as UTF-8".to_owned())
                } else if source.text.trim().is_empty() {
                    (
                        offset,
                        "the file ends here, with nothing in it; the least configuration is `{}`".to_owned(),
                    )
                } else {
                    (offset, message)
                };
                let (line, column) = document(Node::default()).position(offset);
                Err(Diagnostic {
                    severity: Severity::Error,
                    file: source.name.clone(),
                    line,
                    column,
                    path: String::new(),
                    tag: None,
                    message,
                })
            }
        }
    }

    /// The finding `message` about `place`, with everything a reader needs to go there.
    pub(crate) fn diagnostic(&self, severity: Severity, place: Place, message: String) -> Diagnostic {
        let offset = place.offset as usize;
        let (line, column) = self.position(offset);
        let (path, tag) = locate(&self.root, place.offset);
        let path = shortened(path);
        Diagnostic { severity, file: self.source.name.clone(), line, column, path, tag, message }
    }

    /// A place as `config.json:4:25`.
    pub(crate) fn spot(&self, place: Place) -> String {
        let (line, column) = self.position(place.offset as usize);
        format!("{}:{line}:{column}", self.source.name)
    }

    /// Line and column, both from 1; columns count characters.
    fn position(&self, offset: usize) -> (u32, u32) {
        let text = &self.source.text;
        let lines = self.lines.get_or_init(|| {
            std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect()
        });
        let line = lines.partition_point(|&start| start <= offset);
        let start = lines[line - 1];
        let column = text.get(start..offset).map_or(offset - start, |before| before.chars().count());
        (line as u32, column as u32 + 1)
    }
}

/// The path of what stands at `offset`, and the tag of the innermost tagged object around it. The tag is written
/// inside the path, behind the object it names.
fn locate(root: &Node, offset: u32) -> (String, Option<String>) {
    let (mut node, mut path, mut tag) = (root, String::new(), None);
    while node.place.offset != offset {
        match &node.value {
            Value::Object(entries) => {
                let Some(index) = last_not_after(entries, offset, |entry| entry.key_place) else { break };
                let entry = &entries[index];
                let dot = if path.is_empty() { "" } else { "." };
                path.push_str(&format!("{dot}{}", entry.key));
                if entry.key_place.offset == offset {
                    break;
                }
                node = &entry.node;
            }
            Value::Array(items) => {
                let Some(index) = last_not_after(items, offset, |item| item.place) else { break };
                node = &items[index];
                path.push_str(&format!("[{index}]"));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => break,
        }
        if let Some(own) = node.get("tag").and_then(Node::as_str).filter(|own| !own.is_empty()) {
            tag = Some(own.to_owned());
            path.push_str(&format!(" \"{own}\" "));
        }
    }
    (path.trim_end().to_owned(), tag)
}

fn last_not_after<T>(items: &[T], offset: u32, place: impl Fn(&T) -> Place) -> Option<usize> {
    items.partition_point(|item| place(item).offset <= offset).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, needle: &str) -> String {
        let source = Source::new("c.json", text.as_bytes());
        let document = Document::read(&source, 0).expect("the text is JSON");
        let offset = text.find(needle).expect("the needle is in the text") as u32;
        document.diagnostic(Severity::Error, Place { source: 0, offset }, "here".to_owned()).to_string()
    }

    fn syntax(bytes: &[u8]) -> String {
        let source = Source::new("c.json", bytes);
        Document::read(&source, 0).expect_err("it is no JSON").to_string()
    }

    #[test]
    fn what_editors_and_redirections_leave_behind_is_named() {
        let utf_16: Vec<u8> = "{}\n ".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let marked = [&[0xff, 0xfe], &*utf_16].concat();
        let other: Vec<u8> = "{}\n ".encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [&utf_16, &marked, &other] {
            assert_eq!(syntax(bytes), "c.json:1:1: the file is UTF-16; save it as UTF-8");
        }
        assert_eq!(
            syntax(b""),
            "c.json:1:1: the file ends here, with nothing in it; the least configuration is `{}`"
        );
        assert_eq!(
            syntax(b" \n\n"),
            "c.json:3:1: the file ends here, with nothing in it; the least configuration is `{}`"
        );
        assert_eq!(syntax(b"\0"), "c.json:1:1: expected a value, found `\\0`");
        assert_eq!(syntax(b"// only a comment"), "c.json:1:18: expected a value, but the file ends here");
    }

    #[test]
    fn place_is_told_as_line_column_path_and_tag() {
        let text = "{\n  \"outbounds\": [\n    {},\n    {\"tag\": \"jp\", \"é\": {\"x\": 1}}\n  ]\n}";
        assert_eq!(at(text, "\"x\""), "c.json:4:25: outbounds[1] \"jp\" .é.x: here");
        assert_eq!(at(text, "{}"), "c.json:3:5: outbounds[0]: here");
        assert_eq!(at(text, "\"outbounds\""), "c.json:2:3: outbounds: here");
        assert_eq!(at(text, "{"), "c.json:1:1: here");
    }
}
