//! Our own certificates and keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::der::Certificate;
use crate::error::SettingsError;
use crate::fault::CertificateFault;
use crate::notes;
use crate::settings::{Identity, KeyPairSource, Source};
use crate::watch::Watched;

/// The keys of the options that an error names: certificate and key.
pub(crate) type OptionNames = [&'static str; 2];

/// Reads a chain and its key, and sees that they belong together.
pub(crate) fn load(source: &KeyPairSource, names: OptionNames) -> Result<CertifiedKey, SettingsError> {
    let [certificate, key] = names;
    let chain = chain(&source.certificate.read(certificate)?, certificate)?;
    let text = source.key.read(key)?;
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| {
        let reason = if text.contains("ENCRYPTED") {
            "the key is encrypted with a password".to_owned()
        } else {
            format!("no private key in PEM form found ({error})")
        };
        SettingsError::invalid(key, reason)
    })?;
    let signer = any_supported_type(&der).map_err(|error| SettingsError::invalid(key, error))?;
    let leaf = Certificate::parse(&chain[0])
        .ok_or_else(|| SettingsError::invalid(certificate, "the first certificate cannot be read"))?;
    if signer.public_key().is_some_and(|public| public.as_ref() != leaf.public_key) {
        return Err(SettingsError::invalid(key, "the key is not the one of the certificate"));
    }
    Ok(CertifiedKey::new(chain, signer))
}

fn chain(pem: &str, option: &'static str) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(SettingsError::invalid(option, "no certificate in PEM form found")),
        Err(error) => Err(SettingsError::invalid(option, format!("damaged PEM ({error})"))),
    }
}

/// A certificate of ours with its chain and key, ready to be shown. Cheap to clone.
#[derive(Clone)]
pub struct OwnCertificate(Arc<CertifiedKey>);

impl OwnCertificate {
    /// From a chain, the own certificate first, and its key, both in PEM.
    ///
    /// # Errors
    /// One of them cannot be read, or they do not belong together.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, SettingsError> {
        let source = KeyPairSource {
            certificate: Source::Inline(chain.to_owned()),
            key: Source::Inline(key.to_owned()),
        };
        load(&source, ["certificate", "key"]).map(|pair| Self(Arc::new(pair)))
    }

    /// From when to when it is valid, in seconds since 1970.
    #[must_use]
    pub fn validity(&self) -> (i64, i64) {
        let leaf = self.0.cert.first().and_then(|der| Certificate::parse(der));
        leaf.map_or((0, 0), |leaf| (leaf.not_before, leaf.not_after))
    }
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnCertificate")
    }
}

/// Where a server's certificates come from that are not files of the user's: they come later and change by themselves.
pub trait CertificateSource: fmt::Debug + Send + Sync {
    /// The certificate for clients that ask for `name`.
    ///
    /// # Errors
    /// Why there is none, for the log.
    fn certificate(&self, name: Option<&str>) -> Result<OwnCertificate, String>;

    /// Whether an authority may ask for a proof now. Clients are looked at more closely only while it may.
    fn is_proving(&self) -> bool;

    /// The certificate that proves to an authority that `name` is served here (RFC 8737), while it asks for that.
    fn proof(&self, name: &str) -> Option<OwnCertificate>;
}

/// Answers an authority that asks for a proof.
#[derive(Debug)]
pub(crate) struct Prover(pub(crate) Arc<dyn CertificateSource>);

impl ResolvesServerCert for Prover {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        notes::server_name(name);
        self.0.proof(name).map(|proof| proof.0)
    }
}

/// Chooses the certificate that a server shows, and notes the name that the client asked for.
pub(crate) struct Resolver(Choice);

enum Choice {
    Given(Watched<Arc<CertifiedKey>>),
    SelfSigned(SelfSigned),
    Provided(Arc<dyn CertificateSource>),
}

impl Resolver {
    pub(crate) fn new(identity: &Identity) -> Result<Self, SettingsError> {
        Ok(Self(match identity {
            Identity::Given(source) => {
                let paths = [source.certificate.path(), source.key.path()].into_iter().flatten().collect();
                let source = source.clone();
                let load = move || load(&source, ["certificate", "key"]).map(Arc::new);
                Choice::Given(Watched::new("TLS certificate", paths, load)?)
            }
            Identity::SelfSigned => Choice::SelfSigned(SelfSigned::new()?),
            Identity::Provided(source) => Choice::Provided(Arc::clone(source)),
        }))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(name) = hello.server_name() {
            notes::server_name(name);
        }
        match &self.0 {
            Choice::Given(given) => Some(Arc::clone(&given.current().0)),
            Choice::SelfSigned(made) => made.certificate(hello.server_name().unwrap_or_default()),
            Choice::Provided(source) => match source.certificate(hello.server_name()) {
                Ok(certificate) => Some(certificate.0),
                Err(reason) => {
                    notes::fault(CertificateFault::NotThere(reason));
                    None
                }
            },
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// How long a made certificate is valid, and how long it is used.
const VALIDITY: Duration = Duration::from_secs(48 * 3600);
const USE: Duration = Duration::from_secs(24 * 3600);
/// Names for which certificates are kept. Whoever asks for many names does not make us keep many.
const NAMES: usize = 64;

/// Certificates made up for the names that clients ask for, all with one key.
struct SelfSigned {
    key: KeyPair,
    signer: Arc<dyn rustls::sign::SigningKey>,
    made: Mutex<HashMap<String, (Arc<CertifiedKey>, Instant)>>,
}

impl SelfSigned {
    fn new() -> Result<Self, SettingsError> {
        let failed = |error: &dyn fmt::Display| SettingsError::invalid("insecure", error);
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let der = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| failed(&error))?;
        let signer = any_supported_type(&der).map_err(|error| failed(&error))?;
        Ok(Self { key, signer, made: Mutex::default() })
    }

    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((certificate, since)) = made.get(name)
            && since.elapsed() < USE
        {
            return Some(Arc::clone(certificate));
        }
        let certificate = Arc::new(self.make(name)?);
        if made.len() >= NAMES {
            made.clear();
        }
        made.insert(name.to_owned(), (Arc::clone(&certificate), Instant::now()));
        Some(certificate)
    }

    fn make(&self, name: &str) -> Option<CertifiedKey> {
        let names = if name.is_empty() { Vec::new() } else { vec![name.to_owned()] };
        let mut params = CertificateParams::new(names).ok()?;
        params.distinguished_name.push(DnType::CommonName, name);
        let now = OffsetDateTime::now_utc();
        // Clocks differ.
        params.not_before = now - Duration::from_secs(3600);
        params.not_after = now + VALIDITY;
        let certificate = params.self_signed(&self.key).ok()?;
        Some(CertifiedKey::new(vec![certificate.der().clone()], Arc::clone(&self.signer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    fn inline(certificate: &str, key: &str) -> KeyPairSource {
        KeyPairSource { certificate: Source::Inline(certificate.into()), key: Source::Inline(key.into()) }
    }

    fn reason(source: &KeyPairSource) -> String {
        load(source, ["certificate", "key"]).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn errors_say_which_of_the_two_is_wrong() {
        let ca = Ca::new("ca");
        let (one, two) = (ca.issue("a.test"), ca.issue("b.test"));
        assert!(load(&inline(&one.chain, &one.key), ["certificate", "key"]).is_ok());
        assert_eq!(reason(&inline(&one.chain, &two.key)), "key: the key is not the one of the certificate");
        assert_eq!(reason(&inline("", &two.key)), "certificate: no certificate in PEM form found");
        assert!(reason(&inline(&one.chain, "nothing")).starts_with("key: no private key in PEM form found"));
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert_eq!(reason(&inline(&one.chain, encrypted)), "key: the key is encrypted with a password");
        let missing = KeyPairSource { certificate: Source::File("/nonexistent".into()), ..inline("", "") };
        assert_eq!(reason(&missing), "certificate: /nonexistent");
    }

    #[test]
    fn made_certificates_are_kept_for_few_names() {
        let made = SelfSigned::new().unwrap();
        let first = made.certificate("a.test").unwrap();
        assert!(Arc::ptr_eq(&first, &made.certificate("a.test").unwrap()));
        for i in 0..200 {
            made.certificate(&format!("{i}.test")).unwrap();
        }
        assert!(made.made.lock().unwrap().len() <= NAMES);
        assert!(made.certificate("").is_some());
    }
}
