//! Which datagram belongs to which peer, and limits under load.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::cookie::{Guard, Macs, REPLY, Verdict, mac1_key};
use crate::crypto::{HASH, Key, Pair, random};
use crate::noise::{INITIATION, RESPONSE, Responder};
use crate::peer::{Peer, PeerSettings, Shared};
use crate::transport::{DATA, ReceiveKey, SendKey};
use crate::{HEAD, TAG};

/// Answers that wait to be sent; a flood calls forth no more.
const MOST_TRANSMITS: usize = 1024;

/// A device as the config has it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The own key.
    pub private_key: Key,
    /// The peers. [`PeerId`] is their place here.
    pub peers: Vec<PeerSettings>,
}

/// Why there is no device.
#[derive(Clone, Copy, Debug, Error, Eq, PartialEq)]
pub enum SettingsError {
    /// The key of a peer is none, or none that anything could be agreed on with.
    #[error("the public key of peer {0} is no key")]
    PublicKey(usize),
    /// The own key is none.
    #[error("the private key is no key")]
    PrivateKey,
    /// Two peers have one key.
    #[error("peers {0} and {1} have the same public key")]
    Twice(usize, usize),
}

/// A peer, by its place in the settings.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PeerId(pub usize);

/// What a datagram is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Datagram {
    /// It carries a packet, in the session that we gave this name.
    Data(u32),
    /// It is part of a handshake.
    Handshake,
    /// It is nothing.
    Garbage,
}

impl Datagram {
    /// Looks at a datagram. What stands behind the type is not looked at.
    #[must_use]
    pub fn look(datagram: &[u8]) -> Self {
        match (datagram.first(), datagram.len()) {
            (Some(&DATA), len) if len >= HEAD + TAG => {
                Self::Data(u32::from_le_bytes([datagram[4], datagram[5], datagram[6], datagram[7]]))
            }
            (Some(1), INITIATION) | (Some(2), RESPONSE) | (Some(3), REPLY) => Self::Handshake,
            _ => Self::Garbage,
        }
    }
}

/// A datagram to be sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// For whom; an answer to somebody unknown is nobody's.
    pub peer: PeerId,
    /// Where to.
    pub to: SocketAddr,
    /// What.
    pub bytes: Vec<u8>,
}

/// What happened to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// It has a session: what waits for it can go.
    Ready {
        /// Which peer.
        peer: PeerId,
        /// It has to hear from us before it may use the session: if nothing waits, by [`Device::keepalive`].
        announce: bool,
    },
    /// It does not answer, and is asked once more. Its name may have another address by now.
    Retry(PeerId),
    /// It does not answer, and is not asked any more until there is something to send. What waits for it is lost.
    GaveUp(PeerId),
}

/// How packets for a peer go.
#[derive(Debug)]
pub enum Sending {
    /// Sealed with this key.
    Now {
        /// The key.
        key: Arc<SendKey>,
        /// The counter of the first packet; the others' follow.
        first: u64,
        /// Where the peer is.
        to: SocketAddr,
    },
    /// Later: a handshake is under way.
    Wait,
    /// Not at all: nobody knows where it is.
    Nowhere,
}

/// The session that a datagram came in.
#[derive(Clone, Debug)]
pub struct Receiving {
    /// Whose it is.
    pub peer: PeerId,
    /// What opens its datagrams.
    pub key: Arc<ReceiveKey>,
    index: u32,
}

/// All peers, and who we are to them. See the [crate's documentation](crate) for the order of calls.
pub struct Device {
    shared: Shared,
    macs: Macs,
    guard: Guard,
    peers: Vec<Peer>,
    by_key: HashMap<[u8; HASH], PeerId>,
    /// No timer is due before; it may be later that one is.
    armed: Option<Instant>,
}

impl Device {
    /// A device without sessions. `unix` is the time since 1970 at `now`.
    ///
    /// # Errors
    /// A key that is none.
    pub fn new(settings: &Settings, now: Instant, unix: Duration) -> Result<Self, SettingsError> {
        let own = Pair::new(&settings.private_key).map_err(|_| SettingsError::PrivateKey)?;
        let mut by_key = HashMap::new();
        let mut peers = Vec::new();
        for (at, one) in settings.peers.iter().enumerate() {
            if let Some(PeerId(other)) = by_key.insert(one.public_key, PeerId(at)) {
                return Err(SettingsError::Twice(other, at));
            }
            peers.push(Peer::new(PeerId(at), one, &own, now).map_err(|_| SettingsError::PublicKey(at))?);
        }
        let public = own.public;
        let shared = Shared {
            own,
            born: now,
            unix,
            indices: HashMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        };
        let (macs, guard) = (Macs::new(mac1_key(&public)), Guard::new(&public, now));
        let armed = peers.iter().filter_map(Peer::deadline).min();
        Ok(Self { shared, macs, guard, peers, by_key, armed })
    }

    /// Takes in a datagram that [`Datagram::look`] says is part of a handshake.
    pub fn handshake(&mut self, datagram: &[u8], source: SocketAddr, now: Instant) {
        let mut message = [0; INITIATION];
        let Some(message) = message.get_mut(..datagram.len()) else { return };
        message.copy_from_slice(datagram);
        let Some(reserved) = message.get_mut(1..4) else { return };
        // MACs are made over zeros.
        reserved.fill(0);
        if message[0] == 3 {
            self.take_cookie(message, now);
            return;
        }
        if message.len() < 64 || !self.macs.verify(message) {
            return;
        }
        match self.guard.judge(message, source, now) {
            Verdict::Work => {}
            Verdict::Drop => return,
            Verdict::Ask => {
                let bytes = self.guard.reply(message, source, &random(), now).to_vec();
                self.answer(Transmit { peer: PeerId(usize::MAX), to: source, bytes });
                return;
            }
        }
        if let Ok(initiation) = (&*message).try_into() {
            self.respond(initiation, source, now);
        } else if let Ok(response) = (&*message).try_into() {
            self.finish(response, source, now);
        }
    }

    fn answer(&mut self, transmit: Transmit) {
        if self.shared.transmits.len() < MOST_TRANSMITS {
            self.shared.transmits.push_back(transmit);
        }
    }

    fn respond(&mut self, initiation: &[u8; INITIATION], source: SocketAddr, now: Instant) {
        let Ok(responder) = Responder::read(&self.shared.own, initiation) else { return };
        let Some(PeerId(at)) = self.by_key.get(&responder.peer).copied() else { return };
        if self.peers[at].respond(responder, source, &mut self.shared, now).is_ok() {
            self.arm(at);
        }
    }

    fn finish(&mut self, response: &[u8; RESPONSE], source: SocketAddr, now: Instant) {
        let index = u32::from_le_bytes([response[8], response[9], response[10], response[11]]);
        let Some(PeerId(at)) = self.shared.indices.get(&index).copied() else { return };
        if self.peers[at].finish(index, response, source, &mut self.shared, now).is_ok() {
            self.arm(at);
        }
    }

    fn take_cookie(&mut self, message: &[u8], now: Instant) {
        let Ok(reply): Result<&[u8; REPLY], _> = message.try_into() else { return };
        let index = u32::from_le_bytes([reply[4], reply[5], reply[6], reply[7]]);
        if let Some(PeerId(at)) = self.shared.indices.get(&index).copied() {
            let _ = self.peers[at].take_cookie(reply, now);
        }
    }

    /// The session that we gave this name.
    #[must_use]
    pub fn receiving(&self, index: u32, now: Instant) -> Option<Receiving> {
        let peer = self.shared.indices.get(&index).copied()?;
        let key = self.peers[peer.0].receive_key(index, now)?;
        Some(Receiving { peer, key, index })
    }

    /// Something that opened has come from `source`. `data` says that it was more than a sign of life.
    pub fn received(&mut self, receiving: &Receiving, data: bool, source: SocketAddr, now: Instant) {
        let PeerId(at) = receiving.peer;
        self.peers[at].received(receiving.index, data, source, &mut self.shared, now);
        self.arm(at);
    }

    /// Takes counters for `count` packets to a peer.
    pub fn send(&mut self, peer: PeerId, count: u64, now: Instant) -> Sending {
        let sending = self.peers[peer.0].send(count, &mut self.shared, now);
        self.arm(peer.0);
        sending
    }

    /// Says to a peer that we are there.
    pub fn keepalive(&mut self, peer: PeerId, now: Instant) {
        self.peers[peer.0].send_keepalive(&mut self.shared, now);
        self.arm(peer.0);
    }

    /// Where a peer is, as far as is known.
    #[must_use]
    pub fn endpoint(&self, peer: PeerId) -> Option<SocketAddr> {
        self.peers[peer.0].endpoint
    }

    /// Says where a peer is.
    pub fn set_endpoint(&mut self, peer: PeerId, endpoint: SocketAddr) {
        self.peers[peer.0].endpoint = Some(endpoint);
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.shared.transmits.pop_front()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// When [`Device::on_timeout`] may have something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.armed
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.armed.is_none_or(|at| now < at) {
            return;
        }
        for peer in &mut self.peers {
            peer.on_timeout(&mut self.shared, now);
        }
        self.armed = self.peers.iter().filter_map(Peer::deadline).min();
    }

    fn arm(&mut self, at: usize) {
        if let Some(deadline) = self.peers[at].deadline()
            && self.armed.is_none_or(|armed| deadline < armed)
        {
            self.armed = Some(deadline);
        }
    }
}

/// Two devices with a session take in what is made of `bytes`; for fuzzing. Nothing may panic, nothing that is not the
/// other's may open, and the session has to survive.
pub fn fuzz_datagrams(bytes: &[u8]) {
    let mut now = Instant::now();
    let (mut left, mut right) = testing::pair(now);
    let (here, there) = testing::ADDRESSES;
    left.keepalive(PeerId(0), now);
    testing::exchange(&mut left, &mut right, now);
    for chunk in bytes.chunks(160) {
        let mut datagram = chunk.to_vec();
        now += Duration::from_millis(u64::from(chunk[0]));
        match Datagram::look(&datagram) {
            Datagram::Data(_) => {
                let index = *right.shared.indices.keys().next().expect("there is a session");
                if let Some(receiving) = right.receiving(index, now) {
                    assert_eq!(receiving.key.open(&mut datagram), None, "a forgery");
                }
            }
            Datagram::Handshake => right.handshake(&datagram, here, now),
            Datagram::Garbage => {}
        }
        assert!(right.poll_transmit().is_none(), "an answer to a stranger");
    }
    assert_eq!(right.endpoint(PeerId(0)), Some(here));
    assert_eq!(left.endpoint(PeerId(0)), Some(there));
}

/// Two devices that know each other.
mod testing {
    use super::*;

    pub(super) const ADDRESSES: (SocketAddr, SocketAddr) = (at(1), at(2));

    const fn at(last: u8) -> SocketAddr {
        use std::net::{IpAddr, Ipv4Addr};
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), 51820)
    }

    pub(super) fn key(first: u8) -> Key {
        Key(std::array::from_fn(|at| first.wrapping_add(at as u8)))
    }

    pub(super) fn public(first: u8) -> [u8; HASH] {
        Pair::new(&key(first)).map(|pair| pair.public).unwrap_or_default()
    }

    /// The first knows where the second is; the second has to be told.
    pub(super) fn pair(now: Instant) -> (Device, Device) {
        let peer = |of: u8, endpoint| PeerSettings {
            public_key: public(of),
            preshared_key: key(0x40),
            endpoint,
            keepalive: None,
            reserved: [0; 3],
        };
        let device = |own: u8, peer: PeerSettings| {
            let settings = Settings { private_key: key(own), peers: vec![peer] };
            Device::new(&settings, now, Duration::from_secs(1_700_000_000)).expect("keys that are keys")
        };
        (device(0x20, peer(0, Some(ADDRESSES.1))), device(0, peer(0x20, None)))
    }

    /// Lets both talk until they have nothing more to say. Returns how many datagrams went each way.
    pub(super) fn exchange(left: &mut Device, right: &mut Device, now: Instant) -> (usize, usize) {
        let mut sent = (0, 0);
        loop {
            let mut quiet = true;
            while let Some(out) = left.poll_transmit() {
                take(right, &out.bytes, ADDRESSES.0, now);
                sent.0 += 1;
                quiet = false;
            }
            while let Some(out) = right.poll_transmit() {
                take(left, &out.bytes, ADDRESSES.1, now);
                sent.1 += 1;
                quiet = false;
            }
            if quiet {
                return sent;
            }
        }
    }

    /// Gives one datagram to a device, as its driver would. Whether it carried a packet, and which.
    pub(super) fn take(
        device: &mut Device,
        bytes: &[u8],
        source: SocketAddr,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        let mut packet = None;
        match Datagram::look(&bytes) {
            Datagram::Data(index) => {
                let receiving = device.receiving(index, now)?;
                let len = receiving.key.open(&mut bytes)?;
                device.received(&receiving, len > 0, source, now);
                packet = (len > 0).then(|| bytes[HEAD..HEAD + len].to_vec());
            }
            Datagram::Handshake => device.handshake(&bytes, source, now),
            Datagram::Garbage => {}
        }
        while let Some(event) = device.poll_event() {
            if let Event::Ready { peer, announce: true } = event {
                device.keepalive(peer, now);
            }
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{ADDRESSES, exchange, key, pair, public, take};
    use super::*;

    const PEER: PeerId = PeerId(0);
    const SECOND: Duration = Duration::from_secs(1);

    /// A datagram with a packet, if there is a session.
    fn seal(device: &mut Device, text: &[u8], now: Instant) -> Option<Vec<u8>> {
        let Sending::Now { key, first, .. } = device.send(PEER, 1, now) else { return None };
        let mut datagram = vec![0; HEAD + text.len() + TAG];
        datagram[HEAD..HEAD + text.len()].copy_from_slice(text);
        key.seal(first, &mut datagram);
        Some(datagram)
    }

    fn connected(now: Instant) -> (Device, Device) {
        let (mut left, mut right) = pair(now);
        assert!(seal(&mut left, b"first", now).is_none(), "there is no session yet");
        assert_eq!(exchange(&mut left, &mut right, now).0, 2, "an initiation, a keepalive");
        (left, right)
    }

    fn works(from: &mut Device, to: &mut Device, source: SocketAddr, now: Instant) -> bool {
        let Some(datagram) = seal(from, b"hello", now) else { return false };
        take(to, &datagram, source, now).as_deref() == Some(b"hello")
    }

    /// Lets time pass, timer by timer, with a network that loses everything.
    fn pass(device: &mut Device, now: &mut Instant, time: Duration) -> Vec<(Instant, Transmit)> {
        let end = *now + time;
        let mut sent = Vec::new();
        while let Some(at) = device.next_timeout().filter(|at| *at <= end) {
            *now = at.max(*now);
            device.on_timeout(*now);
            sent.extend(std::iter::from_fn(|| device.poll_transmit()).map(|out| (*now, out)));
        }
        *now = end;
        sent
    }

    #[test]
    fn packets_go_both_ways_after_a_handshake() {
        let now = Instant::now();
        let (mut left, mut right) = connected(now);
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
        assert!(works(&mut right, &mut left, ADDRESSES.1, now));
    }

    #[test]
    fn the_responder_says_nothing_before_the_initiator_has() {
        let now = Instant::now();
        let (mut left, mut right) = pair(now);
        left.keepalive(PEER, now);
        let initiation = left.poll_transmit().unwrap();
        take(&mut right, &initiation.bytes, ADDRESSES.0, now);
        assert!(right.poll_transmit().is_some());
        assert!(seal(&mut right, b"too early", now).is_none());
    }

    #[test]
    fn replayed_and_forged_packets_do_not_open_and_reordered_ones_do() {
        let now = Instant::now();
        let (mut left, mut right) = connected(now);
        let sealed: Vec<_> = (0..5u8).map(|text| seal(&mut left, &[text; 16], now).unwrap()).collect();
        for at in [4, 0, 3, 1, 2] {
            assert_eq!(take(&mut right, &sealed[at], ADDRESSES.0, now), Some(vec![at as u8; 16]));
            assert_eq!(take(&mut right, &sealed[at], ADDRESSES.0, now), None, "again");
        }
        let mut forged = seal(&mut left, b"text", now).unwrap();
        *forged.last_mut().unwrap() ^= 1;
        let elsewhere = ([198, 51, 100, 1], 1).into();
        assert_eq!(take(&mut right, &forged, elsewhere, now), None);
        assert_eq!(right.endpoint(PEER), Some(ADDRESSES.0), "a forgery moves nobody");
    }

    #[test]
    fn a_replayed_initiation_is_not_answered() {
        let mut now = Instant::now();
        let (mut left, mut right) = pair(now);
        left.keepalive(PEER, now);
        let initiation = left.poll_transmit().unwrap().bytes;
        take(&mut right, &initiation, ADDRESSES.0, now);
        assert!(right.poll_transmit().is_some());
        now += SECOND;
        take(&mut right, &initiation, ([198, 51, 100, 1], 1).into(), now);
        assert!(right.poll_transmit().is_none());
        assert_eq!(right.endpoint(PEER), Some(ADDRESSES.0));
    }

    #[test]
    fn a_peer_that_moves_is_followed() {
        let now = Instant::now();
        let (mut left, mut right) = connected(now);
        let moved = ([203, 0, 113, 9], 4000).into();
        assert!(works(&mut left, &mut right, moved, now));
        assert_eq!(right.endpoint(PEER), Some(moved));
        let Sending::Now { to, .. } = right.send(PEER, 1, now) else { panic!("there is a session") };
        assert_eq!(to, moved);
    }

    #[test]
    fn the_initiator_renews_the_session_after_two_minutes_and_nothing_is_lost() {
        let mut now = Instant::now();
        let (mut left, mut right) = connected(now);
        now += 119 * SECOND;
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
        assert_eq!(exchange(&mut left, &mut right, now), (0, 0));
        now += SECOND;
        let before = seal(&mut left, b"by the old key", now).unwrap();
        assert!(works(&mut right, &mut left, ADDRESSES.1, now));
        let (from_left, from_right) = exchange(&mut left, &mut right, now);
        assert_eq!((from_left, from_right), (2, 1), "a handshake");
        assert!(take(&mut right, &before, ADDRESSES.0, now).is_some(), "the key before still opens");
        assert!(
            works(&mut left, &mut right, ADDRESSES.0, now) && works(&mut right, &mut left, ADDRESSES.1, now)
        );
        assert!(left.shared.indices.len() <= 2, "the names of old sessions are given up");
    }

    #[test]
    fn the_responder_renews_nothing_by_itself_and_an_old_session_is_of_no_use() {
        let mut now = Instant::now();
        let (mut left, mut right) = connected(now);
        now += 150 * SECOND;
        assert!(seal(&mut right, b"text", now).is_some());
        assert!(right.poll_transmit().is_none());
        let late = seal(&mut right, b"text", now).unwrap();
        now += 30 * SECOND;
        assert_eq!(take(&mut left, &late, ADDRESSES.1, now), None, "after three minutes nothing opens");
        assert!(seal(&mut right, b"text", now).is_none(), "nor is anything sealed");
        assert_eq!(right.poll_transmit().map(|out| out.bytes[0]), Some(1), "a handshake begins");
    }

    #[test]
    fn an_initiator_that_only_receives_renews_in_time() {
        let mut now = Instant::now();
        let (mut left, mut right) = connected(now);
        now += 164 * SECOND;
        assert!(works(&mut right, &mut left, ADDRESSES.1, now));
        assert!(left.poll_transmit().is_none());
        now += SECOND;
        assert!(works(&mut right, &mut left, ADDRESSES.1, now));
        assert_eq!(left.poll_transmit().map(|out| out.bytes[0]), Some(1));
    }

    #[test]
    fn a_lost_handshake_is_tried_again_and_given_up_after_ninety_seconds() {
        let start = Instant::now();
        let (mut left, mut right) = pair(start);
        let mut now = start;
        assert!(seal(&mut left, b"text", now).is_none());
        let mut sent: Vec<_> = vec![(now, left.poll_transmit().unwrap())];
        sent.extend(pass(&mut left, &mut now, 120 * SECOND));
        let gaps: Vec<_> = sent.windows(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(gaps.iter().all(|gap| *gap >= 5 * SECOND && *gap < 5 * SECOND + SECOND / 2), "{gaps:?}");
        assert!((17..=19).contains(&sent.len()), "{}", sent.len());
        let events: Vec<_> = std::iter::from_fn(|| left.poll_event()).collect();
        assert_eq!(events.last(), Some(&Event::GaveUp(PEER)));
        assert_eq!(events.iter().filter(|event| **event == Event::Retry(PEER)).count(), sent.len() - 1);
        // Each is another one, and the last is as good as the first.
        let stamps: std::collections::HashSet<_> = sent.iter().map(|(_, out)| &out.bytes).collect();
        assert_eq!(stamps.len(), sent.len());
        // Traffic begins anew.
        assert!(seal(&mut left, b"text", now).is_none());
        exchange(&mut left, &mut right, now);
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
    }

    #[test]
    fn who_receives_answers_within_ten_seconds_and_who_hears_nothing_begins_anew() {
        let start = Instant::now();
        let (mut left, mut right) = connected(start);
        let mut now = start;
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
        let answers = pass(&mut right, &mut now, 60 * SECOND);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].0 - start, answers[0].1.bytes.len()), (10 * SECOND, HEAD + TAG));
        // The answer is lost.
        let mut now = start;
        let sent = pass(&mut left, &mut now, 16 * SECOND);
        assert_eq!(sent.first().map(|(at, out)| (*at - start, out.bytes[0])), Some((15 * SECOND, 1)));
    }

    #[test]
    fn signs_of_life_come_as_often_as_was_asked_for() {
        let start = Instant::now();
        let settings = Settings {
            private_key: key(0x20),
            peers: vec![PeerSettings {
                public_key: public(0),
                preshared_key: key(0x40),
                endpoint: Some(ADDRESSES.1),
                keepalive: Some(25 * SECOND),
                reserved: [1, 2, 3],
            }],
        };
        let mut left = Device::new(&settings, start, Duration::from_secs(1_700_000_000)).unwrap();
        let (_, mut right) = pair(start);
        let mut now = start;
        left.on_timeout(now);
        exchange(&mut left, &mut right, now);
        let sent = pass(&mut left, &mut now, 110 * SECOND);
        let times: Vec<_> = sent.iter().map(|(at, _)| (*at - start).as_secs()).collect();
        assert_eq!(times, [25, 50, 75, 100]);
        assert!(sent.iter().all(|(_, out)| out.bytes[..4] == [4, 1, 2, 3]), "with what was agreed on");
    }

    #[test]
    fn a_peer_that_starts_anew_is_let_in_at_once() {
        let mut now = Instant::now();
        let (_, mut right) = connected(now);
        now += 30 * SECOND;
        let (mut again, _) = pair(now);
        again.shared.unix += 30 * SECOND;
        again.keepalive(PEER, now);
        exchange(&mut again, &mut right, now);
        assert!(works(&mut again, &mut right, ADDRESSES.0, now));
        assert!(works(&mut right, &mut again, ADDRESSES.1, now));
    }

    #[test]
    fn both_may_begin_at_once() {
        let now = Instant::now();
        let (mut left, mut right) = pair(now);
        right.set_endpoint(PEER, ADDRESSES.0);
        assert!(seal(&mut left, b"text", now).is_none() && seal(&mut right, b"text", now).is_none());
        exchange(&mut left, &mut right, now);
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
        assert!(works(&mut right, &mut left, ADDRESSES.1, now));
    }

    #[test]
    fn under_load_a_cookie_is_asked_for_and_lets_the_peer_in() {
        let mut now = Instant::now();
        let (mut left, mut right) = pair(now);
        // Strangers who know the server's key, but are no peers.
        let mut stranger = Device::new(
            &Settings {
                private_key: key(0x90),
                peers: vec![PeerSettings {
                    public_key: public(0),
                    preshared_key: Key::default(),
                    endpoint: Some(ADDRESSES.1),
                    keepalive: None,
                    reserved: [0; 3],
                }],
            },
            now,
            Duration::from_secs(1_700_000_000),
        )
        .unwrap();
        stranger.keepalive(PEER, now);
        let flood = stranger.poll_transmit().unwrap().bytes;
        let mut asked = 0;
        for port in 1..200 {
            take(&mut right, &flood, ([198, 51, 100, 7], port).into(), now);
            asked += std::iter::from_fn(|| right.poll_transmit()).count();
        }
        assert!(asked > 100, "{asked}");
        left.keepalive(PEER, now);
        assert_eq!(exchange(&mut left, &mut right, now), (1, 1), "an initiation, a cookie");
        assert!(seal(&mut left, b"text", now).is_none());
        // The next one proves the address, with the load as it was.
        for _ in 0..100 {
            now += Duration::from_millis(60);
            (0..20).for_each(|_| drop(take(&mut right, &flood, ([198, 51, 100, 7], 1).into(), now)));
            while right.poll_transmit().is_some() {}
            left.on_timeout(now);
            exchange(&mut left, &mut right, now);
        }
        assert!(works(&mut left, &mut right, ADDRESSES.0, now));
    }

    #[test]
    fn who_has_a_wrong_key_gets_no_answer() {
        let now = Instant::now();
        for (own, theirs, shared) in [(0x21, 0, 0x40), (0x20, 1, 0x40), (0x20, 0, 0x41)] {
            let (_, mut right) = pair(now);
            let settings = Settings {
                private_key: key(own),
                peers: vec![PeerSettings {
                    public_key: public(theirs),
                    preshared_key: key(shared),
                    endpoint: Some(ADDRESSES.1),
                    keepalive: None,
                    reserved: [0; 3],
                }],
            };
            let mut left = Device::new(&settings, now, Duration::from_secs(1_700_000_000)).unwrap();
            left.keepalive(PEER, now);
            exchange(&mut left, &mut right, now);
            assert!(seal(&mut left, b"text", now).is_none(), "{own} {theirs} {shared}");
        }
    }

    #[test]
    fn keys_that_are_none_and_keys_that_come_twice_are_refused() {
        let now = Instant::now();
        let peer = |public_key| PeerSettings {
            public_key,
            preshared_key: Key::default(),
            endpoint: None,
            keepalive: None,
            reserved: [0; 3],
        };
        let device = |peers| Device::new(&Settings { private_key: key(0), peers }, now, SECOND).map(drop);
        assert_eq!(device(vec![peer([0; 32])]), Err(SettingsError::PublicKey(0)));
        assert_eq!(device(vec![peer(public(1)), peer(public(1))]), Err(SettingsError::Twice(0, 1)));
    }

    #[test]
    fn secrets_are_not_shown() {
        let (_, device) = pair(Instant::now());
        let shown = format!("{:?} {:?}", key(7), device.receiving(0, Instant::now()));
        assert_eq!(shown, "Key(..) None");
    }

    #[test]
    fn keys_are_wiped_after_nine_minutes() {
        let start = Instant::now();
        let (mut left, _) = connected(start);
        let mut now = start;
        assert!(!left.shared.indices.is_empty());
        pass(&mut left, &mut now, 541 * SECOND);
        assert!(left.peers[0].receive_key(0, now).is_none() && left.shared.indices.is_empty());
    }

    #[test]
    fn noise_of_any_kind_does_no_harm() {
        let mut bytes = Vec::new();
        for round in 0..200u32 {
            bytes.extend(
                (0..160).map(|at| (round.wrapping_mul(2_654_435_761).wrapping_add(at * 40_503) >> 9) as u8),
            );
            let at = bytes.len() - 160;
            bytes[at] = (round % 5) as u8;
        }
        for len in [0, 1, 92, 148, 64, 32, 16_000, bytes.len()] {
            fuzz_datagrams(&bytes[..len]);
        }
    }
}
