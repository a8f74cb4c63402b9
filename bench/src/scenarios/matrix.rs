//! `matrix`: bulk goodput through each protocol, down and up, with the processor time and memory it took.

use std::time::Duration;

use crate::bulk::{Bulk, Direction, Measured, verify_streams};
use crate::chain::{Chain, Contender, PerEnd, Place};
use crate::failure::Failure;
use crate::plan::{Plan, Round, Values};
use crate::protocols::Protocol;
use crate::results::{Better, DISTURBED_PERCENT, FOREIGN, Metric, Row, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;

/// How much and how long.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    /// Also every program as the client of every other.
    pub(crate) cross: bool,
    /// Also what the kernel costs, beside the plain connection's rows.
    pub(crate) floor: bool,
    pub(crate) streams: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// How often a window that others disturbed is measured again.
    pub(crate) repeats: usize,
}

/// Bytes of each stream and direction in an integrity check.
const VERIFY_BYTES: u64 = 16 << 20;

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let mut run = begin("matrix", context, settings);
    let mut contenders = Contender::all(&context.programs, settings.cross);
    if settings.floor {
        contenders.extend(Contender::floor());
    }
    plan(context, settings, &contenders).run(&mut run, |round| measure(round, settings))?;
    run.rows.iter_mut().for_each(add_multiples);
    Ok(run)
}

/// Adds each program's processor time as a multiple of the cheapest relay's, round by round.
fn add_multiples(row: &mut Row) {
    let references = row.entries.iter().filter(|entry| entry.reference);
    let costs = references.filter_map(|entry| Some((entry.spread("cpu")?.median, entry)));
    let Some((_, cheapest)) = costs.min_by(|(one, _), (other, _)| one.total_cmp(other)) else { return };
    let floor = cheapest.samples.get("cpu").cloned().unwrap_or_default();
    for entry in row.entries.iter_mut().filter(|entry| !entry.reference) {
        let costs = entry.samples.get("cpu").cloned().unwrap_or_default();
        let multiples = costs.iter().zip(&floor).map(|(cost, floor)| cost / floor).collect();
        entry.samples.insert("floor_multiple".to_owned(), multiples);
    }
}

/// Checks integrity and measures nothing: the rows of the run only say what failed.
pub(crate) fn verify(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let mut run = Run::begin(
        "matrix --verify",
        &context.programs,
        vec![Metric::new("bytes", "MB checked", Better::Neither, 0)],
    );
    run.set("streams", settings.streams);
    let contenders = Contender::all(&context.programs, settings.cross);
    let mut plan = plan(context, settings, &contenders);
    plan.parts = vec![("verify".into(), "both ways at once".into())];
    plan.run(&mut run, |round| {
        let target = Target::start(settings.streams)?;
        let chain = Chain::start(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
        verify_streams(&chain, &target, settings.streams, VERIFY_BYTES)?;
        Ok(vec![vec![("bytes", 2.0 * settings.streams as f64 * VERIFY_BYTES as f64 / 1e6)]])
    })?;
    Ok(run)
}

/// Only the floor: what kernel and cipher cost, as rows by themselves.
pub(crate) fn floor(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let mut run = begin("floor", context, settings);
    let mut contenders = Contender::floor();
    contenders.push(Contender::nothing());
    plan(context, settings, &contenders).run(&mut run, |round| measure(round, settings))?;
    Ok(run)
}

fn begin(scenario: &str, context: &Context, settings: &Settings) -> Run {
    let mut run = Run::begin(scenario, &context.programs, metrics());
    run.set("streams", settings.streams);
    run.set("warm-up, s", settings.warm_up.as_secs_f64());
    run.set("window, s", settings.window.as_secs_f64());
    run.set("repeats of a disturbed window, at most", settings.repeats);
    run
}

fn plan<'a>(context: &'a Context, settings: &'a Settings, contenders: &'a [Contender]) -> Plan<'a> {
    let part = |direction: Direction| (direction.name().to_owned(), direction.name().to_owned());
    Plan {
        protocols: &settings.protocols,
        parts: Direction::BOTH.map(part).to_vec(),
        contenders,
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    }
}

/// Both directions in one set of processes, so that their peak memory covers both.
fn measure(round: &Round<'_>, settings: &Settings) -> Result<Vec<Values>, Failure> {
    let target = Target::start(settings.streams)?;
    let chain = Chain::start(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
    let mut parts = Vec::new();
    for direction in Direction::BOTH {
        let bulk = Bulk::start(&chain, &target, settings.streams, direction)?;
        parts.push(values(&undisturbed(&bulk, settings)?));
    }
    let memory = chain.memory()?;
    for part in &mut parts {
        part.extend(memory.client.map(|client| ("client_peak", mib(client.peak))));
        part.extend(memory.server.map(|server| ("server_peak", mib(server.peak))));
    }
    Ok(parts)
}

/// Measures again while others disturb, a few times. Which windows are repeated depends on the others alone, not on what
/// was measured, so this favours nobody.
fn undisturbed(bulk: &Bulk<'_>, settings: &Settings) -> Result<Measured, Failure> {
    let mut measured = bulk.measure(settings.warm_up, settings.window)?;
    for _ in 0..settings.repeats {
        if measured.foreign_percent <= DISTURBED_PERCENT {
            break;
        }
        let again = bulk.measure(Duration::ZERO, settings.window)?;
        if again.foreign_percent < measured.foreign_percent {
            measured = again;
        }
    }
    Ok(measured)
}

fn metrics() -> Vec<Metric> {
    vec![
        Metric::new("goodput", "Gbit/s", Better::Higher, 2).main(),
        Metric::new("cpu", "CPU-s/GB", Better::Lower, 3).main(),
        Metric::new("cpu_softirq", "and ksoftirqd's, CPU-s/GB", Better::Lower, 3).main(),
        Metric::new("floor_multiple", "CPU as a multiple of the floor's", Better::Lower, 2),
        Metric::new("client_cpu", "client CPU-s/GB", Better::Lower, 3),
        Metric::new("server_cpu", "server CPU-s/GB", Better::Lower, 3),
        Metric::new("client_per_core", "client Mbit/s per core", Better::Higher, 0).detail(),
        Metric::new("server_per_core", "server Mbit/s per core", Better::Higher, 0).detail(),
        Metric::new("client_peak", "client peak MiB", Better::Lower, 1).main(),
        Metric::new("server_peak", "server peak MiB", Better::Lower, 1).main(),
        Metric::new("generator_cpu", "load generator CPU-s/GB", Better::Neither, 3),
        Metric::new(FOREIGN, "others' CPU %", Better::Neither, 1),
    ]
}

fn values(measured: &Measured) -> Values {
    let gigabytes = measured.bytes as f64 / 1e9;
    let per_gigabyte = |cpu: Duration| cpu.as_secs_f64() / gigabytes;
    let per_core = |cpu: Duration| 8000.0 / per_gigabyte(cpu);
    let mut values = vec![
        ("goodput", gigabytes * 8.0 / measured.time.as_secs_f64()),
        ("generator_cpu", per_gigabyte(measured.generator_cpu)),
        (FOREIGN, measured.foreign_percent),
    ];
    let PerEnd { client, server } = measured.cpu;
    if let Some(client) = client {
        let both = client + server.unwrap_or_default();
        values.extend([
            ("cpu", per_gigabyte(both)),
            ("cpu_softirq", per_gigabyte(both + measured.softirq_cpu)),
            ("client_per_core", per_core(client)),
        ]);
    }
    if let Some((client, server)) = client.zip(server) {
        values.extend([
            ("client_cpu", per_gigabyte(client)),
            ("server_cpu", per_gigabyte(server)),
            ("server_per_core", per_core(server)),
        ]);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Entry;

    fn value(values: &Values, key: &str) -> Option<f64> {
        values.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    #[test]
    fn units_of_a_window() {
        let measured = Measured {
            bytes: 2_000_000_000,
            time: Duration::from_secs(2),
            cpu: PerEnd {
                client: Some(Duration::from_millis(500)),
                server: Some(Duration::from_millis(1500)),
            },
            softirq_cpu: Duration::from_millis(200),
            generator_cpu: Duration::from_millis(100),
            foreign_percent: 0.0,
            stood_still: 0,
        };
        let values = values(&measured);
        assert_eq!(value(&values, "goodput"), Some(8.0));
        assert_eq!(value(&values, "cpu"), Some(1.0));
        assert_eq!(value(&values, "cpu_softirq"), Some(1.1));
        assert_eq!(value(&values, "client_cpu"), Some(0.25));
        assert_eq!(value(&values, "client_per_core"), Some(32_000.0));
        assert_eq!(value(&values, "generator_cpu"), Some(0.05));
    }

    #[test]
    fn multiples_are_of_the_cheapest_relay() {
        let entry = |reference: bool, cpu: &[f64]| {
            let mut entry = Entry { reference, ..Entry::new("x") };
            cpu.iter().for_each(|cpu| entry.add(&[("cpu", *cpu)]));
            entry
        };
        let entries = vec![entry(false, &[3.0, 2.0]), entry(true, &[9.0, 9.0]), entry(true, &[2.0, 1.0])];
        let mut row = Row { id: "r".into(), title: "r".into(), entries };
        add_multiples(&mut row);
        assert_eq!(row.entries[0].samples["floor_multiple"], [1.5, 2.0]);
        assert!(!row.entries[1].samples.contains_key("floor_multiple"));
    }

    #[test]
    fn one_program_has_no_server_columns() {
        let second = Duration::from_secs(1);
        let cpu = PerEnd { client: Some(second), server: None };
        let measured = Measured {
            bytes: 1,
            time: second,
            cpu,
            softirq_cpu: second,
            generator_cpu: second,
            foreign_percent: 0.0,
            stood_still: 0,
        };
        assert_eq!(value(&values(&measured), "server_cpu"), None);
    }
}
