//! TLS of inbounds and of services.

use super::check::{Source, Wanted, check_kernel, check_pair, check_pem, check_unused, check_words};
use super::{CipherSuite, Curve, Need, TlsVersion};
use crate::cx::Cx;
use crate::json::Node;
use crate::options::certificate_provider::{CertificateProviderReference, InlineAcme};
use crate::options::dial::{DialOptions, ServerOptions};
use crate::table::options;
use crate::value::{Base64, Dur, List, Pem, RealityKey, Secret, ShortId, Word, choices};

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
        min_version: Word<TlsVersion>,
        /// Highest version; 1.3 when absent.
        max_version: Word<TlsVersion>,
        /// Cipher suites by IANA name, for versions below 1.3.
        cipher_suites: List<Word<CipherSuite>>,
        /// Key exchange groups, best first.
        curve_preferences: List<Curve>,
        /// Certificate chain in PEM, as one text or as lines.
        certificate: Pem,
        /// File with the certificate chain, reloaded when it changes.
        certificate_path: String,
        /// Whether clients show a certificate.
        client_authentication: ClientAuthentication,
        /// Authorities for client certificates, in PEM.
        client_certificate: Pem,
        /// Files with authorities for client certificates.
        client_certificate_path: List<String>,
        /// SHA-256 of the public keys of accepted client certificates.
        client_certificate_public_key_sha256: List<Base64>,
        /// Private key in PEM, as one text or as lines.
        key: Secret<Pem>,
        /// File with the private key, reloaded when it changes.
        key_path: String,
        /// Lets the kernel encrypt (Linux, TLS 1.3).
        kernel_tx: bool,
        /// Lets the kernel decrypt (Linux, TLS 1.3).
        kernel_rx: bool,
        /// How long a handshake may take; 15s when absent.
        handshake_timeout: Dur,
        /// Where the certificate comes from, in place of `certificate` and `key`.
        certificate_provider: Option<CertificateProviderReference>,
        /// The old place of a certificate provider of type `acme`.
        acme: Option<Box<InlineAcme>> [hidden],
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
        key: Secret<Pem>,
        /// File with the keys.
        key_path: String,
    }

    /// REALITY of an inbound.
    pub struct InboundReality {
        /// Whether it is used.
        enabled: bool,
        /// The server shown to everybody else.
        handshake: RealityHandshake [keep],
        /// X25519 private key in URL-safe base64.
        private_key: Secret<RealityKey>,
        /// Accepted short ids, up to 16 hexadecimal digits each.
        short_id: Secret<List<ShortId>>,
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
}

choices! {
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
}

impl InboundTls {
    /// Checks the TLS options of an object, whose node is `parent`.
    pub(crate) fn check(tls: Option<&Self>, need: Need, parent: &Node, cx: &mut Cx<'_>) {
        let Some(tls) = need.used(tls, |tls| tls.enabled, parent, cx) else { return };
        let node = parent.get("tls").unwrap_or(parent);
        check_words([&tls.min_version, &tls.max_version], &tls.cipher_suites, node, cx);
        check_kernel(tls.kernel_tx, tls.kernel_rx, node, cx);
        match tls.reality.as_deref().filter(|reality| reality.enabled) {
            Some(reality) => tls.check_reality(reality, node, cx),
            None => {
                tls.check_certificate(node, cx);
                tls.check_client_authentication(node, cx);
                tls.check_ech(node, cx);
            }
        }
    }

    fn uses_acme(&self) -> bool {
        self.acme.as_ref().is_some_and(|acme| !acme.domain.is_empty())
    }

    fn uses_ech(&self) -> bool {
        self.ech.as_ref().is_some_and(|ech| ech.enabled)
    }

    fn certificate_source(&self) -> Source<'_> {
        let keys = ["certificate", "certificate_path"];
        Source { keys, inline: &self.certificate, path: &self.certificate_path }
    }

    fn key_source(&self) -> Source<'_> {
        Source { keys: ["key", "key_path"], inline: &self.key, path: &self.key_path }
    }

    fn check_certificate(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.uses_acme() {
            if self.certificate_provider.is_some() {
                cx.error(node.place_of("acme"), "`acme` and `certificate_provider` exclude each other");
            }
            let advice = "`acme` is old; write `\"certificate_provider\": {\"type\": \"acme\", ...}`";
            cx.warn(node.place_of("acme"), advice);
            return;
        }
        if self.certificate_provider.is_some() {
            return;
        }
        let (certificate, key) = (self.certificate_source(), self.key_source());
        match (certificate.is_given(), key.is_given()) {
            (false, false) if self.insecure => {}
            (false, _) => {
                let help = "`certificate`, `certificate_path` or `certificate_provider`";
                cx.error(node.place, format!("no certificate is given; add {help}"));
            }
            (true, false) => {
                cx.error(node.place, "no key is given for the certificate; add `key` or `key_path`")
            }
            (true, true) => check_pair(&certificate, &key, node, cx),
        }
    }

    fn check_client_authentication(&self, node: &Node, cx: &mut Cx<'_>) {
        if !self.client_certificate.is_empty() {
            let place = node.place_of("client_certificate");
            check_pem(&self.client_certificate.text(), Wanted::Certificate, place, cx);
        }
        for path in &self.client_certificate_path {
            let place = node.place_of("client_certificate_path");
            if let Some(content) = cx.read_file(place, path) {
                check_pem(&String::from_utf8_lossy(&content), Wanted::Certificate, place, cx);
            }
        }
        let verifies = matches!(
            self.client_authentication,
            ClientAuthentication::VerifyIfGiven | ClientAuthentication::RequireAndVerify
        );
        let trusts_somebody = !self.client_certificate.is_empty()
            || !self.client_certificate_path.is_empty()
            || !self.client_certificate_public_key_sha256.is_empty();
        if verifies && !trusts_somebody {
            let help =
                "`client_certificate`, `client_certificate_path` or `client_certificate_public_key_sha256`";
            let message = format!("there is nothing to verify client certificates with; add {help}");
            cx.error(node.place_of("client_authentication"), message);
        }
    }

    fn check_ech(&self, parent: &Node, cx: &mut Cx<'_>) {
        let Some(ech) = self.ech.as_ref().filter(|ech| ech.enabled) else { return };
        let node = parent.get("ech").unwrap_or(parent);
        let source = Source { keys: ["key", "key_path"], inline: &ech.key, path: &ech.key_path };
        if source.is_given() {
            source.check(Wanted::EchKeys, node, cx);
        } else {
            cx.error(node.place, "no ECH keys are given; add `key` or `key_path`");
        }
    }

    fn check_reality(&self, reality: &InboundReality, node: &Node, cx: &mut Cx<'_>) {
        let unused = [
            ("certificate", !self.certificate.is_empty()),
            ("certificate_path", !self.certificate_path.is_empty()),
            ("key", !self.key.is_empty()),
            ("key_path", !self.key_path.is_empty()),
            ("certificate_provider", self.certificate_provider.is_some()),
            ("acme", self.uses_acme()),
            ("curve_preferences", !self.curve_preferences.is_empty()),
            ("ech", self.uses_ech()),
        ];
        check_unused(unused, "cannot be used with REALITY", node, cx);
        let node = node.get("reality").unwrap_or(node);
        if reality.private_key.bytes().is_none() {
            let message = "`private_key` is not an X25519 key: 32 bytes in URL-safe base64 without padding";
            cx.error(node.place_of("private_key"), message);
        }
        if reality.short_id.iter().any(|id| id.bytes().is_none()) {
            cx.error(
                node.place_of("short_id"),
                "a short id has up to 16 hexadecimal digits, two for each byte",
            );
        }
    }
}
