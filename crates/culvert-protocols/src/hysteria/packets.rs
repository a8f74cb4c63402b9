//! Associations: a stream that says how long, and datagrams of the connection.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use culvert_core::conn::write_chain;
use culvert_core::{Packet, PacketBatch, PacketConn, StreamConn};
use culvert_quic::{Bytes, Connection, DatagramError, QuicStream};
use culvert_wire::{Buf, BufChain, Reader, Room, Target};
use tokio::sync::mpsc;

use super::codec::{HEAD, Head};
use crate::fragments::{Fragments, Place};
use crate::quic::Carrying;

/// Associations of a connection at most.
const ASSOCIATIONS: usize = 1024;
/// Datagrams that wait in one of them.
const WAITING: usize = 256;
/// Bytes that wait in all of them together.
const WAITING_BYTES: usize = 8 << 20;
/// What a waiting datagram takes besides its bytes.
const OVERHEAD: usize = 128;

/// The associations of a connection.
pub(super) struct Hub {
    pub(super) connection: Connection,
    table: Mutex<Table>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Table {
    feeds: HashMap<u32, mpsc::Sender<Packet>>,
    fragments: Fragments,
    /// The number that a server gave last.
    last: u32,
    ended: bool,
}

impl Carrying for Hub {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn is_divisible(&self) -> bool {
        false
    }
}

impl Hub {
    pub(super) fn new(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, table: Mutex::default(), waiting: AtomicUsize::new(0) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an association that begins at this server; `None` if there are too many.
    pub(super) fn number(&self) -> Option<u32> {
        let mut table = self.table();
        if table.feeds.len() >= ASSOCIATIONS {
            return None;
        }
        table.last = table.last.wrapping_add(1).max(1);
        Some(table.last)
    }

    /// Enters the association `session`, which lasts as long as `stream`.
    pub(super) fn enter(self: &Arc<Self>, session: u32, stream: QuicStream) -> Option<Association> {
        let mut table = self.table();
        if table.ended || table.feeds.contains_key(&session) {
            return None;
        }
        let (feed, inlet) = mpsc::channel(WAITING);
        table.feeds.insert(session, feed);
        Some(Association { hub: Arc::clone(self), session, stream, inlet, last: 0 })
    }

    /// Hands a datagram to its association. What belongs to none is dropped.
    pub(super) fn deliver(&self, datagram: &[u8]) {
        let mut reader = Reader::new(datagram);
        let Ok(Head { session, peer, packet, index, total, .. }) = Head::decode(&mut reader) else { return };
        let data = reader.rest();
        let mut table = self.table();
        if !table.feeds.contains_key(&session) {
            return;
        }
        let (peer, data) = if total == 1 && index == 0 {
            (peer, Buf::copied(data))
        } else {
            let place = Place { association: session, id: packet, total, index };
            let Some((peer, data)) = table.fragments.add(&place, Some(peer), data, Instant::now()) else {
                return;
            };
            (peer, Buf::from(data))
        };
        let Some(feed) = table.feeds.get(&session) else { return };
        let cost = data.len() + OVERHEAD;
        if self.waiting.fetch_add(cost, Ordering::Relaxed) > WAITING_BYTES
            || feed.try_send(Packet::new(data, peer)).is_err()
        {
            self.waiting.fetch_sub(cost, Ordering::Relaxed); // dropped, as in any network
        }
    }

    /// The connection has ended, and all associations with it.
    pub(super) fn end(&self) {
        let mut table = self.table();
        table.ended = true;
        table.feeds = HashMap::new();
    }

    fn taken(&self, packet: &Packet) {
        self.waiting.fetch_sub(packet.data.len() + OVERHEAD, Ordering::Relaxed);
    }
}

/// One association.
pub(super) struct Association {
    hub: Arc<Hub>,
    session: u32,
    stream: QuicStream,
    inlet: mpsc::Receiver<Packet>,
    /// The number of the last packet.
    last: u16,
}

impl Association {
    /// Sends these bytes by the stream.
    pub(super) async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        write_chain(&mut self.stream, &mut BufChain::copied(bytes)).await
    }

    /// Sends a datagram, in parts if it must be. One that cannot be sent is dropped.
    fn send(&mut self, peer: &Target, data: &[u8]) -> io::Result<()> {
        let Some(mut largest) = self.hub.connection.max_datagram() else { return Ok(()) };
        // The path may have become narrower since that was asked.
        for _ in 0..2 {
            let room = largest.saturating_sub(HEAD + peer.host.to_string().len()).max(1);
            let Ok(total) = u8::try_from(data.len().div_ceil(room).max(1)) else { return Ok(()) };
            self.last = self.last.wrapping_add(1).max(1);
            let mut narrower = None;
            for index in 0..total {
                let from = usize::from(index) * room;
                let part = &data[from..(from + room).min(data.len())];
                let (session, peer, packet, len) = (self.session, peer.clone(), self.last, part.len() as u16);
                let mut message = Vec::with_capacity(largest.min(HEAD + 64 + part.len()));
                Head { session, peer, packet, index, total, len }.encode(&mut message);
                message.extend(part);
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
            match narrower {
                None => return Ok(()),
                Some(most) => largest = most,
            }
        }
        Ok(())
    }

    /// Whether the stream has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match ready!(self.stream.poll_read_chain(cx, Room::NONE)) {
                Ok(chain) if !chain.is_empty() => {} // nothing that anybody speaks of
                Ok(_) | Err(_) => return Poll::Ready(()),
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
                Poll::Pending if batch.is_empty() => {
                    ready!(self.poll_end(cx));
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        while let Some(packet) = batch.front() {
            ready!(self.hub.connection.poll_datagram_room(cx, packet.data.len())).map_err(io::Error::from)?;
            let Some(packet) = batch.pop() else { break };
            for payload in packet.payloads() {
                self.send(&packet.peer, payload)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.hub.table().feeds.remove(&self.session);
        self.inlet.close();
        while let Ok(packet) = self.inlet.try_recv() {
            self.hub.taken(&packet);
        }
    }
}
