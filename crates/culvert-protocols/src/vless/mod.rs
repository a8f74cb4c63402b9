//! VLESS: a header with the user's id before the connection, and nothing else. It hides nothing by itself; that is what TLS
//! below it is for.
//!
//! ```text
//! request    00  id  addons  command  [port  address]  then the bytes of the connection
//! response   00  addons                                then the bytes of the connection
//!
//! id         16 bytes
//! addons     length (1 byte), then that much: a protobuf message in which field 1 is the flow
//! command    1 TCP, 2 UDP: packets of one peer, each with its length (2 bytes) before it; 3 mux.cool, without an address
//! ```
//!
//! Addresses are `AddressCodec::VLESS`. Each side writes its header with the first bytes it has for the other. The client's
//! leaves after a moment when none come; the server's does not, since a record of two bytes would tell what this is.
//! After the headers the bytes of a connection are untouched, which lets the relay splice.
//!
//! Datagrams go as XUDP (see [`mux_cool`](crate::mux_cool)) unless the options say `packetaddr` or nothing, which is one
//! association for each peer.
//!
//! With the flow `xtls-rprx-vision` the bytes of a connection are among padding at first: see [`vision`].
//!
//! Sources: the VLESS page of the Xray documentation, sing-vmess `vless` as sing-box 1.14.4 uses it. Left out on purpose: what
//! only Xray has (`decryption`, fallbacks, reverse connections).

pub mod codec;
mod conn;
mod inbound;
mod outbound;
mod users;
pub mod vision;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::vmess::VlessInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::vmess::VlessOutbound;
use culvert_config::options::users::VlessFlow;
use culvert_core::{Inbound, Outbound};

use self::inbound::VlessServer;
use self::outbound::Client;
use self::users::Users;
use crate::carrier::{self, Carrier};
use crate::fields::listen::listen;
use crate::onward::Onward;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol, mux};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "vless",
    inbound: inbound::<VlessInbound>(),
    outbound: outbound::<VlessOutbound>(),
    fuzz: &[codec::fuzz_request, codec::fuzz_response, vision::frame::fuzz_frames],
};

impl BuildInbound for VlessInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let onward = Onward { mux: mux::Server::new(self.multiplex.as_ref())?, uot: true };
        let server = VlessServer::new(Users::new(&self.users), onward, listen.udp_timeout);
        carrier::inbound(cx, listen, self.tls.as_deref(), &self.transport, Arc::new(server))
    }
}

impl BuildOutbound for VlessOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        let OutboundCx { tag, dialer, store } = cx;
        let carrier = Carrier::new(dialer, &store, &self.server, self.tls.as_deref(), &self.transport)?;
        let client = Client {
            tag,
            carrier,
            id: codec::Id(self.uuid.uuid()),
            tcp: self.network.tcp(),
            udp: self.network.udp(),
            packet_encoding: self.packet_encoding(),
            vision: self.flow.get() == Some(VlessFlow::Vision),
        };
        mux::client(Arc::new(client), self.multiplex.as_ref())
    }
}
