//! Small requests, each on a connection of its own: connect, ask, read the answer, close.

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::chain::{Chain, PerEnd, Route};
use crate::failure::Failure;
use crate::wire::{Header, Op, REQUEST};

/// Bytes of an answer.
pub(crate) const ANSWER: usize = 512;
const STACK: usize = 128 * 1024;

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each worker sends its next request at once.
    Full,
    /// So many a second at even intervals, whether or not earlier ones are done.
    PerSecond(f64),
}

/// What a load of requests showed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    /// Milliseconds from connecting (or from when it was due, if all workers were busy then) to the whole answer,
    /// ascending.
    pub(crate) latencies: Vec<f64>,
    pub(crate) cpu: PerEnd<Duration>,
}

/// Sends requests for `time` with `workers` threads. Any failed request fails the load.
pub(crate) fn load(chain: &Chain, workers: usize, pace: Pace, time: Duration) -> Result<Outcome, Failure> {
    let route = chain.route();
    let (tickets, faults) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let cpu = chain.cpu()?;
    let began = Instant::now();
    let latencies = thread::scope(|scope| {
        let work = || work(route, pace, began, began + time, &tickets, &faults);
        let threads = (0..workers).map(|_| {
            thread::Builder::new().name("worker".into()).stack_size(STACK).spawn_scoped(scope, work)
        });
        let threads =
            threads.collect::<io::Result<Vec<_>>>().map_err(Failure::io("cannot start a worker"))?;
        let latencies = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
        Ok(latencies.collect::<Vec<f64>>())
    });
    let took = began.elapsed();
    let cpu = chain.cpu()?.since(&cpu);
    chain.check()?;
    let mut latencies = latencies?;
    latencies.sort_by(f64::total_cmp);
    let faults: Vec<io::Error> = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    match faults.first() {
        None if latencies.is_empty() => {
            Err(Failure::Stalled { count: workers, of: workers, seconds: took.as_secs_f64() })
        }
        None => Ok(Outcome { time: took, latencies, cpu }),
        Some(first) => Err(Failure::Streams {
            count: faults.len(),
            of: faults.len() + latencies.len(),
            first: first.to_string(),
        }),
    }
}

/// One worker: returns its latencies. Ends early after a fault, its own or another's.
fn work(
    route: Route,
    pace: Pace,
    began: Instant,
    end: Instant,
    tickets: &AtomicU64,
    faults: &Mutex<Vec<io::Error>>,
) -> Vec<f64> {
    let mut latencies = Vec::new();
    loop {
        let from = match pace {
            Pace::Full => Instant::now(),
            Pace::PerSecond(rate) => {
                let ticket = tickets.fetch_add(1, Ordering::Relaxed);
                let due = began + Duration::from_secs_f64(ticket as f64 / rate);
                if due >= end {
                    return latencies;
                }
                wait_until(due)
            }
        };
        if from >= end {
            return latencies;
        }
        let outcome = request(route);
        let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(()) if faults.is_empty() => {}
            Ok(()) => return latencies,
            Err(error) => {
                faults.push(error);
                return latencies;
            }
        }
        drop(faults);
        latencies.push(from.elapsed().as_secs_f64() * 1e3);
    }
}

/// Sleeps until `due` and returns the moment from which to count: `due` itself when it was past already, since then the
/// request had to wait for a worker; else the moment of waking up, since a late wake-up is nobody's fault but ours.
fn wait_until(due: Instant) -> Instant {
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return due;
    }
    thread::sleep(left);
    Instant::now()
}

fn request(route: Route) -> io::Result<()> {
    let mut stream = route.connect()?;
    let mut bytes = [0; REQUEST];
    let header = Header { op: Op::Request, stream: 0, length: ANSWER as u64 }.encode();
    bytes[..header.len()].copy_from_slice(&header);
    stream.write_all(&bytes)?;
    stream.read_exact(&mut [0; ANSWER])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_had_to_wait_counts_from_when_it_was_due() {
        let past = Instant::now() - Duration::from_millis(5);
        assert_eq!(wait_until(past), past);
        let due = Instant::now() + Duration::from_millis(2);
        assert!(wait_until(due) >= due);
    }
}
