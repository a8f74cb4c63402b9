//! Accounts and certificates on disk, in the layout of certmagic, which sing-box uses: either program goes on with what
//! the other has left.
//!
//! ```text
//! acme/<authority>/users/<email or "default">/<its first part>.json     the account: {"status", "contact", "location", ...}
//!                                             <its first part>.key      its key, PEM
//! certificates/<authority>/<name>/<name>.crt                            the chain, PEM
//!                                 <name>.key                            its key, PEM
//!                                 <name>.json                           {"sans": [...], "issuer_data": {...}}
//! locks/<authority>-<name>.flock                                        held (flock) while the name is being ordered
//! ```
//!
//! `<authority>` is the host of the directory's URL and its path, with `-` for `/`; a `*` in a name is `wildcard_`. Folders
//! are for the owner only (0700), files too (0600). A file is written beside its place and moved there, so that there is
//! never half of one; a key and a chain that do not belong together count as none.
//!
//! Source: <https://github.com/caddyserver/certmagic> (Apache-2.0), its documentation of `FileStorage` and what it writes.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::AcmeError;
use crate::settings::Name;

/// The files of one authority.
#[derive(Clone, Debug)]
pub struct Storage {
    root: PathBuf,
    authority: String,
}

/// What is kept of an account beside its key.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AccountFile {
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) contact: Vec<String>,
    #[serde(default, rename = "termsOfServiceAgreed")]
    pub(crate) terms_of_service_agreed: bool,
    /// The account's URL, which is its name to the authority.
    pub(crate) location: String,
}

/// Kept while a name is being ordered.
pub(crate) struct NameLock(#[expect(dead_code, reason = "closing it ends the lock")] File);

impl Storage {
    /// The files of the authority with this URL, below `root`.
    #[must_use]
    pub fn new(root: &Path, authority: &str) -> Self {
        Self { root: root.to_owned(), authority: safe(&authority_key(authority)) }
    }

    /// The chain and the key of a certificate, both in PEM, if they are there.
    ///
    /// # Errors
    /// They are there and cannot be read.
    pub fn certificate(&self, name: &Name) -> io::Result<Option<(String, String)>> {
        let chain = read(&self.certificate_file(name, "crt"))?;
        let key = read(&self.certificate_file(name, "key"))?;
        Ok(chain.zip(key))
    }

    pub(crate) fn keep_certificate(
        &self,
        name: &Name,
        chain: &str,
        key: &str,
        url: &str,
    ) -> Result<(), AcmeError> {
        let meta = serde_json::json!({ "sans": [name.to_string()], "issuer_data": { "ca": url } });
        write(&self.certificate_file(name, "key"), key)?;
        write(&self.certificate_file(name, "crt"), chain)?;
        write(&self.certificate_file(name, "json"), &format!("{meta:#}\n"))
    }

    /// The account for this address, and its key in PEM, if they are there.
    pub(crate) fn account(&self, email: Option<&str>) -> Result<Option<(AccountFile, String)>, AcmeError> {
        let (file, key) = (self.account_file(email, "json"), self.account_file(email, "key"));
        let wrong = |path: &Path, source| AcmeError::Storage { path: path.to_owned(), source };
        let text = read(&file).map_err(|error| wrong(&file, error))?;
        let pem = read(&key).map_err(|error| wrong(&key, error))?;
        let Some((text, pem)) = text.zip(pem) else { return Ok(None) };
        let account = serde_json::from_str(&text).map_err(|error| wrong(&file, error.into()))?;
        Ok(Some((account, pem)))
    }

    pub(crate) fn keep_account(
        &self,
        email: Option<&str>,
        account: &AccountFile,
        key: &str,
    ) -> Result<(), AcmeError> {
        let text =
            serde_json::to_string_pretty(account).map_err(|error| AcmeError::Other(error.to_string()))?;
        write(&self.account_file(email, "key"), key)?;
        write(&self.account_file(email, "json"), &text)
    }

    /// Sees that files can be kept before an authority is asked for something that would be lost. `None` while somebody
    /// else is ordering the name.
    pub(crate) fn lock(&self, name: &Name) -> Result<Option<NameLock>, AcmeError> {
        let path =
            self.root.join("locks").join(format!("{}-{}.flock", self.authority, safe(&name.to_string())));
        let wrong = |source| AcmeError::Storage { path: path.clone(), source };
        make_folder(&path).map_err(wrong)?;
        make_folder(&self.certificate_file(name, "crt")).map_err(wrong)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(NameLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(wrong(source)),
        }
    }

    /// Where a file of a certificate is kept.
    #[must_use]
    pub fn certificate_file(&self, name: &Name, ending: &str) -> PathBuf {
        let name = safe(&name.to_string());
        self.root.join("certificates").join(&self.authority).join(&name).join(format!("{name}.{ending}"))
    }

    fn account_file(&self, email: Option<&str>, ending: &str) -> PathBuf {
        let email = email.unwrap_or("default").to_lowercase();
        let first = match email.split_once('@') {
            Some(("", rest)) => rest,
            Some((first, _)) => first,
            None => &email,
        };
        let users = self.root.join("acme").join(&self.authority).join("users");
        users.join(safe(&email)).join(format!("{}.{ending}", safe(first)))
    }
}

/// Host and path of a URL as one word.
fn authority_key(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.replace(['/', '\\'], "-");
    match path.trim_matches('-') {
        "" => host.to_owned(),
        path => format!("{host}-{path}"),
    }
}

/// A text as the name of a file.
fn safe(text: &str) -> String {
    let text = text.trim().to_lowercase();
    let text = text.replace(' ', "_").replace('+', "_plus_").replace('*', "wildcard_").replace(':', "-");
    let text = text.replace("..", "");
    text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '.' | '-')).collect()
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Puts a text into the place of a file, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), AcmeError> {
    let wrong = |source| AcmeError::Storage { path: path.to_owned(), source };
    make_folder(path).map_err(wrong)?;
    let beside =
        path.with_extension(format!("{}.new", path.extension().unwrap_or_default().to_string_lossy()));
    let result = (|| {
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    result.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use culvert_testkit::temp::TempDir;

    use super::*;

    const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

    fn domain(name: &str) -> Name {
        Name::Domain(name.to_owned())
    }

    #[test]
    fn files_lie_where_certmagic_puts_them() {
        let storage = Storage::new(Path::new("/d"), LETS_ENCRYPT);
        let shown = |path: PathBuf| path.display().to_string();
        assert_eq!(
            shown(storage.certificate_file(&domain("*.a.test"), "crt")),
            "/d/certificates/acme-v02.api.letsencrypt.org-directory/wildcard_.a.test/wildcard_.a.test.crt"
        );
        assert_eq!(
            shown(storage.account_file(Some("Me+x@a.test"), "key")),
            "/d/acme/acme-v02.api.letsencrypt.org-directory/users/me_plus_x@a.test/me_plus_x.key"
        );
        assert_eq!(
            shown(storage.account_file(None, "json")),
            "/d/acme/acme-v02.api.letsencrypt.org-directory/users/default/default.json"
        );
        let local = Storage::new(Path::new("/d"), "https://localhost:14000/dir/");
        assert_eq!(
            shown(local.certificate_file(&Name::Ip("::1".parse().unwrap()), "key")),
            "/d/certificates/localhost-14000-dir/--1/--1.key"
        );
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["../../etc/passwd", "a/../b", "..", "/etc/passwd", "a\\b", "....//x"] {
            let safe = safe(name);
            assert!(!safe.contains('/') && !safe.contains("..") && !safe.contains('\\'), "{name}: {safe}");
        }
    }

    #[test]
    fn what_is_kept_is_found_again_and_for_the_owner_only() {
        let folder = TempDir::new().unwrap();
        let root = folder.path().join("made");
        let storage = Storage::new(&root, LETS_ENCRYPT);
        let name = domain("a.test");
        assert_eq!(storage.certificate(&name).unwrap(), None);
        for text in ["one", "two"] {
            storage.keep_certificate(&name, text, "key", LETS_ENCRYPT).unwrap();
            assert_eq!(storage.certificate(&name).unwrap(), Some((text.into(), "key".into())));
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for ending in ["crt", "key", "json"] {
            assert_eq!(mode(&storage.certificate_file(&name, ending)), 0o600);
        }
        assert_eq!(mode(&root), 0o700);
        assert_eq!(mode(storage.certificate_file(&name, "crt").parent().unwrap()), 0o700);
        let left = fs::read_dir(storage.certificate_file(&name, "crt").parent().unwrap()).unwrap().count();
        assert_eq!(left, 3, "files that were on their way are left over");
    }

    #[test]
    fn accounts_of_certmagic_are_read() {
        let folder = TempDir::new().unwrap();
        let storage = Storage::new(folder.path(), LETS_ENCRYPT);
        assert!(storage.account(Some("me@a.test")).unwrap().is_none());
        let text = "{\n\t\"status\": \"valid\",\n\t\"contact\": [\n\t\t\"mailto:me@a.test\"\n\t],\n\
            \t\"termsOfServiceAgreed\": true,\n\t\"orders\": \"\",\n\t\"location\": \"https://ca.test/acct/7\"\n}";
        let place = "acme/acme-v02.api.letsencrypt.org-directory/users/me@a.test/me";
        folder.write(&format!("{place}.json"), text).unwrap();
        folder.write(&format!("{place}.key"), "KEY").unwrap();
        let (account, key) = storage.account(Some("me@a.test")).unwrap().unwrap();
        assert_eq!((account.location.as_str(), key.as_str()), ("https://ca.test/acct/7", "KEY"));
        storage.keep_account(None, &account, "OTHER").unwrap();
        let (again, key) = storage.account(None).unwrap().unwrap();
        assert_eq!((again.contact, key.as_str()), (account.contact, "OTHER"));
    }

    #[test]
    fn one_name_is_ordered_by_one_at_a_time() {
        let folder = TempDir::new().unwrap();
        let storage = Storage::new(folder.path(), LETS_ENCRYPT);
        let first = storage.lock(&domain("a.test")).unwrap();
        assert!(first.is_some());
        assert!(storage.lock(&domain("a.test")).unwrap().is_none());
        assert!(storage.lock(&domain("b.test")).unwrap().is_some());
        drop(first);
        assert!(storage.lock(&domain("a.test")).unwrap().is_some());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = TempDir::new().unwrap();
        let file = folder.write("file", "").unwrap();
        let error = Storage::new(&file, LETS_ENCRYPT).lock(&domain("a.test")).err().unwrap();
        assert!(error.to_string().contains("file/locks"), "{error}");
    }
}
