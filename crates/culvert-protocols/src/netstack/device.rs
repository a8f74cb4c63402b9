//! A TUN device with its addresses.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use culvert_os::netlink::{self, Prefix};
use culvert_os::tun::Tun;
use culvert_os::{SocketError, iface};
use tracing::warn;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("there is no TUN in this system (/dev/net/tun)")]
    NoTun,
    #[error("a TUN device needs the capability CAP_NET_ADMIN; {0}")]
    NotAllowed(&'static str),
    #[error("the device {0} is in use by another program")]
    InUse(String),
    #[error("{0}")]
    Refused(String),
    #[error("{what}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Netns(#[from] SocketError),
}

/// What a device is made from.
pub(crate) struct DeviceOptions<'a> {
    /// `None`: this with the first number that is free behind it.
    pub(crate) name: Option<&'a str>,
    pub(crate) prefix: &'static str,
    pub(crate) mtu: u32,
    pub(crate) addresses: &'a [Prefix],
    /// What works for those who may not make one.
    pub(crate) instead: &'static str,
}

impl DeviceOptions<'_> {
    /// Makes it, and returns its one queue with its number.
    pub(crate) fn open(&self) -> Result<(Tun, u32), DeviceError> {
        let (mut queues, link) = self.open_queues(1)?;
        Ok((queues.remove(0), link))
    }

    /// Makes it with so many queues, or fewer where it exists and has fewer. Returns them, at least one, with its number.
    pub(crate) fn open_queues(&self, count: usize) -> Result<(Vec<Tun>, u32), DeviceError> {
        let queues = self.make(count)?;
        let tun = &queues[0];
        let failed = |what: &str| {
            let what = format!("{what} {}", tun.name());
            move |source| DeviceError::Io { what, source }
        };
        let link = iface::index(tun.name()).map_err(failed("find"))?;
        netlink::bring_up(link, self.mtu).map_err(failed("bring up"))?;
        let mut set = Vec::new();
        for address in self.addresses {
            match netlink::add_address(link, *address) {
                Ok(()) => set.push(address.ip),
                // Switched off in this system: what is left works.
                Err(error) if address.ip.is_ipv6() => {
                    warn!("{}: IPv6 address {} not set: {error}; going on without", tun.name(), address.ip);
                }
                Err(error) => return Err(failed("set the address of")(error)),
            }
        }
        wait_for_addresses(&set);
        Ok((queues, link))
    }

    fn make(&self, queues: usize) -> Result<Vec<Tun>, DeviceError> {
        let numbered = (0..256).map(|number| format!("{}{number}", self.prefix));
        let free = || { numbered }.find(|name| iface::index(name).is_err());
        let name = self.name.map(str::to_owned).or_else(free);
        Tun::open_queues(name.as_deref(), queues).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => DeviceError::NoTun,
            io::ErrorKind::PermissionDenied => DeviceError::NotAllowed(self.instead),
            io::ErrorKind::ResourceBusy => DeviceError::InUse(name.unwrap_or_default()),
            _ => DeviceError::Io { what: "make the TUN device".to_owned(), source },
        })
    }
}

/// Until packets to these addresses reach this host: answers to what is sent before would be lost.
fn wait_for_addresses(addresses: &[IpAddr]) {
    const STEP: Duration = Duration::from_millis(1);
    const STEPS: usize = 200;
    for _ in 0..STEPS {
        if addresses.iter().all(|ip| matches!(netlink::is_local(*ip), Ok(true))) {
            return;
        }
        std::thread::sleep(STEP);
    }
    // Somebody's own rules lead elsewhere.
}
