//! Whoever comes in through a stack: its connections and associations become sessions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use culvert_core::udp::Associations;
use culvert_core::{Dispatch, Incoming, Io, Network, Packet, Session, SessionId, Tag};
use culvert_os::netlink::{self, Prefix};
use culvert_stack::icmp::{self, Unreachable};
use culvert_stack::{ConnId, Delivery, Event, Received, Refusal, TooBig};
use culvert_wire::{Buf, BufChain, Host, Target};

use super::engine::{Engine, Inner};
use super::packets::{Between, NetPackets, NetPings};
use super::stream::NetStream;
use crate::nat::{Key, UdpNat};

/// Most associations that clients can have at once, where the options say nothing.
const ASSOCIATIONS: usize = 16 << 10;
/// Most of them that ping.
const PINGS: usize = 256;
/// Associations at which ended ones are first looked for.
const CLEAN_AT: usize = 64;

/// What stands at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// A host beyond us.
    Elsewhere,
    /// This host, by its own loopback address.
    Here(SocketAddr),
    /// The DNS server that the device's network pretends to have.
    Dns,
    /// No host, or one of the device's own network: whatever is dialled there comes back.
    Nobody,
}

/// What the addresses of our own are to those beyond the link.
#[derive(Clone, Debug)]
pub(crate) enum Ground {
    /// A network that is made up: but DNS nothing is there.
    Made(Vec<Prefix>),
    /// This host: what is there is what listens on its loopback addresses.
    Host(Vec<Prefix>),
}

impl Place {
    /// Where a client is to be taken that wants to go to `target`.
    fn or(self, target: SocketAddr) -> SocketAddr {
        match self {
            Self::Here(here) => here,
            Self::Elsewhere | Self::Dns | Self::Nobody => target,
        }
    }
}

impl Ground {
    fn prefixes(&self) -> &[Prefix] {
        let (Self::Made(own) | Self::Host(own)) = self;
        own
    }

    fn holds(&self, ip: IpAddr) -> bool {
        self.prefixes().iter().any(|prefix| {
            let same_family = prefix.ip.is_ipv4() == ip.is_ipv4();
            same_family && netlink::network(*prefix) == netlink::network(Prefix { ip, ..*prefix })
        })
    }

    /// Whether it is a host beyond us.
    pub(crate) fn is_elsewhere(&self, to: SocketAddr) -> bool {
        self.place(to) == Place::Elsewhere
    }

    fn place(&self, to: SocketAddr) -> Place {
        const DNS: u16 = 53;
        let no_host = match to.ip() {
            IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
        };
        match (no_host || to.ip().is_loopback(), self.holds(to.ip()), self) {
            (true, ..) => Place::Nobody,
            (_, false, _) => Place::Elsewhere,
            (_, true, Self::Host(_)) => Place::Here(SocketAddr::new(loopback(to.ip()), to.port())),
            (_, true, Self::Made(_)) if to.port() == DNS => Place::Dns,
            (_, true, Self::Made(_)) => Place::Nobody,
        }
    }
}

fn loopback(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Lets in what comes through a stack.
pub(crate) struct Gate {
    tag: Tag,
    pub(crate) engine: Arc<Engine>,
    dispatch: Dispatch,
    udp_timeout: Option<Duration>,
    ground: Ground,
    /// Flows to the made up DNS address in the second that began then.
    dns_flows: (Instant, u32),
    clients: Clients,
    /// Clients are answered before the dial.
    early: bool,
    /// Packets that are given to the stack under one lock.
    batch: Vec<Received>,
    /// Datagrams and pings that came among them, for after the lock.
    datagrams: Vec<Datagram>,
    pings: Vec<Echo>,
    /// What other queues' stacks are to hear, after the lock too.
    words: Vec<TooBig>,
    /// Sessions that came up while the lock was held: one that is turned away takes the lock when it is dropped.
    sessions: Vec<Incoming>,
}

/// What all gates of a device share, as packets of one client may come by several queues: the associations, and the stacks
/// that its connections may be in.
#[derive(Clone)]
pub(crate) struct Clients {
    nat: UdpNat,
    table: Arc<Mutex<Table>>,
}

struct Table {
    engines: Vec<Weak<Engine>>,
    associations: Associations<Key>,
    clean_at: usize,
    /// By client, target and the client's id.
    pings: Associations<(IpAddr, IpAddr, u16)>,
}

impl Clients {
    /// None yet, and not more than this device may have of what `dispatch` carries.
    pub(crate) fn new(dispatch: &Dispatch, nat: UdpNat) -> Self {
        let associations = Associations::new(nat.limit(ASSOCIATIONS).min(dispatch.limit() / 4));
        let pings = Associations::new(PINGS.min(dispatch.limit() / 4));
        let engines = Vec::new();
        let table = Table { engines, associations, clean_at: CLEAN_AT, pings };
        Self { nat, table: Arc::new(Mutex::new(table)) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ping on its way to its association: a whole message.
struct Echo {
    source: IpAddr,
    target: IpAddr,
    message: Buf,
}

/// A datagram, or a train of them, on its way to its association.
struct Datagram {
    source: SocketAddr,
    target: SocketAddr,
    data: Buf,
    segment: u16,
}

impl Gate {
    pub(crate) fn new(
        tag: Tag,
        engine: Arc<Engine>,
        dispatch: Dispatch,
        udp_timeout: Option<Duration>,
        ground: Ground,
        clients: Clients,
    ) -> Self {
        clients.lock().engines.push(Arc::downgrade(&engine));
        Self {
            dns_flows: (Instant::now(), 0),
            clients,
            early: false,
            batch: Vec::new(),
            datagrams: Vec::new(),
            pings: Vec::new(),
            words: Vec::new(),
            sessions: Vec::new(),
            tag,
            engine,
            dispatch,
            udp_timeout,
            ground,
        }
    }

    /// Answers clients before their connections are made, if `early`.
    pub(crate) fn accepting_early(self, early: bool) -> Self {
        Self { early, ..self }
    }

    /// Looks at the timers.
    pub(crate) fn on_timeout(&mut self) {
        let engine = Arc::clone(&self.engine);
        engine.with(|inner, now| {
            inner.stack.on_timeout(now);
            inner.armed = None;
            self.follow(inner, now);
        });
        self.submit();
    }

    /// Gives packets to the stack for as long as `next` has some, all under one lock, and submits what comes of them.
    pub(crate) fn receive(&mut self, next: impl FnMut() -> Option<Received>) {
        self.batch.extend(std::iter::from_fn(next));
        if self.batch.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let mut batch = std::mem::take(&mut self.batch);
        engine.with(|inner, now| {
            for received in batch.drain(..) {
                match inner.stack.receive(received, now) {
                    Some(Delivery::Datagram { source, target, data, segment }) => {
                        self.datagram(inner, Datagram { source, target, data, segment });
                    }
                    Some(Delivery::Echo { source, target, packet }) => {
                        self.echo(inner, source, target, packet);
                    }
                    Some(Delivery::TooBig(word)) => self.words.push(word),
                    None => {}
                }
            }
            self.follow(inner, now);
        });
        self.batch = batch;
        self.pass_on();
        self.deliver();
        self.submit();
    }

    fn submit(&mut self) {
        self.sessions.drain(..).for_each(|session| self.dispatch.submit(session));
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
        let place = self.ground.place(target);
        let nobody = place == Place::Nobody || (place == Place::Dns && !self.dns_flow(now));
        if nobody || self.dispatch.is_full() {
            inner.stack.refuse(id, Refusal::Reset, now);
            return;
        }
        let mut stream = NetStream::knocking(id, Arc::clone(&self.engine));
        if self.early {
            inner.stack.accept(id, now);
            stream.set_answered();
        }
        let session = self.session(Network::Tcp, source, place.or(target));
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

    /// One for an association that was opened from here goes to it; others wait until the stack is not locked any more.
    fn datagram(&mut self, inner: &mut Inner, datagram: Datagram) {
        let Datagram { source, target, data, segment } = datagram;
        let peer = Target { host: Host::from(source.ip()), port: source.port() };
        let data = match inner.opened.give(&target, Packet { data, segment, peer }) {
            Ok(()) => return,
            Err(packet) => packet.data,
        };
        self.datagrams.push(Datagram { source, target, data, segment });
    }

    /// Tells other queues' stacks what was for none of the connections here.
    fn pass_on(&mut self) {
        if self.words.is_empty() {
            return;
        }
        let engines = self.clients.lock().engines.clone();
        let others =
            engines.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, &self.engine));
        let others: Vec<_> = others.collect();
        for word in self.words.drain(..) {
            // Each of them is asked with its own lock alone.
            let _ = others.iter().any(|other| other.with(|inner, now| inner.stack.too_big(&word, now)));
        }
    }

    /// Gives datagrams to the associations of their clients.
    fn deliver(&mut self) {
        if self.datagrams.is_empty() && self.pings.is_empty() {
            return;
        }
        let mut datagrams = std::mem::take(&mut self.datagrams);
        let clients = self.clients.clone();
        let mut table = clients.lock();
        for datagram in datagrams.drain(..) {
            self.deliver_to(&mut table, datagram);
        }
        self.datagrams = datagrams;
        for ping in std::mem::take(&mut self.pings) {
            self.ping(&mut table, ping);
        }
    }

    fn deliver_to(&mut self, table: &mut Table, datagram: Datagram) {
        let Datagram { source, target, data, segment } = datagram;
        let place = self.ground.place(target);
        if place == Place::Nobody {
            return;
        }
        let to = place.or(target);
        let peer = Target { host: Host::from(to.ip()), port: to.port() };
        let nat = self.clients.nat;
        let packet = Packet { data, segment, peer };
        let Some(queue) = table.associations.deliver(&nat.key(source, to), packet) else { return };
        if self.dispatch.is_full() || (place == Place::Dns && !self.dns_flow(Instant::now())) {
            return; // the queue is dropped, and the client's next packet tries again
        }
        // What answers from a loopback address is known beyond the link by the address that was asked.
        let own = self.ground.prefixes().iter().map(|own| own.ip).find(|ip| ip.is_ipv4() == source.is_ipv4());
        let home = match (&self.ground, place) {
            (Ground::Made(_), _) => None,
            (Ground::Host(_), Place::Here(_)) => Some(target.ip()),
            (Ground::Host(_), _) => own,
        };
        let between = Between { client: source, target, home };
        let packets = NetPackets::new(queue, Arc::clone(&self.engine), between, nat.filter());
        let session = self.session(Network::Udp, source, to);
        let (io, udp_timeout) = (Io::Packets(Box::new(packets)), self.udp_timeout);
        self.sessions.push(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout });
        if table.associations.len() >= table.clean_at {
            table.associations.forget_ended();
            table.clean_at = CLEAN_AT.max(table.associations.len() * 2);
        }
    }

    /// A ping of the device's own address is answered here. Others go where the rules say: a ping that is always answered
    /// says that a tunnel is there, and nothing of whom it asks for.
    fn echo(&mut self, inner: &mut Inner, source: IpAddr, target: IpAddr, mut packet: Buf) {
        if self.ground.prefixes().iter().any(|own| own.ip == target) {
            if let Some(answer) = icmp::echo_reply(&packet) {
                inner.stack.send_packet(answer);
            }
            return;
        }
        let place = self.ground.place(SocketAddr::new(target, 0));
        let message = culvert_stack::ip::parse(&packet).ok().filter(|_| place == Place::Elsewhere);
        let Some(head) = message.filter(|head| head.payload.len() >= 8) else {
            if let Some(answer) = icmp::unreachable(&packet, Unreachable::Host) {
                inner.stack.send_packet(answer);
            }
            return;
        };
        packet.truncate(head.payload.end);
        packet.advance(head.payload.start);
        self.pings.push(Echo { source, target, message: packet });
    }

    /// Gives a ping to its association.
    fn ping(&mut self, table: &mut Table, Echo { source, target, message }: Echo) {
        let id = u16::from_be_bytes([message[4], message[5]]);
        let peer = Target { host: Host::from(target), port: 0 };
        let key = (source, target, id);
        let packet = Packet { data: message, segment: 0, peer };
        let Some(queue) = table.pings.deliver(&key, packet) else { return };
        if self.dispatch.is_full() {
            return;
        }
        let pings = NetPings::new(queue, Arc::clone(&self.engine), source, target);
        let session = self.session(Network::Icmp, SocketAddr::new(source, 0), SocketAddr::new(target, 0));
        let io = Io::Packets(Box::new(pings));
        self.sessions.push(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout: None });
        if table.pings.len() >= PINGS / 2 {
            table.pings.forget_ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<Prefix> {
        vec![
            Prefix { ip: "10.9.0.1".parse().unwrap(), len: 24 },
            Prefix { ip: "fd00::1".parse().unwrap(), len: 64 },
        ]
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_host_is_asked_by_all_addresses_of_its_prefixes_and_answers_by_loopback() {
        let ground = Ground::Host(own());
        assert_eq!(ground.place(at("10.9.0.1:80")), Place::Here(at("127.0.0.1:80")));
        assert_eq!(ground.place(at("10.9.0.77:53")), Place::Here(at("127.0.0.1:53")));
        assert_eq!(ground.place(at("[fd00::9]:80")), Place::Here(at("[::1]:80")));
        assert_eq!(ground.place(at("10.9.1.1:80")), Place::Elsewhere);
        for nobody in ["127.0.0.1:80", "[::1]:80", "224.0.0.1:80", "255.255.255.255:9", "0.0.0.0:1"] {
            assert_eq!(ground.place(at(nobody)), Place::Nobody, "{nobody}");
        }
    }

    #[test]
    fn in_a_network_that_is_made_up_there_is_but_dns() {
        let ground = Ground::Made(own());
        assert_eq!(ground.place(at("10.9.0.2:53")), Place::Dns);
        assert_eq!(ground.place(at("10.9.0.2:80")), Place::Nobody);
        assert_eq!(ground.place(at("192.0.2.1:80")), Place::Elsewhere);
    }
}
