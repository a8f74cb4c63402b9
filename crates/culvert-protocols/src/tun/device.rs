//! The device: made, given its addresses, and with `auto_route` put in the way of the system's traffic; all undone at the end.
//!
//! The routes into the device are a routing table of their own. Rules before the system's say which packets look into it:
//!
//! ```text
//! base      marked as ours                                   goto the last one     (no traffic of ours comes back in)
//! base+1    by excluded interfaces, of excluded users, to excluded networks   goto the last one
//! ...       to the device's own networks                     lookup table
//! ...       all but port 53                                  lookup main, default routes aside   (the local network stays)
//! ...       that came in by the device                       goto the last one
//! ...       that came in from elsewhere                      lookup table
//! ...       of sockets without an address, or with the device's               lookup table
//! last      nop
//! ```
//!
//! A crash leaves rules behind (the routes go with the device). They are recognised by their places and taken out before new
//! ones are made.
//!
//! Source: the rules that sing-box 1.14.4 makes on Linux, as `ip rule` shows them; the mark is Culvert's own way to keep loops
//! away, where sing-box binds its sockets to the default interface.

use std::net::IpAddr;

use culvert_os::netlink::{self, Prefix, Rule};
use culvert_os::netns;
use culvert_os::tun::Tun;
use tracing::warn;

use crate::netstack::{DeviceError, DeviceOptions};

/// Most rules that are looked for at the places of ours.
const MOST_RULES: u32 = 256;

/// What a device is made from.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// `None`: the first of `tun0`, `tun1`, … that is free.
    pub(super) name: Option<String>,
    pub(super) netns: Option<String>,
    pub(super) mtu: u32,
    pub(super) addresses: Vec<Prefix>,
    pub(super) auto_route: Option<AutoRoute>,
}

/// What goes into the device.
#[derive(Clone, Debug)]
pub(super) struct AutoRoute {
    pub(super) table: u32,
    pub(super) priority: u32,
    /// The mark of our own sockets.
    pub(super) mark: u32,
    /// Takes all of port 53, wherever it goes.
    pub(super) dns: bool,
    /// Lets no route around, not even to the local network.
    pub(super) strict: bool,
    pub(super) include: Vec<Prefix>,
    pub(super) exclude: Vec<Prefix>,
    pub(super) include_interfaces: Vec<String>,
    pub(super) exclude_interfaces: Vec<String>,
    /// Users whose packets are not taken, as ranges.
    pub(super) exclude_users: Vec<(u32, u32)>,
}

impl Device {
    /// Makes the device with so many queues, or fewer where it exists and has fewer.
    pub(super) fn open(&self, queues: usize) -> Result<Vec<Tun>, DeviceError> {
        match &self.netns {
            Some(netns) => netns::within(netns, || self.open_here(queues))?,
            None => self.open_here(queues),
        }
    }

    fn open_here(&self, queues: usize) -> Result<Vec<Tun>, DeviceError> {
        let options = DeviceOptions {
            name: self.name.as_deref(),
            prefix: "tun",
            mtu: self.mtu,
            addresses: &self.addresses,
            instead: "a mixed or socks inbound works without",
        };
        let (queues, link) = options.open_queues(queues)?;
        if let Some(route) = &self.auto_route {
            self.add_routes(route, link, queues[0].name())?;
        }
        Ok(queues)
    }

    fn add_routes(&self, route: &AutoRoute, link: u32, name: &str) -> Result<(), DeviceError> {
        remove_rules(route.priority);
        let families: Vec<bool> = [false, true]
            .into_iter()
            .filter(|v6| self.addresses.iter().any(|one| one.ip.is_ipv6() == *v6))
            .collect();
        for v6 in families {
            let of_family = |prefix: &&Prefix| prefix.ip.is_ipv6() == v6;
            let all =
                Prefix { ip: if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) }, len: 0 };
            let mut targets: Vec<Prefix> = route.include.iter().filter(of_family).copied().collect();
            if targets.is_empty() && route.include.is_empty() {
                targets.push(all);
            }
            for target in targets {
                let target = netlink::network(target);
                let added = netlink::add_route(target, link, route.table);
                if let Err(source) = added {
                    if v6 {
                        warn!("{name}: no IPv6 routes: {source}; going on without");
                        break;
                    }
                    let what = format!("route {}/{} into {name}", target.ip, target.len);
                    return Err(DeviceError::Io { what, source });
                }
            }
            for rule in self.rules(route, name, v6) {
                match netlink::add_rule(&rule) {
                    Ok(()) => {}
                    Err(error) if v6 => {
                        warn!("{name}: no IPv6 routing rules: {error}; going on without");
                        break;
                    }
                    Err(source) => {
                        remove_rules(route.priority);
                        let what = format!("make routing rule {}", rule.priority);
                        return Err(DeviceError::Io { what, source });
                    }
                }
            }
        }
        Ok(())
    }

    /// The rules of one family, in order.
    fn rules(&self, route: &AutoRoute, name: &str, v6: bool) -> Vec<Rule> {
        const MAIN: u32 = 254;
        let of_family = |prefix: &&Prefix| prefix.ip.is_ipv6() == v6;
        // Their places, and the place to go on at, are filled in at the end.
        let out = |rule: Rule| Rule { goto: Some(0), ..rule };
        let into = |rule: Rule| Rule { table: route.table, ..rule };
        let any = Rule { v6, ..Rule::default() };
        let own: Vec<Prefix> =
            self.addresses.iter().filter(of_family).copied().map(netlink::network).collect();
        let mut rules = vec![out(Rule { mark: Some((route.mark, u32::MAX)), ..any.clone() })];
        for interface in &route.exclude_interfaces {
            rules.push(out(Rule { incoming: Some(interface.clone()), ..any.clone() }));
        }
        for users in &route.exclude_users {
            rules.push(out(Rule { users: Some(*users), ..any.clone() }));
        }
        for target in route.exclude.iter().filter(of_family) {
            rules.push(out(Rule { target: Some(netlink::network(*target)), ..any.clone() }));
        }
        for target in &own {
            rules.push(into(Rule { target: Some(*target), ..any.clone() }));
        }
        if !route.strict {
            let around = Rule { table: MAIN, suppress: Some(0), ..any.clone() };
            rules.push(if route.dns {
                Rule { invert: true, ports: Some((53, 53)), ..around }
            } else {
                around
            });
        }
        rules.push(out(Rule { incoming: Some(name.to_owned()), ..any.clone() }));
        if route.include_interfaces.is_empty() {
            rules.push(into(Rule { incoming: Some("lo".to_owned()), invert: true, ..any.clone() }));
        }
        for interface in &route.include_interfaces {
            rules.push(into(Rule { incoming: Some(interface.clone()), ..any.clone() }));
        }
        let unbound = Prefix {
            ip: if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) },
            len: if v6 { 128 } else { 32 },
        };
        for source in std::iter::once(unbound).chain(own) {
            rules.push(into(Rule { incoming: Some("lo".to_owned()), source: Some(source), ..any.clone() }));
        }
        rules.push(Rule { nop: true, ..any });
        let last = route.priority + rules.len() as u32 - 1;
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.priority = route.priority + number as u32;
            rule.goto = rule.goto.map(|_| last);
        }
        rules
    }

    /// Undoes what does not go with the device.
    pub(super) fn close(&self) {
        let Some(route) = &self.auto_route else { return };
        match &self.netns {
            Some(netns) => drop(netns::within(netns, || remove_rules(route.priority))),
            None => remove_rules(route.priority),
        }
    }
}

/// Takes out the rules at our places, from the first on until there is a gap.
fn remove_rules(first: u32) {
    for v6 in [false, true] {
        for priority in first..first + MOST_RULES {
            let mut found = false;
            while netlink::delete_rule_at(priority, v6).is_ok() {
                found = true;
            }
            if !found {
                break;
            }
        }
    }
}

/// What is left of all user numbers without these ranges.
pub(super) fn others(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut others = Vec::new();
    let mut next = Some(0u32);
    for (first, last) in ranges {
        if let Some(start) = next
            && start < first
        {
            others.push((start, first - 1));
        }
        next = next.and_then(|next| last.checked_add(1).map(|after| after.max(next)));
    }
    // The last number stands for no user.
    if let Some(start) = next.filter(|start| *start < u32::MAX) {
        others.push((start, u32::MAX - 1));
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_are_not_included_are_the_others() {
        assert_eq!(others(vec![(1000, 1000)]), [(0, 999), (1001, u32::MAX - 1)]);
        assert_eq!(others(vec![(5, 9), (0, 6), (20, 30)]), [(10, 19), (31, u32::MAX - 1)]);
        assert_eq!(others(vec![(0, u32::MAX)]), []);
    }

    #[test]
    fn rules_let_our_own_out_first_and_end_where_they_go_on() {
        let prefix = |text: &str| {
            let (ip, len) = text.split_once('/').unwrap();
            Prefix { ip: ip.parse().unwrap(), len: len.parse().unwrap() }
        };
        let route = AutoRoute {
            table: 2022,
            priority: 9000,
            mark: 7,
            dns: true,
            strict: false,
            include: vec![],
            exclude: vec![prefix("10.0.0.0/8")],
            include_interfaces: vec![],
            exclude_interfaces: vec!["docker0".to_owned()],
            exclude_users: vec![(5, 5)],
        };
        let addresses = vec![prefix("172.19.0.1/30"), prefix("fdfe::1/126")];
        let device =
            Device { name: None, netns: None, mtu: 9000, addresses, auto_route: Some(route.clone()) };
        let rules = device.rules(&route, "tun0", false);
        assert_eq!(rules[0].mark, Some((7, u32::MAX)));
        let places: Vec<_> = rules.iter().map(|rule| rule.priority).collect();
        assert_eq!(places, (9000..9000 + rules.len() as u32).collect::<Vec<_>>());
        assert!(rules.last().unwrap().nop);
        let last = *places.last().unwrap();
        assert!(rules.iter().filter_map(|rule| rule.goto).all(|goto| goto == last));
        assert_eq!(rules.iter().filter(|rule| rule.goto.is_some()).count(), 5);
        assert!(rules.iter().any(|rule| rule.target == Some(prefix("172.19.0.0/30")) && rule.table == 2022));
        assert!(
            device
                .rules(&route, "tun0", true)
                .iter()
                .all(|rule| rule.v6 && rule.target != Some(prefix("10.0.0.0/8")))
        );
    }
}
