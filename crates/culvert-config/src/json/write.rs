//! The writer: [`Node`] to text in the canonical form, two spaces deep, comments on their places.

use super::{Comments, Node, Value};

/// Writes a document. There is no line end behind the last line.
pub(crate) fn write(root: &Node) -> String {
    let mut out = String::new();
    let none = Comments::default();
    let comments = root.comments().unwrap_or(&none);
    for comment in &comments.before {
        out.push_str(comment);
        out.push('\n');
    }
    write_value(&mut out, root, 0);
    for comment in &comments.after {
        out.push(' ');
        out.push_str(comment);
    }
    for comment in &comments.below {
        out.push('\n');
        out.push_str(comment);
    }
    out
}

/// Writes a value on one line, without comments, as messages show it.
pub(crate) fn write_line(node: &Node) -> String {
    match &node.value {
        Value::Array(items) => format!("[{}]", items.iter().map(write_line).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries =
                entries.iter().map(|entry| format!("\"{}\": {}", entry.key, write_line(&entry.node)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        _ => {
            let mut out = String::new();
            write_value(&mut out, node, 0);
            out
        }
    }
}

fn write_value(out: &mut String, node: &Node, depth: usize) {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => out.push_str(text),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            let members = items.iter().map(|item| (None, item));
            write_container(out, ['[', ']'], members, node.comments(), depth);
        }
        Value::Object(entries) => {
            let members = entries.iter().map(|entry| (Some(entry.key.as_str()), &entry.node));
            write_container(out, ['{', '}'], members, node.comments(), depth);
        }
    }
}

fn write_container<'a>(
    out: &mut String,
    [open, close]: [char; 2],
    members: impl ExactSizeIterator<Item = (Option<&'a str>, &'a Node)>,
    comments: Option<&Comments>,
    depth: usize,
) {
    let end = comments.map_or(&[][..], |comments| &comments.end);
    let count = members.len();
    out.push(open);
    for (index, (key, node)) in members.enumerate() {
        let (before, after) = node.comments().map_or((&[][..], &[][..]), |c| (&c.before, &c.after));
        for comment in before {
            new_line(out, depth + 1);
            out.push_str(comment);
        }
        new_line(out, depth + 1);
        if let Some(key) = key {
            write_string(out, key);
            out.push_str(": ");
        }
        write_value(out, node, depth + 1);
        if index + 1 < count {
            out.push(',');
        }
        for comment in after {
            out.push(' ');
            out.push_str(comment);
        }
    }
    for comment in end {
        new_line(out, depth + 1);
        out.push_str(comment);
    }
    if count > 0 || !end.is_empty() {
        new_line(out, depth);
    }
    out.push(close);
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// Writes a string with the escapes sing-box uses, which also keep it safe inside HTML.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
