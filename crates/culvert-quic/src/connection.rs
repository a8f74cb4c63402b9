//! A connection: its streams, its datagrams, its end.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{Dir, Event, SendDatagramError, StreamEvent, StreamId, VarInt};
use thiserror::Error;

use crate::congestion::{Choice, Congestion};
use crate::driver::Mailbox;
use crate::pace::Bucket;
use crate::settings::{RECEIVE_WINDOW, SEND_WINDOW};
use crate::stream::QuicStream;
use crate::writers::Writers;

/// Why a connection has ended.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct ConnectionError(quinn_proto::ConnectionError);

impl ConnectionError {
    /// The code that the peer's application closed it with.
    #[must_use]
    pub fn application_code(&self) -> Option<u64> {
        match &self.0 {
            quinn_proto::ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
            _ => None,
        }
    }

    /// Whether it was this end that closed it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self.0, quinn_proto::ConnectionError::LocallyClosed)
    }

    /// Whether nothing came for too long.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.0, quinn_proto::ConnectionError::TimedOut)
    }
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        let kind = match &error.0 {
            quinn_proto::ConnectionError::TimedOut => io::ErrorKind::TimedOut,
            quinn_proto::ConnectionError::Reset => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

/// Why a datagram was not sent.
#[derive(Debug, Error)]
pub enum DatagramError {
    /// The path or the peer takes no more than so many bytes in one.
    #[error("datagram larger than {0} bytes")]
    TooLarge(usize),
    /// The peer takes none, or this end sends none.
    #[error("datagrams are not supported")]
    Unsupported,
    /// The connection has ended.
    #[error(transparent)]
    Ended(#[from] ConnectionError),
}

/// What streams and the driver share of a connection.
pub(crate) struct Conn {
    state: Mutex<State>,
    /// Its number at the endpoint.
    pub(crate) number: usize,
    /// It is in the driver's mailbox already.
    pub(crate) posted: AtomicBool,
    pub(crate) mailbox: Arc<Mailbox>,
    choice: Arc<Choice>,
    /// Handles in use, streams included; the last one closes the connection.
    handles: AtomicUsize,
    /// Streams in use.
    pub(crate) streams: AtomicUsize,
}

pub(crate) struct State {
    pub(crate) proto: quinn_proto::Connection,
    pub(crate) bucket: Bucket,
    pub(crate) connected: bool,
    pub(crate) ended: Option<ConnectionError>,
    pub(crate) readers: HashMap<StreamId, Waker>,
    pub(crate) writers: Writers,
    /// Chunks of one read; kept so that it need not be allocated each time.
    pub(crate) chunks: Vec<Bytes>,
    /// Those who wait for the handshake, for streams of the peer or of their own, for datagrams, for the end.
    waiting: Waiting,
    send_window: u64,
    receiving: Receiving,
    /// When something came last, and when something was sent first after that.
    heard: Instant,
    spoken: Option<Instant>,
    /// Frames sent so far that have to be answered.
    asked: u64,
}

/// How much a peer may send ahead.
struct Receiving {
    window: u64,
    /// What it may become.
    most: u64,
    /// Since when, and from which byte on, it is watched how much comes in a round trip.
    since: Instant,
    came: u64,
}

#[derive(Default)]
struct Waiting {
    handshake: Vec<Waker>,
    accept: [Vec<Waker>; 2],
    open: [Vec<Waker>; 2],
    datagrams: Vec<Waker>,
    datagram_room: Vec<Waker>,
    end: Vec<Waker>,
}

impl Conn {
    pub(crate) fn new(
        proto: quinn_proto::Connection,
        number: usize,
        mailbox: Arc<Mailbox>,
        choice: Arc<Choice>,
        receive_window: u64,
        now: Instant,
    ) -> Arc<Self> {
        let receiving = Receiving {
            window: receive_window.min(RECEIVE_WINDOW),
            most: receive_window,
            since: now,
            came: 0,
        };
        let state = State {
            proto,
            bucket: Bucket::new(now),
            connected: false,
            ended: None,
            readers: HashMap::new(),
            writers: Writers::default(),
            chunks: Vec::new(),
            waiting: Waiting::default(),
            send_window: SEND_WINDOW,
            receiving,
            heard: now,
            spoken: None,
            asked: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            number,
            posted: AtomicBool::new(false),
            mailbox,
            choice,
            handles: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the driver that there is something to send. Not to be called with the state locked for long.
    pub(crate) fn post(&self) {
        if !self.posted.swap(true, Ordering::AcqRel) {
            self.mailbox.post(self.number);
        }
    }
}

impl State {
    /// Hands the library's events on to those who wait for them.
    pub(crate) fn take_events(&mut self, wake: &mut Vec<Waker>) {
        let mut writable = Vec::new();
        while let Some(event) = self.proto.poll() {
            match event {
                Event::HandshakeDataReady => {}
                Event::Connected => {
                    self.connected = true;
                    wake.append(&mut self.waiting.handshake);
                    wake.append(&mut self.waiting.datagram_room);
                }
                Event::ConnectionLost { reason } => self.end(ConnectionError(reason), wake),
                Event::Stream(StreamEvent::Opened { dir }) => {
                    wake.append(&mut self.waiting.accept[dir as usize]);
                }
                Event::Stream(StreamEvent::Available { dir }) => {
                    wake.append(&mut self.waiting.open[dir as usize]);
                }
                Event::Stream(StreamEvent::Readable { id }) => wake.extend(self.readers.remove(&id)),
                Event::Stream(StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. }) => {
                    writable.push(id);
                }
                Event::Stream(StreamEvent::Finished { .. }) => {}
                Event::DatagramReceived => wake.append(&mut self.waiting.datagrams),
                Event::DatagramsUnblocked => wake.append(&mut self.waiting.datagram_room),
            }
        }
        self.writers.tell(writable, wake);
    }

    /// Notes the end and wakes all.
    fn end(&mut self, error: ConnectionError, wake: &mut Vec<Waker>) {
        self.ended.get_or_insert(error);
        wake.extend(self.readers.drain().map(|(_, waker)| waker));
        self.writers.end(wake);
        let Waiting { handshake, accept, open, datagrams, datagram_room, end } = &mut self.waiting;
        let [accept_bi, accept_uni] = accept;
        let [open_bi, open_uni] = open;
        for list in [handshake, accept_bi, accept_uni, open_bi, open_uni, datagrams, datagram_room, end] {
            wake.append(list);
        }
    }

    /// Ends it from this side.
    pub(crate) fn close(&mut self, code: u64, reason: &[u8], wake: &mut Vec<Waker>) {
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        self.proto.close(Instant::now(), code, Bytes::copy_from_slice(reason));
        self.end(ConnectionError(quinn_proto::ConnectionError::LocallyClosed), wake);
    }

    /// What streams may write ahead: what the controller lets be on its way, and a part of it that waits.
    pub(crate) fn fit_send_window(&mut self) {
        const MOST: u64 = 20 << 20;
        let window = self.proto.congestion_state().window();
        let wanted = (window + (window / 4).max(256 << 10)).clamp(SEND_WINDOW, MOST);
        if wanted > self.send_window || wanted < self.send_window / 2 {
            self.send_window = wanted;
            self.proto.set_send_window(wanted);
        }
    }

    /// What a peer may send ahead: eight times what has come in a round trip, so that it does not wait, not even while a packet
    /// that got lost three times holds up its stream, and memory is only taken where the path needs it.
    pub(crate) fn fit_receive_window(&mut self, now: Instant) {
        let Receiving { window, most, since, came } = self.receiving;
        if window >= most || now.saturating_duration_since(since) < self.proto.rtt() {
            return;
        }
        let all = self.proto.stats().udp_rx.bytes;
        (self.receiving.since, self.receiving.came) = (now, all);
        let wanted = (8 * (all - came)).min(most);
        if wanted >= 2 * window || (wanted == most && wanted > window) {
            self.set_receive_window(wanted);
        }
    }

    fn set_receive_window(&mut self, bytes: u64) {
        self.receiving.window = bytes;
        self.proto.set_receive_window(VarInt::from_u64(bytes).unwrap_or(VarInt::MAX));
    }

    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.heard = now;
        self.spoken = None;
    }

    /// Notes that so many bytes were sent. Those that the peer need not acknowledge are acknowledgements themselves: they
    /// are no answer to wait for, and take nothing from the bucket, so that they never wait for it either. Which they
    /// are shows in the counters of frames.
    pub(crate) fn note_sent(&mut self, bytes: usize, now: Instant) {
        if self.spoken.is_some() && !self.bucket.is_limited() {
            return;
        }
        let asking = asking_frames(&self.proto.stats().frame_tx);
        if asking != self.asked {
            self.asked = asking;
            self.spoken.get_or_insert(now);
            self.bucket.sent(bytes);
        }
    }

    fn wait(list: &mut Vec<Waker>, cx: &Context<'_>) {
        if !list.iter().any(|waker| waker.will_wake(cx.waker())) {
            list.push(cx.waker().clone());
        }
    }
}

/// Those that a peer has to acknowledge, of the kinds that are sent when there is something to say.
fn asking_frames(frames: &quinn_proto::FrameStats) -> u64 {
    frames.stream
        + frames.datagram
        + frames.crypto
        + frames.ping
        + frames.reset_stream
        + frames.stop_sending
        + frames.max_data
        + frames.max_stream_data
}

/// Wakes them all; not with anything locked.
pub(crate) fn wake_all(wake: &mut Vec<Waker>) {
    wake.drain(..).for_each(Waker::wake);
}

/// A connection. Clones are the same one; with the last of them and of its streams it is closed with code 0.
pub struct Connection(Arc<Conn>);

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close(0, b"");
        }
    }
}

impl Connection {
    pub(crate) fn new(conn: Arc<Conn>) -> Self {
        conn.handles.fetch_add(1, Ordering::Relaxed);
        Self(conn)
    }

    pub(crate) fn conn(&self) -> &Conn {
        &self.0
    }

    /// Waits for the end of the handshake.
    ///
    /// # Errors
    /// The connection ended before.
    pub async fn established(&self) -> Result<(), ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            match &state.ended {
                Some(error) => Poll::Ready(Err(error.clone())),
                None if state.connected => Poll::Ready(Ok(())),
                None => {
                    State::wait(&mut state.waiting.handshake, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Whether streams may be opened before the handshake is over, with data that others can replay.
    #[must_use]
    pub fn has_early_data(&self) -> bool {
        self.0.lock().proto.has_0rtt()
    }

    /// After the handshake: whether the server took early data. What was sent so is lost otherwise.
    #[must_use]
    pub fn early_data_accepted(&self) -> bool {
        self.0.lock().proto.accepted_0rtt()
    }

    /// Opens a stream, as soon as the peer allows one more.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open_bi(&self) -> Result<QuicStream, ConnectionError> {
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Bi)).await?;
        Ok(QuicStream::new(self.clone(), id, true, true))
    }

    /// Opens a stream to send by.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open_uni(&self) -> Result<QuicStream, ConnectionError> {
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Uni)).await?;
        Ok(QuicStream::new(self.clone(), id, false, true))
    }

    /// Opens a stream to send by, as soon as the peer allows one more; see [`Connection::open_uni`].
    pub fn poll_open_uni(&self, cx: &mut Context<'_>) -> Poll<Result<QuicStream, ConnectionError>> {
        let opened = self.poll_open(cx, Dir::Uni);
        opened.map_ok(|id| QuicStream::new(self.clone(), id, false, true))
    }

    /// Opens a stream to send by, if the peer allows one more now.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn try_open_uni(&self) -> Result<Option<QuicStream>, ConnectionError> {
        let id = self.try_open(Dir::Uni)?;
        Ok(id.map(|id| QuicStream::new(self.clone(), id, false, true)))
    }

    /// Opens a stream in both directions, if the peer allows one more.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn try_open_bi(&self) -> Result<Option<QuicStream>, ConnectionError> {
        let id = self.try_open(Dir::Bi)?;
        Ok(id.map(|id| QuicStream::new(self.clone(), id, true, true)))
    }

    fn try_open(&self, dir: Dir) -> Result<Option<StreamId>, ConnectionError> {
        let mut state = self.0.lock();
        match &state.ended {
            Some(error) => Err(error.clone()),
            None => Ok(state.proto.streams().open(dir)),
        }
    }

    /// The next stream that the peer opens.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn accept_bi(&self) -> Result<QuicStream, ConnectionError> {
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Bi)).await?;
        Ok(QuicStream::new(self.clone(), id, true, true))
    }

    /// The next stream that the peer opens to send by.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn accept_uni(&self) -> Result<QuicStream, ConnectionError> {
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Uni)).await?;
        Ok(QuicStream::new(self.clone(), id, true, false))
    }

    fn poll_open(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<StreamId, ConnectionError>> {
        let mut state = self.0.lock();
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone()));
        }
        match state.proto.streams().open(dir) {
            Some(id) => Poll::Ready(Ok(id)),
            None => {
                State::wait(&mut state.waiting.open[dir as usize], cx);
                Poll::Pending
            }
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<StreamId, ConnectionError>> {
        let mut state = self.0.lock();
        if let Some(id) = state.proto.streams().accept(dir) {
            return Poll::Ready(Ok(id));
        }
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone()));
        }
        State::wait(&mut state.waiting.accept[dir as usize], cx);
        Poll::Pending
    }

    /// Bytes that a datagram may have now; `None` if the peer takes none. It changes with the path.
    #[must_use]
    pub fn max_datagram(&self) -> Option<usize> {
        self.0.lock().proto.datagrams().max_size()
    }

    /// Sends a datagram, or leaves it in the queue; where that is full an older one makes room, as in any network.
    ///
    /// # Errors
    /// It cannot be sent at all.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        let mut state = self.0.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone().into());
        }
        let result = match state.proto.datagrams().send(data, true) {
            Ok(()) => Ok(()),
            Err(SendDatagramError::TooLarge | SendDatagramError::Blocked(_)) => {
                Err(DatagramError::TooLarge(state.proto.datagrams().max_size().unwrap_or(0)))
            }
            Err(SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled) => {
                Err(DatagramError::Unsupported)
            }
        };
        drop(state);
        self.0.post();
        result
    }

    /// Waits until `bytes` of datagrams can be queued without another one making room for them.
    pub fn poll_datagram_room(
        &self,
        cx: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), ConnectionError>> {
        let mut state = self.0.lock();
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone()));
        }
        let Some(largest) = state.proto.datagrams().max_size() else { return Poll::Ready(Ok(())) };
        let mut datagrams = state.proto.datagrams();
        if datagrams.send_buffer_space() >= bytes {
            return Poll::Ready(Ok(()));
        }
        // The library only tells those whom it turned away, so it is offered what does not fit: a datagram of zeros. If
        // that would fit, there is room enough.
        if datagrams.send_buffer_space() >= largest {
            return Poll::Ready(Ok(()));
        }
        let _ = datagrams.send(Bytes::from(vec![0; largest]), false);
        State::wait(&mut state.waiting.datagram_room, cx);
        Poll::Pending
    }

    /// Puts the datagrams that have come at the end of `to`, at most `most`, and waits for one if there is none.
    pub fn poll_datagrams(
        &self,
        cx: &mut Context<'_>,
        to: &mut Vec<Bytes>,
        most: usize,
    ) -> Poll<Result<(), ConnectionError>> {
        let mut state = self.0.lock();
        let before = to.len();
        while to.len() < before + most
            && let Some(datagram) = state.proto.datagrams().recv()
        {
            to.push(datagram);
        }
        if to.len() > before {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone()));
        }
        State::wait(&mut state.waiting.datagrams, cx);
        Poll::Pending
    }

    /// The same as a future.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn recv_datagrams(&self, to: &mut Vec<Bytes>, most: usize) -> Result<(), ConnectionError> {
        poll_fn(|cx| self.poll_datagrams(cx, to, most)).await
    }

    /// The network is another one: a client goes on from another socket, where its link can open one, and tells the server.
    pub fn rebind(&self) {
        self.0.mailbox.rebind();
    }

    /// Changes the congestion control, from the next packet on.
    pub fn set_congestion(&self, congestion: Congestion) {
        self.0.choice.set(congestion);
    }

    /// Sets how many bytes the peer may send ahead in all streams together, at most; what it was allowed before stays
    /// allowed.
    pub fn set_receive_window(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.receiving.most = bytes;
        state.set_receive_window(bytes.min(RECEIVE_WINDOW));
        drop(state);
        self.0.post();
    }

    /// Derives bytes from the secrets of the handshake (RFC 8446 section 7.5), once that is over.
    ///
    /// # Errors
    /// The handshake is not over, or the length is out of question.
    pub fn export_keying_material(&self, to: &mut [u8], label: &[u8], context: &[u8]) -> io::Result<()> {
        let state = self.0.lock();
        let exported = state.proto.crypto_session().export_keying_material(to, label, context);
        exported.map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// The application protocol that was agreed on, and the name that the client asked for (known to a server only).
    #[must_use]
    pub fn facts(&self) -> (Option<Vec<u8>>, Option<String>) {
        let state = self.0.lock();
        let data = state.proto.crypto_session().handshake_data();
        let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
        data.map_or((None, None), |data| (data.protocol, data.server_name))
    }

    /// The peer's address; it changes where a client moves.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.0.lock().proto.remote_address()
    }

    /// This end's address, where it is known: a server's, by the packets that came.
    #[must_use]
    pub fn local_ip(&self) -> Option<std::net::IpAddr> {
        self.0.lock().proto.local_ip()
    }

    /// Streams of it that are in use at this end.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Which part of the time its driver has had something to do lately, in hundredths. A driver that always has, keeps a core
    /// busy.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.0.mailbox.load()
    }

    /// The round trip, smoothed.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.0.lock().proto.rtt()
    }

    /// The library's counters, for tests and for those who look for faults.
    #[must_use]
    pub fn stats(&self) -> quinn_proto::ConnectionStats {
        self.0.lock().proto.stats()
    }

    /// How long nothing has come since something was sent that has to be answered; `None` if all was.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.0.lock().spoken.map(|since| since.elapsed())
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn error(&self) -> Option<ConnectionError> {
        self.0.lock().ended.clone()
    }

    /// Waits for its end.
    pub async fn closed(&self) -> ConnectionError {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some(error) = &state.ended {
                return Poll::Ready(error.clone());
            }
            State::wait(&mut state.waiting.end, cx);
            Poll::Pending
        })
        .await
    }

    /// Ends it at once; the peer is told the code and the reason. The first call counts.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let mut wake = Vec::new();
        let mut state = self.0.lock();
        if state.ended.is_none() {
            state.close(code, reason, &mut wake);
        }
        drop(state);
        wake_all(&mut wake);
        self.0.post();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.remote())
    }
}
