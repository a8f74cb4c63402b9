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
        })
    }

    /// Opens it, and lets groups and fake addresses go on where they ended.
    pub(super) async fn open(&mut self, groups: &Groups, dns: &Dns) -> Result<(), OpenError> {
        let (path, id) = (self.path.clone(), self.id.clone());
        let opened = tokio::task::spawn_blocking(move || CacheFile::open(&path, &id)).await;
        let file = opened.map_err(|error| OpenError::Io {
            path: self.path.clone(),
            source: std::io::Error::other(error),
        })??;
        for group in groups.iter() {
            group.keep_choice_in(&file);
        }
        if self.store_fakeip {
            dns.keep_fake_in(&file);
        }
        self.file = Some(file);
        Ok(())
    }

    /// The file, once it is open.
    pub(super) fn file(&self) -> Option<&Arc<CacheFile>> {
        self.file.as_ref()
    }
}
