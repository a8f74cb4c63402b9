//! Network interfaces: names, indices and addresses.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::sys;

/// One network interface with its addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Index for calls that take numbers, from 1 on; 0 when the interface vanished while it was looked at.
    pub index: u32,
    /// Set up by the administrator (IFF_UP).
    pub up: bool,
    /// The host's own loop (IFF_LOOPBACK).
    pub loopback: bool,
    /// Addresses, in the system's order.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address of an interface and the size of its network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that all hosts of the network share: 0 to 32, or to 128.
    pub prefix_len: u8,
}

/// The interface that leads out: that of the default route. Clones are the same one; whoever watches the interfaces tells
/// it what they are.
#[derive(Clone, Debug, Default)]
pub struct Outward(Arc<RwLock<Leading>>);

#[derive(Debug, Default)]
struct Leading {
    name: Option<String>,
    /// Networks that this host is in itself.
    near: Vec<InterfaceAddress>,
}

impl Outward {
    /// The interfaces there are, and the index of the one with the default route.
    pub fn set(&self, interfaces: &[Interface], default: Option<u32>) {
        let leading = default.and_then(|index| interfaces.iter().find(|one| one.index == index));
        let next = Leading {
            name: leading.map(|one| one.name.clone()),
            near: interfaces.iter().flat_map(|one| one.addresses.iter().copied()).collect(),
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// The interface to reach `target` by, or anybody; `None` where that is left to the routes, as it is for this host and
    /// the networks that it is in.
    #[must_use]
    pub fn name_for(&self, target: Option<IpAddr>) -> Option<String> {
        let leading = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_near =
            |target: IpAddr| target.is_loopback() || leading.near.iter().any(|address| address.holds(target));
        leading.name.clone().filter(|_| !target.is_some_and(|target| is_near(target.to_canonical())))
    }
}

/// The same one, not one that says the same.
impl PartialEq for Outward {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Outward {}

impl InterfaceAddress {
    /// Whether an address is of the same network.
    fn holds(self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(ip), IpAddr::V4(other)) => {
                let differing = ip.to_bits() ^ other.to_bits();
                differing.checked_shr(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(ip), IpAddr::V6(other)) => {
                let differing = ip.to_bits() ^ other.to_bits();
                differing.checked_shr(128 - u32::from(self.prefix_len.min(128))).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Finds an interface's index (if_nametoindex(3)).
///
/// # Errors
/// ENODEV, or [`io::ErrorKind::NotFound`] on some systems, where there is none of that name.
pub fn index(name: &str) -> io::Result<u32> {
    sys::interface_index(name)
}

/// Lists the interfaces of this thread's network namespace (getifaddrs(3)).
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list: Vec<Interface> = Vec::new();
    sys::visit_interfaces(|name, flags, address, netmask| {
        let name = name.to_string_lossy();
        let position = list.iter().position(|known| known.name == name).unwrap_or_else(|| {
            list.push(Interface {
                index: sys::interface_index(&name).unwrap_or(0),
                up: flags & libc::IFF_UP as u32 != 0,
                loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
                addresses: Vec::new(),
                name: name.into_owned(),
            });
            list.len() - 1
        });
        if let Some(ip) = address {
            let prefix_len = netmask.map_or(0, prefix_len);
            list[position].addresses.push(InterfaceAddress { ip, prefix_len });
        }
    })?;
    Ok(list)
}

fn prefix_len(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    ones as u8
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_left_to_the_routes() {
        let outward = Outward::default();
        assert_eq!(outward.name_for(None), None);
        let address = |ip: &str, prefix_len| InterfaceAddress { ip: ip.parse().unwrap(), prefix_len };
        let interface = |name: &str, index, addresses| Interface {
            name: name.to_owned(),
            index,
            up: true,
            loopback: false,
            addresses,
        };
        let all = [
            interface("lan0", 2, vec![address("10.0.0.1", 8), address("fe80::1", 64)]),
            interface("wan0", 3, vec![address("192.0.2.7", 24), address("2001:db8::7", 128)]),
        ];
        outward.set(&all, Some(3));
        assert_eq!(outward.name_for(None).as_deref(), Some("wan0"));
        for (target, expected) in [
            ("198.51.100.1", Some("wan0")),
            ("2001:db8::8", Some("wan0")),
            ("192.0.2.200", None),
            ("10.255.0.1", None),
            ("::ffff:10.255.0.1", None),
            ("2001:db8::7", None),
            ("fe80::9", None),
            ("127.0.0.1", None),
            ("::1", None),
        ] {
            assert_eq!(outward.name_for(Some(target.parse().unwrap())).as_deref(), expected, "{target}");
        }
        outward.set(&all, None);
        assert_eq!(outward.name_for(None), None);
    }

    use crate::testing::{LOOPBACKS, in_fresh_network};

    #[test]
    fn loopback_is_listed_with_its_addresses() {
        in_fresh_network("loopback_is_listed_with_its_addresses", || {
            let [interface]: [Interface; 1] = interfaces().unwrap().try_into().unwrap();
            let [v4, v6] = LOOPBACKS.map(|address| address.ip());
            let addresses = vec![
                InterfaceAddress { ip: v4, prefix_len: 8 },
                InterfaceAddress { ip: v6, prefix_len: 128 },
            ];
            let index = index("lo").unwrap();
            assert_eq!(
                interface,
                Interface { name: "lo".into(), index, up: true, loopback: true, addresses }
            );
        });
    }

    #[test]
    fn every_listed_index_is_the_one_of_its_name() {
        let list = interfaces().unwrap();
        assert!(list.iter().any(|interface| interface.loopback));
        for interface in list {
            assert_eq!(index(&interface.name).unwrap(), interface.index);
        }
    }

    #[test]
    fn unknown_or_impossible_name_is_an_error() {
        assert_eq!(index("no-such-if0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(index("lo\0").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
