//! A client's datagrams and pings.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use culvert_core::udp::PacketQueue;
use culvert_core::{DialError, DialOutcome, Packet, PacketBatch, PacketConn};
use culvert_stack::Refusal;
use culvert_stack::icmp::{self, Unreachable};
use culvert_wire::Room;

use super::engine::Engine;
use super::stream::refusal;
use crate::nat::Filter;

/// Most datagrams that are sent as one.
const TRAIN: usize = 32;

/// All datagrams of one address and port of a client that its mapping takes together; answers come from whoever the filter
/// lets in.
pub(crate) struct NetPackets {
    queue: PacketQueue,
    engine: Arc<Engine>,
    between: Between,
    filter: Filter,
}

/// Whom an association is between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub client: SocketAddr,
    /// To whom the first datagram goes.
    pub target: SocketAddr,
    /// By which address the client knows what answers from a loopback address of this host.
    pub home: Option<IpAddr>,
}

impl NetPackets {
    pub(crate) fn new(queue: PacketQueue, engine: Arc<Engine>, between: Between, filter: Filter) -> Self {
        Self { queue, engine, between, filter }
    }
}

impl PacketConn for NetPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let polled = self.queue.poll_recv(cx, room, batch);
        if !self.filter.is_open() && matches!(polled, Poll::Ready(Ok(()))) {
            batch.iter().for_each(|packet| self.filter.sent_to(&packet.peer));
        }
        polled
    }

    /// What the device does not take at once is dropped: its queue is full, which is what drops are for.
    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let (engine, filter) = (&self.engine, &self.filter);
        let Between { client, home, .. } = self.between;
        // Only an address can stand in a packet's head, and one of the client's family.
        let source = |packet: &Packet| {
            let mut source = packet.peer.socket_addr().filter(|_| filter.lets_in(&packet.peer))?;
            if let Some(home) = home.filter(|_| source.ip().is_loopback()) {
                source.set_ip(home);
            }
            (source.is_ipv4() == client.is_ipv4()).then_some(source)
        };
        engine.with(|inner, now| {
            let mut packets = batch.iter().peekable();
            while let Some(packet) = packets.next() {
                let Some(from) = source(packet) else { continue };
                if packet.segment > 0 {
                    engine.send_datagram(inner, (from, client), &packet.data, packet.segment, now);
                    continue;
                }
                // Those of one sender and one length go on together.
                let mut train = [IoSlice::new(&[]); TRAIN];
                train[0] = IoSlice::new(&packet.data);
                let (mut count, mut whole) = (1, true);
                while count < TRAIN
                    && whole
                    && let Some(next) = packets.next_if(|next| {
                        next.segment == 0
                            && !next.data.is_empty()
                            && next.data.len() <= packet.data.len()
                            && source(next) == Some(from)
                    })
                {
                    train[count] = IoSlice::new(&next.data);
                    count += 1;
                    whole = next.data.len() == packet.data.len();
                }
                engine.send_datagrams(inner, (from, client), &train[..count], now);
            }
        });
        batch.advance(batch.len());
        Poll::Ready(Ok(()))
    }

    /// A client whose way was refused is told by the error that names its first datagram.
    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        let DialOutcome::Failed(error) = outcome else { return };
        let Some(why) = unreachable(error) else { return };
        if let Some(answer) = icmp::datagram_unreachable(self.between.client, self.between.target, why) {
            self.engine.with(|inner, _| inner.stack.send_packet(answer));
        }
    }
}

/// A client's pings of one target: whole messages.
pub(crate) struct NetPings {
    queue: PacketQueue,
    engine: Arc<Engine>,
    client: IpAddr,
    target: IpAddr,
}

impl NetPings {
    pub(crate) fn new(queue: PacketQueue, engine: Arc<Engine>, client: IpAddr, target: IpAddr) -> Self {
        Self { queue, engine, client, target }
    }
}

impl PacketConn for NetPings {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let (engine, client, target) = (&self.engine, self.client, self.target);
        engine.with(|inner, _| {
            while let Some(packet) = batch.pop() {
                if packet.data.len() >= 8 {
                    inner.stack.send_packet(icmp::packet(target, client, packet.data.to_vec()));
                }
            }
        });
        Poll::Ready(Ok(()))
    }

    fn answer(&mut self, outcome: &DialOutcome<'_>) {
        let DialOutcome::Failed(error) = outcome else { return };
        let Some(why) = unreachable(error) else { return };
        // There are no ports that could be closed.
        let why = if why == Unreachable::Port { Unreachable::Host } else { why };
        let kind = if self.client.is_ipv4() { 8 } else { 128 };
        let mut waiting = PacketBatch::new();
        let mut cx = Context::from_waker(Waker::noop());
        let polled = self.queue.poll_recv(&mut cx, Room::NONE, &mut waiting);
        let first = waiting.pop().filter(|_| polled.is_ready());
        let message = first.map_or_else(|| vec![kind, 0, 0, 0, 0, 0, 0, 0], |packet| packet.data.to_vec());
        let quoted = icmp::packet(self.client, self.target, message);
        if let Some(answer) = icmp::unreachable(&quoted, why) {
            self.engine.with(|inner, _| inner.stack.send_packet(answer));
        }
    }
}

/// The error that tells a client of a dial that failed; none where it is to learn nothing.
fn unreachable(error: &DialError) -> Option<Unreachable> {
    match refusal(error) {
        Refusal::Reset => Some(Unreachable::Port),
        Refusal::Unreachable(why) => Some(why),
        Refusal::Drop => None,
    }
}
