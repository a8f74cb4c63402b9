//! The command line: what was asked, and where its results go.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::chain::WorkDir;
use crate::failure::Failure;
use crate::network::{self, Network, Wire};
use crate::programs::{Program, Wanted};
use crate::results::Run;
use crate::scenarios::{Context, connect, dns, latency, matrix, path, rules, startup, stress, tun, vpn};
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
    /// TUN engines that lead to a SOCKS server, between two network namespaces
    Tun(Tun),
    /// Goodput over emulated paths: round trip, loss, bandwidth
    Path(PathGrid),
    /// WireGuard tunnels between two network namespaces: 1, 4 and 16 streams
    Vpn(Vpn),
    /// What decisions cost: 10,000 rules, 100,000 names and 20,000 prefixes
    Rules(Rules),
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
    /// A protocol to measure, or `all`; may be repeated
    #[arg(long = "protocol", value_name = "NAME")]
    protocols: Vec<String>,
    /// Also the installed peers with configurations of their own kind; those that are absent are named
    #[arg(long)]
    peers: bool,
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

/// What scenarios with network namespaces take.
#[derive(Args)]
struct Isolation {
    /// Work without root: in a user namespace, where the kernel permits those
    #[arg(long)]
    user_namespace: bool,
}

#[derive(Args)]
struct Tun {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    isolation: Isolation,
    /// A row to measure; may be repeated
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// A stack of the programs that have several; may be repeated
    #[arg(long = "stack", value_name = "NAME")]
    stacks: Vec<String>,
    /// Bytes of a packet in the device
    #[arg(long, value_name = "BYTES", default_value_t = 8500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: u32,
    /// Seconds measured per row and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Seconds that an idle program is watched
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle: Option<Duration>,
    /// Flows that stand open
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    flows: u16,
}

#[derive(Args)]
struct PathGrid {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    isolation: Isolation,
    /// Milliseconds of a round trip; may be repeated
    #[arg(long = "rtt", value_name = "MS", value_parser = clap::value_parser!(u16).range(0..=2000))]
    round_trips: Vec<u16>,
    /// Percent of packets that get lost; may be repeated
    #[arg(long = "loss", value_name = "PERCENT")]
    losses: Vec<f64>,
    /// Mbit/s of the bottleneck; may be repeated
    #[arg(long = "mbit", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bandwidths: Vec<u32>,
    /// Parallel streams
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Paths at a time, each in namespaces of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Seconds measured per path and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
}

#[derive(Args)]
struct Vpn {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    isolation: Isolation,
    /// Parallel streams of a row; may be repeated
    #[arg(long = "streams", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: Vec<u16>,
    /// Seconds measured per row and round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
}

#[derive(Args)]
struct Rules {
    #[command(flatten)]
    common: Common,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
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
        Scenario::Tun(arguments) => arguments.run(),
        Scenario::Path(arguments) => arguments.run(),
        Scenario::Vpn(arguments) => arguments.run(),
        Scenario::Rules(arguments) => arguments.run(),
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
            return common.carry_out(Wanted::Universal, |context| matrix::verify(context, &settings));
        }
        common.carry_out(Wanted::Universal, |context| matrix::run(context, &settings))
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
        common.carry_out(Wanted::Universal, |context| connect::run(context, &settings))
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
        common.carry_out(Wanted::Universal, |context| latency::run(context, &settings))
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
        common.carry_out(Wanted::Universal, |context| stress::run(context, &settings))
    }
}

impl Startup {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let protocols = protocols::choose_or_socks(&common.protocols)?;
        let settings = startup::Settings { protocols, rounds: common.rounds(20, 20) };
        common.carry_out(Wanted::Universal, |context| startup::run(context, &settings))
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
        common.carry_out(Wanted::Universal, |context| dns::run(context, &settings))
    }
}

impl Tun {
    fn run(&self) -> Result<bool, Failure> {
        self.isolation.enter("tun")?;
        let common = &self.common;
        let settings = tun::Settings {
            rows: self.rows.clone(),
            stacks: self.stacks.clone(),
            mtu: self.mtu,
            rounds: common.rounds(1, 3),
            warm_up: common.time(None, 150, 300),
            window: common.time(self.time, 400, 1500),
            idle: common.time(self.idle, 1000, 20_000),
            flows: self.flows.into(),
        };
        common.carry_out(Wanted::Tun, |context| tun::run(context, &settings))
    }
}

impl PathGrid {
    fn run(&self) -> Result<bool, Failure> {
        self.isolation.enter("path")?;
        let common = &self.common;
        let or = |asked: &[u16], quick: &[u16], full: &[u16]| {
            let usual = if common.quick { quick } else { full };
            if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
        };
        let losses: &[f64] = if common.quick { &[0.0, 1.0] } else { &[0.0, 1.0, 5.0, 10.0] };
        let protocols: &[&str] = if common.quick {
            &["hysteria2-brutal", "hysteria2", "tuic"]
        } else {
            &["hysteria2-brutal", "hysteria2", "tuic", "tuic-cubic", "vless-tls"]
        };
        let settings = path::Settings {
            protocols: protocols::choose_or(&common.protocols, protocols)?,
            round_trips: or(&self.round_trips, &[50], &[50, 150, 300]),
            losses: if self.losses.is_empty() { losses.to_vec() } else { self.losses.clone() },
            bandwidths: if self.bandwidths.is_empty() { vec![100] } else { self.bandwidths.clone() },
            streams: self.streams.into(),
            parallel: self.parallel.into(),
            rounds: common.rounds(1, 1),
            warm_up: common.time(None, 1000, 3000),
            window: common.time(self.time, 3000, 6000),
        };
        common.carry_out(Wanted::Universal, |context| path::run(context, &settings))
    }
}

impl Vpn {
    fn run(&self) -> Result<bool, Failure> {
        self.isolation.enter("vpn")?;
        let common = &self.common;
        let streams = if self.streams.is_empty() { vec![1, 4, 16] } else { self.streams.clone() };
        let settings = vpn::Settings {
            streams: streams.into_iter().map(usize::from).collect(),
            rounds: common.rounds(2, 5),
            warm_up: common.time(None, 300, 500),
            window: common.time(self.time, 500, 1500),
        };
        common.carry_out(Wanted::Vpn, |context| vpn::run(context, &settings))
    }
}

impl Rules {
    fn run(&self) -> Result<bool, Failure> {
        let common = &self.common;
        let settings = rules::Settings {
            workers: self.workers.into(),
            rounds: common.rounds(2, 5),
            warm_up: common.time(None, 200, 300),
            window: common.time(self.time, 700, 1500),
        };
        common.carry_out(Wanted::Universal, |context| rules::run(context, &settings))
    }
}

impl Isolation {
    /// Makes sure that namespaces may be made, or starts this program again where they may.
    fn enter(&self, command: &str) -> Result<(), Failure> {
        if self.user_namespace && std::env::var_os(INSIDE).is_none() {
            return Err(user_namespace());
        }
        let trial = std::thread::spawn(|| Network::create(Wire::Veth).map(drop));
        let outcome = trial.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map_err(|failure| network::not_permitted(command, &failure))
    }
}

/// Says to this program that it is in a user namespace of its own.
const INSIDE: &str = "CULVERT_BENCH_USER_NAMESPACE";

/// Becomes this program once more, as root of a new user namespace. Returns only what went wrong.
fn user_namespace() -> Failure {
    use std::os::unix::process::CommandExt;

    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return Failure::io("cannot find this program")(error),
    };
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--"]).arg(own).args(std::env::args_os().skip(1));
    Failure::io("cannot run unshare(1), which makes user namespaces")(command.env(INSIDE, "1").exec())
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
    fn carry_out(
        &self,
        wanted: Wanted,
        scenario: impl FnOnce(&Context) -> Result<Run, Failure>,
    ) -> Result<bool, Failure> {
        let wanted = if self.peers && wanted == Wanted::Universal { Wanted::Proxies } else { wanted };
        let found = programs::find(&self.programs, wanted, self.peers)?;
        for name in found.absent {
            let _ = writeln!(io::stderr(), "skipped: {name} is not on the PATH");
        }
        self.carry_out_with(found.programs, scenario)
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
            Ok(()) => {
                // Where this fails, WireGuard rows will say so.
                let _ = network::pretend_to_be_connected();
                "a namespace of the run's own".to_owned()
            }
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
