//! The device under the stack, and the task that receives.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use culvert_os::tun::{Incoming, Outgoing as Header, Tun};
use culvert_stack::{Outgoing, Received};
use culvert_wire::Buf;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use tracing::debug;

use super::nat::{Nat, Turn};
use crate::netstack::{Gate, Ground, Link};

/// Longest packet, with room for the heads of what may be made of it.
const PACKET: usize = 65_535;
/// Packets that are received under one lock.
const BATCH: usize = 64;
/// Longest packet that is copied out of the memory it was received in.
const SHORT: usize = 2 << 10;

/// A device that takes the packets of a stack.
#[derive(Clone)]
pub(super) struct DeviceLink(Arc<AsyncFd<Tun>>);

impl DeviceLink {
    /// # Errors
    /// The runtime cannot watch the device.
    pub(super) fn new(tun: Tun) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "the device owns its descriptor, which stays the same until it is dropped"
        )]
        let tun = AsyncFd::new(tun)?;
        Ok(Self(Arc::new(tun)))
    }
}

impl Link for DeviceLink {
    fn send(&self, out: &Outgoing<'_>, udp: bool) -> bool {
        let header = Header {
            segment: out.segment,
            udp,
            v6: out.head.first().is_some_and(|first| first >> 4 == 6),
            head: out.head.len() as u16,
            checksum: out.checksum,
        };
        match self.0.get_ref().send(header, out.head, out.payload) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                debug!("a packet of {} bytes was not taken: {error}", out.head.len());
                true
            }
        }
    }
}

/// The task that receives for all connections of one queue.
pub(super) struct Receiving {
    link: DeviceLink,
    gate: Gate,
    turning: Option<Turning>,
    /// Where the next packet is received; there while packets come.
    place: Option<Buf>,
}

/// What turns packets around before the stack sees them.
#[derive(Clone)]
pub(super) struct Turning {
    pub(super) nat: Arc<Nat>,
    pub(super) ground: Ground,
}

impl Receiving {
    pub(super) fn new(link: DeviceLink, gate: Gate, turning: Option<Turning>) -> Self {
        Self { link, gate, turning, place: None }
    }

    /// Runs until it is dropped, or the device is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let (engine, tun) = (Arc::clone(&self.gate.engine), Arc::clone(&self.link.0));
        // What is waited for stays registered from one turn to the next.
        let mut due = pin!(tokio::time::sleep_until(Instant::now()));
        let mut sooner = pin!(engine.sooner.notified());
        let mut blocked = pin!(engine.blocked.notified());
        loop {
            let next = engine.armed().map(Instant::from_std);
            if let Some(next) = next
                && due.deadline() != next
            {
                due.as_mut().reset(next);
            }
            tokio::select! {
                ready = tun.readable() => {
                    let mut ready = ready?;
                    if !self.receive()? {
                        ready.clear_ready();
                    }
                }
                () = &mut due, if next.is_some() => self.gate.on_timeout(),
                () = &mut sooner => sooner.set(engine.sooner.notified()),
                () = &mut blocked => {
                    // Until it can be written to again.
                    tun.ready(Interest::WRITABLE).await?.clear_ready();
                    blocked.set(engine.blocked.notified());
                    engine.with(|_, _| ());
                }
            }
        }
    }

    /// Receives a batch of packets. `false` if there are no more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut left = BATCH;
        let mut outcome = Ok(true);
        let (tun, place, turning) = (self.link.0.get_ref(), &mut self.place, self.turning.as_ref());
        let now = std::time::Instant::now();
        self.gate.receive(|| {
            loop {
                left = left.checked_sub(1)?;
                match receive_one(tun, place, turning, now) {
                    Ok(Some(received)) => return Some(received),
                    Ok(None) => {}
                    Err(error) => {
                        let empty = error.kind() == io::ErrorKind::WouldBlock;
                        outcome = if empty { Ok(false) } else { Err(error) };
                        return None;
                    }
                }
            }
        });
        if matches!(outcome, Ok(false)) {
            self.place = None;
        }
        outcome
    }
}

/// Receives one packet. A long one keeps the memory it came in; a short one is copied out of it, so that no datagram or
/// acknowledgement holds memory for 64 KiB. `None` if it was not the stack's.
fn receive_one(
    tun: &Tun,
    place: &mut Option<Buf>,
    turning: Option<&Turning>,
    now: std::time::Instant,
) -> io::Result<Option<Received>> {
    let mut packet = place.take().unwrap_or_else(|| Buf::new(PACKET, 0, 0));
    let received = match tun.recv(&mut packet.spare_mut()[..PACKET]) {
        Ok(received) => received,
        Err(error) => {
            *place = Some(packet);
            return Err(error);
        }
    };
    let bytes = &mut packet.spare_mut()[..received.len];
    if turning.is_some_and(|turning| turning.takes(bytes, &received, tun, now)) {
        *place = Some(packet);
        return Ok(None);
    }
    let packet = if received.len <= SHORT {
        let short = Buf::copied(bytes);
        *place = Some(packet);
        short
    } else {
        packet.grow(received.len);
        packet
    };
    Ok(Some(Received { packet, checked: received.checked, segment: received.segment }))
}

impl Turning {
    /// Whether this was a packet that is not the stack's.
    fn takes(&self, packet: &mut [u8], received: &Incoming, tun: &Tun, now: std::time::Instant) -> bool {
        match self.nat.turn(packet, received, now, |target| self.ground.is_elsewhere(target)) {
            Turn::Pass => return false,
            Turn::Drop => {}
            // What the device does not take is lost, which TCP mends.
            Turn::Back(header) => drop(tun.send(header, packet, &[])),
        }
        true
    }
}
