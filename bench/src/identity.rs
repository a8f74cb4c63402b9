//! The certificate that TLS servers of a run show: made at its start, trusted by its clients alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::failure::Failure;
use crate::inner;

/// The name in the certificate. Nobody looks it up.
pub(crate) const SERVER_NAME: &str = "bench.example.org";

/// Where certificate and key lie, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Identity {
    /// Makes a key and a certificate in `folder`.
    pub(crate) fn create(folder: &Path) -> Result<Self, Failure> {
        let made = generate()?;
        let identity = Self::example(folder);
        let write =
            |path: &Path, pem: String| fs::write(path, pem).map_err(Failure::file("cannot write", path));
        write(&identity.certificate, made.cert.pem())?;
        write(&identity.key, made.signing_key.serialize_pem())?;
        Ok(identity)
    }

    /// The paths alone.
    pub(crate) fn example(folder: &Path) -> Self {
        Self { certificate: folder.join("certificate.pem"), key: folder.join("key.pem") }
    }
}

/// Both ends' settings for TLS between the load generator's own ends: HTTPS as a browser's first visit, without resumption.
pub(crate) struct OwnTls {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    /// Of clients whose streams go on as records that nobody opens.
    pub(crate) inner: Arc<ClientConfig>,
}

impl OwnTls {
    pub(crate) fn create() -> Result<Self, Failure> {
        let made = generate()?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(refuse)?;
        let certificate = made.cert.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(refuse)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key))
            .map_err(refuse)?;
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![inner::ALPN.to_vec(), b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refuse)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        let mut inner = client.clone();
        inner.alpn_protocols = vec![inner::ALPN.to_vec()];
        Ok(Self { server: Arc::new(server), client: Arc::new(client), inner: Arc::new(inner) })
    }

    /// The name that clients expect.
    pub(crate) fn server_name() -> Result<ServerName<'static>, rustls::pki_types::InvalidDnsNameError> {
        ServerName::try_from(SERVER_NAME)
    }
}

fn generate() -> Result<rcgen::CertifiedKey<rcgen::KeyPair>, Failure> {
    rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).map_err(refuse)
}

fn refuse(error: impl ToString) -> Failure {
    Failure::Usage(format!("cannot make a certificate: {}", error.to_string()))
}
