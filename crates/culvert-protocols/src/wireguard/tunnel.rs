//! What is sent: packets of the stack, cut and laid out under the stack's lock, sealed and sent outside of it.
//!
//! There is one queue, so that packets leave in the order that the stack made them. Whoever has put something in looks
//! whether somebody is at it already; if not, he empties it. So one task may run the stack while another seals.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use culvert_stack::Outgoing;
use culvert_stack::train::{self, Layout};
use culvert_wire::Buf;
use culvert_wireguard::{Device, Event, HEAD, PADDING, PeerId, Routes, Sending, TAG, Transmit, routes};
use tokio::sync::Notify;

use super::wire::{Train, Wire};
use crate::netstack::Link;

/// Bytes in the queue above which the stack waits.
const QUEUE: usize = 1 << 20;
/// Bytes that wait for the handshake of one peer.
const STAGED: usize = 256 << 10;
/// Trains that are sealed before they are sent.
const BATCH: usize = 16;

/// Packets for one peer, laid out to be sealed.
struct Job {
    peer: PeerId,
    data: Buf,
    stride: usize,
    count: usize,
}

impl Job {
    /// Memory that it takes.
    fn cost(&self) -> usize {
        self.data.head() + self.data.len() + self.data.spare()
    }
}

enum Entry {
    Seal(Job),
    /// Already a datagram.
    Ready(Transmit),
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The stack was told to wait.
    refused: bool,
}

/// The handshakes, and what waits for them.
struct Sessions {
    device: Device,
    staged: Vec<VecDeque<Job>>,
    /// When the receiving task will look at the timers.
    armed: Option<Instant>,
}

/// What the tasks of an endpoint share.
pub(super) struct Tunnel {
    pub(super) routes: Routes,
    pub(super) wire: Wire,
    layout: Layout,
    sessions: Mutex<Sessions>,
    queue: Mutex<Queue>,
    /// Sealed, and not taken by the wire yet. Whoever holds it is the one who seals.
    sealed: Mutex<VecDeque<Train>>,
    /// The queue has room again: for the stack, and for the system's packets.
    pub(super) room: Notify,
    pub(super) space: Notify,
    /// The wire took no more.
    pub(super) blocked: Notify,
    /// A timer is due earlier than the receiving task knows.
    pub(super) sooner: Notify,
    /// Peers whose addresses are to be looked up again.
    retries: Mutex<Vec<PeerId>>,
    pub(super) retry: Notify,
}

impl Tunnel {
    pub(super) fn new(device: Device, peers: usize, routes: Routes, wire: Wire, mtu: u16) -> Arc<Self> {
        let staged = (0..peers).map(|_| VecDeque::new()).collect();
        let armed = device.next_timeout();
        Arc::new(Self {
            routes,
            wire,
            layout: Layout { before: HEAD, behind: TAG, multiple: PADDING, mtu: mtu.into() },
            sessions: Mutex::new(Sessions { device, staged, armed }),
            queue: Mutex::default(),
            sealed: Mutex::default(),
            room: Notify::new(),
            space: Notify::new(),
            blocked: Notify::new(),
            sooner: Notify::new(),
            retries: Mutex::default(),
            retry: Notify::new(),
        })
    }

    /// When the receiving task is to call [`Tunnel::on_timeout`].
    pub(super) fn armed(&self) -> Option<Instant> {
        lock(&self.sessions).armed
    }

    pub(super) fn on_timeout(&self) {
        self.with(|device, now| device.on_timeout(now));
        let mut sessions = lock(&self.sessions);
        sessions.armed = sessions.device.next_timeout();
        drop(sessions);
        self.flush();
    }

    /// Peers whose names are to be looked up again.
    pub(super) fn take_retries(&self) -> Vec<PeerId> {
        std::mem::take(&mut lock(&self.retries))
    }

    /// Runs `change` on the handshakes, then queues what that made due. [`Tunnel::flush`] sends it.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Device, Instant) -> T) -> T {
        let now = Instant::now();
        let mut sessions = lock(&self.sessions);
        let result = change(&mut sessions.device, now);
        self.follow(&mut sessions, now);
        result
    }

    fn follow(&self, sessions: &mut Sessions, now: Instant) {
        while let Some(event) = sessions.device.poll_event() {
            match event {
                Event::Ready { peer: PeerId(at), announce } => {
                    let staged = std::mem::take(&mut sessions.staged[at]);
                    if staged.is_empty() && announce {
                        sessions.device.keepalive(PeerId(at), now);
                    }
                    let mut queue = lock(&self.queue);
                    for job in staged.into_iter().rev() {
                        queue.bytes += job.cost();
                        queue.entries.push_front(Entry::Seal(job));
                    }
                }
                Event::GaveUp(PeerId(at)) => sessions.staged[at] = VecDeque::new(),
                Event::Retry(peer) => {
                    let mut retries = lock(&self.retries);
                    if !retries.contains(&peer) {
                        retries.push(peer);
                    }
                    drop(retries);
                    self.retry.notify_one();
                }
            }
        }
        let mut transmits = std::iter::from_fn(|| sessions.device.poll_transmit()).peekable();
        if transmits.peek().is_some() {
            let mut queue = lock(&self.queue);
            // Handshakes do not wait for packets.
            transmits.for_each(|one| queue.entries.push_front(Entry::Ready(one)));
        }
        if let Some(next) = sessions.device.next_timeout()
            && sessions.armed.is_none_or(|armed| next < armed)
        {
            sessions.armed = Some(next);
            self.sooner.notify_one();
        }
    }

    /// Seals and sends what is queued, unless somebody is at it: he looks again when he is done.
    fn empty(&self) {
        while let Ok(mut sealed) = self.sealed.try_lock() {
            if !self.send_some(&mut sealed) {
                return; // the receiving task goes on when the wire takes more
            }
            drop(sealed);
            if lock(&self.queue).entries.is_empty() {
                return;
            }
        }
    }

    /// Seals and sends until nothing is left (`true`) or the wire takes no more (`false`).
    fn send_some(&self, sealed: &mut VecDeque<Train>) -> bool {
        loop {
            if !sealed.is_empty() && !self.wire.send(sealed) {
                self.blocked.notify_one();
                return false;
            }
            let entries = self.take();
            if entries.is_empty() {
                return true;
            }
            for entry in entries {
                match entry {
                    Entry::Seal(job) => sealed.extend(self.seal(job)),
                    Entry::Ready(Transmit { to, bytes, .. }) => {
                        let stride = bytes.len();
                        sealed.push_back(Train { to, data: bytes.into(), stride, sent: 0 });
                    }
                }
            }
        }
    }

    fn take(&self) -> Vec<Entry> {
        let mut queue = lock(&self.queue);
        let count = queue.entries.len().min(BATCH);
        let entries: Vec<_> = queue.entries.drain(..count).collect();
        let bytes: usize = entries.iter().map(Entry::bytes).sum();
        queue.bytes -= bytes;
        if queue.entries.is_empty() && queue.entries.capacity() > 1024 {
            queue.entries = VecDeque::new();
        }
        if queue.refused && queue.bytes <= QUEUE / 2 {
            queue.refused = false;
            self.room.notify_one();
            self.space.notify_one();
        }
        entries
    }

    /// Makes datagrams of packets; `None` if they have to wait, or have nowhere to go.
    fn seal(&self, job: Job) -> Option<Train> {
        let now = Instant::now();
        let mut sessions = lock(&self.sessions);
        let sending = sessions.device.send(job.peer, job.count as u64, now);
        let (key, first, to) = match sending {
            Sending::Now { key, first, to } => (key, first, to),
            Sending::Wait => {
                let staged = &mut sessions.staged[job.peer.0];
                let waiting: usize = staged.iter().map(Job::cost).sum();
                if waiting < STAGED {
                    staged.push_back(job);
                }
                self.follow(&mut sessions, now);
                return None;
            }
            Sending::Nowhere => return None,
        };
        self.follow(&mut sessions, now);
        drop(sessions);
        let Job { mut data, stride, .. } = job;
        for (number, datagram) in data.chunks_mut(stride).enumerate() {
            key.seal(first + number as u64, datagram);
        }
        Some(Train { to, data, stride, sent: 0 })
    }

    /// Sends what is queued.
    pub(super) fn flush(&self) {
        if !lock(&self.queue).entries.is_empty() {
            self.empty();
        }
    }

    /// The wire takes datagrams again.
    pub(super) fn resume(&self) {
        self.empty();
    }

    /// Whether packets may be queued. If not, whoever asks is woken when they may.
    pub(super) fn has_room(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.refused |= queue.bytes >= QUEUE;
        queue.bytes < QUEUE
    }

    /// Queues a packet, or a train, for the peer that its target belongs to. What is nobody's is dropped.
    pub(super) fn put(&self, out: &Outgoing<'_>) {
        let Some(peer) = routes::target(out.head).and_then(|ip| self.routes.find(ip)) else { return };
        let laid = train::plan(out, &self.layout);
        let mut data = Buf::new(laid.len, 0, 0);
        train::lay_out(out, &self.layout, &laid, &mut data.spare_mut()[..laid.len]);
        data.grow(laid.len);
        let job = Job { peer, data, stride: laid.stride, count: laid.count };
        let mut queue = lock(&self.queue);
        queue.bytes += job.cost();
        queue.entries.push_back(Entry::Seal(job));
    }

    /// Whether a target is some peer's.
    pub(super) fn reaches(&self, ip: std::net::IpAddr) -> bool {
        self.routes.find(ip).is_some()
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match self {
            Self::Seal(job) => job.cost(),
            Self::Ready(_) => 0,
        }
    }
}

/// The tunnel as the link of a stack.
pub(super) struct TunnelLink(pub(super) Arc<Tunnel>);

impl Link for TunnelLink {
    fn send(&self, out: &Outgoing<'_>, _: bool) -> bool {
        let room = self.0.has_room();
        if room {
            self.0.put(out);
        }
        room
    }

    fn flush(&self) {
        self.0.flush();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
