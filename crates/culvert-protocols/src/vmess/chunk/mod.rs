//! The chunks of a body: made and opened in the memory they lie in, or from one piece of memory to another within one pass
//! of the cipher. No sockets here.
//!
//! ```text
//! length  [hash]  payload  [tag]  [padding]
//!
//! length    2 bytes, masked or not; or sealed, 18 bytes. It counts all that follows; sealed, 16 less
//! hash      4 bytes, FNV-1a of the payload: with aes-128-cfb, where all of the chunk is inside the cipher
//! tag       16 bytes, with aes-128-gcm and chacha20-poly1305
//! padding   0 to 63 bytes, as many as both ends draw from SHAKE128
//! ```
//!
//! Each direction draws from a SHAKE128 of its own IV, two bytes at a time: first the padding, then the mask. A nonce is a
//! counter of 16 bits and 10 bytes of the direction's IV. After 65536 chunks nonces come again: the protocol has it so.

mod length;
mod open;
mod seal;

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use thiserror::Error;

use self::length::Lengths;
pub(super) use self::open::Opener;
pub(super) use self::seal::Sealer;
use super::cfb::Cfb;
use super::codec::{Options, Request, Security};
use super::keys::{BodyKeys, Key, expanded};

pub(super) use super::codec::TAG;

/// Most payload in a chunk of ours, as in sing-box. Others may send more.
pub(super) const MAX_PAYLOAD: usize = 15_000;
/// Bytes of the hash.
const SUM: usize = 4;

/// Why the bytes of a stream are no VMess.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub(super) enum Fault {
    #[error("vmess: the length of a chunk cannot be")]
    Length,
    #[error("vmess: a chunk was changed on the way")]
    Changed,
    #[error("vmess: the stream ended inside a chunk")]
    Cut,
    #[error("vmess: the server's answer does not belong to the request")]
    Answer,
    #[error("vmess: the stream has failed before")]
    Failed,
}

/// How one direction of a body is carried; `C` makes its chunks or opens them.
pub(super) enum Form<C> {
    /// As it is.
    Raw,
    /// In one stream of the cipher.
    Stream(Box<Cfb>),
    /// In chunks.
    Chunks(Box<C>),
}

/// A direction's part in a request.
pub(super) struct Direction<'a> {
    pub(super) request: &'a Request,
    /// Its keys.
    pub(super) keys: &'a BodyKeys,
    /// Where the cipher of a header goes on in the body.
    pub(super) cfb: Option<Box<Cfb>>,
}

impl Direction<'_> {
    /// The form in which this direction's bytes are made.
    pub(super) fn sealing(self) -> Form<Sealer> {
        self.form(Sealer::new)
    }

    /// The form from which they are taken.
    pub(super) fn opening(self) -> Form<Opener> {
        self.form(Opener::new)
    }

    fn form<C>(self, chunks: impl FnOnce(Lengths, Guard, Option<Box<Cfb>>) -> C) -> Form<C> {
        let Request { security, options, .. } = *self.request;
        let cfb = || self.cfb.unwrap_or_else(|| Box::new(Cfb::new(self.keys)));
        let aead = |cipher| Guard::Aead(Aead::new(cipher, &self.keys.key, &self.keys.iv));
        let (guard, cfb) = match security {
            Security::Aes128Gcm => (aead(Cipher::Aes128Gcm), None),
            Security::ChaCha20Poly1305 => (aead(Cipher::ChaCha20Poly1305), None),
            Security::None if options.has(Options::CHUNKS) => (Guard::Nothing, None),
            Security::None => return Form::Raw,
            Security::Aes128Cfb if options.has(Options::CHUNKS) => (Guard::Sum, Some(cfb())),
            Security::Aes128Cfb => return Form::Stream(cfb()),
        };
        Form::Chunks(Box::new(chunks(Lengths::new(self.request, self.keys), guard, cfb)))
    }
}

/// What proves a payload.
enum Guard {
    Nothing,
    Sum,
    Aead(Aead),
}

impl Guard {
    /// Bytes in front of the payload.
    fn head(&self) -> usize {
        match self {
            Self::Sum => SUM,
            Self::Nothing | Self::Aead(_) => 0,
        }
    }

    /// Bytes behind it.
    fn tail(&self) -> usize {
        match self {
            Self::Aead(_) => TAG,
            Self::Nothing | Self::Sum => 0,
        }
    }
}

#[derive(Clone, Copy)]
enum Cipher {
    Aes128Gcm,
    ChaCha20Poly1305,
}

/// A key and the nonces that go with it.
struct Aead {
    key: LessSafeKey,
    counter: u16,
    iv: [u8; 10],
}

impl Aead {
    fn new(cipher: Cipher, key: &Key, iv: &[u8; 16]) -> Self {
        let key = match cipher {
            Cipher::Aes128Gcm => UnboundKey::new(&AES_128_GCM, key),
            Cipher::ChaCha20Poly1305 => UnboundKey::new(&CHACHA20_POLY1305, &expanded(key)),
        };
        let key = LessSafeKey::new(key.expect("a key of the cipher's length"));
        let [_, _, iv @ .., _, _, _, _] = *iv;
        Self { key, counter: 0, iv }
    }

    /// Seals in place and returns the tag.
    fn seal(&mut self, data: &mut [u8]) -> Tag {
        let nonce = self.next_nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), data);
        tag.expect("no chunk is too long for the cipher")
    }

    /// Seals from `data` to `to`, which is as long and followed by the tag.
    fn seal_into(&mut self, data: &[u8], to: &mut [u8]) {
        let (nonce, (to, tag)) = (self.next_nonce(), to.split_at_mut(data.len()));
        let sealed = self.key.seal_out_of_place_scatter(nonce, Aad::empty(), data, to, &[], tag);
        sealed.expect("no chunk is too long for the cipher");
    }

    /// Opens in place what is followed by the tag.
    fn open(&mut self, sealed: &mut [u8]) -> Result<(), Fault> {
        let (data, tag) = sealed.split_at_mut(sealed.len() - TAG);
        let nonce = self.next_nonce();
        let opened = self.key.open_in_place_separate_tag(nonce, Aad::empty(), tag, data);
        opened.map(drop).map_err(|_| Fault::Changed)
    }

    /// Opens what is followed by the tag to `to`, which has the length of the data.
    fn open_into(&mut self, sealed: &[u8], to: &mut [u8]) -> Result<(), Fault> {
        let (data, tag) = sealed.split_at(sealed.len() - TAG);
        let nonce = self.next_nonce();
        let opened = self.key.open_separate_gather(nonce, Aad::empty(), data, tag, to);
        opened.map_err(|_| Fault::Changed)
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..2].copy_from_slice(&self.counter.to_be_bytes());
        nonce[2..].copy_from_slice(&self.iv);
        self.counter = self.counter.wrapping_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}
