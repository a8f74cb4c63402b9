//! Packet scripts: what a peer written by hand sends, what the stack has to answer, and nothing else.
//!
//! ```text
//! < SA 0 ack 1 win 60000 mss 1000    the peer sends: flags, sequence number (or first:end with data), fields
//! > A 1:1001 ack 1                   the stack sends this, and nothing but what such lines name
//! call write 3000                    what the holder of the connection does, and what it gets
//! +40                                so many milliseconds pass
//! ```
//!
//! Numbers of both ends are told from their first, which is 0 on the wire of the peer and a secret of the stack's. Flags are
//! `S`, `A`, `F`, `R`; a push is not told. Fields are `ack`, `win`, `mss`, `ws`, `sackok`, `ts VALUE ECHO`, `sack FROM TO …`.
//! A window, an MSS or a timestamp that a `>` line does not name may be any.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_stack::checksum::pseudo;
use culvert_stack::tcp::Seq;
use culvert_stack::tcp::segment::{Flags, MAX_HEAD, Options, Segment};
use culvert_stack::{Config, ConnId, Event, ReadOutcome, Received, Stack, icmp, ip};
use culvert_wire::BufChain;

/// Runs a script against a stack with these settings.
fn play(name: &str, config: &Config, script: &str) {
    for (us, peer) in [("192.0.2.1:80", "10.0.0.1:1000"), ("[2001:db8::1]:80", "[fd00::1]:1000")] {
        let mut play = Play::new(config, us.parse().unwrap(), peer.parse().unwrap());
        for (number, line) in script.lines().map(str::trim).enumerate() {
            let line = line.split('#').next().unwrap().trim();
            if !line.is_empty() {
                let place = format!("{name}, line {}, `{line}`, {peer}", number + 1);
                play.step(line, &place);
            }
        }
        let left = play.sent.drain(..).collect::<Vec<_>>();
        assert!(left.is_empty(), "{name}, at the end: sent besides: {left:?}");
    }
}

struct Play {
    stack: Stack,
    now: Instant,
    us: SocketAddr,
    peer: SocketAddr,
    id: Option<ConnId>,
    /// The number of our SYN.
    ours: Option<Seq>,
    sent: std::collections::VecDeque<Line>,
    offset: u8,
}

/// A segment as a script tells it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Line {
    flags: u8,
    from: u32,
    to: u32,
    ack: Option<u32>,
    window: Option<u16>,
    mss: Option<u16>,
    shift: Option<u8>,
    sack_permitted: bool,
    stamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
}

impl Line {
    fn parse(words: &str) -> Self {
        let mut words = words.split_whitespace().peekable();
        let mut line = Self::default();
        for letter in words.next().unwrap().chars() {
            line.flags |= match letter {
                'S' => Flags::SYN.0,
                'A' => Flags::ACK.0,
                'F' => Flags::FIN.0,
                'R' => Flags::RST.0,
                other => panic!("flag {other}"),
            };
        }
        let number = |word: &str| word.parse::<i64>().unwrap() as u32;
        let range = words.next().unwrap();
        let (from, to) = range.split_once(':').unwrap_or((range, range));
        (line.from, line.to) = (number(from), number(to));
        while let Some(word) = words.next() {
            match word {
                "ack" => line.ack = Some(number(words.next().unwrap())),
                "win" => line.window = Some(words.next().unwrap().parse().unwrap()),
                "mss" => line.mss = Some(words.next().unwrap().parse().unwrap()),
                "ws" => line.shift = Some(words.next().unwrap().parse().unwrap()),
                "sackok" => line.sack_permitted = true,
                "ts" => line.stamps = Some((number(words.next().unwrap()), number(words.next().unwrap()))),
                "sack" => {
                    while let Some(from) = words.next_if(|word| word.parse::<i64>().is_ok()) {
                        line.sack.push((number(from), number(words.next().unwrap())));
                    }
                }
                other => panic!("field {other}"),
            }
        }
        line
    }

    /// Whether `sent` is what this line wants.
    fn is(&self, sent: &Self) -> bool {
        let same = |wanted: Option<u64>, got: Option<u64>| wanted.is_none() || wanted == got;
        (self.flags, self.from, self.to, self.ack) == (sent.flags, sent.from, sent.to, sent.ack)
            && self.sack == sent.sack
            && same(self.window.map(u64::from), sent.window.map(u64::from))
            && same(self.mss.map(u64::from), sent.mss.map(u64::from))
            && self.stamps.is_none_or(|(_, echo)| sent.stamps.is_some_and(|(_, got)| got == echo))
    }
}

impl Play {
    fn new(config: &Config, us: SocketAddr, peer: SocketAddr) -> Self {
        let now = Instant::now();
        let stack = Stack::new(config.clone(), now);
        Self { stack, now, us, peer, id: None, ours: None, sent: Default::default(), offset: 0 }
    }

    fn step(&mut self, line: &str, place: &str) {
        if let Some(wanted) = line.strip_prefix('>') {
            let wanted = Line::parse(wanted);
            let sent = self.sent.pop_front();
            assert!(sent.as_ref().is_some_and(|sent| wanted.is(sent)), "{place}: sent {sent:?}");
            return;
        }
        assert!(self.sent.is_empty(), "{place}: sent before: {:?}", self.sent);
        if let Some(segment) = line.strip_prefix('<') {
            self.receive(&Line::parse(segment));
        } else if let Some(millis) = line.strip_prefix('+') {
            // In small steps, as timers would have it.
            for _ in 0..millis.parse::<u32>().unwrap() {
                self.now += Duration::from_millis(1);
                self.stack.on_timeout(self.now);
                self.collect();
            }
        } else if let Some(call) = line.strip_prefix("call ") {
            self.call(call, place);
        } else {
            panic!("{place}: what is this?");
        }
        self.collect();
    }

    fn receive(&mut self, line: &Line) {
        let ours = self.ours.unwrap_or(Seq(0));
        let mut options = Options {
            mss: line.mss,
            window_scale: line.shift,
            sack_permitted: line.sack_permitted,
            timestamps: line.stamps,
            ..Options::default()
        };
        line.sack.iter().for_each(|(from, to)| options.sack.push(ours + *from, ours + *to));
        let segment = Segment {
            source: self.peer.port(),
            target: self.us.port(),
            seq: Seq(line.from),
            ack: line.ack.map_or(Seq(0), |ack| ours + ack),
            flags: Flags(line.flags),
            window: line.window.unwrap_or(60_000),
            options,
        };
        // Flags take a number, but no byte.
        let flags = [Flags::SYN, Flags::FIN].iter().filter(|flag| segment.flags.has(**flag)).count() as u32;
        let len =
            line.to.wrapping_sub(line.from).saturating_sub(if line.to == line.from { 0 } else { flags });
        let payload: Vec<u8> = (0..len).map(|at| byte(line.from.wrapping_add(at))).collect();
        let packet = packet(self.peer, self.us, &segment, &payload);
        assert!(
            self.stack
                .receive(Received { packet: packet.into(), checked: false, segment: 0 }, self.now)
                .is_none()
        );
    }

    fn collect(&mut self) {
        let (us, sent, ours) = (self.us, &mut self.sent, &mut self.ours);
        self.stack.transmit(self.now, &mut |out| {
            let at = ip::head_len(us.ip());
            let Some((segment, _)) = Segment::parse(&out.head[at..]).filter(|_| is_tcp(out.head)) else {
                return true;
            };
            let payload: Vec<u8> = out.payload.iter().flat_map(|slice| slice.to_vec()).collect();
            if segment.flags.has(Flags::SYN) {
                ours.get_or_insert(segment.seq);
            }
            let first = ours.unwrap_or(Seq(0));
            let len = payload.len() as u32 + u32::from(segment.flags.has(Flags::FIN));
            let from = segment.seq - first;
            let options = segment.options;
            sent.push_back(Line {
                flags: segment.flags.0 & !Flags::PSH.0,
                from,
                to: from.wrapping_add(len),
                ack: segment.flags.has(Flags::ACK).then_some(segment.ack.0),
                window: Some(segment.window),
                mss: options.mss,
                shift: options.window_scale,
                sack_permitted: options.sack_permitted,
                stamps: options.timestamps,
                sack: options.sack.as_slice().iter().map(|(from, to)| (from.0, to.0)).collect(),
            });
            true
        });
    }

    fn call(&mut self, call: &str, place: &str) {
        let (now, words) = (self.now, call.split_whitespace().collect::<Vec<_>>());
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        if words[0] == "accept" {
            let event = self.stack.poll_event();
            let Some(Event::Knock { id, source, target }) = event else { panic!("{place}: {event:?}") };
            assert_eq!((source, target), (self.peer, self.us), "{place}");
            self.stack.accept(id, now);
            self.id = Some(id);
            return;
        }
        if words[0] == "connect" {
            self.id = self.stack.connect(self.us, self.peer, now);
            return;
        }
        let id = self.id.expect("a connection");
        match words[0] {
            "write" => {
                let data = vec![7; number(1)];
                assert_eq!(self.stack.write(id, &mut BufChain::copied(&data), now), Ok(true), "{place}");
            }
            // So many bytes are there, and they are the peer's.
            "read" => {
                let ReadOutcome::Data(data) = self.stack.read(id, now) else { panic!("{place}: nothing") };
                let data = data.to_vec();
                assert_eq!(data.len(), number(1), "{place}");
                for got in data {
                    self.offset = self.offset.wrapping_add(1);
                    assert_eq!(got, self.offset, "{place}: not what was sent");
                }
            }
            "blocked" => assert!(matches!(self.stack.read(id, now), ReadOutcome::Blocked), "{place}"),
            "end" => assert!(matches!(self.stack.read(id, now), ReadOutcome::End), "{place}"),
            "broken" => assert!(matches!(self.stack.read(id, now), ReadOutcome::Broken(_)), "{place}"),
            "shutdown" => self.stack.shut_down(id, now),
            "abort" => self.stack.abort(id, now),
            "release" => self.stack.release(id, now),
            "gone" => assert_eq!(self.stack.connections(), 0, "{place}"),
            "kept" => assert_eq!(self.stack.connections(), 1, "{place}"),
            // A router says that the payload of the packet with this number must be no longer than this.
            "toobig" => {
                let segment = Segment {
                    source: self.us.port(),
                    target: self.peer.port(),
                    seq: self.ours.unwrap() + number(1) as u32,
                    flags: Flags::ACK,
                    ..Segment::default()
                };
                let quoted = packet(self.us, self.peer, &segment, &[0; 500]);
                let error =
                    icmp::too_long(&quoted, (ip::head_len(self.us.ip()) + 20 + number(2)) as u16).unwrap();
                self.stack.receive(Received { packet: error.into(), checked: true, segment: 0 }, now);
            }
            other => panic!("{place}: call {other}"),
        }
    }
}

/// The byte that has this number in the peer's stream; the first is number 1.
fn byte(number: u32) -> u8 {
    number as u8
}

fn is_tcp(head: &[u8]) -> bool {
    ip::protocol::TCP == if head[0] >> 4 == 4 { head[9] } else { head[6] }
}

fn packet(from: SocketAddr, to: SocketAddr, segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; ip::MAX_HEAD + MAX_HEAD];
    let len = 20 + segment.options.encoded_len() + payload.len();
    let at = ip::encode(from.ip(), to.ip(), ip::protocol::TCP, len, 0, &mut packet);
    let end = at + segment.encode(&mut packet[at..]);
    packet.truncate(end);
    packet.extend(payload);
    let sum = pseudo(from.ip(), to.ip(), ip::protocol::TCP, len).bytes(&packet[at..]).finish();
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A handshake with segments of 1000 bytes and without options to speak of.
const OPEN: &str = "
    < S 0 win 60000 mss 1000
    call accept
    > SA 0 ack 1
    < A 1 ack 1
";
/// One with all options.
const OPEN_ALL: &str = "
    < S 0 win 60000 mss 1012 ws 2 sackok ts 100 0
    call accept
    > SA 0 ack 1 ts 0 100
    < A 1 ack 1 win 15000 ts 101 1
";

/// Name, handshake, script.
const SCRIPTS: &[(&str, &str, &str)] = &[
    (
        "data both ways, and an orderly end from the peer",
        OPEN,
        "
        < A 1:101 ack 1
        > A 1 ack 101
        call read 100
        call write 2500
        > A 1:1001 ack 101
        > A 1001:2001 ack 101
        > A 2001:2501 ack 101
        < A 101 ack 2501
        < FA 101 ack 2501
        > A 2501 ack 102
        call end
        call shutdown
        > FA 2501:2502 ack 102
        < A 102 ack 2502
        call release
        call gone
        ",
    ),
    (
        "half-close: the peer has ended, we go on for as long as we like",
        OPEN,
        "
        < FA 1 ack 1
        > A 1 ack 2
        call end
        +30000
        call write 1500
        > A 1:1001 ack 2
        > A 1001:1501 ack 2
        < A 2 ack 1501
        call shutdown
        > FA 1501:1502 ack 2
        < A 2 ack 1502
        call release
        call gone
        ",
    ),
    (
        "half-close: we have ended, the peer goes on",
        OPEN,
        "
        call shutdown
        > FA 1:2 ack 1
        < A 1 ack 2
        +30000
        < A 1:501 ack 2
        > A 2 ack 501
        call read 500
        < FA 501 ack 2
        > A 2 ack 502
        call end
        call release
        call kept      # in TIME-WAIT
        +6000
        call gone
        ",
    ),
    (
        "both ends at once",
        OPEN,
        "
        call shutdown
        > FA 1:2 ack 1
        < FA 1 ack 1
        > A 2 ack 2
        < A 2 ack 2
        call end
        call release
        +6000
        call gone
        ",
    ),
    (
        "an end that is lost comes again, and its acknowledgement too",
        OPEN,
        "
        call shutdown
        > FA 1:2 ack 1
        +1000
        > FA 1:2 ack 1
        < A 1 ack 2
        < FA 1 ack 2
        > A 2 ack 2
        < FA 1 ack 2
        > A 2 ack 2
        ",
    ),
    (
        "data and end in one segment",
        OPEN,
        "
        < FA 1:12 ack 1
        > A 1 ack 12
        call read 10
        call end
        ",
    ),
    (
        "data to nobody breaks the connection",
        OPEN,
        "
        call release
        > FA 1:2 ack 1
        < A 1:101 ack 2
        > RA 2 ack 1
        call gone
        ",
    ),
    (
        "unread data at the release breaks the connection",
        OPEN,
        "
        < A 1:101 ack 1
        > A 1 ack 101
        call release
        > RA 1 ack 101
        call gone
        ",
    ),
    (
        "overlapping segments: each byte once, the first that came",
        OPEN,
        "
        < A 1:11 ack 1
        > A 1 ack 11
        < A 6:21 ack 1
        > A 1 ack 21
        < A 1:31 ack 1
        > A 1 ack 31
        < A 5:20 ack 1
        > A 1 ack 31
        call read 30
        ",
    ),
    (
        "gaps are told by SACK, the newest first, and closed in any order",
        OPEN_ALL,
        "
        < A 1001:2001 ack 1 ts 102 1
        > A 1 ack 1 sack 1001 2001
        < A 3001:4001 ack 1 ts 102 1
        > A 1 ack 1 sack 3001 4001 1001 2001
        < A 5001:6001 ack 1 ts 102 1
        > A 1 ack 1 sack 5001 6001 1001 2001 3001 4001
        < A 1:1001 ack 1 ts 103 1
        > A 1 ack 2001 sack 5001 6001 3001 4001
        < A 2001:5001 ack 1 ts 103 1
        > A 1 ack 6001
        call read 6000
        ",
    ),
    (
        "SACK of ours: what is missing goes again, once, and nothing else",
        OPEN_ALL,
        "
        call write 5000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        > A 2001:3001 ack 1
        > A 3001:4001 ack 1
        > A 4001:5001 ack 1
        +20
        < A 1 ack 1 win 15000 sack 1001 2001 ts 110 1
        < A 1 ack 1 win 15000 sack 1001 3001 ts 110 1
        < A 1 ack 1 win 15000 sack 1001 5001 ts 110 1
        > A 1:1001 ack 1
        < A 1 ack 5001 win 15000 ts 130 1
        ",
    ),
    (
        "SACK that makes no sense changes nothing",
        OPEN_ALL,
        "
        call write 2000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        < A 1 ack 1 win 15000 sack 5001 9001 ts 110 1
        < A 1 ack 1 win 15000 sack 2001 1001 ts 110 1
        < A 1 ack 1 win 15000 sack -500 400 ts 110 1
        < A 1 ack 2001 win 15000 ts 111 1
        ",
    ),
    (
        "old duplicates: by timestamp, even where their number would do",
        OPEN_ALL,
        "
        < A 1:101 ack 1 ts 200 1
        > A 1 ack 101
        < A 101:201 ack 1 ts 150 1
        > A 1 ack 101
        call read 100
        call blocked
        < A 101:201 ack 1 ts 201 1
        call read 100
        > A 1 ack 201
        ",
    ),
    (
        "a reset with an old timestamp and the exact number still counts",
        OPEN_ALL,
        "
        < A 1:101 ack 1 ts 200 1
        > A 1 ack 101
        call read 100
        < R 101 ts 150 1
        call broken
        ",
    ),
    (
        "blind resets: only the exact number counts (RFC 5961 3.2)",
        OPEN,
        "
        < R 2
        > A 1 ack 1
        < R 30000
        > A 1 ack 1
        < R 100000        # beyond the window: silence
        < R -1
        call blocked
        < R 1
        call broken
        ",
    ),
    (
        "blind SYNs are answered, not believed (RFC 5961 4.2)",
        OPEN,
        "
        < S 1
        > A 1 ack 1
        < S 5000
        > A 1 ack 1
        < S 3000000000
        > A 1 ack 1
        < SA 1 ack 1
        > A 1 ack 1
        call blocked
        ",
    ),
    (
        "blind data: its acknowledgement must be near the truth (RFC 5961 5.2)",
        OPEN,
        "
        < A 1:101 ack 2
        > A 1 ack 1
        < A 1:101 ack 2000000000
        > A 1 ack 1
        < A 1:101 ack -70000
        > A 1 ack 1
        call blocked
        < A 1:101 ack 1
        call read 100
        > A 1 ack 101
        ",
    ),
    (
        "segments without an acknowledgement are not taken",
        OPEN,
        "
        < F 1
        < F 1:10
        call blocked
        ",
    ),
    (
        "the edge of our window: what is beyond is cut off",
        OPEN,
        "
        < A 65001:66001 ack 1
        > A 1 ack 1
        < A 66001:67001 ack 1
        > A 1 ack 1
        < A 1:30001 ack 1
        > A 1 ack 30001
        < A 30001:65001 ack 1
        > A 1 ack 65536 win 0
        < A 65536:65537 ack 1
        > A 1 ack 65536 win 0
        call read 65535
        > A 1 ack 65536 win 65535
        < A 65536:65537 ack 1
        > A 1 ack 65537
        ",
    ),
    (
        "the edge of the peer's window: no byte beyond, and no small segments before it",
        OPEN,
        "
        < A 1 ack 1 win 2500
        call write 5000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        < A 1 ack 1001 win 1500
        < A 1 ack 2001 win 3000
        > A 2001:3001 ack 1
        > A 3001:4001 ack 1
        > A 4001:5001 ack 1
        < A 1 ack 5001 win 60000
        ",
    ),
    (
        "a window that shrinks below what is on its way",
        OPEN,
        "
        call write 3000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        > A 2001:3001 ack 1
        < A 1 ack 1001 win 500
        call write 100
        < A 1 ack 3001 win 500
        > A 3001:3101 ack 1
        < A 1 ack 3101
        ",
    ),
    (
        "an old segment does not set the window",
        OPEN,
        "
        < A 1:11 ack 1 win 2000
        > A 1 ack 11
        < A 11:21 ack 1 win 5000
        > A 1 ack 21
        < A 1:11 ack 1 win 1
        > A 1 ack 21
        call write 3000
        > A 1:1001 ack 21
        > A 1001:2001 ack 21
        > A 2001:3001 ack 21
        < A 21 ack 3001
        ",
    ),
    (
        "zero-window probes: one byte, less and less often, for as long as the peer answers",
        OPEN,
        "
        < A 1 ack 1 win 0
        call write 10
        +1000
        > A 1:2 ack 1
        < A 1 ack 1 win 0
        +2000
        > A 1:2 ack 1
        < A 1 ack 1 win 0
        +4000
        > A 1:2 ack 1
        < A 1 ack 2 win 0       # it takes the byte and stays shut
        +8000
        > A 2:3 ack 1
        < A 1 ack 2 win 60000
        > A 3:11 ack 1         # the byte of the probe is on its way
        < A 1 ack 11
        ",
    ),
    (
        "an end into a closed window",
        OPEN,
        "
        < A 1 ack 1 win 0
        call shutdown
        > FA 1:2 ack 1
        < A 1 ack 2 win 0
        ",
    ),
    (
        "without an answer it gives up after a while",
        OPEN,
        "
        call write 10
        > A 1:11 ack 1
        +1000
        > A 1:11 ack 1
        +2000
        > A 1:11 ack 1
        +4000
        > A 1:11 ack 1
        +8000
        > A 1:11 ack 1
        +16000
        > A 1:11 ack 1
        +32000
        > A 1:11 ack 1
        +60000
        > A 1:11 ack 1
        +60000
        > A 1:11 ack 1
        +60000
        call broken
        ",
    ),
    (
        "a path whose packets must be shorter: what was on its way goes again, in pieces that fit",
        OPEN,
        "
        call write 2000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        call toobig 1 600
        > A 1:601 ack 1
        > A 601:1001 ack 1
        > A 1001:1601 ack 1
        > A 1601:2001 ack 1
        < A 1 ack 2001
        ",
    ),
    (
        "an error about a packet that was never sent, or has arrived, is not believed (RFC 5927)",
        OPEN,
        "
        call write 2000
        > A 1:1001 ack 1
        > A 1001:2001 ack 1
        call toobig 500000 500
        call toobig 2001 500
        < A 1 ack 2001
        call toobig 1 600
        call write 1000
        > A 2001:3001 ack 1
        < A 1 ack 3001
        ",
    ),
    (
        "the same SYN again: the same answer again",
        "",
        "
        < S 0 win 60000 mss 1000
        call accept
        > SA 0 ack 1
        < S 0 win 60000 mss 1000
        > SA 0 ack 1
        < A 1 ack 1
        < S 0 win 60000 mss 1000
        > A 1 ack 1
        ",
    ),
    (
        "a handshake that is not finished: wrong acknowledgements and resets",
        "",
        "
        < S 0 win 60000 mss 1000
        call accept
        > SA 0 ack 1
        < A 1 ack 500
        > R 500
        < R 30000
        < R 1
        call broken
        ",
    ),
    (
        "data with the last step of the handshake",
        "",
        "
        < S 0 win 60000 mss 1000
        call accept
        > SA 0 ack 1
        < A 1:11 ack 1
        > A 1 ack 11
        call read 10
        ",
    ),
    (
        "opened from here, answered, data both ways",
        "",
        "
        call connect
        > S 0
        < SA 0 ack 1 mss 1000
        > A 1 ack 1
        call write 10
        > A 1:11 ack 1
        < A 1:11 ack 11
        > A 11 ack 11
        call read 10
        ",
    ),
    (
        "opened from here: wrong answers, then a refusal",
        "",
        "
        call connect
        > S 0
        < SA 0 ack 7 mss 1000
        > R 7
        < R 0
        < RA 0 ack 9
        < RA 0 ack 1
        call broken
        ",
    ),
    (
        "an abort is one reset and no more",
        OPEN,
        "
        call write 10
        > A 1:11 ack 1
        call abort
        > RA 11 ack 1
        < A 1 ack 11
        > R 11
        call broken
        ",
    ),
    (
        "acknowledgements are late where they may be, and at once behind every second segment",
        OPEN,
        "
        < A 1:1001 ack 1
        > A 1 ack 1001
        < A 1001:2001 ack 1
        > A 1 ack 2001
        < A 2001:3001 ack 1
        > A 1 ack 3001
        < A 3001:4001 ack 1
        > A 1 ack 4001
        < A 4001:5001 ack 1
        > A 1 ack 5001
        < A 5001:6001 ack 1
        > A 1 ack 6001
        < A 6001:7001 ack 1
        > A 1 ack 7001
        < A 7001:8001 ack 1
        > A 1 ack 8001
        < A 8001:9001 ack 1
        > A 1 ack 9001
        < A 9001:10001 ack 1
        > A 1 ack 10001
        < A 10001:11001 ack 1
        > A 1 ack 11001
        < A 11001:12001 ack 1
        > A 1 ack 12001
        < A 12001:13001 ack 1
        > A 1 ack 13001
        < A 13001:14001 ack 1
        > A 1 ack 14001
        < A 14001:15001 ack 1
        > A 1 ack 15001
        < A 15001:16001 ack 1
        > A 1 ack 16001
        < A 16001:16101 ack 1
        +39
        +1
        > A 1 ack 16101
        < A 16101:16201 ack 1
        call read 16200
        call write 5             # carries it along
        > A 1:6 ack 16201
        < A 16201 ack 6
        +200
        ",
    ),
    (
        "to a reader that waits one acknowledgement goes, with the window as it is once it has read",
        OPEN,
        "
        call blocked
        < A 1:1001 ack 1
        < A 1001:2001 ack 1
        call read 2000
        > A 1 ack 2001 win 65535
        call blocked
        < A 2001:3001 ack 1
        +40                      # it was woken, and sleeps on
        > A 1 ack 3001
        < A 3001:15001 ack 1
        < A 15001:20001 ack 1
        > A 1 ack 20001
        call read 18000
        call blocked
        < A 21001:22001 ack 1    # what comes out of order cannot wait
        > A 1 ack 20001
        ",
    ),
    (
        "a reader that keeps up and one that does not",
        OPEN,
        "
        < A 1:30001 ack 1
        > A 1 ack 30001 win 35535
        call read 30000
        < A 30001:60001 ack 1
        > A 1 ack 60001 win 35535
        < A 60001:90001 ack 1
        > A 1 ack 90001 win 5535
        call read 60000
        > A 1 ack 90001 win 65535
        ",
    ),
];

#[test]
fn packets_go_as_the_scripts_say() {
    let plays = SCRIPTS.iter().map(|(name, open, script)| {
        std::panic::catch_unwind(|| play(name, &Config::default(), &format!("{open}{script}"))).is_err()
    });
    let failed = plays.filter(|failed| *failed).count();
    assert_eq!(failed, 0, "scripts that fail are named above");
}
