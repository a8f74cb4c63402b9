//! `redirect` and `tproxy`: connections that a packet filter has turned aside to this host (Linux).
//!
//! ```text
//! redirect   nft … redirect to :7892     TCP. The kernel rewrites the destination, and tells the old one when asked.
//! tproxy     nft … tproxy to :7893       TCP and UDP. Nothing is rewritten: the listener takes packets for addresses
//!                                        that are not this host's, and answers from them.
//! ```
//!
//! The `tun` inbound has its `auto_redirect` connections served here too.
//!
//! Both need nothing from the client, so there is no handshake. A client that connects to the listener itself was not
//! turned aside by anybody; it is turned away, since its target would be this very listener.
//!
//! Answers to datagrams leave from the address that they claim to be from, each such address by a socket of its own, of
//! which an association keeps a few.
//!
//! Sources: ip(7), ipv6(7), nft(8), the kernel's `networking/tproxy.rst`.

mod packets;
mod streams;

use std::sync::Arc;

use culvert_config::options::inbound::transparent::{RedirectInbound, TproxyInbound};
use culvert_config::options::listen::ListenOptions;
use culvert_core::Inbound;
use culvert_core::listener::StreamInbound;

use self::packets::PacketListener;
pub(crate) use self::streams::{Found, Server};
use crate::fields::listen::listen;
use crate::table::{BuildInbound, inbound};
use crate::{BuildError, InboundCx, Protocol};

/// The table's line for `redirect`.
pub const REDIRECT: Protocol =
    Protocol { name: "redirect", inbound: inbound::<RedirectInbound>(), outbound: None, fuzz: &[] };

/// The table's line for `tproxy`.
pub const TPROXY: Protocol =
    Protocol { name: "tproxy", inbound: inbound::<TproxyInbound>(), outbound: None, fuzz: &[] };

impl BuildInbound for RedirectInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let server = Arc::new(Server::new(Found::BeforeRewriting));
        Ok(Arc::new(StreamInbound::new(cx.tag, listen.address, listen.tcp, server)))
    }
}

impl BuildInbound for TproxyInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let mut listen = listen(&self.listen, true)?;
        (listen.tcp.transparent, listen.udp.transparent) = (true, true);
        let streams = self.network.tcp().then(|| {
            let server = Arc::new(Server::new(Found::AsLocalAddress));
            StreamInbound::new(cx.tag.clone(), listen.address, listen.tcp.clone(), server)
        });
        let packets = self.network.udp().then(|| PacketListener::new(cx.tag.clone(), &listen, &self.nat));
        Ok(Arc::new(packets::Both { tag: cx.tag, streams, packets }))
    }
}
