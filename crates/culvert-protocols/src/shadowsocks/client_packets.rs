//! A client's datagrams.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_core::{BoxPackets, PacketBatch, PacketConn};
use culvert_wire::{Room, Target};
use tokio::time::Instant;

use super::cipher::{Blocks, Cipher, Key};
use super::conn::unix_now;
use super::key::Secret;
use super::packet::{
    Found, Outgoing, SEPARATE_FRONT, Separate, SessionId, WHOLE_FRONT, decode_body, new_session, open_aead,
    open_batch, open_body, open_none, open_separate, open_whole, session_key, whole_key,
};
use super::replay::Window;

/// For how long a server's session that is not its newest keeps a third one out.
const OLD_SESSION: Duration = Duration::from_secs(60);

/// Datagrams through a server.
pub(super) struct ClientPackets {
    packets: BoxPackets,
    server: Target,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Packets at the front of the batch being sent that are sealed.
    sealed: usize,
}

/// Opens what a server sends.
pub(super) enum Incoming {
    None,
    Aead(Cipher, Secret),
    Edition2022(Box<Sessions>),
}

/// The server's sessions in one of ours.
pub(super) struct Sessions {
    cipher: Cipher,
    key: Secret,
    form: Form,
    /// Ours.
    id: SessionId,
    /// The server's, newest first; two at most.
    servers: VecDeque<ServerSession>,
}

enum Form {
    Separate(Blocks),
    Whole(Key),
}

struct ServerSession {
    id: SessionId,
    /// Of bodies sealed with AES.
    key: Option<Key>,
    window: Window,
    seen: Instant,
}

impl Sessions {
    /// `key` is the user's.
    pub(super) fn new(cipher: Cipher, key: Secret, id: SessionId) -> Self {
        let form = match Blocks::new(key.bytes()) {
            Some(blocks) if cipher != Cipher::ChaCha20Poly1305 => Form::Separate(blocks),
            _ => Form::Whole(whole_key(&key)),
        };
        Self { cipher, key, form, id, servers: VecDeque::new() }
    }

    /// Opens a packet. What is no answer to our session, or was seen before, is none.
    pub(super) fn open(&mut self, data: &mut [u8], now: u64) -> Option<Found> {
        match &self.form {
            Form::Separate(blocks) => {
                let separate = open_separate(blocks, data)?;
                let known = self.place(separate)?;
                if let Some(ServerSession { key: Some(key), .. }) = known.and_then(|at| self.servers.get(at))
                {
                    open_body(key, separate, SEPARATE_FRONT, data)?;
                    return self.accept(data, SEPARATE_FRONT, separate, known, None, now);
                }
                let key = session_key(self.cipher, &self.key, separate.session);
                open_body(&key, separate, SEPARATE_FRONT, data)?;
                self.accept(data, SEPARATE_FRONT, separate, None, Some(key), now)
            }
            Form::Whole(key) => {
                let separate = open_whole(key, data)?;
                let known = self.place(separate)?;
                self.accept(data, WHOLE_FRONT, separate, known, None, now)
            }
        }
    }

    /// Which session a packet belongs to; the inner `None` if it may begin one. `None` if it cannot be new.
    fn place(&self, separate: Separate) -> Option<Option<usize>> {
        if let Some(at) = self.servers.iter().position(|server| server.id == separate.session) {
            return self.servers[at].window.is_new(separate.number).then_some(Some(at));
        }
        let old = self.servers.get(1).is_some_and(|old| old.seen.elapsed() < OLD_SESSION);
        (!old).then_some(None)
    }

    /// Notes a packet that was sealed with the key.
    fn accept(
        &mut self,
        data: &[u8],
        front: usize,
        separate: Separate,
        known: Option<usize>,
        key: Option<Key>,
        now: u64,
    ) -> Option<Found> {
        let found = decode_body(data, front, Some(self.id), now).ok()?;
        let at = known.unwrap_or_else(|| {
            self.servers.truncate(1);
            let (id, window, seen) = (separate.session, Window::default(), Instant::now());
            self.servers.push_front(ServerSession { id, key, window, seen });
            0
        });
        let server = self.servers.get_mut(at)?;
        server.window.note(separate.number);
        server.seen = Instant::now();
        Some(found)
    }
}

impl ClientPackets {
    /// Datagrams through `server`, with nothing sealed.
    pub(super) fn none(packets: BoxPackets, server: Target) -> Self {
        Self::new(packets, server, Outgoing::none(), Incoming::None)
    }

    /// The first AEAD edition.
    pub(super) fn aead(packets: BoxPackets, server: Target, cipher: Cipher, key: &Secret) -> Self {
        let outgoing = Outgoing::aead(cipher, key.clone());
        Self::new(packets, server, outgoing, Incoming::Aead(cipher, key.clone()))
    }

    /// The 2022 edition, in a new session.
    pub(super) fn edition_2022(
        packets: BoxPackets,
        server: Target,
        cipher: Cipher,
        keys: &Arc<[Secret]>,
    ) -> Option<Self> {
        let id = new_session();
        let outgoing = Outgoing::to_server(cipher, keys, id)?;
        let sessions = Sessions::new(cipher, keys.last()?.clone(), id);
        Some(Self::new(packets, server, outgoing, Incoming::Edition2022(Box::new(sessions))))
    }

    fn new(packets: BoxPackets, server: Target, outgoing: Outgoing, incoming: Incoming) -> Self {
        Self { packets, server, outgoing, incoming, sealed: 0 }
    }
}

impl PacketConn for ClientPackets {
    fn room(&self) -> Room {
        self.outgoing.room(self.packets.room())
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        loop {
            let old = batch.len();
            ready!(self.packets.poll_recv(cx, room, batch))?;
            let (server, incoming, now) = (&self.server, &mut self.incoming, unix_now());
            open_batch(batch, old, room, |data, from| match incoming {
                // A server known by name only has an address that the layer below knows.
                Incoming::None => {
                    (server.host.domain().is_some() || from == server).then(|| open_none(data)).flatten()
                }
                Incoming::Aead(cipher, key) => open_aead(*cipher, key, data),
                Incoming::Edition2022(sessions) => sessions.open(data, now),
            });
            if batch.len() > old {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        self.outgoing.seal_batch(batch, self.sealed, &self.server, unix_now());
        let sent = self.packets.poll_send(cx, batch);
        self.sealed = batch.len();
        sent
    }
}
