//! The relay of a stream: two directions, one task.
//!
//! Each direction copies through pooled buffers at first, taken once its source is readable and given back before it
//! waits. Where both of its ends have become plain sockets and some bytes have shown that it is worth it, it goes on
//! with splice(2), through a pipe that is likewise taken when there is something to move and given back when it is
//! empty. Which of the two is asked anew before each read: a layer that turns transparent mid-stream needs no signal.
//!
//! The end of one direction is passed on as a half-close and the other one goes on. A broken peer breaks the other
//! side too: both are reset, since an orderly end would turn a cut-off transfer into one that looks complete.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_os::splice::{Pipe, splice_in, splice_out};
use culvert_wire::BufChain;
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;

use crate::conn::{BoxStream, Half};
use crate::flow::{EndReason, Flow};
use crate::timeouts;

/// Bytes a direction copies before splice takes over. A pipe costs system calls that a short exchange never earns back.
const SPLICE_AFTER: u64 = 64 << 10;

/// Least and most bytes that go into a pipe at once.
const SPLICE_MIN: usize = 64 << 10;
const SPLICE_MAX: usize = 1 << 20;

/// Bytes a direction moves before it lets other tasks have the worker.
const BUDGET: usize = 2 << 20;

/// Moves bytes between two conns until both directions have ended.
pub struct Relay<'a> {
    client: BoxStream,
    upstream: BoxStream,
    up: Direction,
    down: Direction,
    flow: &'a Flow,
    half_closed: bool,
}

impl<'a> Relay<'a> {
    /// A relay that counts in `flow`. `early` was read from the client and goes first.
    #[must_use]
    pub fn new(client: BoxStream, upstream: BoxStream, early: BufChain, flow: &'a Flow) -> Self {
        flow.count_up(early.len() as u64);
        let up = Direction { held: early, unflushed: true, ..Direction::default() };
        // Whoever wrote the reply or the header may have left it in a layer's buffer.
        let down = Direction { unflushed: true, ..Direction::default() };
        Self { client, upstream, up, down, flow, half_closed: false }
    }
}

impl Future for Relay<'_> {
    type Output = EndReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<EndReason> {
        let Self { client, upstream, up, down, flow, half_closed } = &mut *self;
        let up = up.poll(cx, client, upstream, |bytes| flow.count_up(bytes));
        let down = down.poll(cx, upstream, client, |bytes| flow.count_down(bytes));
        let end = match (up, down) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => {
                tracing::debug!(conn = flow.session().id.get(), "connection broke off: {error}");
                client.abort();
                upstream.abort();
                EndReason::Reset
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => EndReason::Finished,
            (Poll::Pending, Poll::Pending) => return Poll::Pending,
            (Poll::Ready(Ok(())), Poll::Pending) | (Poll::Pending, Poll::Ready(Ok(()))) => {
                if !*half_closed {
                    *half_closed = true;
                    flow.set_idle_limit(timeouts::HALF_CLOSED_IDLE);
                }
                return Poll::Pending;
            }
        };
        Poll::Ready(end)
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Moving,
    /// The source has ended; the sink is told.
    Closing,
    Ended,
}

/// One direction's state. All of it is empty while the direction waits for its source.
#[derive(Default)]
struct Direction {
    phase: Phase,
    /// Read and not yet written.
    held: BufChain,
    /// Holds spliced bytes that are not yet written.
    pipe: Option<Pipe>,
    /// Bytes moved so far.
    moved: u64,
    /// Most bytes to put into the pipe at once; see [`learn`].
    appetite: usize,
    /// Written to the sink since its last flush.
    unflushed: bool,
    /// No pipe could be had: copying goes on to the end.
    copies_only: bool,
}

impl Direction {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BoxStream,
        sink: &mut BoxStream,
        count: impl Fn(u64),
    ) -> Poll<io::Result<()>> {
        let mut budget = BUDGET;
        loop {
            match self.phase {
                Phase::Moving => {
                    ready!(self.poll_drain(cx, sink))?;
                    if budget == 0 {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    let moved = match self.poll_fill(cx, source, sink) {
                        Poll::Ready(moved) => moved?,
                        Poll::Pending => {
                            // What was written must not wait in a layer's buffer for more to come.
                            ready!(self.poll_flush(cx, sink))?;
                            return Poll::Pending;
                        }
                    };
                    if moved == 0 {
                        self.phase = Phase::Closing;
                    }
                    self.moved += moved as u64;
                    budget = budget.saturating_sub(moved);
                    count(moved as u64);
                }
                Phase::Closing => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx))?;
                    self.phase = Phase::Ended;
                }
                Phase::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes all that was read, from memory or from the pipe.
    fn poll_drain(&mut self, cx: &mut Context<'_>, sink: &mut BoxStream) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            self.unflushed = true;
            ready!(sink.poll_write_chain(cx, &mut self.held))?;
        }
        if let Some(pipe) = &mut self.pipe {
            let Some(to) = sink.kernel_socket(Half::Write) else {
                return Poll::Ready(Err(io::Error::other("a plain socket cannot stop being one")));
            };
            let mut taken = 0;
            while !pipe.is_empty() {
                if to.poll_write_ready(cx)?.is_pending() {
                    self.appetite = learn(self.appetite, taken, false);
                    return Poll::Pending;
                }
                match to.try_io(Interest::WRITABLE, || splice_out(pipe, to.as_fd(), false)) {
                    Ok(count) => taken += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            self.appetite = learn(self.appetite, taken, true);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once, into memory or into the pipe, and returns how much; 0 is the end of the source.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BoxStream,
        sink: &mut BoxStream,
    ) -> Poll<io::Result<usize>> {
        if self.moved >= SPLICE_AFTER
            && !self.copies_only
            && let (Some(from), Some(_)) = (source.kernel_socket(Half::Read), sink.kernel_socket(Half::Write))
        {
            return self.poll_splice(cx, from);
        }
        let chain = ready!(source.poll_read_chain(cx, sink.room()))?;
        self.held = chain;
        Poll::Ready(Ok(self.held.len()))
    }

    fn poll_splice(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            match from.poll_read_ready(cx)? {
                Poll::Ready(()) => {}
                Poll::Pending => {
                    self.pipe = None; // empty: back to the pool
                    return Poll::Pending;
                }
            }
            let pipe = match &mut self.pipe {
                Some(pipe) => pipe,
                empty => match Pipe::take() {
                    Ok(pipe) => empty.insert(pipe),
                    Err(error) => {
                        tracing::debug!("no pipe, copying instead: {error}");
                        self.copies_only = true;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                },
            };
            let room = pipe.capacity().min(self.appetite.max(SPLICE_MIN));
            match from.try_io(Interest::READABLE, || splice_in(from.as_fd(), pipe, room)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, sink: &mut BoxStream) -> Poll<io::Result<()>> {
        if self.unflushed {
            ready!(Pin::new(sink).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// How much to put into the pipe next time, after the sink took `taken` bytes and then had (`all`) or had not enough.
///
/// What a sink does not take waits in the pipe, in kernel memory. So a sink that keeps up gets more at once, which saves
/// system calls, and a slow one little more than it takes at a time.
fn learn(appetite: usize, taken: usize, all: bool) -> usize {
    let next = match (taken, all) {
        (0, _) => appetite, // asked again without anything having changed
        (_, true) => appetite * 2,
        (_, false) => taken * 2,
    };
    next.clamp(SPLICE_MIN, SPLICE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_sink_gets_more_at_once_and_a_slow_one_little() {
        let fast = (0..10).fold(SPLICE_MIN, |appetite, _| learn(appetite, appetite, true));
        assert_eq!(fast, SPLICE_MAX);
        assert_eq!(learn(fast, 100_000, false), 200_000);
        assert_eq!(learn(fast, 10, false), SPLICE_MIN);
        assert_eq!(learn(fast, 0, false), fast);
    }
}
