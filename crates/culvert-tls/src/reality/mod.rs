//! REALITY: TLS 1.3 in which server and client know one another by an X25519 key, and everybody else sees another site.
//!
//! ```text
//! shared   = X25519(key in the hello, key of the server)
//! auth key = HKDF-SHA256(shared, salt: random 0..20 of the hello, info: "REALITY"), 32 bytes
//! session id = AES-256-GCM(auth key, nonce: random 20..32, additional data: the hello with zeros for a session id)
//!    of  version 3 | 0 | seconds since 1970, 4 | short id 8
//! certificate: Ed25519, where the signature belongs HMAC-SHA512(auth key, public key)
//! ```
//!
//! The client sends a browser's hello whose session id only the owner of the server's key can open. A server that can
//! answers with a certificate for this one connection; whoever cannot is shown the site whose name the hello has, with
//! that site's certificate. So a client that gets the certificate of a real site knows that its server did not know it,
//! and says nothing there that a browser would not say: see `visit`.
//!
//! With `mldsa65` the certificate also has a signature by ML-DSA-65 over both hellos, which stands when X25519 falls.
//!
//! Sources: XTLS/REALITY (2026-09), XTLS/Xray-core 26.7 `transport/internet/reality`.

mod auth;
mod proof;
pub mod server;
#[cfg(test)]
pub(crate) mod tests;
mod visit;

pub use auth::{AuthKey, SessionId};
pub(crate) use proof::{NOT_PROVEN, Proof};
pub(crate) use visit::visit;

use std::fmt;

use crate::browser::ClientHello;

/// What a client of REALITY knows of its server.
#[derive(Clone, Eq, PartialEq)]
pub struct RealityClient {
    /// The server's X25519 key.
    pub public_key: [u8; 32],
    /// Who we are to the server.
    pub short_id: [u8; 8],
    /// The server's key for ML-DSA-65, if it must sign with one.
    pub mldsa65: Option<Vec<u8>>,
}

impl RealityClient {
    /// Seals the session id of a finished hello, and says what the server must prove. `None` if the hello has no X25519
    /// key, or the server's key is none.
    pub(crate) fn sign(&self, hello: &mut ClientHello) -> Option<Proof> {
        let shared = hello.agree_x25519(&self.public_key)?;
        let key = AuthKey::new(&shared, hello.random());
        key.seal(hello, SessionId::now(self.short_id))?;
        Some(Proof { key, mldsa65: self.mldsa65.clone() })
    }
}

impl fmt::Debug for RealityClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RealityClient")
    }
}
