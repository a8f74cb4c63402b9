//! [`PacketConn`] over a ping socket: whole ICMP echo messages go out and come back, each with the id its client gave it.
//!
//! ```text
//!  type  code  checksum   id   sequence   data        the kernel fills in the checksum, and its own id
//!   1     1       2       2       2        ...
//! ```
//!
//! Ping sockets (icmp(7), `net.ipv4.ping_group_range`) need no rights, but are switched off in many systems; with
//! CAP_NET_RAW a raw socket does the same, which receives every ICMP message of the host and has to pick its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, ready};

use culvert_os::socket::PingSocket;
use culvert_wire::{Buf, Room, Target};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

use crate::packet::{Packet, PacketBatch, PacketConn};

/// Longest message.
const LONGEST: usize = 65_535;
/// Bytes of a message before its data.
const HEAD: usize = 8;

/// The pings of one client to one target.
pub struct PingConn {
    socket: UdpSocket,
    target: IpAddr,
    /// The socket is raw, and this is the id of ours in what goes through it.
    raw: Option<u16>,
    /// The client's id.
    id: u16,
}

impl PingConn {
    /// Pings `target` by this socket.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub fn new(socket: PingSocket, target: IpAddr) -> io::Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0x4000);
        let raw = socket.raw.then(|| NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Self { socket: UdpSocket::from_std(socket.socket)?, target, raw, id: 0 })
    }

    /// Makes a client's message one of this socket's.
    fn adopt(&mut self, message: &mut [u8]) -> bool {
        let Some(head) = message.first_chunk_mut::<HEAD>() else { return false };
        self.id = u16::from_be_bytes([head[4], head[5]]);
        if let Some(id) = self.raw {
            head[4..6].copy_from_slice(&id.to_be_bytes());
            head[2..4].fill(0);
            if self.target.is_ipv4() {
                let sum = checksum(message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
            }
        }
        true
    }

    /// Whether what was received is an answer to this client; if so it is made one of the client's message.
    fn take(&self, packet: &mut Buf, from: SocketAddr) -> bool {
        if from.ip() != self.target {
            return false;
        }
        let v4 = self.target.is_ipv4();
        if v4 && self.raw.is_some() {
            let head = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            if packet.len() < head {
                return false;
            }
            packet.advance(head);
        }
        let is_reply = packet.len() >= HEAD && packet[0] == if v4 { 0 } else { 129 };
        let ours = self.raw.is_none_or(|id| packet.get(4..6) == Some(&id.to_be_bytes()[..]));
        if is_reply && ours {
            packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        }
        is_reply && ours
    }
}

impl PacketConn for PingConn {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            let mut packet = Buf::new(LONGEST, room.head, room.tail);
            let mut into = ReadBuf::new(&mut packet.spare_mut()[..LONGEST]);
            let from = ready!(self.socket.poll_recv_from(cx, &mut into))?;
            let len = into.filled().len();
            packet.grow(len);
            if self.take(&mut packet, from) {
                let peer = Target::from(SocketAddr::new(self.target, 0));
                batch.push(Packet { data: packet, segment: 0, peer });
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        while !batch.is_empty() {
            ready!(self.socket.poll_send_ready(cx))?;
            let Some(mut packet) = batch.pop() else { break };
            if self.adopt(&mut packet.data) {
                // One that cannot be sent is lost, as anywhere else on its way.
                let _ = self.socket.try_send_to(&packet.data, SocketAddr::new(self.target, 0));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.fold(0u64, |sum, word| sum + u64::from(word));
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
