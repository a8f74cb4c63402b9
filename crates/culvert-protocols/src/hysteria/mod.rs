//! Hysteria, version 1: streams and datagrams over one QUIC connection that sends at the speed it was told.
//!
//! ```text
//! first stream    3 send[8] receive[8] auth        hello of the client, bytes per second
//!                 ok send[8] receive[8] text       hello of the server; the stream stays open
//! other streams   0 host port[2]                   a connection; then the payload
//!                 1 host port[2]                   an association, as long as the stream is open
//!                 ok session[4] text               the answer, before the server's payload
//! datagram        session[4] host port[2] packet[2] part total len[2] data
//!
//! auth, host, text: a length of two bytes, then so many
//! ```
//!
//! Both ends send by Brutal at the lesser of what they want and what the other one can receive. With `obfs` every packet of
//! the connection is disguised ([`xplus`]). A server that does not know the password says so, and closes with code 2.
//!
//! Sources: what sing-box 1.14.4 does on the wire. Left out: what the first program had besides UDP (`faketcp`,
//! `wechat-video`), as sing-box has none of it.
//!
//! Unlike sing-box: datagrams of unknown associations are dropped instead of ending the connection.

pub mod codec;
mod inbound;
mod outbound;
mod packets;
mod xplus;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::hysteria::HysteriaInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::hysteria::HysteriaOutbound;
use culvert_core::{Inbound, Outbound};
use culvert_quic::Disguise;

use self::outbound::Client;
use self::xplus::XPlus;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "hysteria",
    inbound: inbound::<HysteriaInbound>(),
    outbound: outbound::<HysteriaOutbound>(),
    fuzz: &[codec::fuzz_messages],
};

/// The application protocol where the options name none.
const ALPN: &[&str] = &["hysteria"];
/// The code that a connection is closed with whose client speaks another version.
const WRONG_VERSION: u64 = 1;
/// The same where the password is wrong.
const WRONG_PASSWORD: u64 = 2;

impl BuildInbound for HysteriaInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        Ok(Arc::new(inbound::inbound(cx.tag, self)?))
    }
}

impl BuildOutbound for HysteriaOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(Client::new(cx, self)?))
    }
}

/// The speeds in bytes per second, both of which must be given.
fn speeds(up: i64, down: i64) -> Result<(u64, u64), BuildError> {
    let speed = |option, speed: i64| {
        u64::try_from(speed)
            .ok()
            .filter(|speed| *speed > 0)
            .ok_or_else(|| BuildError::Invalid { option, reason: "no speed is given".to_owned() })
    };
    Ok((speed("up", up)?, speed("down", down)?))
}

fn disguise(password: &str) -> Option<Arc<dyn Disguise>> {
    (!password.is_empty()).then(|| Arc::new(XPlus::new(password.as_bytes())) as _)
}
