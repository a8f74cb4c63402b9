//! Who belongs to which packet; timers; limits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_wire::{Buf, BufChain};

use crate::checksum::pseudo;
use crate::fragment::{Long, Reassembly};
use crate::icmp::{self, Unreachable};
use crate::ip::{self, protocol};
use crate::narrow::Narrow;
use crate::tcp::conn::{Broken, Signals, State};
use crate::tcp::segment::{self, Flags, Segment};
use crate::tcp::{Conn, Seq};
use crate::udp;

/// Longest packet that a train of segments may make.
const LONGEST: usize = 65_535;
/// Packets of the stack's own (resets, errors) that wait for the device.
const MOST_LOOSE: usize = 256;
/// Answers per second that an attacker could call forth.
const CHALLENGES: u32 = 1000;

/// What the device does for the stack.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Offloads {
    /// It completes checksums.
    pub checksum: bool,
    /// It cuts trains of TCP segments; needs `checksum`.
    pub tcp_segment: bool,
    /// It cuts trains of datagrams; needs `checksum`.
    pub udp_segment: bool,
}

/// Sizes and limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest packet that the device carries.
    pub mtu: u16,
    /// What the device does for the stack.
    pub offloads: Offloads,
    /// Most bytes that a connection's peer may send ahead of its reader.
    pub receive_window: u32,
    /// Most bytes that wait for a connection's peer.
    pub send_buffer: usize,
    /// Most bytes of payload in a train of segments.
    pub train: u32,
    /// Bytes that a connection may have on their way before anything is known of the path.
    pub initial_window: u32,
    /// How long the numbers of an ended connection are kept from being used again.
    pub time_wait: Duration,
    /// Most connections.
    pub connections: usize,
    /// Most of them that wait for an answer to their first packet.
    pub knocking: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mtu: 1500,
            offloads: Offloads::default(),
            receive_window: 512 << 10,
            send_buffer: 512 << 10,
            train: LONGEST as u32,
            initial_window: 10 * 1460,
            time_wait: Duration::from_secs(5),
            connections: 65_536,
            knocking: 4096,
        }
    }
}

impl Config {
    /// Longest payload of a segment to `peer`, options left aside.
    pub(crate) fn mss(&self, peer: SocketAddr) -> u16 {
        self.mtu - (ip::head_len(peer.ip()) + segment::HEAD) as u16
    }
}

/// A packet from the device.
#[derive(Debug)]
pub struct Received {
    /// The packet: an IP head, and a payload that may be that of a whole train.
    pub packet: Buf,
    /// Somebody has looked at the checksum of what is inside, or it never was on a wire.
    pub checked: bool,
    /// Of a train of datagrams: how long each is. Else 0.
    pub segment: u16,
}

/// A packet for the device: head and payload belong one behind the other.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// IP head, and what follows it.
    pub head: &'a [u8],
    /// The rest.
    pub payload: &'a [IoSlice<'a>],
    /// Of a train: how long the payload of each packet is. Else 0.
    pub segment: u16,
    /// Where in `head` the TCP or UDP head begins, if its checksum is to be completed by the device, and where in that its
    /// checksum is.
    pub checksum: Option<(u16, u16)>,
}

/// Whom packets are given to. `false` means that it takes no more for now and this one is to be offered again.
pub type Sink<'a> = dyn FnMut(Outgoing<'_>) -> bool + 'a;

/// Names one connection for as long as it is held.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// A small number that no other connection of the stack has while this one is held, for tables beside the stack.
    #[must_use]
    pub fn place(self) -> usize {
        self.index as usize
    }
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// `source` wants to connect to `target`: [`Stack::accept`] or [`Stack::refuse`] it.
    Knock {
        /// Its name from here on.
        id: ConnId,
        /// Who.
        source: SocketAddr,
        /// To whom.
        target: SocketAddr,
    },
    /// It is established.
    Connected(ConnId),
    /// A read that was blocked can go on.
    Readable(ConnId),
    /// A write that was blocked can go on.
    Writable(ConnId),
    /// It broke.
    Broken(ConnId, Broken),
}

/// What [`Stack::read`] found.
#[derive(Debug)]
pub enum ReadOutcome {
    /// These bytes.
    Data(BufChain),
    /// Nothing yet; an [`Event::Readable`] will follow.
    Blocked,
    /// The end of the stream.
    End,
    /// It broke.
    Broken(Broken),
}

/// How a client that knocks is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Nobody listens: a reset.
    Reset,
    /// An ICMP error.
    Unreachable(Unreachable),
    /// Silence.
    Drop,
}

/// What a packet brought that is not the stack's own business.
#[derive(Debug)]
pub enum Delivery {
    /// A datagram, or a train of them.
    Datagram {
        /// From whom.
        source: SocketAddr,
        /// To whom.
        target: SocketAddr,
        /// What.
        data: Buf,
        /// Of a train: how long each is. Else 0.
        segment: u16,
    },
    /// A ping. [`icmp::echo_reply`] makes the answer.
    Echo {
        /// From whom.
        source: IpAddr,
        /// To whom.
        target: IpAddr,
        /// The whole packet.
        packet: Buf,
    },
    /// Word of a smaller MTU that the stacks of other queues are to hear: for a connection that is not here, as its packets
    /// have another hash than what they tell of, or for datagrams, which may leave by any.
    TooBig(TooBig),
}

/// What [`Stack::too_big`] takes.
#[derive(Clone, Copy, Debug)]
pub struct TooBig {
    source: SocketAddr,
    target: SocketAddr,
    protocol: u8,
    seq: Seq,
    mtu: u16,
}

/// Numbers for the curious.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Packets that came.
    pub received: u64,
    /// Packets given to the device; a train counts as one.
    pub sent: u64,
    /// Packets that made no sense.
    pub malformed: u64,
    /// Packets to protocols that are not spoken here.
    pub unknown: u64,
    /// Clients that were turned away because there were too many.
    pub crowded: u64,
}

struct Slot {
    generation: u32,
    conn: Option<Box<Conn>>,
    /// Whether it stands in the queue of those that may have something to send.
    queued: bool,
    /// The earliest entry of the heap of timers.
    scheduled: Option<Instant>,
}

/// The stack. See the [crate's documentation](crate) for the order of calls.
pub struct Stack {
    config: Config,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// By our address and the peer's.
    by_pair: HashMap<(SocketAddr, SocketAddr), u32>,
    knocking: usize,
    queue: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    events: VecDeque<Event>,
    loose: VecDeque<Vec<u8>>,
    reassembly: Reassembly,
    narrow: Narrow,
    secret: RandomState,
    born: Instant,
    ident: u16,
    challenges: (Instant, u32),
    counters: Counters,
}

impl Stack {
    /// A stack without connections.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        Self {
            config,
            slots: Vec::new(),
            free: Vec::new(),
            by_pair: HashMap::new(),
            knocking: 0,
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            loose: VecDeque::new(),
            reassembly: Reassembly::default(),
            narrow: Narrow::default(),
            secret: RandomState::new(),
            born: now,
            ident: 0,
            challenges: (now, 0),
            counters: Counters::default(),
        }
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes in a packet. What TCP makes of it shows as events.
    pub fn receive(&mut self, received: Received, now: Instant) -> Option<Delivery> {
        self.counters.received += 1;
        let Ok(head) = ip::parse(&received.packet) else {
            self.counters.malformed += 1;
            return None;
        };
        if let Some(piece) = head.fragment {
            let payload = &received.packet[head.payload.clone()];
            let whole = self.reassembly.add(&head, piece, payload, now)?;
            // As it was before it was cut; a head of our own stands in for the first piece's.
            let mut packet = vec![0; ip::MAX_HEAD];
            let len = ip::encode(head.source, head.target, head.protocol, whole.len(), 0, &mut packet);
            packet.truncate(len);
            packet.extend(whole);
            return self.receive_whole(Received { packet: packet.into(), checked: false, segment: 0 }, now);
        }
        self.dispatch(&head, received, now)
    }

    /// Takes word of a smaller MTU, of one of our packets. Whether it is for nobody else, as the connection is here.
    pub fn too_big(&mut self, word: &TooBig, now: Instant) -> bool {
        let TooBig { source, target, protocol, seq, mtu } = *word;
        if protocol != protocol::TCP {
            self.narrow.learn(target.ip(), mtu, now);
            return false;
        }
        let Some(index) = self.by_pair.get(&(source, target)).copied() else { return false };
        self.touch(index, now, |conn, _, _| conn.reduce_mss(seq, mtu, now));
        true
    }

    fn receive_whole(&mut self, received: Received, now: Instant) -> Option<Delivery> {
        match ip::parse(&received.packet) {
            Ok(head) if head.fragment.is_none() => self.dispatch(&head, received, now),
            _ => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    fn dispatch(&mut self, head: &ip::Head, received: Received, now: Instant) -> Option<Delivery> {
        let Received { mut packet, checked, segment } = received;
        match head.protocol {
            protocol::TCP => {
                if self.receive_tcp(head, packet, checked, now).is_none() {
                    self.counters.malformed += 1;
                }
                None
            }
            protocol::UDP => {
                let Some((source, target, data)) = udp::parse(head, &packet, checked) else {
                    self.counters.malformed += 1;
                    return None;
                };
                packet.truncate(data.end);
                packet.advance(data.start);
                Some(Delivery::Datagram {
                    source: SocketAddr::new(head.source, source),
                    target: SocketAddr::new(head.target, target),
                    segment: if usize::from(segment) < packet.len() { segment } else { 0 },
                    data: packet,
                })
            }
            protocol::ICMP | protocol::ICMPV6
                if (head.protocol == protocol::ICMP) == head.source.is_ipv4() =>
            {
                match icmp::parse(head, &packet, checked) {
                    Some(icmp::Message::EchoRequest) => {
                        packet.truncate(head.payload.end);
                        Some(Delivery::Echo { source: head.source, target: head.target, packet })
                    }
                    Some(icmp::Message::TooBig { source, target, protocol, seq, mtu }) => {
                        let word = TooBig { source, target, protocol, seq, mtu };
                        if self.too_big(&word, now) { None } else { Some(Delivery::TooBig(word)) }
                    }
                    Some(icmp::Message::Other) => None,
                    None => {
                        self.counters.malformed += 1;
                        None
                    }
                }
            }
            _ => {
                self.counters.unknown += 1;
                None
            }
        }
    }

    /// `None` if it makes no sense.
    fn receive_tcp(&mut self, head: &ip::Head, mut packet: Buf, checked: bool, now: Instant) -> Option<()> {
        let bytes = &packet[head.payload.clone()];
        let (segment, len) = Segment::parse(bytes)?;
        if !checked && pseudo(head.source, head.target, protocol::TCP, bytes.len()).bytes(bytes).finish() != 0
        {
            return None;
        }
        packet.truncate(head.payload.end);
        packet.advance(head.payload.start + len);
        let pair =
            (SocketAddr::new(head.target, segment.target), SocketAddr::new(head.source, segment.source));
        if let Some(index) = self.by_pair.get(&pair).copied() {
            if !self.makes_way(index, &segment) {
                let mut challenges = self.challenges;
                self.touch(index, now, |conn, config, _| {
                    conn.receive(&segment, packet, config, now, &mut || allow(&mut challenges, now));
                });
                self.challenges = challenges;
                return Some(());
            }
            self.remove(index);
        }
        if segment.flags.has(Flags::RST) {
            return Some(());
        }
        if segment.flags == Flags::SYN {
            self.knock(pair, &segment, now);
        } else {
            self.reset(pair, &segment, packet.len());
        }
        Some(())
    }

    /// Whether an ended connection makes way for a new one of the same pair (RFC 9293 section 3.6.1).
    fn makes_way(&self, index: u32, segment: &Segment) -> bool {
        let conn = self.slots[index as usize].conn.as_deref();
        conn.is_some_and(|conn| {
            segment.flags == Flags::SYN
                && conn.state() == State::TimeWait
                && conn.is_released()
                && conn.is_new(segment.seq)
        })
    }

    fn knock(&mut self, pair: (SocketAddr, SocketAddr), syn: &Segment, now: Instant) {
        if self.knocking >= self.config.knocking || self.connections() >= self.config.connections {
            self.counters.crowded += 1;
            return;
        }
        let iss = self.first_number(pair, now);
        let conn = Conn::knocking(pair.0, pair.1, syn, iss, &self.config, now);
        let id = self.insert(conn);
        self.knocking += 1;
        self.events.push_back(Event::Knock { id, source: pair.1, target: pair.0 });
    }

    /// Opens a connection from here.
    pub fn connect(&mut self, source: SocketAddr, target: SocketAddr, now: Instant) -> Option<ConnId> {
        if self.by_pair.contains_key(&(source, target)) || self.connections() >= self.config.connections {
            return None;
        }
        let iss = self.first_number((source, target), now);
        let id = self.insert(Conn::connecting(source, target, iss, &self.config, now));
        self.touch(id.index, now, |_, _, _| {});
        Some(id)
    }

    /// How a connection that was opened from here has fared: `None` while nobody has answered.
    #[must_use]
    pub fn opened(&self, id: ConnId) -> Option<Result<(), Broken>> {
        let conn = self.slot(id).and_then(|index| self.slots[index as usize].conn.as_deref());
        conn.map_or(Some(Err(Broken::Reset)), Conn::opened)
    }

    fn insert(&mut self, conn: Conn) -> ConnId {
        let pair = (conn.local, conn.peer);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, conn: None, queued: false, scheduled: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.conn = Some(Box::new(conn));
        self.by_pair.insert(pair, index);
        ConnId { index, generation: slot.generation }
    }

    /// RFC 6528: a clock, and a secret of the pair, so that numbers cannot be guessed and do not come again.
    fn first_number(&self, pair: (SocketAddr, SocketAddr), now: Instant) -> Seq {
        let clock = (now.saturating_duration_since(self.born).as_micros() / 4) as u32;
        Seq((self.secret.hash_one(pair) as u32).wrapping_add(clock))
    }

    /// Answers a segment that belongs to nothing.
    fn reset(&mut self, (local, peer): (SocketAddr, SocketAddr), segment: &Segment, payload: usize) {
        let (seq, ack, flags) = if segment.flags.has(Flags::ACK) {
            (segment.ack, Seq(0), Flags::RST)
        } else {
            let len = payload as u32
                + u32::from(segment.flags.has(Flags::SYN))
                + u32::from(segment.flags.has(Flags::FIN));
            (Seq(0), segment.seq + len, Flags::RST.and(Flags::ACK))
        };
        let answer =
            Segment { source: local.port(), target: peer.port(), seq, ack, flags, ..Segment::default() };
        let mut packet = vec![0; ip::MAX_HEAD + segment::MAX_HEAD];
        let at = ip::encode(local.ip(), peer.ip(), protocol::TCP, segment::HEAD, 0, &mut packet);
        let len = answer.encode(&mut packet[at..]);
        packet.truncate(at + len);
        let sum = pseudo(local.ip(), peer.ip(), protocol::TCP, len).bytes(&packet[at..]).finish();
        packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        self.send_packet(packet);
    }

    /// Queues a whole packet of the caller's: an answer to a ping, an error.
    pub fn send_packet(&mut self, mut packet: Vec<u8>) {
        let ident = self.idents(1);
        ip::number(&mut packet, ident);
        if self.loose.len() < MOST_LOOSE {
            self.loose.push_back(packet);
        }
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            let (Event::Knock { id, .. }
            | Event::Connected(id)
            | Event::Readable(id)
            | Event::Writable(id)
            | Event::Broken(id, _)) = event;
            if self.slot(id).is_some() {
                return Some(event);
            }
        }
    }

    fn slot(&self, id: ConnId) -> Option<u32> {
        let slot = self.slots.get(id.index as usize)?;
        (slot.generation == id.generation && slot.conn.is_some()).then_some(id.index)
    }

    /// Lets a client in that has knocked.
    pub fn accept(&mut self, id: ConnId, now: Instant) {
        if let Some(index) = self.slot(id) {
            self.touch(index, now, |conn, _, _| conn.accept());
        }
    }

    /// Turns a client away that has knocked. Its name means nothing from here on.
    pub fn refuse(&mut self, id: ConnId, how: Refusal, now: Instant) {
        let Some(index) = self.slot(id) else { return };
        match how {
            Refusal::Reset => self.release(id, now),
            Refusal::Drop => self.remove(index),
            Refusal::Unreachable(why) => {
                let error = self.slots[index as usize].conn.as_deref().and_then(|conn| {
                    let mut syn = vec![0; ip::MAX_HEAD + segment::HEAD];
                    let at = ip::encode(
                        conn.peer.ip(),
                        conn.local.ip(),
                        protocol::TCP,
                        segment::HEAD,
                        0,
                        &mut syn,
                    );
                    syn.truncate(at + segment::HEAD);
                    conn.encode_syn(&mut syn[at..]);
                    icmp::unreachable(&syn, why)
                });
                if let Some(error) = error {
                    self.send_packet(error);
                }
                self.remove(index);
            }
        }
    }

    /// Takes what a connection has received.
    pub fn read(&mut self, id: ConnId, now: Instant) -> ReadOutcome {
        let Some(index) = self.slot(id) else { return ReadOutcome::Broken(Broken::Reset) };
        self.touch(index, now, |conn, _, _| conn.read())
    }

    /// Gives a connection bytes to send: as many as it lets wait, whole pieces, from the front of `data`. Whether it took all;
    /// if not, an [`Event::Writable`] will follow.
    ///
    /// # Errors
    /// It is broken, or its end has been queued.
    pub fn write(&mut self, id: ConnId, data: &mut BufChain, now: Instant) -> Result<bool, Broken> {
        let index = self.slot(id).ok_or(Broken::Reset)?;
        self.touch(index, now, |conn, config, _| conn.write(data, config.send_buffer))
    }

    /// Ends what is sent, behind what is queued.
    pub fn shut_down(&mut self, id: ConnId, now: Instant) {
        if let Some(index) = self.slot(id) {
            self.touch(index, now, |conn, _, _| conn.shut_down());
        }
    }

    /// Breaks a connection: its peer gets a reset.
    pub fn abort(&mut self, id: ConnId, now: Instant) {
        if let Some(index) = self.slot(id) {
            self.touch(index, now, |conn, _, _| conn.abort());
        }
    }

    /// Lets go of a connection; its name means nothing from here on. What is queued goes out; what comes is refused.
    pub fn release(&mut self, id: ConnId, now: Instant) {
        if let Some(index) = self.slot(id) {
            let slot = &mut self.slots[index as usize];
            slot.generation = slot.generation.wrapping_add(1);
            self.touch(index, now, |conn, _, _| conn.release(now));
        }
    }

    /// Runs `change` on a connection, then does what follows from it: events, timers, a place in the queue.
    fn touch<T>(
        &mut self,
        index: u32,
        now: Instant,
        change: impl FnOnce(&mut Conn, &Config, Instant) -> T,
    ) -> T {
        let slot = &mut self.slots[index as usize];
        let conn = slot.conn.as_deref_mut().expect("whoever names a slot has seen that it is in use");
        let was_knocking = conn.state() == State::Knocking;
        let result = change(conn, &self.config, now);
        let id = ConnId { index, generation: slot.generation };
        let signals = std::mem::take(&mut conn.signals);
        let Signals { connected, readable, writable, broken } = signals;
        if !conn.is_released() && signals != Signals::default() {
            let events = [
                connected.then_some(Event::Connected(id)),
                readable.then_some(Event::Readable(id)),
                writable.then_some(Event::Writable(id)),
                broken.map(|why| Event::Broken(id, why)),
            ];
            self.events.extend(events.into_iter().flatten());
        }
        if was_knocking && conn.state() != State::Knocking {
            self.knocking -= 1;
        }
        if let Some(at) = conn.deadline()
            && slot.scheduled.is_none_or(|scheduled| at < scheduled)
        {
            slot.scheduled = Some(at);
            self.timers.push(Reverse((at, index, 0)));
        }
        if conn.state() == State::Closed {
            let pair = (conn.local, conn.peer);
            if self.by_pair.get(&pair) == Some(&index) {
                self.by_pair.remove(&pair);
            }
        }
        if !slot.queued {
            slot.queued = true;
            self.queue.push_back(index);
        }
        result
    }

    /// Forgets a connection without a word to its peer.
    fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(conn) = slot.conn.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        slot.scheduled = None;
        if conn.state() == State::Knocking {
            self.knocking -= 1;
        }
        let pair = (conn.local, conn.peer);
        if self.by_pair.get(&pair) == Some(&index) {
            self.by_pair.remove(&pair);
        }
        self.free.push(index);
    }

    /// Sends what is due. `false` if `sink` took no more, so that something is left.
    pub fn transmit(&mut self, now: Instant, sink: &mut Sink<'_>) -> bool {
        while let Some(packet) = self.loose.pop_front() {
            if !self.send_loose(&packet, now, sink) {
                self.loose.push_front(packet);
                return false;
            }
        }
        while let Some(index) = self.queue.pop_front() {
            let slot = &mut self.slots[index as usize];
            slot.queued = false;
            let Some(conn) = slot.conn.as_deref_mut() else { continue };
            let (config, ident, counters) = (&self.config, &mut self.ident, &mut self.counters);
            let ends = (conn.local, conn.peer);
            let most =
                if config.offloads.tcp_segment { LONGEST - ip::MAX_HEAD - segment::MAX_HEAD } else { 0 };
            let done =
                conn.transmit(now, config.train.min(most as u32), config, &mut |segment, payload, mss| {
                    let taken = emit(ends, segment, payload, mss, config, ident, sink);
                    counters.sent += u64::from(taken);
                    taken
                });
            if let Some(at) = conn.deadline()
                && slot.scheduled.is_none_or(|scheduled| at < scheduled)
            {
                slot.scheduled = Some(at);
                self.timers.push(Reverse((at, index, 0)));
            }
            if !done {
                slot.queued = true;
                self.queue.push_front(index);
                return false;
            }
            if conn.is_over() && conn.is_released() {
                self.remove(index);
            }
        }
        if self.queue.capacity() > 1024 && self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        true
    }

    /// When [`Stack::on_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(Reverse((at, index, _))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            let slot = &mut self.slots[index as usize];
            if slot.scheduled != Some(at) || slot.conn.is_none() {
                continue; // an earlier one took its place
            }
            slot.scheduled = None;
            self.touch(index, now, |conn, _, now| conn.on_timeout(now));
        }
        if self.timers.is_empty() && self.timers.capacity() > 1024 {
            self.timers = BinaryHeap::new();
        }
    }

    /// Longest packet that gets to `target` in one piece, as far as is known.
    fn mtu_to(&self, target: IpAddr, now: Instant) -> u16 {
        self.config.mtu.min(self.narrow.mtu(target, now).unwrap_or(u16::MAX))
    }

    /// Numbers for so many packets; the first of them.
    fn idents(&mut self, count: usize) -> u16 {
        let first = self.ident.wrapping_add(1);
        self.ident = self.ident.wrapping_add(count as u16);
        first
    }

    /// Sends a whole packet, in pieces if it is too long. `false` if `sink` took nothing of it.
    fn send_loose(&mut self, packet: &[u8], now: Instant, sink: &mut Sink<'_>) -> bool {
        if packet.len() > usize::from(self.config.mtu.min(Narrow::LEAST))
            && let Ok(head) = ip::parse(packet)
            && packet.len() > usize::from(self.mtu_to(head.target, now))
        {
            let ip::Head { source, target, protocol, payload, .. } = head;
            let ident = self.idents(1);
            return self.send_in_pieces(
                Long { source, target, protocol, ident, payload: &packet[payload] },
                now,
                sink,
            );
        }
        let taken = sink(Outgoing { head: packet, payload: &[], segment: 0, checksum: None });
        self.counters.sent += u64::from(taken);
        taken
    }

    /// Sends a datagram, or with `segment` a train of datagrams of that length. `false` if `sink` took no more; of a train
    /// some may have left by then, and the caller drops the rest, as a network would.
    pub fn send_datagram(
        &mut self,
        (source, target): (SocketAddr, SocketAddr),
        data: &[u8],
        segment: u16,
        now: Instant,
        sink: &mut Sink<'_>,
    ) -> bool {
        let whole = usize::from(segment) == 0 || usize::from(segment) >= data.len();
        let longest = usize::from(self.mtu_to(target.ip(), now)) - ip::head_len(target.ip()) - udp::HEAD;
        let is_train = self.config.offloads.udp_segment && usize::from(segment) <= longest;
        if !whole && !is_train {
            return data
                .chunks(segment.into())
                .all(|part| self.send_datagram((source, target), part, 0, now, sink));
        }
        let mut head = [0; ip::MAX_HEAD + udp::HEAD];
        if whole && data.len() > longest {
            return self.send_long_datagram((source, target), data, now, sink);
        }
        let ident = self.idents(if whole { 1 } else { data.len().div_ceil(segment.into()) });
        let complete = !self.config.offloads.checksum;
        let len = udp::encode(source, target, data, ident, complete, &mut head);
        let at = (len - udp::HEAD) as u16;
        let taken = sink(Outgoing {
            head: &head[..len],
            payload: &[IoSlice::new(data)],
            segment: if whole { 0 } else { segment },
            checksum: (!complete).then_some((at, 6)),
        });
        self.counters.sent += u64::from(taken);
        taken
    }

    /// Sends datagrams that belong one behind the other, as a train where the device cuts them. All but the last, which may be
    /// shorter, have one length. `false` if `sink` took no more, as with [`Stack::send_datagram`].
    pub fn send_datagrams(
        &mut self,
        (source, target): (SocketAddr, SocketAddr),
        datagrams: &[IoSlice<'_>],
        now: Instant,
        sink: &mut Sink<'_>,
    ) -> bool {
        let segment = datagrams.first().map_or(0, |first| first.len());
        let len: usize = datagrams.iter().map(|datagram| datagram.len()).sum();
        let heads = ip::head_len(target.ip()) + udp::HEAD;
        let fits = segment + heads <= usize::from(self.mtu_to(target.ip(), now)) && len + heads <= LONGEST;
        // One without bytes would vanish in a train.
        let empty = datagrams.iter().any(|datagram| datagram.is_empty());
        if datagrams.len() < 2 || empty || !fits || !self.config.offloads.udp_segment {
            return datagrams
                .iter()
                .all(|datagram| self.send_datagram((source, target), datagram, 0, now, sink));
        }
        let ident = self.idents(datagrams.len());
        let mut head = [0; ip::MAX_HEAD + udp::HEAD];
        let end = udp::encode_for_device(source, target, len, ident, &mut head);
        let taken = sink(Outgoing {
            head: &head[..end],
            payload: datagrams,
            segment: segment as u16,
            checksum: Some(((end - udp::HEAD) as u16, 6)),
        });
        self.counters.sent += u64::from(taken);
        taken
    }

    /// A datagram that is longer than a packet may be.
    fn send_long_datagram(
        &mut self,
        (source, target): (SocketAddr, SocketAddr),
        data: &[u8],
        now: Instant,
        sink: &mut Sink<'_>,
    ) -> bool {
        // Version 6 does not count its head.
        let heads = udp::HEAD + if target.is_ipv4() { ip::head_len(target.ip()) } else { 0 };
        if heads + data.len() > LONGEST {
            return true; // no network carries it
        }
        let ident = self.idents(1);
        let mut head = [0; ip::MAX_HEAD + udp::HEAD];
        let len = udp::encode(source, target, data, ident, true, &mut head);
        let payload = [&head[len - udp::HEAD..len], data].concat();
        let (source, target, protocol) = (source.ip(), target.ip(), protocol::UDP);
        self.send_in_pieces(Long { source, target, protocol, ident, payload: &payload }, now, sink)
    }

    /// Sends a packet in pieces. `false` if `sink` took none; if it took but some, the packet is lost as on any way.
    fn send_in_pieces(&mut self, long: Long<'_>, now: Instant, sink: &mut Sink<'_>) -> bool {
        let mtu = self.mtu_to(long.target, now);
        let mut taken = 0;
        let all = long.cut(mtu, &mut |head, part| {
            let took = sink(Outgoing { head, payload: &[IoSlice::new(part)], segment: 0, checksum: None });
            taken += u64::from(took);
            took
        });
        self.counters.sent += taken;
        all || taken > 0
    }
}

/// Whether one more answer may be called forth in this second.
fn allow((since, count): &mut (Instant, u32), now: Instant) -> bool {
    if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
        (*since, *count) = (now, 0);
    }
    *count += 1;
    *count <= CHALLENGES
}

/// Puts heads before a payload and gives the packet to the device.
fn emit(
    (local, peer): (SocketAddr, SocketAddr),
    segment: &Segment,
    payload: &[IoSlice<'_>],
    mss: u16,
    config: &Config,
    ident: &mut u16,
    sink: &mut Sink<'_>,
) -> bool {
    let len: usize = payload.iter().map(|slice| slice.len()).sum();
    let mut head = [0; ip::MAX_HEAD + segment::MAX_HEAD];
    let options = segment::HEAD + segment.options.encoded_len();
    *ident = ident.wrapping_add(1);
    let at = ip::encode(local.ip(), peer.ip(), protocol::TCP, options + len, *ident, &mut head);
    let end = at + segment.encode(&mut head[at..]);
    let mut sum = pseudo(local.ip(), peer.ip(), protocol::TCP, options + len);
    let field = if config.offloads.checksum {
        sum.partial()
    } else {
        sum = sum.bytes(&head[at..end]);
        let mut odd = false;
        for slice in payload {
            sum = add_at(sum, slice, odd);
            odd ^= slice.len() % 2 == 1;
        }
        sum.finish()
    };
    head[at + 16..at + 18].copy_from_slice(&field.to_be_bytes());
    let train = config.offloads.tcp_segment && len > usize::from(mss);
    sink(Outgoing {
        head: &head[..end],
        payload,
        segment: if train { mss } else { 0 },
        checksum: config.offloads.checksum.then_some((at as u16, 16)),
    })
}

/// Adds bytes that begin at an odd offset, if `odd`.
fn add_at(sum: crate::checksum::Sum, bytes: &[u8], odd: bool) -> crate::checksum::Sum {
    match bytes.split_first() {
        Some((first, rest)) if odd => sum.word(u16::from(*first)).bytes(rest),
        _ => sum.bytes(bytes),
    }
}

/// Takes packets made of `bytes` into a stack with a connection; for fuzzing. Nothing may panic or grow without bound.
pub fn fuzz_packets(bytes: &[u8]) {
    let mut now = Instant::now();
    let config = Config { connections: 8, knocking: 4, receive_window: 8 << 10, ..Config::default() };
    let mut stack = Stack::new(config, now);
    let (local, peer): (SocketAddr, SocketAddr) = (([192, 0, 2, 1], 80).into(), ([10, 0, 0, 1], 1000).into());
    let packet_to_us = |stack: &mut Stack, segment: &Segment, payload: &[u8], now: Instant| {
        let mut packet = vec![0; ip::MAX_HEAD + segment::MAX_HEAD];
        let len = segment::HEAD + segment.options.encoded_len() + payload.len();
        let at = ip::encode(peer.ip(), local.ip(), protocol::TCP, len, 0, &mut packet);
        let end = at + segment.encode(&mut packet[at..]);
        packet.truncate(end);
        packet.extend(payload);
        stack.receive(Received { packet: packet.into(), checked: true, segment: 0 }, now);
    };
    let syn = Segment { source: 1000, target: 80, flags: Flags::SYN, window: 1000, ..Segment::default() };
    packet_to_us(&mut stack, &syn, &[], now);
    let Some(Event::Knock { id, .. }) = stack.poll_event() else { return };
    stack.accept(id, now);
    let mut ours = Seq(0);
    let mut transmit = |stack: &mut Stack, now| {
        stack.transmit(now, &mut |out| {
            if let Some((segment, _)) = out.head.get(20..).and_then(Segment::parse) {
                ours = segment.seq;
            }
            true
        });
        ours
    };
    let mut first = transmit(&mut stack, now) + 1;
    for chunk in bytes.chunks(24) {
        let byte = |at: usize| chunk.get(at).copied().unwrap_or_default();
        let word = |at: usize| u32::from_be_bytes([0, byte(at), byte(at + 1), byte(at + 2)]);
        now += Duration::from_millis(u64::from(byte(0)) * 4);
        match byte(1) % 6 {
            0 => {
                stack.receive(
                    Received { packet: Buf::copied(&chunk[1..]), checked: byte(2) > 9, segment: 0 },
                    now,
                );
            }
            1 => {
                let _ = stack.write(id, &mut BufChain::copied(&chunk[1..]), now);
            }
            2 => drop(stack.read(id, now)),
            3 if byte(2) == 0 => stack.shut_down(id, now),
            _ => {
                // Near the truth, so that more than the first check is reached.
                let mut options = segment::Options::default();
                options.sack.push(first + word(9) % 300, first + word(12) % 300);
                let segment = Segment {
                    seq: Seq(1) + word(3) % 9000,
                    ack: first + word(6) % 300,
                    flags: Flags(byte(2) & 0x1f | if byte(1) & 64 > 0 { 16 } else { 0 }),
                    window: u16::from(byte(15)),
                    options,
                    ..syn
                };
                packet_to_us(&mut stack, &segment, chunk.get(16..).unwrap_or_default(), now);
            }
        }
        first = first.max(transmit(&mut stack, now));
        stack.on_timeout(now);
        while stack.poll_event().is_some() {}
        assert!(stack.connections() <= 8);
    }
}
