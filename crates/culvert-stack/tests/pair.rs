//! Two stacks with an emulated path between them that loses, repeats, delays, reorders, narrows and shortens packets: any
//! byte stream arrives whole, in order, once.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_path::{Loss, Path, Shape};
use culvert_stack::{Config, ConnId, Event, Offloads, ReadOutcome, Received, Refusal, Stack, icmp};
use culvert_wire::BufChain;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

struct World {
    now: Instant,
    ends: [Stack; 2],
    path: Path<Vec<u8>>,
    /// Longest packet that a router in the middle lets through.
    narrow: usize,
    packets: u64,
}

fn slow(delay: Duration) -> Shape {
    Shape { delay, ..Shape::default() }
}

impl World {
    /// One whose path has this shape in both directions.
    fn new(shape: Shape, config: &Config, seed: u64) -> Self {
        let now = Instant::now();
        let ends = [Stack::new(config.clone(), now), Stack::new(config.clone(), now)];
        let path = Path::new([shape.clone(), shape], seed);
        Self { now, ends, path, narrow: usize::MAX, packets: 0 }
    }

    fn transmit(&mut self) {
        for end in 0..2 {
            let (mut errors, now) = (Vec::new(), self.now);
            let Self { ends, path, packets, narrow, .. } = self;
            ends[end].transmit(now, &mut |out| {
                let mut packet = out.head.to_vec();
                out.payload.iter().for_each(|slice| packet.extend_from_slice(slice));
                *packets += 1;
                if packet.len() > *narrow {
                    errors.extend(icmp::too_long(&packet, *narrow as u16));
                } else {
                    let len = packet.len();
                    path.offer(end, packet, len, now);
                }
                true
            });
            for error in errors {
                let received = Received { packet: error.into(), checked: false, segment: 0 };
                assert!(self.ends[end].receive(received, now).is_none());
            }
        }
    }

    /// Goes on to the next thing that happens. `false` if nothing will.
    fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.path.next_arrival();
        let timers = self.ends.iter().filter_map(Stack::next_timeout);
        let Some(next) = arrival.into_iter().chain(timers).min() else { return false };
        self.now = self.now.max(next);
        for (to, end) in self.ends.iter_mut().enumerate() {
            while let Some(packet) = self.path.take(to, self.now) {
                let received = Received { packet: packet.into(), checked: false, segment: 0 };
                assert!(end.receive(received, self.now).is_none());
            }
        }
        for end in &mut self.ends {
            end.on_timeout(self.now);
        }
        true
    }

    /// Opens a connection from end 0 to end 1.
    fn connect(&mut self, source: &str, target: &str) -> (ConnId, ConnId) {
        let (source, target): (SocketAddr, SocketAddr) = (source.parse().unwrap(), target.parse().unwrap());
        let client = self.ends[0].connect(source, target, self.now).unwrap();
        let mut server = None;
        loop {
            assert!(self.step(), "nothing happens");
            while let Some(event) = self.ends[1].poll_event() {
                if let Event::Knock { id, source: from, target: to } = event {
                    assert_eq!((from, to), (source, target));
                    self.ends[1].accept(id, self.now);
                    server = Some(id);
                }
            }
            if let Some(event) = self.ends[0].poll_event() {
                assert_eq!(event, Event::Connected(client));
                return (client, server.unwrap());
            }
        }
    }
}

/// One end of a transfer: what it still has to send, what it has received.
struct Half {
    id: ConnId,
    to_send: BufChain,
    received: Vec<u8>,
    ended: bool,
    shut: bool,
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt).collect()
}

fn exchange(world: &mut World, ids: (ConnId, ConnId), up: usize, down: usize) -> Duration {
    let started = world.now;
    let half = |id, len, salt| Half {
        id,
        to_send: BufChain::copied(&pattern(len, salt)),
        received: Vec::new(),
        ended: false,
        shut: false,
    };
    let mut halves = [half(ids.0, up, 1), half(ids.1, down, 2)];
    for steps in 0.. {
        assert!(steps < 3_000_000, "no end");
        for (end, half) in halves.iter_mut().enumerate() {
            let stack = &mut world.ends[end];
            while let Some(event) = stack.poll_event() {
                assert!(!matches!(event, Event::Broken(..)), "{event:?} after {:?}", world.now - started);
            }
            if !half.to_send.is_empty() {
                stack.write(half.id, &mut half.to_send, world.now).unwrap();
            }
            if half.to_send.is_empty() && !half.shut {
                half.shut = true;
                stack.shut_down(half.id, world.now);
            }
            loop {
                match stack.read(half.id, world.now) {
                    ReadOutcome::Data(data) => half.received.extend(data.to_vec()),
                    ReadOutcome::End => {
                        half.ended = true;
                        break;
                    }
                    ReadOutcome::Blocked => break,
                    ReadOutcome::Broken(why) => panic!("{why:?}"),
                }
            }
        }
        if halves.iter().all(|half| half.ended) {
            break;
        }
        assert!(world.step(), "stuck: {} and {} bytes", halves[0].received.len(), halves[1].received.len());
    }
    assert!(halves[1].received == pattern(up, 1), "what went up is not what arrived");
    assert!(halves[0].received == pattern(down, 2), "what went down is not what arrived");
    let took = world.now - started;
    world.ends[0].release(ids.0, world.now);
    world.ends[1].release(ids.1, world.now);
    while world.step() {}
    assert_eq!((world.ends[0].connections(), world.ends[1].connections()), (0, 0), "nothing is left");
    took
}

#[test]
fn a_clean_path_needs_no_more_packets_than_it_must() {
    for (source, target) in [("10.0.0.1:1000", "192.0.2.1:80"), ("[fd00::1]:1000", "[2001:db8::1]:80")] {
        let mut world = World::new(slow(MS), &Config::default(), 1);
        let ids = world.connect(source, target);
        exchange(&mut world, ids, 3_000_000, 0);
        let segments = 3_000_000 / 1400 + 1;
        assert!(world.packets < segments * 5 / 2, "{} packets for {segments} segments", world.packets);
    }
}

#[test]
fn trains_are_as_long_as_a_packet_can_be() {
    let offloads = Offloads { checksum: true, tcp_segment: true, udp_segment: true };
    let mut stack =
        Stack::new(Config { offloads, initial_window: 1 << 20, ..Config::default() }, Instant::now());
    let (now, source, target) =
        (Instant::now(), "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let client = stack.connect(source, target, now).unwrap();
    let mut other = Stack::new(Config::default(), now);
    let mut syn = Vec::new();
    stack.transmit(now, &mut |out| {
        syn = out.head.to_vec();
        true
    });
    other.receive(Received { packet: syn.into(), checked: true, segment: 0 }, now);
    let Some(Event::Knock { id, .. }) = other.poll_event() else { panic!("no knock") };
    other.accept(id, now);
    other.transmit(now, &mut |out| {
        stack.receive(Received { packet: out.head.to_vec().into(), checked: false, segment: 0 }, now);
        true
    });
    stack.write(client, &mut BufChain::copied(&pattern(65_535, 0)), now).unwrap();
    let mut longest = 0;
    stack.transmit(now, &mut |out| {
        let len: usize = out.payload.iter().map(|slice| slice.len()).sum();
        if len > 0 {
            let segment = if len > 1448 { 1448 } else { 0 };
            assert_eq!((out.segment, out.checksum), (segment, Some((20, 16))));
            longest = longest.max(len);
        }
        true
    });
    assert_eq!(longest, 65_435 / 1448 * 1448, "whole segments, as many as fit");
}

#[test]
fn datagrams_of_one_length_go_as_a_train_and_others_by_themselves() {
    use std::io::IoSlice;
    let offloads = Offloads { checksum: true, tcp_segment: true, udp_segment: true };
    let sent = |config: Config, lengths: &[usize]| {
        let mut stack = Stack::new(config, Instant::now());
        let data: Vec<Vec<u8>> = lengths.iter().map(|len| pattern(*len, 1)).collect();
        let slices: Vec<IoSlice<'_>> = data.iter().map(|one| IoSlice::new(one)).collect();
        let (source, target) = ("192.0.2.1:53".parse().unwrap(), "10.0.0.1:1000".parse().unwrap());
        let mut packets = Vec::new();
        stack.send_datagrams((source, target), &slices, Instant::now(), &mut |out| {
            packets.push((out.segment, out.payload.iter().map(|slice| slice.len()).sum::<usize>()));
            true
        });
        packets
    };
    let able = || Config { offloads, ..Config::default() };
    assert_eq!(sent(able(), &[500, 500, 500, 20]), [(500, 1520)]);
    assert_eq!(sent(able(), &[500]), [(0, 500)]);
    assert_eq!(sent(able(), &[0, 0]), [(0, 0), (0, 0)], "a train of nothing would be nothing");
    assert_eq!(sent(able(), &[50, 0]), [(0, 50), (0, 0)]);
    assert_eq!(sent(able(), &[1472, 1472]), [(1472, 2944)]);
    assert_eq!(sent(able(), &[1473, 1473]).len(), 4, "too long for a packet: in pieces");
    assert_eq!(sent(Config::default(), &[500, 500]), [(0, 500), (0, 500)]);
}

/// All packets that an answer of 4,000 bytes leaves in, after word of `told`.
fn answers(config: Config, source: &str, target: &str, told: Option<u16>) -> Vec<Vec<u8>> {
    let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
    let (now, data) = (Instant::now(), pattern(4000, 1));
    let mut stack = Stack::new(config, now);
    let send = |stack: &mut Stack| {
        let mut packets = Vec::new();
        stack.send_datagram((source, target), &data, 0, now, &mut |out| {
            let payload = out.payload.iter().flat_map(|slice| slice.to_vec());
            packets.push(out.head.iter().copied().chain(payload).collect::<Vec<u8>>());
            true
        });
        packets
    };
    let packets = send(&mut stack);
    let Some(mtu) = told else { return packets };
    let word = icmp::too_long(&packets[0], mtu).unwrap();
    stack.receive(Received { packet: word.into(), checked: false, segment: 0 }, now);
    send(&mut stack)
}

#[test]
fn datagrams_of_version_4_may_be_cut_on_the_way_and_have_a_number_for_that() {
    let packets = answers(Config { mtu: 9000, ..Config::default() }, "192.0.2.1:53", "10.0.0.1:1000", None);
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0][6], &packets[0][4..6]), (0, &[0, 1][..]));
}

#[test]
fn datagrams_of_version_6_are_cut_here_once_a_router_has_told_that_its_link_is_narrow() {
    let config = || Config { mtu: 9000, ..Config::default() };
    let (source, target) = ("[2001:db8::1]:53", "[fd00::1]:1000");
    assert_eq!(answers(config(), source, target, None).len(), 1);
    let packets = answers(config(), source, target, Some(1400));
    let lengths: Vec<_> = packets.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1400, 1400, 1352], "1352 of 4008 bytes in each, behind 48");
    // Nobody is made to send smaller pieces than every link carries.
    assert_eq!(answers(config(), source, target, Some(100)).iter().map(Vec::len).max(), Some(1280));
}

#[test]
fn long_answers_to_pings_leave_in_pieces() {
    let mut stack = Stack::new(Config::default(), Instant::now());
    for (source, target) in [("192.0.2.1", "10.0.0.1"), ("2001:db8::1", "fd00::1")] {
        let mut message = pattern(4000, 1);
        message[0] = 0;
        let packet = icmp::packet(source.parse().unwrap(), target.parse().unwrap(), message);
        stack.send_packet(packet);
        let mut lengths = Vec::new();
        stack.transmit(Instant::now(), &mut |out| {
            lengths.push(out.head.len() + out.payload.iter().map(|slice| slice.len()).sum::<usize>());
            true
        });
        assert_eq!(lengths.len(), 3, "{lengths:?}");
        assert!(lengths.iter().all(|len| *len <= 1500), "{lengths:?}");
    }
}

#[test]
fn bad_paths_are_survived_at_speed() {
    let shape =
        Shape { repeat: 0.01, reorder: 0.25, late: MS * 10, ..slow(MS * 20) }.losing(Loss::Random(0.02));
    let mut world = World::new(shape, &Config::default(), 7);
    let ids = world.connect("10.0.0.1:1000", "192.0.2.1:80");
    let took = exchange(&mut world, ids, 2_000_000, 2_000_000);
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn a_path_that_gets_shorter_packets_on_the_way_goes_on() {
    for (source, target, narrow) in
        [("10.0.0.1:1000", "192.0.2.1:80", 900), ("[fd00::1]:1000", "[2001:db8::1]:80", 1280)]
    {
        let mut world = World::new(slow(MS), &Config::default(), 5);
        let ids = world.connect(source, target);
        let mut data = BufChain::copied(&pattern(1 << 20, 5));
        let mut got = Vec::new();
        while got.len() < 1 << 20 {
            if got.len() > 300_000 {
                world.narrow = narrow;
            }
            world.ends[0].write(ids.0, &mut data, world.now).unwrap();
            if let ReadOutcome::Data(more) = world.ends[1].read(ids.1, world.now) {
                got.extend(more.to_vec());
            }
            assert!(world.step(), "{} bytes", got.len());
        }
        assert!(got == pattern(1 << 20, 5));
        assert!(world.packets < 4000, "{} packets", world.packets);
    }
}

#[test]
fn a_reader_that_pauses_closes_the_window_and_opens_it_again() {
    let mut world = World::new(slow(MS), &Config::default(), 3);
    let ids = world.connect("10.0.0.1:1000", "192.0.2.1:80");
    let mut data = BufChain::copied(&pattern(4 << 20, 5));
    let until = world.now + Duration::from_secs(300);
    while world.now < until {
        world.ends[0].write(ids.0, &mut data, world.now).unwrap();
        assert!(world.step(), "a closed window is probed");
    }
    let limit = Config::default().receive_window as usize + Config::default().send_buffer + (64 << 10);
    assert!(data.len() > (4 << 20) - limit, "the sender is held back");
    assert!(world.packets < 2000, "and does not keep knocking: {} packets", world.packets);
    let mut got = Vec::new();
    while got.len() < 4 << 20 {
        world.ends[0].write(ids.0, &mut data, world.now).unwrap();
        if let ReadOutcome::Data(more) = world.ends[1].read(ids.1, world.now) {
            got.extend(more.to_vec());
        }
        assert!(world.step(), "{} bytes", got.len());
    }
    assert!(got == pattern(4 << 20, 5));
}

#[test]
fn a_peer_that_vanishes_is_noticed() {
    let mut world = World::new(slow(MS), &Config::default(), 3);
    let ids = world.connect("10.0.0.1:1000", "192.0.2.1:80");
    while world.step() {}
    let nothing = slow(MS).losing(Loss::Random(1.0));
    world.path.reshape([nothing.clone(), nothing]);
    world.ends[0].write(ids.0, &mut BufChain::copied(b"hello"), world.now).unwrap();
    let started = world.now;
    let broken = loop {
        assert!(world.step());
        if let Some(event) = world.ends[0].poll_event() {
            break event;
        }
    };
    assert!(matches!(broken, Event::Broken(id, _) if id == ids.0), "{broken:?}");
    let took = world.now - started;
    assert!((Duration::from_secs(20)..Duration::from_secs(300)).contains(&took), "{took:?}");
}

#[test]
fn refusals_are_told_apart() {
    for how in [Refusal::Reset, Refusal::Drop] {
        let mut world = World::new(slow(MS), &Config::default(), 3);
        let (source, target) = ("10.0.0.1:1000".parse().unwrap(), "192.0.2.1:80".parse().unwrap());
        let client = world.ends[0].connect(source, target, world.now).unwrap();
        let started = world.now;
        let event = loop {
            assert!(world.step());
            if let Some(Event::Knock { id, .. }) = world.ends[1].poll_event() {
                world.ends[1].refuse(id, how, world.now);
            }
            if let Some(event) = world.ends[0].poll_event() {
                break event;
            }
        };
        assert!(matches!(event, Event::Broken(id, _) if id == client));
        let at_once = world.now - started < MS * 10;
        assert_eq!(at_once, how == Refusal::Reset, "{how:?} after {:?}", world.now - started);
    }
}

#[test]
fn an_abort_arrives_as_a_reset() {
    let mut world = World::new(slow(MS), &Config::default(), 3);
    let ids = world.connect("10.0.0.1:1000", "192.0.2.1:80");
    world.ends[1].write(ids.1, &mut BufChain::copied(b"the beginning"), world.now).unwrap();
    while world.step() {}
    assert!(matches!(world.ends[0].read(ids.0, world.now), ReadOutcome::Data(_)));
    assert!(matches!(world.ends[0].read(ids.0, world.now), ReadOutcome::Blocked));
    world.ends[1].abort(ids.1, world.now);
    world.ends[1].release(ids.1, world.now);
    while world.step() {}
    assert!(matches!(world.ends[0].read(ids.0, world.now), ReadOutcome::Broken(_)));
    assert_eq!(world.ends[1].connections(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_path_carries_every_byte(
        seed in any::<u64>(),
        loss in 0.0..0.15f64,
        repeat in 0.0..0.2f64,
        reorder in 0.0..0.5f64,
        jitter in 0u32..10,
        rate in prop::option::of(1_000_000u64..50_000_000),
        up in 0usize..120_000,
        down in 0usize..120_000,
        mtu in 576u16..9000,
        narrow in prop::option::of(576usize..9000),
    ) {
        let shape = Shape {
            jitter: MS * jitter,
            jitter_reorders: true,
            repeat,
            reorder,
            late: MS * 5,
            rate,
            queue: 64 << 10,
            ..slow(MS * 10)
        };
        let config = Config { mtu, receive_window: 64 << 10, ..Config::default() };
        let mut world = World::new(slow(MS * 10), &config, seed);
        let ids = world.connect("10.0.0.1:1000", "192.0.2.1:80");
        let shape = shape.losing(Loss::Random(loss));
        world.path.reshape([shape.clone(), shape]);
        world.narrow = narrow.unwrap_or(usize::MAX);
        exchange(&mut world, ids, up, down);
    }
}
