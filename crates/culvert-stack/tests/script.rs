//! Segments in, segments out: what a peer that does not play by the rules, or an attacker who guesses, gets.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_stack::checksum::pseudo;
use culvert_stack::tcp::Seq;
use culvert_stack::tcp::segment::{Flags, MAX_HEAD, Options, Segment};
use culvert_stack::{Config, ConnId, Event, ReadOutcome, Received, Refusal, Stack, ip};
use culvert_wire::BufChain;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const ACK: Flags = Flags::ACK;

/// A stack, and a peer of it whose every segment is written by hand.
struct Script {
    stack: Stack,
    now: Instant,
    us: SocketAddr,
    peer: SocketAddr,
    id: ConnId,
    /// The number behind our SYN.
    ours: Seq,
}

/// The number behind the peer's SYN.
const THEIRS: Seq = Seq(1001);

impl Script {
    /// One with a connection that is established.
    fn established(options: Options) -> Self {
        let now = Instant::now();
        let (us, peer) = ("192.0.2.1:80".parse().unwrap(), "10.0.0.1:1000".parse().unwrap());
        let mut stack = Stack::new(Config::default(), now);
        let syn =
            Segment { seq: Seq(1000), flags: Flags::SYN, window: 60_000, options, ..Segment::default() };
        receive(&mut stack, peer, us, syn, b"", now);
        let Some(Event::Knock { id, .. }) = stack.poll_event() else { panic!("no knock") };
        stack.accept(id, now);
        let mut script = Self { stack, now, us, peer, id, ours: Seq(0) };
        let answers = script.sent();
        assert_eq!(answers.len(), 1);
        let (answer, _) = &answers[0];
        assert_eq!((answer.flags, answer.ack), (Flags::SYN.and(ACK), THEIRS));
        script.ours = answer.seq + 1;
        script.receive(THEIRS, script.ours, ACK, b"");
        assert_eq!(script.stack.poll_event(), Some(Event::Connected(id)));
        assert!(script.sent().is_empty());
        script
    }

    fn receive(&mut self, seq: Seq, ack: Seq, flags: Flags, payload: &[u8]) {
        let segment = Segment { seq, ack, flags, window: 60_000, ..Segment::default() };
        receive(&mut self.stack, self.peer, self.us, segment, payload, self.now);
    }

    fn sent(&mut self) -> Vec<(Segment, Vec<u8>)> {
        let mut sent = Vec::new();
        self.stack.transmit(self.now, &mut |out| {
            let (segment, len) = Segment::parse(&out.head[20..]).unwrap();
            assert_eq!(out.head.len(), 20 + len);
            sent.push((segment, out.payload.iter().flat_map(|slice| slice.to_vec()).collect()));
            true
        });
        sent
    }

    /// What was sent is one acknowledgement, of this.
    fn acknowledges(&mut self, ack: Seq) -> Segment {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        let (segment, payload) = &sent[0];
        assert_eq!((segment.flags, segment.ack, payload.len()), (ACK, ack, 0));
        *segment
    }

    fn is_quiet(&mut self) -> bool {
        self.sent().is_empty()
    }

    fn read(&mut self) -> Vec<u8> {
        match self.stack.read(self.id, self.now) {
            ReadOutcome::Data(data) => data.to_vec(),
            ReadOutcome::Blocked => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    fn is_alive(&mut self) -> bool {
        !matches!(self.stack.read(self.id, self.now), ReadOutcome::Broken(_))
    }

    fn write(&mut self, data: &[u8]) {
        assert_eq!(self.stack.write(self.id, &mut BufChain::copied(data), self.now), Ok(true));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.stack.on_timeout(self.now);
    }
}

fn receive(
    stack: &mut Stack,
    from: SocketAddr,
    to: SocketAddr,
    segment: Segment,
    payload: &[u8],
    now: Instant,
) {
    let segment = Segment { source: from.port(), target: to.port(), ..segment };
    let mut packet = vec![0; ip::MAX_HEAD + MAX_HEAD];
    let len = 20 + segment.options.encoded_len() + payload.len();
    let at = ip::encode(from.ip(), to.ip(), ip::protocol::TCP, len, 0, &mut packet);
    let end = at + segment.encode(&mut packet[at..]);
    packet.truncate(end);
    packet.extend(payload);
    let sum = pseudo(from.ip(), to.ip(), ip::protocol::TCP, len).bytes(&packet[at..]).finish();
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    assert!(stack.receive(Received { packet: packet.into(), checked: false, segment: 0 }, now).is_none());
}

fn with_sack() -> Options {
    Options { mss: Some(1000), sack_permitted: true, window_scale: Some(2), ..Options::default() }
}

#[test]
fn a_reset_counts_only_with_the_exact_number() {
    let mut script = Script::established(Options::default());
    for (seq, answered) in
        [(THEIRS + 1, true), (THEIRS + 30_000, true), (THEIRS + 80_000, false), (Seq(900), false)]
    {
        script.receive(seq, script.ours, Flags::RST, b"");
        assert!(script.is_alive());
        match answered {
            true => drop(script.acknowledges(THEIRS)),
            false => assert!(script.is_quiet(), "{seq:?}"),
        }
    }
    script.receive(THEIRS, script.ours, Flags::RST, b"");
    assert!(!script.is_alive());
    assert!(script.is_quiet(), "a reset is not answered");
}

#[test]
fn a_syn_in_the_middle_gets_an_acknowledgement() {
    let mut script = Script::established(Options::default());
    script.receive(THEIRS + 5, Seq(0), Flags::SYN, b"");
    script.acknowledges(THEIRS);
    assert!(script.is_alive());
}

#[test]
fn data_with_an_impossible_acknowledgement_is_not_taken() {
    let mut script = Script::established(Options::default());
    for ack in [script.ours + 1, script.ours + 100_000, Seq(script.ours.0.wrapping_sub(100_000))] {
        script.receive(THEIRS, ack, ACK, b"forged");
        script.acknowledges(THEIRS);
        assert_eq!(script.read(), b"");
    }
    script.receive(THEIRS, script.ours, ACK, b"true");
    assert_eq!(script.read(), b"true");
}

#[test]
fn overlaps_repeats_and_gaps_give_the_stream_once() {
    let mut script = Script::established(with_sack());
    script.receive(THEIRS + 3, script.ours, ACK, b"defg");
    let blocks = script.acknowledges(THEIRS).options.sack;
    assert_eq!(blocks.as_slice(), [(THEIRS + 3, THEIRS + 7)]);
    script.receive(THEIRS + 9, script.ours, ACK, b"jk");
    let blocks = script.acknowledges(THEIRS).options.sack;
    assert_eq!(blocks.as_slice(), [(THEIRS + 9, THEIRS + 11), (THEIRS + 3, THEIRS + 7)]);
    script.receive(THEIRS, script.ours, ACK, b"abcde");
    script.acknowledges(THEIRS + 7);
    script.receive(THEIRS + 2, script.ours, ACK, b"cdefghij");
    script.acknowledges(THEIRS + 11);
    script.receive(THEIRS, script.ours, ACK, b"abc");
    script.acknowledges(THEIRS + 11);
    assert_eq!(script.read(), b"abcdefghijk");
}

#[test]
fn an_end_before_its_time_waits_for_the_gap() {
    let mut script = Script::established(with_sack());
    script.receive(THEIRS + 3, script.ours, ACK.and(Flags::FIN), b"def");
    script.acknowledges(THEIRS);
    assert_eq!(script.read(), b"");
    script.receive(THEIRS, script.ours, ACK, b"abc");
    script.acknowledges(THEIRS + 7);
    assert_eq!(script.read(), b"abcdef");
    assert!(matches!(script.stack.read(script.id, script.now), ReadOutcome::End));
    script.write(b"and we go on");
    assert_eq!(script.sent().len(), 1, "one direction has ended, not both");
}

#[test]
fn what_is_beyond_the_window_is_not_taken() {
    let mut script = Script::established(Options::default());
    script.receive(THEIRS + 65_534, script.ours, ACK, b"abc");
    script.acknowledges(THEIRS);
    script.receive(THEIRS + 65_536, script.ours, ACK, b"abc");
    script.acknowledges(THEIRS);
    for at in (0..66_000).step_by(1000) {
        script.receive(THEIRS + at, script.ours, ACK, &[7; 1000]);
        script.sent();
    }
    let got = script.read().len();
    assert!((65_000..=65_536).contains(&got), "{got}");
}

#[test]
fn sack_says_what_to_send_again_and_only_that() {
    let mut script = Script::established(with_sack());
    script.write(&[1; 8000]);
    assert_eq!(script.sent().len(), 8);
    script.pass(MS * 20);
    let mut options = Options::default();
    let ours = script.ours;
    options.sack.push(ours + 1000, ours + 3000);
    options.sack.push(ours + 4000, ours + 8000);
    let segment =
        Segment { seq: THEIRS, ack: ours, flags: ACK, window: 15_000, options, ..Segment::default() };
    receive(&mut script.stack, script.peer, script.us, segment, b"", script.now);
    let again: Vec<_> = script.sent().iter().map(|(segment, data)| (segment.seq, data.len())).collect();
    assert_eq!(again, [(ours, 1000), (ours + 3000, 1000)]);
}

#[test]
fn three_duplicates_mean_a_loss_without_sack() {
    let mut script = Script::established(Options { mss: Some(1000), ..Options::default() });
    script.write(&[1; 5000]);
    assert_eq!(script.sent().len(), 5);
    let ours = script.ours;
    for count in 1..=3 {
        assert!(script.is_quiet(), "after {} duplicates", count - 1);
        script.receive(THEIRS, ours, ACK, b"");
    }
    let again: Vec<_> = script.sent().iter().map(|(segment, data)| (segment.seq, data.len())).collect();
    assert_eq!(again, [(ours, 1000)]);
    script.receive(THEIRS, ours + 3000, ACK, b"");
    let again: Vec<_> = script.sent().iter().map(|(segment, data)| (segment.seq, data.len())).collect();
    assert_eq!(again, [(ours + 3000, 1000)], "a part acknowledged means that the next one is lost, too");
}

#[test]
fn a_closed_window_is_probed_with_one_byte() {
    let mut script = Script::established(with_sack());
    let closed = |script: &mut Script, ack| {
        let segment = Segment { seq: THEIRS, ack, flags: ACK, window: 0, ..Segment::default() };
        receive(&mut script.stack, script.peer, script.us, segment, b"", script.now);
    };
    let ours = script.ours;
    closed(&mut script, ours);
    script.write(b"hello");
    assert!(script.is_quiet());
    let mut probes = 0;
    for _ in 0..200 {
        script.pass(Duration::from_secs(1));
        for (segment, data) in script.sent() {
            assert_eq!((segment.seq, data.as_slice()), (ours, &b"h"[..]));
            probes += 1;
            closed(&mut script, ours);
        }
    }
    assert!((4..15).contains(&probes), "{probes} probes in 200 seconds");
    script.receive(THEIRS, ours + 1, ACK, b"");
    let sent = script.sent();
    assert_eq!((sent[0].0.seq, sent[0].1.as_slice()), (ours + 1, &b"ello"[..]));
}

#[test]
fn segments_to_nothing_are_reset_and_resets_are_not() {
    let (mut stack, now) = (Stack::new(Config::default(), Instant::now()), Instant::now());
    let (us, peer) = ("[2001:db8::1]:80".parse().unwrap(), "[fd00::1]:1000".parse().unwrap());
    let mut resets = |segment: Segment, payload: &[u8]| {
        receive(&mut stack, peer, us, segment, payload, now);
        let mut answers = Vec::new();
        stack.transmit(now, &mut |out| {
            answers.push(Segment::parse(&out.head[40..]).unwrap().0);
            true
        });
        answers.iter().map(|answer| (answer.flags, answer.seq, answer.ack)).collect::<Vec<_>>()
    };
    let segment = Segment { seq: Seq(5), ack: Seq(77), flags: ACK, ..Segment::default() };
    assert_eq!(resets(segment, b"abc"), [(Flags::RST, Seq(77), Seq(0))]);
    let fin = Segment { flags: Flags::FIN, ..segment };
    assert_eq!(resets(fin, b"abc"), [(Flags::RST.and(ACK), Seq(0), Seq(9))]);
    assert_eq!(resets(Segment { flags: Flags::RST, ..segment }, b""), []);
}

#[test]
fn a_flood_of_first_packets_is_bounded_and_leaves_nothing() {
    let now = Instant::now();
    let config = Config { knocking: 100, ..Config::default() };
    let mut stack = Stack::new(config, now);
    let us = "192.0.2.1:80".parse().unwrap();
    for port in 1..=1000 {
        let syn = Segment { seq: Seq(1), flags: Flags::SYN, ..Segment::default() };
        receive(&mut stack, SocketAddr::new([10, 0, 0, 1].into(), port), us, syn, b"", now);
    }
    assert_eq!((stack.connections(), stack.counters().crowded), (100, 900));
    while let Some(Event::Knock { id, .. }) = stack.poll_event() {
        stack.refuse(id, Refusal::Drop, now);
    }
    assert_eq!(stack.connections(), 0);
    assert!(stack.transmit(now, &mut |_| panic!("silence was asked for")));
}

#[test]
fn an_answer_that_gets_lost_is_given_again() {
    let now = Instant::now();
    let (us, peer) = ("192.0.2.1:80".parse().unwrap(), "10.0.0.1:1000".parse().unwrap());
    let mut stack = Stack::new(Config::default(), now);
    let syn = Segment { seq: Seq(1000), flags: Flags::SYN, window: 60_000, ..Segment::default() };
    receive(&mut stack, peer, us, syn, b"", now);
    let Some(Event::Knock { id, .. }) = stack.poll_event() else { panic!("no knock") };
    receive(&mut stack, peer, us, syn, b"", now);
    assert_eq!(stack.poll_event(), None, "the same client knocks once");
    stack.accept(id, now);
    let mut answers = 0;
    let mut count = |stack: &mut Stack, now| {
        stack.transmit(now, &mut |_| {
            answers += 1;
            true
        });
        answers
    };
    assert_eq!(count(&mut stack, now), 1);
    receive(&mut stack, peer, us, syn, b"", now);
    assert_eq!(count(&mut stack, now), 2, "asked again");
    let mut now = now;
    for _ in 0..200 {
        now += Duration::from_secs(1);
        stack.on_timeout(now);
        count(&mut stack, now);
    }
    assert!((4..8).contains(&count(&mut stack, now)), "then by itself, a few times");
    assert!(matches!(stack.poll_event(), Some(Event::Broken(..))));
}

#[test]
fn a_new_connection_of_the_same_pair_takes_the_place_of_an_ended_one() {
    let mut script = Script::established(with_sack());
    let id = script.id;
    script.stack.shut_down(id, script.now);
    script.sent();
    script.receive(THEIRS, script.ours + 1, ACK.and(Flags::FIN), b"");
    script.acknowledges(THEIRS + 1);
    script.stack.release(id, script.now);
    script.sent();
    assert_eq!(script.stack.connections(), 1, "its numbers are kept for a while");
    script.receive(THEIRS + 50_000, Seq(0), Flags::SYN, b"");
    assert!(matches!(script.stack.poll_event(), Some(Event::Knock { .. })));
    assert_eq!(script.stack.connections(), 1);
}

#[test]
fn a_packet_that_is_too_long_is_sent_again_in_shorter_ones() {
    let mut script = Script::established(Options { mss: Some(1460), ..with_sack() });
    script.write(&[1; 2920]);
    let sent = script.sent();
    assert_eq!(sent.iter().map(|(_, data)| data.len()).collect::<Vec<_>>(), [1460, 1460]);
    let mut quoted = vec![0; ip::MAX_HEAD + MAX_HEAD];
    let at = ip::encode(script.us.ip(), script.peer.ip(), ip::protocol::TCP, 1480, 0, &mut quoted);
    let end = at + sent[0].0.encode(&mut quoted[at..]);
    quoted.truncate(end);
    let mut whole = quoted.clone();
    whole.resize(1500, 0);
    let error = culvert_stack::icmp::too_long(&whole, 1000).unwrap();
    // Comes from a router, but what counts is the packet inside.
    script.stack.receive(Received { packet: error.into(), checked: true, segment: 0 }, script.now);
    let again: Vec<_> = script.sent().iter().map(|(_, data)| data.len()).collect();
    assert_eq!(again.iter().sum::<usize>(), 2920, "{again:?}");
    assert!(again.iter().all(|len| *len <= 960), "{again:?}");
}

proptest! {
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        culvert_stack::stack::fuzz_packets(&bytes);
    }
}
