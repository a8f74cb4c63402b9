//! Hysteria 2: QUIC that looks like a web server, at a rate that is agreed on.
//!
//! ```text
//! UDP  [hopping between ports]  [Salamander]  QUIC, ALPN h3
//!   request    POST https://hysteria/auth, fields hysteria-auth, hysteria-cc-rx, hysteria-padding
//!   answer     233, fields hysteria-udp, hysteria-cc-rx, hysteria-padding; anything else is what the site says
//!   stream     client: 401  address len  address  padding len  padding        then payload
//!              server: 0 or 1  text len  text  padding len  padding           then payload
//!   datagram   session[4]  packet[2]  fragment  count  address len  address  data
//! ```
//!
//! Lengths are QUIC's numbers of 1, 2, 4 or 8 bytes, addresses are text: `host:port`. Whoever sends no such request, or
//! another password, meets the web server of `masquerade`. `hysteria-cc-rx` is what an end can receive in bytes per
//! second: the other end sends as much, by Brutal; where one of them does not say, BBR finds it.
//!
//! Source: the protocol's description by apernet (`PROTOCOL.md` of `apernet/hysteria`), and what sing-box 1.14.4 does.
//!
//! Left out: Gecko, realms (refused by name), and looking like Chrome: the first messages are the library's.
//! Differences from sing-box, on purpose: a client that the server turns away for want of a rate is not served
//! nevertheless; a malformed datagram is dropped and ends nothing.

mod auth;
mod codec;
mod inbound;
mod masquerade;
mod outbound;
mod packets;
mod salamander;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::hysteria::{Obfuscation, ObfuscationKind};
use culvert_config::options::inbound::hysteria::Hysteria2Inbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::hysteria::Hysteria2Outbound;
use culvert_config::options::quic::BbrProfile as ProfileOption;
use culvert_config::value::Word;
use culvert_core::{Inbound, Outbound};
use culvert_quic::{BbrProfile, Disguise};

use self::salamander::Salamander;
use crate::quic::transport;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "hysteria2",
    inbound: inbound::<Hysteria2Inbound>(),
    outbound: outbound::<Hysteria2Outbound>(),
    fuzz: &[codec::fuzz_stream, codec::fuzz_datagram, culvert_quic::h3::qpack::fuzz_section],
};

/// Bytes per second in a megabit per second.
const MEGABIT: u64 = 125_000;

impl BuildInbound for Hysteria2Inbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        if self.realm.is_some() {
            return Err(cx.not_built("realm"));
        }
        Ok(Arc::new(inbound::inbound(cx, self)?))
    }
}

impl BuildOutbound for Hysteria2Outbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        if self.realm.is_some() {
            return Err(cx.not_built("realm"));
        }
        Ok(Arc::new(outbound::Client::new(cx, self)?))
    }
}

/// A rate of the options in bytes per second; `None` if it is not said.
fn rate(option: &'static str, mbps: i64) -> Result<Option<u64>, BuildError> {
    let mbps = u64::try_from(mbps)
        .map_err(|_| BuildError::Invalid { option, reason: "a speed cannot be negative".to_owned() })?;
    Ok(Some(mbps.saturating_mul(MEGABIT)).filter(|rate| *rate > 0))
}

fn profile(option: &Word<ProfileOption>) -> BbrProfile {
    match option.get() {
        Some(ProfileOption::Conservative) => BbrProfile::Conservative,
        Some(ProfileOption::Aggressive) => BbrProfile::Aggressive,
        Some(ProfileOption::Standard) | None => BbrProfile::Standard,
    }
}

fn disguise(option: &Obfuscation) -> Result<Option<Arc<dyn Disguise>>, BuildError> {
    match &option.0 {
        None => Ok(None),
        Some(ObfuscationKind::Salamander(options)) => {
            Ok(Some(Arc::new(Salamander::new(options.password.as_bytes()))))
        }
        Some(ObfuscationKind::Gecko(_)) => {
            Err(BuildError::NotBuilt { feature: "`obfs` of type gecko for hysteria2".to_owned() })
        }
    }
}
