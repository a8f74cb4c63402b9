//! `path`: goodput over emulated paths, by protocol and congestion control.
//!
//! ```text
//! near namespace                       a path: bottleneck, queue, delay, loss          far namespace
//! load generator ─SOCKS─▶ client ═══════════════ protocol ═══════════════▶ server ─TCP─▶ load generator
//! ```
//!
//! Paths of this kind leave the processors mostly idle, so several are measured at a time, each in namespaces of its own.
//! All programs of a cell get the same dice.

use std::collections::BTreeMap;
use std::fs;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use culvert_path::{Loss, Shape};

use crate::bulk::{Bulk, Direction, Stalls};
use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::network::{Network, Wire};
use crate::plan::{Values, note, note_configs};
use crate::progress::Progress;
use crate::protocols::{Floor, Protocol};
use crate::results::{Better, Entry, Metric, Row, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;

/// Which paths, how much and how long.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    /// Milliseconds.
    pub(crate) round_trips: Vec<u16>,
    /// Percent.
    pub(crate) losses: Vec<f64>,
    /// Mbit/s.
    pub(crate) bandwidths: Vec<u32>,
    pub(crate) streams: usize,
    /// Paths at a time.
    pub(crate) parallel: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// How long all streams together may stand still.
const PATIENCE: Duration = Duration::from_secs(20);
const SEED: u64 = 0x5eed;
/// Of TCP, where the kernel has them; the others bring their own.
const KERNEL: [&str; 2] = ["cubic", "bbr"];
const KERNEL_CHOICE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// One path and who goes over it how.
struct Cell {
    protocol: &'static Protocol,
    /// TCP's congestion control.
    kernel: Option<&'static str>,
    bandwidth: u32,
    round_trip: u16,
    loss: f64,
}

impl Cell {
    fn id(&self) -> String {
        let (name, kernel) = (self.protocol.name, self.kernel.map(|name| format!("-{name}")));
        let kernel = kernel.unwrap_or_default();
        format!("{name}{kernel}/{}mbit-{}ms-{}", self.bandwidth, self.round_trip, self.loss)
    }

    fn title(&self) -> String {
        let (name, kernel) = (self.protocol.title, self.kernel.map(|name| format!(" ({name})")));
        let kernel = kernel.unwrap_or_default();
        format!("{name}{kernel}, {} Mbit/s, {} ms, {} %", self.bandwidth, self.round_trip, self.loss)
    }

    fn shape(&self) -> Shape {
        let round_trip = Duration::from_millis(self.round_trip.into());
        let shape = Shape::bottleneck(u64::from(self.bandwidth) * 1_000_000, round_trip);
        if self.loss > 0.0 { shape.losing(Loss::Random(self.loss / 100.0)) } else { shape }
    }
}

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("goodput", "Mbit/s", Better::Higher, 1).main(),
        Metric::new("overflowed", "dropped at the bottleneck %", Better::Lower, 2).main(),
        Metric::new("stood_still", "streams that stood still", Better::Lower, 0),
        Metric::new("cpu", "CPU-s/GB", Better::Lower, 2),
        Metric::new("client_peak", "client peak MiB", Better::Lower, 1),
        Metric::new("server_peak", "server peak MiB", Better::Lower, 1),
    ];
    let mut run = Run::begin("path", &context.programs, metrics);
    run.set("streams", settings.streams);
    run.set("rounds", settings.rounds);
    run.set("warm-up, s", settings.warm_up.as_secs_f64());
    run.set("window, s", settings.window.as_secs_f64());
    run.set("paths at a time", settings.parallel);
    run.set("direction", "down");
    run.set("queue", "one round trip at the bottleneck's rate, at least 64 KiB");
    for protocol in &settings.protocols {
        note_configs(&mut run, protocol);
    }
    let cells = cells(settings);
    let contenders = Contender::all(&context.programs, false);
    let entries = || contenders.iter().map(|contender| Entry::new(&contender.name)).collect::<Vec<_>>();
    let jobs: Vec<Job> = jobs(cells.len(), settings.rounds, contenders.len());
    let (next, progress) = (AtomicUsize::new(0), Mutex::new(Progress::new(jobs.len())));
    let outcomes = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..settings.parallel {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (cell, contender) = (&cells[job.cell], &contenders[job.entry]);
                    lock(&progress).step(&format!("{}, {}", cell.title(), contender.name));
                    let folder =
                        context.work_dir.path().join(format!("{}-{}-{}", job.cell, job.round, job.entry));
                    // The namespaces go with the thread.
                    let outcome = thread::scope(|scope| {
                        let measuring =
                            scope.spawn(|| measure(cell, contender, settings, &folder, job.round));
                        measuring.join().unwrap_or_else(|panic| resume_unwind(panic))
                    });
                    if let Err(failure) = &outcome {
                        note(&lock(&progress), &cell.title(), &contender.name, failure);
                    }
                    lock(&outcomes).insert(*job, outcome);
                }
            });
        }
    });
    let mut rows: Vec<Row> =
        cells.iter().map(|cell| Row { id: cell.id(), title: cell.title(), entries: entries() }).collect();
    for (job, outcome) in std::mem::take(&mut *lock(&outcomes)) {
        let entry = &mut rows[job.cell].entries[job.entry];
        match outcome {
            Ok(values) => entry.add(&values),
            Err(failure) => entry.take_out(&failure),
        }
    }
    run.rows = rows;
    Ok(run)
}

/// One measurement. Ordered as they are to be told.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Job {
    cell: usize,
    round: usize,
    entry: usize,
}

/// The contenders of a cell next to each other.
fn jobs(cells: usize, rounds: usize, entries: usize) -> Vec<Job> {
    let rounds = (0..rounds).flat_map(|round| (0..cells).map(move |cell| (round, cell)));
    rounds.flat_map(|(round, cell)| (0..entries).map(move |entry| Job { cell, round, entry })).collect()
}

fn cells(settings: &Settings) -> Vec<Cell> {
    // Those that a namespace may choose, and the one that it is born with.
    let list = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}congestion_control"));
    let permitted = ["allowed_", ""].map(|name| list(name).unwrap_or_default()).join(" ");
    let known = |name: &&str| permitted.split_ascii_whitespace().any(|word| word == *name);
    let mut cells = Vec::new();
    for protocol in &settings.protocols {
        // What has no floor brings its own packets.
        let kernels: Vec<Option<&str>> = if protocol.floor == Floor::Unknown {
            vec![None]
        } else {
            KERNEL.into_iter().filter(known).map(Some).collect()
        };
        for kernel in kernels {
            for bandwidth in &settings.bandwidths {
                for round_trip in &settings.round_trips {
                    for loss in &settings.losses {
                        let (bandwidth, round_trip, loss) = (*bandwidth, *round_trip, *loss);
                        cells.push(Cell { protocol, kernel, bandwidth, round_trip, loss });
                    }
                }
            }
        }
    }
    cells
}

fn measure(
    cell: &Cell,
    contender: &Contender,
    settings: &Settings,
    folder: &PathBuf,
    round: usize,
) -> Result<Values, Failure> {
    fs::create_dir_all(folder).map_err(Failure::file("cannot create", folder))?;
    let network = Network::create(Wire::Path(cell.shape(), SEED + round as u64))?;
    if let Some(kernel) = cell.kernel {
        let choose =
            || fs::write(KERNEL_CHOICE, kernel).map_err(Failure::io("cannot choose a congestion control"));
        choose()?;
        network.far(choose)??;
    }
    let target = network.far(|| Target::start(settings.streams))??;
    let place = Place { bandwidth: cell.bandwidth, ..Place::apart(&target, &network) };
    let chain = Chain::start(folder, cell.protocol, contender, &place)?;
    let bulk = Bulk::start_with(&chain, &target, settings.streams, Direction::Down, Stalls::Count(PATIENCE))?;
    let counts = || network.link().map(|link| link.counts()[1]).unwrap_or_default();
    let before = counts();
    let measured = bulk.measure(settings.warm_up, settings.window)?;
    let after = counts();
    drop(bulk);
    let memory = chain.memory()?;
    let cpu: Duration = measured.cpu.iter().sum();
    let offered = (after.offered - before.offered).max(1) as f64;
    let mut values = vec![
        ("goodput", measured.bytes as f64 * 8.0 / 1e6 / measured.time.as_secs_f64()),
        ("overflowed", (after.overflowed - before.overflowed) as f64 * 100.0 / offered),
        ("stood_still", measured.stood_still as f64),
        ("cpu", cpu.as_secs_f64() / (measured.bytes.max(1) as f64 / 1e9)),
    ];
    values.extend(memory.client.map(|client| ("client_peak", mib(client.peak))));
    values.extend(memory.server.map(|server| ("server_peak", mib(server.peak))));
    drop(chain);
    fs::remove_dir_all(folder).map_err(Failure::file("cannot remove", folder))?;
    Ok(values)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::choose_or;

    #[test]
    fn the_grid_is_every_combination() {
        let settings = Settings {
            protocols: choose_or(&[], &["hysteria2", "tuic"]).unwrap(),
            round_trips: vec![50, 300],
            losses: vec![0.0, 1.0, 5.0],
            bandwidths: vec![100],
            streams: 4,
            parallel: 2,
            rounds: 1,
            warm_up: Duration::ZERO,
            window: Duration::ZERO,
        };
        let cells = cells(&settings);
        assert_eq!(cells.len(), 12);
        assert_eq!(cells[5].id(), "hysteria2/100mbit-300ms-5");
        assert_eq!(cells[5].title(), "hysteria2, 100 Mbit/s, 300 ms, 5 %");
        assert_eq!(cells[5].shape().loss, Loss::Random(0.05));
        assert_eq!(cells[0].shape().loss, Loss::None);
        assert_eq!(jobs(2, 1, 2)[1], Job { cell: 0, round: 0, entry: 1 });
    }
}
