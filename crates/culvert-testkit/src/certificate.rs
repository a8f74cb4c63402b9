//! Certificates for servers of tests.

use rcgen::{CertificateParams, KeyPair};

/// A certificate that signs itself, and its key, both as PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate; whoever trusts it as an authority accepts it.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Certificate {
    /// A new one for a host name.
    ///
    /// # Panics
    /// If `name` is none.
    #[must_use]
    pub fn for_name(name: &str) -> Self {
        let key = KeyPair::generate().expect("the system has random numbers");
        let params = CertificateParams::new([name.to_owned()]).expect("a host name");
        let certificate = params.self_signed(&key).expect("a key made for it");
        Self { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate")
    }
}
