//! What keys are made of: the user's key, the key derivation of the AEAD header, and the keys of a body.

use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::rand;
use md5::{Digest, Md5};

/// An AES key, also the key from which others are derived.
pub(super) type Key = [u8; 16];

const COMMAND_KEY_SALT: &[u8] = b"c48619fe-8f02-49e0-b9e9-edf763e17e21";
const KDF_ROOT: &[u8] = b"VMess AEAD KDF";
/// Block of SHA-256 and of every HMAC over it.
const BLOCK: usize = 64;

/// The key that a user's id stands for.
pub(super) fn command_key(uuid: [u8; 16]) -> Key {
    md5(&[&uuid, COMMAND_KEY_SALT])
}

/// What is derived from `key` for the purpose that `path` names: a label, and for some what the connection chose.
pub(super) fn derive<const N: usize>(key: &[u8], path: &[&[u8]]) -> [u8; N] {
    let mut levels = vec![KDF_ROOT];
    levels.extend(path);
    let hash = nested(&levels, key);
    *hash.first_chunk().expect("nothing longer than a hash is derived")
}

/// HMAC over HMAC over .. over SHA-256: with levels, the HMAC keyed with the last of them, whose hash function is what
/// the others make. No level is longer than a block.
fn nested(levels: &[&[u8]], message: &[u8]) -> [u8; 32] {
    let Some((key, below)) = levels.split_last() else {
        let hash = digest::digest(&SHA256, message);
        return *hash.as_ref().first_chunk().expect("the length of a SHA-256 hash");
    };
    let padded = |byte: u8, message: &[u8]| {
        let mut bytes = Vec::with_capacity(BLOCK + message.len());
        bytes.extend_from_slice(key);
        bytes.resize(BLOCK, 0);
        bytes.iter_mut().for_each(|padded| *padded ^= byte);
        bytes.extend_from_slice(message);
        nested(below, &bytes)
    };
    padded(0x5c, &padded(0x36, message))
}

/// Key and IV of one direction's body. The other direction's, and those of lengths, follow from the client's.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct BodyKeys {
    pub(super) key: Key,
    pub(super) iv: [u8; 16],
}

impl BodyKeys {
    /// What a client chooses for its request.
    pub(super) fn random() -> Self {
        Self { key: random(), iv: random() }
    }

    /// Those of the response.
    pub(super) fn response(&self) -> Self {
        let hash = |bytes: &Key| {
            let hash = digest::digest(&SHA256, bytes);
            *hash.as_ref().first_chunk().expect("half of a SHA-256 hash")
        };
        Self { key: hash(&self.key), iv: hash(&self.iv) }
    }

    /// Those of the response where the request came by the legacy header.
    pub(super) fn legacy_response(&self) -> Self {
        Self { key: md5(&[&self.key]), iv: md5(&[&self.iv]) }
    }
}

/// The key of `ChaCha20-Poly1305` where the others have only 16 bytes.
pub(super) fn expanded(key: &Key) -> [u8; 32] {
    let first = md5(&[key]);
    let second = md5(&[&first]);
    let mut expanded = [0; 32];
    expanded[..16].copy_from_slice(&first);
    expanded[16..].copy_from_slice(&second);
    expanded
}

pub(super) fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// FNV-1a.
pub(super) fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the random numbers of the system do not fail once it runs");
    bytes
}
