//! The server: one carrier, its sessions given to the dispatch.
//!
//! The protocol has no flow control, so the data of a session whose target takes nothing piles up in front of that of all
//! others. Some is kept for each ([`INBOX`]). When that is full the carrier is not read until there is space again, as
//! every server of this protocol does it; but a session that takes nothing at all for a while, and so keeps others
//! waiting, is ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_core::duplex::{Duplex, duplex};
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, Dispatch, Handshake, Incoming, Io, Network, Packet, ServeError, Session, SessionId,
    StreamConn, timeouts,
};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room, Target};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::XudpConn;
use super::codec::{Head, MAX_HEAD, Status};
use super::session::{Channel, PacketSession, Queue, StreamSession};
use super::xudp;
use crate::framed::take_data;

/// Sessions at once; Xray's client uses 8, and never more than 128.
const SESSIONS: usize = 256;
/// Bytes for one session that its relay has not taken yet.
const INBOX: usize = 128 << 10;
/// Packets, likewise; what is too much is dropped.
const PACKETS: usize = 64;
/// Bytes that are put together for one write.
const BATCH: usize = 64 << 10;
/// Bytes of answers to frames that nobody asked for, above which the carrier is not read.
const ANSWERS: usize = 4 << 10;
/// Bytes read before other tasks have the worker.
const BUDGET: usize = 1 << 20;
/// Around packets: nobody knows yet where they leave; this much does for most.
const PACKET_ROOM: Room = Room { head: 64, tail: 32, max: usize::MAX };

/// Serves the sessions of a carrier until that ends. `early` was read from it already, and `session` says whose they are;
/// `handshake` is given up with the first frame.
///
/// A carrier that begins as XUDP is given away whole, as one association.
///
/// # Errors
/// What comes does not follow the protocol, or the stream broke.
pub async fn serve(
    mut conn: BoxStream,
    mut early: BufChain,
    session: Session,
    udp_timeout: Option<Duration>,
    handshake: Handshake,
    dispatch: &Dispatch,
) -> Result<(), ServeError> {
    let first = |r: &mut Reader<'_>| Head::decode(&mut r.clone());
    let first = read_message(&mut conn, &mut early, MAX_HEAD, first).await?;
    drop(handshake);
    if let Head { id: xudp::ID, status: Status::New, peer: Some((Network::Udp, target)), .. } = first {
        let io = Io::Packets(Box::new(XudpConn::server(conn, early, target.clone())));
        let session = Session { network: Network::Udp, target, ..session };
        dispatch.submit(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout });
        return Ok(());
    }
    let source = session.source.ip();
    let mut carrier = Carrier::new(conn, early, session, udp_timeout, dispatch);
    loop {
        let ended = if carrier.sessions.is_empty() {
            let mut place = dispatch.waiting().enter(source);
            tokio::select! {
                ended = std::future::poll_fn(|cx| carrier.poll(cx)) => ended?,
                () = tokio::time::sleep(timeouts::MULTIPLEX_IDLE) => true,
                () = place.evicted() => {
                    return Err(ServeError::Denied("too many multiplexed connections have no sessions"));
                }
            }
        } else {
            std::future::poll_fn(|cx| carrier.poll(cx)).await?
        };
        if ended {
            let _ = tokio::time::timeout(timeouts::SHUTDOWN, carrier.conn.shutdown()).await;
            return Ok(());
        }
    }
}

struct Carrier<'a> {
    conn: BoxStream,
    /// Whose sessions they are.
    owner: Session,
    udp_timeout: Option<Duration>,
    dispatch: &'a Dispatch,
    sessions: HashMap<u16, Served>,
    queue: Arc<Queue>,
    /// Read and not yet looked at.
    read: BufChain,
    /// Of the frame under way: whose data it has (`None`: nobody's) and how much of it is still to come.
    receiver: Option<u16>,
    rest: usize,
    /// Data for `receiver` that it has no space for.
    held: BufChain,
    /// Runs while a session keeps others waiting.
    stall: Option<Pin<Box<Sleep>>>,
    /// Ends of sessions that do not exist.
    answers: BufChain,
    /// Being written.
    out: BufChain,
    unflushed: bool,
}

/// A session, seen from its carrier.
struct Served {
    channel: Arc<Channel>,
    inbox: Inbox,
}

enum Inbox {
    Stream(Duplex),
    Packets { inbox: mpsc::Sender<Packet>, target: Target },
}

impl<'a> Carrier<'a> {
    fn new(
        conn: BoxStream,
        read: BufChain,
        owner: Session,
        udp_timeout: Option<Duration>,
        dispatch: &'a Dispatch,
    ) -> Self {
        let queue = Queue::new(conn.room());
        Self {
            conn,
            owner,
            udp_timeout,
            dispatch,
            sessions: HashMap::new(),
            queue,
            read,
            receiver: None,
            rest: 0,
            held: BufChain::new(),
            stall: None,
            answers: BufChain::new(),
            out: BufChain::new(),
            unflushed: false,
        }
    }

    /// Moves bytes both ways. Ready with `true` once the carrier has ended, and with `false` when it got its first session
    /// or lost its last one.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ServeError>> {
        let idle = self.sessions.is_empty();
        let _ = self.poll_write(cx)?;
        if self.poll_read(cx)?.is_ready() {
            return Poll::Ready(Ok(true));
        }
        // Reading may have made something to say.
        let _ = self.poll_write(cx)?;
        if self.sessions.is_empty() == idle { Poll::Pending } else { Poll::Ready(Ok(false)) }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.out.is_empty() {
                self.out.append(&mut self.answers);
                while self.out.len() < BATCH
                    && let Poll::Ready(channel) = self.queue.poll_next(cx)
                {
                    if channel.take(&mut self.out) {
                        self.forget(&channel);
                    }
                }
            }
            if self.out.is_empty() {
                if self.unflushed {
                    ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return Poll::Ready(Ok(()));
            }
            self.unflushed = true;
            ready!(self.conn.poll_write_chain(cx, &mut self.out))?;
        }
    }

    /// Drops a session that has said its end, unless its id belongs to another one by now.
    fn forget(&mut self, channel: &Arc<Channel>) {
        if let Entry::Occupied(entry) = self.sessions.entry(channel.id())
            && Arc::ptr_eq(&entry.get().channel, channel)
        {
            entry.remove();
        }
    }

    /// Reads and gives out. Ready when the carrier has ended.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ServeError>> {
        let mut budget = BUDGET;
        loop {
            loop {
                ready!(self.poll_deliver(cx));
                if self.rest > 0 || !self.next_frame()? {
                    break;
                }
            }
            if self.answers.len() > ANSWERS {
                ready!(self.poll_write(cx))?;
            }
            if budget == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut more = ready!(self.conn.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                return Poll::Ready(Ok(()));
            }
            budget = budget.saturating_sub(more.len());
            self.read.append(&mut more);
        }
    }

    /// Gives the data of the frame under way to its session, as far as it has come.
    fn poll_deliver(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let inbox = match self.receiver.and_then(|id| self.sessions.get_mut(&id)) {
                Some(Served { inbox: Inbox::Stream(inbox), .. }) => inbox,
                Some(Served { inbox: Inbox::Packets { .. }, .. }) | None => {
                    self.held = BufChain::new();
                    self.stall = None;
                    let count = self.rest.min(self.read.len());
                    self.read.advance(count);
                    self.rest -= count;
                    return Poll::Ready(());
                }
            };
            if self.held.is_empty() {
                let room = inbox.room();
                let count = self.rest.min(self.read.len()).min(room.max);
                if count == 0 {
                    return Poll::Ready(());
                }
                self.held = take_data(&mut self.read, count, room).into();
                self.rest -= count;
            }
            match inbox.poll_write_chain(cx, &mut self.held) {
                Poll::Ready(Ok(())) => self.stall = None,
                // Its relay is gone, and its end is on the way to the client.
                Poll::Ready(Err(_)) => self.receiver = None,
                Poll::Pending => ready!(self.poll_stall(cx)),
            }
        }
    }

    /// Ready once the session that data waits for has kept others waiting for too long. It is ended then.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sessions.len() < 2 {
            return Poll::Pending;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeouts::MULTIPLEX_STALL)));
        ready!(stall.as_mut().poll(cx));
        if let Some(Served { channel, inbox }) = self.receiver.take().and_then(|id| self.sessions.remove(&id))
        {
            if let Inbox::Stream(mut inbox) = inbox {
                inbox.abort();
            }
            channel.end(true);
        }
        Poll::Ready(())
    }

    /// Begins with the next frame. Whether it has come.
    fn next_frame(&mut self) -> Result<bool, ServeError> {
        if self.read.is_empty() {
            return Ok(false);
        }
        let mut window = [0; MAX_HEAD];
        let seen = self.read.peek(&mut window);
        let mut r = Reader::new(&window[..seen]);
        let head = match Head::decode(&mut r) {
            Ok(head) => head,
            Err(DecodeError::Incomplete) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let (len, data) = (r.position(), usize::from(head.data.unwrap_or(0)));
        // A datagram is taken whole.
        let is_packet = match (head.status, &head.peer) {
            (Status::New, Some((network, _))) => *network == Network::Udp,
            (Status::Keep, _) => self
                .sessions
                .get(&head.id)
                .is_some_and(|served| matches!(served.inbox, Inbox::Packets { .. })),
            _ => false,
        };
        if is_packet && self.read.len() < len + data {
            return Ok(false);
        }
        self.read.advance(len);
        self.rest = data;
        self.receiver = None;
        match head.status {
            Status::New => self.open(head.id, head.peer.clone())?,
            Status::Keep if !self.sessions.contains_key(&head.id) => self.answer_end(head.id),
            Status::End => self.close(head.id, head.error),
            Status::Keep | Status::KeepAlive => {}
        }
        if !matches!(head.status, Status::New | Status::Keep) {
            return Ok(true);
        }
        match self.sessions.get(&head.id).map(|served| &served.inbox) {
            Some(Inbox::Packets { inbox, target }) if head.data.is_some() => {
                self.rest = 0;
                let data = take_data(&mut self.read, data, PACKET_ROOM);
                let peer = head.peer.map_or_else(|| target.clone(), |(_, peer)| peer);
                // It is full or gone: a network would drop the packet as well.
                let _ = inbox.try_send(Packet::new(data, peer).snug());
            }
            Some(Inbox::Stream(_)) => self.receiver = Some(head.id),
            Some(Inbox::Packets { .. }) | None => {}
        }
        Ok(true)
    }

    fn open(&mut self, id: u16, peer: Option<(Network, Target)>) -> Result<(), ServeError> {
        if self.sessions.contains_key(&id) {
            return Err(ServeError::Invalid("id of a session, which is in use"));
        }
        let full = self.sessions.len() >= SESSIONS || self.dispatch.is_full() && !self.dispatch.make_room();
        let (Some((network, target)), false) = (peer, full) else {
            self.answer_end(id);
            return Ok(());
        };
        let channel = Channel::new(id, &self.queue);
        let (io, inbox) = match network {
            Network::Tcp => {
                let (near, far) = duplex(INBOX);
                let stream = StreamSession::new(far, Arc::clone(&channel));
                (Io::Stream(Box::new(stream)), Inbox::Stream(near))
            }
            Network::Udp | Network::Icmp => {
                let (inbox, receiver) = mpsc::channel(PACKETS);
                let packets = PacketSession::new(receiver, Arc::clone(&channel));
                (Io::Packets(Box::new(packets)), Inbox::Packets { inbox, target: target.clone() })
            }
        };
        self.sessions.insert(id, Served { channel, inbox });
        let session = Session { id: SessionId::next(), network, target, ..self.owner.clone() };
        let udp_timeout = self.udp_timeout;
        self.dispatch.submit(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout });
        Ok(())
    }

    /// The client has ended a session; what it sent before is still read.
    fn close(&mut self, id: u16, error: bool) {
        let Some(Served { channel, inbox }) = self.sessions.remove(&id) else { return };
        if let (Inbox::Stream(mut inbox), true) = (inbox, error) {
            inbox.abort();
        }
        channel.close();
    }

    fn answer_end(&mut self, id: u16) {
        let mut frame = Vec::new();
        Head::end(id, true).encode(&mut frame);
        let room = self.conn.room();
        let mut answer = Buf::new(frame.len(), room.head, room.tail);
        answer.append(&frame);
        self.answers.push_back(answer);
    }
}

/// Sessions that the carrier leaves behind were cut off.
impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        for (_, Served { channel, inbox }) in self.sessions.drain() {
            if let Inbox::Stream(mut inbox) = inbox {
                inbox.abort();
            }
            channel.close();
        }
        self.queue.close();
    }
}
