//! The ciphers, and the chunks of streams that they seal.
//!
//! ```text
//! | length 2 | tag 16 |   | data | tag 16 |   ...
//! ```
//!
//! The nonce is a little-endian counter that begins with 0 and goes up with each seal.

use std::ops::Range;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use chacha20::{R20, hchacha};
use culvert_wire::{Buf, Room};
use zeroize::Zeroizing;

use crate::chunks::{Fault, Open, Seal};

/// Bytes of a tag, whatever the cipher.
pub(super) const TAG: usize = 16;
/// Bytes of a sealed length.
pub(super) const LENGTH: usize = 2 + TAG;
/// Bytes of a block of AES.
pub(super) const BLOCK: usize = 16;
/// Most bytes of data in a chunk of the first AEAD edition.
pub(super) const MAX_CHUNK: usize = 0x3FFF;
/// Most bytes of data in a chunk of the 2022 edition.
pub(super) const MAX_CHUNK_2022: usize = 0xFFFF;

/// An AEAD.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cipher {
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
    XChaCha20Poly1305,
}

impl Cipher {
    /// Bytes of a key, and of the salt from which it is derived.
    pub(super) const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes192Gcm => 24,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 | Self::XChaCha20Poly1305 => 32,
        }
    }

    const fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes192Gcm => &aead::AES_192_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 | Self::XChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// A key, ready to seal and open with any nonce.
pub(super) enum Key {
    Plain(LessSafeKey),
    /// XChaCha20-Poly1305: each nonce has a key of its own, derived from this one.
    Extended(Zeroizing<[u8; 32]>),
}

impl Key {
    /// `key` has the length that the cipher has.
    pub(super) fn new(cipher: Cipher, key: &[u8]) -> Self {
        if cipher == Cipher::XChaCha20Poly1305
            && let Ok(key) = key.try_into()
        {
            return Self::Extended(Zeroizing::new(key));
        }
        Self::Plain(plain_key(cipher, key))
    }

    /// The key and the nonce for one operation. Of the 24 bytes, plain ciphers use the first 12.
    fn with<T>(&self, nonce: &[u8; 24], operation: impl FnOnce(&LessSafeKey, Nonce) -> T) -> T {
        let mut short = [0; aead::NONCE_LEN];
        match self {
            Self::Plain(key) => {
                short.copy_from_slice(&nonce[..aead::NONCE_LEN]);
                operation(key, Nonce::assume_unique_for_key(short))
            }
            Self::Extended(key) => {
                let (mut input, mut subkey) = ([0; 16], Zeroizing::new([0; 32]));
                input.copy_from_slice(&nonce[..16]);
                subkey.copy_from_slice(&hchacha::<R20>((&**key).into(), (&input).into()));
                short[4..].copy_from_slice(&nonce[16..]);
                let key = plain_key(Cipher::XChaCha20Poly1305, &*subkey);
                operation(&key, Nonce::assume_unique_for_key(short))
            }
        }
    }

    /// Seals in place and returns the tag.
    pub(super) fn seal(&self, nonce: &[u8; 24], data: &mut [u8]) -> [u8; TAG] {
        let sealed = self.with(nonce, |key, nonce| key.seal_in_place_separate_tag(nonce, Aad::empty(), data));
        let mut tag = [0; TAG];
        tag.copy_from_slice(sealed.expect("no chunk or datagram is too long for a cipher").as_ref());
        tag
    }

    /// Opens in place: `data` is followed by its tag.
    pub(super) fn open(&self, nonce: &[u8; 24], data: &mut [u8]) -> Result<(), Fault> {
        let (data, tag) = data.split_last_chunk_mut::<TAG>().ok_or(Fault::Tag)?;
        let opened = self.with(nonce, |key, nonce| {
            key.open_in_place_separate_tag(nonce, Aad::empty(), tag, data).map(drop)
        });
        opened.map_err(|_| Fault::Tag)
    }

    /// Opens `data`, which is followed by its tag, into `to`, which is as long as the data.
    pub(super) fn open_into(&self, nonce: &[u8; 24], data: &[u8], to: &mut [u8]) -> Result<(), Fault> {
        let (data, tag) = data.split_last_chunk::<TAG>().ok_or(Fault::Tag)?;
        let opened =
            self.with(nonce, |key, nonce| key.open_separate_gather(nonce, Aad::empty(), data, tag, to));
        opened.map_err(|_| Fault::Tag)
    }
}

fn plain_key(cipher: Cipher, key: &[u8]) -> LessSafeKey {
    let key = UnboundKey::new(cipher.algorithm(), key);
    LessSafeKey::new(key.expect("keys are as long as their cipher wants"))
}

/// A key that counts its operations: one direction of a stream.
pub(super) struct Stream {
    key: Key,
    count: u64,
}

impl Stream {
    pub(super) fn new(key: Key) -> Self {
        Self { key, count: 0 }
    }

    fn nonce(&mut self) -> [u8; 24] {
        let mut nonce = [0; 24];
        nonce[..8].copy_from_slice(&self.count.to_le_bytes());
        self.count += 1;
        nonce
    }

    /// Seals what stands in front of the room for a tag at the end of `region`.
    pub(super) fn seal_region(&mut self, region: &mut [u8]) {
        let nonce = self.nonce();
        let (data, tag) = region.split_last_chunk_mut::<TAG>().expect("callers leave room for a tag");
        *tag = self.key.seal(&nonce, data);
    }

    /// Opens `data`, which ends with its tag, in place.
    pub(super) fn open_region(&mut self, data: &mut [u8]) -> Result<(), Fault> {
        let nonce = self.nonce();
        self.key.open(&nonce, data)
    }
}

/// Seals the chunks of a stream.
pub(super) struct Sealer {
    stream: Stream,
    /// Most bytes of data in one.
    max: usize,
}

impl Sealer {
    pub(super) fn new(stream: Stream, max: usize) -> Self {
        Self { stream, max }
    }
}

impl Seal for Sealer {
    fn room(&self) -> Room {
        Room { head: LENGTH, tail: TAG, max: self.max }
    }

    fn seal(&mut self, piece: &mut Buf) {
        let mut head = [0; LENGTH];
        head[..2].copy_from_slice(&(piece.len() as u16).to_be_bytes());
        self.stream.seal_region(&mut head);
        let nonce = self.stream.nonce();
        let tag = self.stream.key.seal(&nonce, piece);
        piece.append(&tag);
        piece.prepend(&head);
    }
}

/// Opens the chunks of a stream.
pub(super) struct Opener {
    stream: Stream,
    max: usize,
}

impl Opener {
    pub(super) fn new(stream: Stream, max: usize) -> Self {
        Self { stream, max }
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }
}

impl Open for Opener {
    const HEAD: usize = LENGTH;

    fn head(&mut self, head: &mut [u8]) -> Result<usize, Fault> {
        self.stream.open_region(head)?;
        let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        if len > self.max { Err(Fault::Length) } else { Ok(len + TAG) }
    }

    fn space_for(&self, len: usize) -> usize {
        len - TAG
    }

    fn open(&mut self, body: &mut [u8]) -> Result<Range<usize>, Fault> {
        self.stream.open_region(body)?;
        Ok(0..body.len() - TAG)
    }

    fn open_into(&mut self, body: &mut [u8], to: &mut [u8]) -> Result<usize, Fault> {
        let nonce = self.stream.nonce();
        self.stream.key.open_into(&nonce, body, to)?;
        Ok(to.len())
    }
}

/// The block cipher under an AEAD of the 2022 edition, for single blocks.
#[derive(Clone)]
pub(super) enum Blocks {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

impl Blocks {
    /// AES with a key of 16 or 32 bytes; `None` for any other.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        if let Ok(key) = <&[u8; 16]>::try_from(key) {
            return Some(Self::Aes128(Box::new(Aes128::new(key.into()))));
        }
        <&[u8; 32]>::try_from(key).ok().map(|key| Self::Aes256(Box::new(Aes256::new(key.into()))))
    }

    pub(super) fn encrypt(&self, block: &mut [u8; BLOCK]) {
        match self {
            Self::Aes128(cipher) => cipher.encrypt_block(block.into()),
            Self::Aes256(cipher) => cipher.encrypt_block(block.into()),
        }
    }

    pub(super) fn decrypt(&self, block: &mut [u8; BLOCK]) {
        match self {
            Self::Aes128(cipher) => cipher.decrypt_block(block.into()),
            Self::Aes256(cipher) => cipher.decrypt_block(block.into()),
        }
    }
}
