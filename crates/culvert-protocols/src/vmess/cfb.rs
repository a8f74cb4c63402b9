//! AES-128 in CFB mode with 128 bits of feedback, as a stream: what it is given may be cut anywhere.

use aes::Aes128Enc;
use aes::cipher::{Block, BlockCipherEncrypt, KeyInit};

use super::keys::BodyKeys;

const BLOCK: usize = 16;

/// One direction of a stream.
pub(super) struct Cfb {
    cipher: Aes128Enc,
    /// The key stream of the block at hand; in front of `used`, what of the cipher text feeds the next one.
    register: Block<Aes128Enc>,
    used: usize,
}

impl Cfb {
    pub(super) fn new(keys: &BodyKeys) -> Self {
        Self { cipher: Aes128Enc::new(&keys.key.into()), register: keys.iv.into(), used: BLOCK }
    }

    pub(super) fn encrypt(&mut self, bytes: &mut [u8]) {
        self.run(bytes, |register, byte| {
            *byte ^= *register;
            *register = *byte;
        });
    }

    pub(super) fn decrypt(&mut self, bytes: &mut [u8]) {
        self.run(bytes, |register, byte| {
            let sealed = *byte;
            *byte ^= *register;
            *register = sealed;
        });
    }

    fn run(&mut self, mut bytes: &mut [u8], step: impl Fn(&mut u8, &mut u8)) {
        while !bytes.is_empty() {
            if self.used == BLOCK {
                self.cipher.encrypt_block(&mut self.register);
                self.used = 0;
            }
            let count = bytes.len().min(BLOCK - self.used);
            let (now, later) = bytes.split_at_mut(count);
            for (register, byte) in self.register[self.used..].iter_mut().zip(now) {
                step(register, byte);
            }
            self.used += count;
            bytes = later;
        }
    }
}
