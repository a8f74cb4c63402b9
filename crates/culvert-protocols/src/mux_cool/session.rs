//! The sessions inside a carrier, as the streams and associations that the dispatch is given.
//!
//! ```text
//! to a session     carrier ─▶ a stream in memory, or a queue of packets ─▶ relay
//! from a session   relay ─▶ frames in its Channel ─▶ the Queue of channels with frames, in turn ─▶ carrier
//! ```
//!
//! A channel holds a few frames and then lets its relay wait; the carrier takes what one has, then what the next one has.
//! So a session that has much to send waits its turn like the others.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use culvert_core::duplex::Duplex;
use culvert_core::{Network, Packet, PacketBatch, PacketConn, StreamConn};
use culvert_wire::{Buf, BufChain, Room, Target};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use super::codec::{Head, MAX_DATA, STREAM_HEAD, Status};

/// Bytes of frames in a channel above which its relay waits.
const CHANNEL: usize = 32 << 10;

/// Head of a packet with an IPv6 address.
const PACKET_HEAD: usize = STREAM_HEAD + 1 + 2 + 1 + 16;

/// Those channels of a carrier that have something to send, in the order of their turns.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// What the carrier's stream wants around a frame.
    room: Room,
}

#[derive(Default)]
struct Waiting {
    channels: VecDeque<Arc<Channel>>,
    carrier: Option<Waker>,
    closed: bool,
}

impl Queue {
    pub(super) fn new(room: Room) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), room })
    }

    /// The next channel whose turn it is.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Arc<Channel>> {
        let mut waiting = lock(&self.waiting);
        match waiting.channels.pop_front() {
            Some(channel) => Poll::Ready(channel),
            None => {
                waiting.carrier = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The carrier is gone. Channels and queue hold each other, so those with frames must leave.
    pub(super) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        let channels = std::mem::take(&mut waiting.channels);
        drop(waiting);
        drop(channels);
    }

    fn push(&self, channel: Arc<Channel>) {
        let carrier = {
            let mut waiting = lock(&self.waiting);
            if waiting.closed {
                return;
            }
            waiting.channels.push_back(channel);
            waiting.carrier.take()
        };
        if let Some(carrier) = carrier {
            carrier.wake();
        }
    }
}

/// What one session has to send.
pub(super) struct Channel {
    id: u16,
    queue: Arc<Queue>,
    outgoing: Mutex<Outgoing>,
}

#[derive(Default)]
struct Outgoing {
    frames: BufChain,
    /// Whether the channel has its place in the queue.
    queued: bool,
    writer: Option<Waker>,
    /// The end of the session is said, or need not be.
    over: bool,
}

impl Outgoing {
    fn poll_space(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.over {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.frames.len() >= CHANNEL {
            self.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Channel {
    pub(super) fn new(id: u16, queue: &Arc<Queue>) -> Arc<Self> {
        Arc::new(Self { id, queue: Arc::clone(queue), outgoing: Mutex::default() })
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    /// Moves the frames to `out`, now that the channel has its turn. Whether those were the last.
    pub(super) fn take(&self, out: &mut BufChain) -> bool {
        let mut outgoing = lock(&self.outgoing);
        out.append(&mut outgoing.frames);
        outgoing.queued = false;
        let (over, writer) = (outgoing.over, outgoing.writer.take());
        drop(outgoing);
        if let Some(writer) = writer {
            writer.wake();
        }
        over
    }

    /// The peer has ended the session, or the carrier is gone: nothing is to be sent any more.
    pub(super) fn close(&self) {
        let mut outgoing = lock(&self.outgoing);
        outgoing.over = true;
        outgoing.frames = BufChain::new();
        let writer = outgoing.writer.take();
        drop(outgoing);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Says the end of the session, behind what is to be sent.
    pub(super) fn end(self: &Arc<Self>, error: bool) {
        let mut outgoing = lock(&self.outgoing);
        if outgoing.over {
            return;
        }
        outgoing.over = true;
        let mut frame = Vec::new();
        Head::end(self.id, error).encode(&mut frame);
        self.push_copy(&mut outgoing, &frame, &[]);
    }

    /// Puts a frame made of two parts into the channel.
    fn push_copy(self: &Arc<Self>, outgoing: &mut Outgoing, head: &[u8], data: &[u8]) {
        let room = self.queue.room;
        let mut frame = Buf::new(head.len() + data.len(), room.head, room.tail);
        frame.append(head);
        frame.append(data);
        self.push(outgoing, frame);
    }

    fn push(self: &Arc<Self>, outgoing: &mut Outgoing, frame: Buf) {
        outgoing.frames.push_back(frame);
        if !std::mem::replace(&mut outgoing.queued, true) {
            self.queue.push(Arc::clone(self));
        }
    }

    /// Puts data of a stream into the channel: in place, if it has the room that was asked for and fits one frame.
    fn push_data(self: &Arc<Self>, outgoing: &mut Outgoing, mut data: Buf) {
        if data.len() <= MAX_DATA && data.head() >= STREAM_HEAD {
            data.prepend(&keep(self.id, data.len()));
            return self.push(outgoing, data);
        }
        for part in data.chunks(MAX_DATA) {
            self.push_copy(outgoing, &keep(self.id, part.len()), part);
        }
    }
}

/// Head of a frame with `len` bytes of data, at most [`MAX_DATA`].
fn keep(id: u16, len: usize) -> [u8; STREAM_HEAD] {
    let mut head = Vec::with_capacity(STREAM_HEAD);
    Head::keep(id, len as u16).encode(&mut head);
    head.try_into().unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session that is a stream.
pub(super) struct StreamSession {
    inbox: Duplex,
    channel: Arc<Channel>,
    aborts: bool,
}

impl StreamSession {
    /// Reads what the carrier writes to the other end of `inbox`.
    pub(super) fn new(inbox: Duplex, channel: Arc<Channel>) -> Self {
        Self { inbox, channel, aborts: false }
    }
}

impl StreamConn for StreamSession {
    fn room(&self) -> Room {
        self.channel.queue.room.around(Room { head: STREAM_HEAD, tail: 0, max: MAX_DATA })
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        self.inbox.poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        let mut outgoing = lock(&self.channel.outgoing);
        while !data.is_empty() {
            ready!(outgoing.poll_space(cx))?;
            if let Some(piece) = data.pop_front() {
                self.channel.push_data(&mut outgoing, piece);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        self.aborts = true;
    }
}

impl AsyncRead for StreamSession {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inbox).poll_read(cx, to)
    }
}

impl AsyncWrite for StreamSession {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let mut outgoing = lock(&self.channel.outgoing);
        ready!(outgoing.poll_space(cx))?;
        let part = &from[..from.len().min(MAX_DATA)];
        if !part.is_empty() {
            self.channel.push_copy(&mut outgoing, &keep(self.channel.id, part.len()), part);
        }
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends both directions, as the protocol has it: a client that waits for the end of an answer must not wait longer.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.channel.end(false);
        Poll::Ready(Ok(()))
    }
}

impl Drop for StreamSession {
    fn drop(&mut self) {
        self.channel.end(self.aborts);
    }
}

/// A session that is an association.
pub(super) struct PacketSession {
    inbox: mpsc::Receiver<Packet>,
    channel: Arc<Channel>,
}

impl PacketSession {
    /// Receives what the carrier puts into the other end of `inbox`.
    pub(super) fn new(inbox: mpsc::Receiver<Packet>, channel: Arc<Channel>) -> Self {
        Self { inbox, channel }
    }
}

impl PacketConn for PacketSession {
    fn room(&self) -> Room {
        self.channel.queue.room.around(Room { head: PACKET_HEAD, ..Room::NONE })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let Some(first) = ready!(self.inbox.poll_recv(cx)) else {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        };
        batch.push(first.with_room(room));
        while batch.len() < PacketBatch::MAX
            && let Ok(packet) = self.inbox.try_recv()
        {
            batch.push(packet.with_room(room));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let mut outgoing = lock(&self.channel.outgoing);
        while batch.front().is_some() {
            ready!(outgoing.poll_space(cx))?;
            let Some(mut packet) = batch.pop() else { break };
            let mut head = Vec::with_capacity(PACKET_HEAD);
            if packet.segment == 0 {
                let Some(()) = packet_head(self.channel.id, &packet.peer, packet.data.len(), &mut head)
                else {
                    continue;
                };
                if packet.data.head() >= head.len() {
                    packet.data.prepend(&head);
                    self.channel.push(&mut outgoing, packet.data);
                } else {
                    self.channel.push_copy(&mut outgoing, &head, &packet.data);
                }
                continue;
            }
            for payload in packet.payloads() {
                head.clear();
                if packet_head(self.channel.id, &packet.peer, payload.len(), &mut head).is_some() {
                    self.channel.push_copy(&mut outgoing, &head, payload);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Head of a frame with a packet from `peer`; `None` if the packet is too long for one.
fn packet_head(id: u16, peer: &Target, len: usize, out: &mut Vec<u8>) -> Option<()> {
    let data = Some(u16::try_from(len).ok()?);
    let peer = Some((Network::Udp, peer.clone()));
    Head { id, status: Status::Keep, error: false, peer, data }.encode(out);
    Some(())
}

impl Drop for PacketSession {
    fn drop(&mut self) {
        self.channel.end(false);
    }
}
