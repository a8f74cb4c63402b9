//! `connect`: short connections, each one small request and answer, at full load and at a fixed moderate load.

use std::time::Duration;

use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::plan::{Plan, Round, Values};
use crate::protocols::Protocol;
use crate::requests::{self, Outcome, Pace};
use crate::results::{Better, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::stats::percentile;
use crate::target::Target;

/// How much and how long.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    pub(crate) cross: bool,
    pub(crate) workers: usize,
    /// Requests a second of the moderate load.
    pub(crate) rate: f64,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("rate", "connections/s", Better::Higher, 0).main(),
        Metric::new("cpu", "CPU-s per 10,000", Better::Lower, 2).main(),
        Metric::new("p50", "p50 ms", Better::Lower, 2).main(),
        Metric::new("p90", "p90 ms", Better::Lower, 2),
        Metric::new("p99", "p99 ms", Better::Lower, 2).main(),
        Metric::new("max", "max ms", Better::Lower, 1),
        Metric::new("peak", "peak MiB", Better::Lower, 1),
    ];
    let mut run = Run::begin("connect", &context.programs, metrics);
    run.set("workers", settings.workers);
    run.set("request, bytes", crate::wire::REQUEST);
    run.set("answer, bytes", requests::ANSWER);
    run.set("warm-up, s", settings.warm_up.as_secs_f64());
    run.set("window, s", settings.window.as_secs_f64());
    let plan = Plan {
        protocols: &settings.protocols,
        parts: vec![
            ("full".into(), format!("{} workers at full load", settings.workers)),
            ("paced".into(), format!("{} connections/s", settings.rate)),
        ],
        contenders: &Contender::all(&context.programs, settings.cross),
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    plan.run(&mut run, |round| measure(round, settings))?;
    Ok(run)
}

fn measure(round: &Round<'_>, settings: &Settings) -> Result<Vec<Values>, Failure> {
    let target = Target::start(settings.workers)?;
    let chain = Chain::start(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
    let load = |pace, time| requests::load(&chain, settings.workers, pace, time);
    load(Pace::Full, settings.warm_up)?;
    let mut full = values(&load(Pace::Full, settings.window)?);
    let mut paced = values(&load(Pace::PerSecond(settings.rate), settings.window)?);
    // The moderate load is given, so its rate is no result.
    paced.retain(|(key, _)| *key != "rate");
    let peak = chain.memory()?.iter().map(|memory| memory.peak).sum();
    full.push(("peak", mib(peak)));
    Ok(vec![full, paced])
}

fn values(outcome: &Outcome) -> Values {
    let count = outcome.latencies.len() as f64;
    let cpu: Duration = outcome.cpu.iter().sum();
    let at = |fraction| percentile(&outcome.latencies, fraction);
    vec![
        ("rate", count / outcome.time.as_secs_f64()),
        ("cpu", cpu.as_secs_f64() / count * 1e4),
        ("p50", at(0.5)),
        ("p90", at(0.9)),
        ("p99", at(0.99)),
        ("max", at(1.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::PerEnd;

    #[test]
    fn units_of_a_load() {
        let outcome = Outcome {
            time: Duration::from_secs(2),
            latencies: (1..=1000).map(f64::from).collect(),
            cpu: PerEnd {
                client: Some(Duration::from_millis(300)),
                server: Some(Duration::from_millis(100)),
            },
        };
        let values = values(&outcome);
        assert_eq!(values[..3], [("rate", 500.0), ("cpu", 4.0), ("p50", 500.0)]);
        assert_eq!(values[4], ("p99", 990.0));
    }
}
