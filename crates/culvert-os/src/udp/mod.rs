//! Datagrams in batches: up to [`MAX_BATCH`] messages per system call, and up to [`MAX_SEGMENTS`] datagrams per message.
//!
//! A *message* is what one slot carries. With GRO the kernel joins datagrams of one sender and one size into a message on
//! receiving; with GSO it cuts a message into datagrams on sending:
//!
//! ```text
//! RecvSlot  | 1200 bytes | 1200 bytes | 1200 bytes | 377 bytes |    segment_size 1200, len 3977: four datagrams
//! SendSlot  | 1200 bytes | 1200 bytes | 1200 bytes | 377 bytes |    segment_size 1200, all to one destination
//! ```
//!
//! The headers for a call live on the stack (18 KiB, of which under 300 bytes per slot used are written); nothing is
//! allocated per packet or per call, and payload is copied by the kernel alone. Calls never wait.
//!
//! # Errors from the network
//! ICMP errors are not asked for (IP_RECVERR stays off). An unconnected socket then never reports them: a peer that is gone
//! disturbs nobody. A connected socket reports each once, as [`io::ErrorKind::ConnectionRefused`] and the like, from
//! whichever call comes next; the datagrams behind it are read by the call after that.
//!
//! Sources: recvmmsg(2), sendmmsg(2), udp(7), ip(7), ipv6(7), cmsg(3).

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::slice;

use crate::sys;

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod platform;

#[cfg(not(target_os = "linux"))]
#[path = "other.rs"]
mod platform;

/// Most messages that one call moves.
pub const MAX_BATCH: usize = 64;

/// Most datagrams in one message to send: the limit of every kernel that has UDP_SEGMENT.
pub const MAX_SEGMENTS: usize = 64;

/// Room in bytes that a receive buffer needs with GRO, so that no joined message is cut.
pub const GRO_BUFFER: usize = 65535;

/// Room for one received message, and what the kernel said about it.
#[derive(Debug)]
pub struct RecvSlot<'a> {
    buffer: IoSliceMut<'a>,
    /// About the message in the buffer; meaningful after [`recv_batch`] counted this slot.
    pub meta: RecvMeta,
}

/// What is known about a received message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvMeta {
    /// Bytes in the buffer.
    pub len: usize,
    /// The sender. IPv4 on a dual-stack socket comes as plain IPv4.
    pub source: SocketAddr,
    /// Bytes in each joined datagram but the last, which may be shorter; `None` where the message is one datagram.
    pub segment_size: Option<NonZeroU16>,
    /// The buffer was too short and the rest is lost.
    pub truncated: bool,
    /// Congestion marks of the IP header; [`Ecn::NotCapable`] unless [`enable_ecn`] was called.
    pub ecn: Ecn,
    /// This host's address the message came to; `None` unless [`enable_local_address`] was called.
    pub local: Option<IpAddr>,
    /// Where the sender wanted it, before TPROXY; `None` unless [`enable_original_destination`] was called.
    pub original_destination: Option<SocketAddr>,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendSlot<'a> {
    /// The payload, gathered from pieces in order: at most 1024, together at most 65,507 bytes (IPv6: 65,527).
    pub pieces: &'a [IoSlice<'a>],
    /// Receiver; `None` on a connected socket.
    pub destination: Option<SocketAddr>,
    /// This host's address to send from; `None` lets routing choose.
    pub source: Option<IpAddr>,
    /// Cut the payload into datagrams of this many bytes, the last one may be shorter; at most [`MAX_SEGMENTS`] datagrams,
    /// each within the path MTU. `None` sends one datagram.
    pub segment_size: Option<NonZeroU16>,
    /// Congestion marks to set; `None` leaves those of the socket.
    pub ecn: Option<Ecn>,
}

/// The two congestion bits of an IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotCapable = 0b00,
    /// ECT(1).
    Capable1 = 0b01,
    /// ECT(0).
    Capable0 = 0b10,
    /// A router on the way was congested.
    Congested = 0b11,
}

impl Ecn {
    /// Takes the low two bits of a TOS or traffic class byte.
    pub fn from_traffic_class(byte: u8) -> Self {
        match byte & 0b11 {
            0b00 => Self::NotCapable,
            0b01 => Self::Capable1,
            0b10 => Self::Capable0,
            _ => Self::Congested,
        }
    }
}

impl<'a> RecvSlot<'a> {
    /// A slot that receives into `buffer`; what exceeds it is lost, so size it for the traffic ([`GRO_BUFFER`]).
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer: IoSliceMut::new(buffer), meta: RecvMeta::EMPTY }
    }

    /// The received bytes, all datagrams joined.
    pub fn data(&self) -> &[u8] {
        &self.buffer[..self.meta.len]
    }

    /// The received datagrams, one after the other. An empty datagram counts as one.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.meta.datagrams(self.data())
    }
}

impl RecvMeta {
    const EMPTY: Self = Self {
        len: 0,
        source: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
        segment_size: None,
        truncated: false,
        ecn: Ecn::NotCapable,
        local: None,
        original_destination: None,
    };

    /// Cuts `data`, the received bytes, into datagrams.
    pub fn datagrams<'d>(&self, data: &'d [u8]) -> impl Iterator<Item = &'d [u8]> + use<'d> {
        let whole = data.is_empty().then_some(data);
        let size = self.segment_size.map_or(data.len().max(1), |size| usize::from(size.get()));
        whole.into_iter().chain(data.chunks(size))
    }
}

impl<'a> SendSlot<'a> {
    /// One datagram to `destination`, or to the connected peer.
    pub fn new(pieces: &'a [IoSlice<'a>], destination: Option<SocketAddr>) -> Self {
        Self { pieces, destination, source: None, segment_size: None, ecn: None }
    }

    /// One datagram of a single piece.
    pub fn single(piece: &'a IoSlice<'a>, destination: Option<SocketAddr>) -> Self {
        Self::new(slice::from_ref(piece), destination)
    }
}

/// Receives up to [`MAX_BATCH`] messages, one per slot from the first on, and returns how many (recvmmsg(2)).
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where nothing is there; on a connected socket also what ICMP reported (see the module). No
/// message is lost with an error.
pub fn recv_batch(socket: BorrowedFd<'_>, slots: &mut [RecvSlot<'_>]) -> io::Result<usize> {
    let count = slots.len().min(MAX_BATCH);
    platform::recv(socket, &mut slots[..count])
}

/// Sends up to [`MAX_BATCH`] messages from the first on, and returns how many (sendmmsg(2)).
///
/// An IPv4 destination is fine on a dual-stack IPv6 socket.
///
/// # Errors
/// Always about the first slot; nothing was sent. A caller that skips that slot may go on with the rest.
/// - [`io::ErrorKind::WouldBlock`]: the socket's buffer is full. Wait for readiness.
/// - one that [`is_gso_refused`] knows: send the slot's datagrams one by one, and ask for no more segments.
/// - others about the destination, such as [`io::ErrorKind::NetworkUnreachable`], or EMSGSIZE for a datagram larger than
///   the path takes; on a connected socket also what ICMP reported about an earlier one.
pub fn send_batch(socket: BorrowedFd<'_>, slots: &[SendSlot<'_>]) -> io::Result<usize> {
    let slots = &slots[..slots.len().min(MAX_BATCH)];
    platform::send(socket, slots).map_err(|error| match slots.first() {
        Some(SendSlot { segment_size: Some(_), .. }) if refuses_segments(&error) => {
            io::Error::new(io::ErrorKind::Unsupported, GsoRefused { source: error })
        }
        _ => error,
    })
}

/// The kernel or the device does not cut messages into datagrams.
#[derive(Debug, thiserror::Error)]
#[error("segmentation offload refused")]
struct GsoRefused {
    source: io::Error,
}

/// Whether [`send_batch`] failed because the first slot's `segment_size` was refused by the kernel or by the device.
///
/// Some devices do so long after [`probe_gso`] said yes, when a route changes.
pub fn is_gso_refused(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<GsoRefused>())
}

/// EIO comes from devices without checksum offload, EINVAL from segments beyond the limits and from kernels before 4.18.
fn refuses_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP))
}

/// What is known about cutting messages into datagrams before trying.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GsoSupport {
    /// Send single datagrams.
    None,
    /// The kernel has it; the device may still refuse ([`is_gso_refused`]).
    Kernel,
}

/// Asks whether the kernel knows UDP_SEGMENT (Linux 4.18). One system call.
pub fn probe_gso(socket: BorrowedFd<'_>) -> GsoSupport {
    sys::probe_udp_segment(socket).map_or(GsoSupport::None, |()| GsoSupport::Kernel)
}

/// Lets the kernel join datagrams on receiving (UDP_GRO, Linux 5.0). Buffers must then hold [`GRO_BUFFER`] bytes.
///
/// # Errors
/// The kernel does not know the option: every message is one datagram, and nothing else changes.
pub fn enable_gro(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::enable_udp_gro(socket)
}

/// Reports congestion marks in [`RecvMeta::ecn`]. `v6` says that the socket is an IPv6 one, dual-stack or not.
pub fn enable_ecn(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    sys::enable_receive_ecn(socket, v6)
}

/// Reports this host's address in [`RecvMeta::local`], for answers from the address that was asked on hosts with several.
pub fn enable_local_address(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    sys::enable_receive_local_address(socket, v6)
}

/// Reports [`RecvMeta::original_destination`], for a TPROXY socket.
pub fn enable_original_destination(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    sys::enable_receive_original_destination(socket, v6)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
