//! The loop of one socket: receives, feeds the state machines, paces, sends.
//!
//! Each turn receives one batch, hands its packets to their connections, runs the timers that are due, and lets every
//! connection with something to do make packets, a few trains each so that none waits long for another. Streams write into
//! their connection from tasks of their own, and leave a note in the [`Mailbox`].
//!
//! A server has several drivers, each with a socket of its own on the one port. A connection stays with the driver it began
//! at: its ids say which one that is (`ids.rs`), and what comes to another one's socket is handed over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint};
use tokio::time::Sleep;

use crate::congestion::Choice;
use crate::connection::{Conn, Connection, wake_all};
use crate::endpoint::Accepting;
use crate::link::{Link, Received};

/// Turns before other tasks of the thread have theirs.
const TURNS: usize = 16;
/// Trains that one connection sends before the next one has its turn.
const TRAINS: usize = 4;
/// Datagrams in a train at most.
const SEGMENTS: usize = 45;
/// How long a driver is watched before its load is told.
const WATCHED: Duration = Duration::from_millis(250);
/// Packets that wait to be taken over from other drivers.
const FORWARDED: usize = 4096;

/// Where connections leave notes for the driver.
#[derive(Default)]
pub(crate) struct Mailbox {
    notes: Mutex<Notes>,
    /// Which part of the last while the driver was at work, in hundredths.
    load: AtomicU32,
}

#[derive(Default)]
struct Notes {
    /// Connections with something to send.
    posted: Vec<usize>,
    waker: Option<Waker>,
    /// Nobody accepts any more; when the last connection has gone the driver ends.
    closing: bool,
    /// All connections are to end now, too.
    ending: bool,
    /// The network is another one.
    rebinding: bool,
    /// Packets that came to the sockets of others.
    packets: Vec<Forwarded>,
}

/// A packet for a connection of another driver.
struct Forwarded {
    datagram: BytesMut,
    source: SocketAddr,
    local: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, number: usize) {
        self.note(|notes| notes.posted.push(number));
    }

    pub(crate) fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    fn note(&self, change: impl FnOnce(&mut Notes)) {
        let mut notes = self.lock();
        change(&mut notes);
        let waker = notes.waker.take();
        drop(notes);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// No more connections are accepted; with `all` those that there are end too.
    pub(crate) fn close(&self, all: bool) {
        self.note(|notes| {
            notes.closing = true;
            notes.ending |= all;
        });
    }

    /// The network is another one: a client goes on from another socket.
    pub(crate) fn rebind(&self) {
        self.note(|notes| notes.rebinding = true);
    }

    /// Hands over a packet, unless too many wait.
    fn forward(&self, packet: Forwarded) {
        self.note(|notes| {
            if notes.packets.len() < FORWARDED {
                notes.packets.push(packet);
            }
        });
    }
}

struct Slot {
    conn: Arc<Conn>,
    /// What stands in the table of timers for it.
    timer: Option<Instant>,
    /// It is in the queue of those that have something to do.
    queued: bool,
    /// A client of ours that has not finished its handshake.
    handshaking: bool,
}

/// See the module.
pub(crate) struct Driver {
    link: Link,
    endpoint: Endpoint,
    mailbox: Arc<Mailbox>,
    slots: HashMap<usize, Slot>,
    timers: BTreeSet<(Instant, usize)>,
    queue: VecDeque<usize>,
    accepting: Option<Arc<Accepting>>,
    /// Which one of the server's drivers this is.
    shard: u8,
    sleep: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    /// Since when it is watched how long it works, and how long that was.
    watched_since: Instant,
    worked: Duration,
    closing: bool,
    /// All connections have been told to end; nothing is waited for.
    ended: bool,
    /// Used within a turn, kept for their memory.
    received: Vec<Received>,
    datagrams: Vec<BytesMut>,
    events: Vec<(ConnectionHandle, ConnectionEvent)>,
    wake: Vec<Waker>,
}

impl Driver {
    pub(crate) fn new(
        link: Link,
        endpoint: Endpoint,
        mailbox: Arc<Mailbox>,
        accepting: Option<(Arc<Accepting>, u8)>,
    ) -> Self {
        let (accepting, shard) = accepting.map_or((None, 0), |(accepting, shard)| (Some(accepting), shard));
        Self {
            link,
            endpoint,
            mailbox,
            shard,
            slots: HashMap::new(),
            timers: BTreeSet::new(),
            queue: VecDeque::new(),
            watched_since: Instant::now(),
            worked: Duration::ZERO,
            closing: accepting.is_none(),
            ended: false,
            accepting,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
            received: Vec::new(),
            datagrams: Vec::new(),
            events: Vec::new(),
            wake: Vec::new(),
        }
    }

    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Takes over a connection that the endpoint has made.
    pub(crate) fn adopt(
        &mut self,
        handle: ConnectionHandle,
        proto: quinn_proto::Connection,
        choice: Arc<Choice>,
        receive_window: u64,
        now: Instant,
    ) -> Connection {
        let handshaking = self.accepting.is_some();
        if let Some(accepting) = &self.accepting {
            accepting.count(1, 1);
        }
        let conn = Conn::new(proto, handle.0, Arc::clone(&self.mailbox), choice, receive_window, now);
        let connection = Connection::new(Arc::clone(&conn));
        self.slots.insert(handle.0, Slot { conn, timer: None, queued: false, handshaking });
        self.enqueue(handle.0);
        connection
    }

    fn enqueue(&mut self, number: usize) {
        if let Some(slot) = self.slots.get_mut(&number)
            && !std::mem::replace(&mut slot.queued, true)
        {
            self.queue.push_back(number);
        }
    }

    /// Reads the notes. Whether there were any.
    fn read_notes(&mut self, cx: &Context<'_>) -> bool {
        let mut notes = self.mailbox.lock();
        if !notes.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            notes.waker = Some(cx.waker().clone());
        }
        let posted = std::mem::take(&mut notes.posted);
        let ending = std::mem::take(&mut notes.ending);
        let rebinding = std::mem::take(&mut notes.rebinding);
        let packets = std::mem::take(&mut notes.packets);
        self.closing |= notes.closing;
        drop(notes);
        for &number in &posted {
            if let Some(slot) = self.slots.get(&number) {
                slot.conn.posted.store(false, Ordering::Release);
            }
            self.enqueue(number);
        }
        if rebinding {
            self.rebind();
        }
        if ending {
            self.end_all();
        }
        let any = !posted.is_empty() || !packets.is_empty() || ending || rebinding;
        if !packets.is_empty() {
            self.take_over(packets);
        }
        // Its memory is used again.
        let mut posted = posted;
        posted.clear();
        let mut notes = self.mailbox.lock();
        if notes.posted.is_empty() {
            notes.posted = posted;
        }
        any
    }

    /// Goes on from another socket, and tells the peers at once where that is.
    fn rebind(&mut self) {
        if !self.link.reopen() {
            return;
        }
        let numbers: Vec<_> = self.slots.keys().copied().collect();
        for number in numbers {
            if let Some(slot) = self.slots.get(&number) {
                slot.conn.lock().proto.local_address_changed();
            }
            self.enqueue(number);
        }
    }

    fn end_all(&mut self) {
        self.ended = true;
        let numbers: Vec<_> = self.slots.keys().copied().collect();
        for number in numbers {
            if let Some(slot) = self.slots.get(&number) {
                let mut state = slot.conn.lock();
                if state.ended.is_none() {
                    state.close(0, b"", &mut self.wake);
                }
            }
            self.enqueue(number);
        }
        wake_all(&mut self.wake);
    }

    fn receive(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<std::io::Result<()>> {
        let mut received = std::mem::take(&mut self.received);
        let result = self.link.poll_recv(cx, &mut received);
        for message in received.drain(..) {
            self.take_message(message, now);
        }
        self.received = received;
        self.deliver(now);
        result
    }

    fn take_message(&mut self, message: Received, now: Instant) {
        let (source, local, ecn) = (message.source, message.local, message.ecn);
        let mut datagrams = std::mem::take(&mut self.datagrams);
        self.link.open(message, |datagram| datagrams.push(datagram));
        for datagram in datagrams.drain(..) {
            // The kernel tells clients apart by address, and a client that has moved may have come to another's socket.
            let accepting = self.accepting.as_ref().filter(|accepting| accepting.is_shared());
            if let Some(other) = accepting.and_then(|all| all.other(self.shard, &datagram)) {
                other.forward(Forwarded { datagram, source, local, ecn });
            } else {
                self.handle(Forwarded { datagram, source, local, ecn }, now);
            }
        }
        self.datagrams = datagrams;
    }

    /// Packets of this driver's connections that others have received.
    fn take_over(&mut self, packets: Vec<Forwarded>) {
        let now = Instant::now();
        for packet in packets {
            self.handle(packet, now);
        }
        self.deliver(now);
    }

    fn handle(&mut self, packet: Forwarded, now: Instant) {
        let Forwarded { datagram, source, local, ecn } = packet;
        let mut buffer = self.link.buffer();
        match self.endpoint.handle(now, source, local, ecn, datagram, &mut buffer) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => self.events.push((handle, event)),
            Some(DatagramEvent::Response(transmit)) => {
                return self.link.push(&transmit, buffer);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.admit(incoming, &mut buffer, now),
        }
        self.link.give_back(buffer);
    }

    /// Decides about a stranger.
    fn admit(&mut self, incoming: quinn_proto::Incoming, buffer: &mut Vec<u8>, now: Instant) {
        let Some(accepting) = self.accepting.clone().filter(|_| !self.closing) else {
            return self.endpoint.ignore(incoming);
        };
        let limits = &accepting.limits;
        let (connections, handshaking) = accepting.counted();
        if connections >= limits.connections || handshaking >= limits.handshakes {
            return self.endpoint.ignore(incoming);
        }
        if handshaking >= limits.unasked && !incoming.remote_address_validated() {
            // Whether it is who it says it is costs nothing to find out.
            if incoming.may_retry()
                && let Ok(transmit) = self.endpoint.retry(incoming, buffer)
            {
                self.link.push(&transmit, std::mem::take(buffer));
            }
            return;
        }
        let (config, choice) = accepting.config(incoming.remote_address());
        match self.endpoint.accept(incoming, now, buffer, Some(config)) {
            Ok((handle, proto)) => {
                let connection = self.adopt(handle, proto, choice, accepting.receive_window(), now);
                accepting.put(connection);
            }
            Err(error) => {
                tracing::debug!("connection not accepted: {}", error.cause);
                if let Some(transmit) = error.response {
                    self.link.push(&transmit, std::mem::take(buffer));
                }
            }
        }
    }

    /// Hands what has come to the connections, one lock for each run of packets of one of them.
    fn deliver(&mut self, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        let mut all = events.drain(..).peekable();
        while let Some((handle, event)) = all.next() {
            let Some(slot) = self.slots.get(&handle.0) else { continue };
            let conn = Arc::clone(&slot.conn);
            let mut state = conn.lock();
            state.note_heard(now);
            state.proto.handle_event(event);
            while let Some((_, event)) = all.next_if(|(next, _)| *next == handle) {
                state.proto.handle_event(event);
            }
            drop(state);
            self.enqueue(handle.0);
        }
        drop(all);
        self.events = events;
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(slot) = self.slots.get_mut(&number) {
                slot.timer = None;
                slot.conn.lock().proto.handle_timeout(now);
            }
            self.enqueue(number);
        }
        self.link.turn(now);
    }

    /// Lets one connection do what it has to do. Whether it has more.
    fn serve(&mut self, number: usize, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else { return false };
        let conn = Arc::clone(&slot.conn);
        let mut state = conn.lock();
        let mut drained = false;
        while let Some(event) = state.proto.poll_endpoint_events() {
            drained |= event.is_drained();
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(number), event) {
                state.proto.handle_event(event);
            }
        }
        state.take_events(&mut self.wake);
        if slot.handshaking && (state.connected || state.ended.is_some()) {
            slot.handshaking = false;
            if let Some(accepting) = &self.accepting {
                accepting.count(0, -1);
            }
        }
        let mut more = false;
        let mut paced = None;
        if !drained {
            state.fit_send_window();
            state.fit_receive_window(now);
            let mtu = state.proto.current_mtu();
            let rate = state.proto.congestion_state().metrics().pacing_rate.map(|bits| bits / 8);
            state.bucket.set_rate(rate, now, mtu);
            let most = self.link.segments(mtu.into()).min(SEGMENTS);
            for train in 0.. {
                if train == TRAINS || self.link.is_full() {
                    more = true;
                    break;
                }
                let packets = match state.bucket.packets(now, mtu) {
                    Ok(packets) => packets.min(most),
                    Err(at) => {
                        paced = Some(at);
                        break;
                    }
                };
                let mut buffer = self.link.buffer();
                let Some(transmit) = state.proto.poll_transmit(now, packets, &mut buffer) else {
                    self.link.give_back(buffer);
                    break;
                };
                state.note_sent(transmit.size, now);
                self.link.push(&transmit, buffer);
            }
        }
        let timer = [state.proto.poll_timeout(), paced].into_iter().flatten().min();
        drop(state);
        wake_all(&mut self.wake);
        if let Some(old) = slot.timer
            && Some(old) != timer
        {
            self.timers.remove(&(old, number));
        }
        if drained {
            self.slots.remove(&number);
            if let Some(accepting) = &self.accepting {
                accepting.count(-1, 0);
            }
            return false;
        }
        if slot.timer != timer {
            slot.timer = timer;
            self.timers.extend(timer.map(|at| (at, number)));
        }
        more
    }

    /// One turn. Whether there may be more to do at once.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let mut busy = self.read_notes(cx);
        let now = Instant::now();
        match self.receive(cx, now) {
            Poll::Ready(Ok(())) => busy = true,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {}
        }
        self.run_timers(now);
        let flushed = self.link.poll_flush(cx)?.is_ready();
        if flushed {
            for _ in 0..self.queue.len() {
                if self.link.is_full() && !self.link.poll_flush(cx)?.is_ready() {
                    break;
                }
                let Some(number) = self.queue.pop_front() else { break };
                if let Some(slot) = self.slots.get_mut(&number) {
                    slot.queued = false;
                }
                if self.serve(number, now) {
                    self.enqueue(number);
                    busy = true;
                }
            }
            if !self.link.poll_flush(cx)?.is_ready() {
                return Poll::Ready(Ok(false));
            }
            busy |= !self.queue.is_empty();
        }
        Poll::Ready(Ok(busy))
    }

    /// Sets the alarm for what is due next. Whether it is due already.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let timer = self.timers.first().map(|(at, _)| *at);
        let Some(next) = [timer, self.link.deadline()].into_iter().flatten().min() else { return false };
        // An alarm that is too early is cheaper than setting it each time.
        if self.armed.is_none_or(|armed| next < armed) {
            self.sleep.as_mut().reset(next.into());
            self.armed = Some(next);
        }
        if self.sleep.as_mut().poll(cx).is_ready() {
            self.armed = None;
            return true;
        }
        false
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let began = Instant::now();
        let result = self.run(cx);
        self.note_work(began, Instant::now());
        result
    }
}

impl Driver {
    /// Notes when it was at work.
    fn note_work(&mut self, began: Instant, ended: Instant) {
        self.worked += ended - began;
        let passed = ended - self.watched_since;
        if passed >= WATCHED {
            let part = 100.0 * self.worked.as_secs_f64() / passed.as_secs_f64();
            self.mailbox.load.store(part as u32, Ordering::Relaxed);
            (self.watched_since, self.worked) = (ended, Duration::ZERO);
        }
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let driver = self;
        for _ in 0..TURNS {
            let Poll::Ready(turn) = driver.turn(cx) else { return Poll::Pending };
            match turn {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!("the socket of a QUIC endpoint failed: {error}");
                    driver.fail();
                    return Poll::Ready(());
                }
            }
            let done = driver.ended || (driver.closing && driver.slots.is_empty());
            if done && driver.link.is_flushed() {
                return Poll::Ready(());
            }
            if !driver.arm(cx) {
                driver.link.rest();
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The socket is gone: so are the connections.
    fn fail(&mut self) {
        self.end_all();
        self.slots.clear();
    }
}

/// A program that ends tells its peers so, as far as that goes without waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.end();
        }
        if self.slots.is_empty() {
            return;
        }
        self.end_all();
        let now = Instant::now();
        for slot in self.slots.values() {
            let mut buffer = Vec::new();
            if let Some(transmit) = slot.conn.lock().proto.poll_transmit(now, 1, &mut buffer) {
                self.link.push(&transmit, buffer);
            }
            if self.link.is_full() {
                self.link.flush_now();
            }
        }
        self.link.flush_now();
    }
}
