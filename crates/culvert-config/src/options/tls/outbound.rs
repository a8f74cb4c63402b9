//! TLS of outbounds, DNS servers and HTTP clients.

use super::check::{Source, Wanted, check_kernel, check_pair, check_unused, check_words};
use super::{CipherSuite, Curve, Need, SpoofMethod, TlsVersion};
use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Base64, Dur, List, MlDsa65Key, Pem, RealityKey, Secret, ShortId, Word, choices};

options! {
    /// TLS of an outbound.
    pub struct OutboundTls {
        /// Whether TLS is used; everything else is ignored without.
        enabled: bool,
        /// TLS library of the system in place of our own.
        engine: Word<TlsEngine>,
        /// Sends no server name.
        disable_sni: bool,
        /// Name of the server; its address when absent.
        server_name: String,
        /// Accepts any certificate.
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
        /// Trusted authorities in PEM, in place of the certificate store.
        certificate: Pem,
        /// File with trusted authorities, in place of the certificate store.
        certificate_path: String,
        /// SHA-256 of the public keys of accepted certificates.
        certificate_public_key_sha256: List<Base64>,
        /// Certificate of this client in PEM.
        client_certificate: Pem,
        /// File with the certificate of this client.
        client_certificate_path: String,
        /// Key of the client certificate in PEM.
        client_key: Secret<Pem>,
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
        /// How the forged message is kept from the server; `wrong-sequence` when absent.
        spoof_method: Word<SpoofMethod>,
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
        config: Pem,
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
        fingerprint: Word<Fingerprint>,
    }

    /// REALITY of an outbound.
    pub struct OutboundReality {
        /// Whether it is used.
        enabled: bool,
        /// X25519 public key of the server in URL-safe base64.
        public_key: RealityKey,
        /// Short id, up to 16 hexadecimal digits.
        short_id: Secret<ShortId>,
        /// ML-DSA-65 public key with which the server must sign too, in URL-safe base64. Not in sing-box.
        mldsa65_verify: Option<MlDsa65Key>,
    }
}

choices! {
    /// A TLS library.
    pub enum TlsEngine: "TLS engine" {
        /// Our own.
        Own = "go",
        /// The one of macOS and iOS.
        Apple = "apple",
        /// The one of Windows.
        Windows = "windows",
    }

    /// A browser to imitate.
    pub enum Fingerprint: "fingerprint" {
        /// A recent Chrome.
        Chrome = "chrome",
        /// A recent Firefox.
        Firefox = "firefox",
        /// Edge.
        Edge = "edge",
        /// Safari.
        Safari = "safari",
        /// 360 Browser.
        Browser360 = "360",
        /// QQ Browser.
        Qq = "qq",
        /// Safari on iOS.
        Ios = "ios",
        /// Android.
        Android = "android",
        /// One of the usual ones.
        Random = "random",
        /// Made up.
        Randomized = "randomized",
        /// The same as `chrome`.
        ChromePsk = "chrome_psk",
        /// The same as `chrome`.
        ChromePskShuffle = "chrome_psk_shuffle",
        /// The same as `chrome`.
        ChromePaddingPskShuffle = "chrome_padding_psk_shuffle",
        /// The same as `chrome`.
        ChromePq = "chrome_pq",
        /// The same as `chrome`.
        ChromePqPsk = "chrome_pq_psk",
        /// Chrome 120. This and what follows are names of Xray, for those who want an older hello.
        Chrome120 = "hellochrome_120",
        /// Chrome 131.
        Chrome131 = "hellochrome_131",
        /// Chrome 133 to 149.
        Chrome133 = "hellochrome_133",
        /// Firefox 120.
        Firefox120 = "hellofirefox_120",
        /// Firefox 148.
        Firefox148 = "hellofirefox_148",
        /// Safari 16.
        Safari16 = "hellosafari_16_0",
        /// Safari on iOS 14.
        Ios14 = "helloios_14",
        /// Edge 85.
        Edge85 = "helloedge_85",
    }
}

impl OutboundTls {
    /// Checks the TLS options of an object that connects to `server` and whose node is `parent`.
    pub(crate) fn check(tls: Option<&Self>, need: Need, server: &str, parent: &Node, cx: &mut Cx<'_>) {
        let Some(tls) = need.used(tls, |tls| tls.enabled, parent, cx) else { return };
        let node = parent.get("tls").unwrap_or(parent);
        if server.is_empty() && tls.server_name.is_empty() && !tls.insecure {
            cx.error(
                node.place,
                "there is no name to verify the server by; add `server_name`, or `insecure`",
            );
        }
        check_words([&tls.min_version, &tls.max_version], &tls.cipher_suites, node, cx);
        check_kernel(tls.kernel_tx, tls.kernel_rx, node, cx);
        tls.check_engine(node, cx);
        tls.check_authorities(node, cx);
        tls.check_client_certificate(node, cx);
        tls.check_spoof(server, node, cx);
        tls.check_ech(node, cx);
        tls.check_utls_and_reality(node, cx);
    }

    fn uses_ech(&self) -> bool {
        self.ech.as_ref().is_some_and(|ech| ech.enabled)
    }

    fn check_engine(&self, node: &Node, cx: &mut Cx<'_>) {
        self.engine.check("engine", node, cx);
        let (name, here) = match self.engine.get() {
            None | Some(TlsEngine::Own) => return,
            Some(TlsEngine::Apple) => ("Apple", cfg!(target_vendor = "apple")),
            Some(TlsEngine::Windows) => ("Windows", cfg!(target_os = "windows")),
        };
        if !here {
            cx.error(node.place_of("engine"), format!("this TLS engine only exists on {name} systems"));
        }
    }

    fn check_authorities(&self, node: &Node, cx: &mut Cx<'_>) {
        let keys = ["certificate", "certificate_path"];
        let source = Source { keys, inline: &self.certificate, path: &self.certificate_path };
        if source.is_given() && !self.certificate_public_key_sha256.is_empty() {
            let message = "`certificate_public_key_sha256` excludes `certificate` and `certificate_path`";
            cx.error(node.place_of("certificate_public_key_sha256"), message);
        }
        source.check(Wanted::Certificate, node, cx);
    }

    fn check_client_certificate(&self, node: &Node, cx: &mut Cx<'_>) {
        let certificate = Source {
            keys: ["client_certificate", "client_certificate_path"],
            inline: &self.client_certificate,
            path: &self.client_certificate_path,
        };
        let key = Source {
            keys: ["client_key", "client_key_path"],
            inline: &self.client_key,
            path: &self.client_key_path,
        };
        match (certificate.is_given(), key.is_given()) {
            (false, false) => {}
            (true, true) => check_pair(&certificate, &key, node, cx),
            (given, _) => {
                let place = if given { certificate.place(node) } else { key.place(node) };
                let message = "a client certificate and its key belong together; \
                               give both `client_certificate` and `client_key`, or their paths";
                cx.error(place, message);
            }
        }
    }

    fn check_spoof(&self, server: &str, node: &Node, cx: &mut Cx<'_>) {
        self.spoof_method.check("spoof_method", node, cx);
        if self.spoof.is_empty() {
            if self.spoof_method.get().is_some() {
                cx.error(node.place_of("spoof_method"), "`spoof_method` needs `spoof`");
            }
            return;
        }
        if self.disable_sni {
            cx.error(node.place_of("spoof"), "`spoof` needs a server name to be sent, so not `disable_sni`");
        }
        let real = if self.server_name.is_empty() { server } else { &self.server_name };
        if self.spoof.eq_ignore_ascii_case(real) {
            cx.error(node.place_of("spoof"), "`spoof` must differ from the name of the server");
        }
    }

    fn check_ech(&self, parent: &Node, cx: &mut Cx<'_>) {
        let Some(ech) = self.ech.as_ref().filter(|ech| ech.enabled) else { return };
        let node = parent.get("ech").unwrap_or(parent);
        let source = Source { keys: ["config", "config_path"], inline: &ech.config, path: &ech.config_path };
        source.check(Wanted::EchConfigs, node, cx);
    }

    fn check_utls_and_reality(&self, node: &Node, cx: &mut Cx<'_>) {
        let utls = self.utls.as_ref().filter(|utls| utls.enabled);
        if let (Some(utls), Some(node)) = (utls, node.get("utls")) {
            utls.fingerprint.check("fingerprint", node, cx);
        }
        let Some(reality) = self.reality.as_ref().filter(|reality| reality.enabled) else { return };
        if utls.is_none() {
            let message = "REALITY needs a browser to imitate; add `\"utls\": {\"enabled\": true}`";
            cx.error(node.place_of("reality"), message);
        }
        if let Some((fingerprint @ (Fingerprint::Android | Fingerprint::Browser360), node)) =
            utls.and_then(|utls| utls.fingerprint.get()).zip(node.get("utls"))
        {
            let message = format!("`{}` speaks no TLS 1.3, which REALITY needs", fingerprint.name());
            cx.error(node.place_of("fingerprint"), message);
        }
        let unused = [("ech", self.uses_ech()), ("disable_sni", self.disable_sni)];
        check_unused(unused, "cannot be used with REALITY", node, cx);
        let node = node.get("reality").unwrap_or(node);
        if reality.public_key.bytes().is_none() {
            let message = "`public_key` is not an X25519 key: 32 bytes in URL-safe base64 without padding";
            cx.error(node.place_of("public_key"), message);
        }
        if reality.mldsa65_verify.as_ref().is_some_and(|key| key.bytes().is_none()) {
            let message =
                "`mldsa65_verify` is not an ML-DSA-65 key: 1952 bytes in URL-safe base64 without padding";
            cx.error(node.place_of("mldsa65_verify"), message);
        }
        if reality.short_id.bytes().is_none() {
            cx.error(
                node.place_of("short_id"),
                "a short id has up to 16 hexadecimal digits, two for each byte",
            );
        }
    }
}
