//! From the options of a configuration to settings. Running objects never see options.

use std::path::PathBuf;
use std::sync::Arc;

use culvert_config::options::certificate::{CertificateOptions, CertificateStore};
use culvert_config::options::certificate_provider::{CertificateProviderReference, MadeProvider};
use culvert_config::options::tls;
use culvert_config::options::tls::inbound::ClientAuthentication as Asked;
use culvert_config::options::tls::inbound::InboundReality;
use culvert_config::options::tls::outbound::Fingerprint as Name;
use culvert_config::options::tls::{InboundTls, OutboundTls, TlsVersion};
use culvert_config::value::{Base64, List, Pem, PemSection, ShortId, Word};
use zeroize::Zeroizing;

use crate::browser::Fingerprint;
use crate::error::SettingsError;
use crate::identity::CertificateSource;
use crate::reality::RealityClient;
use crate::reality::server::{Policy, RealityAcceptor};
use crate::settings::{
    ClientAuthentication, ClientSettings, Curve, Ech, Fragment, Identity, KeyPairSource, Parameters,
    ServerSettings, Source, StoreBase, StoreSettings, Trust, Version,
};

/// The settings of a client. Whether the options are `enabled` is the caller's to ask.
///
/// # Errors
/// An option that is not built yet, or a file that cannot be read.
pub fn client(options: &OutboundTls) -> Result<ClientSettings, SettingsError> {
    not_built([
        ("engine", options.engine.get().is_some_and(|engine| engine != tls::outbound::TlsEngine::Own)),
        ("spoof", !options.spoof.is_empty()),
        // All the suites of its TLS 1.2 are ones that are not spoken here.
        ("utls.fingerprint 360", fingerprint(options) == Some(Fingerprint::Browser360)),
    ])?;
    if options.ech.as_ref().is_some_and(|ech| ech.enabled)
        && fingerprint(options).is_some_and(|fingerprint| !fingerprint.has_ech())
    {
        return Err(SettingsError::invalid("utls.fingerprint", "this browser has no ECH"));
    }
    let pins = &options.certificate_public_key_sha256;
    let trust = match source(&options.certificate, &options.certificate_path) {
        // A pin is looked at even where `insecure` stands beside it.
        _ if !pins.is_empty() => Trust::Pins(hashes(pins)),
        _ if options.insecure => Trust::Anyone,
        Some(source) => Trust::Authorities(source),
        None => Trust::Store,
    };
    let certificate = source(&options.client_certificate, &options.client_certificate_path);
    let key = source(&options.client_key, &options.client_key_path);
    let ech = match options.ech.as_ref().filter(|ech| ech.enabled) {
        Some(ech) => Some(match source(&ech.config, &ech.config_path) {
            Some(source) => Ech::Configs(ech_configs(&source)?),
            None => {
                Ech::FromDns { name: Some(ech.query_server_name.clone()).filter(|name| !name.is_empty()) }
            }
        }),
        None => None,
    };
    Ok(ClientSettings {
        parameters: parameters(
            &options.alpn,
            [&options.min_version, &options.max_version],
            &options.cipher_suites,
            &options.curve_preferences,
        )?,
        server_name: Some(options.server_name.clone()).filter(|name| !name.is_empty()),
        disable_sni: options.disable_sni,
        trust,
        certificate: certificate.zip(key).map(|(certificate, key)| KeyPairSource { certificate, key }),
        fragment: Fragment {
            segments: options.fragment,
            records: options.record_fragment,
            fallback_delay: options.fragment_fallback_delay.get(),
        },
        ech,
        fingerprint: fingerprint(options),
        reality: reality(options)?,
        handshake_timeout: options.handshake_timeout.get(),
    })
}

/// The browser to imitate.
fn fingerprint(options: &OutboundTls) -> Option<Fingerprint> {
    let utls = options.utls.as_ref().filter(|utls| utls.enabled)?;
    Some(match utls.fingerprint.get() {
        None
        | Some(
            Name::Chrome
            | Name::ChromePsk
            | Name::ChromePskShuffle
            | Name::ChromePaddingPskShuffle
            | Name::ChromePq
            | Name::ChromePqPsk,
        ) => Fingerprint::Chrome,
        Some(Name::Firefox) => Fingerprint::Firefox,
        Some(Name::Edge) => Fingerprint::Edge,
        Some(Name::Safari) => Fingerprint::Safari,
        Some(Name::Browser360) => Fingerprint::Browser360,
        Some(Name::Qq) => Fingerprint::Qq,
        Some(Name::Ios) => Fingerprint::Ios,
        Some(Name::Android) => Fingerprint::Android,
        Some(Name::Random) => Fingerprint::Random,
        Some(Name::Randomized) => Fingerprint::Randomized,
        Some(Name::Chrome120) => Fingerprint::Chrome120,
        Some(Name::Chrome131) => Fingerprint::Chrome131,
        Some(Name::Chrome133) => Fingerprint::Chrome133,
        Some(Name::Firefox120) => Fingerprint::Firefox120,
        Some(Name::Firefox148) => Fingerprint::Firefox148,
        Some(Name::Safari16) => Fingerprint::Safari16,
        Some(Name::Ios14) => Fingerprint::Ios14,
        Some(Name::Edge85) => Fingerprint::Edge85,
    })
}

fn reality(options: &OutboundTls) -> Result<Option<RealityClient>, SettingsError> {
    let Some(reality) = options.reality.as_ref().filter(|reality| reality.enabled) else { return Ok(None) };
    let missing = |option| SettingsError::invalid(option, "it is missing or damaged");
    let public_key = reality.public_key.bytes().ok_or_else(|| missing("reality.public_key"))?;
    let short_id = reality.short_id.bytes().ok_or_else(|| missing("reality.short_id"))?;
    let mldsa65 = match &reality.mldsa65_verify {
        Some(key) => Some(key.bytes().ok_or_else(|| missing("reality.mldsa65_verify"))?),
        None => None,
    };
    Ok(Some(RealityClient { public_key, short_id, mldsa65 }))
}

/// The settings of a server. Whether the options are `enabled` is the caller's to ask.
///
/// # Errors
/// An option that is not built yet, or nothing that could be shown to clients.
pub fn server(options: &InboundTls) -> Result<ServerSettings, SettingsError> {
    not_built([
        ("acme", options.acme.as_ref().is_some_and(|acme| !acme.domain.is_empty())),
        ("ech", options.ech.as_ref().is_some_and(|ech| ech.enabled)),
        ("reality", options.reality.as_ref().is_some_and(|reality| reality.enabled)),
    ])?;
    Ok(ServerSettings {
        parameters: parameters(
            &options.alpn,
            [&options.min_version, &options.max_version],
            &options.cipher_suites,
            &options.curve_preferences,
        )?,
        identity: identity(options)?,
        clients: client_authentication(options)?,
        handshake_timeout: options.handshake_timeout.get(),
    })
}

/// What `reality` says to the server of an inbound with these options.
///
/// # Errors
/// Its key is none.
pub fn reality_server(
    options: &InboundTls,
    reality: &InboundReality,
) -> Result<RealityAcceptor, SettingsError> {
    let missing = || SettingsError::invalid("reality.private_key", "it is not a key of X25519");
    let key = Zeroizing::new(reality.private_key.bytes().ok_or_else(missing)?);
    let short_ids = reality.short_id.iter().filter_map(ShortId::bytes).collect();
    let apart = reality.max_time_difference.get();
    RealityAcceptor::new(Policy::new(&key, options.server_name.clone(), short_ids, apart)?)
}

/// The reference to put into `certificate_provider` in place of one that names or describes the source, so that
/// [`server`] finds it. Options know no running objects, and who builds from them does not know all of those.
#[must_use]
pub fn provided(source: Arc<dyn CertificateSource>) -> CertificateProviderReference {
    CertificateProviderReference::Made(MadeProvider(Arc::new(source)))
}

fn identity(options: &InboundTls) -> Result<Identity, SettingsError> {
    if let Some(reference) = &options.certificate_provider {
        let made = match reference {
            CertificateProviderReference::Made(made) => made.0.downcast_ref::<Arc<dyn CertificateSource>>(),
            CertificateProviderReference::Tag(_) | CertificateProviderReference::Inline(_) => None,
        };
        let source = made.ok_or(SettingsError::NotBuilt { option: "certificate_provider" })?;
        return Ok(Identity::Provided(Arc::clone(source)));
    }
    let certificate = source(&options.certificate, &options.certificate_path);
    let key = source(&options.key, &options.key_path);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Identity::Given(KeyPairSource { certificate, key })),
        (None, None) if options.insecure => Ok(Identity::SelfSigned),
        (None, _) => Err(SettingsError::invalid("certificate", "it is missing")),
        (Some(_), None) => Err(SettingsError::invalid("key", "it is missing")),
    }
}

/// The settings of the certificate store.
#[must_use]
pub fn store(options: &CertificateOptions) -> StoreSettings {
    StoreSettings {
        base: match options.store {
            CertificateStore::System => StoreBase::System,
            // Chrome's list is nearly Mozilla's, and only one of them is built in.
            CertificateStore::Mozilla | CertificateStore::Chrome => StoreBase::Mozilla,
            CertificateStore::None => StoreBase::None,
        },
        certificates: Some(options.certificate.text())
            .filter(|_| !options.certificate.is_empty())
            .into_iter()
            .collect(),
        paths: options.certificate_path.iter().map(PathBuf::from).collect(),
        folders: options.certificate_directory_path.iter().map(PathBuf::from).collect(),
    }
}

/// What sing-box makes of the options: named authorities mean that certificates are wanted, and pins count only where
/// certificates are verified and no authority is named.
fn client_authentication(options: &InboundTls) -> Result<ClientAuthentication, SettingsError> {
    let authorities: Vec<_> = match source(&options.client_certificate, "") {
        Some(inline) => vec![inline],
        None => options.client_certificate_path.iter().map(|path| Source::File(path.into())).collect(),
    };
    let pins = &options.client_certificate_public_key_sha256;
    let optional = match options.client_authentication {
        Asked::No if authorities.is_empty() => return Ok(ClientAuthentication::None),
        Asked::Request => return Ok(ClientAuthentication::Any { optional: true }),
        Asked::RequireAny => return Ok(ClientAuthentication::Any { optional: false }),
        Asked::VerifyIfGiven => true,
        Asked::No | Asked::RequireAndVerify => false,
    };
    if !authorities.is_empty() {
        return Ok(ClientAuthentication::Authorities { optional, authorities });
    }
    if pins.is_empty() {
        let reason = "there is nothing to verify clients with";
        return Err(SettingsError::invalid("client_authentication", reason));
    }
    Ok(ClientAuthentication::Pins { optional, sha256: hashes(pins) })
}

fn parameters(
    alpn: &List<String>,
    [min, max]: [&Word<TlsVersion>; 2],
    suites: &List<Word<tls::CipherSuite>>,
    curves: &List<tls::Curve>,
) -> Result<Parameters, SettingsError> {
    let version = |version: TlsVersion| match version {
        TlsVersion::V1_0 | TlsVersion::V1_1 | TlsVersion::V1_2 => Version::Tls12,
        TlsVersion::V1_3 => Version::Tls13,
    };
    // Nothing below 1.2 is spoken here: a minimum below it is met by 1.2, a maximum below it by nothing.
    if matches!(max.get(), Some(TlsVersion::V1_0 | TlsVersion::V1_1)) {
        return Err(SettingsError::NotBuilt { option: "max_version below 1.2" });
    }
    Ok(Parameters {
        alpn: alpn.iter().cloned().collect(),
        min_version: min.get().map_or(Version::Tls12, version),
        max_version: max.get().map_or(Version::Tls13, version),
        cipher_suites: suites
            .iter()
            .filter_map(|suite| suite.get())
            .map(|suite| suite.name().to_owned())
            .collect(),
        curves: curves
            .iter()
            .map(|curve| match curve {
                tls::Curve::P256 => Curve::P256,
                tls::Curve::P384 => Curve::P384,
                tls::Curve::P521 => Curve::P521,
                tls::Curve::X25519 => Curve::X25519,
                tls::Curve::X25519MlKem768 => Curve::X25519MlKem768,
            })
            .collect(),
    })
}

/// Text in place comes before a path.
fn source(inline: &Pem, path: &str) -> Option<Source> {
    if !inline.is_empty() {
        return Some(Source::Inline(inline.text()));
    }
    (!path.is_empty()).then(|| Source::File(path.into()))
}

fn hashes(pins: &List<Base64>) -> Vec<Vec<u8>> {
    pins.iter().map(|pin| pin.0.clone()).collect()
}

fn ech_configs(source: &Source) -> Result<Vec<u8>, SettingsError> {
    let text = source.read("config_path")?;
    let section = PemSection::all(&text).into_iter().find(|section| section.label == "ECH CONFIGS");
    section
        .map(|section| section.content)
        .ok_or_else(|| SettingsError::invalid("ech", "no ECH CONFIGS in PEM form found"))
}

fn not_built<const N: usize>(options: [(&'static str, bool); N]) -> Result<(), SettingsError> {
    match options.into_iter().find(|(_, used)| *used) {
        Some((option, _)) => Err(SettingsError::NotBuilt { option }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use culvert_config::load;
    use culvert_config::options::inbound::InboundKind;
    use culvert_config::options::outbound::OutboundKind;

    use super::*;
    use crate::testing::Ca;

    fn outbound(tls: &str) -> OutboundTls {
        let server = r#""server": "a.test", "server_port": 443, "password": "x""#;
        let text = format!(
            r#"{{"outbounds": [{{"type": "trojan", {server}, "tls": {{"enabled": true, {tls}}}}}]}}"#
        );
        let loaded = load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
        match &loaded.options.outbounds[0].kind {
            OutboundKind::Trojan(trojan) => *trojan.tls.clone().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn inbound(tls: &str) -> InboundTls {
        let rest = r#""listen_port": 1, "users": [{"name": "u", "password": "x"}]"#;
        let text =
            format!(r#"{{"inbounds": [{{"type": "trojan", {rest}, "tls": {{"enabled": true, {tls}}}}}]}}"#);
        let loaded = load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
        match &loaded.options.inbounds[0].kind {
            InboundKind::Trojan(trojan) => *trojan.tls.clone().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_outbound_becomes_a_client() {
        let settings = client(&outbound(
            r#""server_name": "b.test", "disable_sni": true, "alpn": ["h2", "http/1.1"], "min_version": "1.3",
               "cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "curve_preferences": ["X25519", "P521"],
               "fragment": true, "fragment_fallback_delay": "20ms", "handshake_timeout": "3s""#,
        ))
        .unwrap();
        let expected = Parameters {
            alpn: vec!["h2".into(), "http/1.1".into()],
            min_version: Version::Tls13,
            max_version: Version::Tls13,
            cipher_suites: vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".into()],
            curves: vec![Curve::X25519, Curve::P521],
        };
        assert_eq!(settings.parameters, expected);
        assert_eq!(settings.server_name.as_deref(), Some("b.test"));
        assert!(settings.disable_sni && settings.fragment.segments && !settings.fragment.records);
        assert_eq!(settings.fragment.fallback_delay, Some(Duration::from_millis(20)));
        assert_eq!(settings.handshake_timeout, Some(Duration::from_secs(3)));
        assert!(matches!(settings.trust, Trust::Store));
        let plain = client(&outbound(r#""min_version": "1.0""#)).unwrap();
        assert_eq!(plain.parameters, Parameters::default());
        assert_eq!((plain.server_name, plain.handshake_timeout), (None, None));
    }

    #[test]
    fn pins_come_before_insecure_and_insecure_before_authorities() {
        let pin = r#""certificate_public_key_sha256": "AAAA""#;
        for tls in [pin.to_owned(), format!(r#"{pin}, "insecure": true"#)] {
            let trust = client(&outbound(&tls)).unwrap().trust;
            assert!(matches!(&trust, Trust::Pins(pins) if *pins == [[0, 0, 0]]), "{trust:?}");
        }
        let authority = format!(r#""certificate": {:?}"#, Ca::new("ca").pem());
        assert!(matches!(
            client(&outbound(&authority)).unwrap().trust,
            Trust::Authorities(Source::Inline(_))
        ));
        let insecure = format!(r#"{authority}, "insecure": true"#);
        assert!(matches!(client(&outbound(&insecure)).unwrap().trust, Trust::Anyone));
    }

    #[test]
    fn what_is_not_built_is_named() {
        for (tls, option) in [
            (r#""spoof": "c.test""#, "spoof"),
            (r#""utls": {"enabled": true, "fingerprint": "360"}"#, "utls.fingerprint 360"),
            (r#""max_version": "1.1""#, "max_version below 1.2"),
        ] {
            let error = client(&outbound(tls)).unwrap_err().to_string();
            assert_eq!(error, format!("{option} is not built yet"));
        }
    }

    #[test]
    fn names_are_encrypted_in_hellos_of_browsers_that_can() {
        let options = |name: &str| {
            outbound(&format!(
                r#""utls": {{"enabled": true, "fingerprint": "{name}"}}, "ech": {{"enabled": true}}"#
            ))
        };
        for name in ["", "chrome", "edge", "firefox", "random"] {
            assert!(client(&options(name)).is_ok(), "{name}");
        }
        for name in ["safari", "qq", "android", "randomized"] {
            let error = client(&options(name)).unwrap_err().to_string();
            assert!(error.contains("no ECH"), "{name}: {error}");
        }
    }

    #[test]
    fn a_browser_and_reality_are_taken_over() {
        let settings = client(&outbound(
            r#""utls": {"enabled": true}, "reality": {"enabled": true, "short_id": "01ab",
               "public_key": "eaYx7t4b-cmPEgMs3q3n4KB5OY_Hhri8yEbsia-FpRo"}"#,
        ))
        .unwrap();
        assert_eq!(settings.fingerprint, Some(Fingerprint::Chrome));
        let reality = settings.reality.unwrap();
        assert_eq!((reality.public_key[0], reality.short_id), (0x79, [1, 0xab, 0, 0, 0, 0, 0, 0]));
        let settings = client(&outbound(r#""utls": {"enabled": true, "fingerprint": "ios"}"#)).unwrap();
        assert_eq!((settings.fingerprint, settings.reality), (Some(Fingerprint::Ios), None));
        let off = client(&outbound(r#""utls": {"enabled": false, "fingerprint": "ios"}"#)).unwrap();
        assert_eq!(off.fingerprint, None);
    }

    #[test]
    fn ech_without_configurations_asks_dns() {
        for (tls, name) in [
            (r#""ech": {"enabled": true}"#, None),
            (r#""ech": {"enabled": true, "query_server_name": "q.test"}"#, Some("q.test".to_owned())),
        ] {
            assert_eq!(client(&outbound(tls)).unwrap().ech, Some(Ech::FromDns { name }));
        }
        assert_eq!(client(&outbound(r#""ech": {"enabled": false}"#)).unwrap().ech, None);
    }

    #[test]
    fn an_inbound_becomes_a_server() {
        let settings = server(&inbound(r#""insecure": true, "alpn": "h2""#)).unwrap();
        assert!(matches!(settings.identity, Identity::SelfSigned));
        assert!(matches!(settings.clients, ClientAuthentication::None));
        assert_eq!(settings.parameters.alpn, ["h2"]);
        let own = Ca::new("ca").issue("a.test");
        let tls = format!(r#""certificate": {:?}, "key": {:?}"#, own.chain, own.key);
        let Identity::Given(source) = server(&inbound(&tls)).unwrap().identity else { panic!("made up") };
        assert_eq!(source.certificate, Source::Inline(own.chain));
    }

    #[test]
    fn a_certificate_provider_comes_before_files_once_it_is_made() {
        let mut tls = inbound(r#""insecure": true"#);
        tls.certificate_provider = Some(CertificateProviderReference::Inline(
            culvert_config::options::certificate_provider::CertificateProviderKind::Acme(Box::default()),
        ));
        assert_eq!(server(&tls).unwrap_err().to_string(), "certificate_provider is not built yet");
        tls.certificate_provider = Some(provided(Arc::new(crate::tests::Given::default())));
        assert!(matches!(server(&tls).unwrap().identity, Identity::Provided(_)));
    }

    #[test]
    fn client_authentication_follows_from_three_options() {
        let ca = format!(r#", "client_certificate": {:?}"#, Ca::new("ca").pem());
        let pin = r#", "client_certificate_public_key_sha256": "AAAA""#;
        let both = format!("{ca}{pin}");
        // word, what is beside it, whether none is asked for, who is believed, whether it is optional
        let table = [
            ("no", "", "None", false),
            ("no", pin, "None", false),
            ("no", &ca, "Authorities", false),
            ("request", &ca, "Any", true),
            ("require-any", &both, "Any", false),
            ("verify-if-given", &both, "Authorities", true),
            ("verify-if-given", pin, "Pins", true),
            ("require-and-verify", &ca, "Authorities", false),
            ("require-and-verify", pin, "Pins", false),
        ];
        for (word, beside, kind, optional) in table {
            let tls = format!(r#""insecure": true, "client_authentication": "{word}"{beside}"#);
            let clients = server(&inbound(&tls)).unwrap().clients;
            let shown = format!("{clients:?}");
            assert!(shown.starts_with(kind), "{word}{beside}: {shown}");
            assert_eq!(shown.contains("optional: true"), optional, "{word}{beside}: {shown}");
        }
    }
}
