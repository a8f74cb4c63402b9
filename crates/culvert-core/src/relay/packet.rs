//! The relay of an association: packets both ways, one task. It ends when either side does, or by its idle limit.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::flow::{EndReason, Flow};
use crate::packet::{BoxPackets, PacketBatch};

/// Batches a direction moves before it lets other tasks have the worker.
const BUDGET: usize = 16;

/// Moves packets between two conns.
pub struct Relay<'a> {
    client: BoxPackets,
    upstream: BoxPackets,
    up: PacketBatch,
    down: PacketBatch,
    flow: &'a Flow,
}

impl<'a> Relay<'a> {
    /// A relay that counts in `flow`.
    #[must_use]
    pub fn new(client: BoxPackets, upstream: BoxPackets, flow: &'a Flow) -> Self {
        Self { client, upstream, up: PacketBatch::new(), down: PacketBatch::new(), flow }
    }
}

impl Future for Relay<'_> {
    type Output = EndReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<EndReason> {
        let Self { client, upstream, up, down, flow } = &mut *self;
        let up = poll_direction(cx, client, upstream, up, |bytes| flow.count_up(bytes));
        let down = poll_direction(cx, upstream, client, down, |bytes| flow.count_down(bytes));
        let error = match (up, down) {
            (Poll::Ready(error), _) | (_, Poll::Ready(error)) => error,
            (Poll::Pending, Poll::Pending) => return Poll::Pending,
        };
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Poll::Ready(EndReason::Finished);
        }
        tracing::debug!(conn = flow.session().id.get(), "association broke off: {error}");
        Poll::Ready(EndReason::Reset)
    }
}

/// Moves packets until one side waits or fails; the error is the only result.
fn poll_direction(
    cx: &mut Context<'_>,
    source: &mut BoxPackets,
    sink: &mut BoxPackets,
    batch: &mut PacketBatch,
    count: impl Fn(u64),
) -> Poll<io::Error> {
    for _ in 0..BUDGET {
        if !batch.is_empty()
            && let Err(error) = ready!(sink.poll_send(cx, batch))
        {
            return Poll::Ready(error);
        }
        match source.poll_recv(cx, sink.room(), batch) {
            Poll::Ready(Ok(())) => count(batch.bytes() as u64),
            Poll::Ready(Err(error)) => return Poll::Ready(error),
            Poll::Pending => {
                *batch = PacketBatch::new(); // an idle association holds no memory
                return Poll::Pending;
            }
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}
