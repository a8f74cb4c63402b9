//! The key of one connection, and the session id sealed with it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use zeroize::Zeroizing;

use crate::browser::ClientHello;

/// The version that is told: one that servers take which demand a certain age of their clients.
const VERSION: [u8; 3] = [26, 9, 9];

/// The key that a client and a server of REALITY share for one connection.
pub struct AuthKey(Zeroizing<[u8; 32]>);

/// What a sealed session id says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SessionId {
    /// The version of the client.
    pub version: [u8; 3],
    /// When it was made, in seconds since 1970.
    pub time: u32,
    /// Who the client is, in eight bytes, shorter ones filled with zeros.
    pub short_id: [u8; 8],
}

impl AuthKey {
    /// The key, of what X25519 makes of a key in the hello and the server's, and of the hello's random number.
    ///
    /// # Panics
    /// Never: the length of the key is one that HKDF gives.
    #[must_use]
    pub fn new(shared: &[u8; 32], random: &[u8; 32]) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        hkdf::Salt::new(hkdf::HKDF_SHA256, &random[..20])
            .extract(shared)
            .expand(&[b"REALITY"], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut *key))
            .expect("HKDF gives a key of the length of its hash");
        Self(key)
    }

    /// Seals the session id of a finished hello. `None` if the cryptography library fails.
    #[must_use]
    pub fn seal(&self, hello: &mut ClientHello, id: SessionId) -> Option<()> {
        hello.set_session_id([0; 32]);
        let mut sealed = Zeroizing::new([0; 32]);
        let (plain, tag) = sealed.split_at_mut(16);
        plain.copy_from_slice(&id.to_bytes());
        let made = self.cipher()?.seal_in_place_separate_tag(
            nonce(hello.random()),
            Aad::from(hello.message()),
            plain,
        );
        tag.copy_from_slice(made.ok()?.as_ref());
        hello.set_session_id(*sealed);
        Some(())
    }

    /// Opens the session id of a hello, as the handshake message came. `None` if it is not sealed with this key.
    #[must_use]
    pub fn open(&self, message: &[u8]) -> Option<SessionId> {
        let at = ClientHello::session_id_at();
        if message.get(at.start - 1) != Some(&32) {
            return None;
        }
        let mut sealed = <[u8; 32]>::try_from(message.get(at.clone())?).ok()?;
        let random = message[6..38].try_into().ok()?;
        let mut blank = message.to_vec();
        blank[at].fill(0);
        let opened = self.cipher()?.open_in_place(nonce(random), Aad::from(&blank), &mut sealed).ok()?;
        Some(SessionId::from_bytes((&*opened).try_into().ok()?))
    }

    /// What stands for the signature in a certificate for this connection with this Ed25519 key.
    #[must_use]
    pub fn sign(&self, public_key: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(hmac::sign(&self.hmac(), public_key).as_ref());
        signature
    }

    /// Whether that is what stands there; compared in constant time.
    #[must_use]
    pub fn verify(&self, public_key: &[u8], signature: &[u8]) -> bool {
        hmac::verify(&self.hmac(), public_key, signature).is_ok()
    }

    /// What is signed by ML-DSA-65: the certificate's key and both hellos.
    #[must_use]
    pub fn mldsa65_content(&self, public_key: &[u8], messages: [&[u8]; 2]) -> [u8; 64] {
        self.sign(&[public_key, messages[0], messages[1]].concat())
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA512, &*self.0)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*self.0).ok()?))
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthKey(***)")
    }
}

/// The end of a hello's random number: it comes once, as the key does.
fn nonce(random: &[u8; 32]) -> Nonce {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&random[20..]);
    Nonce::assume_unique_for_key(nonce)
}

impl SessionId {
    /// What a client says of itself at this moment.
    #[must_use]
    pub fn now(short_id: [u8; 8]) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { version: VERSION, time: time as u32, short_id }
    }

    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..3].copy_from_slice(&self.version);
        bytes[4..8].copy_from_slice(&self.time.to_be_bytes());
        bytes[8..].copy_from_slice(&self.short_id);
        bytes
    }

    fn from_bytes(bytes: &[u8; 16]) -> Self {
        let [x, y, z, _, a, b, c, d, short_id @ ..] = *bytes;
        Self { version: [x, y, z], time: u32::from_be_bytes([a, b, c, d]), short_id }
    }
}
