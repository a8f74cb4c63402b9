//! `culvert rule-set`: files of rule-sets, made, read and tried.

use std::fs;
use std::io::Read;

use clap::{Args, Subcommand, ValueEnum};
use culvert_rules::ruleset;

use super::{Failure, Global, note, print, sources};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Compile a source file (JSON) to a binary one.
    Compile(Convertible),
    /// Turn a binary file back into a source file.
    Decompile(Convertible),
    /// Convert a list of another form to a binary file.
    Convert(Convert),
    /// Print a source file in canonical form.
    Format(Rewrite),
    /// Bring a source file of version 1 up to date.
    Upgrade(Rewrite),
    /// Print the rules of a file that match an address or a domain.
    Match(Match),
    /// Merge source files, named by -c and -C, into one.
    Merge(Merge),
}

#[derive(Args, Debug)]
pub(super) struct Convertible {
    /// The file to read; `stdin` reads standard input.
    source: String,
    /// The file to write; beside the source when absent.
    #[arg(short, long)]
    output: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct Convert {
    #[command(flatten)]
    files: Convertible,
    /// What the source is.
    #[arg(short = 't', long = "type")]
    kind: ListKind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ListKind {
    /// A filter list for AdGuard's DNS.
    Adguard,
}

#[derive(Args, Debug)]
pub(super) struct Rewrite {
    /// The file to read; `stdin` reads standard input.
    source: String,
    /// Rewrite the file instead of printing.
    #[arg(short, long)]
    write: bool,
}

#[derive(Args, Debug)]
pub(super) struct Match {
    /// The file to read; `stdin` reads standard input.
    source: String,
    /// An IP address or a domain.
    text: String,
    /// Form of the file; found out when absent.
    #[arg(short, long)]
    format: Option<Form>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// JSON.
    Source,
    /// Compiled.
    Binary,
}

#[derive(Args, Debug)]
pub(super) struct Merge {
    /// The file to write; missing directories above it are made.
    output: std::path::PathBuf,
}

pub(super) fn execute(global: &Global, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Compile(files) => {
            let source = read_source(&files.source)?;
            let compiled = ruleset::compile(&source).map_err(in_file(&files.source))?;
            write(&files.target(".json", ".srs"), &compiled)
        }
        Command::Decompile(files) => {
            let source = ruleset::decompile(&read(&files.source)?).map_err(in_file(&files.source))?;
            write(&files.target(".srs", ".json"), source.as_bytes())
        }
        Command::Convert(Convert { files, kind: ListKind::Adguard }) => convert(files),
        Command::Format(rewrite) => {
            let before = read_source(&rewrite.source)?;
            rewrite.finish(&before, &ruleset::format(&before).map_err(in_file(&rewrite.source))?)
        }
        Command::Upgrade(rewrite) => {
            let before = read_source(&rewrite.source)?;
            match ruleset::upgrade(&before).map_err(in_file(&rewrite.source))? {
                Some(after) => rewrite.finish(&before, &after),
                None => {
                    tracing::info!("already up-to-date");
                    Ok(())
                }
            }
        }
        Command::Match(asked) => find(asked),
        Command::Merge(merge) => merge_all(global, merge),
    }
}

impl Convertible {
    /// The output: what was named, or the source with another end.
    fn target(&self, from: &str, to: &str) -> String {
        let stem = self.source.strip_suffix(from).unwrap_or(&self.source);
        self.output.clone().unwrap_or_else(|| format!("{stem}{to}"))
    }
}

impl Rewrite {
    fn finish(&self, before: &[u8], after: &str) -> Result<(), Failure> {
        if !self.write {
            return print(format!("{after}\n").as_bytes());
        }
        if before != after.as_bytes() {
            write(&self.source, after.as_bytes())?;
            let path = std::path::absolute(&self.source).unwrap_or_else(|_| self.source.clone().into());
            note(path.display());
        }
        Ok(())
    }
}

fn convert(files: &Convertible) -> Result<(), Failure> {
    let list = String::from_utf8(read(&files.source)?).map_err(in_file(&files.source))?;
    let converted = ruleset::convert_adguard(&list).map_err(in_file(&files.source))?;
    for line in &converted.ignored {
        tracing::debug!("line {} left out: {}: {}", line.line, line.reason, line.text);
    }
    tracing::info!("parsed rules: {}/{}", converted.taken, converted.taken + converted.ignored.len());
    let binary = ruleset::write_binary(&converted.file).map_err(Failure::new)?;
    write(&files.target(".txt", ".srs"), &binary)
}

/// One line on stderr for each rule that matches, as sing-box has it.
fn find(asked: &Match) -> Result<(), Failure> {
    let data = read(&asked.source)?;
    let found = if is_binary(&data) { Form::Binary } else { Form::Source };
    let file = match asked.format.unwrap_or(found) {
        Form::Source => ruleset::read_source(&data).map_err(in_file(&asked.source))?,
        Form::Binary => ruleset::read_binary(&data).map_err(in_file(&asked.source))?,
    };
    for line in ruleset::match_lines(file, &asked.text).map_err(Failure::new)? {
        note(line);
    }
    Ok(())
}

fn merge_all(global: &Global, merge: &Merge) -> Result<(), Failure> {
    let paths = sources::paths(global)?;
    let sources: Vec<_> = paths.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let merged = ruleset::merge(&sources)
        .map_err(|(index, error)| Failure(format!("decode rule-set at {}: {error}", paths[index])))?;
    let path = std::path::absolute(&merge.output).unwrap_or_else(|_| merge.output.clone());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .map_err(|error| Failure(format!("create {}: {error}", parent.display())))?;
    }
    write(&path.to_string_lossy(), merged.as_bytes())?;
    note(path.display());
    Ok(())
}

/// Whether these are the first bytes of a compiled file.
fn is_binary(data: &[u8]) -> bool {
    data.starts_with(b"SRS")
}

/// Adds to an error whose it is.
fn in_file<E: std::fmt::Display>(path: &str) -> impl Fn(E) -> Failure {
    move |error| Failure(format!("{path}: {error}"))
}

/// Reads what is to be a source file.
fn read_source(path: &str) -> Result<Vec<u8>, Failure> {
    let data = read(path)?;
    if is_binary(&data) {
        return Err(Failure(format!(
            "{path}: this is a binary rule-set; `rule-set decompile` makes a source of it"
        )));
    }
    Ok(data)
}

fn read(path: &str) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let read = match path {
        "stdin" => std::io::stdin().read_to_end(&mut data).map(drop),
        path => fs::read(path).map(|read| data = read),
    };
    read.map_err(|error| Failure(format!("read {path}: {error}")))?;
    Ok(data)
}

fn write(path: &str, data: &[u8]) -> Result<(), Failure> {
    fs::write(path, data).map_err(|error| Failure(format!("write {path}: {error}")))
}
