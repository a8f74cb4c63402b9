//! The key schedule of TLS 1.3 on the side of a server, without earlier sessions (RFC 8446 section 7.1).
//!
//! ```text
//! 0 ─extract─▶ early ─"derived"─▶ ─extract(shared)─▶ handshake ─"c hs traffic", "s hs traffic"
//!                                                      └─"derived"─▶ ─extract(0)─▶ main ─"c ap traffic", "s ap traffic"
//! ```

use aws_lc_rs::{digest, hkdf, hmac};
use zeroize::Zeroizing;

use crate::record::{Cipher, TrafficSecret};

/// Bytes of the longest hash.
const MAX_HASH: usize = 48;

/// A hash or a secret of one.
type Bytes = Zeroizing<Vec<u8>>;

/// The hash of a suite.
#[derive(Clone, Copy)]
struct Hash {
    digest: &'static digest::Algorithm,
    hmac: hmac::Algorithm,
    hkdf: hkdf::Algorithm,
}

impl Hash {
    fn of(cipher: Cipher) -> Self {
        match cipher {
            Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => {
                Self { digest: &digest::SHA256, hmac: hmac::HMAC_SHA256, hkdf: hkdf::HKDF_SHA256 }
            }
            Cipher::Aes256Gcm => {
                Self { digest: &digest::SHA384, hmac: hmac::HMAC_SHA384, hkdf: hkdf::HKDF_SHA384 }
            }
        }
    }

    fn len(self) -> usize {
        self.digest.output_len()
    }

    /// HKDF-Extract is HMAC with the salt for a key.
    fn extract(self, salt: &[u8], secret: &[u8]) -> Bytes {
        self.mac(salt, secret)
    }

    fn mac(self, key: &[u8], data: &[u8]) -> Bytes {
        Zeroizing::new(hmac::sign(&hmac::Key::new(self.hmac, key), data).as_ref().to_vec())
    }

    /// HKDF-Expand-Label, to as many bytes as the hash has.
    fn expand(self, secret: &[u8], label: &str, context: &[u8]) -> Bytes {
        const PREFIX: &[u8] = b"tls13 ";
        let len = (self.len() as u16).to_be_bytes();
        let info: [&[u8]; 6] = [
            &len,
            &[(PREFIX.len() + label.len()) as u8],
            PREFIX,
            label.as_bytes(),
            &[context.len() as u8],
            context,
        ];
        let mut out = Zeroizing::new(vec![0; self.len()]);
        let prk = hkdf::Prk::new_less_safe(self.hkdf, secret);
        prk.expand(&info, self.hkdf)
            .and_then(|okm| okm.fill(&mut out))
            .expect("one hash is never too much to ask for");
        out
    }
}

/// The messages so far, and what follows from them.
pub(super) struct Schedule {
    cipher: Cipher,
    hash: Hash,
    transcript: digest::Context,
}

/// The secrets of one phase.
pub(super) struct Secrets {
    phase: Bytes,
    pub(super) client: Bytes,
    pub(super) server: Bytes,
}

impl Schedule {
    pub(super) fn new(cipher: Cipher) -> Self {
        let hash = Hash::of(cipher);
        Self { cipher, hash, transcript: digest::Context::new(hash.digest) }
    }

    /// Takes a message into the transcript.
    pub(super) fn add(&mut self, message: &[u8]) {
        self.transcript.update(message);
    }

    /// The hash of all messages so far.
    pub(super) fn transcript(&self) -> digest::Digest {
        self.transcript.clone().finish()
    }

    /// Behind the `ServerHello`.
    pub(super) fn handshake(&self, shared: &[u8]) -> Secrets {
        let zeros = &[0; MAX_HASH][..self.hash.len()];
        let early = self.hash.extract(zeros, zeros);
        let salt = self.derived(&early);
        self.secrets(self.hash.extract(&salt, shared), ["c hs traffic", "s hs traffic"])
    }

    /// Behind the server's `Finished`.
    pub(super) fn application(&self, handshake: &Secrets) -> Secrets {
        let salt = self.derived(&handshake.phase);
        let main = self.hash.extract(&salt, &[0; MAX_HASH][..self.hash.len()]);
        self.secrets(main, ["c ap traffic", "s ap traffic"])
    }

    /// What a `Finished` at this place says.
    pub(super) fn finished(&self, traffic: &[u8]) -> Bytes {
        let key = self.hash.expand(traffic, "finished", &[]);
        self.hash.mac(&key, self.transcript().as_ref())
    }

    pub(super) fn traffic_secret(&self, secret: &[u8]) -> TrafficSecret {
        TrafficSecret::new(self.cipher, secret).expect("secrets are as long as the cipher's hash")
    }

    fn derived(&self, secret: &[u8]) -> Bytes {
        self.hash.expand(secret, "derived", digest::digest(self.hash.digest, &[]).as_ref())
    }

    fn secrets(&self, phase: Bytes, [client, server]: [&str; 2]) -> Secrets {
        let seen = self.transcript();
        let client = self.hash.expand(&phase, client, seen.as_ref());
        let server = self.hash.expand(&phase, server, seen.as_ref());
        Secrets { phase, client, server }
    }
}
