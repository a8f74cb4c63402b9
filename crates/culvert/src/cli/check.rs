//! `culvert check`

use super::{Failure, Global, refused, report, sources};

/// Reports everything that is wrong. Silent where nothing is.
pub(super) fn execute(global: &Global) -> Result<(), Failure> {
    let loaded = culvert_config::load(&sources::read(global)?).map_err(|findings| refused(&findings))?;
    report(&loaded.warnings);
    Ok(())
}
