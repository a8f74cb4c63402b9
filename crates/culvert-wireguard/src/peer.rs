//! One peer: its sessions, the handshake that makes the next one, and its timers.
//!
//! Three sessions are kept. As the initiator we use a session at once; as the responder only when the initiator has shown
//! that he has it too, by his first packet in it. The one before stays for what is still on its way.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cookie::{Held, Macs, REPLY, cookie_key, mac1_key};
use crate::crypto::{HASH, Key, MAC, Pair, Wrong, random};
use crate::device::{Event, PeerId, Sending, Transmit};
use crate::noise::{INITIATION, Initiator, Keys, RESPONSE, Responder, Stamp, stamp};
use crate::transport::{ReceiveKey, SendKey};
use crate::{HEAD, TAG};

/// Packets after which a session is renewed, and after which it is of no use.
const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
pub(crate) const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Age at which whoever began a session begins the next.
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Age at which a session is of no use.
pub(crate) const REJECT_AFTER: Duration = Duration::from_secs(180);
/// Time between two initiations, to which up to a third of a second is added.
const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
const JITTER_MILLISECONDS: u16 = 334;
/// How long a handshake is tried.
const REKEY_ATTEMPT: Duration = Duration::from_secs(90);
/// How long one says nothing after one has received something.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Least time between two initiations that are accepted.
const INITIATION_INTERVAL: Duration = Duration::from_millis(20);

/// A peer as the config has it.
#[derive(Clone, Debug)]
pub struct PeerSettings {
    /// Its key.
    pub public_key: [u8; HASH],
    /// A further key that both ends know; zeros for none.
    pub preshared_key: Key,
    /// Where it is, if that is known before it says so.
    pub endpoint: Option<SocketAddr>,
    /// Time between signs of life, if any are asked for.
    pub keepalive: Option<Duration>,
    /// What stands in each datagram behind the type.
    pub reserved: [u8; 3],
}

struct Session {
    send: Arc<SendKey>,
    receive: Arc<ReceiveKey>,
    /// Our name for it.
    index: u32,
    born: Instant,
    initiator: bool,
}

impl Session {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.born)
    }

    fn is_usable(&self, now: Instant) -> bool {
        self.age(now) < REJECT_AFTER && self.send.used() < REJECT_AFTER_MESSAGES
    }
}

/// What all peers of a device have in common.
pub(crate) struct Shared {
    pub(crate) own: Pair,
    /// When `unix`, the time since 1970, was taken.
    pub(crate) born: Instant,
    pub(crate) unix: Duration,
    /// Who gave a name to a handshake or a session.
    pub(crate) indices: HashMap<u32, PeerId>,
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
}

impl Shared {
    fn stamp(&self, now: Instant) -> Stamp {
        stamp(self.unix + now.saturating_duration_since(self.born))
    }

    fn index(&mut self, peer: PeerId) -> u32 {
        loop {
            let index = u32::from_le_bytes(random());
            if let std::collections::hash_map::Entry::Vacant(place) = self.indices.entry(index) {
                place.insert(peer);
                return index;
            }
        }
    }

    fn forget(&mut self, session: Option<Session>) {
        if let Some(session) = session {
            self.indices.remove(&session.index);
        }
    }
}

pub(crate) struct Peer {
    id: PeerId,
    public: [u8; HASH],
    preshared: Key,
    /// What the two static keys agree on.
    shared: Key,
    macs: Macs,
    cookie_key: [u8; HASH],
    pub(crate) endpoint: Option<SocketAddr>,
    keepalive: Option<Duration>,
    reserved: [u8; 3],

    handshake: Option<(u32, Initiator)>,
    previous: Option<Session>,
    current: Option<Session>,
    next: Option<Session>,
    /// Of the last initiation that was accepted: what it said, and when that was.
    latest: Stamp,
    accepted: Option<Instant>,
    /// The first MAC of the last message of a handshake.
    last_mac: Option<[u8; MAC]>,
    cookie: Option<Held>,

    /// Since when a handshake is tried.
    attempt: Option<Instant>,
    last_sent: Option<Instant>,
    retry_at: Option<Instant>,
    /// When the peer is to hear that we are there.
    answer_at: Option<Instant>,
    answer_again: bool,
    /// When a peer that has said nothing since counts as gone.
    gone_at: Option<Instant>,
    persistent_at: Option<Instant>,
    wipe_at: Option<Instant>,
}

impl Peer {
    pub(crate) fn new(id: PeerId, settings: &PeerSettings, own: &Pair, now: Instant) -> Result<Self, Wrong> {
        Ok(Self {
            id,
            public: settings.public_key,
            preshared: settings.preshared_key.clone(),
            shared: own.agree(&settings.public_key)?,
            macs: Macs::new(mac1_key(&settings.public_key)),
            cookie_key: cookie_key(&settings.public_key),
            endpoint: settings.endpoint,
            keepalive: settings.keepalive,
            reserved: settings.reserved,
            handshake: None,
            previous: None,
            current: None,
            next: None,
            latest: [0; 12],
            accepted: None,
            last_mac: None,
            cookie: None,
            attempt: None,
            last_sent: None,
            retry_at: None,
            answer_at: None,
            answer_again: false,
            gone_at: None,
            // The first sign of life is due at once.
            persistent_at: settings.keepalive.map(|_| now),
            wipe_at: None,
        })
    }

    // Sending.

    /// Takes counters for `count` packets.
    pub(crate) fn send(&mut self, count: u64, cx: &mut Shared, now: Instant) -> Sending {
        let Some(to) = self.endpoint else { return Sending::Nowhere };
        let Some(session) = self.current.as_ref().filter(|session| session.is_usable(now)) else {
            self.begin(cx, now);
            return Sending::Wait;
        };
        let (key, first) = (Arc::clone(&session.send), session.send.reserve(count));
        self.gone_at.get_or_insert(now + KEEPALIVE + REKEY_TIMEOUT);
        self.note_sent(now);
        self.renew_for_sending(cx, now);
        Sending::Now { key, first, to }
    }

    /// Says that we are there, or begins a handshake, which says so as well.
    pub(crate) fn send_keepalive(&mut self, cx: &mut Shared, now: Instant) {
        let Some(to) = self.endpoint else { return };
        let Some(session) = self.current.as_ref().filter(|session| session.is_usable(now)) else {
            self.begin(cx, now);
            return;
        };
        let mut bytes = vec![0; HEAD + TAG];
        session.send.seal(session.send.reserve(1), &mut bytes);
        cx.transmits.push_back(Transmit { peer: self.id, to, bytes });
        self.note_sent(now);
        self.renew_for_sending(cx, now);
    }

    fn renew_for_sending(&mut self, cx: &mut Shared, now: Instant) {
        let old = |session: &Session| {
            session.send.used() > REKEY_AFTER_MESSAGES
                || (session.initiator && session.age(now) >= REKEY_AFTER)
        };
        if self.current.as_ref().is_some_and(old) {
            self.begin(cx, now);
        }
    }

    /// Begins a handshake, if none is under way.
    pub(crate) fn begin(&mut self, cx: &mut Shared, now: Instant) {
        if self.attempt.is_some() || self.endpoint.is_none() {
            return;
        }
        self.attempt = Some(now);
        match self.last_sent.map(|last| last + REKEY_TIMEOUT).filter(|next| now < *next) {
            Some(next) => self.retry_at = Some(next),
            None => self.initiate(cx, now),
        }
    }

    fn initiate(&mut self, cx: &mut Shared, now: Instant) {
        let Some(to) = self.endpoint else { return };
        if let Some((index, _)) = self.handshake.take() {
            cx.indices.remove(&index);
        }
        let index = cx.index(self.id);
        let mut bytes = [0; INITIATION];
        let made = Pair::new(&Key(random())).and_then(|ephemeral| {
            let stamp = cx.stamp(now);
            Initiator::begin(&cx.own, &self.public, &self.shared, ephemeral, index, &stamp, &mut bytes)
        });
        let Ok(made) = made else {
            cx.indices.remove(&index);
            return;
        };
        self.handshake = Some((index, made));
        self.retry_at = Some(now + REKEY_TIMEOUT + jitter());
        self.send_signed(&mut bytes, to, cx, now);
    }

    fn send_signed(&mut self, message: &mut [u8], to: SocketAddr, cx: &mut Shared, now: Instant) {
        let cookie = self.cookie.as_ref().filter(|held| held.is_good(now)).map(|held| &held.cookie);
        self.last_mac = Some(self.macs.sign(message, cookie));
        message[1..4].copy_from_slice(&self.reserved);
        self.last_sent = Some(now);
        cx.transmits.push_back(Transmit { peer: self.id, to, bytes: message.to_vec() });
        self.note_sent(now);
    }

    fn note_sent(&mut self, now: Instant) {
        self.answer_at = None;
        self.answer_again = false;
        self.persistent_at = self.keepalive.map(|interval| now + interval);
    }

    // Receiving.

    /// An initiation that can be read as this peer's.
    pub(crate) fn respond(
        &mut self,
        mut responder: Responder,
        source: SocketAddr,
        cx: &mut Shared,
        now: Instant,
    ) -> Result<(), Wrong> {
        let stamp = responder.verify(&self.shared)?;
        let flood =
            self.accepted.is_some_and(|last| now.saturating_duration_since(last) < INITIATION_INTERVAL);
        if stamp <= self.latest || flood {
            return Err(Wrong);
        }
        (self.latest, self.accepted) = (stamp, Some(now));
        let receiver = responder.index;
        let index = cx.index(self.id);
        let mut bytes = [0; RESPONSE];
        let keys = Pair::new(&Key(random()))
            .and_then(|ephemeral| responder.respond(&self.preshared, &ephemeral, index, &mut bytes));
        let keys = match keys {
            Ok(keys) => keys,
            Err(wrong) => {
                cx.indices.remove(&index);
                return Err(wrong);
            }
        };
        self.endpoint = Some(source);
        self.note_received(now);
        let session = self.session(&keys, index, receiver, false, now);
        cx.forget(self.next.replace(session));
        cx.forget(self.previous.take());
        self.send_signed(&mut bytes, source, cx, now);
        Ok(())
    }

    /// A response to what was begun under the name `index`.
    pub(crate) fn finish(
        &mut self,
        index: u32,
        response: &[u8; RESPONSE],
        source: SocketAddr,
        cx: &mut Shared,
        now: Instant,
    ) -> Result<(), Wrong> {
        let (_, initiator) = self.handshake.as_ref().filter(|(own, _)| *own == index).ok_or(Wrong)?;
        let keys = initiator.finish(&cx.own, &self.preshared, response)?;
        self.handshake = None; // its name is the session's from here on
        self.endpoint = Some(source);
        self.note_received(now);
        let receiver = u32::from_le_bytes([response[4], response[5], response[6], response[7]]);
        let session = self.session(&keys, index, receiver, true, now);
        let before = match self.next.take() {
            Some(next) => {
                cx.forget(self.current.replace(session));
                Some(next)
            }
            None => self.current.replace(session),
        };
        cx.forget(std::mem::replace(&mut self.previous, before));
        self.complete(true, cx);
        Ok(())
    }

    fn session(&mut self, keys: &Keys, index: u32, receiver: u32, initiator: bool, now: Instant) -> Session {
        self.wipe_at = Some(now + 3 * REJECT_AFTER);
        Session {
            send: Arc::new(SendKey::new(&keys.send, receiver, self.reserved)),
            receive: Arc::new(ReceiveKey::new(&keys.receive)),
            index,
            born: now,
            initiator,
        }
    }

    fn complete(&mut self, announce: bool, cx: &mut Shared) {
        (self.attempt, self.retry_at) = (None, None);
        cx.events.push_back(Event::Ready { peer: self.id, announce });
    }

    /// Reads the answer to a message that came while there was load.
    pub(crate) fn take_cookie(&mut self, reply: &[u8; REPLY], now: Instant) -> Result<(), Wrong> {
        let first = self.last_mac.as_ref().ok_or(Wrong)?;
        self.cookie = Some(Held::read(&self.cookie_key, first, reply, now).ok_or(Wrong)?);
        self.last_mac = None; // one reply for each message
        Ok(())
    }

    /// The key of the session that we gave this name.
    pub(crate) fn receive_key(&self, index: u32, now: Instant) -> Option<Arc<ReceiveKey>> {
        let sessions = [&self.current, &self.next, &self.previous];
        let session = sessions.into_iter().flatten().find(|session| session.index == index)?;
        (session.age(now) < REJECT_AFTER).then(|| Arc::clone(&session.receive))
    }

    /// Something that opened has come in a session. `data` says that a packet was among it.
    pub(crate) fn received(
        &mut self,
        index: u32,
        data: bool,
        source: SocketAddr,
        cx: &mut Shared,
        now: Instant,
    ) {
        if self.next.as_ref().is_some_and(|next| next.index == index) {
            let before = std::mem::replace(&mut self.current, self.next.take());
            cx.forget(std::mem::replace(&mut self.previous, before));
            self.complete(false, cx);
        }
        self.endpoint = Some(source);
        self.note_received(now);
        if data {
            match self.answer_at {
                None => self.answer_at = Some(now + KEEPALIVE),
                Some(_) => self.answer_again = true,
            }
        }
        let late = REJECT_AFTER - KEEPALIVE - REKEY_TIMEOUT;
        if self.current.as_ref().is_some_and(|session| session.initiator && session.age(now) >= late) {
            self.begin(cx, now);
        }
    }

    fn note_received(&mut self, now: Instant) {
        self.gone_at = None;
        self.persistent_at = self.keepalive.map(|interval| now + interval);
    }

    // Time.

    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.retry_at, self.answer_at, self.gone_at, self.persistent_at, self.wipe_at]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn on_timeout(&mut self, cx: &mut Shared, now: Instant) {
        if take_due(&mut self.retry_at, now) {
            if self.attempt.is_some_and(|since| now.saturating_duration_since(since) >= REKEY_ATTEMPT) {
                self.attempt = None;
                self.answer_at = None;
                self.wipe_at.get_or_insert(now + 3 * REJECT_AFTER);
                cx.events.push_back(Event::GaveUp(self.id));
            } else {
                cx.events.push_back(Event::Retry(self.id));
                self.initiate(cx, now);
            }
        }
        if take_due(&mut self.answer_at, now) {
            let again = std::mem::take(&mut self.answer_again);
            self.send_keepalive(cx, now);
            if again {
                self.answer_at = Some(now + KEEPALIVE);
            }
        }
        if take_due(&mut self.gone_at, now) {
            self.begin(cx, now);
        }
        if take_due(&mut self.persistent_at, now) {
            self.persistent_at = self.keepalive.map(|interval| now + interval);
            self.send_keepalive(cx, now);
        }
        if take_due(&mut self.wipe_at, now) {
            for session in [self.previous.take(), self.current.take(), self.next.take()] {
                cx.forget(session);
            }
            if let Some((index, _)) = self.handshake.take() {
                cx.indices.remove(&index);
            }
        }
    }
}

fn take_due(timer: &mut Option<Instant>, now: Instant) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

fn jitter() -> Duration {
    Duration::from_millis(u64::from(u16::from_le_bytes(random()) % JITTER_MILLISECONDS))
}
