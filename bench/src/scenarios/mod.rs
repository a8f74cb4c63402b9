//! What can be measured: one module per sub-command.

use crate::chain::WorkDir;
use crate::programs::Program;

pub(crate) mod connect;
pub(crate) mod dns;
pub(crate) mod latency;
pub(crate) mod matrix;
pub(crate) mod path;
pub(crate) mod rules;
pub(crate) mod startup;
pub(crate) mod stress;
pub(crate) mod tun;
pub(crate) mod vpn;

/// What every scenario works with.
pub(crate) struct Context {
    pub(crate) programs: Vec<Program>,
    pub(crate) work_dir: WorkDir,
}

/// Bytes as tables show memory.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
