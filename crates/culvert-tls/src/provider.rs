//! Suites, groups and versions: from the words of the settings to what the TLS library takes.

use std::sync::Arc;

use aws_lc_rs::agreement::{self, EphemeralPrivateKey};
use aws_lc_rs::rand::SystemRandom;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, default_provider, kx_group};
use rustls::crypto::{ActiveKeyExchange, CryptoProvider, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{
    CipherSuite, Error, NamedGroup, PeerMisbehaved, SupportedCipherSuite, SupportedProtocolVersion,
};

use crate::error::SettingsError;
use crate::settings::{Curve, Parameters, Version};

/// Suites of TLS 1.2 and below that Go knows and the TLS library does not: they are passed over where others are left.
const OTHER_SUITES: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

/// What is on where nothing else is asked for: the cheapest strong suite first, by what the processor can.
fn default_suites() -> Vec<SupportedCipherSuite> {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as ECDSA_AES_128,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 as ECDSA_AES_256,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 as ECDSA_CHACHA,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 as RSA_AES_128,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 as RSA_AES_256,
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 as RSA_CHACHA, TLS13_AES_128_GCM_SHA256 as AES_128,
        TLS13_AES_256_GCM_SHA384 as AES_256, TLS13_CHACHA20_POLY1305_SHA256 as CHACHA,
    };
    let [aes, chacha] = [
        vec![AES_128, AES_256, ECDSA_AES_128, RSA_AES_128, ECDSA_AES_256, RSA_AES_256],
        vec![CHACHA, ECDSA_CHACHA, RSA_CHACHA],
    ];
    if has_aes() { [aes, chacha].concat() } else { [chacha, aes].concat() }
}

/// Whether the processor has instructions for AES. Without them ChaCha20 is several times faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The library's tools, as far as the settings allow them.
pub(crate) fn provider(parameters: &Parameters) -> Result<Arc<CryptoProvider>, SettingsError> {
    Ok(Arc::new(CryptoProvider {
        cipher_suites: suites(&parameters.cipher_suites)?,
        kx_groups: groups(&parameters.curves),
        ..default_provider()
    }))
}

/// The versions between lowest and highest.
pub(crate) fn versions(
    parameters: &Parameters,
) -> Result<Vec<&'static SupportedProtocolVersion>, SettingsError> {
    let asked = parameters.min_version..=parameters.max_version;
    let known = [(Version::Tls13, &rustls::version::TLS13), (Version::Tls12, &rustls::version::TLS12)];
    let versions: Vec<_> =
        known.iter().filter(|(version, _)| asked.contains(version)).map(|known| known.1).collect();
    if versions.is_empty() {
        return Err(SettingsError::invalid("max_version", "it is below `min_version`"));
    }
    Ok(versions)
}

/// As in Go the names choose among the suites of TLS 1.2; those of TLS 1.3 are always on.
fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, SettingsError> {
    let (tls13, tls12): (Vec<_>, Vec<_>) =
        default_suites().into_iter().partition(|suite| suite.tls13().is_some());
    if names.is_empty() {
        return Ok([tls13, tls12].concat());
    }
    let mut chosen = tls13;
    for name in names {
        match ALL_CIPHER_SUITES.iter().find(|suite| iana_name(suite.suite()) == *name) {
            Some(suite) if suite.tls13().is_none() => chosen.push(*suite),
            Some(_) => {}
            None if OTHER_SUITES.contains(&name.as_str()) => {
                tracing::warn!("cipher_suites: {name} is not offered here");
            }
            None => {
                let known: Vec<_> = ALL_CIPHER_SUITES.iter().map(|suite| iana_name(suite.suite())).collect();
                let reason = format!("unknown suite {name}; known are {}", known.join(", "));
                return Err(SettingsError::invalid("cipher_suites", reason));
            }
        }
    }
    Ok(chosen)
}

/// The name of a suite as IANA has it.
pub(crate) fn iana_name(suite: CipherSuite) -> String {
    let name = format!("{suite:?}");
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name,
    }
}

fn groups(curves: &[Curve]) -> Vec<&'static dyn SupportedKxGroup> {
    const DEFAULT: [Curve; 4] = [Curve::X25519MlKem768, Curve::X25519, Curve::P256, Curve::P384];
    let curves = if curves.is_empty() { &DEFAULT } else { curves };
    let group = |curve: &Curve| match curve {
        Curve::P256 => kx_group::SECP256R1,
        Curve::P384 => kx_group::SECP384R1,
        Curve::P521 => &Secp521r1,
        Curve::X25519 => kx_group::X25519,
        Curve::X25519MlKem768 => kx_group::X25519MLKEM768,
    };
    curves.iter().map(group).collect()
}

/// NIST P-521, which the TLS library leaves out.
#[derive(Debug)]
struct Secp521r1;

struct Secp521r1Exchange {
    private: EphemeralPrivateKey,
    public: agreement::PublicKey,
}

impl SupportedKxGroup for Secp521r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let private = EphemeralPrivateKey::generate(&agreement::ECDH_P521, &SystemRandom::new());
        let private = private.map_err(|_| GetRandomFailed)?;
        let public = private.compute_public_key().map_err(|_| GetRandomFailed)?;
        Ok(Box::new(Secp521r1Exchange { private, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for Secp521r1Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        // TLS allows no other form of a point.
        const UNCOMPRESSED: u8 = 4;
        if peer.first() != Some(&UNCOMPRESSED) {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        let peer = agreement::UnparsedPublicKey::new(&agreement::ECDH_P521, peer);
        agreement::agree_ephemeral(
            self.private,
            peer,
            Error::from(PeerMisbehaved::InvalidKeyShare),
            |secret| Ok(SharedSecret::from(secret)),
        )
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_chosen_by_name_and_those_of_tls13_stay() {
        let chosen = suites(&["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256".to_owned()]).unwrap();
        let names: Vec<_> = chosen.iter().map(|suite| iana_name(suite.suite())).collect();
        assert_eq!(names.len(), 4);
        assert!(names.contains(&"TLS_AES_128_GCM_SHA256".to_owned()), "{names:?}");
        assert_eq!(names[3], "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256");
    }

    #[test]
    fn an_unknown_suite_is_refused_with_the_known_ones() {
        let error = suites(&["TLS_NONSENSE".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("TLS_NONSENSE"), "{error}");
        assert!(error.contains("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), "{error}");
    }

    #[test]
    fn versions_out_of_order_are_refused() {
        let parameters =
            Parameters { min_version: Version::Tls13, max_version: Version::Tls12, ..Parameters::default() };
        assert!(versions(&parameters).is_err());
        assert_eq!(versions(&Parameters::default()).unwrap().len(), 2);
    }
}
