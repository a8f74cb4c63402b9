//! The secrets of TLS 1.3 and how they follow from one another (RFC 8446 section 7).
//!
//! ```text
//! 0 ─▶ early ─▶ derived ─▶ handshake (with the shared secret) ─▶ derived ─▶ master
//!                          ├ c hs traffic                                  ├ c ap traffic
//!                          └ s hs traffic                                  └ s ap traffic
//! ```

use std::fmt;

use aws_lc_rs::{digest, hkdf, hmac};
use zeroize::Zeroizing;

use crate::record::{Cipher, TrafficSecret, expand_label};

/// A secret of one stage, from which the traffic secrets of that stage come.
pub struct Schedule {
    cipher: Cipher,
    secret: hkdf::Prk,
}

impl Schedule {
    /// The handshake secret, of what both sides agreed on. There is no earlier session.
    #[must_use]
    pub fn handshake(cipher: Cipher, shared: &[u8]) -> Self {
        let zeros = [0; 48];
        let secret = hkdf::Salt::new(cipher.hash(), &[]).extract(&zeros[..cipher.hash_len()]);
        Self { cipher, secret }.next(shared)
    }

    /// The master secret, of a handshake secret.
    #[must_use]
    pub fn master(self) -> Self {
        let zeros = [0; 48];
        let len = self.cipher.hash_len();
        self.next(&zeros[..len])
    }

    /// The traffic secret with this label, such as `c hs traffic`, after messages with this hash.
    ///
    /// # Panics
    /// Never: lengths are those of the cipher's hash.
    #[must_use]
    pub fn traffic(&self, label: &str, hash: &[u8]) -> TrafficSecret {
        let mut secret = Zeroizing::new([0; 48]);
        let secret = &mut secret[..self.cipher.hash_len()];
        expand_label(&self.secret, label, hash, secret);
        TrafficSecret::new(self.cipher, secret).expect("it is as long as the hash of its cipher")
    }

    fn next(&self, input: &[u8]) -> Self {
        let nothing = Transcript::new(self.cipher).hash();
        let mut salt = Zeroizing::new([0; 48]);
        let salt = &mut salt[..self.cipher.hash_len()];
        expand_label(&self.secret, "derived", nothing.as_ref(), salt);
        Self { cipher: self.cipher, secret: hkdf::Salt::new(self.cipher.hash(), salt).extract(input) }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schedule(***)")
    }
}

/// The key of a `Finished` message of the side with this traffic secret.
fn finished_key(secret: &TrafficSecret) -> hmac::Key {
    let mut key = Zeroizing::new([0; 48]);
    let key = &mut key[..secret.cipher().hash_len()];
    secret.expand("finished", key);
    hmac::Key::new(secret.cipher().hash().hmac_algorithm(), key)
}

/// The content of a `Finished` message of the side with this traffic secret, after messages with this hash.
#[must_use]
pub fn finished(secret: &TrafficSecret, hash: &[u8]) -> hmac::Tag {
    hmac::sign(&finished_key(secret), hash)
}

/// Whether `content` is that of a `Finished` message; compared in constant time.
#[must_use]
pub fn is_finished(secret: &TrafficSecret, hash: &[u8], content: &[u8]) -> bool {
    hmac::verify(&finished_key(secret), hash, content).is_ok()
}

/// The hash over all messages of a handshake.
#[derive(Clone)]
pub struct Transcript(digest::Context);

impl Transcript {
    /// Before the first message.
    #[must_use]
    pub fn new(cipher: Cipher) -> Self {
        Self(digest::Context::new(cipher.digest()))
    }

    /// After a server asked for another hello: the first one counts by its hash only (RFC 8446 section 4.4.1).
    #[must_use]
    pub fn after_retry(cipher: Cipher, first: &[u8]) -> Self {
        const MESSAGE_HASH: u8 = 254;
        let hash = digest::digest(cipher.digest(), first);
        let mut transcript = Self::new(cipher);
        transcript.add(&[MESSAGE_HASH, 0, 0, cipher.hash_len() as u8]);
        transcript.add(hash.as_ref());
        transcript
    }

    /// Adds a whole message.
    pub fn add(&mut self, message: &[u8]) {
        self.0.update(message);
    }

    /// The hash so far.
    #[must_use]
    pub fn hash(&self) -> digest::Digest {
        self.0.clone().finish()
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transcript")
    }
}

/// What a server (or client) signs in a `CertificateVerify` of TLS 1.3, after messages with this hash.
#[must_use]
pub fn signed_content(is_server: bool, hash: &[u8]) -> Vec<u8> {
    let who = if is_server { "server" } else { "client" };
    let context = format!("TLS 1.3, {who} CertificateVerify\0");
    [&[b' '; 64][..], context.as_bytes(), hash].concat()
}
