//! Threads of their own for flows in full flight.
//!
//! A task that always has something to move never lets its worker sleep, and the few workers of the runtime then use more
//! than the share of a processor that the scheduler grants a thread. On a machine that also runs the peers (or whose
//! network card interrupts on the same processors) each packet that such a worker sends wakes a thread with a better claim,
//! in the middle of the kernel's own work for that packet; the kernel breaks off and leaves the rest to `ksoftirqd`, a
//! thread that runs later and on cold caches. Measured with sixteen streams over loopback on two processors: a seventh to
//! a fifth of all processor time went there, and the relay, starved, became the slowest link. The same splices from a
//! thread per flow leave a fiftieth.
//!
//! So once a flow is plain sockets at both ends and has used up its turn on the worker without having to wait, both
//! sockets leave the runtime's poll set (which would otherwise be woken by each packet) and a thread of the blocking pool
//! splices between them, waiting in poll(2). When little moves for a while, when a direction ends, or when something
//! breaks, everything goes back to the task as it was, and the task goes on.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use culvert_os::ready::{self, Wish};
use culvert_os::splice::{Pipe, splice_in, splice_out};
use tokio::task::JoinHandle;

use super::stream::{Direction, Phase};
use crate::flow::Flow;

/// Most lanes at once. More flows than that in full flight take turns on the runtime's workers.
const MOST: usize = 64;

/// Most bytes that go into a pipe at once: enough to make the calls cheap, few enough to be still in the processor's cache
/// when the receiver reads them.
const CHUNK: usize = 256 << 10;

/// How often it is asked whether the lane is worth its thread, and how many bytes make it so.
const PERIOD: Duration = Duration::from_millis(100);
const LEAST: u64 = 4 << 20;

/// Longest wait before the lane looks whether the flow was closed.
const GLANCE: Duration = Duration::from_millis(20);

/// Lanes taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// One of the [`MOST`] lanes, given back when dropped.
pub(super) struct Place(());

impl Place {
    /// Takes one, if any is left.
    pub(super) fn take() -> Option<Self> {
        let more = |taken| (taken < MOST).then_some(taken + 1);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What goes onto the lane and comes back: the flow's two sockets, non-blocking and in no poll set, and where each
/// direction stands. Neither direction holds anything in memory or has an end to pass on.
pub(super) struct Load {
    pub(super) client: TcpStream,
    pub(super) upstream: TcpStream,
    pub(super) up: Direction,
    pub(super) down: Direction,
}

/// A lane in use. Dropping it makes the thread let go of the sockets, within [`GLANCE`].
pub(super) struct Lane {
    task: JoinHandle<(Load, io::Result<()>)>,
    stop: Arc<AtomicBool>,
}

impl Lane {
    /// Puts a flow onto a thread of the runtime's blocking pool.
    pub(super) fn start(mut load: Load, flow: Arc<Flow>, place: Place) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let task = tokio::task::spawn_blocking(move || {
            let end = load.run(&flow, &stopped);
            drop(place);
            (load, end)
        });
        Self { task, stop }
    }

    /// Waits for the load to come back, with the error that broke it if one did.
    ///
    /// # Errors
    /// The runtime stops, so that nothing comes back.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Load, io::Result<()>)>> {
        Poll::Ready(ready!(Pin::new(&mut self.task).poll(cx)).map_err(io::Error::from))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a direction waits for after a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Turn {
    /// Nothing: it moved something.
    Moved,
    /// Bytes from its source.
    Source,
    /// Space in its sink.
    Sink,
    /// Its source has just ended.
    End,
    /// Nothing, ever: it had ended before.
    Over,
    /// A pipe, of which no more can be had.
    Pipe,
}

impl Load {
    /// Splices until it is not worth a thread any more, a direction ends, the flow is closed or something breaks.
    fn run(&mut self, flow: &Flow, stop: &AtomicBool) -> io::Result<()> {
        let mut began = Instant::now();
        let mut before = self.moved();
        let mut woken_in_vain = false;
        while !stop.load(Ordering::Relaxed) {
            let up = self.up.turn(&self.client, &self.upstream, |bytes| flow.count_up(bytes))?;
            let down = self.down.turn(&self.upstream, &self.client, |bytes| flow.count_down(bytes))?;
            if [up, down].iter().any(|turn| matches!(turn, Turn::End | Turn::Pipe)) {
                break;
            }
            let time = began.elapsed();
            if time >= PERIOD {
                let moved = self.moved();
                if moved - before < LEAST {
                    break;
                }
                (began, before) = (Instant::now(), moved);
            }
            if up == Turn::Moved || down == Turn::Moved {
                woken_in_vain = false;
                continue;
            }
            // A socket that broke keeps ending the wait, whether or not it is this lane's turn to find out.
            if woken_in_vain {
                break;
            }
            let client =
                Wish { socket: self.client.as_fd(), read: up == Turn::Source, write: down == Turn::Sink };
            let upstream =
                Wish { socket: self.upstream.as_fd(), read: down == Turn::Source, write: up == Turn::Sink };
            woken_in_vain = ready::wait([client, upstream], GLANCE)?;
        }
        Ok(())
    }

    fn moved(&self) -> u64 {
        self.up.moved + self.down.moved
    }
}

impl Direction {
    /// Moves a chunk, without waiting.
    fn turn(&mut self, from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<Turn> {
        if self.phase != Phase::Moving {
            return Ok(Turn::Over);
        }
        if self.pipe.as_ref().is_some_and(|pipe| !pipe.is_empty()) {
            return self.pour(to);
        }
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => match Pipe::take() {
                Ok(pipe) => none.insert(pipe),
                Err(_) => return Ok(Turn::Pipe),
            },
        };
        match splice_in(from.as_fd(), pipe, CHUNK) {
            Ok(0) => {
                self.phase = Phase::Closing;
                Ok(Turn::End)
            }
            Ok(bytes) => {
                self.moved += bytes as u64;
                count(bytes as u64);
                self.pour(to).map(|_| Turn::Moved)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.pipe = None; // empty: back to the pool
                Ok(Turn::Source)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes what is in the pipe, as far as the sink takes it.
    fn pour(&mut self, to: &TcpStream) -> io::Result<Turn> {
        let Some(pipe) = &mut self.pipe else { return Ok(Turn::Moved) };
        let mut turn = Turn::Sink;
        while !pipe.is_empty() {
            match splice_out(pipe, to.as_fd(), false) {
                Ok(_) => turn = Turn::Moved,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(turn),
                Err(error) => return Err(error),
            }
        }
        Ok(Turn::Moved)
    }
}

#[cfg(test)]
mod tests;
