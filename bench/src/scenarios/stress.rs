//! `stress`: what many connections do to a program's memory, while they are there and after they have gone.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use crate::bulk::{Bulk, Direction};
use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::plan::{Plan, Round, Values};
use crate::procfs::Memory;
use crate::protocols::Protocol;
use crate::results::{Better, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;
use crate::wire::{Header, Op};

/// How many and how long.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    pub(crate) cross: bool,
    /// Connections that stand open without traffic.
    pub(crate) idle: usize,
    /// Connections that all transfer at once.
    pub(crate) loaded: usize,
    /// How long they do.
    pub(crate) load: Duration,
    /// How long the program is left alone afterwards.
    pub(crate) reclaim: Duration,
    pub(crate) rounds: usize,
}

/// After this long without traffic a program has settled.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures. Where a protocol has two ends, memory is the sum of both programs.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("start", "RSS after start, MiB", Better::Lower, 1).main(),
        Metric::new("idle_added", "idle connections add, MiB", Better::Lower, 1).main(),
        Metric::new("idle_each", "KiB each", Better::Lower, 1),
        Metric::new("loaded", "RSS under load, MiB", Better::Lower, 1).main(),
        Metric::new("peak", "peak, MiB", Better::Lower, 1).main(),
        Metric::new("closed", "RSS 1 s after, MiB", Better::Lower, 1),
        Metric::new("reclaimed", "RSS at the end, MiB", Better::Lower, 1).main(),
        Metric::new("heap_start", "heap after start, MiB", Better::Lower, 1),
        Metric::new("heap_loaded", "heap under load, MiB", Better::Lower, 1),
        Metric::new("heap_reclaimed", "heap at the end, MiB", Better::Lower, 1),
    ];
    let mut run = Run::begin("stress", &context.programs, metrics);
    run.set("idle connections", settings.idle);
    run.set("loaded connections", settings.loaded);
    run.set("load, s", settings.load.as_secs_f64());
    run.set("left alone, s", settings.reclaim.as_secs_f64());
    let title = format!("{} idle, then {} loaded", settings.idle, settings.loaded);
    let plan = Plan {
        protocols: &settings.protocols,
        parts: vec![("memory".into(), title)],
        contenders: &Contender::all(&context.programs, settings.cross),
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    plan.run(&mut run, |round| Ok(vec![measure(round, settings)?]))?;
    Ok(run)
}

fn measure(round: &Round<'_>, settings: &Settings) -> Result<Values, Failure> {
    let target = Target::start(settings.loaded)?;
    let chain = Chain::start(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
    let settled = |time: Duration| {
        thread::sleep(time);
        memory(&chain)
    };
    let start = settled(SETTLE)?;

    let connections = open_idle(&chain, settings.idle)?;
    let idle = settled(SETTLE)?;
    drop(connections);
    target.release_held();
    thread::sleep(SETTLE);

    let bulk = Bulk::start(&chain, &target, settings.loaded, Direction::Down)?;
    bulk.run_for(settings.load)?;
    let loaded = memory(&chain)?;
    drop(bulk);
    let closed = settled(SETTLE)?;
    let reclaimed = settled(settings.reclaim)?;
    chain.check()?;

    let idle_added = idle.resident.saturating_sub(start.resident);
    Ok(vec![
        ("start", mib(start.resident)),
        ("idle_added", mib(idle_added)),
        ("idle_each", idle_added as f64 / 1024.0 / settings.idle as f64),
        ("loaded", mib(loaded.resident)),
        ("peak", mib(reclaimed.peak)),
        ("closed", mib(closed.resident)),
        ("reclaimed", mib(reclaimed.resident)),
        ("heap_start", mib(start.anonymous)),
        ("heap_loaded", mib(loaded.anonymous)),
        ("heap_reclaimed", mib(reclaimed.anonymous)),
    ])
}

/// Connections that have reached the target and say nothing.
fn open_idle(chain: &Chain, count: usize) -> Result<Vec<std::net::TcpStream>, Failure> {
    let open = || {
        let mut stream = chain.connect()?;
        stream.write_all(&Header { op: Op::Hold, stream: 0, length: 0 }.encode())?;
        stream.read_exact(&mut [0])?;
        Ok(stream)
    };
    (0..count)
        .map(|number| {
            open().map_err(|error: std::io::Error| Failure::Streams {
                count: count - number,
                of: count,
                first: error.to_string(),
            })
        })
        .collect()
}

/// Memory of all programs of the chain together.
fn memory(chain: &Chain) -> Result<Memory, Failure> {
    let sum = |total: Memory, part: &Memory| Memory {
        resident: total.resident + part.resident,
        peak: total.peak + part.peak,
        anonymous: total.anonymous + part.anonymous,
    };
    Ok(chain.memory()?.iter().fold(Memory::default(), sum))
}
