//! A client's datagrams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use culvert_core::udp::PacketQueue;
use culvert_core::{PacketBatch, PacketConn};
use culvert_wire::Room;

use super::engine::Engine;

/// All datagrams of one address and port of a client, to whomever; answers come from whoever they come from
/// (endpoint-independent mapping and filtering, RFC 4787).
pub(crate) struct NetPackets {
    queue: PacketQueue,
    engine: Arc<Engine>,
    client: SocketAddr,
    /// By which address the client knows what answers from a loopback address of this host.
    home: Option<IpAddr>,
}

impl NetPackets {
    pub(crate) fn new(
        queue: PacketQueue,
        engine: Arc<Engine>,
        client: SocketAddr,
        home: Option<IpAddr>,
    ) -> Self {
        Self { queue, engine, client, home }
    }
}

impl PacketConn for NetPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        self.queue.poll_recv(cx, room, batch)
    }

    /// What the device does not take at once is dropped: its queue is full, which is what drops are for.
    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let (engine, client) = (&self.engine, self.client);
        engine.with(|inner, _| {
            while let Some(packet) = batch.pop() {
                // Only an address can stand in a packet's head, and one of the client's family.
                let Some(mut source) = packet.peer.socket_addr() else { continue };
                if let Some(home) = self.home.filter(|_| source.ip().is_loopback()) {
                    source.set_ip(home);
                }
                if source.is_ipv4() == client.is_ipv4() {
                    engine.send_datagram(inner, source, client, &packet.data, packet.segment);
                }
            }
        });
        Poll::Ready(Ok(()))
    }
}
