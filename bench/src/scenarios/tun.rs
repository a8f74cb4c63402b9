//! `tun`: what leads a TUN device to a SOCKS server, by the namespace method.
//!
//! ```text
//! near namespace                                              far namespace
//! load generator ─▶ 198.19.0.1 ─▶ TUN ─▶ engine ─SOCKS5─▶ veth ─▶ load generator's target
//! ```
//!
//! The target is the SOCKS5 server too: a connection that is asked for becomes one to the target where it stands, and a
//! datagram is sent back as it came. So nothing but the engine stands between the load generator's two ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use culvert_os::iface;
use culvert_os::netlink::Prefix;
use serde_json::{Value, json};

use crate::bulk::{Bulk, Direction};
use crate::chain::Chain;
use crate::datagrams::{Load, open_flows};
use crate::exchanges;
use crate::failure::Failure;
use crate::network::{FAR, Network, Wire, lead_into};
use crate::plan::{Turn, Turns, Values};
use crate::process::Process;
use crate::procfs::{CpuSample, Memory, wake_ups};
use crate::programs::{Kind, Program};
use crate::progress::Progress;
use crate::requests::{self, Pace};
use crate::results::{Better, Entry, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::stats::percentile;
use crate::target::Target;
use crate::wire::{Header, Op};

/// How much and how long.
pub(crate) struct Settings {
    /// Rows by name; empty for all.
    pub(crate) rows: Vec<String>,
    /// Stacks of programs that have several; empty for all that a program has.
    pub(crate) stacks: Vec<String>,
    pub(crate) mtu: u32,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// How long a program that nobody uses is watched, in the first round.
    pub(crate) idle: Duration,
    /// Flows that stand open.
    pub(crate) flows: usize,
}

const DEVICE: &str = "bench-tun";
/// The device's address, where an engine is told one.
const DEVICE_ADDRESS: &str = "198.18.0.1/30";
/// What is led into the device.
const INTO: Prefix = Prefix { ip: IpAddr::V4(Ipv4Addr::new(198, 19, 0, 0)), len: 16 };
const STACKS: [&str; 3] = ["gvisor", "system", "mixed"];
/// How long an engine may take to make its device.
const START: Duration = Duration::from_secs(10);
/// How long an engine that has a device may take to set it up itself.
const SET_UP: Duration = Duration::from_millis(300);
/// After this long without traffic a program has settled.
const SETTLE: Duration = Duration::from_millis(500);
/// Held connections are opened by so many threads.
const OPENERS: usize = 8;
/// Datagrams: so many a second, so large, and so many in a train.
const RATE: u64 = 100_000;
const DATAGRAM: u16 = 1200;
const TRAIN: usize = 32;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Startup,
    Idle,
    TcpFlows,
    UdpFlows,
    Bulk(Direction, usize),
    Exchanges { connections: usize, size: usize },
    Connections,
    Datagrams { train: usize },
}

const ROWS: [(&str, &str, Work); 13] = [
    ("startup", "ms until a connection goes through", Work::Startup),
    ("idle", "MiB after the start", Work::Idle),
    ("tcp-flows", "MiB that held connections add", Work::TcpFlows),
    ("udp-flows", "MiB that flows of datagrams add", Work::UdpFlows),
    ("tcp-up-1", "Gbit/s; GB per CPU-s", Work::Bulk(Direction::Up, 1)),
    ("tcp-up-10", "Gbit/s; GB per CPU-s", Work::Bulk(Direction::Up, 10)),
    ("tcp-down-1", "Gbit/s; GB per CPU-s", Work::Bulk(Direction::Down, 1)),
    ("tcp-down-10", "Gbit/s; GB per CPU-s", Work::Bulk(Direction::Down, 10)),
    ("rr", "1,000/s; 1,000 per CPU-s", Work::Exchanges { connections: 1, size: 1 }),
    ("rr-8x1k", "1,000/s; 1,000 per CPU-s", Work::Exchanges { connections: 8, size: 1024 }),
    ("crr", "1,000/s; 1,000 per CPU-s", Work::Connections),
    ("udp-100k", "% echoed; 1,000 per CPU-s", Work::Datagrams { train: 1 }),
    ("udp-gso-100k", "% echoed; 1,000 per CPU-s", Work::Datagrams { train: TRAIN }),
];

/// One engine: a program, with one of its stacks where it has several.
struct Engine<'a> {
    name: String,
    program: &'a Program,
    stack: Option<String>,
}

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let rows = chosen(&settings.rows)?;
    let metrics = vec![
        Metric::new("rate", "rate (as the row says)", Better::Higher, 2).main(),
        Metric::new("per_cpu", "per CPU-s (as the row says)", Better::Higher, 2).main(),
        Metric::new("ms", "ms", Better::Lower, 1).main(),
        Metric::new("mib", "MiB", Better::Lower, 1).main(),
        Metric::new("wake_ups", "wake-ups in 20 s", Better::Lower, 0).main(),
        Metric::new("engine_cpu", "engine CPU % of a core", Better::Lower, 0),
        Metric::new("softirq_cpu", "ksoftirqd %", Better::Neither, 0),
        Metric::new("p50", "p50 ms", Better::Lower, 3),
        Metric::new("p99", "p99 ms", Better::Lower, 3),
        Metric::new("peak", "peak RSS, MiB", Better::Lower, 1),
    ];
    let mut run = Run::begin("tun", &context.programs, metrics);
    run.set("MTU", settings.mtu);
    run.set("rounds", settings.rounds);
    run.set("window, s", settings.window.as_secs_f64());
    run.set("watched while idle, s", settings.idle.as_secs_f64());
    run.set("flows that stand open", settings.flows);
    run.set("datagrams", format!("{RATE}/s of {DATAGRAM} bytes, trains of {TRAIN}"));
    let engines = engines(context, settings)?;
    for engine in &engines {
        let server = SocketAddr::from((FAR, 1080));
        let (config, arguments) = engine.setup(server, settings.mtu, Path::new("FILE"));
        run.configs.insert(engine.name.clone(), config.map_or_else(|| json!(arguments), Config::shown));
    }
    let turns = Turns {
        title: "tun",
        parts: rows.iter().map(|(id, unit, _)| ((*id).to_owned(), format!("{id} ({unit})"))).collect(),
        entries: engines.iter().map(|engine| Entry::new(&engine.name)).collect(),
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    let mut progress = Progress::new(turns.steps());
    let work: Vec<Work> = rows.iter().map(|(_, _, work)| *work).collect();
    turns.run(&mut run, &mut progress, |turn| {
        // Both namespaces go with the thread.
        thread::scope(|scope| {
            let thread = scope.spawn(|| measure(&engines[turn.entry], turn, settings, &work));
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    })?;
    Ok(run)
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static str, Work)>, Failure> {
    if names.is_empty() {
        return Ok(ROWS.to_vec());
    }
    names
        .iter()
        .map(|name| {
            ROWS.into_iter().find(|(id, ..)| id == name).ok_or_else(|| {
                let known: Vec<&str> = ROWS.iter().map(|(id, ..)| *id).collect();
                Failure::Usage(format!("unknown row `{name}`: known are {}", known.join(", ")))
            })
        })
        .collect()
}

/// Each program with each stack that it has.
fn engines<'a>(context: &'a Context, settings: &Settings) -> Result<Vec<Engine<'a>>, Failure> {
    let mut engines = Vec::new();
    for program in &context.programs {
        match program.kind {
            Kind::HevSocks5Tunnel | Kind::Tun2proxy | Kind::Tun2socks => {
                engines.push(Engine { name: program.name.clone(), program, stack: None });
            }
            Kind::SingBox => {
                let asked = !settings.stacks.is_empty();
                let stacks: Vec<String> =
                    if asked { settings.stacks.clone() } else { STACKS.map(str::to_owned).to_vec() };
                for stack in stacks {
                    let name = format!("{} {stack}", program.name);
                    let engine = Engine { name, program, stack: Some(stack) };
                    if asked || engine.has_stack(context.work_dir.path(), settings.mtu)? {
                        engines.push(engine);
                    }
                }
            }
            _ => return Err(Failure::Usage(format!("`{}` has no TUN engine", program.name))),
        }
    }
    Ok(engines)
}

/// A configuration file as its program reads it.
enum Config {
    Json(Value),
    Text(String),
}

impl Config {
    fn text(&self) -> String {
        match self {
            Self::Json(value) => format!("{value:#}\n"),
            Self::Text(text) => text.clone(),
        }
    }

    fn shown(self) -> Value {
        match self {
            Self::Json(value) => value,
            Self::Text(text) => json!(text),
        }
    }
}

impl Engine<'_> {
    /// Whether the program says that it can run this stack. The one that is every program's own needs no asking.
    fn has_stack(&self, folder: &Path, mtu: u32) -> Result<bool, Failure> {
        if self.stack.as_deref() == Some(STACKS[0]) {
            return Ok(true);
        }
        let file = folder.join("check.json");
        let (config, _) = self.setup(SocketAddr::from((FAR, 1080)), mtu, &file);
        let text = config.map(|config| config.text()).unwrap_or_default();
        fs::write(&file, text).map_err(Failure::file("cannot write", &file))?;
        let output = Command::new(&self.program.path).args(["check", "-c"]).arg(&file).output();
        let output = output.map_err(Failure::io(format!("cannot run {}", self.program.path.display())))?;
        let said = [output.stdout, output.stderr].concat();
        Ok(output.status.success() && !String::from_utf8_lossy(&said).contains("not built"))
    }

    /// Its configuration, where it has a file, and its arguments.
    fn setup(&self, server: SocketAddr, mtu: u32, file: &Path) -> (Option<Config>, Vec<String>) {
        let words = |text: String| text.split(' ').map(str::to_owned).collect();
        match self.program.kind {
            Kind::HevSocks5Tunnel => {
                // Without pipelining its greeting waits in the kernel for 200 ms, for more to go with it.
                let text = format!(
                    "tunnel:\n  name: {DEVICE}\n  mtu: {mtu}\n  multi-queue: false\n  ipv4: 198.18.0.1\n\
                     socks5:\n  address: {}\n  port: {}\n  udp: 'udp'\n  pipeline: true\n\
                     misc:\n  log-level: warn\n  limit-nofile: 65535\n",
                    server.ip(),
                    server.port()
                );
                (Some(Config::Text(text)), vec![file.display().to_string()])
            }
            Kind::Tun2proxy => {
                let arguments = format!(
                    "--tun {DEVICE} --proxy socks5://{server} --mtu {mtu} --verbosity error --max-sessions 20000"
                );
                (None, words(arguments))
            }
            Kind::Tun2socks => (
                None,
                words(format!(
                    "--device tun://{DEVICE} --proxy socks5://{server} --mtu {mtu} --loglevel error"
                )),
            ),
            _ => {
                let config = json!({
                    "log": { "level": "error" },
                    "inbounds": [{
                        "type": "tun", "tag": "tun", "interface_name": DEVICE, "address": [DEVICE_ADDRESS], "mtu": mtu,
                        "auto_route": false, "stack": self.stack,
                    }],
                    "outbounds": [{
                        "type": "socks", "tag": "out", "server": server.ip(), "server_port": server.port(),
                    }],
                });
                let arguments = ["run", "-c"].map(str::to_owned).into_iter();
                (Some(Config::Json(config)), arguments.chain([file.display().to_string()]).collect())
            }
        }
    }

    /// Starts it and waits for its device, which then gets the route.
    fn start(&self, server: SocketAddr, mtu: u32, folder: &Path) -> Result<(Process, Instant), Failure> {
        let file = folder.join("config");
        let (config, arguments) = self.setup(server, mtu, &file);
        if let Some(config) = config {
            fs::write(&file, config.text()).map_err(Failure::file("cannot write", &file))?;
        }
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.arguments).args(arguments);
        let began = Instant::now();
        let process = Process::spawn(&self.name, &mut command, &folder.join("log"))?;
        while iface::index(DEVICE).is_err() {
            process.check()?;
            if began.elapsed() > START {
                return Err(process.start_failure("it made no device"));
            }
            thread::sleep(Duration::from_micros(50));
        }
        let there = Instant::now();
        while !is_up()? && there.elapsed() < SET_UP {
            thread::sleep(Duration::from_micros(50));
        }
        // What an engine has set up already stays as it is; an address of its own may be any.
        let own = Prefix { ip: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), len: 30 };
        let led = lead_into(DEVICE, (!is_up()?).then_some(own), INTO, mtu);
        led.map_err(Failure::io("cannot lead traffic into the device"))?;
        Ok((process, began))
    }
}

fn is_up() -> Result<bool, Failure> {
    let interfaces = iface::interfaces().map_err(Failure::io("cannot list network interfaces"))?;
    Ok(interfaces.iter().any(|interface| interface.name == DEVICE && interface.up))
}

fn measure(
    engine: &Engine<'_>,
    turn: &Turn,
    settings: &Settings,
    rows: &[Work],
) -> Result<Vec<Result<Values, Failure>>, Failure> {
    let network = Network::create(Wire::Veth)?;
    let target = network.far(|| Target::start_socks(FAR, 16))??;
    let (process, began) = engine.start(target.address(), settings.mtu, &turn.folder)?;
    // Another address each round: the kernel remembers closed connections of the one before for a minute, and there are
    // only so many ports.
    let [_, _, _, last] = FAR.octets();
    let address = Ipv4Addr::new(198, 19, turn.round as u8, last);
    let pid = process.pid();
    let chain = Chain::around(process, None, SocketAddr::from((address, 80)));
    chain.wait_until_ready()?;
    let bench = Bench { chain, target: &target, settings, pid, address, started: began.elapsed(), turn };
    let mut values = Vec::with_capacity(rows.len());
    for work in rows {
        let outcome = bench.row(*work);
        // A row may fail alone, but not with the engine.
        bench.chain.check()?;
        values.push(outcome);
    }
    Ok(values)
}

/// A running engine and what it takes to measure it.
struct Bench<'a> {
    chain: Chain,
    target: &'a Target,
    settings: &'a Settings,
    pid: u32,
    address: Ipv4Addr,
    /// How long the start took.
    started: Duration,
    turn: &'a Turn,
}

impl Bench<'_> {
    fn row(&self, work: Work) -> Result<Values, Failure> {
        match work {
            Work::Startup => Ok(vec![("ms", self.started.as_secs_f64() * 1e3)]),
            Work::Idle => Ok(self.idle()),
            Work::TcpFlows => self.tcp_flows(),
            Work::UdpFlows => self.udp_flows(),
            Work::Bulk(direction, streams) => self.bulk(direction, streams),
            Work::Exchanges { connections, size } => {
                let window = self.settings.window;
                exchanges::load(&self.chain, connections, size, self.settings.warm_up)?;
                let outcome = exchanges::load(&self.chain, connections, size, window)?;
                Ok(self.transactions(&outcome.latencies, outcome.time, outcome.cpu))
            }
            Work::Connections => {
                requests::load(&self.chain, 1, Pace::Full, self.settings.warm_up)?;
                let outcome = requests::load(&self.chain, 1, Pace::Full, self.settings.window)?;
                let cpu = outcome.cpu.iter().sum();
                Ok(self.transactions(&outcome.latencies, outcome.time, cpu))
            }
            Work::Datagrams { train } => self.datagrams(train),
        }
    }

    fn memory(&self) -> Memory {
        Memory::of(self.pid).unwrap_or_default()
    }

    fn idle(&self) -> Values {
        thread::sleep(SETTLE);
        let mut values = vec![("mib", mib(self.memory().resident))];
        if self.turn.round == 0 {
            let before = wake_ups(self.pid);
            thread::sleep(self.settings.idle);
            let woken = wake_ups(self.pid).saturating_sub(before) as f64;
            values.push(("wake_ups", woken * 20.0 / self.settings.idle.as_secs_f64()));
        }
        values
    }

    fn tcp_flows(&self) -> Result<Values, Failure> {
        let count = self.settings.flows;
        let before = self.memory().resident;
        let open = || -> std::io::Result<TcpStream> {
            let mut stream = self.chain.connect()?;
            stream.write_all(&Header { op: Op::Hold, stream: 0, length: 0 }.encode())?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        };
        // Some at a time: what is measured is what flows hold, not how fast they begin.
        let flows: Vec<std::io::Result<TcpStream>> = thread::scope(|scope| {
            let share = |worker| (worker..count).step_by(OPENERS).count();
            let openers: Vec<_> = (0..OPENERS)
                .map(|worker| scope.spawn(move || (0..share(worker)).map(|_| open()).collect::<Vec<_>>()))
                .collect();
            openers.into_iter().flat_map(|opener| opener.join().unwrap_or_default()).collect()
        });
        let failed: Vec<&std::io::Error> = flows.iter().filter_map(|flow| flow.as_ref().err()).collect();
        if let Some(first) = failed.first() {
            return Err(Failure::Streams { count: failed.len(), of: count, first: first.to_string() });
        }
        thread::sleep(SETTLE);
        let added = self.memory().resident.saturating_sub(before);
        drop(flows);
        self.target.release_held();
        Ok(vec![("mib", mib(added))])
    }

    fn udp_flows(&self) -> Result<Values, Failure> {
        let before = self.memory().resident;
        let count = self.settings.flows;
        let target = SocketAddr::from((self.address, 90));
        let flows =
            open_flows(target, count, Duration::from_secs(5)).map_err(Failure::io("cannot open flows"))?;
        thread::sleep(SETTLE);
        let added = self.memory().resident.saturating_sub(before);
        if flows.len() < count {
            let first = "no datagram came back".to_owned();
            return Err(Failure::Streams { count: count - flows.len(), of: count, first });
        }
        Ok(vec![("mib", mib(added))])
    }

    fn bulk(&self, direction: Direction, streams: usize) -> Result<Values, Failure> {
        let bulk = Bulk::start(&self.chain, self.target, streams, direction)?;
        let measured = bulk.measure(self.settings.warm_up, self.settings.window)?;
        let cpu: Duration = measured.cpu.iter().sum();
        let gigabytes = measured.bytes as f64 / 1e9;
        let mut values = self.used(cpu, measured.time);
        values.extend([
            ("rate", gigabytes * 8.0 / measured.time.as_secs_f64()),
            ("per_cpu", gigabytes / cpu.as_secs_f64()),
            ("softirq_cpu", measured.softirq_cpu.as_secs_f64() / measured.time.as_secs_f64() * 100.0),
        ]);
        Ok(values)
    }

    fn transactions(&self, latencies: &[f64], time: Duration, cpu: Duration) -> Values {
        let thousands = latencies.len() as f64 / 1e3;
        let mut values = self.used(cpu, time);
        values.extend([
            ("rate", thousands / time.as_secs_f64()),
            ("per_cpu", thousands / cpu.as_secs_f64()),
            ("p50", percentile(latencies, 0.5)),
            ("p99", percentile(latencies, 0.99)),
        ]);
        values
    }

    fn datagrams(&self, train: usize) -> Result<Values, Failure> {
        let load = Load { rate: RATE, size: DATAGRAM, train };
        let run = |time| {
            let target = SocketAddr::from((self.address, 91));
            load.run(target, time).map_err(Failure::io("cannot send datagrams"))
        };
        run(self.settings.warm_up)?;
        let before = CpuSample::take(self.pid).unwrap_or_default();
        let outcome = run(self.settings.window)?;
        let cpu = CpuSample::take(self.pid).unwrap_or_default().since(&before);
        let echoed = outcome.echoed as f64;
        let mut values = self.used(cpu, outcome.time);
        values.extend([
            ("rate", echoed * 100.0 / outcome.sent.max(1) as f64),
            ("per_cpu", echoed / 1e3 / cpu.as_secs_f64().max(1e-3)),
        ]);
        Ok(values)
    }

    fn used(&self, cpu: Duration, time: Duration) -> Values {
        vec![
            ("engine_cpu", cpu.as_secs_f64() / time.as_secs_f64() * 100.0),
            ("peak", mib(self.memory().peak)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_row_gets_the_list_of_known_ones() {
        let message = chosen(&["tcp-sideways".into()]).err().unwrap().to_string();
        assert!(message.starts_with("unknown row `tcp-sideways`: known are startup, idle, "), "{message}");
        assert_eq!(chosen(&[]).unwrap().len(), ROWS.len());
        assert_eq!(chosen(&["crr".into()]).unwrap()[0].2, Work::Connections);
    }

    #[test]
    fn engines_are_told_the_same() {
        let program = |kind| Program {
            name: "x".into(),
            path: "/x".into(),
            kind,
            server: None,
            arguments: Vec::new(),
            version: String::new(),
        };
        for kind in [Kind::SingBox, Kind::HevSocks5Tunnel, Kind::Tun2proxy, Kind::Tun2socks] {
            let program = program(kind);
            let engine = Engine { name: "x".into(), program: &program, stack: Some("gvisor".into()) };
            let (config, arguments) = engine.setup(SocketAddr::from((FAR, 1080)), 8500, Path::new("/f"));
            let text = config.map(|config| config.text()).unwrap_or_default() + &arguments.join(" ");
            for part in [DEVICE, "10.99.0.2", "1080", "8500"] {
                assert!(text.contains(part), "{kind:?}: {text}");
            }
        }
    }
}
