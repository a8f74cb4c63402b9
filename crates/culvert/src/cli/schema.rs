//! `culvert schema`

use std::path::PathBuf;

use clap::Args;

use super::{Failure, print};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let schema = culvert_config::schema();
    match &arguments.output {
        None => print(schema.as_bytes()),
        Some(path) => std::fs::write(path, schema)
            .map_err(|error| Failure(format!("write schema to {}: {error}", path.display()))),
    }
}
