//! hyper's view of our streams, tasks and clock.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use culvert_core::BoxStream;
use culvert_wire::{BufChain, Room};
use hyper::rt::ReadBufCursor;
use tokio::io::AsyncWrite;

/// A stream of ours. What it gives is handed on piece by piece, as large as hyper's buffer takes it.
pub struct Io {
    conn: BoxStream,
    rest: BufChain,
}

impl Io {
    /// A stream that nothing was read from.
    #[must_use]
    pub fn new(conn: BoxStream) -> Self {
        Self { conn, rest: BufChain::new() }
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            self.rest = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
        }
        let front = self.rest.front();
        let count = front.len().min(to.remaining());
        to.put_slice(&front[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

/// Runs what an HTTP/2 connection does on the side.
#[derive(Clone)]
pub(crate) struct Tasks;

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

/// tokio's clock.
#[derive(Clone)]
pub(crate) struct Clock;

struct Nap(Pin<Box<tokio::time::Sleep>>);

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Nap {}

impl hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}
