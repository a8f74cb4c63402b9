//! Packets that are turned around before the stack sees them: clients of `stack: system`, whose TCP the kernel speaks, and
//! targets of `loopback_address`.
//!
//! The kernel listens at the device's own address. A client's packets are written back into the device as if they came from
//! the next address, which nobody has, by a port that stands for the flow; the kernel's answers to that address go back to
//! the client as if they came from its target.
//!
//! ```text
//! client ─ 10.0.0.5:40000 to 192.0.2.1:80 ─▶ device ─ 172.19.0.2:1024 to 172.19.0.1:listener ─▶ the kernel's TCP
//! client ◀─ 192.0.2.1:80 to 10.0.0.5:40000 ─ device ◀─ 172.19.0.1:listener to 172.19.0.2:1024 ─ the kernel's TCP
//! ```
//!
//! Addresses, ports and checksums are changed in place, and a train stays a train.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use culvert_os::tun::{Incoming, Outgoing};
use culvert_stack::checksum::Sum;
use culvert_stack::ip::{self, Head, protocol};

/// Ports that stand for flows: the first of them, and how many there may be.
const FIRST_PORT: u16 = 1024;
const FLOWS: usize = 60_000;
/// Flows at which ended ones are first looked for.
const TIDY_AT: usize = 1024;
/// How long a flow may take to begin, and how long the last segments of one may still come.
const OPENING: Duration = Duration::from_secs(75);
const CLOSING: Duration = Duration::from_secs(65);
/// How long the side that has not ended may be silent once the other has.
const HALF_CLOSED: Duration = Duration::from_secs(15 * 60);

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// It is the stack's.
    Pass,
    /// It goes back into the device.
    Back(Outgoing),
    /// It is nobody's.
    Drop,
}

/// One family: who the kernel is, and who its clients seem to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Where the kernel listens.
    pub(super) listener: SocketAddr,
    /// The address that clients seem to have.
    pub(super) guest: IpAddr,
}

/// The flows that the kernel serves.
pub(super) struct Nat {
    sides: Vec<Side>,
    /// Targets that are the client itself.
    loopback: Vec<IpAddr>,
    tables: Mutex<[Table; 2]>,
}

/// The flows of one family.
#[derive(Default)]
struct Table {
    ports: HashMap<(SocketAddr, SocketAddr), u16>,
    flows: HashMap<u16, Flow>,
    next: u16,
    tidy_at: usize,
}

struct Flow {
    client: SocketAddr,
    target: SocketAddr,
    last: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct State {
    answered: bool,
    client_ended: bool,
    target_ended: bool,
    reset: bool,
}

impl State {
    fn is_over(self) -> bool {
        self.reset || (self.client_ended && self.target_ended)
    }

    /// How long it may be silent; `None` for ever.
    fn patience(self) -> Option<Duration> {
        match self {
            _ if self.is_over() => Some(CLOSING),
            Self { answered: false, .. } => Some(OPENING),
            Self { client_ended: false, target_ended: false, .. } => None,
            _ => Some(HALF_CLOSED),
        }
    }
}

impl Table {
    /// The port that stands for a flow. One that begins is let in if it begins as flows do.
    fn port(&mut self, client: SocketAddr, target: SocketAddr, flags: u8, now: Instant) -> Option<u16> {
        let begins = flags & (SYN | ACK | RST | FIN) == SYN;
        let port = self.ports.get(&(client, target)).copied();
        // Who begins anew after the end gets a port that nothing of the old flow can come to.
        let port =
            port.filter(|port| !(begins && self.flows.get(port).is_some_and(|flow| flow.state.is_over())));
        let port = match port {
            Some(port) => port,
            None if begins => self.open(client, target, now)?,
            None => return None,
        };
        let flow = self.flows.get_mut(&port)?;
        flow.last = now;
        flow.state.client_ended |= flags & FIN != 0;
        flow.state.reset |= flags & RST != 0;
        Some(port)
    }

    fn open(&mut self, client: SocketAddr, target: SocketAddr, now: Instant) -> Option<u16> {
        if self.flows.len() >= self.tidy_at.clamp(TIDY_AT, FLOWS) {
            self.tidy(now);
        }
        if self.flows.len() >= FLOWS {
            return None; // the client tries again
        }
        let port = loop {
            self.next = self.next.checked_add(1).unwrap_or(FIRST_PORT).max(FIRST_PORT);
            if !self.flows.contains_key(&self.next) {
                break self.next;
            }
        };
        self.flows.insert(port, Flow { client, target, last: now, state: State::default() });
        self.ports.insert((client, target), port);
        Some(port)
    }

    /// Forgets flows that have ended, and where that is not enough some that have been silent longest.
    fn tidy(&mut self, now: Instant) {
        let silent = |flow: &Flow| now.saturating_duration_since(flow.last);
        self.flows.retain(|_, flow| flow.state.patience().is_none_or(|patience| silent(flow) < patience));
        if self.flows.len() >= FLOWS {
            // Those that nobody has answered first: a flood of beginnings is not to end what is open.
            let age = |(port, flow): (&u16, &Flow)| (flow.state.answered, Reverse(silent(flow)), *port);
            let mut ages: Vec<_> = self.flows.iter().map(age).collect();
            ages.select_nth_unstable(FLOWS / 16);
            for (_, _, port) in &ages[..FLOWS / 16] {
                self.flows.remove(port);
            }
        }
        let flows = &self.flows;
        self.ports
            .retain(|flow, port| flows.get(port).is_some_and(|kept| (kept.client, kept.target) == *flow));
        self.tidy_at = self.flows.len() * 2;
    }

    /// The flow behind an answer.
    fn answered(&mut self, port: u16, flags: u8, now: Instant) -> Option<(SocketAddr, SocketAddr)> {
        let flow = self.flows.get_mut(&port)?;
        flow.last = now;
        flow.state.answered = true;
        flow.state.target_ended |= flags & FIN != 0;
        flow.state.reset |= flags & RST != 0;
        Some((flow.client, flow.target))
    }
}

impl Nat {
    pub(super) fn new(sides: Vec<Side>, loopback: Vec<IpAddr>) -> Arc<Self> {
        Arc::new(Self { sides, loopback, tables: Mutex::default() })
    }

    /// Whether there is nothing to turn around.
    pub(super) fn is_idle(&self) -> bool {
        self.sides.is_empty() && self.loopback.is_empty()
    }

    /// The client and the target of a connection that the kernel accepted from `guest`.
    pub(super) fn flow(&self, guest: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
        self.sides.iter().find(|side| side.guest == guest.ip())?;
        let tables = self.tables();
        let flow = tables[usize::from(guest.is_ipv6())].flows.get(&guest.port())?;
        Some((flow.client, flow.target))
    }

    fn tables(&self) -> MutexGuard<'_, [Table; 2]> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a packet, and changes it if it is to go back. `admits` says to which targets the kernel's clients may go;
    /// the others are the stack's to refuse.
    pub(super) fn turn(
        &self,
        packet: &mut [u8],
        came: &Incoming,
        now: Instant,
        admits: impl FnOnce(SocketAddr) -> bool,
    ) -> Turn {
        let Ok(head) = ip::parse(packet) else { return Turn::Pass };
        if head.protocol != protocol::TCP {
            return Turn::Pass;
        }
        let loops = self.loopback.contains(&head.target);
        let side = self.sides.iter().find(|side| side.guest.is_ipv4() == head.target.is_ipv4());
        if side.is_none() && !loops {
            return Turn::Pass;
        }
        if head.fragment.is_some() {
            return Turn::Drop; // no kernel makes them of TCP
        }
        let Some(tcp) = packet[head.payload.clone()].first_chunk::<20>() else { return Turn::Drop };
        let source = SocketAddr::new(head.source, u16::from_be_bytes([tcp[0], tcp[1]]));
        let target = SocketAddr::new(head.target, u16::from_be_bytes([tcp[2], tcp[3]]));
        let flags = tcp[13];
        let (new_source, new_target) = match side {
            _ if loops => {
                (SocketAddr::new(target.ip(), source.port()), SocketAddr::new(source.ip(), target.port()))
            }
            Some(side) if source == side.listener => {
                if target.ip() != side.guest {
                    return Turn::Drop;
                }
                let flow = self.tables()[usize::from(target.is_ipv6())].answered(target.port(), flags, now);
                let Some((client, target)) = flow else { return Turn::Drop };
                (target, client)
            }
            Some(side) => {
                let mut tables = self.tables();
                let table = &mut tables[usize::from(target.is_ipv6())];
                let known = table.ports.contains_key(&(source, target));
                if !known && !admits(target) {
                    return Turn::Pass;
                }
                match table.port(source, target, flags, now) {
                    Some(port) => (SocketAddr::new(side.guest, port), side.listener),
                    // The stack knows no such connection and says so; a connection that finds no place is tried again.
                    None if flags & SYN == 0 => return Turn::Pass,
                    None => return Turn::Drop,
                }
            }
            None => return Turn::Pass,
        };
        rewrite(packet, &head, (source, target), (new_source, new_target), came.checksum.is_some());
        let heads = head.payload.start + usize::from(packet[head.payload.start + 12] >> 4) * 4;
        let is_train = usize::from(came.train) > 0 && heads + usize::from(came.train) < packet.len();
        Turn::Back(Outgoing {
            segment: if is_train { came.train } else { 0 },
            udp: false,
            v6: head.source.is_ipv6(),
            head: heads.min(packet.len()) as u16,
            checksum: came.checksum,
        })
    }
}

/// Puts other ends into a TCP packet. `partial`: its checksum covers only the pseudo header so far.
fn rewrite(
    packet: &mut [u8],
    head: &Head,
    old: (SocketAddr, SocketAddr),
    new: (SocketAddr, SocketAddr),
    partial: bool,
) {
    let at = head.payload.start;
    let (before, tcp) = packet.split_at_mut(at);
    let field = u16::from_be_bytes([tcp[16], tcp[17]]);
    let sum = addresses(new).word(!addresses(old).partial());
    let field = if partial {
        sum.word(field).partial()
    } else {
        let ports = |ends: (SocketAddr, SocketAddr)| Sum::default().word(ends.0.port()).word(ends.1.port());
        let sum = sum.word(ports(new).partial()).word(!ports(old).partial());
        sum.word(!field).finish()
    };
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
    tcp[0..2].copy_from_slice(&new.0.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&new.1.port().to_be_bytes());
    match (new.0.ip(), new.1.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            before[12..16].copy_from_slice(&source.octets());
            before[16..20].copy_from_slice(&target.octets());
            before[10..12].fill(0);
            let sum = Sum::default().bytes(before).finish();
            before[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            before[8..24].copy_from_slice(&source.octets());
            before[24..40].copy_from_slice(&target.octets());
        }
        // Both ends of a flow are of one family.
        _ => {}
    }
}

fn addresses(ends: (SocketAddr, SocketAddr)) -> Sum {
    let add = |sum: Sum, ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum.bytes(&ip.octets()),
        IpAddr::V6(ip) => sum.bytes(&ip.octets()),
    };
    add(add(Sum::default(), ends.0.ip()), ends.1.ip())
}

/// For the fuzz runner: whatever is turned around is still a packet, and its checksum is as right as it was.
pub(super) fn fuzz_turn(bytes: &[u8]) {
    let at = |text: &str| text.parse().unwrap_or_else(|_| unreachable!("an address"));
    let sides = vec![
        Side { listener: at("172.19.0.1:9"), guest: at("172.19.0.2:9").ip() },
        Side { listener: at("[fdfe::1]:9"), guest: at("[fdfe::2]:9").ip() },
    ];
    let nat = Nat::new(sides, vec![at("10.7.0.1:9").ip()]);
    let mut packet = bytes.to_vec();
    let came = Incoming { len: bytes.len(), ..Incoming::default() };
    let turned = nat.turn(&mut packet, &came, Instant::now(), |_| true);
    assert_eq!(packet.len(), bytes.len());
    match turned {
        Turn::Back(out) => {
            assert!(usize::from(out.head) <= packet.len());
            assert!(ip::parse(&packet).is_ok());
        }
        Turn::Pass | Turn::Drop => assert_eq!(packet, bytes),
    }
}

#[cfg(test)]
mod tests {
    use culvert_stack::checksum::pseudo;
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn nat() -> Arc<Nat> {
        let side = |listener: &str, guest: &str| Side { listener: at(listener), guest: at(guest).ip() };
        Nat::new(
            vec![side("172.19.0.1:7000", "172.19.0.2:0"), side("[fdfe::1]:7000", "[fdfe::2]:0")],
            vec![at("10.7.0.1:0").ip()],
        )
    }

    /// A TCP packet with a right checksum, or with the part of it that the kernel leaves.
    fn packet(source: SocketAddr, target: SocketAddr, flags: u8, payload: &[u8], partial: bool) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(source.port().to_be_bytes());
        tcp.extend(target.port().to_be_bytes());
        tcp.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let sum = pseudo(source.ip(), target.ip(), protocol::TCP, tcp.len());
        let field = if partial { sum.partial() } else { sum.bytes(&tcp).finish() };
        tcp[16..18].copy_from_slice(&field.to_be_bytes());
        let mut out = match (source.ip(), target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let len = (20 + tcp.len()) as u16;
                let mut head = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 6, 0, 0];
                head.extend(source.octets());
                head.extend(target.octets());
                let sum = Sum::default().bytes(&head).finish();
                head[10..12].copy_from_slice(&sum.to_be_bytes());
                head
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let len = tcp.len() as u16;
                let mut head = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 6, 64];
                head.extend(source.octets());
                head.extend(target.octets());
                head
            }
            _ => unreachable!(),
        };
        out.extend(tcp);
        out
    }

    fn ends(packet: &[u8]) -> (SocketAddr, SocketAddr) {
        let head = ip::parse(packet).unwrap();
        let tcp = &packet[head.payload.start..];
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        (SocketAddr::new(head.source, port(0)), SocketAddr::new(head.target, port(2)))
    }

    fn is_right(packet: &[u8]) -> bool {
        let head = ip::parse(packet).unwrap();
        let tcp = &packet[head.payload.clone()];
        pseudo(head.source, head.target, protocol::TCP, tcp.len()).bytes(tcp).finish() == 0
    }

    fn turn(nat: &Nat, packet: &mut [u8], partial: bool) -> Turn {
        let start = ip::parse(packet).unwrap().payload.start as u16;
        let came =
            Incoming { len: packet.len(), checksum: partial.then_some((start, 16)), ..Incoming::default() };
        nat.turn(packet, &came, Instant::now(), |_| true)
    }

    /// Sends it and returns the port that stands for its flow.
    fn knock(nat: &Nat, client: SocketAddr, target: SocketAddr) -> Option<u16> {
        let mut syn = packet(client, target, SYN, &[], false);
        match turn(nat, &mut syn, false) {
            Turn::Back(_) => Some(ends(&syn).0.port()),
            _ => None,
        }
    }

    #[test]
    fn a_flow_goes_to_the_listener_and_its_answers_come_from_the_target() {
        for (client, target, listener, guest) in [
            ("10.0.0.5:40000", "192.0.2.1:80", "172.19.0.1:7000", "172.19.0.2:0"),
            ("[fd00::5]:40000", "[2001:db8::1]:80", "[fdfe::1]:7000", "[fdfe::2]:0"),
        ] {
            let (nat, client, target) = (nat(), at(client), at(target));
            for partial in [false, true] {
                let mut syn = packet(client, target, SYN, &[], partial);
                let Turn::Back(out) = turn(&nat, &mut syn, partial) else { panic!("a SYN stays") };
                assert_eq!(out.segment, 0);
                let (from, to) = ends(&syn);
                assert_eq!((from.ip(), to), (at(guest).ip(), at(listener)));
                assert_eq!(nat.flow(from), Some((client, target)));
                if partial {
                    assert_eq!(syn, packet(from, to, SYN, &[], true));
                } else {
                    assert!(is_right(&syn));
                }
                let mut answer = packet(to, from, SYN | ACK, b"hello", partial);
                assert!(matches!(turn(&nat, &mut answer, partial), Turn::Back(_)));
                assert_eq!(ends(&answer), (target, client));
                assert!(partial || is_right(&answer));
            }
        }
    }

    #[test]
    fn flows_have_ports_of_their_own_also_where_half_of_their_ends_are_the_same() {
        let nat = nat();
        let ports: Vec<_> = ["10.0.0.5:4000", "10.0.0.6:4000", "10.0.0.5:4001"]
            .into_iter()
            .flat_map(|client| {
                ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.1:81"].map(|target| (client, target))
            })
            .map(|(client, target)| knock(&nat, at(client), at(target)).unwrap())
            .collect();
        let distinct: std::collections::HashSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 9);
        assert_eq!(knock(&nat, at("10.0.0.5:4000"), at("192.0.2.1:80")), Some(ports[0]), "a SYN sent again");
    }

    #[test]
    fn a_flow_that_begins_anew_after_its_end_has_another_port() {
        let nat = nat();
        let (client, target) = (at("10.0.0.5:4000"), at("192.0.2.1:80"));
        let first = knock(&nat, client, target).unwrap();
        let mut reset = packet(client, target, RST, &[], false);
        assert!(matches!(turn(&nat, &mut reset, false), Turn::Back(_)));
        let second = knock(&nat, client, target).unwrap();
        assert_ne!(first, second);
        // What still comes of the old one goes where it belongs.
        let mut late =
            packet(at("172.19.0.1:7000"), SocketAddr::new(at("172.19.0.2:0").ip(), first), ACK, &[], false);
        assert!(matches!(turn(&nat, &mut late, false), Turn::Back(_)));
    }

    #[test]
    fn strangers_get_nowhere() {
        let nat = nat();
        // Not the beginning of anything: the stack says that it knows no such connection.
        let mut middle = packet(at("10.0.0.5:4000"), at("192.0.2.1:80"), ACK, b"x", false);
        assert_eq!(turn(&nat, &mut middle, false), Turn::Pass);
        // The kernel to somebody it does not know, and past the pretended address.
        for to in ["172.19.0.2:5000", "192.0.2.9:80"] {
            let mut answer = packet(at("172.19.0.1:7000"), at(to), ACK, &[], false);
            assert_eq!(turn(&nat, &mut answer, false), Turn::Drop, "{to}");
        }
        assert_eq!(nat.flow(at("10.9.9.9:1024")), None);
        let mut refused = packet(at("10.0.0.5:4000"), at("192.0.2.1:80"), SYN, &[], false);
        let came = Incoming { len: refused.len(), ..Incoming::default() };
        assert_eq!(nat.turn(&mut refused, &came, Instant::now(), |_| false), Turn::Pass);
    }

    #[test]
    fn a_full_table_forgets_what_has_ended_and_then_what_is_silent() {
        let nat = nat();
        let client = |number: usize| {
            SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 2000 + (number >> 16) as u16))
        };
        let target = at("192.0.2.1:80");
        for number in 0..70_000 {
            assert!(knock(&nat, client(number), target).is_some(), "flow {number}");
        }
        let tables = nat.tables();
        assert!(tables[0].flows.len() <= FLOWS, "{}", tables[0].flows.len());
        assert_eq!(tables[0].flows.len(), tables[0].ports.len());
        let mut table = Table::default();
        let now = Instant::now();
        let open = table.port(client(1), target, SYN, now).unwrap();
        table.answered(open, SYN | ACK, now);
        let ended = table.port(client(2), target, SYN, now).unwrap();
        table.answered(ended, RST, now);
        table.tidy(now + Duration::from_secs(3600));
        assert!(table.flows.contains_key(&open), "an idle connection is still one");
        assert!(!table.flows.contains_key(&ended));
    }

    #[test]
    fn a_loopback_address_is_the_client_itself() {
        let nat = nat();
        let mut there = packet(at("10.0.0.5:4000"), at("10.7.0.1:80"), SYN, &[], false);
        assert!(matches!(turn(&nat, &mut there, false), Turn::Back(_)));
        assert_eq!(ends(&there), (at("10.7.0.1:4000"), at("10.0.0.5:80")));
        assert!(is_right(&there));
    }

    proptest! {
        #[test]
        fn checksums_stay_right(
            client: u16, port: u16, source: [u8; 4], payload in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let source = SocketAddr::from(([10, source[1], source[2], source[3]], client));
            let target = SocketAddr::from(([192, 0, 2, 7], port));
            let nat = nat();
            let mut there = packet(source, target, SYN, &payload, false);
            prop_assert!(matches!(turn(&nat, &mut there, false), Turn::Back(_)));
            prop_assert!(is_right(&there));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            fuzz_turn(&bytes);
        }
    }
}
