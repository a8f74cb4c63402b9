//! Datagrams, sealed and opened in place.
//!
//! Both ends have an [`Outgoing`] and open by one of the functions here; what differs between them is who keeps which
//! sessions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_core::{Packet, PacketBatch};
use culvert_wire::{AddressCodec, Buf, DecodeError, Reader, Room, Target};

use super::cipher::{BLOCK, Blocks, Cipher, Key, TAG};
use super::codec::{MAX_PADDING, fill_random, random_padding};
use super::key::Secret;
use super::replay::is_timely;

/// Bytes of the id of a session.
pub(super) const SESSION: usize = 8;
/// Bytes of the nonce of XChaCha20-Poly1305.
const LONG_NONCE: usize = 24;
/// Bytes of the separate header: session and number of the packet.
const SEPARATE: usize = SESSION + 8;
/// Bytes of an address that is no name.
const ADDRESS: usize = 1 + 16 + 2;
/// The port whose datagrams are padded.
const DNS: u16 = 53;
/// Most bytes in one message to the kernel, and most datagrams.
const MAX_TRAIN: usize = 65_000;
const MAX_SEGMENTS: usize = 64;

const TO_SERVER: u8 = 0;
const TO_CLIENT: u8 = 1;

/// The id of a session.
pub(super) type SessionId = [u8; SESSION];

/// What stands in front of a packet of the 2022 edition, opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Separate {
    pub(super) session: SessionId,
    pub(super) number: u64,
}

impl Separate {
    fn bytes(self) -> [u8; SEPARATE] {
        let mut bytes = [0; SEPARATE];
        bytes[..SESSION].copy_from_slice(&self.session);
        bytes[SESSION..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; SEPARATE]) -> Self {
        let (mut session, mut number) = ([0; SESSION], [0; 8]);
        session.copy_from_slice(&bytes[..SESSION]);
        number.copy_from_slice(&bytes[SESSION..]);
        Self { session, number: u64::from_be_bytes(number) }
    }

    /// The nonce of a body behind it, sealed with AES.
    fn nonce(self) -> [u8; LONG_NONCE] {
        let mut nonce = [0; LONG_NONCE];
        nonce[..12].copy_from_slice(&self.bytes()[4..]);
        nonce
    }
}

/// Seals datagrams to the other end.
pub(super) struct Outgoing(Sealing);

enum Sealing {
    None,
    Aead { cipher: Cipher, key: Secret },
    Edition2022(Session),
}

/// What one end sends in a session of the 2022 edition.
struct Session {
    form: Form,
    /// Ours.
    id: SessionId,
    /// Number of the next packet.
    next: Arc<AtomicU64>,
    /// To a client: its session.
    client: Option<SessionId>,
}

enum Form {
    /// AES: the separate header is a block of its own.
    Separate {
        header: Blocks,
        body: Key,
        /// Under which key and for whose key's hash, from the first server to the user.
        identities: Vec<(Blocks, [u8; BLOCK])>,
    },
    /// ChaCha20: everything is sealed behind a random nonce.
    Whole(Key),
}

impl Form {
    fn new(cipher: Cipher, key: &Secret, session: SessionId) -> Self {
        match Blocks::new(key.bytes()) {
            Some(header) if cipher != Cipher::ChaCha20Poly1305 => {
                let body = session_key(cipher, key, session);
                Self::Separate { header, body, identities: Vec::new() }
            }
            _ => Self::Whole(whole_key(key)),
        }
    }
}

/// The key of the bodies that one end sends in a session, with AES.
pub(super) fn session_key(cipher: Cipher, key: &Secret, session: SessionId) -> Key {
    Key::new(cipher, key.session_subkey(&session).bytes())
}

/// The key of all packets, with ChaCha20.
pub(super) fn whole_key(key: &Secret) -> Key {
    Key::new(Cipher::XChaCha20Poly1305, key.bytes())
}

/// A session id for one of us.
pub(super) fn new_session() -> SessionId {
    let mut id = [0; SESSION];
    fill_random(&mut id);
    id
}

impl Outgoing {
    /// Nothing is sealed.
    pub(super) fn none() -> Self {
        Self(Sealing::None)
    }

    /// The first AEAD edition.
    pub(super) fn aead(cipher: Cipher, key: Secret) -> Self {
        Self(Sealing::Aead { cipher, key })
    }

    /// From a client, who has this chain of keys and this session.
    pub(super) fn to_server(cipher: Cipher, keys: &[Secret], id: SessionId) -> Option<Self> {
        let own = keys.last()?;
        let mut form = Form::new(cipher, own, id);
        if let Form::Separate { header, identities, .. } = &mut form {
            for pair in keys.windows(2) {
                identities.push((Blocks::new(pair[0].bytes())?, pair[1].hash()));
            }
            if let Some((first, _)) = identities.first() {
                *header = first.clone();
            }
        }
        Some(Self(Sealing::Edition2022(Session { form, id, next: Arc::default(), client: None })))
    }

    /// From a server, in a session of its own of which `next` is the next number, to the client with this key and session.
    pub(super) fn to_client(
        cipher: Cipher,
        key: &Secret,
        (id, next): (SessionId, Arc<AtomicU64>),
        client: SessionId,
    ) -> Self {
        let form = Form::new(cipher, key, id);
        Self(Sealing::Edition2022(Session { form, id, next, client: Some(client) }))
    }

    /// What it wants around payloads that go to `below`: most addresses are no names.
    pub(super) fn room(&self, below: Room) -> Room {
        Room { head: self.overhead() + ADDRESS, tail: TAG, max: usize::MAX }.around(below)
    }

    /// Bytes in front of a payload but for address and padding.
    fn overhead(&self) -> usize {
        match &self.0 {
            Sealing::None => 0,
            Sealing::Aead { cipher, .. } => cipher.key_len(),
            Sealing::Edition2022(session) => {
                let front = match &session.form {
                    Form::Separate { identities, .. } => SEPARATE + identities.len() * BLOCK,
                    Form::Whole(_) => LONG_NONCE + SEPARATE,
                };
                front + 1 + 8 + session.client.map_or(0, |client| client.len()) + 2
            }
        }
    }

    fn tail(&self) -> usize {
        if matches!(self.0, Sealing::None) { 0 } else { TAG }
    }

    fn padding(&self, peer: &Target, payload: usize) -> usize {
        let padded = matches!(self.0, Sealing::Edition2022(_)) && peer.port == DNS && payload < MAX_PADDING;
        if padded { random_padding(MAX_PADDING - payload) } else { 0 }
    }

    /// Seals `region`, in which a payload stands between `head` bytes and room for a tag.
    fn seal(&mut self, region: &mut [u8], head: usize, peer: &Target, padding: usize, now: u64) {
        let mut address = Vec::with_capacity(ADDRESS);
        AddressCodec::SOCKS.encode(peer, &mut address);
        region[head - address.len()..head].copy_from_slice(&address);
        match &mut self.0 {
            Sealing::None => {}
            Sealing::Aead { cipher, key } => {
                let (salt, rest) = region.split_at_mut(cipher.key_len());
                fill_random(salt);
                let key = Key::new(*cipher, key.subkey(salt).bytes());
                seal_rest(&key, &[0; LONG_NONCE], rest);
            }
            Sealing::Edition2022(session) => session.seal(region, padding, now),
        }
    }

    /// Seals each packet of `batch` behind the first `done` ones, which are sealed already, and addresses them all to `to`.
    /// In place where the packet has the room that was asked for; trains stay trains.
    pub(super) fn seal_batch(&mut self, batch: &mut PacketBatch, done: usize, to: &Target, now: u64) {
        // One full turn of the queue: each packet is taken from the front, and what it became is put at the end.
        for index in 0..batch.len() {
            let Some(packet) = batch.pop() else { return };
            if index < done {
                batch.push(packet);
            } else if packet.segment == 0 || usize::from(packet.segment) >= packet.data.len() {
                let data = self.seal_one(packet.data, &packet.peer, now);
                batch.push(Packet::new(data, to.clone()));
            } else {
                self.seal_train(&packet, batch, to, now);
            }
        }
    }

    fn seal_one(&mut self, mut data: Buf, peer: &Target, now: u64) -> Buf {
        let padding = self.padding(peer, data.len());
        let head = self.overhead() + padding + AddressCodec::SOCKS.encoded_len(peer);
        let tail = self.tail();
        if data.head() < head || data.spare() < tail {
            let mut copy = Buf::new(data.len(), head, tail);
            copy.append(&data);
            data = copy;
        }
        let mut missing = head;
        while missing > 0 {
            let part = missing.min(64);
            data.prepend(&[0; 64][..part]);
            missing -= part;
        }
        data.grow(tail);
        self.seal(&mut data, head, peer, padding, now);
        data
    }

    /// Makes one train of another, in as many messages as the heads make it. Padded ones are no train: each has its length.
    fn seal_train(&mut self, packet: &Packet, batch: &mut PacketBatch, to: &Target, now: u64) {
        let peer = &packet.peer;
        let payloads: Vec<&[u8]> = packet.payloads().collect();
        if self.padding(peer, packet.segment.into()) > 0 {
            for payload in payloads {
                let data = self.seal_one(Buf::copied(payload), peer, now);
                batch.push(Packet::new(data, to.clone()));
            }
            return;
        }
        let head = self.overhead() + AddressCodec::SOCKS.encoded_len(peer);
        let around = head + self.tail();
        let segment = usize::from(packet.segment) + around;
        for group in payloads.chunks((MAX_TRAIN / segment).clamp(1, MAX_SEGMENTS)) {
            let mut data = Buf::new(group.len() * segment, 0, 0);
            for payload in group {
                let len = payload.len() + around;
                let region = &mut data.spare_mut()[..len];
                region[head..head + payload.len()].copy_from_slice(payload);
                self.seal(region, head, peer, 0, now);
                data.grow(len);
            }
            let segment = if group.len() > 1 { u16::try_from(segment).unwrap_or(0) } else { 0 };
            batch.push(Packet { data, segment, peer: to.clone() });
        }
    }
}

impl Session {
    fn seal(&self, region: &mut [u8], padding: usize, now: u64) {
        let separate = Separate { session: self.id, number: self.next.fetch_add(1, Ordering::Relaxed) };
        match &self.form {
            Form::Separate { header, body, identities } => {
                let (front, rest) = region.split_at_mut(SEPARATE + identities.len() * BLOCK);
                self.write_body_head(rest, padding, now);
                seal_rest(body, &separate.nonce(), rest);
                let (first, rest) = front.split_at_mut(SEPARATE);
                for ((blocks, hash), place) in identities.iter().zip(rest.chunks_exact_mut(BLOCK)) {
                    let mut block = xor(*hash, separate.bytes());
                    blocks.encrypt(&mut block);
                    place.copy_from_slice(&block);
                }
                let mut block = separate.bytes();
                header.encrypt(&mut block);
                first.copy_from_slice(&block);
            }
            Form::Whole(key) => {
                let mut nonce = [0; LONG_NONCE];
                fill_random(&mut nonce);
                let (front, rest) = region.split_at_mut(LONG_NONCE);
                front.copy_from_slice(&nonce);
                rest[..SEPARATE].copy_from_slice(&separate.bytes());
                self.write_body_head(&mut rest[SEPARATE..], padding, now);
                seal_rest(key, &nonce, rest);
            }
        }
    }

    fn write_body_head(&self, body: &mut [u8], padding: usize, now: u64) {
        let mut head = Vec::with_capacity(1 + 8 + SESSION + 2);
        head.push(if self.client.is_some() { TO_CLIENT } else { TO_SERVER });
        head.extend(now.to_be_bytes());
        head.extend(self.client.iter().flatten());
        head.extend((padding as u16).to_be_bytes());
        body[..head.len()].copy_from_slice(&head);
        body[head.len()..head.len() + padding].fill(0);
    }
}

fn seal_rest(key: &Key, nonce: &[u8; LONG_NONCE], rest: &mut [u8]) {
    let (data, tag) = rest.split_last_chunk_mut::<TAG>().expect("callers leave room for a tag");
    *tag = key.seal(nonce, data);
}

fn xor(mut a: [u8; BLOCK], b: [u8; BLOCK]) -> [u8; BLOCK] {
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
    a
}

/// A payload within a datagram, and the address that stood before it.
pub(super) type Found = (Range<usize>, Target);

/// Reads a datagram in which nothing is sealed.
pub(super) fn open_none(data: &[u8]) -> Option<Found> {
    found(data, 0, data.len()).ok()
}

/// Opens a datagram of the first AEAD edition.
pub(super) fn open_aead(cipher: Cipher, key: &Secret, data: &mut [u8]) -> Option<Found> {
    let salt_len = cipher.key_len();
    if data.len() < salt_len + TAG {
        return None;
    }
    let (salt, rest) = data.split_at_mut(salt_len);
    Key::new(cipher, key.subkey(salt).bytes()).open(&[0; LONG_NONCE], rest).ok()?;
    found(data, salt_len, data.len() - TAG).ok()
}

/// The same where it may be another key: `data` is left as it is unless it opens. `scratch` is for what opens.
pub(super) fn try_open_aead(
    cipher: Cipher,
    key: &Secret,
    data: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Option<Found> {
    let salt_len = cipher.key_len();
    let end = data.len().checked_sub(TAG).filter(|end| *end >= salt_len)?;
    let (salt, rest) = data.split_at(salt_len);
    scratch.resize(end - salt_len, 0);
    Key::new(cipher, key.subkey(salt).bytes()).open_into(&[0; LONG_NONCE], rest, scratch).ok()?;
    data[salt_len..end].copy_from_slice(scratch);
    found(data, salt_len, end).ok()
}

/// Reads the separate header of a packet sealed with AES, under the key that it is sealed with.
pub(super) fn open_separate(blocks: &Blocks, data: &[u8]) -> Option<Separate> {
    let mut block = *data.first_chunk::<SEPARATE>()?;
    blocks.decrypt(&mut block);
    Some(Separate::from_bytes(block))
}

/// Reads for whom a packet is: the hash of a key.
pub(super) fn open_packet_identity(blocks: &Blocks, separate: Separate, data: &[u8]) -> Option<[u8; BLOCK]> {
    let mut block = *data.get(SEPARATE..)?.first_chunk::<BLOCK>()?;
    blocks.decrypt(&mut block);
    Some(xor(block, separate.bytes()))
}

/// Makes a packet that was for us one for the next server: the separate header, sealed for whoever has `next`, takes the
/// place of our identity header. Returns where the packet stands.
pub(super) fn pass_on(data: &mut [u8], separate: Separate, next: &Blocks) -> Range<usize> {
    let mut block = separate.bytes();
    next.encrypt(&mut block);
    data[BLOCK..BLOCK + SEPARATE].copy_from_slice(&block);
    BLOCK..data.len()
}

/// Opens the body of a packet sealed with AES, behind `front` bytes of separate header and identities.
pub(super) fn open_body(key: &Key, separate: Separate, front: usize, data: &mut [u8]) -> Option<()> {
    key.open(&separate.nonce(), data.get_mut(front..)?).ok()
}

/// Opens a packet sealed with ChaCha20. The body is then behind [`WHOLE_FRONT`] bytes.
pub(super) fn open_whole(key: &Key, data: &mut [u8]) -> Option<Separate> {
    let nonce = *data.first_chunk::<LONG_NONCE>()?;
    key.open(&nonce, &mut data[LONG_NONCE..]).ok()?;
    // What opened has room for a tag at least; what it holds is to be seen.
    let end = data.len() - TAG;
    let separate = data[LONG_NONCE..end].first_chunk::<SEPARATE>()?;
    Some(Separate::from_bytes(*separate))
}

/// Where the body stands in a packet sealed with ChaCha20.
pub(super) const WHOLE_FRONT: usize = LONG_NONCE + SEPARATE;
/// Where the body stands in a packet sealed with AES without identities.
pub(super) const SEPARATE_FRONT: usize = SEPARATE;

/// Reads an opened body, which stands behind `front` bytes. `client` is our session if we are the client.
pub(super) fn decode_body(
    data: &[u8],
    front: usize,
    client: Option<SessionId>,
    now: u64,
) -> Result<Found, DecodeError> {
    let end = data.len().saturating_sub(TAG);
    let mut r = Reader::new(data.get(front..end).ok_or(DecodeError::Incomplete)?);
    let kind = if client.is_some() { TO_CLIENT } else { TO_SERVER };
    if r.u8()? != kind {
        return Err(DecodeError::Invalid("message type"));
    }
    if !is_timely(r.u64()?, now) {
        return Err(DecodeError::Invalid("time; are both clocks right?"));
    }
    if let Some(client) = client
        && r.array()? != client
    {
        return Err(DecodeError::Invalid("session"));
    }
    let padding = r.u16()?;
    r.take(padding.into())?;
    let at = front + r.position();
    found(data, at, end)
}

/// The address at `at`, and the payload from there to `end`.
fn found(data: &[u8], at: usize, end: usize) -> Result<Found, DecodeError> {
    let mut r = Reader::new(data.get(at..end).ok_or(DecodeError::Incomplete)?);
    let peer = AddressCodec::SOCKS.decode(&mut r)?;
    Ok((at + r.position()..end, peer))
}

/// Opens each packet of `batch` behind the first `old` ones; what does not open is dropped. Trains stay trains as far as
/// what is in them goes one way.
pub(super) fn open_batch(
    batch: &mut PacketBatch,
    old: usize,
    room: Room,
    mut open: impl FnMut(&mut [u8], &Target) -> Option<Found>,
) {
    for index in 0..batch.len() {
        let Some(packet) = batch.pop() else { return };
        if index < old {
            batch.push(packet);
        } else {
            open_packet(
                packet,
                room,
                |data, from| open(data, from).map(|found| (found, ())),
                |packet, ()| {
                    batch.push(packet);
                },
            );
        }
    }
}

/// Opens one packet, and gives on what is in it: payloads that are behind each other, go to one peer and have the same
/// mark as one train.
pub(super) fn open_packet<M: PartialEq>(
    packet: Packet,
    room: Room,
    mut open: impl FnMut(&mut [u8], &Target) -> Option<(Found, M)>,
    mut give: impl FnMut(Packet, M),
) {
    let Packet { mut data, segment, peer: from } = packet;
    if segment == 0 {
        let Some(((payload, peer), mark)) = open(&mut data, &from) else { return };
        data.truncate(payload.end);
        data.advance(payload.start);
        give(Packet::new(data, peer), mark);
        return;
    }
    let mut run: Option<Run<M>> = None;
    let mut at = 0;
    while at < data.len() {
        let end = data.len().min(at + usize::from(segment));
        let opened = open(&mut data[at..end], &from);
        let start = std::mem::replace(&mut at, end);
        let Some(((payload, peer), mark)) = opened else { continue };
        let payload = start + payload.start..start + payload.end;
        match &mut run {
            Some(run) if run.takes(payload.len(), &peer, &mark) => {
                let to = run.end;
                run.add(payload.len());
                data.copy_within(payload, to);
            }
            _ => {
                if let Some(Run { start, end, segment, peer, mark, .. }) = run.take() {
                    let mut copy = Buf::new(end - start, room.head, room.tail);
                    copy.append(&data[start..end]);
                    give(Packet { data: copy, segment, peer }, mark);
                }
                run = Some(Run::new(payload, peer, mark));
            }
        }
    }
    if let Some(Run { start, end, segment, peer, mark, .. }) = run {
        data.truncate(end);
        data.advance(start);
        give(Packet { data, segment, peer }, mark);
    }
}

/// Payloads that have been moved together.
struct Run<M> {
    start: usize,
    end: usize,
    /// Bytes of each but the last; 0 while there is only one.
    segment: u16,
    first: usize,
    /// The last was a shorter one, or nothing may follow.
    closed: bool,
    peer: Target,
    mark: M,
}

impl<M: PartialEq> Run<M> {
    fn new(payload: Range<usize>, peer: Target, mark: M) -> Self {
        let first = payload.len();
        Self { start: payload.start, end: payload.end, segment: 0, first, closed: first == 0, peer, mark }
    }

    fn takes(&self, len: usize, peer: &Target, mark: &M) -> bool {
        !self.closed && len > 0 && len <= self.first && self.peer == *peer && self.mark == *mark
    }

    fn add(&mut self, len: usize) {
        self.segment = self.first as u16; // of a train, whose datagrams are no longer than that
        self.end += len;
        self.closed = len < self.first;
    }
}

/// Fed with random bytes: what decodes lies within them.
pub(super) fn fuzz_packet(bytes: &[u8]) {
    for client in [None, Some(*b"sessions")] {
        if let Ok((payload, _)) = decode_body(bytes, SEPARATE_FRONT, client, 1_700_000_000) {
            assert!(payload.start <= payload.end && payload.end + TAG == bytes.len());
        }
    }
    if let Some((payload, _)) = open_none(bytes) {
        assert!(payload.start <= payload.end && payload.end == bytes.len());
    }
}
