//! `mixed` proxy inbound.

use crate::Protocol;

/// The table's line.
pub const PROTOCOL: Protocol = Protocol { name: "mixed", inbound: None, outbound: None, fuzz: &[] };
