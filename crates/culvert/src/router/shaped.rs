//! An outbound whose streams and datagrams leave as rules say: the first TLS message in pieces (`tls_fragment`,
//! `tls_record_fragment`), datagrams to one target only (`udp_connect`).

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Network, Outbound, PacketBatch, PacketConn, Session, Tag,
};
use culvert_tls::relayed::Fragmenting;
use culvert_tls::settings::Fragment;
use culvert_wire::{BufChain, Room, Target};

use super::rule::Options;

/// What rules have set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    fragment: Fragment,
    connect: bool,
    keep_peers: bool,
}

impl Shape {
    /// What a rule sets, beside what those before it have set.
    pub(super) fn set(&mut self, options: &Options) {
        self.fragment.segments |= options.fragment.segments;
        self.fragment.records |= options.fragment.records;
        self.fragment.fallback_delay = options.fragment.fallback_delay.or(self.fragment.fallback_delay);
        self.connect |= options.udp_connect;
        self.keep_peers |= options.keep_peers;
    }

    /// `outbound` as it is for a client that `asked` for this; itself where nothing is to be done.
    pub(super) fn wrap(
        self,
        outbound: Arc<dyn Outbound>,
        asked: &Target,
        network: Network,
    ) -> Arc<dyn Outbound> {
        let wanted = match network {
            Network::Tcp => self.fragment.segments || self.fragment.records,
            Network::Udp => self.connect,
            Network::Icmp => false,
        };
        if wanted { Arc::new(Shaped { outbound, asked: asked.clone(), shape: self }) } else { outbound }
    }
}

/// An outbound for one session.
struct Shaped {
    outbound: Arc<dyn Outbound>,
    asked: Target,
    shape: Shape,
}

#[async_trait]
impl Outbound for Shaped {
    fn tag(&self) -> &Tag {
        self.outbound.tag()
    }

    fn carries(&self, network: Network) -> bool {
        self.outbound.carries(network)
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        // What was read early is the message to take apart, and must not leave with the outbound's own first bytes.
        let conn = self.outbound.dial(session, &mut BufChain::new()).await?;
        Ok(Box::new(Fragmenting::new(conn, self.shape.fragment)))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let conn = self.outbound.listen_packet(session).await?;
        let (asked, keep_peers) = (self.asked.clone(), self.shape.keep_peers);
        Ok(Box::new(Connected { conn, asked, keep_peers }))
    }
}

/// Packets that go to one target and come from it.
struct Connected {
    conn: BoxPackets,
    asked: Target,
    keep_peers: bool,
}

impl Connected {
    /// Whether `peer` can be the target. Behind a name any address may be.
    fn is_target(&self, peer: &Target) -> bool {
        *peer == self.asked || (peer.port == self.asked.port && self.asked.host.domain().is_some())
    }
}

impl PacketConn for Connected {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let before = batch.len();
        loop {
            ready!(self.conn.poll_recv(cx, room, batch))?;
            let mut number = 0;
            batch.retain(|packet| {
                number += 1;
                number <= before || self.is_target(&packet.peer)
            });
            if batch.len() > before {
                break;
            }
        }
        if !self.keep_peers {
            batch.iter_mut().skip(before).for_each(|packet| packet.peer = self.asked.clone());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        for packet in batch.iter_mut().filter(|packet| packet.peer != self.asked) {
            packet.peer = self.asked.clone();
        }
        self.conn.poll_send(cx, batch)
    }
}
