//! The command line. One file per command; the shapes of flags, streams and exit codes follow sing-box 1.14.4.
//!
//! Results go to stdout, everything else to stderr. Exit code 0 is success, 1 any reported error; an error ends with
//! a line at level FATAL.

mod check;
mod completion;
#[cfg(target_os = "linux")]
mod exec;
mod explain;
mod format;
#[cfg(target_os = "linux")]
mod front;
mod generate;
#[cfg(target_os = "linux")]
mod link;
mod merge;
mod migrate;
mod probe;
mod rule_set;
mod run;
mod schema;
mod sources;
#[cfg(target_os = "linux")]
mod tun2socks;
mod version;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use culvert_config::{Diagnostics, Severity};

use crate::log;

/// A universal proxy core that takes sing-box configurations.
#[derive(Debug, Parser)]
#[command(name = "culvert", version = version::SHORT, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that may stand before or after the command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of all commands")]
struct Global {
    /// Configuration file; may be given many times. `stdin` reads standard input.
    #[arg(short, long = "config", value_name = "PATH", global = true)]
    config: Vec<String>,
    /// Directory of configuration files (`*.json`); may be given many times.
    #[arg(short = 'C', long = "config-directory", value_name = "DIR", global = true)]
    config_directory: Vec<String>,
    /// Change to this directory first; it is made if it is missing.
    #[arg(short = 'D', long = "directory", value_name = "DIR", global = true)]
    directory: Option<PathBuf>,
    /// Log without colours, also on a terminal.
    #[arg(long, global = true)]
    disable_color: bool,
    /// Log as one JSON object per line.
    #[arg(long, global = true)]
    log_json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run; without any configuration, a SOCKS and HTTP proxy on 127.0.0.1:2080.
    Run,
    /// Lead the traffic of a TUN device to one proxy, without a configuration.
    #[cfg(target_os = "linux")]
    Tun2socks(tun2socks::Arguments),
    /// Run a program whose whole traffic goes by the configuration, or by one proxy; needs no root.
    #[cfg(target_os = "linux")]
    Exec(exec::Arguments),
    /// Check the configuration: every error is reported, nothing is started.
    Check(check::Arguments),
    /// Print the configuration in canonical form.
    Format(format::Arguments),
    /// Merge configuration files into one.
    Merge(merge::Arguments),
    /// Rewrite a configuration of an older dialect in the newest form, with a report of each change.
    Migrate(migrate::Arguments),
    /// Print the version.
    Version(version::Arguments),
    /// Print the JSON Schema of the configuration.
    Schema(schema::Arguments),
    /// Make keys, certificates and random values.
    #[command(subcommand)]
    Generate(generate::Command),
    /// Make, read and try rule-set files.
    #[command(subcommand)]
    RuleSet(rule_set::Command),
    /// Say which rules a connection meets, which outbound it gets, and why.
    Explain(explain::Arguments),
    /// Probe a server as a censor would, and say where it differs from the site that it imitates.
    Probe(probe::Arguments),
    /// Print a completion script for a shell.
    Completion(completion::Arguments),
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let format = if cli.global.log_json { log::Format::Json } else { log::Format::Text };
    log::install(format, !cli.global.disable_color);
    match execute(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            log::fatal(&message);
            ExitCode::FAILURE
        }
    }
}

/// Help and version are answers; anything else is an error, exit code 1 as for all others.
fn usage(error: &clap::Error) -> ExitCode {
    // A closed stream is no reason to fail differently.
    let _ = error.print();
    if let Some(file) = stray_file(error) {
        note(format!("  tip: a configuration is named with `-c`: culvert run -c {file}"));
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// A word that is no command or argument, but a file.
fn stray_file(error: &clap::Error) -> Option<&str> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return None };
    let is_file = word.ends_with(".json") || std::path::Path::new(word).is_file();
    is_file.then_some(word.as_str())
}

fn execute(cli: &Cli) -> Result<(), Failure> {
    if let Some(directory) = &cli.global.directory {
        std::fs::create_dir_all(directory)
            .and_then(|()| std::env::set_current_dir(directory))
            .map_err(|error| Failure(format!("change to directory {}: {error}", directory.display())))?;
    }
    match &cli.command {
        Command::Run => run::execute(&cli.global),
        #[cfg(target_os = "linux")]
        Command::Tun2socks(arguments) => tun2socks::execute(arguments),
        #[cfg(target_os = "linux")]
        Command::Exec(arguments) => exec::execute(&cli.global, arguments),
        Command::Check(arguments) => check::execute(&cli.global, arguments),
        Command::Format(arguments) => format::execute(&cli.global, arguments),
        Command::Merge(arguments) => merge::execute(&cli.global, arguments),
        Command::Migrate(arguments) => migrate::execute(&cli.global, arguments),
        Command::Version(arguments) => version::execute(arguments),
        Command::Schema(arguments) => schema::execute(arguments),
        Command::Generate(command) => generate::execute(command),
        Command::RuleSet(command) => rule_set::execute(&cli.global, command),
        Command::Explain(arguments) => explain::execute(&cli.global, arguments),
        Command::Probe(arguments) => probe::execute(arguments),
        Command::Completion(arguments) => completion::execute(arguments),
    }
}

/// Why a command failed; the text of the FATAL line.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// Shows findings about a configuration: warnings as warnings, errors as errors.
fn report(findings: &Diagnostics) {
    for finding in findings.iter() {
        if finding.severity == Severity::Error {
            tracing::error!("{finding}");
        } else {
            tracing::warn!("{finding}");
        }
    }
}

/// The failure that stands behind reported errors.
fn refused(findings: &Diagnostics) -> Failure {
    report(findings);
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    Failure(format!("{errors} error{} in the configuration", if errors == 1 { "" } else { "s" }))
}

/// Writes a result to stdout. A reader that has gone away is no error, as in `culvert schema | head`.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure(format!("write result: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a note to stderr, past the log: paths of written files and the like.
fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
