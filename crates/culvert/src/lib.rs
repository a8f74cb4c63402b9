//! Culvert: a universal proxy core that takes sing-box configurations.
//!
//! The program is [`cli::main`]. Embedded, load options with [`culvert_config::load`], then build and start an
//! [`instance::Instance`].

#![forbid(unsafe_code)]

pub mod cli;
mod dns;
pub mod groups;
pub mod instance;
pub mod log;
mod router;
mod services;
