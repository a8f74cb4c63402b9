//! TLS, on the side of inbounds and of outbounds.

mod check;
pub mod inbound;
mod key_pair;
pub mod outbound;

pub(crate) use check::{Need, check_unused};
pub use inbound::InboundTls;
pub use outbound::OutboundTls;

use crate::value::choices;

choices! {
    /// Version of TLS.
    pub enum TlsVersion: "TLS version" {
        /// TLS 1.0.
        V1_0 = "1.0",
        /// TLS 1.1.
        V1_1 = "1.1",
        /// TLS 1.2.
        V1_2 = "1.2",
        /// TLS 1.3.
        V1_3 = "1.3",
    }

    /// Group of the key exchange.
    pub enum Curve: "curve" {
        /// NIST P-256.
        P256 = "P256",
        /// NIST P-384.
        P384 = "P384",
        /// NIST P-521.
        P521 = "P521",
        /// X25519.
        X25519 = "X25519",
        /// X25519 together with ML-KEM-768.
        X25519MlKem768 = "X25519MLKEM768",
    }

    /// Cipher suite by its IANA name. Those of TLS 1.3 are accepted and always on.
    pub enum CipherSuite: "cipher suite" {
        /// TLS 1.3.
        Aes128GcmSha256 = "TLS_AES_128_GCM_SHA256",
        /// TLS 1.3.
        Aes256GcmSha384 = "TLS_AES_256_GCM_SHA384",
        /// TLS 1.3.
        ChaCha20Poly1305Sha256 = "TLS_CHACHA20_POLY1305_SHA256",
        /// Up to TLS 1.2.
        EcdheEcdsaAes128CbcSha = "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
        /// Up to TLS 1.2.
        EcdheEcdsaAes256CbcSha = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
        /// Up to TLS 1.2.
        EcdheRsaAes128CbcSha = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
        /// Up to TLS 1.2.
        EcdheRsaAes256CbcSha = "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
        /// TLS 1.2.
        EcdheEcdsaAes128GcmSha256 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2.
        EcdheEcdsaAes256GcmSha384 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2.
        EcdheRsaAes128GcmSha256 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2.
        EcdheRsaAes256GcmSha384 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2.
        EcdheEcdsaChaCha20Poly1305Sha256 = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2.
        EcdheRsaChaCha20Poly1305Sha256 = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    }

    /// How a forged first message is kept from being taken for real by the server.
    pub enum SpoofMethod: "spoof method" {
        /// With a sequence number outside of the window.
        WrongSequence = "wrong-sequence",
        /// With a wrong checksum.
        WrongChecksum = "wrong-checksum",
        /// With a wrong acknowledgement number.
        WrongAck = "wrong-ack",
        /// With an MD5 signature nobody agreed on.
        WrongMd5 = "wrong-md5",
        /// With an outdated timestamp.
        WrongTimestamp = "wrong-timestamp",
    }
}
