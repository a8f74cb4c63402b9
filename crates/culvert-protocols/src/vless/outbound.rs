//! The client: asks a server for connections and associations.

use std::io;
use std::task::{Context, Poll};

use async_trait::async_trait;
use culvert_config::options::outbound::vmess::PacketEncoding;
use culvert_core::conn::write_chain;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Network, Outbound, PacketBatch, PacketConn, Session, Tag,
};
use culvert_wire::{BufChain, Room, Target};

use super::codec::{Command, Id, Request};
use super::conn::Answered;
use super::vision::{self, VisionConn};
use crate::carrier::Carrier;
use crate::handshake::{within_limit, write_error};
use crate::headed::Headed;
use crate::mux_cool::XudpConn;
use crate::packetaddr::{self, PacketAddrConn};
use crate::uot::UotConn;

/// The outbound.
pub(super) struct Client {
    pub(super) tag: Tag,
    pub(super) carrier: Carrier,
    pub(super) id: Id,
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) packet_encoding: Option<PacketEncoding>,
    /// Connections go by the flow `xtls-rprx-vision`.
    pub(super) vision: bool,
}

impl Client {
    /// The header leaves together with `early`, or else with the first bytes that are written.
    async fn open(
        &self,
        session: &Session,
        command: Command,
        early: &mut BufChain,
    ) -> Result<BoxStream, DialError> {
        const PHASE: &str = "vless request";
        let conn = self.carrier.connect(session).await?;
        let flow = if self.vision { vision::NAME.into() } else { Vec::new() };
        let mut header = Vec::new();
        Request { id: self.id, flow, command }.encode(&mut header);
        if self.vision {
            let conn = Box::new(Answered::new(Box::new(Headed::answering(header, conn))));
            let mut conn = VisionConn::client(conn, self.id);
            if !early.is_empty() {
                let opening = async { write_chain(&mut conn, early).await.map_err(write_error(PHASE)) };
                within_limit(PHASE, opening).await?;
            }
            return Ok(Box::new(conn));
        }
        let opening = async { Headed::open(header, conn, early).await.map_err(write_error(PHASE)) };
        Ok(Box::new(Answered::new(within_limit(PHASE, opening).await?)))
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
        self.open(session, Command::Tcp(session.target.clone()), early).await
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let target = &session.target;
        let none = &mut BufChain::new();
        // No server takes datagrams of this flow by another encoding.
        let encoding = if self.vision { Some(PacketEncoding::Xudp) } else { self.packet_encoding };
        match encoding {
            Some(PacketEncoding::Xudp) => {
                let conn = self.open(session, Command::Mux, none).await?;
                Ok(Box::new(XudpConn::client(conn, target.clone())))
            }
            Some(PacketEncoding::PacketAddr) => {
                if target.socket_addr().is_none() {
                    let reason = "packetaddr carries packets to addresses only";
                    return Err(DialError::Target { target: target.clone(), reason });
                }
                let sign = packetaddr::magic_target();
                let conn = self.open(session, Command::Udp(sign.clone()), none).await?;
                let packets = UotConn::server(conn, BufChain::new(), Some(sign));
                Ok(Box::new(PacketAddrConn::new(Box::new(packets))))
            }
            None => {
                let conn = self.open(session, Command::Udp(target.clone()), none).await?;
                let packets = UotConn::server(conn, BufChain::new(), Some(target.clone()));
                Ok(Box::new(OnePeer { packets, peer: target.clone(), sifted: 0 }))
            }
        }
    }
}

/// An association with one peer. Packets to others are dropped: the server would send them to this one.
struct OnePeer {
    packets: UotConn,
    peer: Target,
    /// Packets at the front of the batch being sent that were looked at.
    sifted: usize,
}

impl PacketConn for OnePeer {
    fn room(&self) -> Room {
        self.packets.room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.packets.poll_recv(cx, room, batch)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let mut old = self.sifted;
        batch.retain(|packet| {
            let keep = old > 0 || packet.peer == self.peer;
            old = old.saturating_sub(1);
            keep
        });
        let sent = self.packets.poll_send(cx, batch);
        self.sifted = batch.len();
        sent
    }
}
