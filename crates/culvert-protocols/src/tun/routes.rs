//! `auto_route`: the device put in the way of the system's traffic.
//!
//! The routes into the device are a routing table of their own: what is included without what is excluded, as networks.
//! Rules before the system's say which packets look into it:
//!
//! ```text
//! base      marked as ours                                   goto the last one     (no traffic of ours comes back in)
//! base+1    by excluded interfaces, of excluded users        goto the last one
//! ...       to the device's own networks                     lookup table
//! ...       what was named to be routed                      lookup table, default routes aside
//! ...       all but port 53                                  lookup main, default routes aside   (the local network stays)
//! ...       marked by `redirect.rs`                          lookup table
//! ...       that came in by the device                       goto the last one
//! ...       that came in from elsewhere                      lookup table
//! ...       of sockets without an address, or with the device's               lookup table
//! last      nop
//! ```
//!
//! With `strict_route` a family that the device has no address of is unreachable, but for what is ours.
//!
//! A crash leaves rules behind (the routes go with the device). They bear a mark of ours, and are taken out before new ones
//! are made.
//!
//! Source: the rules that sing-box 1.14.4 makes on Linux, as `ip rule` shows them; the mark is Culvert's own way to keep loops
//! away, where sing-box binds its sockets to the default interface.

use std::net::IpAddr;

use culvert_os::netlink::{self, Prefix, Rule};
use culvert_rules::ip::IpSet;
use tracing::warn;

use crate::netstack::DeviceError;

/// Most rules that are looked for at the places of ours.
const MOST_RULES: u32 = 512;
const MAIN: u32 = 254;

/// What goes into the device.
#[derive(Clone, Debug)]
pub(super) struct AutoRoute {
    pub(super) table: u32,
    pub(super) priority: u32,
    /// The marks of our own sockets.
    pub(super) marks: Vec<u32>,
    /// The mark by which `redirect.rs` asks whether a packet would go into the device.
    pub(super) asking: Option<u32>,
    /// Takes all of port 53, wherever it goes.
    pub(super) dns: bool,
    /// Families that the device has no address of are unreachable.
    pub(super) strict: bool,
    /// What is to be routed was named.
    pub(super) named: bool,
    pub(super) include_interfaces: Vec<String>,
    pub(super) exclude_interfaces: Vec<String>,
    /// Users whose packets are not taken, as ranges.
    pub(super) exclude_users: Vec<(u32, u32)>,
}

/// The device as its routes see it.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) link: u32,
    pub(super) name: String,
    pub(super) addresses: Vec<Prefix>,
}

impl Way {
    fn has(&self, v6: bool) -> bool {
        self.addresses.iter().any(|one| one.ip.is_ipv6() == v6)
    }
}

impl AutoRoute {
    /// Makes routes to `targets`, and the rules.
    pub(super) fn set_up(&self, way: &Way, targets: &IpSet) -> Result<(), DeviceError> {
        for v6 in [false, true] {
            if let Ok(Some(other)) = netlink::link_of_table(self.table, v6)
                && other != way.link
            {
                let what = format!(
                    "routing table {} is in use by another program; set `iproute2_table_index` and \
                     `iproute2_rule_index`, in steps of 10 or more",
                    self.table
                );
                return Err(DeviceError::Refused(what));
            }
        }
        self.remove();
        let made = self.make(way, targets);
        if made.is_err() {
            self.remove();
        }
        made
    }

    fn make(&self, way: &Way, targets: &IpSet) -> Result<(), DeviceError> {
        for target in networks(targets) {
            let v6 = target.ip.is_ipv6();
            if !way.has(v6) {
                continue;
            }
            match netlink::add_route(target, way.link, self.table) {
                Ok(()) => {}
                Err(source) if v6 => {
                    warn!("{}: no IPv6 routes: {source}; going on without", way.name);
                    break; // the networks of IPv6 come last
                }
                Err(source) => {
                    let what = format!("route {}/{} into {}", target.ip, target.len, way.name);
                    return Err(DeviceError::Io { what, source });
                }
            }
        }
        for v6 in [false, true] {
            for rule in self.rules(way, v6) {
                match netlink::add_rule(&rule) {
                    Ok(()) => {}
                    Err(error) if v6 => {
                        warn!("{}: no IPv6 routing rules: {error}; going on without", way.name);
                        break;
                    }
                    Err(source) => {
                        let what = format!("make routing rule {}", rule.priority);
                        return Err(DeviceError::Io { what, source });
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts the routes to `new` in the place of those to `old`.
    pub(super) fn change(&self, way: &Way, old: &IpSet, new: &IpSet) {
        let (old, new) = (networks(old), networks(new));
        // What is added comes first, so that nothing that is in both is out for a moment.
        for target in new.iter().filter(|target| old.binary_search_by_key(&key(target), key).is_err()) {
            if let Err(error) = netlink::add_route(*target, way.link, self.table) {
                warn!("{}: route {}/{}: {error}", way.name, target.ip, target.len);
            }
        }
        for target in old.iter().filter(|target| new.binary_search_by_key(&key(target), key).is_err()) {
            let _ = netlink::delete_route(*target, way.link, self.table);
        }
    }

    /// The rules of one family, in order.
    fn rules(&self, way: &Way, v6: bool) -> Vec<Rule> {
        // Their places, and the place to go on at, are filled in at the end.
        let out = |rule: Rule| Rule { goto: Some(0), ..rule };
        let into = |rule: Rule| Rule { table: self.table, ..rule };
        let any = Rule { v6, ..Rule::default() };
        let marked = |mark: u32| Rule { mark: Some((mark, u32::MAX)), ..any.clone() };
        let mut rules: Vec<Rule> = self.marks.iter().map(|mark| out(marked(*mark))).collect();
        if way.has(v6) {
            self.rules_into(way, &any, &mut rules, out, into);
        } else if self.strict {
            rules.push(Rule { unreachable: true, ..any.clone() });
        } else {
            return Vec::new();
        }
        rules.push(Rule { nop: true, ..any });
        let last = self.priority + rules.len() as u32 - 1;
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.priority = self.priority + number as u32;
            rule.goto = rule.goto.map(|_| last);
        }
        rules
    }

    fn rules_into(
        &self,
        way: &Way,
        any: &Rule,
        rules: &mut Vec<Rule>,
        out: impl Fn(Rule) -> Rule,
        into: impl Fn(Rule) -> Rule,
    ) {
        let own =
            way.addresses.iter().filter(|one| one.ip.is_ipv6() == any.v6).copied().map(netlink::network);
        let own: Vec<Prefix> = own.collect();
        for interface in &self.exclude_interfaces {
            rules.push(out(Rule { incoming: Some(interface.clone()), ..any.clone() }));
        }
        for users in &self.exclude_users {
            rules.push(out(Rule { users: Some(*users), ..any.clone() }));
        }
        for target in &own {
            rules.push(into(Rule { target: Some(*target), ..any.clone() }));
        }
        if self.named {
            rules.push(into(Rule { suppress: Some(0), ..any.clone() }));
        }
        let around = Rule { table: MAIN, suppress: Some(0), ..any.clone() };
        rules.push(if self.dns { Rule { invert: true, ports: Some((53, 53)), ..around } } else { around });
        if let Some(mark) = self.asking {
            rules.push(into(Rule { mark: Some((mark, u32::MAX)), ..any.clone() }));
        }
        rules.push(out(Rule { incoming: Some(way.name.clone()), ..any.clone() }));
        const HOST: &str = "lo";
        let all = self.include_interfaces.is_empty();
        if all {
            rules.push(into(Rule { incoming: Some(HOST.to_owned()), invert: true, ..any.clone() }));
        }
        for interface in self.include_interfaces.iter().filter(|name| *name != HOST) {
            rules.push(into(Rule { incoming: Some(interface.clone()), ..any.clone() }));
        }
        if all || self.include_interfaces.iter().any(|name| name == HOST) {
            let unbound = if any.v6 {
                Prefix { ip: IpAddr::from([0u16; 8]), len: 128 }
            } else {
                Prefix { ip: IpAddr::from([0u8; 4]), len: 32 }
            };
            for source in std::iter::once(unbound).chain(own) {
                rules.push(into(Rule {
                    incoming: Some(HOST.to_owned()),
                    source: Some(source),
                    ..any.clone()
                }));
            }
        }
    }

    /// Takes out our rules, from the first place on until there is a gap.
    pub(super) fn remove(&self) {
        for v6 in [false, true] {
            for priority in self.priority..self.priority.saturating_add(MOST_RULES) {
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
}

fn key(prefix: &Prefix) -> (IpAddr, u8) {
    (prefix.ip, prefix.len)
}

/// The networks that make up a set, in order.
fn networks(set: &IpSet) -> Vec<Prefix> {
    set.prefixes().into_iter().map(|prefix| Prefix { ip: prefix.addr(), len: prefix.bits() }).collect()
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

    fn prefix(text: &str) -> Prefix {
        let (ip, len) = text.split_once('/').unwrap();
        Prefix { ip: ip.parse().unwrap(), len: len.parse().unwrap() }
    }

    fn route() -> AutoRoute {
        AutoRoute {
            table: 2022,
            priority: 9000,
            marks: vec![7, 8],
            asking: Some(9),
            dns: true,
            strict: false,
            named: false,
            include_interfaces: vec![],
            exclude_interfaces: vec!["docker0".to_owned()],
            exclude_users: vec![(5, 5)],
        }
    }

    fn way(addresses: &[&str]) -> Way {
        let addresses = addresses.iter().map(|text| prefix(text)).collect();
        Way { link: 3, name: "tun0".to_owned(), addresses }
    }

    #[test]
    fn users_that_are_not_included_are_the_others() {
        assert_eq!(others(vec![(1000, 1000)]), [(0, 999), (1001, u32::MAX - 1)]);
        assert_eq!(others(vec![(5, 9), (0, 6), (20, 30)]), [(10, 19), (31, u32::MAX - 1)]);
        assert_eq!(others(vec![(0, u32::MAX)]), []);
    }

    #[test]
    fn rules_let_our_own_out_first_and_end_where_they_go_on() {
        let (route, way) = (route(), way(&["172.19.0.1/30", "fdfe::1/126"]));
        let rules = route.rules(&way, false);
        assert_eq!(rules[0].mark, Some((7, u32::MAX)));
        assert_eq!(rules[1].mark, Some((8, u32::MAX)));
        let places: Vec<_> = rules.iter().map(|rule| rule.priority).collect();
        assert_eq!(places, (9000..9000 + rules.len() as u32).collect::<Vec<_>>());
        assert!(rules.last().unwrap().nop);
        let last = *places.last().unwrap();
        assert!(rules.iter().filter_map(|rule| rule.goto).all(|goto| goto == last));
        assert_eq!(rules.iter().filter(|rule| rule.goto.is_some()).count(), 5);
        assert!(rules.iter().any(|rule| rule.target == Some(prefix("172.19.0.0/30")) && rule.table == 2022));
        assert!(route.rules(&way, true).iter().all(|rule| rule.v6));
    }

    #[test]
    fn a_family_without_an_address_is_left_alone_or_unreachable() {
        let way = way(&["172.19.0.1/30"]);
        assert!(route().rules(&way, true).is_empty());
        let strict = AutoRoute { strict: true, ..route() };
        let rules = strict.rules(&way, true);
        assert!(rules[2].unreachable && rules[3].nop && rules.len() == 4, "{rules:?}");
        assert_eq!(rules[0].goto, Some(rules[3].priority), "but for our own");
    }

    #[test]
    fn with_interfaces_named_nothing_else_is_taken() {
        let include = AutoRoute { include_interfaces: vec!["lan".to_owned()], ..route() };
        let rules = include.rules(&way(&["172.19.0.1/30"]), false);
        let of_host = rules.iter().any(|rule| rule.incoming.as_deref() == Some("lo"));
        assert!(
            !of_host
                && rules.iter().any(|rule| rule.incoming.as_deref() == Some("lan") && rule.table == 2022)
        );
    }
}
