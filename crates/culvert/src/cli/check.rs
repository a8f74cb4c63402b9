//! `culvert check`

use tracing::warn;

use super::run::placed;
use super::{Failure, Global, refused, report, sources};
use crate::instance::Instance;

/// Reports everything that is wrong. Silent where nothing is.
///
/// What is right but has no engine yet is told too: `run` will refuse it.
pub(super) fn execute(global: &Global) -> Result<(), Failure> {
    let sources = sources::read(global)?;
    let loaded = culvert_config::load(&sources).map_err(|findings| refused(&findings))?;
    report(&loaded.warnings);
    // Objects may note the runtime they are to live in; nothing is started.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("start runtime: {error}")))?;
    let _guard = runtime.enter();
    if let Err(errors) = Instance::build(&loaded.options, u64::MAX) {
        errors.iter().for_each(|reason| warn!("`run` will refuse this: {}", placed(reason, &sources)));
    }
    Ok(())
}
