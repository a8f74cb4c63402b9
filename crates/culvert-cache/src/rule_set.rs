//! A copy of a rule-set as it was fetched.
//!
//! ```text
//! | version 1 | fetched: seconds since 1970, 8 | url | etag | last-modified | content to the end
//! a text: length 4 | bytes                                    (numbers little-endian)
//! ```

use std::time::{Duration, SystemTime};

/// Form of the bytes; others are not read.
const VERSION: u8 = 1;

/// A copy of a rule-set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SavedRuleSet {
    /// Where it is from. A copy from another place is of no use.
    pub url: String,
    /// What the server named this version of it; empty for nothing.
    pub etag: String,
    /// When the server says it was changed; empty for nothing.
    pub last_modified: String,
    /// When it was last known to be what the server has, in whole seconds.
    pub fetched: SystemTime,
    /// The file.
    pub content: Vec<u8>,
}

impl SavedRuleSet {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let fetched = self.fetched.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut bytes = vec![VERSION];
        bytes.extend(fetched.to_le_bytes());
        for text in [&self.url, &self.etag, &self.last_modified] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(&self.content);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (fetched, mut rest) = rest.split_first_chunk()?;
        let mut text = || {
            let (length, behind) = rest.split_first_chunk()?;
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            String::from_utf8(text.to_vec()).ok()
        };
        let (url, etag, last_modified) = (text()?, text()?, text()?);
        let seconds = Duration::from_secs(u64::from_le_bytes(*fetched));
        let fetched = SystemTime::UNIX_EPOCH.checked_add(seconds)?;
        (version == VERSION).then(|| Self { url, etag, last_modified, fetched, content: rest.to_vec() })
    }
}
