//! `system: true`: a network interface of the system, by whose sockets is dialled. What peers send to its addresses goes
//! there; the rest becomes connections and associations on the userspace stack.
//!
//! The prefixes of all peers are routes in a table of their own. A rule lets only those look into it who are bound to the
//! interface, so that nothing else of the system changes its way.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;

use culvert_os::netlink::{self, Prefix, Rule};
use culvert_os::tun::{Outgoing as Header, Tun};
use culvert_stack::Outgoing;
use culvert_stack::train::{self, Joined};
use culvert_wire::Buf;
use tokio::io::unix::AsyncFd;
use tracing::{debug, warn};

use super::tunnel::Tunnel;
use crate::netstack::{DeviceError, DeviceOptions};

/// Longest packet.
const PACKET: usize = 65_535;
/// Packets that are read before what they made is sent.
const BATCH: usize = 16;
/// The place of the rule, before the main table's.
const PRIORITY: u32 = 32_765;

/// The interface.
pub(super) struct System {
    tun: AsyncFd<Tun>,
    addresses: Vec<Prefix>,
    table: u32,
}

impl System {
    /// Makes it, with `routes` to all peers.
    pub(super) fn open(
        name: Option<&str>,
        mtu: u16,
        addresses: &[Prefix],
        routes: &[Prefix],
    ) -> Result<Arc<Self>, DeviceError> {
        let instead = "without `system` none is needed";
        let options = DeviceOptions { name, prefix: "wg", mtu: mtu.into(), addresses, instead };
        let (tun, link) = options.open()?;
        // The same at each start, so that what a crash has left is found.
        let table = crc32fast::hash(tun.name().as_bytes()) | 1 << 31;
        for v6 in [false, true] {
            remove_rules(tun.name(), table, v6);
            let rule = rule(tun.name(), table, v6);
            if !addresses.iter().any(|one| one.ip.is_ipv6() == v6) {
                continue;
            }
            if let Err(error) = netlink::add_rule(&rule) {
                warn!("{}: no routing rule: {error}; going on without", tun.name());
            }
            for route in routes.iter().filter(|route| route.ip.is_ipv6() == v6) {
                if let Err(error) = netlink::add_route(netlink::network(*route), link, table) {
                    warn!("{}: no route to {}/{}: {error}", tun.name(), route.ip, route.len);
                }
            }
        }
        #[expect(
            deprecated,
            reason = "the device owns its descriptor, which stays the same until it is dropped"
        )]
        let watched = AsyncFd::new(tun);
        let tun =
            watched.map_err(|source| DeviceError::Io { what: "watch the TUN device".to_owned(), source })?;
        Ok(Arc::new(Self { tun, addresses: addresses.to_vec(), table }))
    }

    pub(super) fn name(&self) -> &str {
        self.tun.get_ref().name()
    }

    /// Whether what goes to this address is the system's.
    pub(super) fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| {
            let same_family = prefix.ip.is_ipv4() == ip.is_ipv4();
            same_family && netlink::network(*prefix) == netlink::network(Prefix { ip, ..*prefix })
        })
    }

    /// Gives a packet of a peer's to the system. One that it does not take is dropped, as by a network.
    pub(super) fn give(&self, packet: &mut [u8], joined: &Joined) {
        let checksum = if joined.segment > 0 { train::leave_checksum(packet, joined) } else { None };
        let header = Header {
            segment: if checksum.is_some() { joined.segment } else { 0 },
            udp: joined.udp,
            v6: packet[0] >> 4 == 6,
            head: joined.head,
            checksum,
        };
        if let Err(error) = self.tun.get_ref().send(header, packet, &[]) {
            debug!("{}: a packet of {} bytes was not taken: {error}", self.name(), packet.len());
        }
    }

    /// Sends what the system sends, until the interface is gone.
    pub(super) async fn run(self: Arc<Self>, tunnel: Arc<Tunnel>) -> io::Result<()> {
        loop {
            let mut ready = self.tun.readable().await?;
            while !tunnel.has_room() {
                tunnel.space.notified().await;
            }
            if !self.read(&tunnel)? {
                ready.clear_ready();
            }
            tunnel.flush();
        }
    }

    /// Reads a few packets. `false` if there are no more.
    fn read(&self, tunnel: &Tunnel) -> io::Result<bool> {
        let mut packet = Buf::new(PACKET, 0, 0);
        for _ in 0..BATCH {
            let incoming = match self.tun.get_ref().recv(&mut packet.spare_mut()[..PACKET]) {
                Ok(incoming) => incoming,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            let bytes = &packet.spare_mut()[..incoming.len];
            let Some(at) = train::payload_at(bytes, incoming.checksum) else { continue };
            let (head, payload) = bytes.split_at(at);
            let segment = if usize::from(incoming.train) < payload.len() { incoming.train } else { 0 };
            let payload = [IoSlice::new(payload)];
            tunnel.put(&Outgoing { head, payload: &payload, segment, checksum: incoming.checksum });
        }
        Ok(true)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // The routes go with the interface.
        for v6 in [false, true] {
            remove_rules(self.name(), self.table, v6);
        }
    }
}

fn rule(name: &str, table: u32, v6: bool) -> Rule {
    Rule { v6, priority: PRIORITY, table, outgoing: Some(name.to_owned()), ..Rule::default() }
}

fn remove_rules(name: &str, table: u32, v6: bool) {
    while netlink::delete_rule(&rule(name, table, v6)).is_ok() {}
}
