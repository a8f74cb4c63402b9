//! The certificate that TLS servers of a run show: made at its start, trusted by its clients alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

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
        let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()])
            .map_err(|error| Failure::Usage(format!("cannot make a certificate: {error}")))?;
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
