//! The command line: what was asked, and where its results go.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::chain::WorkDir;
use crate::failure::Failure;
use crate::programs::Program;
use crate::results::Run;
use crate::scenarios::{Context, connect, dns, latency, matrix, startup, stress};
use crate::{process, programs, protocols, relay, report, table};

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
    /// Short connections, each one request: rate, processor time and latency
    Connect(Connect),
    /// Time to fetch small and large objects, a new connection each time
    Latency(Latency),
    /// Memory with many connections, idle and loaded, and after they have gone
    Stress(Stress),
    /// Time from start to listening
    Startup(Startup),
    /// DNS questions a second: cached, uncached, behind many rules
    Dns(Dns),
    /// What the kernel costs: relays without a proxy around them, and no program at all
    Floor(Floor),
    /// Join JSON results of several runs and versions into one HTML page
    Report(Report),
    /// Be one of those relays
    #[command(hide = true)]
    Relay(Relay),
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
    /// Write a self-contained page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Args)]
struct Bulk {
    /// Parallel streams
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: u16,
    /// Seconds measured per direction and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Measure again, up to N times, while other programs use more than 5 % of the processors
    #[arg(long, value_name = "N", default_value_t = 2)]
    repeats: u8,
}

#[derive(Args)]
struct Matrix {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    bulk: Bulk,
    /// Also each program as the client of each other
    #[arg(long)]
    cross: bool,
    /// Leave out the relays that show what the kernel costs
    #[arg(long)]
    no_floor: bool,
    /// Check every byte both ways; no speeds
    #[arg(long)]
    verify: bool,
}

#[derive(Args)]
struct Connect {
    #[command(flatten)]
    common: Common,
    /// Also each program as the client of each other
    #[arg(long)]
    cross: bool,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Connections a second of the moderate load
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seconds measured per load and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
}

#[derive(Args)]
struct Latency {
    #[command(flatten)]
    common: Common,
    /// Also each program as the client of each other
    #[arg(long)]
    cross: bool,
    /// Fetches of each object in a round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    fetches: Option<u16>,
}

#[derive(Args)]
struct Stress {
    #[command(flatten)]
    common: Common,
    /// Also each program as the client of each other
    #[arg(long)]
    cross: bool,
    /// Connections that stand idle
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    idle: u16,
    /// Connections that all transfer at once
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Seconds of load
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Seconds that the program is left alone afterwards
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    reclaim: Option<Duration>,
}

#[derive(Args)]
struct Startup {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Dns {
    #[command(flatten)]
    common: Common,
    /// Clients, each with a socket and a thread
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Questions that each client has under way
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Seconds measured per load and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
}

#[derive(Args)]
struct Floor {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    bulk: Bulk,
}

#[derive(Args)]
struct Report {
    /// Results written by --json, oldest first
    #[arg(required = true, value_name = "FILE")]
    results: Vec<PathBuf>,
    /// Where the page goes instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct Relay {
    mode: relay::Mode,
    #[arg(long, default_value = "aes128-gcm")]
    cipher: relay::Cipher,
    /// Always `run`: relays are started as the programs are
    action: String,
    #[arg(short)]
    config: PathBuf,
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
        Scenario::Matrix(arguments) => arguments.run(),
        Scenario::Connect(arguments) => arguments.run(),
        Scenario::Latency(arguments) => arguments.run(),
        Scenario::Stress(arguments) => arguments.run(),
        Scenario::Startup(arguments) => arguments.run(),
        Scenario::Dns(arguments) => arguments.run(),
        Scenario::Floor(arguments) => arguments.run(),
        Scenario::Report(arguments) => arguments.run(),
        Scenario::Relay(arguments) => {
            relay::run(arguments.mode, arguments.cipher, &arguments.config).map(|()| true)
        }
    }
}

impl Matrix {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let settings = matrix::Settings {
            protocols: protocols::choose(&common.protocols, common.quick)?,
            cross: self.cross,
            floor: !self.no_floor,
            ..self.bulk.settings(common)
        };
        if self.verify {
            let settings = matrix::Settings { rounds: common.rounds(1, 1), ..settings };
            return common.carry_out(|context| matrix::verify(context, &settings));
        }
        common.carry_out(|context| matrix::run(context, &settings))
    }
}

impl Floor {
    fn run(&self) -> Result<bool, Failure> {
        let shown = ["direct", "vless", "ss2022-aes-128-gcm", "ss2022-aes-256-gcm", "ss2022-chacha20"];
        let protocols = protocols::choose(&shown.map(str::to_owned), false)?;
        let settings = matrix::Settings { protocols, ..self.bulk.settings(&self.common) };
        self.common.carry_out_with(Vec::new(), |context| matrix::floor(context, &settings))
    }
}

impl Bulk {
    fn settings(&self, common: &Common) -> matrix::Settings {
        matrix::Settings {
            protocols: Vec::new(),
            cross: false,
            floor: true,
            streams: self.streams.into(),
            rounds: common.rounds(3, 8),
            warm_up: common.time(None, 200, 500),
            window: common.time(self.time, 500, 2000),
            repeats: self.repeats.into(),
        }
    }
}

impl Connect {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let settings = connect::Settings {
            protocols: protocols::choose_or_socks(&common.protocols)?,
            cross: self.cross,
            workers: self.workers.into(),
            rate: self.rate.into(),
            rounds: common.rounds(4, 8),
            warm_up: common.time(None, 300, 500),
            window: common.time(self.time, 2000, 4000),
        };
        common.carry_out(|context| connect::run(context, &settings))
    }
}

impl Latency {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let fetches = if common.quick { 100 } else { 300 };
        let settings = latency::Settings {
            protocols: protocols::choose_or_socks(&common.protocols)?,
            cross: self.cross,
            fetches: self.fetches.map_or(fetches, usize::from),
            rounds: common.rounds(4, 8),
        };
        common.carry_out(|context| latency::run(context, &settings))
    }
}

impl Stress {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let settings = stress::Settings {
            protocols: protocols::choose_or_socks(&common.protocols)?,
            cross: self.cross,
            idle: self.idle.into(),
            loaded: self.connections.into(),
            load: common.time(self.time, 2000, 5000),
            reclaim: common.time(self.reclaim, 5000, 60_000),
            rounds: common.rounds(2, 3),
        };
        common.carry_out(|context| stress::run(context, &settings))
    }
}

impl Startup {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let protocols = protocols::choose_or_socks(&common.protocols)?;
        let settings = startup::Settings { protocols, rounds: common.rounds(20, 20) };
        common.carry_out(|context| startup::run(context, &settings))
    }
}

impl Dns {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let settings = dns::Settings {
            clients: self.clients.into(),
            depth: self.depth.into(),
            rounds: common.rounds(3, 8),
            warm_up: common.time(None, 300, 500),
            window: common.time(self.time, 1000, 3000),
        };
        common.carry_out(|context| dns::run(context, &settings))
    }
}

impl Report {
    fn run(&self) -> Result<bool, Failure> {
        let runs = self.results.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>, _>>()?;
        let page = report::html(&runs);
        match &self.output {
            Some(path) => write(path, &page)?,
            None => print(&page)?,
        }
        Ok(true)
    }
}

impl Common {
    fn rounds(&self, quick: usize, full: usize) -> usize {
        self.rounds.map_or(if self.quick { quick } else { full }, usize::from)
    }

    /// What was asked for, else milliseconds by mode.
    fn time(&self, asked: Option<Duration>, quick: u64, full: u64) -> Duration {
        asked.unwrap_or(Duration::from_millis(if self.quick { quick } else { full }))
    }

    /// Finds the programs, runs the scenario and shows what came out. Whether all rows are valid.
    fn carry_out(&self, scenario: impl FnOnce(&Context) -> Result<Run, Failure>) -> Result<bool, Failure> {
        self.carry_out_with(programs::find(&self.programs)?, scenario)
    }

    fn carry_out_with(
        &self,
        programs: Vec<Program>,
        scenario: impl FnOnce(&Context) -> Result<Run, Failure>,
    ) -> Result<bool, Failure> {
        // Where the limit stays too low, connections fail and say so.
        let _ = culvert_os::process::raise_open_files_limit();
        let context = Context { programs, work_dir: WorkDir::create()? };
        process::end_children_on_signal(context.work_dir.path().to_owned())?;
        // A packet filter that follows connections costs everyone the same, and after many short ones drops some.
        let network = match culvert_os::netns::isolate_thread() {
            Ok(()) => "a namespace of the run's own".to_owned(),
            Err(error) => format!("the machine's, with its packet filter ({error})"),
        };
        let began = std::time::Instant::now();
        let mut run = scenario(&context)?;
        run.took = began.elapsed().as_secs_f64();
        run.set("network", network);
        print(&table::terminal(&run))?;
        if let Some(path) = &self.json {
            run.write(path)?;
        }
        if let Some(path) = &self.markdown {
            write(path, &table::markdown(&run))?;
        }
        if let Some(path) = &self.html {
            write(path, &report::html(std::slice::from_ref(&run)))?;
        }
        Ok(!run.has_invalid())
    }
}

/// A time as people write it: `0.5`.
fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let usable = Duration::try_from_secs_f64(value).ok().filter(|time| !time.is_zero());
    usable.ok_or_else(|| "no time to measure for".to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(Failure::file("cannot write", path))
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
        for wrong in ["0", "-1", "nan", "", "two"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    }
}
