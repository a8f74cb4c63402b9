//! What a server shows to be the right one.
//!
//! ```text
//! certificate   ... | Ed25519 key 32 | ... | HMAC-SHA512 64
//! with ML-DSA   ... | at 126: signature 3309 | ... | HMAC-SHA512 64
//! ```

use aws_lc_rs::signature::{ML_DSA_65, UnparsedPublicKey};
use rustls::pki_types::CertificateDer;

use super::AuthKey;
use crate::der::Certificate;

/// Why a client of REALITY turns away.
pub(crate) const NOT_PROVEN: &str = "REALITY: this is not the server with that public key";

/// `SubjectPublicKeyInfo` of an Ed25519 key, in front of its 32 bytes.
const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const SIGNATURE: usize = 64;
/// Where the second signature stands in a certificate with one.
const MLDSA65: std::ops::Range<usize> = 126..126 + 3309;

/// What the certificate of a server must show.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) key: AuthKey,
    pub(crate) mldsa65: Option<Vec<u8>>,
}

impl Proof {
    /// Whether this certificate was made for this connection. `messages` are both hellos.
    pub(crate) fn is_given(&self, certificate: &CertificateDer<'_>, messages: [&[u8]; 2]) -> bool {
        let Some(public_key) = ed25519_key(certificate) else { return false };
        let Some(at) = certificate.len().checked_sub(SIGNATURE) else { return false };
        self.key.verify(public_key, &certificate[at..]) && self.is_signed(public_key, certificate, messages)
    }

    fn is_signed(&self, public_key: &[u8], certificate: &[u8], messages: [&[u8]; 2]) -> bool {
        let Some(mldsa65) = &self.mldsa65 else { return true };
        let Some(signature) = certificate.get(MLDSA65) else { return false };
        let content = self.key.mldsa65_content(public_key, messages);
        UnparsedPublicKey::new(&ML_DSA_65, mldsa65).verify(&content, signature).is_ok()
    }
}

fn ed25519_key<'a>(certificate: &'a CertificateDer<'_>) -> Option<&'a [u8]> {
    let parsed = Certificate::parse(certificate)?;
    parsed.public_key.strip_prefix(&ED25519).filter(|key| key.len() == 32)
}
