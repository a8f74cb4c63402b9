//! `dns`: questions a second through a hijacked inbound, and how late the slowest one in a hundred is answered: from the
//! cache, from a name server on this machine, and behind ten thousand rules.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::plan::{Turns, Values};
use crate::process::Process;
use crate::procfs::{CpuSample, Memory};
use crate::programs::Program;
use crate::progress::Progress;
use crate::results::{Better, Entry, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::stats::percentile;

/// How much, how long, how often.
pub(crate) struct Settings {
    /// Clients, each with a socket and a thread of its own.
    pub(crate) clients: usize,
    /// Questions that each has under way.
    pub(crate) depth: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// What is asked, and of what.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// A hundred names again and again.
    Cached,
    /// Another name each time.
    Uncached,
    /// A hundred names again and again, past rules that do not match.
    Rules,
}

const LOADS: [(Load, &str, &str); 3] = [
    (Load::Cached, "cached", "cached answers"),
    (Load::Uncached, "uncached", "answers of a name server"),
    (Load::Rules, "rules", "cached answers behind 10,000 rules"),
];
/// Rules that do not match.
const RULES: usize = 10_000;
/// A question without an answer for this long is lost, and another takes its place.
const LOST: Duration = Duration::from_secs(1);
/// How long a program may take until it answers.
const START: Duration = Duration::from_secs(20);

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("rate", "answers/s", Better::Higher, 0).main(),
        Metric::new("p99", "p99 ms", Better::Lower, 3).main(),
        Metric::new("cpu", "CPU-µs per answer", Better::Lower, 2).main(),
        Metric::new("peak", "peak RSS, MiB", Better::Lower, 1).main(),
        Metric::new("median", "median ms", Better::Lower, 3),
        Metric::new("lost", "lost, %", Better::Lower, 3),
    ];
    let mut run = Run::begin("dns", &context.programs, metrics);
    run.set("clients", settings.clients);
    run.set("questions under way per client", settings.depth);
    run.set("rounds", settings.rounds);
    let upstream = Upstream::start()?;
    let mut progress = Progress::new(LOADS.len() * settings.rounds * context.programs.len());
    for (load, id, title) in LOADS {
        run.configs.insert(id.to_owned(), config(load, 5353, 53, 10));
        let turns = Turns {
            title,
            parts: vec![(id.to_owned(), title.to_owned())],
            entries: context.programs.iter().map(|program| Entry::new(&program.name)).collect(),
            rounds: settings.rounds,
            work_dir: context.work_dir.path(),
        };
        turns.run(&mut run, &mut progress, |turn| {
            let program = &context.programs[turn.entry];
            Ok(vec![Ok(measure(&turn.folder, program, load, &upstream, settings)?)])
        })?;
    }
    Ok(run)
}

/// The configuration; `rules` of them where rules are asked for.
fn config(load: Load, port: u16, upstream: u16, rules: usize) -> Value {
    let mut list = Vec::new();
    if load == Load::Rules {
        list.extend((0..rules).map(|number| {
            json!({ "domain_suffix": [format!("s{number}.example"), format!("t{number}.example")], "action": "reject" })
        }));
    }
    json!({
        "log": { "level": "error" },
        "dns": {
            "servers": [{ "type": "udp", "tag": "up", "server": "127.0.0.1", "server_port": upstream }],
            "rules": list
        },
        "inbounds": [{ "type": "direct", "tag": "in", "listen": "127.0.0.1", "listen_port": port }],
        "route": { "rules": [{ "action": "hijack-dns" }] }
    })
}

fn measure(
    folder: &Path,
    program: &Program,
    load: Load,
    upstream: &Upstream,
    settings: &Settings,
) -> Result<Values, Failure> {
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let address = free.map_err(Failure::io("cannot find a free port"))?;
    let path = folder.join("config.json");
    let text = config(load, address.port(), upstream.port, RULES).to_string();
    fs::write(&path, text).map_err(Failure::file("cannot write", &path))?;
    let process = Process::spawn(&program.name, &mut program.run(&path), &folder.join("log"))?;
    await_answer(&process, address)?;
    load_for(address, load, settings, settings.warm_up)?;
    let before = CpuSample::take(process.pid()).unwrap_or_default();
    let seen = load_for(address, load, settings, settings.window)?;
    let cpu = CpuSample::take(process.pid()).unwrap_or_default().since(&before);
    let peak = Memory::of(process.pid()).map_or(0, |memory| memory.peak);
    process.check()?;
    drop(process);
    if seen.delays.is_empty() {
        return Err(Failure::Usage("no question was answered".to_owned()));
    }
    let answers = seen.delays.len() as f64;
    Ok(vec![
        ("rate", answers / settings.window.as_secs_f64()),
        ("p99", percentile(&seen.delays, 0.99)),
        ("median", percentile(&seen.delays, 0.5)),
        ("cpu", cpu.as_secs_f64() * 1e6 / answers),
        ("peak", mib(peak)),
        ("lost", seen.lost as f64 * 100.0 / (answers + seen.lost as f64)),
    ])
}

/// Waits until the program answers at all.
fn await_answer(process: &Process, address: SocketAddr) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < START {
        process.check()?;
        let mut client = Client::new(address, Load::Cached)?;
        client.ask()?;
        if client.take(Duration::from_millis(100)).is_some() {
            return Ok(());
        }
    }
    Err(process.start_failure("it answered no question"))
}

/// What all clients have seen.
struct Seen {
    /// Milliseconds, ascending.
    delays: Vec<f64>,
    lost: usize,
}

fn load_for(address: SocketAddr, load: Load, settings: &Settings, time: Duration) -> Result<Seen, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..settings.clients {
        let (mut client, stop, depth) = (Client::new(address, load)?, Arc::clone(&stop), settings.depth);
        clients.push(thread::spawn(move || client.run(depth, &stop)));
    }
    thread::sleep(time);
    stop.store(true, Ordering::Relaxed);
    let mut seen = Seen { delays: Vec::new(), lost: 0 };
    for client in clients {
        let Ok(result) = client.join() else { return Err(Failure::Usage("a client broke".to_owned())) };
        let one = result?;
        seen.delays.extend(one.delays);
        seen.lost += one.lost;
    }
    seen.delays.sort_by(f64::total_cmp);
    Ok(seen)
}

/// One client with its questions.
struct Client {
    socket: UdpSocket,
    load: Load,
    next: u16,
    under_way: HashMap<u16, Instant>,
}

/// Numbers names that were never asked for.
static NAMES: AtomicU32 = AtomicU32::new(0);

impl Client {
    fn new(address: SocketAddr, load: Load) -> Result<Self, Failure> {
        let doing = "cannot open a client's socket";
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::io(doing))?;
        socket.connect(address).map_err(Failure::io(doing))?;
        Ok(Self { socket, load, next: 0, under_way: HashMap::new() })
    }

    fn run(&mut self, depth: usize, stop: &AtomicBool) -> Result<Seen, Failure> {
        let mut seen = Seen { delays: Vec::new(), lost: 0 };
        while !stop.load(Ordering::Relaxed) {
            while self.under_way.len() < depth {
                self.ask()?;
            }
            match self.take(Duration::from_millis(100)) {
                Some(delay) => seen.delays.push(delay.as_secs_f64() * 1e3),
                None => {
                    let before = self.under_way.len();
                    self.under_way.retain(|_, asked| asked.elapsed() < LOST);
                    seen.lost += before - self.under_way.len();
                }
            }
        }
        Ok(seen)
    }

    fn ask(&mut self) -> Result<(), Failure> {
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let name = match self.load {
            Load::Cached | Load::Rules => format!("n{}", id % 100),
            Load::Uncached => format!("u{}", NAMES.fetch_add(1, Ordering::Relaxed)),
        };
        let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
        for label in [name.as_str(), "test"] {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        self.under_way.insert(id, Instant::now());
        match self.socket.send(&message) {
            // A full buffer, or a program that is not there yet: the question is lost.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// How long the next answer took.
    fn take(&mut self, patience: Duration) -> Option<Duration> {
        let mut buffer = [0; 512];
        self.socket.set_read_timeout(Some(patience)).ok()?;
        let length = self.socket.recv(&mut buffer).ok()?;
        let [a, b, _, flags, ..] = buffer[..length] else { return None };
        let asked = self.under_way.remove(&u16::from_be_bytes([a, b]))?;
        // Only answers without an error count.
        (flags & 15 == 0).then(|| asked.elapsed())
    }
}

/// A name server that knows every name.
struct Upstream {
    port: u16,
}

impl Upstream {
    /// Serves on two threads for as long as this program runs.
    fn start() -> Result<Self, Failure> {
        let doing = "cannot start a name server";
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::io(doing))?;
        let port = socket.local_addr().map_err(Failure::io(doing))?.port();
        for _ in 0..2 {
            let socket = socket.try_clone().map_err(Failure::io(doing))?;
            thread::spawn(move || serve(&socket));
        }
        Ok(Self { port })
    }
}

fn serve(socket: &UdpSocket) {
    let mut buffer = [0; 512];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some(reply) = answer(&buffer[..length]) else { continue };
        let _ = socket.send_to(&reply, from);
    }
}

/// An address that holds for an hour.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let name = query.get(12..)?.iter().position(|byte| *byte == 0)?;
    let mut reply = query.get(..12 + name + 5)?.to_vec();
    (reply[2], reply[3]) = (0x81, 0x80);
    reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
    reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 1]);
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_name_server_understand_each_other() {
        let upstream = Upstream::start().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, upstream.port));
        let time = Duration::from_millis(50);
        let settings = Settings { clients: 2, depth: 4, rounds: 1, warm_up: time, window: time };
        for load in [Load::Cached, Load::Uncached] {
            let seen = load_for(address, load, &settings, time).unwrap();
            assert!(seen.delays.len() > 10 && seen.lost == 0, "{} answers", seen.delays.len());
            assert!(seen.delays.is_sorted());
        }
        assert_eq!(answer(b"short"), None);
    }
}
