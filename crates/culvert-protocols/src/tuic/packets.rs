//! Associations: the datagrams of a connection, for either end.
//!
//! The task that reads a connection hands each datagram to its association by [`Hub::deliver`]; what an association sends
//! goes straight into the connection, as datagrams or on a stream each.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use culvert_core::{Packet, PacketBatch, PacketConn, StreamConn};
use culvert_quic::{Bytes, Connection, DatagramError, QuicStream};
use culvert_wire::{AddressCodec, Buf, BufChain, Room, Target};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;

use super::codec::{Command, PACKET_HEAD, PacketHead};
use crate::fragments::{Fragments, Place};
use crate::quic::Carrying;

/// Associations of a connection at most.
const ASSOCIATIONS: usize = 4096;
/// Datagrams that wait in one of them.
const WAITING: usize = 256;
/// Bytes that wait in all of them together.
const WAITING_BYTES: usize = 8 << 20;
/// What a waiting datagram takes besides its bytes.
const OVERHEAD: usize = 128;

/// How an association sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    /// As datagrams of QUIC.
    Native,
    /// Each on a stream of its own.
    Streams,
}

/// The associations of a connection.
pub(super) struct Hub {
    pub(super) connection: Connection,
    table: Mutex<Table>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Table {
    associations: HashMap<u16, Entry>,
    fragments: Fragments,
    /// The next number that a client takes, and what tells associations of one number apart.
    next: u16,
    generation: u64,
    ended: bool,
}

struct Entry {
    generation: u64,
    feed: mpsc::Sender<Packet>,
}

impl Carrying for Hub {
    fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Hub {
    pub(super) fn new(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, table: Mutex::default(), waiting: AtomicUsize::new(0) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an association with a number of this end's choice.
    pub(super) fn open(self: &Arc<Self>, mode: Mode) -> Option<Association> {
        let mut table = self.table();
        if table.ended || table.associations.len() >= ASSOCIATIONS {
            return None;
        }
        let id = loop {
            table.next = table.next.wrapping_add(1);
            if !table.associations.contains_key(&table.next) {
                break table.next;
            }
        };
        Some(self.enter(&mut table, id, mode, true))
    }

    fn enter(self: &Arc<Self>, table: &mut Table, id: u16, mode: Mode, ours: bool) -> Association {
        table.generation += 1;
        let generation = table.generation;
        let (feed, inlet) = mpsc::channel(WAITING);
        table.associations.insert(id, Entry { generation, feed });
        Association {
            hub: Arc::clone(self),
            id,
            generation,
            mode,
            ours,
            inlet,
            next: 0,
            out: VecDeque::new(),
            current: None,
        }
    }

    /// Hands a datagram, or a part of one, to its association. At a server, `begin` is how one sends that begins with it;
    /// that one is returned, with where its first datagram goes.
    pub(super) fn deliver(
        self: &Arc<Self>,
        head: PacketHead,
        data: &[u8],
        begin: Option<Mode>,
    ) -> Option<(Association, Target)> {
        let mut table = self.table();
        if table.ended {
            return None;
        }
        let PacketHead { association, id, total, index, peer, .. } = head;
        let (peer, data) = if total == 1 && index == 0 {
            (peer?, Buf::copied(data))
        } else {
            let place = Place { association: association.into(), id, total, index };
            let (peer, data) = table.fragments.add(&place, peer, data, Instant::now())?;
            (peer, Buf::from(data))
        };
        let mut begun = None;
        if !table.associations.contains_key(&association) {
            let mode = begin.filter(|_| table.associations.len() < ASSOCIATIONS)?;
            begun = Some((self.enter(&mut table, association, mode, false), peer.clone()));
        }
        let entry = table.associations.get(&association)?;
        let cost = data.len() + OVERHEAD;
        if self.waiting.fetch_add(cost, Ordering::Relaxed) > WAITING_BYTES
            || entry.feed.try_send(Packet::new(data, peer)).is_err()
        {
            self.waiting.fetch_sub(cost, Ordering::Relaxed); // dropped, as in any network
        }
        begun
    }

    /// The peer has ended an association.
    pub(super) fn dissociate(&self, id: u16) {
        self.table().associations.remove(&id);
    }

    /// The connection has ended, and all associations with it.
    pub(super) fn end(&self) {
        let mut table = self.table();
        table.ended = true;
        table.associations = HashMap::new();
    }

    fn taken(&self, packet: &Packet) {
        self.waiting.fetch_sub(packet.data.len() + OVERHEAD, Ordering::Relaxed);
    }
}

/// One association.
pub(super) struct Association {
    hub: Arc<Hub>,
    id: u16,
    generation: u64,
    mode: Mode,
    /// This end began it, so it says when it ends.
    ours: bool,
    inlet: mpsc::Receiver<Packet>,
    /// The number of the next datagram.
    next: u16,
    /// Of [`Mode::Streams`]: what is to be sent, and the stream that is being written.
    out: VecDeque<Vec<u8>>,
    current: Option<(QuicStream, BufChain)>,
}

impl Association {
    /// A part of a datagram, ready to be sent.
    fn part(&self, parts: (u8, u8), peer: Option<&Target>, data: &[u8]) -> Vec<u8> {
        let (total, index) = parts;
        let head = PacketHead {
            association: self.id,
            id: self.next,
            total,
            index,
            len: data.len() as u16,
            peer: peer.cloned(),
        };
        let mut message = Vec::with_capacity(PACKET_HEAD + 24 + data.len());
        Command::Packet(head).encode(&mut message);
        message.extend(data);
        message
    }

    /// Sends a datagram, in parts if it must be. One that cannot be sent is dropped.
    fn send_native(&mut self, peer: &Target, data: &[u8]) -> io::Result<()> {
        let Some(mut largest) = self.hub.connection.max_datagram() else { return Ok(()) };
        // The path may have become narrower since that was asked.
        for _ in 0..2 {
            let room = largest.saturating_sub(PACKET_HEAD + AddressCodec::TUIC.encoded_len(peer)).max(1);
            let total = data.len().div_ceil(room).max(1);
            let Ok(total) = u8::try_from(total) else { return Ok(()) };
            let mut narrower = None;
            for index in 0..total {
                let from = usize::from(index) * room;
                let part = &data[from..(from + room).min(data.len())];
                let message = self.part((total, index), Some(peer).filter(|_| index == 0), part);
                match self.hub.connection.send_datagram(Bytes::from(message)) {
                    Ok(()) => {}
                    Err(DatagramError::TooLarge(most)) => {
                        narrower = Some(most);
                        break;
                    }
                    Err(DatagramError::Unsupported) => return Ok(()),
                    Err(DatagramError::Ended(error)) => return Err(error.into()),
                }
            }
            self.next = self.next.wrapping_add(1);
            match narrower {
                None => return Ok(()),
                Some(most) => largest = most,
            }
        }
        Ok(())
    }

    /// Writes what is to be sent, each on a stream of its own.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some((stream, chain)) = &mut self.current {
                let mut write = || {
                    ready!(stream.poll_write_chain(cx, chain))?;
                    ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                    Pin::new(&mut *stream).poll_shutdown(cx)
                };
                let written = ready!(write());
                self.current = None;
                // A peer that does not want one datagram may want the next one.
                if written.is_err()
                    && let Some(error) = self.hub.connection.error()
                {
                    return Poll::Ready(Err(error.into()));
                }
            }
            if self.out.is_empty() {
                self.out = VecDeque::new();
                return Poll::Ready(Ok(()));
            }
            let stream = ready!(self.hub.connection.poll_open_uni(cx))?;
            if let Some(message) = self.out.pop_front() {
                self.current = Some((stream, Buf::from(message).into()));
            }
        }
    }
}

impl PacketConn for Association {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        while batch.len() < PacketBatch::MAX {
            match self.inlet.poll_recv(cx) {
                Poll::Ready(Some(packet)) => {
                    self.hub.taken(&packet);
                    batch.push(packet.with_room(room));
                }
                Poll::Ready(None) if batch.is_empty() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Pending if batch.is_empty() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_out(cx))?;
            let Some(packet) = batch.front() else { return Poll::Ready(Ok(())) };
            if self.mode == Mode::Native {
                ready!(self.hub.connection.poll_datagram_room(cx, packet.data.len()))
                    .map_err(io::Error::from)?;
            }
            let Some(packet) = batch.pop() else { return Poll::Ready(Ok(())) };
            for payload in packet.payloads() {
                match self.mode {
                    Mode::Native => self.send_native(&packet.peer, payload)?,
                    Mode::Streams => {
                        let message = self.part((1, 0), Some(&packet.peer), payload);
                        self.next = self.next.wrapping_add(1);
                        self.out.push_back(message);
                    }
                }
            }
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.inlet.close();
        while let Ok(packet) = self.inlet.try_recv() {
            self.hub.taken(&packet);
        }
        let mut table = self.hub.table();
        let still = table.associations.get(&self.id).is_some_and(|entry| entry.generation == self.generation);
        if still {
            table.associations.remove(&self.id);
        }
        drop(table);
        if still && self.ours {
            // As far as that goes at once: the peer's idle limit does the rest.
            let bytes = Command::Dissociate(self.id).bytes();
            if let Ok(Some(mut stream)) = self.hub.connection.try_open_uni() {
                let mut cx = Context::from_waker(std::task::Waker::noop());
                let _ = Pin::new(&mut stream).poll_write(&mut cx, &bytes);
            }
        }
    }
}
