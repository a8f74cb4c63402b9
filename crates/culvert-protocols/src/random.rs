//! Random numbers for lengths.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

/// A random number below `bound`, which is not 0.
pub(crate) fn below(bound: u32) -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers no TLS connection has come about; a fixed length is then the least of all troubles.
    let _ = SystemRandom::new().fill(&mut bytes);
    u32::from_ne_bytes(bytes) % bound
}
