//! What a connection has to send: bytes until they are acknowledged, and what is known of those on their way.
//!
//! Bytes stay in the pieces they were written in, from the write to the acknowledgement; a transmission borrows them. The
//! flight is a list of runs, each sent in one go, cut where SACK says that part of one has arrived. A run counts as lost
//! when one that was sent later has arrived and the time for reordering is over (RACK), or after a time-out.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use culvert_wire::BufChain;

use super::Seq;

/// Most runs on their way; whoever writes single bytes waits for some of them to arrive.
const MOST_RUNS: usize = 512;
/// Most runs that SACK may cut the flight into.
const MOST_CUT: usize = 2048;
/// A written piece shorter than this, or much shorter than its memory, is copied to the end of the one before.
const SMALL: usize = 2048;
/// Arrivals beyond a gap that make reordering unlikely where none has been seen (RFC 8985 section 6.2).
const DUPLICATES: u32 = 3;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Flying,
    Sacked,
    Lost,
}

/// One run of the flight.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Seq,
    len: u32,
    at: Instant,
    again: bool,
    state: State,
}

impl Run {
    fn end(&self) -> Seq {
        self.start + self.len
    }
}

/// The run that was sent last among those that have arrived.
#[derive(Clone, Copy, Debug)]
struct Rack {
    at: Instant,
    end: Seq,
    rtt: Duration,
}

/// The sending side of a connection's data. The end of the stream counts as one byte behind the last.
pub struct Sender {
    /// From the first byte that is not acknowledged.
    queue: BufChain,
    una: Seq,
    next: Seq,
    /// Number of the end, once it is queued.
    fin: Option<Seq>,
    flight: VecDeque<Run>,
    flying: u32,
    lost: u32,
    sacked: u32,
    rack: Option<Rack>,
    /// Runs have arrived in another order than they were sent in.
    reordered: bool,
    /// The end of the highest run that has arrived.
    highest: Seq,
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Acked {
    /// Bytes that are known to have arrived, and were not before.
    pub arrived: u32,
    /// Bytes that need not be kept any more.
    pub released: u32,
    /// A measurement of the round-trip time.
    pub rtt: Option<Duration>,
}

impl Sender {
    /// Nothing to send; the first byte will have this number.
    #[must_use]
    pub fn new(first: Seq) -> Self {
        Self {
            queue: BufChain::new(),
            una: first,
            next: first,
            fin: None,
            flight: VecDeque::new(),
            flying: 0,
            lost: 0,
            sacked: 0,
            rack: None,
            reordered: false,
            highest: first,
        }
    }

    /// The first byte that is not acknowledged.
    #[must_use]
    pub fn una(&self) -> Seq {
        self.una
    }

    /// The first byte that was never sent.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Bytes in the queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes, the end included, that were never sent.
    #[must_use]
    pub fn unsent(&self) -> u32 {
        self.end() - self.next
    }

    /// Bytes on their way.
    #[must_use]
    pub fn flying(&self) -> u32 {
        self.flying
    }

    /// Whether anything is not acknowledged.
    #[must_use]
    pub fn has_flight(&self) -> bool {
        !self.flight.is_empty()
    }

    /// Whether all of the flight is one run.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.flight.len() == 1
    }

    /// Whether something is lost and not sent again yet.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether the end of the stream is queued.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.fin.is_some()
    }

    /// Whether all, the end included, is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.fin.is_some_and(|fin| self.una == fin + 1)
    }

    /// Whether another run may be sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.flight.len() < MOST_RUNS
    }

    /// The number behind the last byte of data.
    fn data_end(&self) -> Seq {
        self.fin.unwrap_or(self.una + self.queue.len() as u32)
    }

    /// The number behind the last byte, the end of the stream included.
    #[must_use]
    pub fn end(&self) -> Seq {
        self.fin.map_or(self.una + self.queue.len() as u32, |fin| fin + 1)
    }

    /// Takes pieces from the front of `data` until so many bytes are queued. Nothing more may come behind an end.
    pub fn push(&mut self, data: &mut BufChain, limit: usize) {
        while self.fin.is_none()
            && self.queue.len() < limit
            && let Some(piece) = data.pop_front()
        {
            let memory = piece.head() + piece.len() + piece.spare();
            if piece.len() < SMALL || piece.len() * 4 < memory {
                self.queue.append_copy(&piece);
            } else {
                self.queue.push_back(piece);
            }
        }
    }

    /// Queues the end of the stream.
    pub fn push_end(&mut self) {
        self.fin.get_or_insert(self.una + self.queue.len() as u32);
    }

    /// Gives all memory back; nothing will be sent or acknowledged any more.
    pub fn clear(&mut self) {
        *self = Self::new(self.next);
    }

    /// The data among `len` bytes from `start`, in the pieces it lies in, and whether the end of the stream is among them.
    pub fn slices<'a>(&'a self, start: Seq, len: u32, out: &mut Vec<IoSlice<'a>>) -> bool {
        let mut skip = (start - self.una) as usize;
        let with_end = (start + len).after(self.data_end()) > 0;
        let mut rest = len as usize - usize::from(with_end);
        for piece in self.queue.iter() {
            if rest == 0 {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let part = &piece[skip..piece.len().min(skip + rest)];
            skip = 0;
            rest -= part.len();
            out.push(IoSlice::new(part));
        }
        with_end
    }

    /// Notes that the next `len` bytes that were never sent are sent now.
    pub fn send_new(&mut self, len: u32, now: Instant) {
        self.flight.push_back(Run { start: self.next, len, at: now, again: false, state: State::Flying });
        self.flying += len;
        self.next += len;
    }

    /// The first lost bytes, at most `most` of them.
    #[must_use]
    pub fn first_lost(&self, most: u32) -> Option<(Seq, u32)> {
        if self.lost == 0 {
            return None;
        }
        let run = self.flight.iter().find(|run| run.state == State::Lost)?;
        Some((run.start, run.len.min(most)))
    }

    /// Notes that the first `len` lost bytes are sent again now.
    pub fn send_lost(&mut self, len: u32, now: Instant) {
        let Some(at) = self.flight.iter().position(|run| run.state == State::Lost) else { return };
        self.cut(at, len);
        let run = &mut self.flight[at];
        (run.state, run.at, run.again) = (State::Flying, now, true);
        self.lost -= run.len;
        self.flying += run.len;
    }

    /// The last bytes of the flight, at most `most`, to be sent again as a probe.
    #[must_use]
    pub fn tail(&self, most: u32) -> Option<(Seq, u32)> {
        let run = self.flight.iter().rev().find(|run| run.state == State::Flying)?;
        let len = run.len.min(most);
        Some((run.end() + len.wrapping_neg(), len))
    }

    /// Notes that the bytes of [`Sender::tail`] are sent again.
    pub fn send_tail(&mut self, len: u32, now: Instant) {
        let Some(at) = self.flight.iter().rposition(|run| run.state == State::Flying) else { return };
        let before = self.flight[at].len - len;
        let at = if before > 0 && self.cut(at, before) { at + 1 } else { at };
        let run = &mut self.flight[at];
        (run.at, run.again) = (now, true);
    }

    /// Cuts the run at `at` behind its first `len` bytes. Whether it is cut there now.
    fn cut(&mut self, at: usize, len: u32) -> bool {
        let run = self.flight[at];
        if len == 0 || len >= run.len {
            return false;
        }
        self.flight[at].len = len;
        self.flight.insert(at + 1, Run { start: run.start + len, len: run.len - len, ..run });
        true
    }

    /// Takes in an acknowledgement up to `ack`, which is neither before `una` nor behind `next`, and SACK blocks.
    pub fn acknowledge(&mut self, ack: Seq, blocks: &[(Seq, Seq)], now: Instant) -> Acked {
        let mut acked = Acked::default();
        while let Some(run) = self.flight.front().copied() {
            if run.start.after(ack) >= 0 {
                break;
            }
            if run.end().after(ack) > 0 {
                self.cut(0, ack - run.start);
            }
            let Some(run) = self.flight.pop_front() else { break };
            match run.state {
                State::Flying => self.flying -= run.len,
                State::Lost => self.lost -= run.len,
                State::Sacked => self.sacked -= run.len,
            }
            if run.state != State::Sacked {
                self.arrive(&run, now, &mut acked);
            }
        }
        let released = (ack - self.una).min(self.queue.len() as u32);
        self.queue.advance(released as usize);
        acked.released = released;
        self.una = ack;
        for (from, to) in blocks {
            self.mark_sacked(*from, *to, now, &mut acked);
        }
        if self.flight.is_empty() && self.flight.capacity() > 16 {
            self.flight = VecDeque::new(); // gives its memory back
        }
        if self.queue.is_empty() {
            self.queue = BufChain::new();
        }
        acked
    }

    fn mark_sacked(&mut self, from: Seq, to: Seq, now: Instant, acked: &mut Acked) {
        // Below `una` it tells of bytes that came twice; behind `next` it is made up.
        if from.is_before(self.una) || to.after(self.next) > 0 || from.after(to) >= 0 {
            return;
        }
        let mut at = self.flight.partition_point(|run| run.end().after(from) <= 0);
        while let Some(run) = self.flight.get(at).copied() {
            if run.start.after(to) >= 0 {
                return;
            }
            let may_cut = self.flight.len() < MOST_CUT;
            if run.start.is_before(from) {
                // Without room for more runs, only whole ones count.
                if may_cut && run.state != State::Sacked {
                    self.cut(at, from - run.start);
                }
                at += 1;
                continue;
            }
            if run.end().after(to) > 0 {
                if run.state == State::Sacked || !may_cut {
                    return;
                }
                self.cut(at, to - run.start);
            }
            let run = self.flight[at];
            match run.state {
                State::Sacked => {
                    at += 1;
                    continue;
                }
                State::Flying => self.flying -= run.len,
                State::Lost => self.lost -= run.len,
            }
            self.flight[at].state = State::Sacked;
            self.sacked += run.len;
            self.arrive(&run, now, acked);
            at += 1;
        }
    }

    /// A run has arrived: what RACK and the round-trip time learn from it.
    fn arrive(&mut self, run: &Run, now: Instant, acked: &mut Acked) {
        acked.arrived += run.len;
        let rtt = now.saturating_duration_since(run.at);
        if !run.again {
            acked.rtt = Some(acked.rtt.map_or(rtt, |other| other.min(rtt)));
            if run.end().is_before(self.highest) {
                self.reordered = true;
            }
        }
        self.highest = self.highest.max(run.end());
        // It may be the first sending that has arrived, long before: then it says nothing about the second.
        let ambiguous = run.again && self.rack.is_some_and(|rack| rtt < rack.rtt / 2);
        let later = self
            .rack
            .is_none_or(|rack| run.at > rack.at || (run.at == rack.at && run.end().after(rack.end) > 0));
        if !ambiguous && later {
            self.rack = Some(Rack { at: run.at, end: run.end(), rtt });
        }
    }

    /// Marks as lost what should have arrived by now, since something sent later has. Returns when to look again, if more
    /// may be lost by then.
    pub fn find_lost(
        &mut self,
        min_rtt: Option<Duration>,
        recovering: bool,
        mss: u32,
        now: Instant,
    ) -> Option<Instant> {
        let rack = self.rack?;
        let patience = if !self.reordered && (recovering || self.sacked >= DUPLICATES * mss) {
            Duration::ZERO
        } else {
            min_rtt.unwrap_or(rack.rtt).min(rack.rtt) / 4
        };
        let mut again = None;
        for run in self.flight.iter_mut().filter(|run| run.state == State::Flying) {
            let earlier = run.at < rack.at || (run.at == rack.at && run.end().is_before(rack.end));
            if !earlier {
                continue;
            }
            let due = run.at + rack.rtt + patience;
            if due <= now {
                run.state = State::Lost;
                self.flying -= run.len;
                self.lost += run.len;
            } else {
                again = Some(again.map_or(due, |other: Instant| other.max(due)));
            }
        }
        again
    }

    /// Marks the first run as lost, for peers without SACK. Whether there was one on its way.
    pub fn lose_first(&mut self, mss: u32) -> bool {
        let Some(run) = self.flight.front().copied().filter(|run| run.state == State::Flying) else {
            return false;
        };
        self.cut(0, mss.min(run.len));
        let run = &mut self.flight[0];
        run.state = State::Lost;
        self.flying -= run.len;
        self.lost += run.len;
        true
    }

    /// Marks everything on its way as lost. What SACK has named may have been thrown away since (RFC 2018 section 8).
    pub fn lose_all(&mut self) {
        for run in &mut self.flight {
            run.state = State::Lost;
        }
        self.lost = self.flight.iter().map(|run| run.len).sum();
        (self.flying, self.sacked, self.rack) = (0, 0, None);
    }

    /// Numbers of the flight add up; for tests.
    #[cfg(test)]
    fn check(&self) {
        let sum = |state| self.flight.iter().filter(|run| run.state == state).map(|run| run.len).sum::<u32>();
        assert_eq!(
            (sum(State::Flying), sum(State::Lost), sum(State::Sacked)),
            (self.flying, self.lost, self.sacked)
        );
        let mut at = self.una;
        for run in &self.flight {
            assert_eq!(run.start, at);
            assert!(run.len > 0);
            at = run.end();
        }
        assert_eq!(at, self.next);
    }
}

/// What has these bytes to send, from number 0.
#[cfg(test)]
impl From<&[u8]> for Sender {
    fn from(bytes: &[u8]) -> Self {
        let mut sender = Self::new(Seq(0));
        sender.queue.append_copy(bytes);
        sender
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn text(sender: &Sender, start: Seq, len: u32) -> (Vec<u8>, bool) {
        let mut slices = Vec::new();
        let end = sender.slices(start, len, &mut slices);
        (slices.iter().flat_map(|slice| slice.to_vec()).collect(), end)
    }

    #[test]
    fn what_was_sent_before_something_that_arrived_is_lost() {
        let (mut sender, start) = (Sender::from(&[1; 100][..]), Instant::now());
        for at in 0..5 {
            sender.send_new(10, start + MS * at);
        }
        let now = start + MS * 50;
        let acked = sender.acknowledge(Seq(0), &[(Seq(30), Seq(50))], now);
        assert_eq!((acked.arrived, acked.released), (20, 0));
        assert_eq!(acked.rtt, Some(MS * 46), "of the run sent last");
        assert_eq!(sender.find_lost(Some(MS * 46), true, 10, now), None);
        sender.check();
        assert_eq!((sender.flying(), sender.first_lost(100)), (0, Some((Seq(0), 10))));
        sender.send_lost(4, now);
        sender.check();
        assert_eq!(sender.first_lost(100), Some((Seq(4), 6)));
        sender.acknowledge(Seq(50), &[], now + MS * 46);
        sender.check();
        assert!(!sender.has_flight() && !sender.has_lost());
        assert_eq!(sender.queued(), 50);
    }

    #[test]
    fn reordering_is_waited_for() {
        let (mut sender, start) = (Sender::from(&[1; 100][..]), Instant::now());
        (0..4).for_each(|_| sender.send_new(10, start));
        sender.acknowledge(Seq(0), &[(Seq(20), Seq(30))], start + MS * 40);
        sender.acknowledge(Seq(0), &[(Seq(10), Seq(30))], start + MS * 40);
        let again = sender.find_lost(Some(MS * 40), false, 10, start + MS * 40);
        assert_eq!(again, Some(start + MS * 50), "a quarter of the round trip more");
        assert!(!sender.has_lost());
        sender.find_lost(Some(MS * 40), false, 10, start + MS * 50);
        assert_eq!(sender.first_lost(100), Some((Seq(0), 10)));
    }

    #[test]
    fn the_end_is_a_byte_behind_the_last() {
        let (mut sender, now) = (Sender::from(&b"abc"[..]), Instant::now());
        sender.push_end();
        assert_eq!(sender.unsent(), 4);
        assert_eq!(text(&sender, Seq(0), 3), (b"abc".to_vec(), false));
        assert_eq!(text(&sender, Seq(1), 3), (b"bc".to_vec(), true));
        assert_eq!(text(&sender, Seq(3), 1), (vec![], true));
        sender.send_new(4, now);
        sender.acknowledge(Seq(3), &[], now);
        assert!(!sender.is_done());
        sender.acknowledge(Seq(4), &[], now);
        assert!(sender.is_done() && sender.unsent() == 0);
        sender.check();
    }

    proptest! {
        #[test]
        fn any_acknowledgements_leave_a_sound_flight(
            start in any::<u32>(),
            steps in prop::collection::vec((0u8..6, any::<u16>(), any::<u16>()), 0..80),
        ) {
            let mut now = Instant::now();
            let mut sender = Sender::new(Seq(start));
            let mut pushed = 0u32;
            for (kind, a, b) in steps {
                now += MS;
                let flight = sender.next() - sender.una();
                match kind {
                    0 => {
                        let bytes: Vec<u8> = (0..u32::from(a % 300)).map(|at| (pushed + at) as u8).collect();
                        pushed += bytes.len() as u32;
                        sender.push(&mut BufChain::copied(&bytes), usize::MAX);
                    }
                    1 if sender.unsent() > 0 => sender.send_new(1 + u32::from(a) % sender.unsent(), now),
                    2 => {
                        let ack = sender.una() + u32::from(a) % (flight + 1);
                        sender.acknowledge(ack, &[], now);
                    }
                    3 => {
                        let from = sender.una() + u32::from(a) % (flight + 1);
                        let to = from + u32::from(b) % 50;
                        sender.acknowledge(sender.una(), &[(from, to)], now);
                        sender.find_lost(Some(MS), a % 2 == 0, 10, now);
                    }
                    4 => {
                        if let Some((_, len)) = sender.first_lost(1 + u32::from(a)) {
                            sender.send_lost(len, now);
                        } else if let Some((_, len)) = sender.tail(1 + u32::from(a % 20)) {
                            sender.send_tail(len, now);
                        }
                    }
                    _ if a % 8 == 0 => sender.lose_all(),
                    _ => { sender.lose_first(1 + u32::from(b % 20)); }
                }
                sender.check();
                let (bytes, end) = text(&sender, sender.una(), sender.end() - sender.una());
                prop_assert!(!end);
                let first = sender.una() - Seq(start);
                prop_assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (first + at as u32) as u8));
            }
        }
    }
}
