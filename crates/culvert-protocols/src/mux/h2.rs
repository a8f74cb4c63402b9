//! A session of HTTP/2, without TLS and without an upgrade: each stream is a CONNECT request that is answered with 200 at
//! once, and its bytes are those of the two bodies.
//!
//! Windows are the protocol's: a slow stream holds back at most its own, and takes no part of the connection's that the
//! others would need before many are slow at once.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use culvert_core::timeouts::{MUX_PING, MUX_PING_ANSWER};
use culvert_core::{BoxStream, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream, client, server};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::gather::Gather;
use super::life::Life;
use super::{Event, MAX_STREAMS_H2};
use crate::repeated::is_refusal;

/// What the other end of one stream may send before it is read, for either side. sing-box has the same numbers.
const WINDOW_CLIENT: u32 = 4 << 20;
const WINDOW_SERVER: u32 = 1 << 20;
/// The same for all streams together.
const WINDOW_ALL_CLIENT: u32 = 32 << 20;
const WINDOW_ALL_SERVER: u32 = 16 << 20;
/// Longest frame that is taken.
const FRAME: u32 = 32 << 10;
/// Most of one stream that waits to be sent.
const QUEUE: usize = 128 << 10;
/// Most bytes of a stream that are sent without asking whether they may be.
const FIRST: usize = 16 << 10;
/// Most bytes that one read takes.
const MOST_READ: usize = 128 << 10;
/// Most bytes in one piece of what is read.
const PIECE: usize = 16 << 10;

/// What streams and driver share.
struct Shared {
    life: Life,
    live: AtomicUsize,
    closed: AtomicBool,
    driver: Mutex<Option<Waker>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            life: Life::new(),
            live: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            driver: Mutex::new(None),
        })
    }

    fn driver(&self) -> MutexGuard<'_, Option<Waker>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream counts as long as this lives.
struct Live(Arc<Shared>);

impl Live {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.live.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.0.live.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(driver) = self.0.driver().take()
        {
            driver.wake();
        }
    }
}

/// The client's handle of a session. The session ends when this and all streams are gone.
pub(super) struct Client {
    requests: Mutex<SendRequest<Payload>>,
    shared: Arc<Shared>,
}

impl Client {
    /// A session on `conn`, with `owed` before its first bytes, and what drives it.
    pub(super) async fn new(conn: BoxStream, owed: &[u8]) -> io::Result<(Self, ClientDriver)> {
        let shared = Shared::new();
        let lower = Lower::new(conn, BufChain::new(), owed, &shared);
        let (requests, mut conn) = client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW_CLIENT)
            .initial_connection_window_size(WINDOW_ALL_CLIENT)
            .max_frame_size(FRAME)
            .max_header_list_size(16 << 10)
            .max_send_buffer_size(QUEUE)
            .handshake(lower)
            .await
            .map_err(io_error)?;
        let pulse = Pulse::new(conn.ping_pong());
        let driver = ClientDriver { conn, pulse, shared: Arc::clone(&shared) };
        Ok((Self { requests: Mutex::new(requests), shared }, driver))
    }

    /// Opens a stream. `None` if the session takes none.
    pub(super) fn open(&self) -> Option<Stream> {
        let mut requests = self.ready_requests()?;
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = http::Uri::from_static("localhost");
        let (response, send) = requests.send_request(request, false).ok()?;
        drop(requests);
        self.shared.life.expect();
        Some(Stream::new(send, Receiving::Waiting(response), Live::new(&self.shared)))
    }

    /// Whether a stream may be opened; see [`Life::is_late`].
    pub(super) fn can_open(&self, patience: Duration) -> bool {
        !self.shared.life.is_late(patience) && self.ready_requests().is_some()
    }

    pub(super) fn live(&self) -> usize {
        self.shared.live.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    fn ready_requests(&self) -> Option<MutexGuard<'_, SendRequest<Payload>>> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = requests.current_max_send_streams();
        if self.is_closed() || self.live() >= limit {
            return None;
        }
        match requests.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Some(requests),
            Poll::Ready(Err(_)) => {
                self.shared.closed.store(true, Ordering::Release);
                None
            }
            Poll::Pending => None,
        }
    }
}

/// Drives a client's session until it ends.
pub(super) struct ClientDriver {
    conn: client::Connection<Lower, Payload>,
    pulse: Pulse,
    shared: Arc<Shared>,
}

impl ClientDriver {
    /// Runs to the end; with `idle_limit` reached without streams, that is [`Event::Unused`].
    pub(super) async fn run(mut self, idle_limit: Duration) -> Event {
        let mut idle_since = Some(Instant::now());
        std::future::poll_fn(|cx| {
            *self.shared.driver() = Some(cx.waker().clone());
            if let Err(error) = self.pulse.poll(cx, &self.shared.life) {
                return Poll::Ready(Event::Ended(error));
            }
            idle_since = match (self.shared.live.load(Ordering::Acquire), idle_since) {
                (0, None) => Some(Instant::now()),
                (0, since) => since,
                _ => None,
            };
            // The pulse beats often enough to look at this.
            if idle_since.is_some_and(|since| since.elapsed() >= idle_limit) {
                self.shared.closed.store(true, Ordering::Release);
                if self.shared.live.load(Ordering::Acquire) == 0 {
                    return Poll::Ready(Event::Unused);
                }
            }
            Pin::new(&mut self.conn).poll(cx).map(|end| {
                Event::Ended(end.err().map_or_else(|| io::ErrorKind::UnexpectedEof.into(), io_error))
            })
        })
        .await
    }
}

impl Drop for ClientDriver {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}

/// A server's session.
pub(super) struct Server {
    conn: server::Connection<Lower, Payload>,
    pulse: Pulse,
    shared: Arc<Shared>,
    idle: bool,
    idle_since: Instant,
    idle_limit: Duration,
}

impl Server {
    /// A session on `conn`, of which `read` has come already.
    pub(super) async fn new(conn: BoxStream, read: BufChain, idle_limit: Duration) -> io::Result<Self> {
        let shared = Shared::new();
        let lower = Lower::new(conn, read, &[], &shared);
        let mut conn = server::Builder::new()
            .initial_window_size(WINDOW_SERVER)
            .initial_connection_window_size(WINDOW_ALL_SERVER)
            .max_concurrent_streams(MAX_STREAMS_H2)
            .max_frame_size(FRAME)
            .max_header_list_size(16 << 10)
            .max_send_buffer_size(QUEUE)
            .handshake(lower)
            .await
            .map_err(io_error)?;
        let pulse = Pulse::new(conn.ping_pong());
        Ok(Self { conn, pulse, shared, idle: true, idle_since: Instant::now(), idle_limit })
    }

    /// Drives the session until something happens that its owner must know of. Nothing is lost if this is dropped.
    pub(super) async fn next(&mut self) -> Event {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        *self.shared.driver() = Some(cx.waker().clone());
        if let Err(error) = self.pulse.poll(cx, &self.shared.life) {
            return Poll::Ready(Event::Ended(error));
        }
        match self.conn.poll_accept(cx) {
            Poll::Ready(Some(Ok((request, mut respond)))) => {
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::OK;
                // A request that was taken back meanwhile is found out by its stream.
                return match respond.send_response(response, false) {
                    Ok(send) => {
                        self.idle = false;
                        let receive = Receiving::Open(request.into_body());
                        let stream = Stream::new(send, receive, Live::new(&self.shared));
                        Poll::Ready(Event::Opened(Box::new(stream)))
                    }
                    Err(_) => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                };
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Event::Ended(io_error(error))),
            Poll::Ready(None) => return Poll::Ready(Event::Ended(io::ErrorKind::UnexpectedEof.into())),
            Poll::Pending => {}
        }
        if self.shared.live.load(Ordering::Acquire) > 0 {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.idle, true) {
            self.idle_since = Instant::now();
            return Poll::Ready(Event::Idle);
        }
        if self.idle_since.elapsed() >= self.idle_limit {
            return Poll::Ready(Event::Unused);
        }
        Poll::Pending
    }

    /// Says good-bye; for a session without streams.
    pub(super) async fn close(mut self) {
        self.conn.abrupt_shutdown(Reason::NO_ERROR);
        let ending = std::future::poll_fn(|cx| self.conn.poll_closed(cx));
        let _ = tokio::time::timeout(Duration::from_secs(1), ending).await;
    }
}

/// Asks for signs of life where nothing comes.
struct Pulse {
    ping: Option<PingPong>,
    asked: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Pulse {
    fn new(ping: Option<PingPong>) -> Self {
        Self { ping, asked: None, timer: Box::pin(tokio::time::sleep(MUX_PING)) }
    }

    /// # Errors
    /// There is none.
    fn poll(&mut self, cx: &mut Context<'_>, life: &Life) -> io::Result<()> {
        let Some(ping) = &mut self.ping else { return Ok(()) };
        if self.asked.is_some() && ping.poll_pong(cx).is_ready() {
            self.asked = None;
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let next = match self.asked {
                Some(asked) if life.heard() <= asked && now >= asked + MUX_PING_ANSWER => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "peer gave no sign of life"));
                }
                Some(asked) if life.heard() <= asked => asked + MUX_PING_ANSWER,
                None if now >= life.heard() + MUX_PING => {
                    if ping.send_ping(Ping::opaque()).is_ok() {
                        self.asked = Some(now);
                    }
                    now + MUX_PING_ANSWER
                }
                _ => now.max(life.heard() + MUX_PING),
            };
            self.timer.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
        Ok(())
    }
}

/// Why a stream is reset that breaks off.
const BROKEN: Reason = Reason::INTERNAL_ERROR;

/// A stream.
pub(super) struct Stream {
    send: SendStream<Payload>,
    receive: Receiving,
    /// Read and not yet given on.
    read: BufChain,
    /// Nothing has been sent.
    fresh: bool,
    shut: bool,
    aborts: bool,
    live: Live,
}

enum Receiving {
    /// For the answer to the request.
    Waiting(ResponseFuture),
    Open(RecvStream),
}

impl Stream {
    fn new(send: SendStream<Payload>, receive: Receiving, live: Live) -> Self {
        Self { send, receive, read: BufChain::new(), fresh: true, shut: false, aborts: false, live }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut RecvStream>> {
        if let Receiving::Waiting(response) = &mut self.receive {
            let response = ready!(Pin::new(response).poll(cx)).map_err(|error| {
                if is_refusal(&error) {
                    // Whoever is opened in its place goes elsewhere.
                    self.live.0.closed.store(true, Ordering::Release);
                }
                io_error(error)
            })?;
            if response.status() != StatusCode::OK {
                let reason = format!("server answered with status {}", response.status().as_u16());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason)));
            }
            self.receive = Receiving::Open(response.into_body());
        }
        match &mut self.receive {
            Receiving::Open(body) => Poll::Ready(Ok(body)),
            Receiving::Waiting(_) => Poll::Pending, // replaced above
        }
    }

    /// Takes what is there, copied into pieces with room; nothing is the end.
    fn poll_take(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        let has_ended = self.shut;
        let body = ready!(self.poll_open(cx))?;
        let mut pieces = Pieces { room, chain: BufChain::new(), last: None };
        let mut total = 0;
        while total < MOST_READ {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    pieces.put(&data);
                    total += data.len();
                    // It fails only for a stream that is over.
                    let _ = body.flow_control().release_capacity(data.len());
                }
                // After its last bytes a server may say that it wants no more of ours.
                Poll::Ready(Some(Err(error))) if error.reason() == Some(Reason::NO_ERROR) => break,
                Poll::Ready(Some(Err(error))) if has_ended && is_farewell(&error) => break,
                Poll::Ready(Some(Err(error))) if total == 0 => return Poll::Ready(Err(io_error(error))),
                Poll::Pending if total == 0 => return Poll::Pending,
                Poll::Ready(Some(Err(_)) | None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(pieces.whole()))
    }

    /// How much may be sent, once anything may. A little may at once, to leave together with the head.
    fn poll_capacity(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        if std::mem::replace(&mut self.fresh, false) {
            return Poll::Ready(Ok(FIRST));
        }
        self.send.reserve_capacity(wanted.min(QUEUE));
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(self.send.capacity()))
    }
}

/// Whether a reset behind our own end is no more than the peer's: Go's client cannot end a stream otherwise then. Ours says
/// [`BROKEN`] where a stream breaks off.
fn is_farewell(error: &h2::Error) -> bool {
    error.is_reset() && error.is_remote() && error.reason() == Some(Reason::CANCEL)
}

/// Copies of what came, in as few pieces as the room allows.
struct Pieces {
    room: Room,
    chain: BufChain,
    last: Option<Buf>,
}

impl Pieces {
    fn put(&mut self, mut bytes: &[u8]) {
        let Room { head, tail, max } = self.room;
        let most = max.min(PIECE);
        while !bytes.is_empty() {
            let last = self.last.get_or_insert_with(|| Buf::new(most, head, tail));
            let (now, later) = bytes.split_at((most - last.len()).min(bytes.len()));
            last.append(now);
            if last.len() == most {
                self.chain.extend(self.last.take());
            }
            bytes = later;
        }
    }

    fn whole(mut self) -> BufChain {
        self.chain.extend(self.last.take());
        self.chain
    }
}

impl StreamConn for Stream {
    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.read.is_empty() {
            return self.poll_take(cx, room);
        }
        let mut read = std::mem::take(&mut self.read);
        read.fit(room);
        Poll::Ready(Ok(read))
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        while !data.is_empty() {
            let capacity = ready!(self.poll_capacity(cx, data.len()))?;
            let part = data.take_front(capacity.min(data.len()));
            self.send.send_data(Payload(part), false).map_err(io_error)?;
        }
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        self.aborts = true;
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.read.is_empty() {
            self.read = ready!(self.poll_take(cx, Room::NONE))?;
        }
        let count = self.read.front().len().min(to.remaining());
        to.put_slice(&self.read.front()[..count]);
        self.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = ready!(self.poll_capacity(cx, from.len()))?.min(from.len());
        let part = BufChain::copied(&from[..count]);
        self.send.send_data(Payload(part), false).map_err(io_error)?;
        Poll::Ready(Ok(count))
    }

    /// The driver sends what is queued as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.shut, true) {
            // It fails where the peer wants nothing more, which is as good.
            let _ = self.send.send_data(Payload(BufChain::new()), true);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// An end, unless the stream is to break off. What then still comes is refused.
    fn drop(&mut self) {
        if self.aborts {
            self.send.send_reset(BROKEN);
        } else if !self.shut {
            let _ = self.send.send_data(Payload(BufChain::new()), true);
        }
    }
}

/// What a stream sends, in the pieces it came in.
pub(super) struct Payload(BufChain);

impl bytes::Buf for Payload {
    fn remaining(&self) -> usize {
        self.0.len()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front()
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.0.io_slices(slices)
    }
}

/// The carrier as HTTP/2 wants it. What is written is copied into pieces with the room that the layers below want, which
/// leave together.
struct Lower {
    conn: BoxStream,
    read: BufChain,
    out: Gather,
    shared: Arc<Shared>,
}

/// Bytes after which a write is not only gathered.
const GATHER: usize = 128 << 10;

impl Lower {
    fn new(conn: BoxStream, read: BufChain, owed: &[u8], shared: &Arc<Shared>) -> Self {
        let mut out = Gather::of_copies(conn.room());
        out.put(owed);
        Self { conn, read, out, shared: Arc::clone(shared) }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.conn.poll_write_chain(cx, self.out.whole())
    }
}

impl AsyncRead for Lower {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read.is_empty() {
            ready!(Pin::new(&mut this.conn).poll_read(cx, to))?;
        } else {
            let count = this.read.front().len().min(to.remaining());
            to.put_slice(&this.read.front()[..count]);
            this.read.advance(count);
        }
        this.shared.life.hear();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lower {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.out.len() >= GATHER {
            ready!(this.poll_drain(cx))?;
        }
        if this.out.is_empty() {
            this.out.set_room(this.conn.room());
        }
        slices.iter().for_each(|slice| this.out.put(slice));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into());
    }
    match error.reason() {
        Some(_) if error.is_reset() => io::Error::new(io::ErrorKind::ConnectionReset, error),
        _ => io::Error::other(error),
    }
}
