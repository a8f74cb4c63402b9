//! Streams of HTTP/2 that are opened again where a server has refused them before it did anything.
//!
//! RFC 9113 section 8.7: a request may be repeated whose stream was reset with `REFUSED_STREAM`, or has a higher number than
//! the last one that a `GOAWAY` names. This is no fault of anybody: a client that has not read the server's settings yet may
//! open more streams than they permit, and a server that is about to restart says so while requests are on their way.
//!
//! Until the first byte of the answer, what is sent is also kept, up to [`MOST`] bytes, and is said again on the next stream.
//! Whoever sends more without an answer has the refusal as an error. The conns below make sure that the next stream does not
//! go to a connection that has refused one.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use culvert_core::conn::write_chain;
use culvert_core::{BoxStream, DialError, StreamConn};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are kept for a repetition: one frame of the size that every peer takes.
const MOST: usize = 16 << 10;
/// How often a stream is opened again.
const TRIES: usize = 3;

/// Opens the stream anew.
pub(crate) type Again = Box<dyn FnMut() -> Opening + Send>;
/// See [`Again`].
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<BoxStream, DialError>> + Send>>;

/// Whether the peer says that it has done nothing with the stream.
pub(crate) fn is_refusal(error: &h2::Error) -> bool {
    error.is_remote()
        && (error.is_go_away() || error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// The same of an error of a stream.
fn was_refused(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(is_refusal)
}

/// A stream that is opened again if it is refused.
pub(crate) struct Repeated {
    state: State,
    /// While there is no answer.
    trial: Option<Trial>,
    /// Those that wait for another stream, of which one is told by the future.
    waiting: Vec<Waker>,
}

enum State {
    Open(BoxStream),
    Again(Pin<Box<dyn Future<Output = io::Result<BoxStream>> + Send>>),
    Failed,
}

struct Trial {
    again: Again,
    sent: Vec<u8>,
    shut: bool,
    left: usize,
}

impl Repeated {
    pub(crate) fn new(conn: BoxStream, again: Again) -> Self {
        let trial = Trial { again, sent: Vec::new(), shut: false, left: TRIES };
        Self { state: State::Open(conn), trial: Some(trial), waiting: Vec::new() }
    }

    /// The stream of now, if it need not be waited for.
    fn conn(&self) -> Option<&BoxStream> {
        match &self.state {
            State::Open(conn) => Some(conn),
            State::Again(_) | State::Failed => None,
        }
    }

    fn poll_conn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut BoxStream>> {
        if let State::Again(opening) = &mut self.state {
            match opening.as_mut().poll(cx) {
                Poll::Pending => {
                    if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                        self.waiting.push(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
                Poll::Ready(opened) => {
                    self.waiting.drain(..).for_each(Waker::wake);
                    self.state = State::Failed;
                    self.state = State::Open(opened?);
                }
            }
        }
        match &mut self.state {
            State::Open(conn) => Poll::Ready(Ok(conn)),
            State::Again(_) | State::Failed => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Opens the stream again if that was a refusal and may be repeated. Whether it does.
    fn repeats(&mut self, error: &io::Error) -> bool {
        if !was_refused(error) {
            return false;
        }
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.left > 0) else { return false };
        trial.left -= 1;
        tracing::debug!("a stream was refused ({error}) and is opened again");
        let (opening, mut sent, shut) = ((trial.again)(), BufChain::copied(&trial.sent), trial.shut);
        self.state = State::Again(Box::pin(async move {
            let mut conn = opening.await.map_err(io::Error::other)?;
            // If this is refused too, reading shows it.
            if write_chain(&mut conn, &mut sent).await.is_ok() && shut {
                let _ = conn.shutdown().await;
            }
            Ok(conn)
        }));
        true
    }

    /// The same for an error of writing: of a stream that is gone only reading tells why.
    fn repeats_after(&mut self, cx: &mut Context<'_>, error: &io::Error) -> bool {
        if self.repeats(error) {
            return true;
        }
        let (State::Open(conn), Some(_)) = (&mut self.state, &self.trial) else { return false };
        match conn.poll_read_chain(cx, Room::NONE) {
            Poll::Ready(Err(why)) => self.repeats(&why),
            Poll::Ready(Ok(_)) | Poll::Pending => false,
        }
    }
}

impl StreamConn for Repeated {
    fn room(&self) -> Room {
        self.conn().map_or(Room::NONE, StreamConn::room)
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        loop {
            match ready!(ready!(self.poll_conn(cx))?.poll_read_chain(cx, room)) {
                Err(error) if self.repeats(&error) => {}
                other => {
                    self.trial = None;
                    return Poll::Ready(other);
                }
            }
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_conn(cx))?;
            let fits = |trial: &mut Trial| trial.sent.len() + data.len() <= MOST;
            let copy = if self.trial.as_mut().is_some_and(fits) {
                data.to_vec()
            } else {
                self.trial = None;
                Vec::new()
            };
            let written = ready!(self.poll_conn(cx))?.poll_write_chain(cx, data);
            if let Some(trial) = &mut self.trial {
                trial.sent.extend_from_slice(&copy[..copy.len() - data.len()]);
            }
            match written {
                Poll::Ready(Err(error)) if self.repeats_after(cx, &error) => {}
                other => return other,
            }
        }
    }

    fn abort(&mut self) {
        if let State::Open(conn) = &mut self.state {
            conn.abort();
        }
        self.trial = None;
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn()?.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn()?.outermost_socket()
    }
}

impl AsyncRead for Repeated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match ready!(Pin::new(ready!(this.poll_conn(cx))?).poll_read(cx, to)) {
                Err(error) if this.repeats(&error) => {}
                other => {
                    this.trial = None;
                    return Poll::Ready(other);
                }
            }
        }
    }
}

impl AsyncWrite for Repeated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            let written = ready!(Pin::new(ready!(this.poll_conn(cx))?).poll_write(cx, from));
            if let (Some(trial), Ok(count)) = (&mut this.trial, &written) {
                trial.sent.extend_from_slice(&from[..*count]);
            }
            this.trial.take_if(|trial| trial.sent.len() > MOST);
            match written {
                Err(error) if this.repeats_after(cx, &error) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match ready!(Pin::new(ready!(this.poll_conn(cx))?).poll_flush(cx)) {
                Err(error) if this.repeats_after(cx, &error) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let shut = ready!(Pin::new(ready!(this.poll_conn(cx))?).poll_shutdown(cx));
            if let Some(trial) = &mut this.trial {
                trial.shut = true;
            }
            match shut {
                Err(error) if this.repeats_after(cx, &error) => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A server that refuses, by hand: libraries only do so when they have to.

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use culvert_core::duplex::{Duplex, duplex};
    use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
    use culvert_wire::BufChain;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;

    /// How a server says that it does nothing with a stream.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Refusal {
        /// As soon as it has come.
        Reset,
        /// After its first data.
        ResetLate,
        /// By the end of all that come after stream 0.
        GoAway,
    }

    impl Refusal {
        pub(crate) const ALL: [Self; 3] = [Self::Reset, Self::ResetLate, Self::GoAway];
    }

    /// An outbound whose first connections lead to a server that refuses all.
    pub(crate) struct Refusing {
        pub(crate) inner: Arc<dyn Outbound>,
        pub(crate) how: Refusal,
        /// How many do.
        pub(crate) first: usize,
        pub(crate) dials: AtomicUsize,
    }

    #[async_trait]
    impl Outbound for Refusing {
        fn tag(&self) -> &Tag {
            self.inner.tag()
        }

        fn carries(&self, _network: Network) -> bool {
            true
        }

        async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
            if self.dials.fetch_add(1, Ordering::Relaxed) >= self.first {
                return self.inner.dial(session, early).await;
            }
            let (near, far) = duplex(1 << 20);
            tokio::spawn(refuse(far, self.how));
            Ok(Box::new(near))
        }

        async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
            Err(DialError::Network(Network::Udp))
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
        let len = &(body.len() as u32).to_be_bytes()[1..];
        [len, &[kind, flags], &stream.to_be_bytes(), body].concat()
    }

    async fn refuse(mut conn: Duplex, how: Refusal) -> std::io::Result<()> {
        let mut seen = Vec::new();
        while !seen.ends_with(PREFACE) {
            seen.push(conn.read_u8().await?);
        }
        conn.write_all(&frame(4, 0, 0, &[])).await?;
        loop {
            let mut head = [0; 9];
            conn.read_exact(&mut head).await?;
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            conn.read_exact(&mut vec![0; len as usize]).await?;
            match (head[3], how) {
                (HEADERS, Refusal::Reset) | (DATA, Refusal::ResetLate) => {
                    conn.write_all(&frame(3, 0, stream, &7u32.to_be_bytes())).await?;
                }
                (HEADERS, Refusal::GoAway) => conn.write_all(&frame(7, 0, 0, &[0; 8])).await?,
                _ => {}
            }
        }
    }
}
