//! What comes, and time: the task that receives for all peers.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_core::{Dialer, Packet, PacketBatch, PacketConn, Session, UdpConn};
use culvert_stack::Received;
use culvert_stack::train::{self, Joined};
use culvert_wire::{Buf, Room, Target};
use culvert_wireguard::{Datagram, HEAD, Receiving, routes};
use tokio::io::Interest;
use tracing::{debug, warn};

use super::system::System;
use super::tunnel::Tunnel;
use super::wire::Detour;
use crate::netstack::{Engine, Gate};

/// Packets shorter than this do not stay in the memory of a whole train.
const SMALL: usize = 3 << 10;
/// How long a detour that broke is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The receiving task.
pub(super) struct Receive {
    pub(super) name: String,
    pub(super) tunnel: Arc<Tunnel>,
    pub(super) gate: Gate,
    system: Option<Arc<System>>,
    /// Memory for what lies in one train.
    packets: Vec<Range<usize>>,
    joined: Vec<Joined>,
    /// What has been opened.
    opened: Vec<Received>,
}

/// How a detour's packets are opened.
pub(super) struct DetourTo {
    pub(super) dialer: Dialer,
    pub(super) session: Session,
    /// Whom the first packet goes to.
    pub(super) target: Target,
}

impl Receive {
    pub(super) fn new(name: String, tunnel: Arc<Tunnel>, gate: Gate, system: Option<Arc<System>>) -> Self {
        let (packets, joined, opened) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, tunnel, gate, system, packets, joined, opened }
    }

    /// Runs on a socket until it is dropped.
    pub(super) async fn on_socket(mut self, mut conn: UdpConn) {
        let socket = Arc::clone(conn.socket());
        let (tunnel, engine) = (Arc::clone(&self.tunnel), Arc::clone(&self.gate.engine));
        let mut batch = PacketBatch::new();
        loop {
            let received = std::future::poll_fn(|cx| conn.poll_recv(cx, Room::NONE, &mut batch));
            tokio::select! {
                outcome = received => match outcome {
                    Ok(()) => self.take(&mut batch),
                    // Nothing is wrong with the socket: an unconnected one hears of nobody's errors.
                    Err(error) => {
                        debug!("{}: receive: {error}", self.name);
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                () = tunnel.blocked.notified() => {
                    let _ = socket.ready(Interest::WRITABLE).await;
                    tunnel.resume();
                }
                due = time(&tunnel, &engine) => self.on_time(due),
            }
        }
    }

    /// Runs on a detour's packets until it is dropped.
    pub(super) async fn on_detour(mut self, detour: Arc<Detour>, to: DetourTo) {
        let (tunnel, engine) = (Arc::clone(&self.tunnel), Arc::clone(&self.gate.engine));
        loop {
            match to.dialer.packets(&to.session, &to.target).await {
                Ok(mut conn) => {
                    if let Err(error) = self.with_packets(&detour, &mut *conn).await {
                        debug!("{}: the detour broke: {error}", self.name);
                    }
                }
                Err(error) => warn!("{}: {}", self.name, culvert_core::Chain(&error)),
            }
            let pause = tokio::time::sleep(PAUSE);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    due = time(&tunnel, &engine) => self.on_time(due),
                }
            }
        }
    }

    async fn with_packets(&mut self, detour: &Detour, conn: &mut dyn PacketConn) -> io::Result<()> {
        let (tunnel, engine) = (Arc::clone(&self.tunnel), Arc::clone(&self.gate.engine));
        let (mut batch, mut out) = (PacketBatch::new(), PacketBatch::new());
        loop {
            detour.take(&mut out);
            for packet in out.iter_mut().filter(|packet| packet.data.head() < conn.room().head) {
                let taken = std::mem::replace(packet, Packet::new(Buf::new(0, 0, 0), packet.peer.clone()));
                *packet = taken.with_room(conn.room());
            }
            let both = std::future::poll_fn(|cx| {
                let sent = if out.is_empty() { None } else { Some(conn.poll_send(cx, &mut out)) };
                let received = conn.poll_recv(cx, Room::NONE, &mut batch);
                match (sent, received) {
                    (Some(std::task::Poll::Ready(outcome)), std::task::Poll::Pending)
                    | (_, std::task::Poll::Ready(outcome)) => std::task::Poll::Ready(outcome),
                    _ => std::task::Poll::Pending,
                }
            });
            tokio::select! {
                outcome = both => {
                    outcome?;
                    self.take(&mut batch);
                }
                () = detour.filled.notified() => {}
                due = time(&tunnel, &engine) => self.on_time(due),
            }
        }
    }

    fn on_time(&mut self, due: Due) {
        match due {
            Due::Tunnel => self.tunnel.on_timeout(),
            Due::Stack => self.gate.on_timeout(),
            Due::Room => self.gate.engine.with(|_, _| ()),
            Due::Nothing => {}
        }
    }

    /// Takes in what has been received.
    fn take(&mut self, batch: &mut PacketBatch) {
        while let Some(packet) = batch.pop() {
            let Some(source) = packet.peer.socket_addr() else { continue };
            self.open(packet, source);
        }
        self.tunnel.flush();
        if !self.opened.is_empty() {
            let mut opened = self.opened.drain(..);
            self.gate.receive(|| opened.next());
        }
    }

    /// Opens the datagrams of one sender, joins what lies in them, and keeps it.
    fn open(&mut self, packet: Packet, source: SocketAddr) {
        let Packet { mut data, segment, .. } = packet;
        let stride = if segment == 0 { data.len().max(1) } else { segment.into() };
        let mut session: Option<(u32, Receiving)> = None;
        let (mut any, mut some) = (false, false);
        self.packets.clear();
        for (number, datagram) in data.chunks_mut(stride).enumerate() {
            let index = match Datagram::look(datagram) {
                Datagram::Data(index) => index,
                Datagram::Handshake => {
                    self.tunnel.with(|device, now| device.handshake(datagram, source, now));
                    continue;
                }
                Datagram::Garbage => continue,
            };
            if session.as_ref().is_none_or(|(known, _)| *known != index) {
                self.note(session.take(), any, some, source);
                (any, some) = (false, false);
                let found = self.tunnel.with(|device, now| device.receiving(index, now));
                session = found.map(|found| (index, found));
            }
            let Some((_, receiving)) = &session else { continue };
            let Some(len) = receiving.key.open(datagram) else { continue };
            any = true;
            if len == 0 {
                continue;
            }
            some = true;
            let inside = &datagram[HEAD..HEAD + len];
            // A peer speaks for its own addresses only.
            if let Some((from, len)) = routes::source(inside)
                && self.tunnel.routes.find(from) == Some(receiving.peer)
            {
                let start = number * stride + HEAD;
                self.packets.push(start..start + len);
            }
        }
        self.note(session, any, some, source);
        self.keep(data);
    }

    fn note(&self, session: Option<(u32, Receiving)>, any: bool, data: bool, source: SocketAddr) {
        if let Some((_, receiving)) = session.filter(|_| any) {
            self.tunnel.with(|device, now| device.received(&receiving, data, source, now));
        }
    }

    /// Keeps the packets that lie in `data`: the largest where it lies, the others copied.
    fn keep(&mut self, mut data: Buf) {
        self.joined.clear();
        train::join(&mut data, &self.packets, &mut self.joined);
        if let Some(system) = &self.system {
            self.joined.retain(|joined| {
                let packet = &mut data[joined.range.clone()];
                let own = routes::target(packet).is_some_and(|target| system.owns(target));
                if own {
                    system.give(packet, joined);
                }
                !own
            });
        }
        let Some(largest) = (0..self.joined.len()).max_by_key(|at| self.joined[*at].range.len()) else {
            return;
        };
        let first = self.opened.len();
        for (at, joined) in self.joined.iter().enumerate() {
            let segment = if joined.udp { joined.segment } else { 0 };
            let packet =
                if at == largest { Buf::new(0, 0, 0) } else { Buf::copied(&data[joined.range.clone()]) };
            // What a peer has sealed nobody has changed on the way.
            self.opened.push(Received { packet, checked: true, segment });
        }
        let range = self.joined[largest].range.clone();
        data.truncate(range.end);
        data.advance(range.start);
        // A large piece of memory is not held for a small packet.
        let small = data.len() < SMALL && data.spare() > 16 * data.len();
        self.opened[first + largest].packet = if small { Buf::copied(&data) } else { data };
    }
}

/// Waits for the next timer, or for another reason to look at things.
async fn time(tunnel: &Tunnel, engine: &Engine) -> Due {
    let at = |armed: Option<Instant>| async move {
        match armed {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = at(tunnel.armed()) => Due::Tunnel,
        () = at(engine.armed()) => Due::Stack,
        () = tunnel.sooner.notified() => Due::Nothing,
        () = engine.sooner.notified() => Due::Nothing,
        // Until the queue has room again, which wakes us too.
        () = engine.blocked.notified() => Due::Nothing,
        () = tunnel.room.notified() => Due::Room,
    }
}

/// Why the receiving task woke.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    Tunnel,
    Stack,
    Room,
    Nothing,
}
