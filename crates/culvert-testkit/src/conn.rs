//! In-memory conns that misbehave as networks do, for unit tests of whatever takes tokio's traits.
//!
//! [`Faulty`] wraps any stream and spoils it; [`Script`] is a peer that follows a list of steps; [`pair`] is a plain
//! two-ended pipe. All work under a paused clock.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::time::Sleep;

/// Two ends of a pipe that holds at most `capacity` bytes each way, with half-close.
#[must_use]
pub fn pair(capacity: usize) -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(capacity)
}

/// A stream spoiled in chosen ways; by default it passes everything through.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    largest_read: usize,
    largest_write: usize,
    pause: Option<Duration>,
    waiting: Option<Pin<Box<Sleep>>>,
    read_limit: Option<(u64, io::ErrorKind)>,
    write_limit: Option<(u64, io::ErrorKind)>,
    stall: Option<(u64, Gate)>,
    read: u64,
    written: u64,
}

impl<S> Faulty<S> {
    /// Wraps a stream.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            largest_read: usize::MAX,
            largest_write: usize::MAX,
            pause: None,
            waiting: None,
            read_limit: None,
            write_limit: None,
            stall: None,
            read: 0,
            written: 0,
        }
    }

    /// A stream that moves one byte per call in both directions.
    pub fn trickling(inner: S) -> Self {
        Self::new(inner).reads_at_most(1).writes_at_most(1)
    }

    /// Each read yields at most this many bytes (at least one).
    #[must_use]
    pub fn reads_at_most(mut self, bytes: usize) -> Self {
        self.largest_read = bytes.max(1);
        self
    }

    /// Each write takes at most this many bytes (at least one).
    #[must_use]
    pub fn writes_at_most(mut self, bytes: usize) -> Self {
        self.largest_write = bytes.max(1);
        self
    }

    /// Each read comes this long after it was asked for.
    #[must_use]
    pub fn pauses(mut self, pause: Duration) -> Self {
        self.pause = Some(pause);
        self
    }

    /// Reads fail with this error once `bytes` have been read.
    #[must_use]
    pub fn fails_reading_after(mut self, bytes: u64, error: io::ErrorKind) -> Self {
        self.read_limit = Some((bytes, error));
        self
    }

    /// Writes fail with this error once `bytes` have been written.
    #[must_use]
    pub fn fails_writing_after(mut self, bytes: u64, error: io::ErrorKind) -> Self {
        self.write_limit = Some((bytes, error));
        self
    }

    /// Nothing moves in either direction once `bytes` have been read, until the gate opens.
    #[must_use]
    pub fn stalls_after(mut self, bytes: u64, gate: Gate) -> Self {
        self.stall = Some((bytes, gate));
        self
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// The stream within.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn poll_gate(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.stall {
            Some((after, gate)) if self.read >= *after => gate.poll(cx),
            _ => Poll::Ready(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Faulty<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx));
        let mut room = buf.remaining().min(self.largest_read);
        if let Some((limit, error)) = self.read_limit {
            if self.read >= limit {
                return Poll::Ready(Err(error.into()));
            }
            room = room.min(usize::try_from(limit - self.read).unwrap_or(room));
        }
        if let Some((after, _)) = self.stall.as_ref().filter(|(after, _)| *after > self.read) {
            room = room.min(usize::try_from(after - self.read).unwrap_or(room));
        }
        if let Some(pause) = self.pause {
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            ready!(waiting.as_mut().poll(cx));
        }
        let mut part = vec![0; room];
        let mut part = ReadBuf::new(&mut part);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        self.waiting = None;
        self.read += part.filled().len() as u64;
        buf.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Faulty<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_gate(cx));
        let mut room = data.len().min(self.largest_write);
        if let Some((limit, error)) = self.write_limit {
            if self.written >= limit {
                return Poll::Ready(Err(error.into()));
            }
            room = room.min(usize::try_from(limit - self.written).unwrap_or(room));
        }
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &data[..room]))?;
        self.written += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Holds streams back until it is opened; its clones are one gate.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn closed() -> Self {
        Self::default()
    }

    /// Opens it for good.
    pub fn open(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        state.1.drain(..).for_each(Waker::wake);
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        state.1.push(cx.waker().clone());
        Poll::Pending
    }
}

/// What a [`Script`] does when it is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Yields these bytes.
    Send(Vec<u8>),
    /// Waits until at least this many bytes in all have been written to it.
    Expect(usize),
    /// Waits.
    Pause(Duration),
    /// Fails.
    Fail(io::ErrorKind),
    /// Never yields anything again.
    Silence,
}

/// A peer that follows a list of steps and keeps what it is told; after the last step it ends its direction.
#[derive(Debug, Default)]
pub struct Script {
    steps: VecDeque<Step>,
    heard: Arc<Mutex<Heard>>,
    reader: Option<Waker>,
    waiting: Option<Pin<Box<Sleep>>>,
}

/// What was written to a [`Script`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// The size of each write, in order.
    pub writes: Vec<usize>,
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Whether the writer has ended its direction.
    pub ended: bool,
}

impl Script {
    /// A peer with these steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), ..Self::default() }
    }

    /// A view of what it is told, which stays when the script itself is given away.
    pub fn heard(&self) -> impl Fn() -> Heard + use<> {
        let heard = Arc::clone(&self.heard);
        move || heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hear(&mut self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner));
        self.reader.take().into_iter().for_each(Waker::wake);
    }
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match this.steps.front_mut() {
                None => return Poll::Ready(Ok(())),
                Some(Step::Send(bytes)) => {
                    let size = bytes.len().min(buf.remaining());
                    buf.put_slice(&bytes[..size]);
                    bytes.drain(..size);
                    if bytes.is_empty() {
                        this.steps.pop_front();
                    }
                    return Poll::Ready(Ok(()));
                }
                Some(Step::Expect(count)) => {
                    if this.heard.lock().unwrap_or_else(PoisonError::into_inner).bytes.len() < *count {
                        this.reader = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
                Some(Step::Pause(pause)) => {
                    let pause = *pause;
                    let waiting = this.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
                    ready!(waiting.as_mut().poll(cx));
                    this.waiting = None;
                }
                Some(Step::Fail(error)) => return Poll::Ready(Err((*error).into())),
                Some(Step::Silence) => return Poll::Pending,
            }
            this.steps.pop_front();
        }
    }
}

impl AsyncWrite for Script {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.hear(|heard| {
            heard.writes.push(data.len());
            heard.bytes.extend(data);
        });
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.hear(|heard| heard.ended = true);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn trickle_moves_one_byte_per_call() {
        let (near, mut far) = pair(64);
        let mut near = Faulty::trickling(near);
        assert_eq!(near.write(b"abc").await.unwrap(), 1);
        far.write_all(b"xyz").await.unwrap();
        let mut buffer = [0; 8];
        assert_eq!(near.read(&mut buffer).await.unwrap(), 1);
        assert_eq!((near.bytes_read(), near.bytes_written()), (1, 1));
    }

    #[tokio::test]
    async fn failures_come_at_their_byte() {
        let (near, mut far) = pair(64);
        let mut near = Faulty::new(near)
            .fails_reading_after(2, io::ErrorKind::ConnectionReset)
            .fails_writing_after(3, io::ErrorKind::BrokenPipe);
        far.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 8];
        assert_eq!(near.read(&mut buffer).await.unwrap(), 2);
        assert_eq!(near.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(near.write(b"hello").await.unwrap(), 3);
        assert_eq!(near.write(b"lo").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn stall_ends_when_the_gate_opens() {
        let (near, mut far) = pair(64);
        let gate = Gate::closed();
        let mut near = Faulty::new(near).stalls_after(2, gate.clone());
        far.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 8];
        assert_eq!(near.read(&mut buffer).await.unwrap(), 2);
        let reading = tokio::spawn(async move {
            let mut rest = [0; 3];
            near.read_exact(&mut rest).await.map(|_| rest)
        });
        tokio::task::yield_now().await;
        assert!(!reading.is_finished());
        gate.open();
        assert_eq!(&reading.await.unwrap().unwrap(), b"llo");
    }

    #[tokio::test]
    async fn script_waits_for_its_cue_and_keeps_what_it_hears() {
        let mut script = Script::new([Step::Expect(3), Step::Send(b"reply".to_vec())]);
        let heard = script.heard();
        let early = tokio::time::timeout(Duration::ZERO, script.read_u8()).await;
        assert!(early.is_err());
        script.write_all(b"ab").await.unwrap();
        script.write_all(b"c").await.unwrap();
        let mut text = String::new();
        script.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "reply");
        script.shutdown().await.unwrap();
        assert_eq!(heard(), Heard { writes: vec![2, 1], bytes: b"abc".to_vec(), ended: true });
    }
}
