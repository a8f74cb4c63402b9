//! What carries an endpoint's datagrams: a socket, two of them while a client hops between ports, or packets of another
//! outbound.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use culvert_core::{BoxPackets, PacketBatch, PacketConn};
use culvert_os::udp::{
    Ecn, GRO_BUFFER, GsoSupport, MAX_SEGMENTS, RecvSlot, SendSlot, enable_ecn, enable_gro,
    enable_local_address, is_gso_refused, probe_gso, recv_batch, send_batch,
};
use culvert_wire::{Buf, Room, Target};
use quinn_proto::EcnCodepoint;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Messages that one receive has room for at most.
const MAX_SLOTS: usize = 16;
/// Messages that one call sends at most.
const MAX_SEND: usize = 16;
/// Bytes that one message may have at most (UDP over IPv4).
const MAX_MESSAGE: usize = 65_507;

/// Changes each datagram on its way out, and back on its way in, so that it does not look like QUIC.
pub trait Disguise: Send + Sync {
    /// Bytes that a datagram grows by.
    fn overhead(&self) -> usize;

    /// Puts the changed `datagram` at the end of `to`.
    fn wrap(&self, datagram: &[u8], to: &mut Vec<u8>);

    /// Changes `datagram` back in place; returns how many bytes at its front are not part of it. `None` for what is none.
    fn unwrap(&self, datagram: &mut [u8]) -> Option<usize>;
}

/// Opens the next socket of a client: one that hops between ports, or whose network is another one.
pub type OpenSocket = Box<dyn FnMut() -> io::Result<UdpSocket> + Send>;
/// Picks the next port, and how long it is to be used.
pub type NextPort = Box<dyn FnMut() -> (u16, Duration) + Send>;

/// How a client hops between ports of its server: another one and another socket each time. The socket before receives
/// until the next hop. For the connection the server's address stays as it was.
pub struct Hop {
    /// Opens a socket.
    pub open: OpenSocket,
    /// Picks a port.
    pub next: NextPort,
}

/// See the module.
pub struct Link {
    carrier: Carrier,
    /// How a client opens its next socket.
    open: Option<OpenSocket>,
    disguise: Option<Arc<dyn Disguise>>,
    hopping: Option<Hopping>,
    arena: Vec<Buf>,
    slots: usize,
    outbox: VecDeque<Outgoing>,
    /// Buffers for what is sent next.
    spare: Vec<Vec<u8>>,
}

enum Carrier {
    Sockets {
        current: Socket,
        /// The one before the last hop, or before the network changed.
        before: Option<Socket>,
    },
    Packets {
        conn: BoxPackets,
        /// What the connection knows as its server, and what the conn below does.
        server: SocketAddr,
        target: Target,
    },
}

struct Socket {
    io: Arc<UdpSocket>,
    gso: bool,
}

struct Hopping {
    next: NextPort,
    /// What the connection knows as its server.
    server: SocketAddr,
    /// Where datagrams go now.
    to: SocketAddr,
    until: Instant,
}

/// A received message: one datagram, or several of `segment` bytes, of which the last may be shorter.
pub(crate) struct Received {
    pub(crate) data: BytesMut,
    pub(crate) segment: usize,
    pub(crate) source: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
}

/// A message to send, likewise.
struct Outgoing {
    data: Vec<u8>,
    segment: usize,
    to: SocketAddr,
    from: Option<IpAddr>,
    ecn: Option<Ecn>,
}

impl Link {
    /// Over a bound socket of its own.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn socket(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self::new(Carrier::Sockets { current: Socket::new(socket)?, before: None }))
    }

    /// Over a socket that `open` opens, and over another one when the network has changed.
    ///
    /// # Errors
    /// Those of the first socket.
    pub fn opening(mut open: OpenSocket) -> io::Result<Self> {
        let mut link = Self::socket(open()?)?;
        link.open = Some(open);
        Ok(link)
    }

    /// Over the packets of another outbound, to `target`, which the connection knows as `server`.
    #[must_use]
    pub fn packets(conn: BoxPackets, server: SocketAddr, target: Target) -> Self {
        Self::new(Carrier::Packets { conn, server, target })
    }

    /// Over sockets that `hop` opens, to a port of `server` that it picks.
    ///
    /// # Errors
    /// Those of the first socket.
    pub fn hopping(hop: Hop, server: SocketAddr) -> io::Result<Self> {
        let Hop { open, mut next } = hop;
        let mut link = Self::opening(open)?;
        let (port, time) = next();
        let to = SocketAddr::new(server.ip(), port);
        link.hopping = Some(Hopping { next, server, to, until: Instant::now() + time });
        Ok(link)
    }

    /// The same with each datagram disguised.
    #[must_use]
    pub fn disguised(mut self, disguise: Arc<dyn Disguise>) -> Self {
        self.disguise = Some(disguise);
        self
    }

    fn new(carrier: Carrier) -> Self {
        Self {
            carrier,
            open: None,
            disguise: None,
            hopping: None,
            arena: Vec::new(),
            slots: 1,
            outbox: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// The address of the socket, where there is one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.carrier {
            Carrier::Sockets { current, .. } => current.io.local_addr().ok(),
            Carrier::Packets { .. } => None,
        }
    }

    /// Bytes that each datagram grows by.
    pub(crate) fn overhead(&self) -> usize {
        self.disguise.as_ref().map_or(0, |disguise| disguise.overhead())
    }

    /// Datagrams of `size` bytes that may go in one message.
    pub(crate) fn segments(&self, size: usize) -> usize {
        (MAX_MESSAGE / (size + self.overhead()).max(1)).clamp(1, MAX_SEGMENTS)
    }

    /// When the link wants to be looked after ([`Link::turn`]).
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.hopping.as_ref().map(|hopping| hopping.until)
    }

    /// Hops, if it is time.
    pub(crate) fn turn(&mut self, now: Instant) {
        let Some(hopping) = self.hopping.as_mut().filter(|hopping| hopping.until <= now) else { return };
        let (port, time) = (hopping.next)();
        hopping.until = now + time;
        // Where no socket can be opened the old one still works; the next hop may do better.
        if self.reopen()
            && let Some(hopping) = &mut self.hopping
        {
            hopping.to.set_port(port);
        }
    }

    /// Sends from another socket from here on, if one can be opened. The one before receives until the next time.
    pub(crate) fn reopen(&mut self) -> bool {
        let (Some(open), Carrier::Sockets { current, before }) = (&mut self.open, &mut self.carrier) else {
            return false;
        };
        match open().and_then(Socket::new) {
            Ok(socket) => {
                *before = Some(std::mem::replace(current, socket));
                true
            }
            Err(error) => {
                tracing::debug!("cannot open another socket: {error}");
                false
            }
        }
    }

    /// Receives what is there to the end of `to`. Ready if there may be more.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>, to: &mut Vec<Received>) -> Poll<io::Result<()>> {
        let start = to.len();
        let result = match &mut self.carrier {
            Carrier::Packets { conn, server, .. } => recv_packets(conn, *server, cx, to),
            Carrier::Sockets { current, before } => {
                let mut result = current.recv(cx, &mut self.arena, &mut self.slots, to);
                if let Some(socket) = before {
                    match socket.recv(cx, &mut self.arena, &mut self.slots, to) {
                        Poll::Ready(Err(_)) => *before = None,
                        Poll::Ready(Ok(())) if result.is_pending() => result = Poll::Ready(Ok(())),
                        Poll::Ready(Ok(())) | Poll::Pending => {}
                    }
                }
                result
            }
        };
        if result.is_pending() {
            self.arena = Vec::new();
        }
        if let Some(hopping) = &self.hopping {
            for message in &mut to[start..] {
                // From whatever port: the redirection at the server may answer from any.
                if message.source.ip() == hopping.server.ip() {
                    message.source = hopping.server;
                }
            }
        }
        result
    }

    /// The datagrams of a message, changed back.
    pub(crate) fn open(&self, message: Received, mut each: impl FnMut(BytesMut)) {
        let Received { mut data, segment, .. } = message;
        while !data.is_empty() {
            let mut datagram = data.split_to(segment.min(data.len()));
            if let Some(disguise) = &self.disguise {
                let Some(front) = disguise.unwrap(&mut datagram) else { continue };
                let _ = datagram.split_to(front.min(datagram.len()));
            }
            each(datagram);
        }
    }

    /// An empty buffer to make a message in.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a buffer that was not needed.
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MAX_SEND {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Whether a flush is due before more is made.
    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() >= MAX_SEND
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Frees what is of use under load only.
    pub(crate) fn rest(&mut self) {
        self.spare = Vec::new();
        self.arena = Vec::new();
    }

    /// Puts a message into the outbox.
    pub(crate) fn push(&mut self, transmit: &quinn_proto::Transmit, mut data: Vec<u8>) {
        data.truncate(transmit.size);
        let mut segment = transmit.segment_size.unwrap_or(data.len());
        if let Some(disguise) = &self.disguise {
            let mut wrapped = self.spare.pop().unwrap_or_default();
            for datagram in data.chunks(segment.max(1)) {
                disguise.wrap(datagram, &mut wrapped);
            }
            segment += disguise.overhead();
            self.give_back(data);
            data = wrapped;
        }
        let to = match &self.hopping {
            Some(hopping) if transmit.destination == hopping.server => hopping.to,
            _ => transmit.destination,
        };
        let ecn = transmit.ecn.map(|ecn| Ecn::from_traffic_class(ecn as u8));
        self.outbox.push_back(Outgoing { data, segment, to, from: transmit.src_ip, ecn });
    }

    /// Sends what is in the outbox. What cannot be sent for a reason of its own is dropped, as a network would.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { carrier, outbox, spare, .. } = self;
        match carrier {
            Carrier::Sockets { current, .. } => loop {
                if outbox.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                match current.send(outbox, spare) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        match current.io.poll_send_ready(cx) {
                            Poll::Ready(Ok(())) => {}
                            other => return other,
                        }
                    }
                    Err(error) if is_gso_refused(&error) => current.gso = false,
                    Err(error) => {
                        tracing::trace!("datagram dropped: {error}");
                        outbox.pop_front();
                    }
                }
            },
            Carrier::Packets { conn, server, target } => {
                if outbox.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let mut batch = PacketBatch::new();
                let room = conn.room();
                for Outgoing { data, segment, to, .. } in outbox.drain(..) {
                    for datagram in data.chunks(segment.max(1)) {
                        let mut buf = Buf::new(datagram.len(), room.head, room.tail);
                        buf.append(datagram);
                        let peer = if to == *server { target.clone() } else { to.into() };
                        batch.push(culvert_core::Packet::new(buf, peer));
                    }
                }
                // A layer that cannot take them now is a full network.
                match conn.poll_send(cx, &mut batch) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
                }
            }
        }
    }

    /// Sends what is in the outbox as far as that goes without waiting.
    pub(crate) fn flush_now(&mut self) {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let _ = self.poll_flush(&mut cx);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (&self.carrier, &self.hopping) {
            (Carrier::Packets { .. }, _) => "packets",
            (Carrier::Sockets { .. }, None) => "socket",
            (Carrier::Sockets { .. }, Some(_)) => "hopping",
        };
        write!(f, "Link({kind})")
    }
}

impl Socket {
    fn new(socket: UdpSocket) -> io::Result<Self> {
        let v6 = socket.local_addr()?.is_ipv6();
        let _ = enable_gro(socket.as_fd());
        let _ = enable_ecn(socket.as_fd(), v6);
        let _ = enable_local_address(socket.as_fd(), v6);
        let gso = probe_gso(socket.as_fd()) == GsoSupport::Kernel;
        Ok(Self { io: Arc::new(socket), gso })
    }

    fn recv(
        &self,
        cx: &mut Context<'_>,
        arena: &mut Vec<Buf>,
        wanted: &mut usize,
        to: &mut Vec<Received>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.io.poll_recv_ready(cx) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
            while arena.len() < *wanted {
                arena.push(Buf::new(GRO_BUFFER, 0, 0));
            }
            let mut slots: Vec<RecvSlot<'_>> = arena[..*wanted]
                .iter_mut()
                .map(|buf| RecvSlot::new(&mut buf.spare_mut()[..GRO_BUFFER]))
                .collect();
            let mut received = 0;
            let result = self.io.try_io(Interest::READABLE, || {
                received = recv_batch(self.io.as_fd(), &mut slots)?;
                // Fewer than asked for: the socket is empty, and its readiness is taken back without another call.
                if received < slots.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            if received == 0 {
                match result {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    // What ICMP reported; the socket goes on.
                    Err(error) => tracing::trace!("receive: {error}"),
                    Ok(()) => {}
                }
                continue;
            }
            for slot in slots[..received].iter().filter(|slot| !slot.meta.truncated) {
                let data = BytesMut::from(slot.data());
                let segment = slot.meta.segment_size.map_or(data.len(), |size| usize::from(size.get()));
                to.push(Received {
                    segment: segment.max(1),
                    source: slot.meta.source,
                    local: slot.meta.local,
                    ecn: EcnCodepoint::from_bits(slot.meta.ecn as u8),
                    data,
                });
            }
            *wanted = if received == *wanted { (*wanted * 2).min(MAX_SLOTS) } else { received.max(1) };
            return Poll::Ready(Ok(()));
        }
    }

    /// Sends from the front of `outbox` once and drops what was sent.
    fn send(&self, outbox: &mut VecDeque<Outgoing>, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        if let Some(first) = outbox.front()
            && !self.gso
            && first.segment < first.data.len()
        {
            split_front(outbox);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SEND];
        let mut count = 0;
        for (slice, message) in slices.iter_mut().zip(outbox.iter()) {
            if !self.gso && message.segment < message.data.len() {
                break;
            }
            *slice = IoSlice::new(&message.data);
            count += 1;
        }
        let mut slots = [SendSlot::new(&[], None); MAX_SEND];
        for ((slot, slice), message) in slots.iter_mut().zip(&slices[..count]).zip(outbox.iter()) {
            *slot = SendSlot {
                source: message.from,
                ecn: message.ecn,
                segment_size: u16::try_from(message.segment)
                    .ok()
                    .filter(|_| message.segment < message.data.len())
                    .and_then(NonZeroU16::new),
                ..SendSlot::single(slice, Some(message.to))
            };
        }
        let sent = self.io.try_io(Interest::WRITABLE, || send_batch(self.io.as_fd(), &slots[..count]))?;
        for message in outbox.drain(..sent) {
            if spare.len() < MAX_SEND {
                let mut data = message.data;
                data.clear();
                spare.push(data);
            }
        }
        Ok(())
    }
}

/// Turns the train at the front into single datagrams.
fn split_front(outbox: &mut VecDeque<Outgoing>) {
    let Some(Outgoing { data, segment, to, from, ecn }) = outbox.pop_front() else { return };
    for datagram in data.chunks(segment.max(1)).rev() {
        outbox.push_front(Outgoing { data: datagram.to_vec(), segment: datagram.len(), to, from, ecn });
    }
}

fn recv_packets(
    packets: &mut BoxPackets,
    server: SocketAddr,
    cx: &mut Context<'_>,
    to: &mut Vec<Received>,
) -> Poll<io::Result<()>> {
    let mut batch = PacketBatch::new();
    match packets.poll_recv(cx, Room::NONE, &mut batch) {
        Poll::Ready(Ok(())) => {}
        other => return other,
    }
    while let Some(packet) = batch.pop() {
        let data = BytesMut::from(&packet.data[..]);
        let segment = if packet.segment == 0 { data.len() } else { packet.segment.into() };
        // Whatever the conn calls it: nobody else answers on an association of ours.
        to.push(Received { data, segment: segment.max(1), source: server, local: None, ecn: None });
    }
    Poll::Ready(Ok(()))
}
