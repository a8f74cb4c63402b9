//! Several files made one.

use std::path::Path;

use crate::cx::{Cx, Files, SystemFiles};
use crate::diagnostics::Diagnostics;
use crate::json::{self, Entry, Node, Value};
use crate::legacy::migrate;
use crate::load::{decode, join, read};
use crate::source::Source;
use crate::value::OptionValue;

/// Merges `sources`, in the order of their names, into one text in canonical form, without comments and without a line
/// end behind the last line. Certificates and keys that options name by path are put beside the path.
///
/// # Errors
/// What cannot be decoded.
pub fn merge(sources: &[Source]) -> Result<String, Diagnostics> {
    merge_with(sources, &SystemFiles)
}

/// [`merge`], with the files that options name read through `files`.
///
/// # Errors
/// As for [`merge`].
pub fn merge_with(sources: &[Source], files: &dyn Files) -> Result<String, Diagnostics> {
    let documents = read(sources)?;
    let mut cx = Cx::decoding();
    let mut root = join(&documents, &mut cx.report);
    migrate(&mut root, &mut cx.report);
    put_files_in(&mut root, files);
    let options = decode(&root, &mut cx);
    if cx.report.errors() > 0 {
        cx.report.forget_warnings();
        return Err(cx.report.finish(&documents));
    }
    Ok(json::write(&options.encode()))
}

/// Objects merge key by key and lists are joined; of anything else the first one counts, also a `null`.
pub(crate) fn merge_trees(trees: impl IntoIterator<Item = Node>) -> Node {
    trees.into_iter().reduce(merge_two).unwrap_or_default()
}

fn merge_two(mut first: Node, second: Node) -> Node {
    match (&mut first.value, second.value) {
        (Value::Object(entries), Value::Object(more)) => merge_entries(entries, more),
        (Value::Array(items), Value::Array(more)) => items.extend(more),
        _ => {}
    }
    first
}

fn merge_entries(entries: &mut Vec<Entry>, more: Vec<Entry>) {
    for entry in more {
        match entries.iter_mut().rfind(|known| known.key == entry.key) {
            Some(known) => known.node = merge_two(std::mem::take(&mut known.node), entry.node),
            None => entries.push(entry),
        }
    }
}

/// Where files go, by section: the object inside, the option with the path, the option with the content.
const INBOUND_FILES: [(&[&str], &str, &str); 3] = [
    (&["tls"], "certificate_path", "certificate"),
    (&["tls"], "key_path", "key"),
    (&["tls", "ech"], "key_path", "key"),
];
const OUTBOUND_FILES: [(&[&str], &str, &str); 3] = [
    (&["tls"], "certificate_path", "certificate"),
    (&["tls", "ech"], "config_path", "config"),
    (&[], "private_key_path", "private_key"),
];

fn put_files_in(root: &mut Node, files: &dyn Files) {
    for (section, places) in [("inbounds", INBOUND_FILES), ("outbounds", OUTBOUND_FILES)] {
        let objects = root.get_mut(section).and_then(Node::as_array_mut);
        for object in objects.into_iter().flatten() {
            for (inside, path, content) in places {
                put_file_in(object, inside, path, content, files);
            }
        }
    }
}

/// Files that cannot be read are left as they are: they may exist where the result is used.
fn put_file_in(object: &mut Node, inside: &[&str], path: &str, content: &str, files: &dyn Files) {
    let inner = inside.iter().try_fold(object, |object, key| object.get_mut(key));
    let Some(inner) = inner else { return };
    let Some(name) = inner.get(path).and_then(Node::as_str).filter(|name| !name.is_empty()) else { return };
    let Ok(bytes) = files.read(Path::new(name)) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let place = inner.place_of(path);
    inner.set(content, Node::array(text.trim().lines().map(Node::string)).at(place));
}
