//! TUIC, version 5: streams and datagrams over one QUIC connection.
//!
//! ```text
//! stream, one way     5 0 id[16] token[32]                          Authenticate, by the client
//!                     5 2 assoc[2] id[2] total part len[2] addr     Packet, when datagrams travel on streams
//!                     5 3 assoc[2]                                  Dissociate, by the client
//! stream, both ways   5 1 addr                                      Connect; then the payload
//! datagram            5 2 assoc[2] id[2] total part len[2] addr     Packet; then its payload
//!                     5 4                                           Heartbeat
//!
//! token               what TLS exports for the label `id` and the context `password`
//! addr                0 length name port[2] │ 1 IPv4 port[2] │ 2 IPv6 port[2] │ ff (none: later parts)
//! ```
//!
//! The client says who it is while it already sends requests; the server keeps those until it knows. Nothing is answered: a
//! dial that fails ends its stream. Associations have numbers of the client's choice, and the server sends in the way in
//! which the first packet came.
//!
//! Sources: `SPEC.md` of `tuic-protocol/tuic`, and what sing-box 1.14.4 does on the wire (`udp_over_stream` is its own).
//!
//! Unlike sing-box: datagrams are only cut where the path demands it, and those that are no command are dropped instead of
//! ending the connection, but for other versions; an unknown `udp_relay_mode` is reported; a client whose server has said
//! nothing for three seconds though it should have begins again. Windows before the login are small.

pub mod codec;
mod commands;
mod inbound;
mod outbound;
mod packets;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::tuic::TuicInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::tuic::TuicOutbound;
use culvert_config::options::quic::CongestionControl;
use culvert_config::value::Word;
use culvert_core::{Inbound, Outbound};
use culvert_quic::{BbrProfile, Congestion};

use self::outbound::Client;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "tuic",
    inbound: inbound::<TuicInbound>(),
    outbound: outbound::<TuicOutbound>(),
    fuzz: &[codec::fuzz_command, crate::fragments::fuzz_fragments],
};

/// Time between signs of life where none is set.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Streams in one direction that the peer may have open: datagrams, if they travel so.
const UNI_STREAMS: u64 = 1024;

impl BuildInbound for TuicInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        Ok(Arc::new(inbound::inbound(cx.tag, self)?))
    }
}

impl BuildOutbound for TuicOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(Client::new(cx, self)?))
    }
}

fn congestion(option: &Word<CongestionControl>) -> Congestion {
    match option.get() {
        Some(CongestionControl::NewReno) => Congestion::NewReno,
        Some(CongestionControl::Bbr) => Congestion::Bbr(BbrProfile::Standard),
        Some(CongestionControl::Cubic) | None => Congestion::Cubic,
    }
}
