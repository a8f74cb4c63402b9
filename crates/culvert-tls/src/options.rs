//! From the options of a configuration to settings. Running objects never see options.

use std::path::PathBuf;

use culvert_config::options::certificate::{CertificateOptions, CertificateStore};
use culvert_config::options::tls;
use culvert_config::options::tls::inbound::ClientAuthentication as Asked;
use culvert_config::options::tls::{InboundTls, OutboundTls, TlsVersion};
use culvert_config::value::{Base64, List, Pem, PemSection, Word};

use crate::error::SettingsError;
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
        ("kernel_tx", options.kernel_tx),
        ("kernel_rx", options.kernel_rx),
        ("spoof", !options.spoof.is_empty()),
        ("utls", options.utls.as_ref().is_some_and(|utls| utls.enabled)),
        ("reality", options.reality.as_ref().is_some_and(|reality| reality.enabled)),
    ])?;
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
        handshake_timeout: options.handshake_timeout.get(),
    })
}

/// The settings of a server. Whether the options are `enabled` is the caller's to ask.
///
/// # Errors
/// An option that is not built yet, or nothing that could be shown to clients.
pub fn server(options: &InboundTls) -> Result<ServerSettings, SettingsError> {
    not_built([
        ("kernel_tx", options.kernel_tx),
        ("kernel_rx", options.kernel_rx),
        ("acme", options.acme.as_ref().is_some_and(|acme| !acme.domain.is_empty())),
        ("certificate_provider", options.certificate_provider.is_some()),
        ("ech", options.ech.as_ref().is_some_and(|ech| ech.enabled)),
        ("reality", options.reality.as_ref().is_some_and(|reality| reality.enabled)),
    ])?;
    let certificate = source(&options.certificate, &options.certificate_path);
    let key = source(&options.key, &options.key_path);
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Identity::Given(KeyPairSource { certificate, key }),
        (None, None) if options.insecure => Identity::SelfSigned,
        (None, _) => return Err(SettingsError::invalid("certificate", "it is missing")),
        (Some(_), None) => return Err(SettingsError::invalid("key", "it is missing")),
    };
    Ok(ServerSettings {
        parameters: parameters(
            &options.alpn,
            [&options.min_version, &options.max_version],
            &options.cipher_suites,
            &options.curve_preferences,
        )?,
        identity,
        clients: client_authentication(options)?,
        handshake_timeout: options.handshake_timeout.get(),
    })
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
