//! `culvert-bench`: the tables by which proxy cores are compared, made by one command each on any Linux machine.
//!
//! The load generator is part of this program; the programs under test are given by `--bin NAME=PATH` and all get the
//! same configuration files. How a run is made, from the outside in:
//!
//! ```text
//! cli       the command line
//! scenarios what is measured, a module per sub-command
//! plan      rounds: protocols × contenders in turn, fresh processes each time
//! chain     programs started and connected; protocols, adapters: their configurations; process, procfs: what they use
//! network   namespaces with a wire or an emulated path between them
//! bulk, requests, exchanges, datagrams, objects  client ends of the load; target: the server end; wire, inner: what they say
//! results   plain data of a run, kept as JSON; table, report: what people see
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod bulk;
mod chain;
mod cli;
mod datagrams;
mod exchanges;
mod failure;
mod identity;
mod inner;
mod machine;
mod network;
mod objects;
mod plan;
mod process;
mod procfs;
mod programs;
mod progress;
mod protocols;
mod relay;
mod report;
mod requests;
mod results;
mod scenarios;
mod stats;
mod table;
mod target;
mod verify;
mod wire;

use std::process::ExitCode;

/// `rules` says how many allocations a decision takes.
#[global_allocator]
static ALLOCATOR: culvert_os::counting::Counting = culvert_os::counting::Counting;

fn main() -> ExitCode {
    cli::main()
}
