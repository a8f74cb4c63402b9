//! ShadowTLS: a connection that begins with the TLS handshake of somebody else's server, and goes on with traffic of ours.
//!
//! ```text
//! client ─── TLS handshake ───▶ us ───▶ handshake server (a real site)
//!        ─── then records ────▶ us ───▶ the inbound that `detour` names
//!
//! version 1   behind the handshake (TLS 1.2) bytes as they are
//! version 2   23 3 3 length  [tag 8, in the first record of the client]  payload
//! version 3   23 3 3 length   tag 4                                      payload
//! ```
//!
//! It encrypts nothing: that is for the protocol inside. The tag of version 2 is an HMAC-SHA1 with the password over all
//! that the client has got from the handshake server. In version 3 the last four bytes of the hello's session id are such a tag over
//! the hello; records of the handshake server come to the client changed and with a tag; and each record of ours has a
//! tag over all before it in its direction: see [`codec`]. A hello without a valid tag, one that has been seen
//! before, and a client of version 2 that sends three records without the tag, have the handshake server from there on.
//!
//! | module | holds |
//! |---|---|
//! | [`codec`] | tags, keys and records, without sockets |
//! | `server` | what a server does with each record of the handshake |
//! | `inbound`, `outbound` | the two sides |
//! | `conn` | the stream behind the handshake |
//!
//! Sources: ihciah/shadow-tls `docs/protocol-en.md`, `docs/protocol-v3-en.md`; sing-shadowtls as sing-box 1.14.4 uses it.

pub mod codec;
mod conn;
mod inbound;
mod outbound;
mod server;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::shadowtls::ShadowTlsInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::shadowtls::ShadowTlsOutbound;
use culvert_core::listener::StreamInbound;
use culvert_core::{Inbound, Outbound};

use crate::fields::listen::listen;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "shadowtls",
    inbound: inbound::<ShadowTlsInbound>(),
    outbound: outbound::<ShadowTlsOutbound>(),
    fuzz: &[codec::fuzz_records],
};

impl BuildInbound for ShadowTlsInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let server = inbound::ShadowTlsServer::new(self, cx.dialer)?;
        Ok(Arc::new(StreamInbound::new(cx.tag, listen.address, listen.tcp, Arc::new(server))))
    }
}

impl BuildOutbound for ShadowTlsOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(outbound::Client::new(self, cx)?))
    }
}
