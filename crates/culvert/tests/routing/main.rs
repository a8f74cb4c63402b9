//! Routing tests: verdicts of whole programs, ours beside sing-box's.
//!
//! | module     | what it holds                                                                          |
//! |------------|----------------------------------------------------------------------------------------|
//! | [`exits`]  | SOCKS servers that tell a client which of them it reached, and what it was to dial     |
//! | [`client`] | SOCKS and DNS clients, as small as the tests allow                                     |
//! | [`commands`] | `rule-set` and `explain` on the command line                                  |
//! | [`dice`]   | repeatable random choices                                                              |
//! | [`races`]  | DNS rules over answers that come at different times                                   |
//! | [`routes`] | random route rules and flows: equal verdicts from both programs                       |
//! | [`queries`]| the same for DNS rules and queries                                                     |
//! | [`around`] | programs, users and interfaces in rules                                               |
//! | [`kept`]   | what is fetched, and what outlives the program                                        |
//! | [`lists`]  | a web server for lists                                                                |
//! | [`shapes`] | what rules do to the payload, and what endpoints ask for                      |
//! | [`single`] | one feature at a time, on our program alone                                            |
//!
//! `ROUTING_ROUNDS` is how many random configurations are tried, `ROUTING_SEED` where they begin.
#![allow(clippy::print_stderr, reason = "the tests report there")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod around;
mod client;
mod commands;
mod dice;
mod exits;
mod kept;
mod lists;
mod queries;
mod races;
mod routes;
mod shapes;
mod single;

use culvert_testkit::peer::{Program, skip};

/// The program under test.
fn culvert() -> Option<Program> {
    match option_env!("CARGO_BIN_EXE_culvert") {
        Some(built) => Some(Program::culvert(built)),
        None => {
            skip("the program is not built yet");
            None
        }
    }
}

/// Runs the body of a test on a runtime of its own, so that every child is started by the test's thread, and where that is
/// permitted in a network of its own.
fn run<F: Future<Output = culvert_testkit::Result>>(test: F) {
    if let Err(error) = culvert_os::netns::isolate_thread() {
        eprintln!("the test shares the machine's loopback: {error}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Err(error) = runtime.block_on(test) {
        panic!("{error}");
    }
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
