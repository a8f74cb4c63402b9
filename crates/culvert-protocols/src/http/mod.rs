//! `http` proxy inbound.

use crate::Protocol;

/// The table's line.
pub const PROTOCOL: Protocol = Protocol { name: "http", inbound: None, outbound: None, fuzz: &[] };
