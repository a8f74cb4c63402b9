//! What goes out: connections and associations that are opened from here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use culvert_core::udp::PacketQueue;
use culvert_core::{PacketBatch, PacketConn};
use culvert_wire::Room;

use super::engine::Engine;
use super::stream::NetStream;

/// The ports that are chosen from (RFC 6335 section 6).
const FIRST: u16 = 49_152;
const COUNT: u16 = u16::MAX - FIRST;
/// Ports that are tried.
const TRIES: u16 = 64;

/// Some ports of our own, in an order that cannot be guessed.
fn ports() -> impl Iterator<Item = u16> {
    let mut bytes = [0; 2];
    // Without chance the order can be guessed, which is all that is lost.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    let start = u16::from_ne_bytes(bytes) % COUNT;
    (0..TRIES)
        .map(move |step| FIRST + (u32::from(start) + u32::from(step) * 977).rem_euclid(COUNT.into()) as u16)
}

/// Connects from `source` to `target`.
pub(crate) async fn connect(
    engine: &Arc<Engine>,
    source: IpAddr,
    target: SocketAddr,
) -> io::Result<NetStream> {
    let opened = engine.with(|inner, now| {
        ports()
            .map(|port| SocketAddr::new(source, port))
            .find_map(|local| inner.stack.connect(local, target, now).map(|id| (id, local)))
    });
    let (id, local) = opened.ok_or(io::ErrorKind::AddrInUse)?;
    let mut stream = NetStream::opened(id, Arc::clone(engine), local);
    std::future::poll_fn(|cx| stream.poll_opened(cx)).await?;
    Ok(stream)
}

/// Opens a way for datagrams from `sources`, one address of each family.
pub(crate) fn bind(engine: &Arc<Engine>, sources: impl Iterator<Item = IpAddr>) -> io::Result<BoundPackets> {
    engine.with(|inner, _| {
        let sources: Vec<_> = sources.collect();
        let free = |port: &u16| sources.iter().all(|ip| !inner.opened.contains(&SocketAddr::new(*ip, *port)));
        let port = match ports().find(free) {
            Some(port) => port,
            None => {
                inner.opened.forget_ended();
                let free = |port: &u16| {
                    sources.iter().all(|ip| !inner.opened.contains(&SocketAddr::new(*ip, *port)))
                };
                ports().find(free).ok_or(io::ErrorKind::AddrInUse)?
            }
        };
        let ends = sources.iter().map(|ip| SocketAddr::new(*ip, port));
        let ends = ends.map(|local| (local, inner.opened.open(&local))).collect();
        inner.tidy();
        Ok(BoundPackets { ends, engine: Arc::clone(engine) })
    })
}

/// An association that was opened from here; whoever answers is let in.
pub(crate) struct BoundPackets {
    ends: Vec<(SocketAddr, PacketQueue)>,
    engine: Arc<Engine>,
}

impl PacketConn for BoundPackets {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        for (_, queue) in &mut self.ends {
            if let Poll::Ready(outcome) = queue.poll_recv(cx, room, batch) {
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    }

    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let (engine, ends) = (&self.engine, &self.ends);
        engine.with(|inner, now| {
            while let Some(packet) = batch.pop() {
                let Some(target) = packet.peer.socket_addr() else { continue };
                let own = ends.iter().map(|(local, _)| *local).find(|own| own.is_ipv4() == target.is_ipv4());
                if let Some(own) = own {
                    engine.send_datagram(inner, (own, target), &packet.data, packet.segment, now);
                }
            }
        });
        Poll::Ready(Ok(()))
    }
}
