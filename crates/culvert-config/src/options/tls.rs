//! TLS, on the side of inbounds and of outbounds.

use super::dial::{DialOptions, ServerOptions};
use crate::table::options;
use crate::value::{Base64, Dur, List, Secret, choices};

options! {
    /// TLS of an inbound.
    pub struct InboundTls {
        /// Whether TLS is used; everything else is ignored without.
        enabled: bool,
        /// Name clients must ask for; also the name for ACME.
        server_name: String,
        /// Makes a self-signed certificate for each name when none is given.
        insecure: bool,
        /// Application protocols offered, best first.
        alpn: List<String>,
        /// Lowest version; 1.2 when absent.
        min_version: TlsVersion,
        /// Highest version; 1.3 when absent.
        max_version: TlsVersion,
        /// Cipher suites by IANA name, for versions below 1.3.
        cipher_suites: List<String>,
        /// Key exchange groups, best first.
        curve_preferences: List<Curve>,
        /// Certificate chain in PEM, as one text or as lines.
        certificate: List<String>,
        /// File with the certificate chain, reloaded when it changes.
        certificate_path: String,
        /// Whether clients show a certificate.
        client_authentication: ClientAuthentication,
        /// Authorities for client certificates, in PEM.
        client_certificate: List<String>,
        /// Files with authorities for client certificates.
        client_certificate_path: List<String>,
        /// SHA-256 of the public keys of accepted client certificates.
        client_certificate_public_key_sha256: List<Base64>,
        /// Private key in PEM, as one text or as lines.
        key: Secret<List<String>>,
        /// File with the private key, reloaded when it changes.
        key_path: String,
        /// Lets the kernel encrypt (Linux, TLS 1.3).
        kernel_tx: bool,
        /// Lets the kernel decrypt (Linux, TLS 1.3).
        kernel_rx: bool,
        /// How long a handshake may take; 15s when absent.
        handshake_timeout: Dur,
        /// Encrypted Client Hello.
        ech: Option<InboundEch>,
        /// REALITY, in place of a certificate.
        reality: Option<Box<InboundReality>>,
    }

    /// Encrypted Client Hello of an inbound.
    pub struct InboundEch {
        /// Whether it is used.
        enabled: bool,
        /// Keys in PEM.
        key: Secret<List<String>>,
        /// File with the keys.
        key_path: String,
    }

    /// REALITY of an inbound.
    pub struct InboundReality {
        /// Whether it is used.
        enabled: bool,
        /// The server shown to everybody else.
        handshake: RealityHandshake,
        /// X25519 private key in URL-safe base64.
        private_key: Secret<String>,
        /// Accepted short ids, up to 16 hexadecimal digits each.
        short_id: List<String>,
        /// How far the clocks may differ.
        max_time_difference: Dur,
    }

    /// The server a REALITY inbound borrows its handshake from.
    pub struct RealityHandshake {
        /// Its address.
        server: ServerOptions = ..,
        /// How to dial it.
        dial: DialOptions = ..,
    }

    /// TLS of an outbound.
    pub struct OutboundTls {
        /// Whether TLS is used; everything else is ignored without.
        enabled: bool,
        /// TLS library of the system in place of our own.
        engine: String,
        /// Sends no server name.
        disable_sni: bool,
        /// Name of the server; its address when absent.
        server_name: String,
        /// Accepts any certificate.
        insecure: bool,
        /// Application protocols offered, best first.
        alpn: List<String>,
        /// Lowest version; 1.2 when absent.
        min_version: TlsVersion,
        /// Highest version; 1.3 when absent.
        max_version: TlsVersion,
        /// Cipher suites by IANA name, for versions below 1.3.
        cipher_suites: List<String>,
        /// Key exchange groups, best first.
        curve_preferences: List<Curve>,
        /// Trusted authorities in PEM, in place of the certificate store.
        certificate: List<String>,
        /// File with trusted authorities, in place of the certificate store.
        certificate_path: String,
        /// SHA-256 of the public keys of accepted certificates.
        certificate_public_key_sha256: List<Base64>,
        /// Certificate of this client in PEM.
        client_certificate: List<String>,
        /// File with the certificate of this client.
        client_certificate_path: String,
        /// Key of the client certificate in PEM.
        client_key: Secret<List<String>>,
        /// File with the key of the client certificate.
        client_key_path: String,
        /// Splits the first message over TCP segments.
        fragment: bool,
        /// How long to wait between segments where the system cannot tell; 500ms when absent.
        fragment_fallback_delay: Dur,
        /// Splits the first message over TLS records.
        record_fragment: bool,
        /// Sends a forged first message with this server name ahead of the real one.
        spoof: String,
        /// How the forged message is kept from the server.
        spoof_method: Option<SpoofMethod>,
        /// Lets the kernel encrypt (Linux, TLS 1.3).
        kernel_tx: bool,
        /// Lets the kernel decrypt (Linux, TLS 1.3).
        kernel_rx: bool,
        /// How long a handshake may take; 15s when absent.
        handshake_timeout: Dur,
        /// Encrypted Client Hello.
        ech: Option<OutboundEch>,
        /// Imitates the first message of a browser.
        utls: Option<Utls>,
        /// REALITY, in place of certificate verification.
        reality: Option<OutboundReality>,
    }

    /// Encrypted Client Hello of an outbound.
    pub struct OutboundEch {
        /// Whether it is used.
        enabled: bool,
        /// Configurations in PEM; asked for by DNS when absent.
        config: List<String>,
        /// File with configurations.
        config_path: String,
        /// Name to ask DNS for; the server name when absent.
        query_server_name: String,
    }

    /// Imitation of a browser.
    pub struct Utls {
        /// Whether a browser is imitated.
        enabled: bool,
        /// Name of the browser; `chrome` when absent.
        fingerprint: String,
    }

    /// REALITY of an outbound.
    pub struct OutboundReality {
        /// Whether it is used.
        enabled: bool,
        /// X25519 public key of the server in URL-safe base64.
        public_key: String,
        /// Short id, up to 16 hexadecimal digits.
        short_id: String,
    }
}

choices! {
    /// Version of TLS.
    pub enum TlsVersion: "TLS version" {
        /// Not set.
        Unset = "",
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

    /// Whether clients show a certificate.
    pub enum ClientAuthentication: "client authentication" {
        /// They need not.
        No = "no",
        /// They are asked.
        Request = "request",
        /// They must show one, whichever.
        RequireAny = "require-any",
        /// What they show is verified.
        VerifyIfGiven = "verify-if-given",
        /// They must show one, which is verified.
        RequireAndVerify = "require-and-verify",
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
