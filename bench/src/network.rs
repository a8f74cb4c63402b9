//! Two network namespaces of a run's own, joined by a wire or by an emulated path.
//!
//! ```text
//! near                                         far
//!   the calling thread, clients ── 10.99.0.1 ══ 10.99.0.2 ── what [`Network::far`] starts
//! ```
//!
//! Nothing of it has a name in the file system: with the last thread and program inside, namespaces, links and routes are
//! gone, whatever ended them.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::thread;

use culvert_os::netlink::{self, Prefix};
use culvert_os::{iface, netns};
use culvert_path::Shape;
use culvert_path::link::{End, Link};

use crate::failure::Failure;

/// The near end's address on the wire.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The far end's.
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Bytes of a packet on the wire.
const MTU: u32 = 1500;
/// The kernel's main table of routes.
const MAIN: u32 = 254;
const LINKS: [&str; 2] = ["bench-near", "bench-far"];

/// How the two are joined.
pub(crate) enum Wire {
    /// By the kernel, as fast as it can.
    Veth,
    /// By a path of this shape, the same both ways, with dice of this seed.
    Path(Shape, u64),
}

/// Two namespaces; the thread that made them is in the near one.
pub(crate) struct Network {
    far: File,
    link: Option<Link>,
}

impl Network {
    /// Makes two namespaces and moves the calling thread, with all threads and programs that it starts, to the near one.
    pub(crate) fn create(wire: Wire) -> Result<Self, Failure> {
        Self::make(wire).map_err(Failure::io("cannot make two joined network namespaces"))
    }

    fn make(wire: Wire) -> io::Result<Self> {
        let far = thread::scope(|scope| {
            let far = scope.spawn(|| {
                netns::isolate_thread()?;
                File::open("/proc/thread-self/ns/net")
            });
            far.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        netns::isolate_thread()?;
        let mut network = Self { far, link: None };
        match wire {
            Wire::Veth => {
                netlink::add_veth(LINKS[0], LINKS[1], network.far.as_fd())?;
                set_up(LINKS[0], NEAR)?;
                network.inside(|| set_up(LINKS[1], FAR))??;
            }
            Wire::Path(shape, seed) => {
                let near = End::open(MTU, &[on_wire(NEAR)])?;
                let far = network.inside(|| End::open(MTU, &[on_wire(FAR)]))??;
                let names = [near.name().to_owned(), far.name().to_owned()];
                network.link = Some(Link::join([near, far], [shape.clone(), shape], seed)?);
                default_route(&names[0])?;
                network.inside(|| default_route(&names[1]))??;
            }
        }
        Ok(network)
    }

    /// Runs `work` in the far namespace; what it starts stays there.
    pub(crate) fn far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        self.inside(work).map_err(Failure::io("cannot enter the far network namespace"))
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let path = format!("/proc/self/fd/{}", self.far.as_raw_fd());
        netns::within(&path, work).map_err(|error| io::Error::other(error.to_string()))
    }

    /// The emulated path, where there is one.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }
}

/// sing-box holds WireGuard endpoints still where the system has no default route. In a namespace without one this makes
/// one that leads nowhere.
pub(crate) fn pretend_to_be_connected() -> Result<(), Failure> {
    let make = || {
        let own = File::open("/proc/thread-self/ns/net")?;
        netlink::add_veth(LINKS[0], LINKS[1], own.as_fd())?;
        set_up(LINKS[1], FAR)?;
        set_up(LINKS[0], NEAR)
    };
    make().map_err(Failure::io("cannot give the network namespace a default route"))
}

fn set_up(name: &str, address: Ipv4Addr) -> io::Result<()> {
    let link = iface::index(name)?;
    netlink::bring_up(link, MTU)?;
    netlink::add_address(link, on_wire(address))?;
    default_route(name)
}

fn default_route(name: &str) -> io::Result<()> {
    let everything = Prefix { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 };
    netlink::add_route(everything, iface::index(name)?, MAIN)
}

fn on_wire(address: Ipv4Addr) -> Prefix {
    Prefix { ip: address.into(), len: 30 }
}

/// Leads a network into a device of this namespace. With an address of its own the device is set up first.
pub(crate) fn lead_into(device: &str, own: Option<Prefix>, network: Prefix, mtu: u32) -> io::Result<()> {
    let link = iface::index(device)?;
    if let Some(own) = own {
        netlink::bring_up(link, mtu)?;
        netlink::add_address(link, own)?;
    }
    netlink::add_route(network, link, MAIN)
}

/// Tells what is missing where namespaces are not permitted.
pub(crate) fn not_permitted(command: &str, error: &Failure) -> Failure {
    Failure::Usage(format!(
        "`{command}` works in network namespaces of its own, which only root may make here ({error}). Run it as root, or add \
         --user-namespace, which needs no privileges where the kernel permits user namespaces"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    fn round_trip(wire: Wire) -> Option<Duration> {
        let work = move || {
            let network = Network::create(wire).map_err(|failure| eprintln!("SKIPPED: {failure}")).ok()?;
            let listener = network.far(|| TcpListener::bind((FAR, 0))).unwrap().unwrap();
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), IpAddr::V4(NEAR));
            let began = Instant::now();
            near.write_all(b"x").unwrap();
            far.read_exact(&mut [0]).unwrap();
            far.write_all(b"y").unwrap();
            near.read_exact(&mut [0]).unwrap();
            Some(began.elapsed())
        };
        thread::spawn(work).join().unwrap()
    }

    #[test]
    fn both_kinds_of_wire_carry_a_connection() {
        round_trip(Wire::Veth);
        let shape = Shape { delay: Duration::from_millis(15), ..Shape::default() };
        let took = round_trip(Wire::Path(shape, 1));
        assert!(took.is_none_or(|took| took >= Duration::from_millis(30)), "{took:?}");
    }
}
