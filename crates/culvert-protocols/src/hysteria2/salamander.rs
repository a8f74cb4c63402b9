//! Salamander: every datagram looks like random bytes.
//!
//! ```text
//! salt[8]  packet XOR BLAKE2b-256(password, salt) over and over
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use culvert_quic::Disguise;

const SALT: usize = 8;
type Hash = Blake2b<U32>;

/// See the module.
pub(crate) struct Salamander {
    /// Fed with the password.
    keyed: Hash,
    /// Salts are numbers from somewhere on, mixed: they must differ and look like nothing, and need not be a secret.
    next: AtomicU64,
}

impl Salamander {
    pub(crate) fn new(password: &[u8]) -> Self {
        let mut start = [0; 8];
        // All that a fixed start could tell is that it is one.
        let _ = aws_lc_rs::rand::fill(&mut start);
        Self { keyed: Hash::new_with_prefix(password), next: AtomicU64::new(u64::from_ne_bytes(start)) }
    }

    fn key(&self, salt: &[u8]) -> [u8; 32] {
        self.keyed.clone().chain_update(salt).finalize().into()
    }

    fn salt(&self) -> [u8; SALT] {
        // The mixing of SplitMix64, which maps each number to another one.
        let mut number = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ number >> 31).to_ne_bytes()
    }

    fn wrap_with(&self, salt: [u8; SALT], datagram: &[u8], to: &mut Vec<u8>) {
        to.extend(salt);
        let start = to.len();
        to.extend(datagram);
        apply(&self.key(&salt), &mut to[start..]);
    }
}

fn apply(key: &[u8; 32], bytes: &mut [u8]) {
    let (words, _) = key.as_chunks::<8>();
    let (blocks, rest) = bytes.as_chunks_mut::<32>();
    for block in blocks {
        let (parts, _) = block.as_chunks_mut::<8>();
        for (part, word) in parts.iter_mut().zip(words) {
            *part = (u64::from_ne_bytes(*part) ^ u64::from_ne_bytes(*word)).to_ne_bytes();
        }
    }
    rest.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
}

impl Disguise for Salamander {
    fn overhead(&self) -> usize {
        SALT
    }

    fn wrap(&self, datagram: &[u8], to: &mut Vec<u8>) {
        self.wrap_with(self.salt(), datagram, to);
    }

    fn unwrap(&self, datagram: &mut [u8]) -> Option<usize> {
        let (salt, rest) = datagram.split_at_mut_checked(SALT)?;
        if rest.is_empty() {
            return None;
        }
        apply(&self.key(salt), rest);
        Some(SALT)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_vector_both_ways() {
        let salamander = Salamander::new(b"cry_me");
        let salt = [0, 1, 2, 3, 4, 5, 6, 7];
        let plain: Vec<u8> = (0xc0..0xe8).collect();
        let mut wrapped = Vec::new();
        salamander.wrap_with(salt, &plain, &mut wrapped);
        let hex: String = wrapped.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "00010203040506078778eb13d57566623ea222e0e3c59e87e730d9d0db06f04ae0e2ec736cff4772a758cb33f5554642"
        );
        assert_eq!(salamander.unwrap(&mut wrapped), Some(8));
        assert_eq!(wrapped[8..], plain);
    }

    #[test]
    fn what_is_too_short_is_dropped_and_salts_differ() {
        let salamander = Salamander::new(b"x");
        for len in 0..=8 {
            assert_eq!(salamander.unwrap(&mut vec![1; len]), None);
        }
        let salts: HashSet<_> = (0..10_000).map(|_| salamander.salt()).collect();
        assert_eq!(salts.len(), 10_000);
    }
}
