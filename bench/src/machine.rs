//! The machine a run was made on, so that numbers are never read without it.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::procfs::kib_field;

/// Where the numbers were made.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// The processor's own name.
    pub(crate) cpu: String,
    /// Processors this program may use.
    pub(crate) cores: usize,
    /// Bytes.
    pub(crate) memory: u64,
    /// Kernel release.
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: cpu_model(&read("/proc/cpuinfo")).unwrap_or_else(|| "unknown processor".into()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory: kib_field(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        let gib = self.memory as f64 / f64::from(1 << 30);
        format!("{}, {} cores, {gib:.1} GiB, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

/// The model name where there is one (x86), else the architecture.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    match line {
        Some(line) => Some(line.split_once(':')?.1.trim().to_owned()),
        None => Some(std::env::consts::ARCH.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_or_architecture() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Fast One\n").as_deref(), Some("Fast One"));
        assert_eq!(cpu_model("processor\t: 0\n").as_deref(), Some(std::env::consts::ARCH));
    }

    #[test]
    fn summary_reads_as_one_line() {
        let machine = Machine { cpu: "Fast One".into(), cores: 2, memory: 3 << 29, kernel: "6.1".into() };
        assert_eq!(machine.summary(), "Fast One, 2 cores, 1.5 GiB, Linux 6.1");
    }
}
