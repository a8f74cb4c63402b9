//! Bytes, as every other crate of Culvert sees them: pooled buffers, chains of them, readers over received
//! bytes, and the places connections go to. No tokio and no sockets here.
//!
//! | module | holds |
//! |---|---|
//! | [`buf`] | [`Buf`], one pooled piece of memory with room on both sides of its bytes |
//! | [`chain`] | [`BufChain`], a queue of pieces that is one run of bytes |
//! | [`pool`] | where the memory of a piece comes from and goes back to |
//! | [`reader`] | [`Reader`], which decodes without consuming |
//! | [`target`] | [`Target`], [`Host`], [`Domain`] |
//! | [`address`] | the wire forms of a target that the SOCKS family of protocols use |

#![forbid(unsafe_code)]

pub mod address;
pub mod buf;
pub mod chain;
pub mod pool;
pub mod reader;
pub mod target;

pub use address::AddressCodec;
pub use buf::{Buf, Room};
pub use chain::BufChain;
pub use reader::{DecodeError, Reader};
pub use target::{Domain, Host, InvalidDomain, Target};
