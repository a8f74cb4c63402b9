//! Trojan: a password and a target, then the bytes of the connection. All secrecy comes from the TLS around it.
//!
//! ```text
//! request    key[56]  CRLF  command  address  CRLF      then payload; the server answers nothing of its own
//! key        the hexadecimal digits of SHA-224(password), lower case
//! command    1 a connection, 3 datagrams, 7f trojan-go's mux
//! datagram   address  length[2]  CRLF  data             to the server where to, from it where from
//! mux        smux 1, each stream: command  address      then payload; the address in the request means nothing
//! ```
//!
//! Addresses are `AddressCodec::SOCKS` of the wire crate. Sources: the protocol's description by trojan-gfw
//! (`docs/protocol.md` of `trojan-gfw/trojan`), and what sing-box 1.14.4 does.
//!
//! # Those who are no clients
//!
//! With a `fallback`, whoever does not begin with a known key is connected to that site, with all that was read. This
//! happens at the first byte that no key can hold; with less than a key and nothing more, after a while. To a prober
//! the server then *is* that site. (sing-box reads once and takes what is shorter than a key for a stranger; here a
//! client whose key comes in pieces is served.) Without a fallback the stream is closed without a word.
//!
//! After a known key there is no fallback, as in sing-box.
//!
//! Left out on purpose: a client of trojan-go's mux, which sing-box has not either; cutting datagrams. Ours may have any size; a peer's limit (sing-box: 16 KiB) ends the
//! association there.

pub mod codec;
mod framing;
mod inbound;
mod outbound;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::vmess::TrojanInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::vmess::TrojanOutbound;
use culvert_core::{Inbound, Outbound};

use self::inbound::TrojanServer;
use self::outbound::Client;
use crate::carrier;
use crate::fields::listen::listen;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol, mux};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "trojan",
    inbound: inbound::<TrojanInbound>(),
    outbound: outbound::<TrojanOutbound>(),
    fuzz: &[codec::fuzz_request, codec::fuzz_head],
};

impl BuildInbound for TrojanInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let server = Arc::new(TrojanServer::new(self, listen.udp_timeout)?);
        carrier::inbound(cx, listen, self.tls.as_deref(), &self.transport, server)
    }
}

impl BuildOutbound for TrojanOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        mux::client(Arc::new(Client::new(cx, self)?), self.multiplex.as_ref())
    }
}
