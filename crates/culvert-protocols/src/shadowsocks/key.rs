//! Keys: from passwords, and one from the other.
//!
//! ```text
//! AEAD    key = MD5 over and over of the password (EVP_BytesToKey)     subkey = HKDF-SHA1(key, salt, "ss-subkey")
//! 2022    key = base64                                                 subkey = BLAKE3 derive_key(context, key salt)
//! ```

use std::fmt;

use aws_lc_rs::{digest, hkdf};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use md5::{Digest, Md5};
use zeroize::Zeroizing;

use super::cipher::BLOCK;

const SESSION: &str = "shadowsocks 2022 session subkey";
const IDENTITY: &str = "shadowsocks 2022 identity subkey";

/// Standard base64 with padding. As in Go the last character may carry bits that say nothing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A key of at most 32 bytes. It is wiped when it goes.
#[derive(Clone)]
pub(super) struct Secret {
    bytes: Zeroizing<[u8; 32]>,
    len: usize,
}

impl Secret {
    fn new(len: usize) -> Self {
        Self { bytes: Zeroizing::new([0; 32]), len }
    }

    /// A key from the bytes themselves; `None` where there are not as many as it needs.
    fn from_bytes(bytes: &[u8], len: usize) -> Option<Self> {
        let mut key = Self::new(len);
        (bytes.len() == len).then(|| key.bytes[..len].copy_from_slice(bytes))?;
        Some(key)
    }

    /// The key of the first AEAD edition that follows from a password.
    pub(super) fn of_password(password: &str, len: usize) -> Self {
        let mut key = Self::new(len);
        let mut digest: Option<[u8; 16]> = None;
        for part in key.bytes[..len].chunks_mut(16) {
            let mut md5 = Md5::new();
            if let Some(before) = digest {
                md5.update(before);
            }
            md5.update(password.as_bytes());
            let next: [u8; 16] = md5.finalize().into();
            part.copy_from_slice(&next[..part.len()]);
            digest = Some(next);
        }
        key
    }

    /// A key of the 2022 edition as a client has it: exactly as long as it must be.
    pub(super) fn of_base64(text: &str, len: usize) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64.decode(text.replace(['\r', '\n'], "")).ok()?);
        Self::from_bytes(&bytes, len)
    }

    /// A key of the 2022 edition as a server has it: one that is too long is hashed down, as sing-box does.
    pub(super) fn of_base64_or_longer(text: &str, len: usize) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64.decode(text.replace(['\r', '\n'], "")).ok()?);
        if bytes.len() > len {
            return Self::from_bytes(&digest::digest(&digest::SHA256, &bytes).as_ref()[..len], len);
        }
        Self::from_bytes(&bytes, len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The subkey of the first AEAD edition.
    pub(super) fn subkey(&self, salt: &[u8]) -> Self {
        struct Len(usize);
        impl hkdf::KeyType for Len {
            fn len(&self) -> usize {
                self.0
            }
        }
        let mut subkey = Self::new(self.len);
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA1_FOR_LEGACY_USE_ONLY, salt).extract(self.bytes());
        let filled = prk
            .expand(&[b"ss-subkey"], Len(self.len))
            .and_then(|okm| okm.fill(&mut subkey.bytes[..self.len]));
        filled.expect("no key is longer than HKDF can make");
        subkey
    }

    /// The subkey of the 2022 edition for a stream with this salt, or an association with this id.
    pub(super) fn session_subkey(&self, salt: &[u8]) -> Self {
        self.derived(SESSION, salt)
    }

    /// The subkey that hides who a client is, in a stream with this salt.
    pub(super) fn identity_subkey(&self, salt: &[u8]) -> Self {
        self.derived(IDENTITY, salt)
    }

    fn derived(&self, context: &str, salt: &[u8]) -> Self {
        let mut subkey = Self::new(self.len);
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(self.bytes()).update(salt);
        hasher.finalize_xof().fill(&mut subkey.bytes[..self.len]);
        subkey
    }

    /// By which a server finds a user.
    pub(super) fn hash(&self) -> [u8; BLOCK] {
        let mut hash = [0; BLOCK];
        hash.copy_from_slice(&blake3::hash(self.bytes()).as_bytes()[..BLOCK]);
        hash
    }
}

/// Keys never reach a log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
