//! The stack with its device: who may touch it, who waits for what, and the task that receives.
//!
//! One lock guards the stack. The receiving task takes it once per batch of packets; a connection's task takes it to read or
//! write, and sends what that made due, so that no byte waits for another task to run.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use culvert_core::udp::Associations;
use culvert_core::{Dispatch, Incoming, Io, Network, Packet, Session, SessionId, Tag};
use culvert_os::netlink::{self, Prefix};
use culvert_os::tun::{Outgoing as Header, Tun};
use culvert_stack::icmp::{self, Unreachable};
use culvert_stack::{ConnId, Delivery, Event, Outgoing, Received, Stack};
use culvert_wire::{Buf, BufChain, Host, Target};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tracing::debug;

use super::packets::TunPackets;
use super::stream::TunStream;

/// Longest packet, with room for the heads of what may be made of it.
const PACKET: usize = 65_535;
/// Packets that are received under one lock.
const BATCH: usize = 64;
/// Most clients that can have an association at once.
const ASSOCIATIONS: usize = 16 << 10;
/// Associations at which ended ones are first looked for.
const CLEAN_AT: usize = 64;

/// What connections and the receiving task share.
pub(super) struct Engine {
    tun: AsyncFd<Tun>,
    inner: Mutex<Inner>,
    /// The device took no more; the receiving task is to go on when it does.
    blocked: Notify,
    /// A timer is due earlier than the receiving task knows.
    sooner: Notify,
}

/// What the lock guards.
pub(super) struct Inner {
    pub(super) stack: Stack,
    /// Who waits for which connection.
    waiting: HashMap<ConnId, Wakers>,
    /// When the receiving task will look at the timers.
    armed: Option<Instant>,
}

#[derive(Default)]
struct Wakers {
    read: Option<Waker>,
    write: Option<Waker>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wait {
    Read,
    Write,
}

impl Inner {
    /// Wakes `waker` when `wait` is over for a connection.
    pub(super) fn wait(&mut self, id: ConnId, wait: Wait, waker: &Waker) {
        let wakers = self.waiting.entry(id).or_default();
        let place = match wait {
            Wait::Read => &mut wakers.read,
            Wait::Write => &mut wakers.write,
        };
        match place {
            Some(old) if old.will_wake(waker) => {}
            place => *place = Some(waker.clone()),
        }
    }

    /// Forgets who waited for a connection.
    pub(super) fn forget(&mut self, id: ConnId) {
        self.waiting.remove(&id);
    }

    fn wake(&mut self, id: ConnId, read: bool, write: bool) {
        let Some(wakers) = self.waiting.get_mut(&id) else { return };
        if read && let Some(waker) = wakers.read.take() {
            waker.wake();
        }
        if write && let Some(waker) = wakers.write.take() {
            waker.wake();
        }
    }
}

impl Engine {
    /// The stack on a device.
    ///
    /// # Errors
    /// The runtime cannot watch the device.
    pub(super) fn new(tun: Tun, stack: Stack) -> io::Result<Arc<Self>> {
        let inner = Inner { stack, waiting: HashMap::new(), armed: None };
        let (blocked, sooner) = (Notify::new(), Notify::new());
        #[expect(
            deprecated,
            reason = "the device owns its descriptor, which stays the same until it is dropped"
        )]
        let tun = AsyncFd::new(tun)?;
        Ok(Arc::new(Self { tun, inner: Mutex::new(inner), blocked, sooner }))
    }

    /// Runs `change` on the stack, then sends what that made due.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Inner, Instant) -> T) -> T {
        let now = Instant::now();
        let mut inner = self.lock();
        let result = change(&mut inner, now);
        self.flush(&mut inner, now);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due, as far as the device takes it, and sees that the timers are looked at in time.
    fn flush(&self, inner: &mut Inner, now: Instant) {
        if !inner.stack.transmit(now, &mut |out| self.send(&out, false)) {
            self.blocked.notify_one();
        }
        if let Some(next) = inner.stack.next_timeout()
            && inner.armed.is_none_or(|armed| next < armed)
        {
            inner.armed = Some(next);
            self.sooner.notify_one();
        }
    }

    /// Gives one packet to the device. `false` if it takes none now; what it will never take is dropped, as by a network.
    pub(super) fn send(&self, out: &Outgoing<'_>, udp: bool) -> bool {
        let header = Header {
            segment: out.segment,
            udp,
            v6: out.head.first().is_some_and(|first| first >> 4 == 6),
            head: out.head.len() as u16,
            checksum: out.checksum,
        };
        match self.tun.get_ref().send(header, out.head, out.payload) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                debug!("a packet of {} bytes was not taken: {error}", out.head.len());
                true
            }
        }
    }
}

/// What stands at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// A host beyond the device.
    Elsewhere,
    /// The DNS server that the device's network pretends to have.
    Dns,
    /// No host, or one of the device's own network: whatever is dialled there comes back.
    Nobody,
}

/// The task that receives for all.
pub(super) struct Receiving {
    pub(super) tag: Tag,
    pub(super) engine: Arc<Engine>,
    pub(super) dispatch: Dispatch,
    pub(super) udp_timeout: Option<Duration>,
    /// The device's addresses with their networks. Nothing but DNS is there for clients: what is dialled there comes back.
    own: Vec<Prefix>,
    /// Flows to its DNS address in the second that began then.
    dns_flows: (Instant, u32),
    associations: Associations<SocketAddr>,
    clean_at: usize,
    /// Sessions that came up while the lock was held: one that is turned away takes the lock when it is dropped.
    sessions: Vec<Incoming>,
}

impl Receiving {
    pub(super) fn new(
        tag: Tag,
        engine: Arc<Engine>,
        dispatch: Dispatch,
        udp_timeout: Option<Duration>,
        own: Vec<Prefix>,
    ) -> Self {
        Self {
            associations: Associations::new(ASSOCIATIONS.min(dispatch.limit() / 4)),
            dns_flows: (Instant::now(), 0),
            clean_at: CLEAN_AT,
            sessions: Vec::new(),
            tag,
            engine,
            dispatch,
            udp_timeout,
            own,
        }
    }

    /// Runs until it is dropped, or the device is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let engine = Arc::clone(&self.engine);
        loop {
            let next = engine.lock().armed;
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = engine.tun.readable() => {
                    let mut ready = ready?;
                    if !self.receive()? {
                        ready.clear_ready();
                    }
                }
                () = due => self.on_timeout(),
                () = engine.sooner.notified() => {}
                () = engine.blocked.notified() => {
                    // Until it can be written to again.
                    engine.tun.ready(Interest::WRITABLE).await?.clear_ready();
                    engine.with(|_, _| ());
                }
            }
        }
    }

    fn on_timeout(&mut self) {
        let engine = Arc::clone(&self.engine);
        engine.with(|inner, now| {
            inner.stack.on_timeout(now);
            inner.armed = None;
            self.follow(inner, now);
        });
        self.submit();
    }

    fn submit(&mut self) {
        self.sessions.drain(..).for_each(|session| self.dispatch.submit(session));
    }

    /// Receives a batch of packets. `false` if there are no more.
    fn receive(&mut self) -> io::Result<bool> {
        let engine = Arc::clone(&self.engine);
        let mut more = true;
        let mut fault = None;
        engine.with(|inner, now| {
            for _ in 0..BATCH {
                // As much room as a sealing layer may want before and behind the payload.
                let mut packet = Buf::new(PACKET, 0, 0);
                match engine.tun.get_ref().recv(&mut packet.spare_mut()[..PACKET]) {
                    Ok(received) => {
                        packet.grow(received.len);
                        let received =
                            Received { packet, checked: received.checked, segment: received.segment };
                        match inner.stack.receive(received, now) {
                            Some(Delivery::Datagram { source, target, data, segment }) => {
                                self.deliver(source, target, data, segment);
                            }
                            Some(Delivery::Echo { target, packet, .. }) => self.echo(inner, target, &packet),
                            None => {}
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        more = false;
                        break;
                    }
                    Err(error) => {
                        fault = Some(error);
                        break;
                    }
                }
            }
            self.follow(inner, now);
        });
        self.submit();
        fault.map_or(Ok(more), Err)
    }

    /// Does what events ask for.
    fn follow(&mut self, inner: &mut Inner, now: Instant) {
        while let Some(event) = inner.stack.poll_event() {
            match event {
                Event::Knock { id, source, target } => self.knock(inner, id, source, target, now),
                Event::Connected(id) => inner.wake(id, false, true),
                Event::Readable(id) => inner.wake(id, true, false),
                Event::Writable(id) => inner.wake(id, false, true),
                Event::Broken(id, _) => inner.wake(id, true, true),
            }
        }
    }

    fn knock(&mut self, inner: &mut Inner, id: ConnId, source: SocketAddr, target: SocketAddr, now: Instant) {
        let place = self.place(target);
        let nobody = place == Place::Nobody || (place == Place::Dns && !self.dns_flow(now));
        if nobody || self.dispatch.is_full() {
            inner.stack.refuse(id, culvert_stack::Refusal::Reset, now);
            return;
        }
        let stream = TunStream::new(id, Arc::clone(&self.engine));
        let session = self.session(Network::Tcp, source, target);
        let io = Io::Stream(Box::new(stream));
        let early = BufChain::new();
        self.sessions.push(Incoming { session, io, early, reply: None, udp_timeout: None });
    }

    fn session(&self, network: Network, source: SocketAddr, target: SocketAddr) -> Session {
        Session {
            id: SessionId::next(),
            network,
            inbound: self.tag.clone(),
            user: None,
            source,
            target: Target { host: Host::from(target.ip()), port: target.port() },
            sniffed: None,
            alpn: None,
        }
    }

    /// What stands at an address as far as the device is concerned.
    fn place(&self, to: SocketAddr) -> Place {
        const DNS: u16 = 53;
        let no_host = match to.ip() {
            IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
        };
        let own = |prefix: &Prefix| {
            let same_family = prefix.ip.is_ipv4() == to.is_ipv4();
            same_family && netlink::network(*prefix) == netlink::network(Prefix { ip: to.ip(), ..*prefix })
        };
        match (no_host || to.ip().is_loopback(), self.own.iter().any(own), to.port()) {
            (true, ..) => Place::Nobody,
            (_, false, _) => Place::Elsewhere,
            (_, true, DNS) => Place::Dns,
            (_, true, _) => Place::Nobody,
        }
    }

    /// Whether one more flow to the device's own DNS address may begin. Rules are there to take it; where none does, our
    /// own dial comes back here as another one, and this bound is all that keeps the loop slow.
    fn dns_flow(&mut self, now: Instant) -> bool {
        const PER_SECOND: u32 = 500;
        let (since, count) = &mut self.dns_flows;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= PER_SECOND
    }

    fn deliver(&mut self, source: SocketAddr, target: SocketAddr, data: Buf, segment: u16) {
        let place = self.place(target);
        if place == Place::Nobody {
            return;
        }
        let peer = Target { host: Host::from(target.ip()), port: target.port() };
        let packet = Packet { data, segment, peer };
        let Some(queue) = self.associations.deliver(&source, packet) else { return };
        if self.dispatch.is_full() || (place == Place::Dns && !self.dns_flow(Instant::now())) {
            return; // the queue is dropped, and the client's next packet tries again
        }
        let packets = TunPackets::new(queue, Arc::clone(&self.engine), source);
        let session = self.session(Network::Udp, source, target);
        let (io, udp_timeout) = (Io::Packets(Box::new(packets)), self.udp_timeout);
        self.sessions.push(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout });
        if self.associations.len() >= self.clean_at {
            self.associations.forget_ended();
            self.clean_at = CLEAN_AT.max(self.associations.len() * 2);
        }
    }

    /// A ping of the device's own address is answered. Nobody can say here whether others would answer, and a ping that
    /// is always answered says that a tunnel is there; so they are told that there is no way.
    fn echo(&self, inner: &mut Inner, target: IpAddr, packet: &[u8]) {
        let answer = if self.own.iter().any(|own| own.ip == target) {
            icmp::echo_reply(packet)
        } else {
            icmp::unreachable(packet, Unreachable::Host)
        };
        if let Some(answer) = answer {
            inner.stack.send_packet(answer);
        }
    }
}
