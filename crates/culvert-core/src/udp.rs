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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use culvert_os::udp::{
    GRO_BUFFER, GsoSupport, RecvSlot, SendSlot, enable_gro, is_gso_refused, probe_gso, recv_batch, send_batch,
};
use culvert_wire::{Buf, Domain, Host, Room, Target};
use tokio::io::Interest;
use tokio::net::UdpSocket;

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

/// Resolves the names that packets go to before handing them down. Packets behind a name that is being looked up wait;
/// packets to names that do not resolve are dropped.
pub struct Resolving<C> {
    conn: C,
    resolver: Arc<dyn Resolver>,
    strategy: Strategy,
    /// Names seen, newest last, with what became of them.
    known: VecDeque<(Domain, Option<IpAddr>)>,
    asking: Option<(Domain, LookUp)>,
}

/// Names remembered per association; a client that uses more pays for repeated look-ups.
const NAMES: usize = 16;

impl<C: PacketConn> Resolving<C> {
    /// Resolves for `conn`.
    #[must_use]
    pub fn new(conn: C, resolver: Arc<dyn Resolver>, strategy: Strategy) -> Self {
        Self { conn, resolver, strategy, known: VecDeque::new(), asking: None }
    }

    /// The address of `name`, `None` if it has none.
    fn poll_lookup(&mut self, cx: &mut Context<'_>, name: &Domain) -> Poll<Option<IpAddr>> {
        if let Some((_, ip)) = self.known.iter().find(|(known, _)| known == name) {
            return Poll::Ready(*ip);
        }
        if self.asking.as_ref().is_none_or(|(asked, _)| asked != name) {
            let (resolver, strategy, wanted) = (Arc::clone(&self.resolver), self.strategy, name.clone());
            let look_up = Box::pin(async move { resolver.resolve(&wanted, strategy).await });
            self.asking = Some((name.clone(), look_up));
        }
        let Some((_, look_up)) = &mut self.asking else { return Poll::Ready(None) };
        let found = ready!(look_up.as_mut().poll(cx));
        self.asking = None;
        let ip = found.ok().and_then(|all| all.first().copied());
        if self.known.len() == NAMES {
            self.known.pop_front();
        }
        self.known.push_back((name.clone(), ip));
        Poll::Ready(ip)
    }
}

impl<C: PacketConn> PacketConn for Resolving<C> {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.conn.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        loop {
            let Some(index) = batch.iter().position(|packet| packet.peer.host.domain().is_some()) else {
                return self.conn.poll_send(cx, batch);
            };
            let name = batch.iter().nth(index).and_then(|packet| packet.peer.host.domain().cloned());
            let Some(name) = name else { return self.conn.poll_send(cx, batch) };
            let ip = ready!(self.poll_lookup(cx, &name));
            match ip {
                Some(ip) => {
                    let same = |packet: &&mut Packet| packet.peer.host.domain() == Some(&name);
                    batch.iter_mut().filter(same).for_each(|packet| packet.peer.host = Host::from(ip));
                }
                None => batch.retain(|packet| packet.peer.host.domain() != Some(&name)),
            }
        }
    }
}

/// Bytes and packets that wait for one client's association before further ones are dropped.
const QUEUE_BYTES: usize = 512 << 10;
const QUEUE_PACKETS: usize = 512;

#[derive(Default)]
struct Queue {
    packets: VecDeque<Packet>,
    bytes: usize,
    waker: Option<Waker>,
    closed: bool,
}

/// The receiving end of one client's packets.
pub struct PacketQueue(Arc<Mutex<Queue>>);

impl PacketQueue {
    fn new() -> (PacketFeed, Self) {
        let queue = Arc::default();
        (PacketFeed(Arc::clone(&queue)), Self(queue))
    }

    /// Takes what is there; see [`PacketConn::poll_recv`].
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the feeding side is gone and nothing is left.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let mut queue = lock(&self.0);
        while batch.len() < PacketBatch::MAX
            && let Some(packet) = queue.packets.pop_front()
        {
            queue.bytes -= packet.data.len();
            batch.push(packet);
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
        lock(&self.0).closed = true;
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
        if queue.packets.len() < QUEUE_PACKETS && queue.bytes < QUEUE_BYTES {
            queue.bytes += packet.data.len();
            queue.packets.push_back(packet);
        }
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
}

struct Entry {
    feed: PacketFeed,
    used: bool,
}

impl<K: Clone + Eq + Hash> Associations<K> {
    /// A table of at most `limit` associations.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { feeds: HashMap::new(), order: VecDeque::new(), limit: limit.max(1) }
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
        if self.feeds.len() >= self.limit && !self.feeds.contains_key(key) {
            self.evict();
        }
        let (feed, queue) = PacketQueue::new();
        let _ = feed.push(packet);
        if self.feeds.insert(key.clone(), Entry { feed, used: false }).is_none() {
            self.order.push_back(key.clone());
        }
        Some(queue)
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
        _room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        batch.iter_mut().for_each(|packet| packet.peer = self.client.clone());
        self.out.poll_send(cx, batch)
    }
}
