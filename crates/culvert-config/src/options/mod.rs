//! The options of a configuration as plain structs, section by section. Names are those of the JSON keys.

pub mod certificate;
pub mod certificate_provider;
pub mod dial;
pub mod dns;
pub mod endpoint;
pub mod experimental;
pub mod http_client;
pub mod http_fields;
pub mod hysteria;
pub mod inbound;
pub mod listen;
pub mod log;
pub mod mux;
pub mod namespace;
pub mod nat;
pub mod ntp;
pub mod outbound;
pub mod quic;
pub mod root;
pub mod route;
pub mod rule;
pub mod rule_set;
pub mod service;
pub mod shadowsocks;
pub mod snell;
pub mod tls;
pub mod transport;
pub mod users;

pub use root::Options;
