//! From the options of a configuration to settings.

use std::env;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use culvert_config::options::certificate_provider::{
    AcmeExternalAccount, AcmeKeyType, AcmeProvider, InlineAcme,
};
use instant_acme::{LetsEncrypt, ZeroSsl};
use thiserror::Error;

use crate::account;
use crate::settings::{ExternalAccount, KeyType, Name, Secret, Settings};

/// The options of a provider cannot be used.
#[derive(Debug, Error)]
pub enum OptionsError {
    /// An option is known but not built yet.
    #[error("{0} is not built yet")]
    NotBuilt(&'static str),
    /// A value means nothing.
    #[error("{option}: {reason}")]
    Invalid {
        /// The key of the option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

fn invalid(option: &'static str, reason: impl Into<String>) -> OptionsError {
    OptionsError::Invalid { option, reason: reason.into() }
}

/// The settings that the options describe; the HTTP client among them is the caller's to build.
///
/// # Errors
/// An option that is not built yet, or one that can never lead to a certificate.
pub fn settings(options: &AcmeProvider) -> Result<Settings, OptionsError> {
    if options.dns01_challenge.is_some() {
        return Err(OptionsError::NotBuilt("dns01_challenge"));
    }
    let names: Vec<_> = options.domain.iter().map(|domain| name(domain)).collect::<Result<_, _>>()?;
    let port = |disabled: bool, alternative: u16, usual| {
        (!disabled).then_some(if alternative == 0 { usual } else { alternative })
    };
    let http_port = port(options.disable_http_challenge, options.alternative_http_port, 80);
    let tls_port = port(options.disable_tls_alpn_challenge, options.alternative_tls_port, 443);
    if http_port.is_none() && tls_port.is_none() {
        return Err(invalid("disable_tls_alpn_challenge", "no way is left to prove ownership"));
    }
    let text = |option: &str| Some(option.to_owned()).filter(|text| !text.is_empty());
    let authority = authority(&options.provider)?;
    let is_zerossl = authority == ZeroSsl::Production.url();
    let external_account = match &options.external_account {
        Some(account) => external(account)?,
        None if is_zerossl && options.email.is_empty() => {
            return Err(invalid("email", "ZeroSSL wants one, or an `external_account`"));
        }
        None if is_zerossl => ExternalAccount::ZeroSsl,
        None => ExternalAccount::None,
    };
    let account_key = text(&options.account_key);
    if let Some(pem) = &account_key {
        account::key_from_pem(pem).map_err(|reason| invalid("account_key", reason))?;
    }
    Ok(Settings {
        names,
        data_directory: text(&options.data_directory).map_or_else(usual_directory, PathBuf::from),
        default_name: text(&options.default_server_name).map(|name| name.to_ascii_lowercase()),
        email: text(&options.email),
        authority,
        account_key: account_key.map(Secret),
        http_port,
        tls_port,
        external_account,
        key_type: match options.key_type.get() {
            Some(AcmeKeyType::Ed25519) => KeyType::Ed25519,
            Some(AcmeKeyType::P256) | None => KeyType::P256,
            Some(AcmeKeyType::P384) => KeyType::P384,
            Some(AcmeKeyType::Rsa2048) => KeyType::Rsa2048,
            Some(AcmeKeyType::Rsa4096) => KeyType::Rsa4096,
        },
        profile: text(&options.profile),
    })
}

/// The new form of the old options inside `tls`. Proofs by DNS records differ in form, and are refused either way.
#[must_use]
pub fn from_inline(options: &InlineAcme) -> AcmeProvider {
    AcmeProvider {
        domain: options.domain.clone(),
        data_directory: options.data_directory.clone(),
        default_server_name: options.default_server_name.clone(),
        email: options.email.clone(),
        provider: options.provider.clone(),
        disable_http_challenge: options.disable_http_challenge,
        disable_tls_alpn_challenge: options.disable_tls_alpn_challenge,
        alternative_http_port: options.alternative_http_port,
        alternative_tls_port: options.alternative_tls_port,
        external_account: options.external_account.clone(),
        dns01_challenge: options.dns01_challenge.is_some().then(Default::default),
        profile: options.profile.clone(),
        ..AcmeProvider::default()
    }
}

fn name(text: &str) -> Result<Name, OptionsError> {
    if let Ok(ip) = text.parse() {
        return Ok(Name::Ip(ip));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.starts_with("*.") {
        return Err(invalid(
            "domain",
            format!("`{name}`: wildcards need a proof by DNS records, which is not built yet"),
        ));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(invalid("domain", format!("`{text}` is no domain name in its ASCII form (`xn--...`)")));
    }
    Ok(Name::Domain(name))
}

fn authority(provider: &str) -> Result<String, OptionsError> {
    match provider {
        "" | "letsencrypt" => Ok(LetsEncrypt::Production.url().to_owned()),
        "zerossl" => Ok(ZeroSsl::Production.url().to_owned()),
        url if url.starts_with("https://") || url.starts_with("http://") => Ok(url.to_owned()),
        other => {
            Err(invalid("provider", format!("`{other}` is neither `letsencrypt` nor `zerossl` nor a URL")))
        }
    }
}

fn external(account: &AcmeExternalAccount) -> Result<ExternalAccount, OptionsError> {
    let text = account.mac_key.as_str();
    let mac_key = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    let mac_key = mac_key
        .map_err(|error| invalid("external_account.mac_key", format!("no URL-safe base64: {error}")))?;
    if account.key_id.is_empty() || mac_key.is_empty() {
        return Err(invalid("external_account", "`key_id` and `mac_key` belong together"));
    }
    Ok(ExternalAccount::Given { key_id: account.key_id.clone(), mac_key: Secret(mac_key) })
}

/// Where sing-box keeps them when nothing is said.
fn usual_directory() -> PathBuf {
    let base = env::var_os("XDG_DATA_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    base.unwrap_or_else(|| home().join(Path::new(".local/share"))).join("certmagic")
}

#[cfg(test)]
mod tests {
    use culvert_config::options::certificate_provider::CertificateProviderKind;

    use super::*;

    fn options(text: &str) -> AcmeProvider {
        let text = format!(r#"{{"certificate_providers": [{{"type": "acme", "tag": "a", {text}}}]}}"#);
        let loaded = culvert_config::load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
        match &loaded.options.certificate_providers[0].kind {
            CertificateProviderKind::Acme(acme) => (**acme).clone(),
            other => panic!("{other:?}"),
        }
    }

    fn reason(text: &str) -> String {
        settings(&options(text)).unwrap_err().to_string()
    }

    #[test]
    fn options_become_settings() {
        let settings = settings(&options(
            r#""domain": ["A.test.", "192.0.2.1"], "data_directory": "/x", "alternative_tls_port": 8443,
            "key_type": "p384", "provider": "https://ca.test/dir", "disable_http_challenge": true,
            "external_account": {"key_id": "k", "mac_key": "AAEC"}"#,
        ))
        .unwrap();
        assert_eq!(settings.names, [Name::Domain("a.test".into()), Name::Ip([192, 0, 2, 1].into())]);
        assert_eq!((settings.http_port, settings.tls_port), (None, Some(8443)));
        assert_eq!(settings.key_type, KeyType::P384);
        assert_eq!(settings.authority, "https://ca.test/dir");
        let ExternalAccount::Given { mac_key, .. } = &settings.external_account else { panic!("none") };
        assert_eq!(mac_key.0, [0, 1, 2]);
        assert!(!format!("{settings:?}").contains("[0, 1, 2]"), "a secret shows");
    }

    #[test]
    fn the_usual_authority_is_lets_encrypt() {
        let settings = settings(&options(r#""domain": "a.test""#)).unwrap();
        assert_eq!(settings.authority, "https://acme-v02.api.letsencrypt.org/directory");
        assert_eq!((settings.http_port, settings.tls_port), (Some(80), Some(443)));
    }

    #[test]
    fn what_never_leads_to_a_certificate_is_said() {
        for (text, expected) in [
            (r#""domain": "*.a.test""#, "wildcards need a proof by DNS records"),
            (r#""domain": "bücher.test""#, "ASCII form"),
            (r#""domain": "a.test", "provider": "nobody""#, "neither `letsencrypt` nor `zerossl`"),
            (r#""domain": "a.test", "provider": "zerossl""#, "ZeroSSL wants one"),
            (
                r#""domain": "a.test", "disable_http_challenge": true, "disable_tls_alpn_challenge": true"#,
                "no way is left",
            ),
            (r#""domain": "a.test", "account_key": "x""#, "account_key: "),
            (r#""domain": "a.test", "external_account": {"key_id": "k", "mac_key": "!"}"#, "base64"),
            (
                r#""domain": "a.test", "dns01_challenge": {"provider": "cloudflare", "api_token": "x"}"#,
                "dns01_challenge is not built yet",
            ),
        ] {
            let reason = reason(text);
            assert!(reason.contains(expected), "{text}: {reason}");
        }
    }
}
