//! System calls behind safe functions: sockets with their options, network namespaces, splice, datagram batches.
//!
//! This is the only crate of Culvert with unsafe code, and that code sits in three places: `sys/linux.rs` holds one thin
//! function per system call, `udp/linux.rs` the two calls that carry arrays of pointers, and [`counting`] an allocator for
//! benchmarks. Everything public is safe,
//! never panics on what a peer sends, and never blocks: sockets are made non-blocking, and a call that would have to wait
//! fails with [`std::io::ErrorKind::WouldBlock`], as a readiness loop expects. Only [`ready::wait`] waits, by its name.
//!
//! No runtime is known here. Functions take a `BorrowedFd` and hand out types of std or socket2.
//!
//! Linux comes first. On other Unix systems the crate offers the same functions; plain sockets work there, and what has no
//! counterpart fails with [`std::io::ErrorKind::Unsupported`] (see `sys/other.rs`).

// The one place for unsafe code: each block names what makes it sound, and a test that would notice exercises it.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod cell;
pub mod counting;
pub mod iface;
#[cfg(target_os = "linux")]
pub mod netlink;
pub mod netns;
#[cfg(target_os = "linux")]
pub mod owner;
pub mod process;
pub mod ready;
pub mod socket;
pub mod splice;
pub mod tun;
pub mod udp;
#[cfg(target_os = "linux")]
pub mod wifi;

mod sys;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod testing;

pub use socket::SocketError;
