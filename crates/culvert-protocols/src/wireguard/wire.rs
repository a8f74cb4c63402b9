//! What carries the datagrams: a socket of our own, or the packets of a detour.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use culvert_core::{Dialer, Packet, PacketBatch};
use culvert_os::socket::{SocketError, UdpOptions, udp_socket};
use culvert_os::udp::{GsoSupport, MAX_BATCH, MAX_SEGMENTS, SendSlot, is_gso_refused, probe_gso, send_batch};
use culvert_wire::{Buf, Host, Target};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tracing::debug;

/// Most bytes that the kernel takes in one train.
const TRAIN: usize = 65_507;
/// Bytes asked for in each of the kernel's buffers: a train of each of many peers.
const BUFFER: usize = 4 << 20;
/// Trains that wait for the task of a detour.
const WAITING: usize = 256;

/// Datagrams of equal length, but for the last one, to one address.
pub(super) struct Train {
    pub(super) to: SocketAddr,
    pub(super) data: Buf,
    pub(super) stride: usize,
    /// Bytes of `data` that have been sent.
    pub(super) sent: usize,
}

impl Train {
    /// Most bytes of it that the kernel takes at once.
    fn most(&self, gso: bool) -> usize {
        if gso { (TRAIN / self.stride).clamp(1, MAX_SEGMENTS) * self.stride } else { self.stride }
    }
}

/// See the module.
pub(super) enum Wire {
    Socket(Outer),
    Detour(Arc<Detour>),
}

/// A socket for both families where the system has both.
pub(super) struct Outer {
    pub(super) socket: Arc<UdpSocket>,
    gso: AtomicBool,
}

/// The queue to the task that has the detour's packets.
#[derive(Default)]
pub(super) struct Detour {
    queue: Mutex<PacketBatch>,
    pub(super) filled: Notify,
}

impl Detour {
    /// Takes out what waits.
    pub(super) fn take(&self, batch: &mut PacketBatch) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while batch.len() < PacketBatch::MAX
            && let Some(packet) = queue.pop()
        {
            batch.push(packet);
        }
    }
}

impl Outer {
    /// Binds to a port; to any if it is 0.
    pub(super) fn bind(dialer: &Dialer, port: u16) -> Result<Self, SocketError> {
        let options = UdpOptions { buffer: BUFFER, ..dialer.udp.clone() };
        let (v4, v6) = dialer.udp_bind;
        let any_v4 = SocketAddr::new(v4.unwrap_or(Ipv4Addr::UNSPECIFIED).into(), port);
        let socket = match (v4, v6) {
            (Some(_), None) => udp_socket(&options, any_v4)?,
            _ => {
                let any_v6 = SocketAddr::new(v6.unwrap_or(Ipv6Addr::UNSPECIFIED).into(), port);
                udp_socket(&options, any_v6).or_else(|_| udp_socket(&options, any_v4))?
            }
        };
        let gso = AtomicBool::new(probe_gso(socket.as_fd()) == GsoSupport::Kernel);
        let watched = UdpSocket::from_std(socket);
        let socket = watched.map_err(|source| SocketError::Create { address: any_v4, source })?;
        Ok(Self { socket: Arc::new(socket), gso })
    }

    /// Sends from the front of `trains`, which loses what was sent. `false` if the kernel takes no more now.
    fn send(&self, trains: &mut VecDeque<Train>) -> bool {
        while !trains.is_empty() {
            let gso = self.gso.load(Ordering::Relaxed);
            match self.send_once(trains, gso) {
                Ok(sent) => advance(trains, sent, gso),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if is_gso_refused(&error) => self.gso.store(false, Ordering::Relaxed),
                Err(error) => {
                    // The first one is what it will not take.
                    debug!("a datagram to {} was not taken: {error}", trains[0].to);
                    advance(trains, 1, gso);
                }
            }
        }
        true
    }

    /// One call of the kernel's. How many messages it took.
    fn send_once(&self, trains: &VecDeque<Train>, gso: bool) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); MAX_BATCH];
        let mut about = [(None, 0); MAX_BATCH];
        let parts = trains.iter().flat_map(|train| {
            train.data[train.sent..].chunks(train.most(gso)).map(move |part| (train, part))
        });
        let mut count = 0;
        for (((train, part), slice), about) in parts.zip(&mut slices).zip(&mut about) {
            *slice = IoSlice::new(part);
            *about = (Some(train.to), if part.len() > train.stride { train.stride as u16 } else { 0 });
            count += 1;
        }
        let mut slots = [SendSlot::new(&[], None); MAX_BATCH];
        for ((slot, slice), (to, stride)) in slots.iter_mut().zip(&slices[..count]).zip(about) {
            *slot = SendSlot::single(slice, to);
            slot.segment_size = NonZeroU16::new(stride);
        }
        self.socket.try_io(Interest::WRITABLE, || send_batch(self.socket.as_fd(), &slots[..count]))
    }
}

/// Takes the first `sent` messages out.
fn advance(trains: &mut VecDeque<Train>, sent: usize, gso: bool) {
    for _ in 0..sent {
        let Some(front) = trains.front_mut() else { return };
        front.sent += front.most(gso);
        if front.sent >= front.data.len() {
            trains.pop_front();
        }
    }
}

impl Wire {
    /// Sends from the front of `trains`. `false` if something has to wait.
    pub(super) fn send(&self, trains: &mut VecDeque<Train>) -> bool {
        match self {
            Self::Socket(outer) => outer.send(trains),
            Self::Detour(detour) => {
                let mut queue = detour.queue.lock().unwrap_or_else(PoisonError::into_inner);
                for train in trains.drain(..) {
                    // What a slow detour cannot take is dropped, as by a network.
                    if queue.len() < WAITING {
                        let segment = if train.data.len() > train.stride { train.stride as u16 } else { 0 };
                        let peer = Target { host: Host::from(train.to.ip()), port: train.to.port() };
                        queue.push(Packet { data: train.data, segment, peer });
                    }
                }
                drop(queue);
                detour.filled.notify_one();
                true
            }
        }
    }
}
