//! The relay of a stream: two directions, one task.
//!
//! Each direction copies through pooled buffers at first, taken once its source is readable and given back before it
//! waits. Where both of its ends have become plain sockets and some bytes have shown that it is worth it, it goes on
//! with splice(2), through a pipe that is likewise taken when there is something to move and given back when it is
//! empty. Which of the two is asked anew before each read: a layer that turns transparent mid-stream needs no signal.
//! A flow of plain sockets that never has to wait leaves the task for a while, for a thread of its own: see [`lane`].
//!
//! The end of one direction is passed on as a half-close and the other one goes on. A broken peer breaks the other
//! side too: both are reset, since an orderly end would turn a cut-off transfer into one that looks complete.

use std::any::Any;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use culvert_os::splice::{Pipe, splice_in, splice_out};
use culvert_wire::BufChain;
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::lane::{self, Lane};
use crate::answers::Silence;
use crate::conn::{BoxStream, Half};
use crate::flow::{EndReason, Flow};
use crate::{TcpConn, timeouts};

/// Bytes a direction copies before splice takes over. A pipe costs system calls that a short exchange never earns back.
const SPLICE_AFTER: u64 = 64 << 10;

/// Least and most bytes that go into a pipe at once.
const SPLICE_MIN: usize = 64 << 10;
const SPLICE_MAX: usize = 1 << 20;

/// Bytes a direction moves before it lets other tasks have the worker.
const BUDGET: usize = 2 << 20;

/// Bytes a direction has spliced before its flow may get a thread of its own: a short transfer is over before the thread
/// would have paid.
const LANE_AFTER: u64 = 16 << 20;

/// Moves bytes between two conns until both directions have ended.
pub struct Relay<'a> {
    state: State,
    flow: &'a Arc<Flow>,
    half_closed: bool,
    silence: Option<Silence>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all flows are in the large one, which is polled in place"
)]
enum State {
    Here(Ends),
    Away(Lane),
    /// Only while going from one to the other, and after the end.
    Gone,
}

impl State {
    /// Makes both conns plain sockets that the runtime knows nothing of.
    fn leave(self) -> io::Result<lane::Load> {
        match self {
            Self::Here(ends) => ends.leave(),
            Self::Away(_) | Self::Gone => Err(io::Error::other("the flow is not here")),
        }
    }
}

/// The two conns and the two directions between them.
struct Ends {
    client: BoxStream,
    upstream: BoxStream,
    up: Direction,
    down: Direction,
}

impl<'a> Relay<'a> {
    /// A relay that counts in `flow`. `early` was read from the client and goes first.
    #[must_use]
    pub fn new(client: BoxStream, upstream: BoxStream, early: BufChain, flow: &'a Arc<Flow>) -> Self {
        flow.count_up(early.len() as u64);
        let up = Direction { held: early, unflushed: true, ..Direction::default() };
        // Whoever wrote the reply or the header may have left it in a layer's buffer.
        let down = Direction { unflushed: true, ..Direction::default() };
        let state = State::Here(Ends { client, upstream, up, down });
        Self { state, flow, half_closed: false, silence: None }
    }

    /// Once it is over: how the upstream ended it, if it did so before the client and without a byte.
    pub(crate) fn silence(&self) -> Option<&Silence> {
        self.silence.as_ref()
    }
}

impl Future for Relay<'_> {
    type Output = EndReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<EndReason> {
        let Self { state, flow, half_closed, silence } = &mut *self;
        let end = loop {
            match state {
                State::Here(ends) => {
                    let (going_up, going_down) = ends.poll(cx, flow);
                    if silence.is_none() && ends.is_silent(&going_down) {
                        *silence = Some(None);
                    }
                    match (going_up, going_down) {
                        (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => {
                            ends.abort();
                            let end = broke_off(flow, &error);
                            if let Some(reason) = silence {
                                *reason = Some(error);
                            }
                            break end;
                        }
                        (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => break EndReason::Finished,
                        (Poll::Pending, Poll::Pending) => {}
                        (Poll::Ready(Ok(())), Poll::Pending) | (Poll::Pending, Poll::Ready(Ok(()))) => {
                            if !*half_closed {
                                *half_closed = true;
                                flow.set_idle_limit(timeouts::HALF_CLOSED_IDLE);
                            }
                        }
                    }
                    let Some(place) = ends.place() else { return Poll::Pending };
                    let here = std::mem::replace(state, State::Gone);
                    match here.leave() {
                        Ok(load) => *state = State::Away(Lane::start(load, Arc::clone(flow), place)),
                        Err(error) => break broke_off(flow, &error),
                    }
                }
                State::Away(lane) => {
                    let back = ready!(lane.poll(cx));
                    let back = back.and_then(|(load, end)| Ok((Ends::back(load)?, end)));
                    match back {
                        Ok((ends, Ok(()))) => *state = State::Here(ends),
                        Ok((mut ends, Err(error))) => {
                            ends.abort();
                            break broke_off(flow, &error);
                        }
                        Err(error) => break broke_off(flow, &error),
                    }
                }
                State::Gone => return Poll::Pending,
            }
        };
        *state = State::Gone;
        Poll::Ready(end)
    }
}

fn broke_off(flow: &Flow, error: &io::Error) -> EndReason {
    tracing::debug!(conn = flow.session().id.get(), "connection broke off: {error}");
    EndReason::Reset
}

impl Ends {
    fn poll(&mut self, cx: &mut Context<'_>, flow: &Flow) -> (Poll<io::Result<()>>, Poll<io::Result<()>>) {
        let Self { client, upstream, up, down } = self;
        let going_up = up.poll(cx, client, upstream, |bytes| flow.count_up(bytes));
        let going_down = down.poll(cx, upstream, client, |bytes| flow.count_down(bytes));
        (going_up, going_down)
    }

    /// Whether the upstream is the first to end, and has said nothing.
    fn is_silent(&self, going_down: &Poll<io::Result<()>>) -> bool {
        let has_ended = self.down.phase != Phase::Moving || matches!(going_down, Poll::Ready(Err(_)));
        has_ended && self.down.moved == 0 && self.up.phase == Phase::Moving
    }

    fn abort(&mut self) {
        self.client.abort();
        self.upstream.abort();
    }

    /// A place on a lane, if the flow would make use of one and one is left.
    fn place(&self) -> Option<lane::Place> {
        let busy = self.up.is_busy() || self.down.is_busy();
        let free = self.up.held.is_empty()
            && self.down.held.is_empty()
            && [&self.up, &self.down].iter().all(|direction| direction.phase != Phase::Closing)
            && [&self.client, &self.upstream].iter().all(|conn| is_socket(conn));
        if busy && free { lane::Place::take() } else { None }
    }

    /// Makes both conns plain sockets that the runtime knows nothing of.
    fn leave(self) -> io::Result<lane::Load> {
        let [client, upstream] = [self.client, self.upstream].map(|conn| {
            let conn: Box<dyn Any> = conn;
            let conn = conn.downcast::<TcpConn>().map_err(|_| io::Error::other("not a plain socket"))?;
            conn.into_stream().into_std()
        });
        Ok(lane::Load { client: client?, upstream: upstream?, up: self.up, down: self.down })
    }

    /// The reverse.
    fn back(load: lane::Load) -> io::Result<Self> {
        let [client, upstream] = [load.client, load.upstream].map(|socket| {
            TcpStream::from_std(socket).map(|stream| Box::new(TcpConn::new(stream)) as BoxStream)
        });
        Ok(Self { client: client?, upstream: upstream?, up: load.up, down: load.down })
    }
}

/// Whether a conn is a socket and nothing else.
fn is_socket(conn: &BoxStream) -> bool {
    let conn: &dyn Any = &**conn;
    conn.is::<TcpConn>()
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Phase {
    #[default]
    Moving,
    /// The source has ended; the sink is told.
    Closing,
    Ended,
}

/// One direction's state. All of it is empty while the direction waits for its source.
#[derive(Default)]
pub(super) struct Direction {
    pub(super) phase: Phase,
    /// Read and not yet written.
    held: BufChain,
    /// Holds spliced bytes that are not yet written.
    pub(super) pipe: Option<Pipe>,
    /// Bytes moved so far.
    pub(super) moved: u64,
    /// Most bytes to put into the pipe at once; see [`learn`].
    appetite: usize,
    /// The sink has taken what there was and cannot pass it on yet: the source has to wait too, or each layer of the sink
    /// would fill up with as much as one read brings.
    blocked: bool,
    /// Written to the sink since its last flush.
    unflushed: bool,
    /// No pipe could be had: copying goes on to the end.
    copies_only: bool,
    /// It has used up its turn, and did not have to wait for anything.
    insatiable: bool,
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
        self.insatiable = false;
        loop {
            match self.phase {
                Phase::Moving => {
                    ready!(self.poll_drain(cx, sink))?;
                    if budget == 0 {
                        self.insatiable = true;
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

    /// Whether it would make use of a thread.
    fn is_busy(&self) -> bool {
        self.insatiable && self.moved >= LANE_AFTER && !self.copies_only
    }

    /// Writes all that was read, from memory or from the pipe.
    fn poll_drain(&mut self, cx: &mut Context<'_>, sink: &mut BoxStream) -> Poll<io::Result<()>> {
        if !self.held.is_empty() || self.blocked {
            self.unflushed = true;
            self.blocked = true;
            ready!(sink.poll_write_chain(cx, &mut self.held))?;
            self.blocked = false;
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

    /// A connected pair, the near end as a conn.
    async fn conn() -> (BoxStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Box::new(TcpConn::new(listener.accept().await.unwrap().0)), far)
    }

    async fn ends() -> (Ends, TcpStream, TcpStream) {
        let ((client, far_client), (upstream, far_upstream)) = (conn().await, conn().await);
        let (up, down) = (Direction::default(), Direction::default());
        (Ends { client, upstream, up, down }, far_client, far_upstream)
    }

    fn busy() -> Direction {
        Direction { insatiable: true, moved: LANE_AFTER, ..Direction::default() }
    }

    #[tokio::test]
    async fn only_busy_flows_of_plain_sockets_leave() {
        let (mut ends, ..) = ends().await;
        assert!(ends.place().is_none(), "it has moved nothing");
        ends.down = busy();
        assert!(ends.place().is_some());
        ends.up.held = BufChain::copied(b"waits for the sink");
        assert!(ends.place().is_none(), "bytes in memory have to go first");
        ends.up = Direction { phase: Phase::Closing, ..Direction::default() };
        assert!(ends.place().is_none(), "an end has to be passed on first");
        ends.up = Direction { phase: Phase::Ended, ..Direction::default() };
        assert!(ends.place().is_some());
        ends.client = Box::new(tokio::io::duplex(1).0);
        assert!(ends.place().is_none(), "no socket");
    }

    #[tokio::test]
    async fn a_flow_goes_on_after_it_was_away() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let (mut ends, mut client, mut server) = ends().await;
        ends.up = busy();
        let place = ends.place().unwrap();
        let local = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let session = crate::Session {
            id: crate::SessionId::next(),
            network: crate::Network::Tcp,
            inbound: crate::Tag::new("mixed", "in"),
            user: None,
            source: local,
            target: local.into(),
            sniffed: None,
            alpn: None,
        };
        let ticket = crate::Flows::new().open(session);
        let lane = Lane::start(ends.leave().unwrap(), Arc::clone(ticket.flow()), place);
        let relay =
            Relay { state: State::Away(lane), flow: ticket.flow(), half_closed: false, silence: None };
        let peers = async {
            // Nothing moves, so it comes back; the exchange runs while it is away or after.
            for _ in 0..5 {
                client.write_all(b"question").await.unwrap();
                server.read_exact(&mut [0; 8]).await.unwrap();
                server.write_all(b"answer").await.unwrap();
                client.read_exact(&mut [0; 6]).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(60)).await;
            }
            client.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
            server.write_all(b"late").await.unwrap();
            server.shutdown().await.unwrap();
            let mut late = String::new();
            client.read_to_string(&mut late).await.unwrap();
            assert_eq!(late, "late");
        };
        let (end, ()) = tokio::join!(relay, peers);
        assert_eq!(end, EndReason::Finished);
        assert_eq!((ticket.flow().up(), ticket.flow().down()), (40, 34));
    }
}
