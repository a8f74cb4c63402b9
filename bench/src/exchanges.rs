//! Questions and answers on connections that stay: how many a second, and how long each takes.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::chain::{Chain, Route};
use crate::failure::Failure;
use crate::wire::{Header, Op};

const STACK: usize = 128 * 1024;

/// What a load showed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    /// Milliseconds from a question to its whole answer, ascending.
    pub(crate) latencies: Vec<f64>,
    /// What the programs used.
    pub(crate) cpu: Duration,
}

/// `count` connections that each send `size` bytes and wait for them to come back, again and again.
pub(crate) fn load(chain: &Chain, count: usize, size: usize, time: Duration) -> Result<Outcome, Failure> {
    let route = chain.route();
    let cpu = chain.cpu()?;
    let began = Instant::now();
    let outcomes = thread::scope(|scope| {
        let work = || exchange(route, size, began + time);
        let threads = (0..count).map(|_| {
            thread::Builder::new().name("exchange".into()).stack_size(STACK).spawn_scoped(scope, work)
        });
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("an exchange panicked"))));
        Ok(outcomes.collect::<Vec<_>>())
    });
    let (took, cpu) = (began.elapsed(), chain.cpu()?.since(&cpu).iter().sum());
    chain.check()?;
    let mut latencies = Vec::new();
    for outcome in outcomes.map_err(Failure::io("cannot start a thread"))? {
        let one =
            outcome.map_err(|error| Failure::Streams { count: 1, of: count, first: error.to_string() })?;
        latencies.extend(one);
    }
    latencies.sort_by(f64::total_cmp);
    if latencies.is_empty() {
        return Err(Failure::Stalled { count, of: count, seconds: took.as_secs_f64() });
    }
    Ok(Outcome { time: took, latencies, cpu })
}

fn exchange(route: Route, size: usize, end: Instant) -> io::Result<Vec<f64>> {
    let mut stream = route.connect()?;
    stream.write_all(&Header { op: Op::Echo, stream: 0, length: size as u64 }.encode())?;
    let (question, mut answer) = (vec![0x5a; size], vec![0; size]);
    let mut latencies = Vec::new();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(latencies);
        }
        stream.write_all(&question)?;
        stream.read_exact(&mut answer)?;
        if answer != question {
            return Err(io::Error::other("an answer came back changed"));
        }
        latencies.push(asked.elapsed().as_secs_f64() * 1e3);
    }
}
