//! `latency`: the time to fetch objects of three sizes over HTTP and HTTPS, a new connection each time.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::objects;
use crate::plan::{Plan, Round, Values};
use crate::protocols::Protocol;
use crate::results::{Better, Metric, Run};
use crate::scenarios::Context;
use crate::target::Target;

/// How often.
pub(crate) struct Settings {
    pub(crate) protocols: Vec<&'static Protocol>,
    pub(crate) cross: bool,
    /// Fetches of each object in a round.
    pub(crate) fetches: usize,
    pub(crate) rounds: usize,
}

/// Sizes of the objects, in bytes: a reply without content, a page, a picture.
const SIZES: [(usize, &str); 3] = [(162, "162 B"), (150_000, "150 KB"), (1_500_000, "1.5 MB")];

const SCHEMES: [&str; 2] = ["http", "https"];

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("mean", "mean ms", Better::Lower, 3).main(),
        Metric::new("min", "min ms", Better::Lower, 3).main(),
        Metric::new("max", "max ms", Better::Lower, 3),
        Metric::new("connect", "connected after ms", Better::Lower, 3),
        Metric::new("first_byte", "first byte after ms", Better::Lower, 3),
    ];
    let mut run = Run::begin("latency", &context.programs, metrics);
    run.set("fetches per object and round", settings.fetches);
    let mut contenders = Contender::all(&context.programs, settings.cross);
    contenders.push(Contender::nothing());
    let plan = Plan {
        protocols: &settings.protocols,
        parts: SCHEMES.iter().flat_map(|scheme| SIZES.map(|size| part(scheme, size))).collect(),
        contenders: &contenders,
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    plan.run(&mut run, |round| measure(round, settings))?;
    Ok(run)
}

fn part(scheme: &str, (size, title): (usize, &str)) -> (String, String) {
    (format!("{scheme}-{size}"), format!("{scheme} {title}"))
}

fn measure(round: &Round<'_>, settings: &Settings) -> Result<Vec<Values>, Failure> {
    let target = Target::start(1)?;
    let chain = Chain::start(&round.folder, round.protocol, round.contender, &Place::here(&target))?;
    let mut parts = Vec::new();
    for tls in [None, Some(target.client_tls())] {
        for (size, _) in SIZES {
            parts.push(fetch_all(&chain, tls, size, settings.fetches)?);
        }
    }
    Ok(parts)
}

fn fetch_all(
    chain: &Chain,
    tls: Option<&Arc<ClientConfig>>,
    size: usize,
    count: usize,
) -> Result<Values, Failure> {
    let mut fetches = Vec::with_capacity(count);
    for _ in 0..count {
        let fetch = objects::fetch(chain.route(), tls, size);
        chain.check()?;
        fetches.push(fetch.map_err(|error| Failure::Streams {
            count: 1,
            of: count,
            first: format!("fetching {size} bytes: {error}"),
        })?);
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let mean =
        |of: fn(&objects::Fetch) -> Duration| milliseconds(fetches.iter().map(of).sum()) / count as f64;
    let totals = || fetches.iter().map(|fetch| fetch.total);
    Ok(vec![
        ("mean", mean(|fetch| fetch.total)),
        ("min", milliseconds(totals().min().unwrap_or_default())),
        ("max", milliseconds(totals().max().unwrap_or_default())),
        ("connect", mean(|fetch| fetch.connected)),
        ("first_byte", mean(|fetch| fetch.first_byte)),
    ])
}
