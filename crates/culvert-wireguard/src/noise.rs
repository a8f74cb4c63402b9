//! The handshake: Noise_IKpsk2 with X25519, ChaCha20-Poly1305 and BLAKE2s.
//!
//! ```text
//! initiation, 148 bytes                              response, 92 bytes
//!   0 type 1, three zeros                              0 type 2, three zeros
//!   4 sender                                           4 sender
//!   8 ephemeral                                        8 receiver
//!  40 static, sealed                                  12 ephemeral
//!  88 time, sealed                                    44 nothing, sealed
//! 116 mac1                                            60 mac1
//! 132 mac2                                            76 mac2
//! ```
//!
//! Numbers are little-endian. Randomness and time are arguments. The MACs are put in and checked elsewhere.

use std::time::Duration;

use crate::crypto::{HASH, Key, Pair, TAG, Wrong, hash, kdf, open_once, seal_once};

pub(crate) const INITIATION: usize = 148;
pub(crate) const RESPONSE: usize = 92;

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// A moment as TAI64N has it: it only has to grow.
pub(crate) type Stamp = [u8; 12];

/// The stamp of a moment since 1970.
pub(crate) fn stamp(unix: Duration) -> Stamp {
    let mut stamp = [0; 12];
    stamp[..8].copy_from_slice(&(0x4000_0000_0000_000a + unix.as_secs()).to_be_bytes());
    // The last bits would only tell how busy we are.
    stamp[8..].copy_from_slice(&(unix.subsec_nanos() & !0xff_ffff).to_be_bytes());
    stamp
}

/// The running state of a handshake.
#[derive(Clone)]
struct Symmetric {
    chaining: Key,
    hash: [u8; HASH],
}

impl Symmetric {
    fn new(responder: &[u8; HASH]) -> Self {
        let chaining = hash(&[CONSTRUCTION]);
        let start = hash(&[&chaining, IDENTIFIER]);
        Self { chaining: Key(chaining), hash: hash(&[&start, responder]) }
    }

    fn mix_hash(&mut self, bytes: &[u8]) {
        self.hash = hash(&[&self.hash, bytes]);
    }

    fn mix_ephemeral(&mut self, public: &[u8; HASH]) {
        self.mix_hash(public);
        self.mix(public);
    }

    fn mix(&mut self, input: &[u8]) {
        let [chaining] = kdf(&self.chaining, input);
        self.chaining = chaining;
    }

    fn mix_for_key(&mut self, input: &[u8]) -> Key {
        let [chaining, key] = kdf(&self.chaining, input);
        self.chaining = chaining;
        key
    }

    fn mix_shared(&mut self, shared: &Key) -> Key {
        let [chaining, mixed, key] = kdf(&self.chaining, &shared.0);
        self.chaining = chaining;
        self.mix_hash(&mixed.0);
        key
    }

    fn seal(&mut self, key: &Key, text: &[u8], out: &mut [u8]) {
        seal_once(key, &self.hash, text, out);
        self.mix_hash(out);
    }

    fn open<const N: usize>(&mut self, key: &Key, sealed: &[u8]) -> Result<[u8; N], Wrong> {
        let text = open_once(key, &self.hash, sealed)?;
        self.mix_hash(sealed);
        Ok(text)
    }
}

/// The keys of a session, as one end has them.
pub(crate) struct Keys {
    pub(crate) send: Key,
    pub(crate) receive: Key,
}

/// An initiation that was sent.
pub(crate) struct Initiator {
    symmetric: Symmetric,
    ephemeral: Pair,
}

impl Initiator {
    /// Writes an initiation, without its MACs. `shared` is what the two static keys agree on.
    pub(crate) fn begin(
        own: &Pair,
        peer: &[u8; HASH],
        shared: &Key,
        ephemeral: Pair,
        index: u32,
        stamp: &Stamp,
        out: &mut [u8; INITIATION],
    ) -> Result<Self, Wrong> {
        let mut symmetric = Symmetric::new(peer);
        out.fill(0);
        out[0] = 1;
        out[4..8].copy_from_slice(&index.to_le_bytes());
        out[8..40].copy_from_slice(&ephemeral.public);
        symmetric.mix_ephemeral(&ephemeral.public);
        let key = symmetric.mix_for_key(&ephemeral.agree(peer)?.0);
        symmetric.seal(&key, &own.public, &mut out[40..88]);
        let key = symmetric.mix_for_key(&shared.0);
        symmetric.seal(&key, stamp, &mut out[88..116]);
        Ok(Self { symmetric, ephemeral })
    }

    /// Reads the response.
    pub(crate) fn finish(
        &self,
        own: &Pair,
        preshared: &Key,
        response: &[u8; RESPONSE],
    ) -> Result<Keys, Wrong> {
        let mut symmetric = self.symmetric.clone();
        let ephemeral: &[u8; HASH] = response[12..44].try_into().map_err(|_| Wrong)?;
        symmetric.mix_ephemeral(ephemeral);
        symmetric.mix(&self.ephemeral.agree(ephemeral)?.0);
        symmetric.mix(&own.agree(ephemeral)?.0);
        let key = symmetric.mix_shared(preshared);
        let [] = symmetric.open(&key, &response[44..60])?;
        let [send, receive] = kdf(&symmetric.chaining, &[]);
        Ok(Keys { send, receive })
    }
}

/// An initiation that has come: whose it is can be read before it is known whether it is his.
pub(crate) struct Responder {
    symmetric: Symmetric,
    ephemeral: [u8; HASH],
    sealed_stamp: [u8; 12 + TAG],
    /// The static key that the sender says is his.
    pub(crate) peer: [u8; HASH],
    /// The sender's name for the session.
    pub(crate) index: u32,
}

impl Responder {
    pub(crate) fn read(own: &Pair, initiation: &[u8; INITIATION]) -> Result<Self, Wrong> {
        let mut symmetric = Symmetric::new(&own.public);
        let part = |from: usize| -> Result<[u8; HASH], Wrong> {
            initiation[from..from + HASH].try_into().map_err(|_| Wrong)
        };
        let ephemeral = part(8)?;
        symmetric.mix_ephemeral(&ephemeral);
        let key = symmetric.mix_for_key(&own.agree(&ephemeral)?.0);
        let peer = symmetric.open(&key, &initiation[40..88])?;
        Ok(Self {
            symmetric,
            ephemeral,
            sealed_stamp: initiation[88..116].try_into().map_err(|_| Wrong)?,
            peer,
            index: u32::from_le_bytes([initiation[4], initiation[5], initiation[6], initiation[7]]),
        })
    }

    /// Proves that the sender has the key, by what the two static keys agree on, and says when he sent.
    pub(crate) fn verify(&mut self, shared: &Key) -> Result<Stamp, Wrong> {
        let key = self.symmetric.mix_for_key(&shared.0);
        self.symmetric.open(&key, &self.sealed_stamp.clone())
    }

    /// Writes the response, without its MACs.
    pub(crate) fn respond(
        mut self,
        preshared: &Key,
        ephemeral: &Pair,
        index: u32,
        out: &mut [u8; RESPONSE],
    ) -> Result<Keys, Wrong> {
        let symmetric = &mut self.symmetric;
        out.fill(0);
        out[0] = 2;
        out[4..8].copy_from_slice(&index.to_le_bytes());
        out[8..12].copy_from_slice(&self.index.to_le_bytes());
        out[12..44].copy_from_slice(&ephemeral.public);
        symmetric.mix_ephemeral(&ephemeral.public);
        symmetric.mix(&ephemeral.agree(&self.ephemeral)?.0);
        symmetric.mix(&ephemeral.agree(&self.peer)?.0);
        let key = symmetric.mix_shared(preshared);
        symmetric.seal(&key, &[], &mut out[44..60]);
        let [receive, send] = kdf(&symmetric.chaining, &[]);
        Ok(Keys { send, receive })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cookie::{Macs, mac1_key};

    // The sheet's vectors: made by an initiator that a sing-box 1.14.4 endpoint has answered.

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digits).collect()
    }

    pub(crate) fn from(first: u8) -> Key {
        Key(std::array::from_fn(|at| first + at as u8))
    }

    fn pair(first: u8) -> Pair {
        Pair::new(&from(first)).unwrap()
    }

    pub(crate) const INITIATION_BYTES: &str = "0100000044332211675dd574ed7789310b3d2e7681f3790b466c773b1521fecf36577958371ea52fd681fc07926e3e98db1e75fbe837df55dc8c47198ec6461fe3699e6cea51df153203c8753678da5e18497696a9a29b594f5f8572eed6d28087cd842044d93b9353739f8a0a4bdc35d0b7d43e76c12915c2c20607e4ac48e607648f1200000000000000000000000000000000";
    const RESPONSE_BYTES: &str = "020000008877665544332211493e82fc74464a59268817623d2053c5eb8e2cc4a988b4fee179ec6b010d531d55e4bf5274f94c13e3dfcc19db0aeb2ac2bbab85e7a750f27f3432292f0749de00000000000000000000000000000000";

    pub(crate) fn initiation() -> ([u8; INITIATION], Initiator) {
        let (server, client) = (pair(0), pair(0x20));
        let shared = client.agree(&server.public).unwrap();
        let mut bytes = [0; INITIATION];
        let time = stamp(Duration::from_secs(1_700_000_000));
        let made =
            Initiator::begin(&client, &server.public, &shared, pair(0x60), 0x1122_3344, &time, &mut bytes)
                .unwrap();
        Macs::new(mac1_key(&server.public)).sign(&mut bytes, None);
        (bytes, made)
    }

    #[test]
    fn keys_are_those_of_the_vectors() {
        assert_eq!(
            pair(0).public.to_vec(),
            hex("8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f")
        );
        assert_eq!(
            pair(0x20).public.to_vec(),
            hex("358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254")
        );
        let chaining = hash(&[CONSTRUCTION]);
        assert_eq!(
            chaining.to_vec(),
            hex("60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36")
        );
        assert_eq!(
            hash(&[&chaining, IDENTIFIER]).to_vec(),
            hex("2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3")
        );
    }

    #[test]
    fn the_handshake_is_that_of_the_vectors() {
        let (server, client) = (pair(0), pair(0x20));
        let (bytes, made) = initiation();
        assert_eq!(bytes.to_vec(), hex(INITIATION_BYTES));
        assert_eq!(
            made.symmetric.chaining.0.to_vec(),
            hex("135ae035c697dc893e71270a7c2c109197510194f41083b9ee1e2c0b5eb6601e")
        );
        assert_eq!(
            made.symmetric.hash.to_vec(),
            hex("7926b4ec6d92993c5bfd4ac6c07541b61c7d1862c8f2e9fe6892b0de9dd0ab41")
        );
        let mut responder = Responder::read(&server, &bytes).unwrap();
        assert_eq!((responder.peer, responder.index), (client.public, 0x1122_3344));
        let shared = server.agree(&client.public).unwrap();
        assert_eq!(responder.verify(&shared).unwrap(), stamp(Duration::from_secs(1_700_000_000)));
        let (preshared, mut response) = (from(0x40), [0; RESPONSE]);
        let theirs = responder.respond(&preshared, &pair(0x80), 0x5566_7788, &mut response).unwrap();
        Macs::new(mac1_key(&client.public)).sign(&mut response, None);
        assert_eq!(response.to_vec(), hex(RESPONSE_BYTES));
        let ours = made.finish(&client, &preshared, &response).unwrap();
        assert_eq!(
            ours.send.0.to_vec(),
            hex("a3816558087c65647b27402dab2b2634fcabf9a5d7cc133635c9c37615336807")
        );
        assert_eq!(
            ours.receive.0.to_vec(),
            hex("f3e39133bbd4643718e86ece63225f4e2c567422eae97ef8d0ee24a78557799a")
        );
        assert_eq!((ours.send.0, ours.receive.0), (theirs.receive.0, theirs.send.0));
    }

    #[test]
    fn another_shared_key_or_a_changed_byte_opens_nothing() {
        let (server, client) = (pair(0), pair(0x20));
        let (bytes, made) = initiation();
        for at in 8..116 {
            let mut changed = bytes;
            changed[at] ^= 1;
            let shared = server.agree(&client.public).unwrap();
            let read = Responder::read(&server, &changed).and_then(|mut one| one.verify(&shared));
            assert!(read.is_err(), "byte {at}");
        }
        assert!(Responder::read(&client, &bytes).is_err(), "for somebody else");
        let response: [u8; RESPONSE] = hex(RESPONSE_BYTES).try_into().unwrap();
        assert!(made.finish(&client, &Key::default(), &response).is_err(), "without the preshared key");
        let mut changed = response;
        changed[50] ^= 1;
        assert!(made.finish(&client, &from(0x40), &changed).is_err());
    }

    #[test]
    fn a_key_of_small_order_agrees_on_nothing() {
        assert!(pair(0).agree(&[0; 32]).is_err());
        let mut one = [0; 32];
        one[0] = 1;
        assert!(pair(0).agree(&one).is_err());
    }

    #[test]
    fn stamps_grow() {
        let early = stamp(Duration::new(1_700_000_000, 999_999_999));
        assert!(early < stamp(Duration::from_secs(1_700_000_001)));
        assert!(early > stamp(Duration::from_secs(1_700_000_000)));
    }
}
