//! Datagrams with the SOCKS head, in place: both ends of an association work with batches of them.

use culvert_core::{Packet, PacketBatch};
use culvert_wire::{Buf, Room, Target};

use super::codec::{datagram_head_len, decode_datagram, encode_datagram_head};

/// Head of a datagram to or from an IPv6 address, the longest one but for names.
pub(super) const HEAD: usize = 3 + 1 + 16 + 2;

/// Most bytes in one message to the kernel, heads included.
const MAX_TRAIN: usize = 65_000;

/// Puts a head before each packet of `batch` behind the first `done` ones, which have theirs already, and addresses
/// them all to `to`. In place where the packet has the room that was asked for; trains are copied, as each datagram of
/// one needs its head.
pub(super) fn encapsulate(batch: &mut PacketBatch, done: usize, to: &Target) {
    let mut head = Vec::with_capacity(HEAD);
    // One full turn of the queue: each packet is taken from the front, and what it became is put at the end.
    for index in 0..batch.len() {
        let Some(mut packet) = batch.pop() else { return };
        if index < done {
            batch.push(packet);
            continue;
        }
        head.clear();
        encode_datagram_head(&packet.peer, &mut head);
        packet.peer = to.clone();
        if packet.segment == 0 {
            prepend(&mut packet.data, &head);
            batch.push(packet);
        } else {
            encapsulate_train(&packet, &head, batch);
        }
    }
}

fn prepend(data: &mut Buf, head: &[u8]) {
    if data.head() < head.len() {
        let mut copy = Buf::new(data.len(), head.len(), 0);
        copy.append(data);
        *data = copy;
    }
    data.prepend(head);
}

/// Makes one train of another, in as many messages as the heads make it.
fn encapsulate_train(packet: &Packet, head: &[u8], batch: &mut PacketBatch) {
    let segment = usize::from(packet.segment) + head.len();
    let per_message = (MAX_TRAIN / segment).max(1);
    let payloads: Vec<&[u8]> = packet.payloads().collect();
    for group in payloads.chunks(per_message) {
        let mut data = Buf::new(group.len() * segment, 0, 0);
        for payload in group {
            data.append(head);
            data.append(payload);
        }
        let segment = if group.len() > 1 { u16::try_from(segment).unwrap_or(0) } else { 0 };
        batch.push(Packet { data, segment, peer: packet.peer.clone() });
    }
}

/// Takes the heads off the packets of `batch` behind the first `old` ones. Packets without a proper head are dropped,
/// and of the others those that `accept` says no to, by where they came from.
pub(super) fn decapsulate(
    batch: &mut PacketBatch,
    old: usize,
    room: Room,
    mut accept: impl FnMut(&Target) -> bool,
) {
    for index in 0..batch.len() {
        let Some(mut packet) = batch.pop() else { return };
        if index < old {
            batch.push(packet);
            continue;
        }
        if packet.segment == 0 {
            let Ok((peer, head)) = decode_datagram(&packet.data) else { continue };
            if !accept(&packet.peer) {
                continue;
            }
            packet.data.advance(head);
            packet.peer = peer;
            batch.push(packet);
            continue;
        }
        for datagram in packet.payloads() {
            let Ok((peer, head)) = decode_datagram(datagram) else { continue };
            if !accept(&packet.peer) {
                continue;
            }
            let payload = &datagram[head..];
            let mut data = Buf::new(payload.len(), room.head, room.tail);
            data.append(payload);
            batch.push(Packet::new(data, peer));
        }
    }
}

/// What this layer wants around payloads that go to `below`.
pub(super) fn room(peer: Option<&Target>, below: Room) -> Room {
    let head = peer.map_or(HEAD, |peer| datagram_head_len(peer).max(HEAD));
    Room { head, ..Room::NONE }.around(below)
}
