//! An error with all its causes in one line.

use std::error::Error;
use std::fmt;

/// Shows an error and what lies under it, left to right: `outbound/socks[a]: connect to 192.0.2.1:1080: refused`.
///
/// Errors here say only what their own layer knows and leave the cause to [`Error::source`].
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut error = self.0;
        while let Some(source) = error.source() {
            write!(f, ": {source}")?;
            error = source;
        }
        Ok(())
    }
}
