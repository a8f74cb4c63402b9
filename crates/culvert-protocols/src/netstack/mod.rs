//! The userspace TCP/IP stack among tasks, for all that take in packets: TUN devices, WireGuard.
//!
//! | file | |
//! |---|---|
//! | `engine.rs` | the stack behind its lock, on a [`Link`] |
//! | `gate.rs` | what comes in: sessions for [`Dispatch`](culvert_core::Dispatch) |
//! | `open.rs` | what goes out: connections and associations that are opened from here |
//! | `device.rs` | a TUN device with its addresses |
//! | `stream.rs`, `packets.rs` | one connection, one association |

mod device;
mod engine;
mod gate;
mod open;
mod packets;
mod stream;

pub(crate) use device::{DeviceError, DeviceOptions};
pub(crate) use engine::{Engine, Link};
pub(crate) use gate::{Clients, Gate, Ground};
pub(crate) use open::{bind, connect};
