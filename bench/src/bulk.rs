//! Bulk load: N streams that each move as much as they can in one direction, and what was measured meanwhile.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::chain::{Chain, PerEnd};
use crate::failure::Failure;
use crate::inner;
use crate::procfs::{CpuSample, SystemCpu, softirq_threads};
use crate::protocols::Inner;
use crate::target::{self, Target, WRITE};
use crate::verify;
use crate::wire::{Header, Op};

/// How long all streams may take until each has moved its first bytes, in units of the patience with stalls.
const FIRST_BYTES: u32 = 2;
/// A stream that moves nothing for this long has stalled.
const STALL: Duration = Duration::from_secs(5);
/// How often a running load is looked after.
const GLANCE: Duration = Duration::from_millis(50);
const STACK: usize = 128 * 1024;

/// Which way the payload goes, as seen from the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    Down,
    Up,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::Down, Self::Up];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

/// What one window showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// What the programs used.
    pub(crate) cpu: PerEnd<Duration>,
    /// What the kernel's softirq threads used.
    pub(crate) softirq_cpu: Duration,
    /// What this load generator itself used.
    pub(crate) generator_cpu: Duration,
    /// What others than all of these used meanwhile, in percent of all processors' time.
    pub(crate) foreign_percent: f64,
    /// Streams that moved nothing, where that is permitted.
    pub(crate) stood_still: usize,
}

/// When streams that move nothing spoil a measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stalls {
    /// When one has stood still for so long.
    Fail(Duration),
    /// When all have: on a bad path a stream may wait for its turn for very long, whoever is to blame.
    Count(Duration),
}

impl Stalls {
    fn patience(self) -> Duration {
        match self {
            Self::Fail(patience) | Self::Count(patience) => patience,
        }
    }

    /// Whether so many of all are too many.
    fn are_too_many(self, still: usize, all: usize) -> bool {
        match self {
            Self::Fail(_) => still > 0,
            Self::Count(_) => still == all,
        }
    }
}

/// Running streams; dropping it ends them.
pub(crate) struct Bulk<'a> {
    chain: &'a Chain,
    target: &'a Target,
    direction: Direction,
    stalls: Stalls,
    /// What the target's counters said before.
    base: Vec<u64>,
    streams: Vec<Stream>,
    shared: Arc<Shared>,
}

struct Stream {
    socket: TcpStream,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    faults: Mutex<Vec<String>>,
}

impl<'a> Bulk<'a> {
    /// Opens `count` streams, starts the load and waits until every stream moves.
    pub(crate) fn start(
        chain: &'a Chain,
        target: &'a Target,
        count: usize,
        direction: Direction,
    ) -> Result<Self, Failure> {
        Self::start_with(chain, target, count, direction, Stalls::Fail(STALL))
    }

    /// As [`Bulk::start`], with another view of streams that stand still.
    pub(crate) fn start_with(
        chain: &'a Chain,
        target: &'a Target,
        count: usize,
        direction: Direction,
        stalls: Stalls,
    ) -> Result<Self, Failure> {
        let base = (0..count).map(|stream| target.received(stream)).collect();
        let mut bulk = Self {
            chain,
            target,
            direction,
            stalls,
            base,
            streams: Vec::with_capacity(count),
            shared: Arc::default(),
        };
        // All connections stand before the first one moves anything: a handshake takes very long on a machine that is
        // full of transfers, whatever the program.
        let failed = |number: usize| {
            move |error: io::Error| Failure::Streams {
                count: count - number,
                of: count,
                first: error.to_string(),
            }
        };
        let mut sockets = Vec::with_capacity(count);
        for number in 0..count {
            sockets.push(bulk.connect(number).map_err(failed(number))?);
        }
        for (number, socket) in sockets.iter_mut().enumerate() {
            bulk.announce(number, socket).map_err(failed(number))?;
        }
        let payload = match chain.inner() {
            Inner::Plain => verify::noise(WRITE),
            Inner::Tls => inner::records(),
        };
        for (number, socket) in sockets.into_iter().enumerate() {
            bulk.begin(socket, Arc::clone(&payload)).map_err(failed(number))?;
        }
        let begun = Instant::now();
        let still = |bulk: &Self| bulk.moved().iter().filter(|bytes| **bytes == 0).count();
        // Where some may stand still, it takes only one that moves.
        while stalls.are_too_many(still(&bulk), count) {
            bulk.check()?;
            if begun.elapsed() > stalls.patience() * FIRST_BYTES {
                return Err(Failure::Stalled {
                    count: still(&bulk),
                    of: count,
                    seconds: begun.elapsed().as_secs_f64(),
                });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(bulk)
    }

    /// Lets the load run for `warm_up` unmeasured, then for `window`. Fails when a stream breaks or stands still.
    pub(crate) fn measure(&self, warm_up: Duration, window: Duration) -> Result<Measured, Failure> {
        self.run_for(warm_up)?;
        let own = std::process::id();
        let generator = || CpuSample::take(own).unwrap_or_default();
        let (began, moved, cpu, own_cpu) = (Instant::now(), self.moved(), self.chain.cpu()?, generator());
        let (system, softirqs) = (SystemCpu::take(), softirq_threads());
        self.run_for(window)?;
        let (time, moved_later, cpu_later) = (began.elapsed(), self.moved(), self.chain.cpu()?);
        let generator_cpu = generator().since(&own_cpu);
        let cpu = cpu_later.since(&cpu);
        let softirq_cpu = softirq_threads().saturating_sub(softirqs);
        let ours = generator_cpu + softirq_cpu + cpu.iter().sum::<Duration>();
        let foreign_percent = SystemCpu::take().foreign_percent(&system, ours);

        let stood_still = self.wait_for_stragglers(&moved)?;
        let bytes = moved_later.iter().sum::<u64>() - moved.iter().sum::<u64>();
        Ok(Measured { bytes, time, cpu, softirq_cpu, generator_cpu, foreign_percent, stood_still })
    }

    /// Fails when a stream has stalled since `before`. One that only had no turn in a short window, as on a machine with
    /// more to do, gets one now.
    fn wait_for_stragglers(&self, before: &[u64]) -> Result<usize, Failure> {
        let begun = Instant::now();
        loop {
            let now = self.moved();
            let still = now.iter().zip(before).filter(|(now, before)| now == before).count();
            if !self.stalls.are_too_many(still, now.len()) {
                return Ok(still);
            }
            let patience = self.stalls.patience();
            if begun.elapsed() > patience {
                let seconds = patience.as_secs_f64();
                return Err(Failure::Stalled { count: still, of: now.len(), seconds });
            }
            self.run_for(GLANCE)?;
        }
    }

    /// Lets the load run, looking after it.
    pub(crate) fn run_for(&self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(GLANCE));
        }
    }

    fn connect(&self, number: usize) -> io::Result<TcpStream> {
        let mut socket = self.chain.connect()?;
        if self.chain.inner() == Inner::Tls {
            inner::connect(&mut socket, self.target.inner_tls())?;
        }
        if self.direction == Direction::Up {
            // Its answer shows that the stream stands, so that only the load itself is left to begin.
            self.say(&mut socket, Op::Up, number)?;
        }
        Ok(socket)
    }

    /// Makes the other end ready, or begin.
    fn announce(&self, number: usize, socket: &mut TcpStream) -> io::Result<()> {
        match (self.direction, self.chain.inner()) {
            (Direction::Down, _) => self.say(socket, Op::Down, number),
            (Direction::Up, Inner::Plain) => socket.read_exact(&mut [0]),
            (Direction::Up, Inner::Tls) => inner::hear::<1>(socket).map(drop),
        }
    }

    fn say(&self, socket: &mut TcpStream, op: Op, number: usize) -> io::Result<()> {
        let header = Header { op, stream: number as u32, length: 0 }.encode();
        match self.chain.inner() {
            Inner::Plain => socket.write_all(&header),
            Inner::Tls => inner::say(socket, &header),
        }
    }

    /// Starts the thread of this end.
    fn begin(&mut self, socket: TcpStream, payload: Arc<[u8]>) -> io::Result<()> {
        socket.set_read_timeout(None)?;
        let received = Arc::new(AtomicU64::new(0));
        let (shared, counter, direction) = (Arc::clone(&self.shared), Arc::clone(&received), self.direction);
        let mut worker = socket.try_clone()?;
        let work = move || {
            let outcome = match direction {
                Direction::Down => target::discard(&worker, &counter),
                Direction::Up => target::send_endlessly(&mut worker, &payload),
            };
            if !shared.stopping.load(Ordering::Relaxed) {
                let fault = outcome.err().map_or_else(|| "closed early".into(), |error| error.to_string());
                lock(&shared.faults).push(fault);
            }
        };
        let thread = thread::Builder::new().name("stream".into()).stack_size(STACK).spawn(work)?;
        self.streams.push(Stream { socket, received, thread: Some(thread) });
        Ok(())
    }

    /// Payload bytes that have arrived at their end, by stream.
    fn moved(&self) -> Vec<u64> {
        match self.direction {
            Direction::Down => {
                self.streams.iter().map(|stream| stream.received.load(Ordering::Relaxed)).collect()
            }
            Direction::Up => {
                (0..self.streams.len()).map(|n| self.target.received(n) - self.base[n]).collect()
            }
        }
    }

    fn check(&self) -> Result<(), Failure> {
        self.chain.check()?;
        let faults = lock(&self.shared.faults);
        match faults.first() {
            None => Ok(()),
            Some(first) => {
                Err(Failure::Streams { count: faults.len(), of: self.streams.len(), first: first.clone() })
            }
        }
    }
}

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for stream in &self.streams {
            let _ = stream.socket.shutdown(Shutdown::Both);
        }
        for thread in self.streams.iter_mut().filter_map(|stream| stream.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Sends and checks `length` bytes both ways at once on each of `count` streams.
pub(crate) fn verify_streams(
    chain: &Chain,
    target: &Target,
    count: usize,
    length: u64,
) -> Result<(), Failure> {
    let faults = thread::scope(|scope| {
        let streams: Vec<_> = (0..count as u32)
            .map(|number| {
                scope.spawn(move || {
                    let mut stream = chain.connect().map_err(|error| error.to_string())?;
                    let header = Header { op: Op::Verify, stream: number, length };
                    stream.write_all(&header.encode()).map_err(|error| error.to_string())?;
                    verify::exchange(&stream, verify::Seeds::of_client(number), length)
                })
            })
            .collect();
        let outcomes = streams.into_iter().enumerate().map(|(number, stream)| {
            let outcome = stream.join().unwrap_or_else(|_| Err("the checker panicked".into()));
            outcome.err().map(|fault| format!("stream {number} at the client: {fault}"))
        });
        outcomes.flatten().collect::<Vec<_>>()
    });
    let faults: Vec<String> = faults.into_iter().chain(target.take_faults(count)).collect();
    chain.check()?;
    match faults.len() {
        0 => Ok(()),
        1..=2 => Err(Failure::Integrity(faults.join("; "))),
        count => Err(Failure::Integrity(format!("{}; {}; and {} more", faults[0], faults[1], count - 2))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
