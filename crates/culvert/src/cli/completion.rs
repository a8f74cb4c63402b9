//! `culvert completion`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Failure, print};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The shell.
    shell: Shell,
}

pub(super) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "culvert", &mut script);
    print(&script)
}
