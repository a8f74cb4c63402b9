//! The device: made, given its addresses, and with `auto_route` put in the way of the system's traffic; all undone at the end.

use std::sync::{Mutex, PoisonError};

use culvert_os::netlink::{self, Prefix};
use culvert_os::tun::Tun;
use culvert_os::{iface, netns};
use culvert_rules::ip::IpSet;
use tracing::warn;

use super::routes::{AutoRoute, Way};
use crate::netstack::{DeviceError, DeviceOptions};

/// What a device is made from.
#[derive(Debug)]
pub(super) struct Device {
    /// `None`: the first of `tun0`, `tun1`, … that is free.
    pub(super) name: Option<String>,
    pub(super) netns: Option<String>,
    pub(super) mtu: u32,
    pub(super) addresses: Vec<Prefix>,
    pub(super) auto_route: Option<AutoRoute>,
    /// Where it has routes to, while it is there.
    pub(super) routed: Mutex<Option<(Way, IpSet)>>,
}

impl Device {
    /// Makes the device with so many queues, or fewer where it exists and has fewer, and with routes to `targets` if it is
    /// to have some.
    pub(super) fn open(&self, queues: usize, targets: &IpSet) -> Result<Vec<Tun>, DeviceError> {
        self.within(|| self.open_here(queues, targets))?
    }

    /// Does something in the network namespace of the device.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> Result<T, DeviceError> {
        Ok(match &self.netns {
            Some(netns) => netns::within(netns, what)?,
            None => what(),
        })
    }

    fn open_here(&self, queues: usize, targets: &IpSet) -> Result<Vec<Tun>, DeviceError> {
        self.check_networks()?;
        let options = DeviceOptions {
            name: self.name.as_deref(),
            prefix: "tun",
            mtu: self.mtu,
            addresses: &self.addresses,
            instead: "a mixed or socks inbound works without",
        };
        let (queues, link) = options.open_queues(queues)?;
        if let Some(route) = &self.auto_route {
            let way = Way { link, name: queues[0].name().to_owned(), addresses: self.addresses.clone() };
            route.set_up(&way, targets)?;
            *self.routed.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, targets.clone()));
        }
        Ok(queues)
    }

    /// Refuses a network that another interface has already, if that would cut the host off or make an address belong to
    /// two; other overlaps are told.
    fn check_networks(&self) -> Result<(), DeviceError> {
        let Ok(interfaces) = iface::interfaces() else { return Ok(()) };
        let default = [false, true].map(|v6| netlink::default_link(v6).ok().flatten());
        for interface in interfaces.iter().filter(|one| Some(&one.name) != self.name.as_ref()) {
            for there in &interface.addresses {
                let there = Prefix { ip: there.ip, len: there.prefix_len };
                let Some(own) = self.addresses.iter().find(|own| overlap(**own, there)) else { continue };
                let what = format!(
                    "address {}/{} overlaps with {}/{} of the interface {}",
                    own.ip, own.len, there.ip, there.len, interface.name
                );
                if own.ip == there.ip || default.contains(&Some(interface.index)) {
                    return Err(DeviceError::Refused(format!("{what}; choose another `address`")));
                }
                warn!("{what}: what is behind that is out of reach");
            }
        }
        Ok(())
    }

    /// Puts routes to `targets` in the place of those there are.
    pub(super) fn route_to(&self, targets: IpSet) {
        let mut routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(route), Some((way, before))) = (&self.auto_route, &mut *routed)
            && *before != targets
        {
            let changed = self.within(|| route.change(way, before, &targets));
            if changed.is_ok() {
                *before = targets;
            }
        }
    }

    /// Undoes what does not go with the device.
    pub(super) fn close(&self) {
        if let Some(route) = &self.auto_route {
            let routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A namespace that is gone has taken its rules along.
            let _ = self.within(|| {
                route.remove();
                // Routes go with the device, unless that is one that stays.
                if let Some((way, targets)) = &routed {
                    route.change(way, targets, &IpSet::default());
                }
            });
        }
    }
}

/// Whether two networks have an address in common.
fn overlap(one: Prefix, other: Prefix) -> bool {
    let len = one.len.min(other.len);
    one.ip.is_ipv4() == other.ip.is_ipv4()
        && netlink::network(Prefix { len, ..one }) == netlink::network(Prefix { len, ..other })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_where_one_holds_the_other() {
        let prefix = |text: &str| {
            let (ip, len) = text.split_once('/').unwrap();
            Prefix { ip: ip.parse().unwrap(), len: len.parse().unwrap() }
        };
        for (one, other, common) in [
            ("172.19.0.1/30", "172.19.0.2/16", true),
            ("172.19.0.1/30", "172.19.0.5/30", false),
            ("10.0.0.1/8", "10.9.0.1/32", true),
            ("fd00::1/64", "fd00::9/126", true),
            ("0.0.0.1/0", "fd00::9/126", false),
        ] {
            assert_eq!(overlap(prefix(one), prefix(other)), common, "{one} {other}");
            assert_eq!(overlap(prefix(other), prefix(one)), common, "{other} {one}");
        }
    }
}
