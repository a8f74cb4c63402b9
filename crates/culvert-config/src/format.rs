//! The canonical form of one file, with its comments kept near what they belong to.

use crate::cx::Cx;
use crate::diagnostics::{Diagnostics, Report};
use crate::json::{self, Entry, Node, Value};
use crate::legacy::{self, modernize};
use crate::load::decode;
use crate::source::{Document, Source};
use crate::value::OptionValue;

/// Gives `source` in canonical form, without a line end behind the last line. Values are decoded but not checked.
///
/// # Errors
/// What cannot be decoded.
pub fn format(source: &Source) -> Result<String, Diagnostics> {
    format_with_report(source).map(|(text, _)| text)
}

/// [`format()`], with what had to be rewritten since it was of an older dialect, as [`migrate()`] tells it.
///
/// # Errors
/// What cannot be decoded.
pub fn format_with_report(source: &Source) -> Result<(String, Diagnostics), Diagnostics> {
    rewrite(source, |_, _| ())
}

/// Gives `source` in its newest form and what was changed: what [`format()`] does, and what is old but still accepted is
/// rewritten too.
///
/// # Errors
/// What cannot be decoded.
pub fn migrate(source: &Source) -> Result<(String, Diagnostics), Diagnostics> {
    rewrite(source, modernize)
}

fn rewrite(
    source: &Source,
    change: impl FnOnce(&mut Node, &mut Report),
) -> Result<(String, Diagnostics), Diagnostics> {
    let mut document = Document::read(source, 0).map_err(|error| Diagnostics::from(vec![error]))?;
    let mut cx = Cx::decoding();
    legacy::migrate(&mut document.root, &mut cx.report);
    change(&mut document.root, &mut cx.report);
    let options = decode(&document.root, &mut cx);
    if cx.report.errors() > 0 {
        cx.report.forget_warnings();
        return Err(cx.report.finish(&[document]));
    }
    let mut formatted = options.encode();
    move_comments(&mut document.root, &mut formatted);
    Ok((json::write(&formatted), cx.report.finish(&[document])))
}

/// Moves the comments of `old` to the same places in `new`, which has the same meaning in another spelling.
fn move_comments(old: &mut Node, new: &mut Node) {
    let own = old.take_comments();
    let mut inner = Vec::new();
    match (&mut old.value, &mut new.value) {
        (Value::Object(from), Value::Object(to)) => inner = move_entry_comments(from, to),
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            from.iter_mut().zip(to).for_each(|(from, to)| move_comments(from, to));
        }
        _ => {
            // Another form, such as a single value for a list: there is no inside left for these comments.
            let comments = new.comments_mut();
            comments.before.extend(own.before);
            comments.before.extend(old.take_all_comments());
            comments.before.extend(own.end);
            comments.after.extend(own.after);
            return;
        }
    }
    inner.extend(own.end);
    let comments = new.comments_mut();
    comments.before.extend(own.before);
    comments.end.extend(inner);
    comments.after.extend(own.after);
    comments.below.extend(own.below);
}

/// Moves the comments of entries and gives back those of entries that are gone, to stand at the end.
fn move_entry_comments(from: &mut [Entry], to: &mut [Entry]) -> Vec<String> {
    let mut homeless = Vec::new();
    for index in 0..from.len() {
        let (entry, later) = from[index..].split_first_mut().expect("the index is inside");
        let overridden = later.iter().any(|later| later.key == entry.key);
        match to.iter_mut().find(|new| !overridden && new.key.eq_ignore_ascii_case(&entry.key)) {
            Some(new) => move_comments(&mut entry.node, &mut new.node),
            None => homeless.extend(entry.node.take_all_comments()),
        }
    }
    homeless
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(text: &str) -> String {
        format(&Source::new("c.json", text.as_bytes())).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn comments_stay_where_they_belong() {
        let text = r#"// top
{ # after the bracket
  // before log
  "log": { // inside
    "level": "info", // behind
    "disabled": false, // of what goes
    "timestamp": /* middle */ true
    // end of log
  } // after log
}
// bottom"#;
        let expected = r#"// top
{
  # after the bracket
  // before log
  "log": {
    // inside
    "level": "info", // behind
    /* middle */
    "timestamp": true
    // of what goes
    // end of log
  } // after log
}
// bottom"#;
        assert_eq!(formatted(text), expected);
        assert_eq!(formatted(expected), expected);
    }

    #[test]
    fn zero_values_go_and_explicit_ones_stay() {
        let text = r#"{"log": {"level": ""}, "inbounds": [{"type": "mixed", "listen_port": 0, "udp_fragment": false}]}"#;
        assert_eq!(
            formatted(text),
            "{\n  \"inbounds\": [\n    {\n      \"type\": \"mixed\",\n      \"udp_fragment\": false\n    }\n  ]\n}"
        );
    }
}
