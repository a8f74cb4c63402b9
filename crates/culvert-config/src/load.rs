//! From sources to options: reading, merging, decoding, checking.

use crate::check::check;
use crate::cx::{Cx, Files, SystemFiles};
use crate::diagnostics::{Diagnostic, Diagnostics, Report, Severity};
use crate::json::{self, Node, Value};
use crate::legacy::migrate;
use crate::merge::merge_trees;
use crate::options::Options;
use crate::schema::Schema;
use crate::source::{Document, Source};
use crate::value::OptionValue;

/// A configuration that can run, as far as that can be told without looking at the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The options, every object with a tag.
    pub options: Options,
    /// What somebody should look at.
    pub warnings: Diagnostics,
}

/// Loads a configuration from its files. Several are merged, in the order of their names.
///
/// # Errors
/// Everything wrong with the configuration that can be found, and the warnings too.
pub fn load(sources: &[Source]) -> Result<Loaded, Diagnostics> {
    load_with(sources, &SystemFiles)
}

/// [`load`], with the files that options name read through `files`.
///
/// # Errors
/// As for [`load`].
pub fn load_with(sources: &[Source], files: &dyn Files) -> Result<Loaded, Diagnostics> {
    let documents = read(sources)?;
    let mut cx = Cx::checking(files);
    let mut root = join(&documents, &mut cx.report);
    if cx.report.errors() > 0 {
        return Err(cx.report.finish(&documents));
    }
    migrate(&mut root, &mut cx.report);
    let mut options = decode(&root, &mut cx);
    options.name_untagged();
    check(&options, &root, &mut cx);
    let failed = cx.report.errors() > 0;
    let findings = cx.report.finish(&documents);
    if failed { Err(findings) } else { Ok(Loaded { options, warnings: findings }) }
}

/// Where `path`, such as `outbounds[0]`, stands in a configuration that loads: file, line and column.
#[must_use]
pub fn place_of(sources: &[Source], path: &str) -> Option<String> {
    let documents = read(sources).ok()?;
    let mut report = Report::default();
    let mut root = join(&documents, &mut report);
    migrate(&mut root, &mut report);
    let place = root.at_path(path)?.place;
    Some(documents.get(place.source as usize)?.spot(place))
}

/// The JSON Schema (2020-12) of a configuration.
#[must_use]
pub fn schema() -> String {
    json::write(&Schema::document(&Options::default()))
}

/// Reads every source, or tells everything wrong with their syntax.
pub(crate) fn read(sources: &[Source]) -> Result<Vec<Document<'_>>, Diagnostics> {
    let mut sources: Vec<&Source> = sources.iter().collect();
    sources.sort_by_key(|source| source.name());
    let mut documents = Vec::new();
    let mut errors: Vec<Diagnostic> = Vec::new();
    for (source, index) in sources.into_iter().zip(0..) {
        match Document::read(source, index) {
            Ok(document) => documents.push(document),
            Err(error) => errors.push(error),
        }
    }
    if documents.is_empty() && errors.is_empty() {
        errors.push(Diagnostic {
            severity: Severity::Error,
            file: "configuration".to_owned(),
            line: 1,
            column: 1,
            path: String::new(),
            tag: None,
            message: "there is no file to read".to_owned(),
        });
    }
    if errors.is_empty() { Ok(documents) } else { Err(errors.into()) }
}

/// The tree of all documents. Several are decoded alone first, since a mistake in one of them counts even where
/// another file takes precedence.
pub(crate) fn join(documents: &[Document<'_>], report: &mut Report) -> Node {
    let [document] = documents else {
        for document in documents {
            let mut cx = Cx::decoding();
            let mut root = document.root.clone();
            migrate(&mut root, &mut cx.report);
            decode(&root, &mut cx);
            report.take_errors(cx.report);
        }
        return merge_trees(documents.iter().map(|document| document.root.clone()));
    };
    document.root.clone()
}

pub(crate) fn decode(root: &Node, cx: &mut Cx<'_>) -> Options {
    let mut options = Options::default();
    if matches!(root.value, Value::Object(_)) {
        options.decode(root, cx);
    } else {
        cx.expected("an object with the sections of a configuration", root);
    }
    options
}
