//! Which configuration files a command reads.

use std::io::Read;
use std::path::Path;

use culvert_config::Source;

use super::{Failure, Global};

/// What is read when nothing is named.
const DEFAULT_PATH: &str = "config.json";

/// The files named by the flags, in the order in which they merge: sorted by path, bytewise, wherever they stood on
/// the command line. Without flags it is `config.json`.
pub(super) fn paths(global: &Global) -> Result<Vec<String>, Failure> {
    let mut paths = global.config.clone();
    for directory in &global.config_directory {
        paths.extend(entries(directory)?);
    }
    if global.config.is_empty() && global.config_directory.is_empty() {
        paths.push(DEFAULT_PATH.to_owned());
    }
    paths.sort();
    paths.dedup();
    if paths.is_empty() {
        return Err(Failure(format!("no *.json file in {}", global.config_directory.join(", "))));
    }
    Ok(paths)
}

/// Whether nothing was named and the default file does not exist either.
pub(super) fn is_nothing_given(global: &Global) -> bool {
    global.config.is_empty() && global.config_directory.is_empty() && !Path::new(DEFAULT_PATH).exists()
}

/// Reads the files named by the flags.
pub(super) fn read(global: &Global) -> Result<Vec<Source>, Failure> {
    paths(global)?.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &str) -> Result<Source, Failure> {
    let mut bytes = Vec::new();
    // A dash means standard input nearly everywhere, unless there is a file of that name.
    let path = if path == "-" && !Path::new(path).exists() { "stdin" } else { path };
    let result = match path {
        "stdin" => std::io::stdin().read_to_end(&mut bytes).map(drop),
        path => std::fs::read(path).map(|read| bytes = read),
    };
    result.map_err(|error| Failure(format!("read config at {path}: {error}{}", hint(path, &error))))?;
    Ok(Source::new(path, &bytes))
}

/// What to do about a file that cannot be read.
fn hint(path: &str, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::IsADirectory => format!("; `-C {path}` reads the *.json files in it"),
        std::io::ErrorKind::NotFound if path == DEFAULT_PATH => {
            "; name another file with `-c`, or a directory with `-C`".to_owned()
        }
        _ => String::new(),
    }
}

fn entries(directory: &str) -> Result<Vec<String>, Failure> {
    let failed = |error| Failure(format!("read config directory at {directory}: {error}"));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "json") || path.is_dir() {
            continue;
        }
        // Reading a pipe would wait for a writer. One that is meant can be named with `-c`.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(Failure(format!("read config at {}: not a regular file", path.display())));
        }
        paths.push(path.to_string_lossy().into_owned());
    }
    Ok(paths)
}
