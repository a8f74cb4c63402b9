//! A deterministic byte stream in which every loss, repetition, swap or flipped bit is noticed and located.
//!
//! The stream is a sequence of 64-bit words, the finaliser of SplitMix64 over `seed + index`, in little-endian
//! order. Each byte depends on its position, so a verifier that knows seed and position needs no copy of the data.

use std::fmt;

/// Step between the inputs of neighbouring words (the golden ratio in 64 bits).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills `into` with the stream of `seed` from byte `position` on.
pub fn fill(seed: u64, position: u64, into: &mut [u8]) {
    let (head, skip) = (position / 8, (position % 8) as usize);
    let first = (8 - skip).min(into.len());
    into[..first].copy_from_slice(&word(seed, head)[skip..skip + first]);
    for (index, chunk) in into[first..].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, head + 1 + index as u64)[..chunk.len()]);
    }
}

/// The first `length` bytes of the stream of `seed`.
#[must_use]
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(seed, 0, &mut bytes);
    bytes
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Compares a stream, piece by piece, with the pattern of one seed.
#[derive(Debug, Clone)]
pub struct Verifier {
    seed: u64,
    position: u64,
    scratch: Vec<u8>,
}

impl Verifier {
    /// Expects the stream of `seed` from its first byte on.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, position: 0, scratch: Vec::new() }
    }

    /// Bytes found right so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next piece of the stream.
    ///
    /// # Errors
    /// The place of the first byte that differs.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), Mismatch> {
        self.scratch.resize(data.len(), 0);
        fill(self.seed, self.position, &mut self.scratch);
        if let Some(offset) = data.iter().zip(&self.scratch).position(|(got, expected)| got != expected) {
            return Err(Mismatch {
                position: self.position + offset as u64,
                expected: self.scratch[offset],
                got: data[offset],
            });
        }
        self.position += data.len() as u64;
        Ok(())
    }
}

/// The first byte of a stream that is not what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Its offset from the start of the stream.
    pub position: u64,
    /// What the pattern has there.
    pub expected: u8,
    /// What arrived.
    pub got: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, expected, got } = self;
        write!(f, "stream differs at byte {position}: expected {expected:#04x}, got {got:#04x}")
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_stream() {
        let whole = bytes(7, 100);
        for start in 0..40 {
            for length in 0..40 {
                let mut piece = vec![0; length];
                fill(7, start as u64, &mut piece);
                assert_eq!(piece, whole[start..start + length], "{start} + {length}");
            }
        }
    }

    #[test]
    fn right_stream_is_accepted_in_any_pieces() {
        let whole = bytes(1, 1000);
        for size in [1, 3, 8, 64, 999] {
            let mut verifier = Verifier::new(1);
            for piece in whole.chunks(size) {
                verifier.feed(piece).unwrap();
            }
            assert_eq!(verifier.position(), 1000);
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let whole = bytes(2, 64);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Verifier::new(2).feed(&damaged).unwrap_err();
            assert_eq!(error.position, bit as u64 / 8);
        }
    }

    #[test]
    fn every_lost_repeated_or_swapped_byte_is_found() {
        let whole = bytes(3, 512);
        for at in 0..whole.len() - 16 {
            let mut lost = whole.clone();
            lost.remove(at);
            assert!(Verifier::new(3).feed(&lost).is_err(), "lost {at}");
            let mut repeated = whole.clone();
            repeated.insert(at, whole[at]);
            assert!(Verifier::new(3).feed(&repeated).is_err(), "repeated {at}");
        }
        for block in [8, 64, 128] {
            let mut swapped = whole.clone();
            let (left, right) = swapped.split_at_mut(256);
            left[..block].swap_with_slice(&mut right[..block]);
            assert_eq!(Verifier::new(3).feed(&swapped).unwrap_err().position, 0, "swapped {block}");
        }
    }

    #[test]
    fn streams_of_two_seeds_differ() {
        assert!(Verifier::new(4).feed(&bytes(5, 16)).is_err());
    }
}
