//! The client: asks a server for connections and associations.

use async_trait::async_trait;
use culvert_config::options::outbound::vmess::TrojanOutbound;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
use culvert_wire::BufChain;

use super::codec::{Command, Key, Request, key};
use super::framing::{TrojanFraming, TrojanPackets};
use crate::carrier::Carrier;
use crate::handshake::write_error;
use crate::headed::Headed;
use crate::{BuildError, OutboundCx};

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    carrier: Carrier,
    key: Key,
    tcp: bool,
    udp: bool,
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &TrojanOutbound) -> Result<Self, BuildError> {
        let tls = options.tls.as_deref();
        Ok(Self {
            tag: cx.tag,
            carrier: Carrier::new(cx.dialer, &cx.store, &options.server, tls, &options.transport)?,
            key: key(options.password.as_bytes()),
            tcp: options.network.tcp(),
            udp: options.network.udp(),
        })
    }

    fn header(&self, command: Command, session: &Session) -> Vec<u8> {
        let mut header = Vec::new();
        Request { command, target: session.target.clone() }.encode(&self.key, &mut header);
        header
    }
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        match network {
            Network::Tcp => self.tcp,
            Network::Udp => self.udp,
            Network::Icmp => false,
        }
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let conn = self.carrier.connect(session).await?;
        let header = self.header(Command::Connect, session);
        Headed::open(header, conn, early).await.map_err(write_error("trojan request"))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let conn = self.carrier.connect(session).await?;
        let header = BufChain::copied(&self.header(Command::Associate, session));
        let framing = TrojanFraming::towards(Some(&session.target));
        Ok(Box::new(TrojanPackets::new(framing, conn, BufChain::new(), header)))
    }
}
