//! Whom to trust: lists of authorities, and the store of them that most connections share.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::SettingsError;
use crate::settings::{StoreBase, StoreSettings};
use crate::watch::Watched;

/// Where systems keep their authorities: the first of these files that exists is all of them.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Where they keep them one by one.
const SYSTEM_FOLDERS: [&str; 3] = ["/etc/ssl/certs", "/etc/pki/tls/certs", "/system/etc/security/cacerts"];

/// Authorities that are trusted.
#[derive(Debug)]
pub(crate) struct Authorities {
    /// Who may sign.
    pub(crate) roots: RootCertStore,
    /// SHA-256 of certificates that are trusted as they are, without anybody's signature: those an operator named. A
    /// self-signed certificate of a server is one, whether or not it may sign others. Go does the same.
    exact: HashSet<[u8; 32]>,
}

impl Authorities {
    fn empty() -> Self {
        Self { roots: RootCertStore::empty(), exact: HashSet::new() }
    }

    /// Those in a PEM text. Sections that cannot be read are skipped, as in Go, as long as there is one that can.
    ///
    /// # Errors
    /// There is none; `option` is the key to name.
    pub(crate) fn from_pem(texts: &[String], option: &'static str) -> Result<Self, SettingsError> {
        let mut authorities = Self::empty();
        for text in texts {
            if authorities.add(text) == 0 {
                return Err(SettingsError::invalid(option, "no certificate in PEM form found"));
            }
        }
        Ok(authorities)
    }

    /// Whether this very certificate was named by an operator.
    pub(crate) fn names(&self, certificate: &CertificateDer<'_>) -> bool {
        !self.exact.is_empty() && self.exact.contains(&sha256(certificate))
    }

    fn add(&mut self, pem: &str) -> usize {
        let before = self.roots.len();
        for certificate in certificates(pem) {
            if self.roots.add(certificate.clone()).is_ok() {
                self.exact.insert(sha256(&certificate));
            }
        }
        self.roots.len() - before
    }
}

/// SHA-256, as pins and fingerprints have it.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

fn certificates(pem: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok)
}

/// The store of authorities that connections share which name none of their own. It is read when it is first asked.
#[derive(Debug)]
pub struct Store {
    settings: StoreSettings,
    read: OnceLock<Result<Watched<Authorities>, String>>,
}

impl Store {
    /// A store that nobody has asked yet.
    #[must_use]
    pub fn new(settings: StoreSettings) -> Arc<Self> {
        Arc::new(Self { settings, read: OnceLock::new() })
    }

    /// Reads it, to find out whether it can be read.
    ///
    /// # Errors
    /// One of the named files cannot be read or holds no certificate.
    pub fn check(&self) -> Result<(), SettingsError> {
        load(&self.settings, RootCertStore::empty()).map(drop)
    }

    /// The authorities.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(crate) fn authorities(&self) -> Result<Arc<Authorities>, &str> {
        let read = self.read.get_or_init(|| {
            let settings = self.settings.clone();
            let paths = [&*settings.paths, &*settings.folders].concat();
            let reload = move || load(&settings, base(settings.base));
            Watched::new("certificate store", paths, reload).map_err(|error| error.to_string())
        });
        read.as_ref().map(|watched| watched.current().0).map_err(String::as_str)
    }
}

fn load(settings: &StoreSettings, base: RootCertStore) -> Result<Authorities, SettingsError> {
    let mut authorities = Authorities { roots: base, ..Authorities::empty() };
    let inline = settings.certificates.join("\n");
    if !inline.is_empty() && authorities.add(&inline) == 0 {
        return Err(SettingsError::invalid("certificate", "no certificate in PEM form found"));
    }
    for path in &settings.paths {
        let text = crate::settings::Source::File(path.clone()).read("certificate_path")?;
        if authorities.add(&text) == 0 {
            let reason = format!("no certificate in PEM form found in {}", path.display());
            return Err(SettingsError::invalid("certificate_path", reason));
        }
    }
    for folder in &settings.folders {
        texts_in(folder).for_each(|text| {
            authorities.add(&text);
        });
    }
    Ok(authorities)
}

fn base(base: StoreBase) -> RootCertStore {
    match base {
        StoreBase::None => RootCertStore::empty(),
        StoreBase::Mozilla => mozilla(),
        StoreBase::System => {
            let system = system();
            if !system.is_empty() {
                return system;
            }
            tracing::warn!(
                "this system has no list of certificate authorities; Mozilla's, built in, serves instead"
            );
            mozilla()
        }
    }
}

fn mozilla() -> RootCertStore {
    webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()
}

/// `SSL_CERT_FILE` and `SSL_CERT_DIR` name other places than the usual ones, as for most programs.
fn system() -> RootCertStore {
    let from_env = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let files = match from_env("SSL_CERT_FILE") {
        Some(file) => vec![PathBuf::from(file)],
        None => SYSTEM_FILES.map(PathBuf::from).to_vec(),
    };
    let folders = match from_env("SSL_CERT_DIR") {
        Some(folders) => std::env::split_paths(&folders).collect(),
        None => SYSTEM_FOLDERS.map(PathBuf::from).to_vec(),
    };
    system_at(&files, &folders)
}

fn system_at(files: &[PathBuf], folders: &[PathBuf]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let file = files.iter().find_map(|file| std::fs::read(file).ok());
    if let Some(text) = file {
        roots.add_parsable_certificates(certificates(&String::from_utf8_lossy(&text)));
    }
    if roots.is_empty() {
        for text in folders.iter().flat_map(|folder| texts_in(folder)) {
            roots.add_parsable_certificates(certificates(&text));
        }
    }
    roots
}

/// The files of a folder. Links within the folder are left out: the hashed names of OpenSSL stand for files that are
/// there under their own names too.
fn texts_in(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let inside = std::fs::read_link(&path).is_ok_and(|to| to.components().count() == 1);
        if inside { None } else { crate::watch::read_text(&path).ok() }
    })
}

#[cfg(test)]
mod tests {
    use culvert_testkit::temp::TempDir;

    use super::*;
    use crate::testing::Ca;

    #[test]
    fn files_folders_and_text_add_up() {
        let cas = [Ca::new("one"), Ca::new("two"), Ca::new("three")];
        let folder = TempDir::new().unwrap();
        let file = folder.write("file.pem", cas[1].pem()).unwrap();
        let inner = folder.path().join("folder");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("a.pem"), cas[2].pem()).unwrap();
        std::fs::write(inner.join("junk"), "no certificate").unwrap();
        std::os::unix::fs::symlink("a.pem", inner.join("0a1b2c3d.0")).unwrap();
        let store = Store::new(StoreSettings {
            base: StoreBase::None,
            certificates: vec![cas[0].pem()],
            paths: vec![file],
            folders: vec![inner, folder.path().join("missing")],
        });
        store.check().unwrap();
        let authorities = store.authorities().unwrap();
        assert_eq!(authorities.roots.len(), 3);
        assert!(cas.iter().all(|ca| authorities.names(ca.der())));
    }

    #[test]
    fn a_named_file_without_certificates_is_an_error_that_names_it() {
        let folder = TempDir::new().unwrap();
        let file = folder.write("file.pem", "nothing").unwrap();
        let settings = StoreSettings { base: StoreBase::None, paths: vec![file], ..StoreSettings::default() };
        let error = Store::new(settings).check().unwrap_err().to_string();
        assert!(error.contains("certificate_path") && error.contains("file.pem"), "{error}");
    }

    #[test]
    fn the_first_bundle_that_exists_is_the_system_store() {
        let folder = TempDir::new().unwrap();
        let cas = [Ca::new("one"), Ca::new("two")];
        let bundle = folder.write("bundle.pem", cas[0].pem() + &cas[1].pem()).unwrap();
        let missing = folder.path().join("missing.pem");
        assert_eq!(system_at(&[missing.clone(), bundle], &[]).len(), 2);
        assert_eq!(system_at(&[missing], &[folder.path().to_owned()]).len(), 2);
        assert!(system_at(&[], &[]).is_empty());
        assert!(mozilla().len() > 100);
    }
}
