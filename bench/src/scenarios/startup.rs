//! `startup`: how long a program takes from its start until it accepts connections, and what it then occupies.

use std::thread;
use std::time::Duration;

use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::plan::{Plan, Round, Values};
use crate::procfs::CpuSample;
use crate::protocols::Protocol;
use crate::results::{Better, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;

/// How often, and with which configurations.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    pub(crate) rounds: usize,
}

/// After this long a program that nobody uses has settled.
const SETTLE: Duration = Duration::from_millis(300);

/// Measures; a round is a start.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("listening", "start to listening, ms", Better::Lower, 2).main(),
        Metric::new("resident", "RSS after start, MiB", Better::Lower, 1).main(),
        Metric::new("anonymous", "of that heap and stacks, MiB", Better::Lower, 1),
        Metric::new("cpu", "CPU-ms for the start", Better::Lower, 1),
    ];
    let mut run = Run::begin("startup", &context.programs, metrics);
    let plan = Plan {
        protocols: &settings.protocols,
        parts: vec![("start".into(), "start".into())],
        contenders: &Contender::all(&context.programs, false),
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    plan.run(&mut run, |round| Ok(vec![measure(round)?]))?;
    Ok(run)
}

fn measure(round: &Round<'_>) -> Result<Values, Failure> {
    let target = Target::start(1)?;
    let chain = Chain::spawn(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
    let listening = chain.time_to_listen()?;
    thread::sleep(SETTLE);
    let memory = chain.memory()?.client.unwrap_or_default();
    let cpu = chain.cpu()?.client.unwrap_or_default().since(&CpuSample::default());
    Ok(vec![
        ("listening", listening.as_secs_f64() * 1e3),
        ("resident", mib(memory.resident)),
        ("anonymous", mib(memory.anonymous)),
        ("cpu", cpu.as_secs_f64() * 1e3),
    ])
}
