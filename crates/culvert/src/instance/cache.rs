//! The cache file of a configuration: opened at the start, and told to those who keep something in it.

use std::path::PathBuf;
use std::sync::Arc;

use culvert_cache::{CacheFile, OpenError};
use culvert_config::Options;

use crate::dns::Dns;
use crate::groups::Groups;

/// The file when no path is given (sing-box 1.14.4).
const PATH: &str = "cache.db";

/// A cache file, open or to be opened.
pub(super) struct Cache {
    path: PathBuf,
    id: String,
    store_fakeip: bool,
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

    /// Goes on with the file of the instance before, if it is the same. Until [`Self::take_over`] it is that one's to close.
    pub(super) fn share(&mut self, before: &Self) {
        if self.path == before.path {
            self.file.clone_from(&before.file);
            self.is_shared = self.file.is_some();
        }
    }

    /// The instance before ends: what was shared is this one's alone. Whether anything was.
    pub(super) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.is_shared)
    }

    /// Writes what is queued and lets go of the file.
    pub(super) fn close(&self) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.is_shared) {
            file.close();
        }
    }

    /// The file, once it is open.
    pub(super) fn file(&self) -> Option<&Arc<CacheFile>> {
        self.file.as_ref()
    }
}
