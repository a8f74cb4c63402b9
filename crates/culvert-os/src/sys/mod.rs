//! One safe function per system call that neither std nor socket2 offers; the platform seam of this crate.
//!
//! `linux.rs` and `other.rs` define the same functions. The modules above are written once, against these.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod platform;

#[cfg(not(target_os = "linux"))]
#[path = "other.rs"]
mod platform;

pub(crate) use platform::*;
