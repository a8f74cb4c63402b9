//! The command line: what was asked, and where its results go.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::chain::WorkDir;
use crate::failure::Failure;
use crate::results::Run;
use crate::scenarios::{Context, matrix};
use crate::{process, programs, protocols, table};

/// Compare proxy cores: same load, same configuration files, rounds in turn.
#[derive(Parser)]
#[command(name = "culvert-bench", version, subcommand_required = true)]
struct Arguments {
    #[command(subcommand)]
    command: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Bulk goodput by protocol and direction, with processor time and memory
    Matrix(Matrix),
}

/// What all scenarios take.
#[derive(Args)]
struct Common {
    /// A program to measure: NAME=PATH, or a known NAME; may be repeated. The first is the baseline
    #[arg(long = "bin", value_name = "NAME=PATH")]
    programs: Vec<String>,
    /// A protocol to measure; may be repeated
    #[arg(long = "protocol", value_name = "NAME")]
    protocols: Vec<String>,
    /// Fewer rounds, shorter windows, the most telling rows: about a minute
    #[arg(long)]
    quick: bool,
    /// Rounds of each row
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Write everything as JSON, for `report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Args)]
struct Matrix {
    #[command(flatten)]
    common: Common,
    /// Parallel streams
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: u16,
    /// Seconds measured per direction and round
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Also each program as the client of each other
    #[arg(long)]
    cross: bool,
    /// Check every byte both ways; no speeds
    #[arg(long)]
    verify: bool,
}

/// Runs what the command line asks for.
pub(crate) fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(valid) => ExitCode::from(u8::from(!valid)),
        Err(failure) => {
            let _ = writeln!(io::stderr(), "culvert-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all rows are valid.
fn run(arguments: Arguments) -> Result<bool, Failure> {
    match arguments.command {
        Scenario::Matrix(matrix) => run_matrix(&matrix),
    }
}

fn run_matrix(arguments: &Matrix) -> Result<bool, Failure> {
    let common = &arguments.common;
    let pick = |quick, full| if common.quick { quick } else { full };
    let settings = matrix::Settings {
        protocols: protocols::choose(&common.protocols, common.quick)?,
        cross: arguments.cross,
        streams: arguments.streams.into(),
        rounds: common.rounds(if arguments.verify { (1, 1) } else { (4, 8) }),
        warm_up: seconds(pick(0.3, 0.5))?,
        window: seconds(arguments.time.unwrap_or(pick(1.0, 2.0)))?,
    };
    let scenario = if arguments.verify { matrix::verify } else { matrix::run };
    common.carry_out(|context| scenario(context, &settings))
}

impl Common {
    fn rounds(&self, (quick, full): (usize, usize)) -> usize {
        self.rounds.map_or(if self.quick { quick } else { full }, usize::from)
    }

    /// Finds the programs, runs the scenario and shows what came out. Whether all rows are valid.
    fn carry_out(&self, scenario: impl FnOnce(&Context) -> Result<Run, Failure>) -> Result<bool, Failure> {
        let programs = programs::find(&self.programs)?;
        let context = Context { programs, work_dir: WorkDir::create()? };
        process::end_children_on_signal(context.work_dir.path().to_owned())?;
        let began = std::time::Instant::now();
        let mut run = scenario(&context)?;
        run.took = began.elapsed().as_secs_f64();
        print(&table::terminal(&run))?;
        if let Some(path) = &self.json {
            run.write(path)?;
        }
        if let Some(path) = &self.markdown {
            std::fs::write(path, table::markdown(&run)).map_err(Failure::file("cannot write", path))?;
        }
        Ok(!run.has_invalid())
    }
}

fn seconds(value: f64) -> Result<Duration, Failure> {
    let usable = Duration::try_from_secs_f64(value).ok().filter(|time| !time.is_zero());
    usable.ok_or_else(|| Failure::Usage(format!("{value} is no time to measure for")))
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(Failure::io("cannot write to standard output"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_time_must_be_a_time() {
        assert!(seconds(0.0).is_err());
        assert!(seconds(-1.0).is_err());
        assert!(seconds(f64::NAN).is_err());
        assert_eq!(seconds(0.5).unwrap(), Duration::from_millis(500));
    }
}
