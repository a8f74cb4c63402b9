//! A client's datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use culvert_core::udp::PacketQueue;
use culvert_core::{PacketBatch, PacketConn};
use culvert_wire::Room;

use super::engine::Engine;

/// All datagrams of one address and port of a client, to whomever; answers come from whoever they come from
/// (endpoint-independent mapping and filtering, RFC 4787).
pub(super) struct TunPackets {
    queue: PacketQueue,
    engine: Arc<Engine>,
    client: SocketAddr,
}

impl TunPackets {
    pub(super) fn new(queue: PacketQueue, engine: Arc<Engine>, client: SocketAddr) -> Self {
        Self { queue, engine, client }
    }
}

impl PacketConn for TunPackets {
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
                let Some(source) = packet.peer.socket_addr() else { continue };
                let source = match (source.ip(), client.is_ipv4()) {
                    (std::net::IpAddr::V4(_), true) | (std::net::IpAddr::V6(_), false) => source,
                    _ => continue,
                };
                inner.stack.send_datagram(source, client, &packet.data, packet.segment, &mut |out| {
                    engine.send(&out, true)
                });
            }
        });
        Poll::Ready(Ok(()))
    }
}
