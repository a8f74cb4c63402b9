//! For tests and benchmarks only: network paths that delay, lose, repeat, reorder and limit, the same each time by seed.
//!
//! | module    | what it gives                                                                            |
//! |-----------|------------------------------------------------------------------------------------------|
//! | [`shape`] | what a path does to packets: the parameters                                              |
//! | [`way`]   | one direction as a machine without I/O: packets and the time go in, packets come out     |
//! | [`path`]  | both directions                                                                          |
//! | [`link`]  | a path between two network namespaces, through two TUN devices (Linux, as root)          |
//! | [`relay`] | a path between a UDP client and a UDP server over loopback                               |
//!
//! ```text
//!            lost? twice?        bottleneck              line
//! offer ──▶  dice          ──▶  queue, rate  ──▶  delay ± jitter, late?  ──▶  take
//! ```
//!
//! As with netem, what gets lost does not use the bottleneck. All decisions come from the seed and the order of the
//! packets, each kind of decision from a sequence of its own: two runs that offer the same packets at the same times get
//! the same answers, and turning on one effect does not reshuffle another.
#![forbid(unsafe_code)]

mod dice;
#[cfg(target_os = "linux")]
pub mod link;
pub mod path;
#[cfg(target_os = "linux")]
pub mod relay;
pub mod shape;
#[cfg(target_os = "linux")]
mod train;
pub mod way;

pub use path::Path;
pub use shape::{Loss, Shape};
pub use way::{Counts, Way};
