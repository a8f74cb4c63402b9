//! Links, addresses, routes, routing rules and neighbours, by netlink: what `ip(8)` does.
//!
//! ```text
//! message     length 4, type 2, flags 2, sequence 4, port 4, then a struct of the type's own and attributes
//! attribute   length 2, type 2, data, padding to four bytes
//! ```
//!
//! Each call opens a socket of its own and waits for the kernel's answer, which comes at once; so the calls work in the
//! network namespace of the thread that makes them.
//!
//! Source: rtnetlink(7), linux/rtnetlink.h, linux/fib_rules.h.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys;

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const GET_NEIGHBOR: u16 = 30;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;

pub(crate) const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const REPLACE: u16 = 0x100;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
/// All there is (NLM_F_ROOT | NLM_F_MATCH).
pub(crate) const DUMP: u16 = 0x300;

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// What rules of ours are marked with (`proto` of ip-rule(8)), so that those of others at the same places stay.
const MADE_BY_US: u8 = 0xc7;
/// Bytes before the body of a message.
const HEADER: usize = 16;

/// Attributes of rules (linux/fib_rules.h).
mod fra {
    pub(super) const DST: u16 = 1;
    pub(super) const SRC: u16 = 2;
    pub(super) const IIFNAME: u16 = 3;
    pub(super) const GOTO: u16 = 4;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const FWMARK: u16 = 10;
    pub(super) const SUPPRESS_PREFIXLEN: u16 = 14;
    pub(super) const TABLE: u16 = 15;
    pub(super) const FWMASK: u16 = 16;
    pub(super) const OIFNAME: u16 = 17;
    pub(super) const UID_RANGE: u16 = 20;
    pub(super) const PROTOCOL: u16 = 21;
    pub(super) const IP_PROTO: u16 = 22;
    pub(super) const DPORT_RANGE: u16 = 24;
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefix {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that count.
    pub len: u8,
}

/// A routing rule: which packets look into which table, or are let out of the rules after it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rule {
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Its place among the rules.
    pub priority: u32,
    /// The table to look into; 0 with [`Rule::goto`].
    pub table: u32,
    /// Goes on with the rule of this priority instead.
    pub goto: Option<u32>,
    /// Does nothing: a place for others to go on at.
    pub nop: bool,
    /// Says that there is no way.
    pub unreachable: bool,
    /// Packets with this mark, under this mask.
    pub mark: Option<(u32, u32)>,
    /// Packets to this network.
    pub target: Option<Prefix>,
    /// Packets from this network.
    pub source: Option<Prefix>,
    /// Packets that came in by this interface; `lo` for the host's own.
    pub incoming: Option<String>,
    /// Packets of sockets that are bound to this interface.
    pub outgoing: Option<String>,
    /// Packets of these users.
    pub users: Option<(u32, u32)>,
    /// Packets of this protocol.
    pub protocol: Option<u8>,
    /// Packets to these ports.
    pub ports: Option<(u16, u16)>,
    /// Routes of the table with a prefix of this length or shorter do not count.
    pub suppress: Option<u32>,
    /// All packets but those.
    pub invert: bool,
}

/// Packets that wait for the reader of a device. The system's 500 are gone in five milliseconds at 100,000 datagrams per
/// second, which is less than a busy machine keeps a reader waiting.
const QUEUE: u32 = 2048;

/// Sets a link's MTU and the length of its queue, and brings it up.
///
/// # Errors
/// The kernel's; ENODEV without such a link.
pub fn bring_up(link: u32, mtu: u32) -> io::Result<()> {
    let mut message = Message::new(NEW_LINK, REQUEST | ACK);
    let up = libc::IFF_UP as u32;
    message.bytes(&[0, 0, 0, 0]);
    message.word(link);
    message.word(up);
    message.word(up);
    message.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
    message.attribute(libc::IFLA_TXQLEN, &QUEUE.to_ne_bytes());
    message.send()
}

/// Makes two links that are one wire: what either sends, the other receives. The second one is in another namespace.
///
/// # Errors
/// The kernel's; EEXIST if there is a link of that name.
pub fn add_veth(name: &str, peer: &str, namespace: BorrowedFd<'_>) -> io::Result<()> {
    /// VETH_INFO_PEER of linux/veth.h.
    const PEER: u16 = 1;
    const HEAD: [u8; 16] = [0; 16];
    let text = |name: &str| [name.as_bytes(), b"\0"].concat();
    let mut message = Message::new(NEW_LINK, REQUEST | ACK | CREATE | EXCLUSIVE);
    message.bytes(&HEAD);
    message.attribute(libc::IFLA_IFNAME, &text(name));
    message.nested(libc::IFLA_LINKINFO, |message| {
        message.attribute(libc::IFLA_INFO_KIND, b"veth");
        message.nested(libc::IFLA_INFO_DATA, |message| {
            message.nested(PEER, |message| {
                message.bytes(&HEAD);
                message.attribute(libc::IFLA_IFNAME, &text(peer));
                message.attribute(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
            });
        });
    });
    message.send()
}

/// Gives a link an address. One that it has already is no fault.
///
/// # Errors
/// The kernel's.
pub fn add_address(link: u32, address: Prefix) -> io::Result<()> {
    // Without waiting for others to object to an IPv6 address: there are no others behind a TUN device.
    const NO_DUPLICATE_DETECTION: u8 = 2;
    let mut message = Message::new(NEW_ADDRESS, REQUEST | ACK | CREATE | REPLACE);
    message.bytes(&[family(address.ip), address.len, NO_DUPLICATE_DETECTION, 0]);
    message.word(link);
    message.address(libc::IFA_LOCAL, address.ip);
    message.address(libc::IFA_ADDRESS, address.ip);
    message.send()
}

/// Whether packets to an address are for this host. An IPv6 address that was just added is not yet there for packets: the
/// kernel adds its route a moment later, and forwards or drops what comes before.
///
/// # Errors
/// The kernel's; ENETUNREACH where nothing leads to it.
pub fn is_local(ip: IpAddr) -> io::Result<bool> {
    /// `rtm_type`, and where it stands in the answer.
    const LOCAL: u8 = 2;
    const TYPE: usize = 16 + 7;
    let mut message = Message::new(GET_ROUTE, REQUEST);
    let len = if ip.is_ipv4() { 32 } else { 128 };
    message.bytes(&[family(ip), len, 0, 0, 0, 0, 0, 0]);
    message.word(0);
    message.address(libc::RTA_DST, ip);
    let answer = message.ask()?;
    match answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes) {
        Some(NEW_ROUTE) => Ok(answer.get(TYPE) == Some(&LOCAL)),
        _ => acknowledged(&answer).map(|()| false),
    }
}

/// Adds a route by a link to a table.
///
/// # Errors
/// The kernel's.
pub fn add_route(target: Prefix, link: u32, table: u32) -> io::Result<()> {
    route(NEW_ROUTE, REQUEST | ACK | CREATE | REPLACE, target, link, table)
}

/// Takes it out again.
///
/// # Errors
/// The kernel's; ESRCH if there is none.
pub fn delete_route(target: Prefix, link: u32, table: u32) -> io::Result<()> {
    route(DELETE_ROUTE, REQUEST | ACK, target, link, table)
}

fn route(kind: u16, flags: u16, target: Prefix, link: u32, table: u32) -> io::Result<()> {
    const BY_US: u8 = 4; // RTPROT_STATIC
    const TO_LINK: u8 = 253;
    const UNICAST: u8 = 1;
    let mut message = Message::new(kind, flags);
    message.bytes(&[family(target.ip), target.len, 0, 0, 0, BY_US, TO_LINK, UNICAST]);
    message.word(0);
    message.attribute(libc::RTA_TABLE, &table.to_ne_bytes());
    message.attribute(libc::RTA_OIF, &link.to_ne_bytes());
    if target.len > 0 {
        message.address(libc::RTA_DST, target.ip);
    }
    message.send()
}

/// Adds a rule.
///
/// # Errors
/// The kernel's; EEXIST if there is the same.
pub fn add_rule(rule: &Rule) -> io::Result<()> {
    rule.message(NEW_RULE, REQUEST | ACK | CREATE | EXCLUSIVE).send()
}

/// Takes a rule out again.
///
/// # Errors
/// The kernel's; ENOENT if there is none.
pub fn delete_rule(rule: &Rule) -> io::Result<()> {
    rule.message(DELETE_RULE, REQUEST | ACK).send()
}

/// Takes out one rule, whatever it says, that stands at this place and was made by [`add_rule`].
///
/// # Errors
/// The kernel's; ENOENT if there is none.
pub fn delete_rule_at(priority: u32, v6: bool) -> io::Result<()> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut message = Message::new(DELETE_RULE, REQUEST | ACK);
    message.bytes(&[family, 0, 0, 0, 0, 0, 0, 0]);
    message.word(0);
    message.attribute(fra::PRIORITY, &priority.to_ne_bytes());
    message.attribute(fra::PROTOCOL, &[MADE_BY_US]);
    message.send()
}

impl Rule {
    fn message(&self, kind: u16, flags: u16) -> Message {
        const TO_TABLE: u8 = 1;
        const GOTO: u8 = 2;
        const NOP: u8 = 3;
        const UNREACHABLE: u8 = 7;
        const INVERT: u32 = 2;
        let action = match (self.goto, self.nop, self.unreachable) {
            (Some(_), ..) => GOTO,
            (None, true, _) => NOP,
            (None, false, true) => UNREACHABLE,
            (None, false, false) => TO_TABLE,
        };
        let len = |prefix: Option<Prefix>| prefix.map_or(0, |prefix| prefix.len);
        let family = if self.v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
        let mut message = Message::new(kind, flags);
        message.bytes(&[family, len(self.target), len(self.source), 0, 0, 0, 0, action]);
        message.word(if self.invert { INVERT } else { 0 });
        message.attribute(fra::PRIORITY, &self.priority.to_ne_bytes());
        message.attribute(fra::PROTOCOL, &[MADE_BY_US]);
        if action == TO_TABLE {
            message.attribute(fra::TABLE, &self.table.to_ne_bytes());
        }
        if let Some(goto) = self.goto {
            message.attribute(fra::GOTO, &goto.to_ne_bytes());
        }
        if let Some((mark, mask)) = self.mark {
            message.attribute(fra::FWMARK, &mark.to_ne_bytes());
            message.attribute(fra::FWMASK, &mask.to_ne_bytes());
        }
        if let Some(target) = self.target {
            message.address(fra::DST, target.ip);
        }
        if let Some(source) = self.source {
            message.address(fra::SRC, source.ip);
        }
        for (attribute, name) in [(fra::IIFNAME, &self.incoming), (fra::OIFNAME, &self.outgoing)] {
            if let Some(name) = name {
                let mut name = name.clone().into_bytes();
                name.push(0);
                message.attribute(attribute, &name);
            }
        }
        if let Some((first, last)) = self.users {
            let mut range = first.to_ne_bytes().to_vec();
            range.extend(last.to_ne_bytes());
            message.attribute(fra::UID_RANGE, &range);
        }
        if let Some(protocol) = self.protocol {
            message.attribute(fra::IP_PROTO, &[protocol]);
        }
        if let Some((first, last)) = self.ports {
            let mut range = first.to_ne_bytes().to_vec();
            range.extend(last.to_ne_bytes());
            message.attribute(fra::DPORT_RANGE, &range);
        }
        if let Some(len) = self.suppress {
            message.attribute(fra::SUPPRESS_PREFIXLEN, &len.to_ne_bytes());
        }
        message
    }
}

fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// The network that an address with a prefix is in; a prefix longer than the address is the whole address.
#[must_use]
pub fn network(prefix: Prefix) -> Prefix {
    let ip = match prefix.ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.len.into())).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.len.into())).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
        }
    };
    Prefix { ip, ..prefix }
}

/// A host in reach by a link: its address there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbor {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its hardware address.
    pub mac: [u8; 6],
}

/// All hosts whose hardware addresses the kernel knows at this moment.
///
/// # Errors
/// The kernel's.
pub fn neighbors() -> io::Result<Vec<Neighbor>> {
    const HEAD: usize = 12;
    const DST: u16 = 1;
    const LINK_ADDRESS: u16 = 2;
    let mut message = Message::new(GET_NEIGHBOR, REQUEST | DUMP);
    message.bytes(&[0; HEAD]);
    let mut found = Vec::new();
    message.dump(libc::NETLINK_ROUTE, |body| {
        let (mut ip, mut mac) = (None, None);
        for (kind, data) in attributes(body.get(HEAD..).unwrap_or_default()) {
            match kind {
                DST => ip = address_of(data),
                LINK_ADDRESS => mac = data.try_into().ok(),
                _ => {}
            }
        }
        if let (Some(ip), Some(mac)) = (ip, mac) {
            found.push(Neighbor { ip, mac });
        }
    })?;
    Ok(found)
}

/// The hardware address of a link, if it has one of six bytes.
///
/// # Errors
/// The kernel's.
pub fn hardware_address(link: u32) -> io::Result<Option<[u8; 6]>> {
    const HEAD: usize = 16;
    let mut message = Message::new(GET_LINK, REQUEST | DUMP);
    message.bytes(&[0; HEAD]);
    let mut found = None;
    message.dump(libc::NETLINK_ROUTE, |body| {
        if word_at(body, 4) != Some(link) {
            return;
        }
        for (kind, data) in attributes(body.get(HEAD..).unwrap_or_default()) {
            if kind == libc::IFLA_ADDRESS {
                found = data.try_into().ok();
            }
        }
    })?;
    Ok(found)
}

/// Index of the link of the default route that counts most, in the main table.
///
/// # Errors
/// The kernel's.
pub fn default_link(v6: bool) -> io::Result<Option<u32>> {
    const HEAD: usize = 12;
    const MAIN: u32 = 254;
    const UNICAST: u8 = 1;
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut message = Message::new(GET_ROUTE, REQUEST | DUMP);
    message.bytes(&[family, 0, 0, 0, 0, 0, 0, 0]);
    message.word(0);
    let mut best: Option<(u32, u32)> = None;
    message.dump(libc::NETLINK_ROUTE, |body| {
        let [got, len, _, _, table, _, _, kind, ..] = body else { return };
        if *got != family || *len != 0 || *kind != UNICAST {
            return;
        }
        let (mut table, mut link, mut metric) = (u32::from(*table), None, 0);
        for (kind, data) in attributes(body.get(HEAD..).unwrap_or_default()) {
            let number = word_at(data, 0);
            match kind {
                libc::RTA_TABLE => table = number.unwrap_or(table),
                libc::RTA_OIF => link = number,
                libc::RTA_PRIORITY => metric = number.unwrap_or(0),
                libc::RTA_MULTIPATH => link = link.or(word_at(data, 4)),
                _ => {}
            }
        }
        if let Some(link) = link
            && table == MAIN
            && best.is_none_or(|(least, _)| metric < least)
        {
            best = Some((metric, link));
        }
    })?;
    Ok(best.map(|(_, link)| link))
}

/// Index of a link that a table has a route by; `None` if there is no such route, or no such table.
///
/// # Errors
/// The kernel's.
pub fn link_of_table(wanted: u32, v6: bool) -> io::Result<Option<u32>> {
    const HEAD: usize = 12;
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut message = Message::new(GET_ROUTE, REQUEST | DUMP);
    message.bytes(&[family, 0, 0, 0, 0, 0, 0, 0]);
    message.word(0);
    let mut found = None;
    message.dump(libc::NETLINK_ROUTE, |body| {
        let [got, _, _, _, table, ..] = body else { return };
        let (mut table, mut link) = (u32::from(*table), None);
        for (kind, data) in attributes(body.get(HEAD..).unwrap_or_default()) {
            match kind {
                libc::RTA_TABLE => table = word_at(data, 0).unwrap_or(table),
                libc::RTA_OIF => link = word_at(data, 0),
                _ => {}
            }
        }
        if *got == family && table == wanted {
            found = found.or(link);
        }
    })?;
    Ok(found)
}

/// A socket that becomes readable when links, addresses or routes change; it is read with [`crate::netlink::drain`].
///
/// # Errors
/// The kernel's.
pub fn watch() -> io::Result<OwnedFd> {
    let groups = libc::RTMGRP_LINK
        | libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV6_ROUTE;
    sys::watch_netlink(groups as u32)
}

/// Reads and forgets all that there is to read: what has changed is to be asked for.
pub fn drain(socket: BorrowedFd<'_>) {
    let mut buffer = [0; 8192];
    // An overflow (ENOBUFS) says that more has changed than fits, no more.
    while sys::receive(socket, &mut buffer).is_ok_and(|length| length > 0) {}
}

pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half_at(bytes, 0)?);
        let (kind, data) = (half_at(bytes, 2)?, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        16 => bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

pub(crate) fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

pub(crate) fn half_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// A request under construction.
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self(vec![0; 4]);
        message.bytes(&kind.to_ne_bytes());
        message.bytes(&flags.to_ne_bytes());
        message.word(1);
        message.word(0);
        message
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn word(&mut self, word: u32) {
        self.bytes(&word.to_ne_bytes());
    }

    pub(crate) fn attribute(&mut self, kind: u16, data: &[u8]) {
        self.bytes(&(4 + data.len() as u16).to_ne_bytes());
        self.bytes(&kind.to_ne_bytes());
        self.bytes(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// An attribute that consists of attributes.
    fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.attribute(kind, &[]);
        inside(self);
        let len = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn address(&mut self, kind: u16, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attribute(kind, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(kind, &ip.octets()),
        }
    }

    fn finish(&mut self) {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Sends it to a part of netlink and calls `visit` with the body of each message of the answer.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn dump(mut self, part: i32, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        self.finish();
        sys::dump_netlink(part, &self.0, |mut datagram| {
            while let Some(length) = word_at(datagram, 0).map(|length| length as usize) {
                let Some(message) = datagram.get(..length).filter(|message| message.len() >= HEADER) else {
                    break;
                };
                let (kind, flags) =
                    (half_at(message, 4).unwrap_or_default(), half_at(message, 6).unwrap_or_default());
                match kind {
                    DONE => return Ok(ControlFlow::Break(())),
                    ERROR => {
                        let code = word_at(message, HEADER).map_or(0, |code| code.cast_signed());
                        return if code == 0 {
                            Ok(ControlFlow::Break(()))
                        } else {
                            Err(io::Error::from_raw_os_error(-code))
                        };
                    }
                    _ => visit(&message[HEADER..]),
                }
                if flags & MULTI == 0 {
                    return Ok(ControlFlow::Break(()));
                }
                datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Sends it and waits for the kernel's word that it is done.
    fn send(self) -> io::Result<()> {
        acknowledged(&self.ask()?)
    }

    /// Sends it and waits for the answer.
    fn ask(mut self) -> io::Result<Vec<u8>> {
        self.finish();
        sys::ask_netlink(&self.0)
    }
}

/// The kernel's word on a request.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "netlink answered with something else")),
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use super::*;
    use crate::testing::in_fresh_network;
    use crate::tun::Tun;

    fn ip(arguments: &str) -> String {
        let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn prefix(text: &str) -> Prefix {
        let (ip, len) = text.split_once('/').unwrap();
        Prefix { ip: ip.parse().unwrap(), len: len.parse().unwrap() }
    }

    #[test]
    fn a_device_gets_addresses_routes_and_rules() {
        in_fresh_network("a_device_gets_addresses_routes_and_rules", || {
            let tun = Tun::open(Some("culvert-t")).unwrap();
            assert!(tun.offloads().tcp);
            let link = crate::iface::index(tun.name()).unwrap();
            bring_up(link, 9000).unwrap();
            for address in ["172.19.0.1/30", "fdfe::1/126"] {
                add_address(link, prefix(address)).unwrap();
                add_address(link, prefix(address)).unwrap();
            }
            for address in ["172.19.0.1/30", "fdfe::1/126"] {
                let begun = std::time::Instant::now();
                while !matches!(is_local(prefix(address).ip), Ok(true)) {
                    assert!(begun.elapsed().as_secs() < 10, "{address} never gets there");
                    std::thread::yield_now();
                }
            }
            assert!(!is_local(prefix("172.19.0.2/30").ip).unwrap(), "a neighbour");
            assert!(is_local(prefix("192.0.2.1/32").ip).is_err(), "nothing leads there");
            let shown = ip("address show dev culvert-t");
            for part in ["mtu 9000", "UP", "172.19.0.1/30", "fdfe::1/126"] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
            for route in ["0.0.0.0/1", "::/0"] {
                add_route(prefix(route), link, 2022).unwrap();
                add_route(prefix(route), link, 2022).unwrap();
            }
            assert!(ip("route show table 2022").contains("0.0.0.0/1 dev culvert-t"));
            assert!(ip("-6 route show table 2022").contains("default dev culvert-t"));
            assert_eq!(link_of_table(2022, false).unwrap(), Some(link));
            assert_eq!(link_of_table(2022, true).unwrap(), Some(link));
            assert_eq!(link_of_table(2023, false).unwrap(), None);
            delete_route(prefix("0.0.0.0/1"), link, 2022).unwrap();
            assert!(delete_route(prefix("0.0.0.0/1"), link, 2022).is_err());
            let rules = [
                Rule { priority: 9000, table: 2022, target: Some(prefix("10.0.0.0/8")), ..Rule::default() },
                Rule { priority: 9001, goto: Some(9010), mark: Some((7, u32::MAX)), ..Rule::default() },
                Rule {
                    priority: 9002,
                    table: 254,
                    suppress: Some(0),
                    invert: true,
                    protocol: Some(17),
                    ports: Some((53, 53)),
                    ..Rule::default()
                },
                Rule {
                    priority: 9003,
                    table: 2022,
                    incoming: Some("lo".into()),
                    users: Some((0, 5)),
                    v6: true,
                    ..Rule::default()
                },
                Rule { priority: 9010, nop: true, ..Rule::default() },
                Rule { priority: 9011, unreachable: true, v6: true, ..Rule::default() },
            ];
            for rule in &rules {
                add_rule(rule).unwrap();
                assert_eq!(add_rule(rule).unwrap_err().raw_os_error(), Some(libc::EEXIST));
            }
            let (four, six) = (ip("rule show"), ip("-6 rule show"));
            for part in [
                "9000: from all to 10.0.0.0/8 lookup 2022",
                "9001: from all fwmark 0x7 goto 9010",
                "9002: not from all ipproto udp dport 53 lookup main suppress_prefixlength 0",
                "9010: from all nop",
            ] {
                assert!(four.contains(part), "{part}: {four}");
            }
            assert!(six.contains("9003: from all iif lo uidrange 0-5 lookup 2022"), "{six}");
            assert!(six.contains("9011: from all unreachable"), "{six}");
            ip("-6 rule add priority 9003 iif lo lookup 77");
            delete_rule_at(9003, true).unwrap();
            assert!(delete_rule_at(9003, true).is_err(), "a rule of somebody else is not ours to take out");
            ip("-6 rule delete priority 9003");
            for rule in &rules[1..] {
                let _ = delete_rule(rule);
            }
            delete_rule_at(9000, false).unwrap();
            assert!(!ip("rule show").contains("90"), "{}", ip("rule show"));
        });
    }

    #[test]
    fn a_wire_joins_two_namespaces() {
        in_fresh_network("a_wire_joins_two_namespaces", || {
            let end = |name: &str, address: &str| {
                let link = crate::iface::index(name).unwrap();
                bring_up(link, 1500).unwrap();
                add_address(link, prefix(address)).unwrap();
            };
            let far = std::thread::spawn(|| {
                crate::netns::isolate_thread().unwrap();
                std::fs::File::open("/proc/thread-self/ns/net").unwrap()
            });
            let far = far.join().unwrap();
            add_veth("wire-a", "wire-b", far.as_fd()).unwrap();
            let again = add_veth("wire-a", "wire-c", far.as_fd()).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            end("wire-a", "10.98.0.1/30");
            let path = format!("/proc/self/fd/{}", far.as_raw_fd());
            let listener = crate::netns::within(&path, || {
                end("wire-b", "10.98.0.2/30");
                std::net::TcpListener::bind("10.98.0.2:0").unwrap()
            });
            let listener = listener.unwrap();
            std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(listener.accept().unwrap().1.ip(), prefix("10.98.0.1/30").ip);
        });
    }

    #[test]
    fn links_neighbors_and_the_default_route_are_found() {
        in_fresh_network("links_neighbors_and_the_default_route_are_found", || {
            let run = |text: &str| assert!(Command::new("sh").args(["-c", text]).status().unwrap().success());
            run("ip link add near type veth peer name far && ip link set near address 02:00:00:00:00:09 && \
                 ip link set near up && ip link set far up && ip address add 192.0.2.1/24 dev near");
            let link = crate::iface::index("near").unwrap();
            assert_eq!(hardware_address(link).unwrap(), Some([2, 0, 0, 0, 0, 9]));
            assert_eq!(hardware_address(link + 100).unwrap(), None);
            assert_eq!(default_link(false).unwrap(), None);
            let socket = watch().unwrap();
            run(
                "ip route add default via 192.0.2.2 metric 5 && ip neighbor add 192.0.2.2 lladdr 02:00:00:00:00:07 dev near",
            );
            assert_eq!(default_link(false).unwrap(), Some(link));
            let neighbor = Neighbor { ip: [192, 0, 2, 2].into(), mac: [2, 0, 0, 0, 0, 7] };
            assert!(neighbors().unwrap().contains(&neighbor));
            let mut buffer = [0; 8192];
            assert!(sys::receive(socket.as_fd(), &mut buffer).is_ok(), "the route was not told of");
            drain(socket.as_fd());
            assert!(sys::receive(socket.as_fd(), &mut buffer).is_err());
        });
    }

    #[test]
    fn a_network_is_its_prefix() {
        assert_eq!(network(prefix("172.19.0.1/30")), prefix("172.19.0.0/30"));
        assert_eq!(network(prefix("1.2.3.4/0")), prefix("0.0.0.0/0"));
        assert_eq!(network(prefix("fdfe::1/126")), prefix("fdfe::/126"));
        assert_eq!(network(prefix("1.2.3.4/32")), prefix("1.2.3.4/32"));
        assert_eq!(network(prefix("1.2.3.4/126")), prefix("1.2.3.4/126"));
    }
}
