//! Network interfaces: names, indices and addresses.

use std::io;
use std::net::IpAddr;

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
