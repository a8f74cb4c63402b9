//! The cache file of a configuration: opened at the start, and told to those who keep something in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_cache::{CacheFile, OpenError};
use culvert_config::Options;

use crate::dns::Dns;
use crate::groups::Groups;

/// The file when no path is given (sing-box 1.14.4).
const PATH: &str = "cache.db";
/// How often DNS answers are written, if there are new ones.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// A cache file, open or to be opened.
pub(super) struct Cache {
    path: PathBuf,
    id: String,
    store_fakeip: bool,
    store_dns: bool,
    /// For how long refused answers count, if they are kept.
    store_rejected: Option<Option<Duration>>,
    file: Option<Arc<CacheFile>>,
    /// Whether another instance, which still runs, has opened it.
    is_shared: bool,
}

impl Cache {
    /// The file of the options, if they want one.
    pub(super) fn of(options: &Options) -> Option<Self> {
        let options = options.experimental.cache_file.as_ref().filter(|options| options.enabled)?;
        let path = if options.path.is_empty() { PATH } else { &options.path };
        Some(Self {
            path: path.into(),
            id: options.cache_id.clone(),
            store_fakeip: options.store_fakeip,
            store_dns: options.store_dns,
            store_rejected: options.store_rdrc.then(|| options.rdrc_timeout.get()),
            file: None,
            is_shared: false,
        })
    }

    /// Opens it, and lets groups and fake addresses go on where they ended.
    pub(super) async fn open(&mut self, groups: &Groups, dns: &Dns) -> Result<(), OpenError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.open_file().await?,
        };
        for group in groups.iter() {
            group.keep_choice_in(&file);
        }
        if self.store_fakeip {
            dns.keep_fake_in(&file);
        }
        if let Some(timeout) = self.store_rejected {
            dns.keep_rejected_in(&file, timeout);
        }
        if self.store_dns {
            dns.restore_answers(&file);
        }
        self.file = Some(file);
        Ok(())
    }

    async fn open_file(&self) -> Result<Arc<CacheFile>, OpenError> {
        let (path, id) = (self.path.clone(), self.id.clone());
        let opened = tokio::task::spawn_blocking(move || CacheFile::open(&path, &id)).await;
        opened.map_err(|error| OpenError::Io {
            path: self.path.clone(),
            source: std::io::Error::other(error),
        })?
    }

    /// Whether both can be open: the same part of one file, or different files.
    pub(super) fn can_be_beside(&self, before: &Self) -> bool {
        self.path != before.path || self.id == before.id
    }

    /// Goes on with the file of the instance before, if it is the same, after its DNS answers are queued. Until
    /// [`Self::take_over`] it is that one's to close.
    pub(super) fn share(&mut self, before: &Self, dns: &Dns) {
        if self.path == before.path {
            before.save(dns);
            self.file.clone_from(&before.file);
            self.is_shared = self.file.is_some();
        }
    }

    /// The instance before ends: what was shared is this one's alone. Whether anything was.
    pub(super) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.is_shared)
    }

    /// Writes DNS answers now and then, for as long as it is polled, if they are kept.
    pub(super) fn saving(&self, dns: &Arc<Dns>) -> Option<impl Future<Output = ()> + Send + use<>> {
        let file = self.file.clone().filter(|_| self.store_dns)?;
        let dns = Arc::clone(dns);
        Some(async move {
            loop {
                tokio::time::sleep(SAVE_EVERY).await;
                dns.save_answers(&file);
            }
        })
    }

    /// Queues the DNS answers there are, if they are kept.
    fn save(&self, dns: &Dns) {
        if let Some(file) = self.file.as_ref().filter(|_| self.store_dns) {
            dns.save_answers(file);
        }
    }

    /// Writes all that is kept and lets go of the file. Done aloud, as the next instance wants it, and others may still
    /// hold it.
    pub(super) fn close(&self, dns: &Dns) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.is_shared) {
            self.save(dns);
            file.close();
        }
    }

    /// The file, once it is open.
    pub(super) fn file(&self) -> Option<&Arc<CacheFile>> {
        self.file.as_ref()
    }
}
