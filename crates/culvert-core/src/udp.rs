//! [`PacketConn`] over kernel UDP sockets, and what inbounds that share one socket need besides.
//!
//! | type | is |
//! |---|---|
//! | [`UdpConn`] | a socket of its own: each association of an outbound |
//! | [`Resolving`] | packets to names, resolved on the way |
//! | [`PacketQueue`] | the packets of one client, picked out of a shared socket |
//! | [`Associations`] | which client has which queue, with a limit |

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use culvert_os::udp::{
    GRO_BUFFER, GsoSupport, RecvSlot, SendSlot, enable_gro, is_gso_refused, probe_gso, recv_batch, send_batch,
};
use culvert_wire::{Buf, Domain, Host, Room, Target};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use crate::packet::{Packet, PacketBatch, PacketConn};
use crate::resolve::{ResolveError, Resolver, Strategy};

/// An unconnected UDP socket: sends to any address and receives from any, which makes its NAT mapping full-cone.
pub struct UdpConn {
    socket: Arc<UdpSocket>,
    /// Whether the kernel cuts trains apart on sending.
    gso: bool,
    /// Messages the next receive has room for; grows while they all fill up.
    slots: usize,
    /// A wait for room in a send buffer that other tasks use too.
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
}

impl UdpConn {
    /// Takes over a bound socket that carries payload as it is, with trains where the kernel has them.
    #[must_use]
    pub fn new(socket: UdpSocket) -> Self {
        let gso = probe_gso(socket.as_fd()) == GsoSupport::Kernel;
        let _ = enable_gro(socket.as_fd());
        Self { gso, ..Self::shared(Arc::new(socket)) }
    }

    /// Takes over a bound socket whose datagrams each have a head of their own: the kernel may still cut trains apart on
    /// sending, but joins none on receiving.
    #[must_use]
    pub fn framed(socket: UdpSocket) -> Self {
        let gso = probe_gso(socket.as_fd()) == GsoSupport::Kernel;
        Self { gso, ..Self::shared(Arc::new(socket)) }
    }

    /// Uses a socket whose datagrams each have a head of their own, so that trains are of no use, and which other
    /// tasks may send by too. Only one of them may receive.
    #[must_use]
    pub fn shared(socket: Arc<UdpSocket>) -> Self {
        Self { socket, gso: false, slots: 1, writable: None }
    }

    /// Uses a socket that other tasks send by, and lets the kernel join what is received. Only one task may receive.
    #[must_use]
    pub fn joining(socket: Arc<UdpSocket>) -> Self {
        let _ = enable_gro(socket.as_fd());
        Self::shared(socket)
    }

    /// The same socket for another task to send by.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { gso: self.gso, ..Self::shared(Arc::clone(&self.socket)) }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket
    }

    /// Receives whatever is there, one slot per message.
    fn try_recv(&mut self, room: Room, batch: &mut PacketBatch) -> io::Result<()> {
        let count = self.slots;
        let mut bufs: Vec<Buf> = (0..count).map(|_| Buf::new(GRO_BUFFER, room.head, room.tail)).collect();
        let mut slots: Vec<RecvSlot<'_>> =
            bufs.iter_mut().map(|buf| RecvSlot::new(&mut buf.spare_mut()[..GRO_BUFFER])).collect();
        let mut received = 0;
        let result = self.socket.try_io(Interest::READABLE, || {
            received = recv_batch(self.socket.as_fd(), &mut slots)?;
            // Fewer than asked for: the socket is empty, and its readiness is taken back without another call.
            if received < count { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if received == 0 {
            return result;
        }
        let metas: Vec<_> = slots[..received].iter().map(|slot| slot.meta).collect();
        for (mut data, meta) in bufs.into_iter().zip(metas) {
            if meta.truncated {
                continue;
            }
            data.grow(meta.len);
            let segment = meta.segment_size.map_or(0, NonZeroU16::get);
            batch.push(Packet { data, segment, peer: meta.source.into() });
        }
        self.slots = if received == count { (count * 2).min(PacketBatch::MAX / 2) } else { received.max(1) };
        Ok(())
    }

    /// Sends from the front of `batch` once and drops what was sent.
    fn try_send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PacketBatch::MAX];
        let mut count = 0;
        for (slice, packet) in slices.iter_mut().zip(batch.iter()) {
            *slice = IoSlice::new(&packet.data);
            count += 1;
        }
        let mut slots = [SendSlot::new(&[], None); PacketBatch::MAX];
        for ((slot, slice), packet) in slots.iter_mut().zip(&slices[..count]).zip(batch.iter()) {
            *slot = SendSlot::single(slice, packet.peer.socket_addr());
            slot.segment_size =
                NonZeroU16::new(packet.segment).filter(|size| usize::from(size.get()) < packet.data.len());
        }
        let sent =
            self.socket.try_io(Interest::WRITABLE, || send_batch(self.socket.as_fd(), &slots[..count]));
        batch.advance(sent?);
        Ok(())
    }

    /// Waits for room in the send buffer. Unlike `poll_send_ready` this may be used by many tasks at once.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wait = self.writable.get_or_insert_with(|| {
            let socket = Arc::clone(&self.socket);
            Box::pin(async move { socket.writable().await })
        });
        let result = ready!(wait.as_mut().poll(cx));
        self.writable = None;
        Poll::Ready(result)
    }
}

impl PacketConn for UdpConn {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            match self.try_recv(room, batch) {
                Ok(()) if !batch.is_empty() => return Poll::Ready(Ok(())),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        if self.writable.is_some() {
            ready!(self.poll_writable(cx))?;
        }
        while let Some(first) = batch.front() {
            if first.peer.socket_addr().is_none() {
                batch.pop(); // a name: whoever can resolve stands before this conn
                continue;
            }
            if first.segment > 0 && !self.gso {
                split_front(batch);
                continue;
            }
            match self.try_send(batch) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.poll_writable(cx))?,
                Err(error) if is_gso_refused(&error) => self.gso = false,
                Err(error) => {
                    tracing::trace!("datagram dropped: {error}");
                    batch.pop();
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Turns the train at the front into single datagrams.
fn split_front(batch: &mut PacketBatch) {
    let Some(train) = batch.pop() else { return };
    let singles: Vec<_> =
        train.payloads().map(|payload| Packet::new(Buf::copied(payload), train.peer.clone())).collect();
    singles.into_iter().rev().for_each(|single| batch.put_back(single));
}

type LookUp = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send>>;

/// Resolves the names that packets go to before handing them down. A packet waits for its own name only: those to other
/// targets pass it by, so that one dead name does not hold up a whole association. Packets to names that do not
/// resolve are dropped.
pub struct Resolving<C> {
    conn: C,
    resolver: Arc<dyn Resolver>,
    strategy: Strategy,
    /// Names seen, newest last, with what became of them.
    known: VecDeque<Known>,
    asking: Vec<Asking>,
    /// Packets whose names have been resolved, on their way down.
    resolved: PacketBatch,
}

struct Known {
    name: Domain,
    ip: Option<IpAddr>,
    since: Instant,
}

/// A look-up under way, and the packets that wait for it.
struct Asking {
    name: Domain,
    look_up: LookUp,
    waiting: Vec<Packet>,
}

/// Names remembered per association; a client that uses more pays for repeated look-ups.
const NAMES: usize = 16;
/// Look-ups at once per association; packets to further names are dropped meanwhile.
const LOOK_UPS: usize = 16;
/// Packets that wait for one name.
const WAITING: usize = 8;
/// How long a failed look-up counts: short, since an association may outlive an outage by hours.
const FAILURE_COUNTS: Duration = Duration::from_secs(5);

impl<C: PacketConn> Resolving<C> {
    /// Resolves for `conn`.
    #[must_use]
    pub fn new(conn: C, resolver: Arc<dyn Resolver>, strategy: Strategy) -> Self {
        Self {
            conn,
            resolver,
            strategy,
            known: VecDeque::new(),
            asking: Vec::new(),
            resolved: PacketBatch::new(),
        }
    }

    /// What became of `name`: its address, or `None` if it has none; the outer `None` if it must be asked for.
    fn look_at(&self, name: &Domain) -> Option<Option<IpAddr>> {
        let known = self.known.iter().find(|known| known.name == *name)?;
        (known.ip.is_some() || known.since.elapsed() < FAILURE_COUNTS).then_some(known.ip)
    }

    fn remember(&mut self, name: Domain, ip: Option<IpAddr>) {
        self.known.retain(|known| known.name != name);
        if self.known.len() == NAMES {
            self.known.pop_front();
        }
        self.known.push_back(Known { name, ip, since: Instant::now() });
    }

    /// Takes the packets to names that are not known out of `batch` and puts the others' addresses in.
    fn take_named(&mut self, batch: &mut PacketBatch) {
        // One full turn of the queue.
        for _ in 0..batch.len() {
            let Some(mut packet) = batch.pop() else { return };
            let Some(name) = packet.peer.host.domain() else {
                batch.push(packet);
                continue;
            };
            match self.look_at(name) {
                Some(Some(ip)) => {
                    packet.peer.host = Host::from(ip);
                    batch.push(packet);
                }
                Some(None) => {}
                None => self.ask(name.clone(), packet),
            }
        }
    }

    /// Lets `packet` wait for `name`, or drops it where too much waits already.
    fn ask(&mut self, name: Domain, packet: Packet) {
        if let Some(asking) = self.asking.iter_mut().find(|asking| asking.name == name) {
            if asking.waiting.len() < WAITING {
                asking.waiting.push(packet.snug());
            }
        } else if self.asking.len() < LOOK_UPS {
            let (resolver, strategy, wanted) = (Arc::clone(&self.resolver), self.strategy, name.clone());
            let look_up = Box::pin(async move { resolver.resolve(&wanted, strategy).await });
            self.asking.push(Asking { name, look_up, waiting: vec![packet.snug()] });
        }
    }

    /// Sends the packets whose names have been resolved meanwhile.
    fn poll_resolved(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut at = 0;
        while let Some(asking) = self.asking.get_mut(at) {
            let Poll::Ready(found) = asking.look_up.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            let Asking { name, waiting, .. } = self.asking.remove(at);
            let ip = found.ok().and_then(|all| all.first().copied());
            self.remember(name, ip);
            let Some(ip) = ip else { continue };
            for mut packet in waiting {
                packet.peer.host = Host::from(ip);
                self.resolved.push(packet.with_room(self.conn.room()));
            }
        }
        if !self.resolved.is_empty() {
            ready!(self.conn.poll_send(cx, &mut self.resolved))?;
            self.resolved = PacketBatch::new(); // gives its memory back
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: PacketConn> PacketConn for Resolving<C> {
    fn room(&self) -> Room {
        self.conn.room()
    }

    /// Look-ups go on here too: after the packets that wait for one, the client may send nothing more.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(Err(error)) = self.poll_resolved(cx) {
            return Poll::Ready(Err(error));
        }
        self.conn.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        if batch.iter().any(|packet| packet.peer.host.domain().is_some()) {
            self.take_named(batch);
        }
        ready!(self.poll_resolved(cx))?;
        self.conn.poll_send(cx, batch)
    }
}

/// Bytes and packets that wait for one client's association before further ones are dropped.
const QUEUE_BYTES: usize = 512 << 10;
const QUEUE_PACKETS: usize = 512;
/// Bytes that are copied sooner than they keep a receive buffer.
const SMALL: usize = 2 << 10;
/// Bytes that wait for all associations of a table together. Beyond, each may have [`QUEUE_ALWAYS`] packets waiting, so
/// that a crowd whose dials hang takes nothing from those that are served.
const TABLE_BYTES: usize = 32 << 20;
const QUEUE_ALWAYS: usize = 4;

/// Memory that `packet` takes while it waits. Of a large buffer only the pages in use count.
fn cost(packet: &Packet) -> usize {
    const PAGE: usize = 4 << 10;
    const OVERHEAD: usize = 128;
    let data = &packet.data;
    (data.head() + data.len() + data.spare()).min(data.len().max(PAGE)) + OVERHEAD
}

struct Queue {
    packets: VecDeque<Packet>,
    bytes: usize,
    /// Bytes in all queues of the table.
    table: Arc<AtomicUsize>,
    waker: Option<Waker>,
    /// Somebody takes packets out.
    served: bool,
    closed: bool,
}

impl Queue {
    fn put(&mut self, packet: Packet) {
        // What is taken out in a moment may stay in its large receive buffer; who knows how long the rest waits. A small
        // one is copied at once: a receive buffer that goes to another thread's stock is missing in this one's, and the
        // next one costs pages from the system.
        let stays = self.served && self.packets.len() < PacketBatch::MAX && packet.data.len() > SMALL;
        let packet = if stays { packet } else { packet.snug() };
        let cost = cost(&packet);
        let crowded = self.packets.len() >= QUEUE_ALWAYS
            && self.table.load(Ordering::Relaxed).saturating_add(cost) > TABLE_BYTES;
        if crowded || self.packets.len() >= QUEUE_PACKETS || self.bytes >= QUEUE_BYTES {
            return;
        }
        self.bytes += cost;
        self.table.fetch_add(cost, Ordering::Relaxed);
        self.packets.push_back(packet);
    }

    fn take(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        let cost = cost(&packet);
        self.bytes -= cost;
        self.table.fetch_sub(cost, Ordering::Relaxed);
        Some(packet)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.table.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The receiving end of one client's packets.
pub struct PacketQueue(Arc<Mutex<Queue>>);

impl PacketQueue {
    fn new(table: &Arc<AtomicUsize>) -> (PacketFeed, Self) {
        let queue = Arc::new(Mutex::new(Queue {
            packets: VecDeque::new(),
            bytes: 0,
            table: Arc::clone(table),
            waker: None,
            served: false,
            closed: false,
        }));
        (PacketFeed(Arc::clone(&queue)), Self(queue))
    }

    /// Takes what is there; see [`PacketConn::poll_recv`].
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the feeding side is gone and nothing is left.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let mut queue = lock(&self.0);
        queue.served = true;
        while batch.len() < PacketBatch::MAX
            && let Some(packet) = queue.take()
        {
            batch.push(packet.with_room(room));
        }
        if !batch.is_empty() {
            return Poll::Ready(Ok(()));
        }
        queue.packets = VecDeque::new(); // an idle association holds no memory
        if queue.closed {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for PacketQueue {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.closed = true;
        // The feeding side may keep its end for long; what is left goes now.
        while queue.take().is_some() {}
        queue.packets = VecDeque::new();
    }
}

/// The sending end of one client's packets.
struct PacketFeed(Arc<Mutex<Queue>>);

impl PacketFeed {
    fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }

    /// Queues a packet, or drops it where too much waits already. `Err` gives it back if nobody is there any more.
    fn push(&self, packet: Packet) -> Result<(), Packet> {
        let mut queue = lock(&self.0);
        if queue.closed {
            return Err(packet);
        }
        queue.put(packet);
        if let Some(waker) = queue.waker.take() {
            drop(queue);
            waker.wake();
        }
        Ok(())
    }
}

impl Drop for PacketFeed {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.closed = true;
        if let Some(waker) = queue.waker.take() {
            drop(queue);
            waker.wake();
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which client has which association, for inbounds that serve all clients by one socket. `K` is what tells clients
/// apart: their address, or an id of the protocol.
///
/// There is a limit; when it is reached the association that has been quiet goes (second chance, so that a flood of
/// new clients cannot push out one that is in use at less than it costs).
pub struct Associations<K> {
    feeds: HashMap<K, Entry>,
    /// Keys in the order in which they are up for eviction.
    order: VecDeque<K>,
    limit: usize,
    /// Bytes that wait in all of them.
    waiting: Arc<AtomicUsize>,
}

struct Entry {
    feed: PacketFeed,
    used: bool,
}

impl<K: Clone + Eq + Hash> Associations<K> {
    /// A table of at most `limit` associations.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { feeds: HashMap::new(), order: VecDeque::new(), limit: limit.max(1), waiting: Arc::default() }
    }

    /// How many there are, ended ones that have not been noticed yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.feeds.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty()
    }

    /// Whether there is one of `key`.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.feeds.contains_key(key)
    }

    /// How much memory packets take that no association has taken yet.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Gives `packet` to the association of `key`. If there is none (any more), makes one with this packet waiting in
    /// it and returns its queue, for the caller to submit.
    pub fn deliver(&mut self, key: &K, packet: Packet) -> Option<PacketQueue> {
        let packet = match self.feeds.get_mut(key) {
            Some(entry) => {
                entry.used = true;
                match entry.feed.push(packet) {
                    Ok(()) => return None,
                    Err(packet) => packet,
                }
            }
            None => packet,
        };
        let (feed, queue) = PacketQueue::new(&self.waiting);
        let _ = feed.push(packet);
        self.insert(key, feed);
        Some(queue)
    }

    /// Gives `packet` to the association of `key`.
    ///
    /// # Errors
    /// The packet, if there is none.
    pub fn give(&mut self, key: &K, packet: Packet) -> Result<(), Packet> {
        match self.feeds.get_mut(key) {
            Some(entry) => {
                entry.used = true;
                entry.feed.push(packet)
            }
            None => Err(packet),
        }
    }

    /// Makes an association of `key` in which nothing waits. One that there was ends.
    pub fn open(&mut self, key: &K) -> PacketQueue {
        let (feed, queue) = PacketQueue::new(&self.waiting);
        self.insert(key, feed);
        queue
    }

    fn insert(&mut self, key: &K, feed: PacketFeed) {
        if self.feeds.len() >= self.limit && !self.feeds.contains_key(key) {
            self.evict();
        }
        if self.feeds.insert(key.clone(), Entry { feed, used: false }).is_none() {
            self.order.push_back(key.clone());
        }
    }

    /// Forgets the associations that have ended; called now and then by the owner of the socket.
    pub fn forget_ended(&mut self) {
        let feeds = &mut self.feeds;
        feeds.retain(|_, entry| !entry.feed.is_closed());
        self.order.retain(|key| feeds.contains_key(key));
    }

    fn evict(&mut self) {
        // Each turn takes away one `used` mark or ends, so this is at most two rounds.
        while let Some(key) = self.order.pop_front() {
            match self.feeds.get_mut(&key) {
                Some(entry) if entry.used && !entry.feed.is_closed() => {
                    entry.used = false;
                    self.order.push_back(key);
                }
                _ => {
                    self.feeds.remove(&key);
                    return;
                }
            }
        }
    }
}

/// One client's association over a socket that serves all clients and carries payload as it is: what the client sends
/// goes to one target, what comes back goes to the client.
pub struct ClientPackets {
    queue: PacketQueue,
    out: UdpConn,
    client: Target,
}

impl ClientPackets {
    /// The association of `client`, whose packets come from `queue`.
    #[must_use]
    pub fn new(queue: PacketQueue, socket: Arc<UdpSocket>, client: SocketAddr) -> Self {
        Self { queue, out: UdpConn::shared(socket), client: client.into() }
    }
}

impl PacketConn for ClientPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        batch.iter_mut().for_each(|packet| packet.peer = self.client.clone());
        self.out.poll_send(cx, batch)
    }
}
