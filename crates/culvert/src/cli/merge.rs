//! `culvert merge`

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Global, note, refused, sources};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The file to write; missing directories above it are made.
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let merged = culvert_config::merge(&sources::read(global)?).map_err(|findings| refused(&findings))?;
    let path = std::path::absolute(&arguments.output).unwrap_or_else(|_| arguments.output.clone());
    let failed = |error: std::io::Error| Failure(format!("write {}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::write(&path, merged + "\n").map_err(failed)?;
    note(path.display());
    Ok(())
}
