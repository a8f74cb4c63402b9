//! Directories that vanish with the test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own, removed with all it holds when this is dropped.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes an empty directory below the system's place for temporary files.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name =
                format!("culvert-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left by an earlier process with the same number that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file below the directory, making the folders on its way, and returns its path.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A failure leaves litter in /tmp, which is no reason to fail a test.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_goes_with_its_owner() {
        let dir = TempDir::new().unwrap();
        let file = dir.write("a/b.json", "{}").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"{}");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }
}
