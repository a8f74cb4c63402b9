//! Connection ids, which say whose connection it is.
//!
//! ```text
//! chance[3]  proof[4]  shard, hidden[1]
//! ```
//!
//! The proof is a hash of the chance with a secret key, as in the library: what it does not fit was never given out here.
//! The shard is the number of the server's driver, hidden by another part of the hash.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Bytes of an id.
const LEN: usize = 8;
const CHANCE: usize = 3;
const PROOF: usize = 4;

/// Makes the ids of one driver.
#[derive(Clone, Copy)]
pub(crate) struct Ids {
    key: u64,
    shard: u8,
}

impl Ids {
    pub(crate) fn new(key: u64, shard: u8) -> Self {
        Self { key, shard }
    }

    fn hash(self, chance: &[u8]) -> [u8; 8] {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.key);
        hasher.write(chance);
        hasher.finish().to_le_bytes()
    }

    /// The shard of an id, if it was given out here.
    fn shard_of(self, id: &[u8]) -> Option<u8> {
        let id: &[u8; LEN] = id.try_into().ok()?;
        let hash = self.hash(&id[..CHANCE]);
        (id[CHANCE..CHANCE + PROOF] == hash[..PROOF]).then(|| id[LEN - 1] ^ hash[PROOF])
    }

    /// Which shard's connection a packet belongs to, if its id was given out here (RFC 9000 section 17).
    pub(crate) fn shard(self, packet: &[u8]) -> Option<u8> {
        const LONG: u8 = 0x80;
        let id = match packet.first()? & LONG {
            0 => packet.get(1..=LEN)?,
            _ => {
                let len = usize::from(*packet.get(5)?);
                packet.get(6..6 + len)?
            }
        };
        self.shard_of(id)
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LEN];
        // Without chance the library finds the id taken, and asks again.
        let _ = aws_lc_rs::rand::fill(&mut id[..CHANCE]);
        let hash = self.hash(&id[..CHANCE]);
        id[CHANCE..CHANCE + PROOF].copy_from_slice(&hash[..PROOF]);
        id[LEN - 1] = self.shard ^ hash[PROOF];
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.shard_of(id).map(|_| ()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_whose_it_is_to_those_who_have_the_key() {
        for shard in [0, 1, 7, 255] {
            let mut ids = Ids::new(42, shard);
            let id = ids.generate_cid();
            let other = Ids::new(42, 3);
            assert!(other.validate(&id).is_ok());
            let short = [&[0x41][..], &id[..], b"rest"].concat();
            assert_eq!(other.shard(&short), Some(shard));
            let long = [&[0xc3, 0, 0, 0, 1, 8][..], &id[..], b"rest"].concat();
            assert_eq!(other.shard(&long), Some(shard));
            assert_eq!(Ids::new(43, 3).shard(&short), None, "another key");
            for cut in 0..9 {
                assert_eq!(other.shard(&short[..cut]), None);
            }
            for cut in 0..14 {
                assert_eq!(other.shard(&long[..cut]), None);
            }
        }
        let mut ids = Ids::new(1, 0);
        assert_ne!(ids.generate_cid(), ids.generate_cid());
        assert_eq!(ids.shard(&[0xc3, 0, 0, 0, 1, 255, 1, 2]), None);
    }
}
