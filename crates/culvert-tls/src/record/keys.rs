//! The keys of one direction, how they follow from a traffic secret, and how they follow one another.

use std::fmt;

use aws_lc_rs::aead::{self, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hkdf};
use zeroize::Zeroizing;

use super::RecordError;

/// An AEAD of a TLS suite. The hash that goes with it in TLS 1.3 follows from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cipher {
    /// `TLS_AES_128_GCM_SHA256` and its relatives of TLS 1.2.
    Aes128Gcm,
    /// `TLS_AES_256_GCM_SHA384` and its relatives of TLS 1.2.
    Aes256Gcm,
    /// `TLS_CHACHA20_POLY1305_SHA256` and its relatives of TLS 1.2.
    ChaCha20Poly1305,
}

impl Cipher {
    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    pub(crate) fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
            Self::Aes256Gcm => hkdf::HKDF_SHA384,
        }
    }

    pub(crate) const fn hash_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => 32,
            Self::Aes256Gcm => 48,
        }
    }

    pub(crate) fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => &digest::SHA256,
            Self::Aes256Gcm => &digest::SHA384,
        }
    }

    /// Records that one key may seal: GCM loses its margin beyond (RFC 8446 section 5.5, rounded down).
    const fn records_per_key(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 24,
            Self::ChaCha20Poly1305 => u64::MAX,
        }
    }
}

/// A traffic secret of TLS 1.3: the keys of one direction and those that will follow come from it.
#[derive(Clone)]
pub struct TrafficSecret {
    cipher: Cipher,
    bytes: Zeroizing<[u8; 48]>,
}

impl TrafficSecret {
    /// Takes the secret as the handshake made it; `None` if it has not the length of the cipher's hash.
    #[must_use]
    pub fn new(cipher: Cipher, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != cipher.hash_len() {
            return None;
        }
        let mut secret = Self { cipher, bytes: Zeroizing::new([0; 48]) };
        secret.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(secret)
    }

    /// The secret after a key update.
    fn next(&self) -> Self {
        let mut next = Self { cipher: self.cipher, bytes: Zeroizing::new([0; 48]) };
        self.expand("traffic upd", &mut next.bytes[..self.cipher.hash_len()]);
        next
    }

    pub(crate) fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Fills `to` with what has this label, in an empty context.
    pub(crate) fn expand(&self, label: &str, to: &mut [u8]) {
        let secret = hkdf::Prk::new_less_safe(self.cipher.hash(), &self.bytes[..self.cipher.hash_len()]);
        expand_label(&secret, label, &[], to);
    }
}

/// HKDF-Expand-Label (RFC 8446 section 7.1). `context` is empty or a hash.
pub(crate) fn expand_label(secret: &hkdf::Prk, label: &str, context: &[u8], to: &mut [u8]) {
    struct Len(usize);
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    const PREFIX: &str = "tls13 ";
    let label_len = (PREFIX.len() + label.len()) as u8;
    let info: [&[u8]; 6] = [
        &(to.len() as u16).to_be_bytes(),
        &[label_len],
        PREFIX.as_bytes(),
        label.as_bytes(),
        &[context.len() as u8],
        context,
    ];
    secret
        .expand(&info, Len(to.len()))
        .and_then(|okm| okm.fill(to))
        .expect("HKDF gives up to 255 hashes, and no key is longer than two");
}

/// What a handshake leaves behind for one direction.
#[derive(Clone)]
pub enum Secret {
    /// TLS 1.3.
    Tls13(TrafficSecret),
    /// TLS 1.2: key and nonce base. With GCM the first four bytes of `iv` are the salt, the others a random start for
    /// the explicit part.
    Tls12 {
        /// Which AEAD.
        cipher: Cipher,
        /// Its key.
        key: Zeroizing<Vec<u8>>,
        /// The nonce of record 0.
        iv: [u8; 12],
    },
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficSecret(***)")
    }
}

/// Keys of one direction with the count of records they have protected.
pub(super) struct Keys {
    pub(super) key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    limit: u64,
    pub(super) form: Form,
}

/// The shape of a record.
pub(super) enum Form {
    Tls13(TrafficSecret),
    Tls12 { cipher: Cipher },
}

impl Keys {
    /// `sequence` records have been protected with these keys already.
    pub(super) fn new(secret: Secret, sequence: u64) -> Option<Self> {
        match secret {
            Secret::Tls13(secret) => {
                let cipher = secret.cipher;
                let mut key = Zeroizing::new([0; 32]);
                let key = &mut key[..cipher.aead().key_len()];
                let mut iv = [0; 12];
                secret.expand("key", key);
                secret.expand("iv", &mut iv);
                let key = LessSafeKey::new(UnboundKey::new(cipher.aead(), key).ok()?);
                let limit = cipher.records_per_key();
                Some(Self { key, iv, sequence, limit, form: Form::Tls13(secret) })
            }
            Secret::Tls12 { cipher, key, iv } => {
                let key = LessSafeKey::new(UnboundKey::new(cipher.aead(), &key).ok()?);
                Some(Self { key, iv, sequence, limit: u64::MAX, form: Form::Tls12 { cipher } })
            }
        }
    }

    /// Goes over to the next generation of keys; TLS 1.2 has none, and nothing happens.
    pub(super) fn update(&mut self) {
        if let Form::Tls13(secret) = &self.form {
            let next = Self::new(Secret::Tls13(secret.next()), 0);
            *self = next.expect("the secret has the cipher's length, as the one before it had");
        }
    }

    /// Whether it is time for a key update.
    pub(super) fn are_worn(&self) -> bool {
        self.sequence >= self.limit
    }

    /// Bytes of explicit nonce in front of each record's data.
    pub(super) fn explicit_nonce(&self) -> usize {
        match self.form {
            Form::Tls12 { cipher: Cipher::Aes128Gcm | Cipher::Aes256Gcm } => 8,
            Form::Tls12 { cipher: Cipher::ChaCha20Poly1305 } | Form::Tls13(_) => 0,
        }
    }

    /// The number of the record at hand.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The record at hand is done.
    pub(super) fn advance(&mut self) -> Result<(), RecordError> {
        self.sequence = self.sequence.checked_add(1).ok_or(RecordError::Exhausted)?;
        Ok(())
    }

    /// The nonce of the record at hand.
    pub(super) fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        nonce
    }

    /// The nonce of a record of TLS 1.2 whose sender chose its second part.
    pub(super) fn nonce_with(&self, explicit: &[u8; 8]) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].copy_from_slice(explicit);
        nonce
    }
}

/// The nonce as the cipher library wants it; every caller passes one that it uses once.
pub(super) fn once(nonce: [u8; 12]) -> Nonce {
    Nonce::assume_unique_for_key(nonce)
}

/// The additional data of a record of TLS 1.2.
pub(super) fn additional_data(sequence: u64, kind: u8, len: usize) -> [u8; 13] {
    let mut aad = [0; 13];
    aad[..8].copy_from_slice(&sequence.to_be_bytes());
    aad[8..11].copy_from_slice(&[kind, 3, 3]);
    aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
    aad
}
