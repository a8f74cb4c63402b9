//! The keys of a session, and the datagrams that they make.
//!
//! ```text
//!  0 type 4, three bytes that are zero or agreed on · 4 receiver · 8 counter · 16 packet, sealed · tag, 16
//! ```
//!
//! Both work in place, and may be used by several threads at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::aead::{Aad, LessSafeKey};

use crate::crypto::{Key, cipher, nonce};
use crate::replay::Replay;
use crate::{HEAD, TAG};

/// The type of datagrams that carry packets.
pub(crate) const DATA: u8 = 4;

/// The key that seals.
pub struct SendKey {
    cipher: LessSafeKey,
    /// The receiver's name for the session.
    receiver: u32,
    reserved: [u8; 3],
    next: AtomicU64,
}

impl std::fmt::Debug for SendKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendKey(..)")
    }
}

impl SendKey {
    pub(crate) fn new(key: &Key, receiver: u32, reserved: [u8; 3]) -> Self {
        Self { cipher: cipher(key), receiver, reserved, next: AtomicU64::new(0) }
    }

    /// How many packets it has sealed, or promised to.
    pub(crate) fn used(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes `count` counters, and returns the first.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        self.next.fetch_add(count, Ordering::Relaxed)
    }

    /// Makes a datagram of a packet that lies in its place: between [`HEAD`] bytes before it and [`TAG`] behind it.
    /// `counter` is one that was reserved, and is used once.
    ///
    /// # Panics
    /// If there is less room.
    pub fn seal(&self, counter: u64, datagram: &mut [u8]) {
        let (head, rest) = datagram.split_at_mut(HEAD);
        head[0] = DATA;
        head[1..4].copy_from_slice(&self.reserved);
        head[4..8].copy_from_slice(&self.receiver.to_le_bytes());
        head[8..16].copy_from_slice(&counter.to_le_bytes());
        let (packet, tag) = rest.split_at_mut(rest.len() - TAG);
        let made = self.cipher.seal_in_place_separate_tag(nonce(counter), Aad::empty(), packet);
        tag.copy_from_slice(made.expect("a packet is short enough").as_ref());
    }
}

/// The key that opens.
pub struct ReceiveKey {
    cipher: LessSafeKey,
    seen: Mutex<Replay>,
}

impl std::fmt::Debug for ReceiveKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReceiveKey(..)")
    }
}

impl ReceiveKey {
    pub(crate) fn new(key: &Key) -> Self {
        Self { cipher: cipher(key), seen: Mutex::default() }
    }

    /// Opens a datagram in place. The packet then lies behind [`HEAD`] bytes, and what is returned is its length with its
    /// padding: 0 says only that the peer is there. `None` if it is not the peer's, or came before.
    pub fn open(&self, datagram: &mut [u8]) -> Option<usize> {
        let (head, sealed) = datagram.split_at_mut_checked(HEAD)?;
        let counter = u64::from_le_bytes(*head.last_chunk()?);
        if counter >= crate::peer::REJECT_AFTER_MESSAGES {
            return None;
        }
        let len = self.cipher.open_in_place(nonce(counter), Aad::empty(), sealed).ok()?.len();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.accept(counter).then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::tests::hex;

    fn key(text: &str) -> Key {
        Key(hex(text).try_into().unwrap())
    }

    #[test]
    fn datagrams_are_those_of_the_vectors() {
        let secret = key("a3816558087c65647b27402dab2b2634fcabf9a5d7cc133635c9c37615336807");
        let send = SendKey::new(&secret, 0x5566_7788, [0; 3]);
        let receive = ReceiveKey::new(&secret);
        let packet = hex("4500002000010000401166b80a0900020a09000115b30035000c000070696e67");
        let mut datagram = vec![0; HEAD + packet.len() + TAG];
        datagram[HEAD..HEAD + packet.len()].copy_from_slice(&packet);
        send.seal(send.reserve(1), &mut datagram);
        assert_eq!(
            datagram,
            hex(
                "04000000887766550000000000000000892ccc5ba915584df3ffb6649d210b2310727fcd041c0cd5420897f1b9bd5365c6c02a06226afdb31ed5855057a69559"
            )
        );
        let mut keepalive = vec![0; HEAD + TAG];
        send.seal(send.reserve(1), &mut keepalive);
        assert_eq!(keepalive, hex("04000000887766550100000000000000de23295f785347b3f9e22642f81cf7da"));
        assert_eq!(send.used(), 2);
        let again = datagram.clone();
        assert_eq!(receive.open(&mut keepalive), Some(0));
        assert_eq!(receive.open(&mut datagram), Some(packet.len()));
        assert_eq!(datagram[HEAD..HEAD + packet.len()], packet);
        assert_eq!(receive.open(&mut again.clone()), None, "a second time");
        for cut in 0..again.len() {
            assert_eq!(receive.open(&mut again[..cut].to_vec()), None);
        }
    }

    #[test]
    fn a_forgery_leaves_no_trace() {
        let secret = key("f3e39133bbd4643718e86ece63225f4e2c567422eae97ef8d0ee24a78557799a");
        let (send, receive) = (SendKey::new(&secret, 1, [1, 2, 3]), ReceiveKey::new(&secret));
        let mut datagram = vec![0; HEAD + 32 + TAG];
        send.seal(5, &mut datagram);
        assert_eq!(datagram[..4], [4, 1, 2, 3]);
        let mut forged = datagram.clone();
        forged[40] ^= 1;
        assert_eq!(receive.open(&mut forged), None);
        let mut far = datagram.clone();
        far[15] = 0x7f;
        assert_eq!(receive.open(&mut far), None, "a counter that is too high moves no window");
        assert_eq!(receive.open(&mut datagram), Some(32));
    }
}
