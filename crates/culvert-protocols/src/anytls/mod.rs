//! AnyTLS: streams inside a TLS connection that is used for one after the other, with the first records padded.
//!
//! ```text
//! login      SHA-256(password)[32]  length[2]  zeros      by itself in the first record
//! frame      command  stream[4]  length[2]  data
//! client     Settings, Open 1, Push 1 (address), Push 1 … Finish 1, Open 2 …
//! server     UpdatePadding (if the client's is another), ServerSettings, Opened 1, Push 1 … Finish 1
//! ```
//!
//! The address that a stream begins with is `AddressCodec::SOCKS` of the wire crate; datagrams are UDP over TCP. Version 2
//! of the protocol has the server say how dials went and both ends answer when asked whether they live; version 1 has not.
//!
//! Sources: `docs/protocol.md` of `anytls/anytls-go`, and what sing-box 1.14.4 does on the wire.
//!
//! Beyond sing-box: a client asks an idle session whether it lives before it relies on it, and with every reuse, so that a
//! path that has died costs seconds and not the stream; a login may come in pieces; frames of unknown kinds are skipped
//! with their data; half-closes between two Culverts (see [`session`]). There is no fallback, as sing-box has none: who does
//! not know a password is closed without a word.

pub mod codec;
mod inbound;
mod outbound;
pub mod padding;
mod pool;
mod session;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::anytls::AnyTlsInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::anytls::AnyTlsOutbound;
use culvert_core::listener::StreamInbound;
use culvert_core::{Inbound, Outbound};

use self::inbound::AnyTlsServer;
use self::outbound::Client;
use crate::carrier::secured;
use crate::fields::listen::listen;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "anytls",
    inbound: inbound::<AnyTlsInbound>(),
    outbound: outbound::<AnyTlsOutbound>(),
    fuzz: &[codec::fuzz_frames, codec::fuzz_setting, padding::fuzz_scheme],
};

impl BuildInbound for AnyTlsInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let server = Arc::new(AnyTlsServer::new(self, listen.udp_timeout)?);
        let server = secured(cx.dialer, self.tls.as_deref(), &[], server)?;
        Ok(Arc::new(StreamInbound::new(cx.tag, listen.address, listen.tcp, server)))
    }
}

impl BuildOutbound for AnyTlsOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        if !self.tls.as_ref().is_some_and(|tls| tls.enabled) {
            return Err(BuildError::Invalid { option: "tls", reason: "must be enabled".to_owned() });
        }
        Ok(Arc::new(Client::new(cx, self)?))
    }
}
