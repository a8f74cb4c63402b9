//! The primitives, by the names that the paper gives them.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use blake2::digest::{Digest, FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac};
use chacha20::cipher::consts::U16;
use zeroize::Zeroize;

/// Bytes of a hash, and of a key.
pub(crate) const HASH: usize = 32;
/// Bytes of a MAC, and of a cookie.
pub(crate) const MAC: usize = 16;
/// Bytes of an authentication tag.
pub(crate) const TAG: usize = 16;

/// 32 secret bytes. They are wiped when it is dropped, and never shown.
#[derive(Clone, Default)]
pub struct Key(pub [u8; HASH]);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What is wrong with a message: that it does not open, or that a key in it is none. It is never said which.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Wrong;

pub(crate) fn hash(parts: &[&[u8]]) -> [u8; HASH] {
    let mut hash = Blake2s256::new();
    parts.iter().for_each(|part| Update::update(&mut hash, part));
    hash.finalize_fixed().into()
}

pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
    let mut mac =
        Blake2sMac::<U16>::new_from_slice(key).expect("keys here have 16 or 32 bytes, which it takes");
    parts.iter().for_each(|part| Update::update(&mut mac, part));
    mac.finalize_fixed().into()
}

/// HMAC of RFC 2104 with BLAKE2s, whose block has 64 bytes.
fn hmac(key: &[u8; HASH], parts: &[&[u8]]) -> [u8; HASH] {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(key).for_each(|(to, from)| *to ^= from);
        block
    };
    let (mut inner, mut outer) = (pad(0x36), pad(0x5c));
    let mut all: Vec<&[u8]> = vec![&inner];
    all.extend(parts);
    let digest = hash(&all);
    let result = hash(&[&outer, &digest]);
    inner.zeroize();
    outer.zeroize();
    result
}

/// HKDF with `N` outputs.
pub(crate) fn kdf<const N: usize>(chaining: &Key, input: &[u8]) -> [Key; N] {
    let secret = Key(hmac(&chaining.0, &[input]));
    let mut previous = Key::default();
    std::array::from_fn(|at| {
        let number = [at as u8 + 1];
        let output =
            if at == 0 { hmac(&secret.0, &[&number]) } else { hmac(&secret.0, &[&previous.0, &number]) };
        previous = Key(output);
        previous.clone()
    })
}

pub(crate) fn cipher(key: &Key) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key.0).expect("a key of 32 bytes"))
}

pub(crate) fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals `text` with a key that is used once, and puts the tag behind it.
pub(crate) fn seal_once(key: &Key, associated: &[u8], text: &[u8], out: &mut [u8]) {
    seal_with(&cipher(key), nonce(0), associated, text, out);
}

fn seal_with(cipher: &LessSafeKey, nonce: Nonce, associated: &[u8], text: &[u8], out: &mut [u8]) {
    let (sealed, tag) = out.split_at_mut(text.len());
    sealed.copy_from_slice(text);
    let made = cipher.seal_in_place_separate_tag(nonce, Aad::from(associated), sealed);
    tag.copy_from_slice(made.expect("short enough").as_ref());
}

/// Opens what [`seal_once`] has made.
pub(crate) fn open_once<const N: usize>(
    key: &Key,
    associated: &[u8],
    sealed: &[u8],
) -> Result<[u8; N], Wrong> {
    open_with(&cipher(key), nonce(0), associated, sealed)
}

fn open_with<const N: usize>(
    cipher: &LessSafeKey,
    nonce: Nonce,
    associated: &[u8],
    sealed: &[u8],
) -> Result<[u8; N], Wrong> {
    let mut bytes = sealed.to_vec();
    let text = cipher.open_in_place(nonce, Aad::from(associated), &mut bytes).map_err(|_| Wrong)?;
    (&*text).try_into().map_err(|_| Wrong)
}

/// XChaCha20-Poly1305: the first part of the nonce makes a key of its own (draft-irtf-cfrg-xchacha, section 2).
fn extended(key: &[u8; HASH], nonce: &[u8; 24]) -> (LessSafeKey, Nonce) {
    let (front, back) = nonce.split_first_chunk::<16>().expect("24 bytes have 16");
    let sub = Key(chacha20::hchacha::<chacha20::R20>(key.into(), front.into()).into());
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(back);
    (cipher(&sub), Nonce::assume_unique_for_key(bytes))
}

pub(crate) fn seal_extended(
    key: &[u8; HASH],
    nonce: &[u8; 24],
    associated: &[u8],
    text: &[u8],
    out: &mut [u8],
) {
    let (cipher, nonce) = extended(key, nonce);
    seal_with(&cipher, nonce, associated, text, out);
}

pub(crate) fn open_extended<const N: usize>(
    key: &[u8; HASH],
    nonce: &[u8; 24],
    associated: &[u8],
    sealed: &[u8],
) -> Result<[u8; N], Wrong> {
    let (cipher, nonce) = extended(key, nonce);
    open_with(&cipher, nonce, associated, sealed)
}

/// Our side of an agreement.
pub(crate) struct Pair {
    private: PrivateKey,
    pub(crate) public: [u8; HASH],
}

impl Pair {
    pub(crate) fn new(private: &Key) -> Result<Self, Wrong> {
        let private = PrivateKey::from_private_key(&X25519, &private.0).map_err(|_| Wrong)?;
        let public = private.compute_public_key().map_err(|_| Wrong)?;
        let public = public.as_ref().try_into().map_err(|_| Wrong)?;
        Ok(Self { private, public })
    }

    /// What both ends know.
    pub(crate) fn agree(&self, public: &[u8; HASH]) -> Result<Key, Wrong> {
        let theirs = UnparsedPublicKey::new(&X25519, public);
        agreement::agree(&self.private, theirs, Wrong, |secret| secret.try_into().map(Key).map_err(|_| Wrong))
    }
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the random numbers of the system do not fail once it runs");
    bytes
}

/// Whether two MACs are the same; it takes as long either way.
pub(crate) fn same(ours: &[u8], theirs: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(ours, theirs).into()
}
