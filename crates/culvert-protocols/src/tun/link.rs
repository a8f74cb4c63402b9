//! The device under the stack, and the task that receives.

use std::io;
use std::sync::Arc;

use culvert_os::tun::{Outgoing as Header, Tun};
use culvert_stack::{Outgoing, Received};
use culvert_wire::Buf;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::debug;

use crate::netstack::{Gate, Link};

/// Longest packet, with room for the heads of what may be made of it.
const PACKET: usize = 65_535;
/// Packets that are received under one lock.
const BATCH: usize = 64;

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

/// The task that receives for all.
pub(super) struct Receiving {
    link: DeviceLink,
    gate: Gate,
}

impl Receiving {
    pub(super) fn new(link: DeviceLink, gate: Gate) -> Self {
        Self { link, gate }
    }

    /// Runs until it is dropped, or the device is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let (engine, tun) = (Arc::clone(&self.gate.engine), Arc::clone(&self.link.0));
        loop {
            let next = engine.armed();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = tun.readable() => {
                    let mut ready = ready?;
                    if !self.receive()? {
                        ready.clear_ready();
                    }
                }
                () = due => self.gate.on_timeout(),
                () = engine.sooner.notified() => {}
                () = engine.blocked.notified() => {
                    // Until it can be written to again.
                    tun.ready(Interest::WRITABLE).await?.clear_ready();
                    engine.with(|_, _| ());
                }
            }
        }
    }

    /// Receives a batch of packets. `false` if there are no more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut left = BATCH;
        let mut outcome = Ok(true);
        let tun = self.link.0.get_ref();
        self.gate.receive(|| {
            left = left.checked_sub(1)?;
            // As much room as a sealing layer may want before and behind the payload.
            let mut packet = Buf::new(PACKET, 0, 0);
            match tun.recv(&mut packet.spare_mut()[..PACKET]) {
                Ok(received) => {
                    packet.grow(received.len);
                    Some(Received { packet, checked: received.checked, segment: received.segment })
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outcome = Ok(false);
                    None
                }
                Err(error) => {
                    outcome = Err(error);
                    None
                }
            }
        });
        outcome
    }
}
