//! The options of a configuration as plain structs, section by section. Names are those of the JSON keys.

pub mod certificate;
pub mod dial;
pub mod dns;
pub mod inbound;
pub mod listen;
pub mod log;
pub mod namespace;
pub mod ntp;
pub mod outbound;
pub mod root;
pub mod route;
pub mod rule;
pub mod rule_set;
pub mod tls;
pub mod users;

pub use root::Options;
