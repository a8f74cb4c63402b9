//! Every file of the corpora: accepted or refused as sing-box 1.14.4 does, and for the same reason.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use culvert_config::{Diagnostic, Diagnostics, Files, Loaded, Source, format, load_with};

/// Marks in the corpora and the file whose text stands for each.
const MARKS: [(&str, &str); 5] = [
    ("@SERVER_KEY@", "server.key"),
    ("@SERVER_CERT@", "server.crt"),
    ("@CLIENT_KEY@", "client.key"),
    ("@CLIENT_CERT@", "client.crt"),
    ("@SSH_KEY@", "ssh"),
];

/// Paths in the corpora and the asset each of them names.
const ASSETS: [(&str, &str); 3] = [
    ("assets/example.org.crt", "server.crt"),
    ("assets/example.org.key", "server.key"),
    ("assets/id_ed25519_test", "ssh"),
];

/// Files that sing-box itself cannot print: it chokes on a list of both networks.
const NOT_PRINTED: [&str; 2] = ["valid/inbound-direct-both-networks.json", "valid/outbound-snell.json"];

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json_files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(corpus(directory)).expect("the corpus is there");
    let names =
        entries.map(|entry| entry.expect("a readable entry").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    names.sort();
    assert!(!names.is_empty(), "{directory} is empty");
    names
}

/// Lines of a table: the first column names a file.
fn table(path: &str) -> Vec<Vec<String>> {
    let text = read(&corpus(path));
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn source(directory: &str, name: &str) -> Source {
    let text = read(&corpus(directory).join(name));
    Source::new(name, without_marks(text).as_bytes())
}

fn without_marks(mut text: String) -> String {
    for (mark, asset) in MARKS {
        let escaped = read(&corpus("assets").join(asset)).replace('\n', "\\n");
        text = text.replace(mark, &escaped);
    }
    text
}

/// The files a configuration of one corpus can see.
struct CorpusFiles(PathBuf);

impl Files for CorpusFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match ASSETS.iter().find(|(name, _)| Path::new(name) == path) {
            Some((_, asset)) => fs::read(corpus("assets").join(asset)),
            None => fs::read(self.0.join(path)),
        }
    }
}

fn load(directory: &str, source: &Source) -> Result<Loaded, Diagnostics> {
    load_with(std::slice::from_ref(source), &CorpusFiles(corpus(directory)))
}

/// A path without the tags that are told in quotes.
fn without_tags(path: &str) -> String {
    path.split('"').step_by(2).map(str::trim).collect()
}

/// Collects what goes wrong, so that one run shows all of it.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn add(&mut self, what: impl Display, why: impl Display) {
        self.0.push(format!("{what}: {why}"));
    }

    fn finish(self) {
        assert!(self.0.is_empty(), "{} failures:\n{}", self.0.len(), self.0.join("\n"));
    }
}

#[test]
fn valid_files_are_accepted() {
    let mut failures = Failures::default();
    for directory in ["valid", "valid-notag"] {
        for name in json_files(directory) {
            if let Err(errors) = load(directory, &source(directory, &name)) {
                failures.add(format!("{directory}/{name}"), errors);
            }
        }
    }
    failures.finish();
}

#[test]
fn single_objects_get_the_verdict_of_sing_box() {
    let mut failures = Failures::default();
    for line in table("verdicts.tsv") {
        let [verdict, text] = line.as_slice() else { panic!("not a verdict: {line:?}") };
        let source = Source::new("verdicts.tsv", without_marks(text.clone()).as_bytes());
        match (verdict.as_str(), load("valid", &source)) {
            ("accepted", Ok(_)) | ("refused" | "start" | "guessable" | "unworkable", Err(_)) => {}
            ("accepted", Err(errors)) => failures.add(text, errors),
            (_, Ok(_)) => failures.add(text, "accepted"),
            (_, Err(_)) => panic!("unknown verdict {verdict}"),
        }
    }
    failures.finish();
}

#[test]
fn format_prints_what_sing_box_prints() {
    let mut failures = Failures::default();
    for directory in ["valid", "valid-notag"] {
        for name in json_files(directory) {
            let what = format!("{directory}/{name}");
            let original = Source::new(&*name, read(&corpus(directory).join(&name)).as_bytes());
            let text = match format(&original) {
                Ok(text) => text,
                Err(errors) => {
                    failures.add(what, errors);
                    continue;
                }
            };
            if NOT_PRINTED.contains(&&*what) {
                continue;
            }
            let expected = read(&corpus("formatted").join(&what));
            if text.trim_end() != expected.trim_end() {
                let first = text.lines().zip(expected.lines()).find(|(ours, theirs)| ours != theirs);
                failures.add(what, format!("first difference: {first:?}"));
            }
        }
    }
    failures.finish();
}

#[test]
fn formatting_changes_no_meaning() {
    let mut failures = Failures::default();
    for directory in ["valid", "valid-notag"] {
        for name in json_files(directory) {
            let what = format!("{directory}/{name}");
            let original = source(directory, &name);
            let (Ok(before), Ok(text)) = (load(directory, &original), format(&original)) else { continue };
            let formatted = Source::new(&*name, text.as_bytes());
            match load(directory, &formatted) {
                Ok(after) if after.options == before.options => {}
                Ok(after) => failures.add(&what, format!("{:#?}\n{:#?}", before.options, after.options)),
                Err(errors) => failures.add(&what, errors),
            }
            if format(&formatted).as_ref() != Ok(&text) {
                failures.add(what, "formatting again changes it");
            }
        }
    }
    failures.finish();
}

#[test]
fn invalid_files_are_refused_for_the_same_reason() {
    let mut failures = Failures::default();
    for directory in ["invalid", "invalid-start"] {
        let reasons = table(&format!("{directory}/REASONS.tsv"));
        for name in json_files(directory) {
            let what = format!("{directory}/{name}");
            let Some([_, path, words]) = reasons.iter().find(|line| line[0] == name).map(Vec::as_slice)
            else {
                failures.add(what, "no reason is listed");
                continue;
            };
            match load(directory, &source(directory, &name)) {
                Ok(_) if words.starts_with('(') => {}
                Ok(_) => failures.add(what, "accepted"),
                Err(errors) => {
                    let told = |error: &Diagnostic| {
                        without_tags(&error.path).starts_with(path.as_str()) && error.message.contains(words)
                    };
                    if !errors.iter().any(told) {
                        failures.add(what, format!("expected {path}: {words}, got\n{errors}"));
                    }
                }
            }
        }
    }
    failures.finish();
}

#[test]
fn legacy_files_run_as_their_modern_twins() {
    let mut failures = Failures::default();
    let notes = table("legacy/NOTES.tsv");
    for name in json_files("legacy") {
        let Some([_, words]) = notes.iter().find(|line| line[0] == name).map(Vec::as_slice) else {
            failures.add(name, "no warning is listed");
            continue;
        };
        let modern = match load("legacy", &source("legacy/modern", &name)) {
            Ok(modern) => modern,
            Err(errors) => {
                failures.add(name, format!("the modern twin is refused: {errors}"));
                continue;
            }
        };
        match load("legacy", &source("legacy", &name)) {
            Err(errors) => failures.add(name, errors),
            Ok(loaded) => {
                let warnings: Vec<&str> = loaded.warnings.iter().map(|warning| &*warning.message).collect();
                match warnings.as_slice() {
                    [warning] if warning.contains(words.as_str()) => {}
                    _ => failures
                        .add(name.clone(), format!("expected one warning with {words}, got {warnings:#?}")),
                }
                if loaded.options != modern.options {
                    failures.add(name, format!("{:#?}\nis not\n{:#?}", loaded.options, modern.options));
                }
            }
        }
    }
    failures.finish();
}
