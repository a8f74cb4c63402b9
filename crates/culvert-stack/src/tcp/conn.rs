//! One connection: the state machine of RFC 9293 with what later RFCs added, without I/O.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_wire::{Buf, BufChain};

use super::Seq;
use super::congestion::Cubic;
use super::receive::Receiver;
use super::rtt::Rtt;
use super::segment::{Blocks, Flags, HEAD, Options, Segment};
use super::send::Sender;
use crate::ip;
use crate::stack::{Config, ReadOutcome};

/// Longest that a segment which asks for no answer may wait for data to carry its acknowledgement.
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Segments at the start of a connection that are acknowledged at once, for a sender whose window is still small.
const QUICK_ACKS: u8 = 16;
/// Time-outs in a row after which the peer is gone: with the back-off, about a minute and a half.
const MOST_TIMEOUTS: u32 = 8;
/// Sendings of a SYN or the answer to one.
const MOST_SYNS: u32 = 5;
/// How long a connection that nobody here holds may take to end.
const ORPHAN: Duration = Duration::from_secs(60);
/// Duplicate acknowledgements that mean a loss, for peers without SACK.
const DUPLICATE_ACKS: u8 = 3;
/// MSS of peers that name none.
const DEFAULT_MSS: u16 = 536;
/// Least MSS that is believed, in the peer's SYN and in errors about long packets: smaller ones make us work for others.
const LEAST_MSS: u16 = 128;
/// Age at which a timestamp says nothing any more (RFC 7323 section 5.5).
const OLD_TIMESTAMP: Duration = Duration::from_secs(24 * 24 * 3600);

/// The states of RFC 9293, and one before an answer to a SYN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// A SYN has come; whether it is answered is not decided.
    Knocking,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// Why a connection ended before its streams did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Broken {
    /// The peer reset it.
    Reset,
    /// The peer refused it.
    Refused,
    /// The peer is silent.
    TimedOut,
}

/// What is to be told to whoever holds the connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Signals {
    pub(crate) connected: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Timer {
    /// Sends everything again.
    Retransmit,
    /// Sends the last bytes again, so that the answer tells what is lost.
    Probe,
    /// Looks again for what is lost.
    Reorder,
    /// Sends a byte into a closed window.
    Persist,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ack {
    None,
    Delayed(Instant),
    Now,
}

/// A segment on its way out: its head, where its payload lies, and how long the payload of each packet may be.
pub(crate) type Emit<'a> = dyn FnMut(&Segment, &[IoSlice<'_>], u16) -> bool + 'a;

/// One connection.
pub(crate) struct Conn {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    state: State,
    pub(crate) signals: Signals,
    broken: Option<Broken>,
    /// Nobody here holds it any more.
    released: bool,

    // What is sent.
    iss: Seq,
    sender: Sender,
    congestion: Cubic,
    rtt: Rtt,
    mss: u16,
    window: u32,
    most_window: u32,
    window_shift: u8,
    window_seq: Seq,
    window_ack: Seq,
    recovery: Option<Seq>,
    duplicates: u8,
    /// One segment may be sent whatever the window says.
    probe: bool,
    probed: bool,
    timer: Option<(Instant, Timer)>,
    timeouts: u32,
    syns: u32,
    syn_due: bool,
    reset_due: Option<Segment>,
    wants_room: bool,

    // What is received.
    irs: Seq,
    next: Seq,
    edge: Seq,
    shift: u8,
    limit: u32,
    receiver: Receiver,
    fin: Option<Seq>,
    ended: bool,
    ack: Ack,
    unacked: u32,
    quick: u8,
    wants_data: bool,
    /// The reader has been woken and has not read yet.
    reading: bool,

    // Options.
    sack: bool,
    stamps: bool,
    recent: u32,
    recent_at: Instant,
    /// When the clock of our timestamps began.
    born: Instant,
    linger: Option<Instant>,
}

impl Conn {
    /// A peer has sent `syn`. `iss` is the number of our first byte.
    pub(crate) fn knocking(
        local: SocketAddr,
        peer: SocketAddr,
        syn: &Segment,
        iss: Seq,
        config: &Config,
        now: Instant,
    ) -> Self {
        let mut conn = Self::new(local, peer, iss, config, now);
        conn.state = State::Knocking;
        conn.take_syn(syn, config, now);
        conn
    }

    /// A connection that is opened from here.
    pub(crate) fn connecting(
        local: SocketAddr,
        peer: SocketAddr,
        iss: Seq,
        config: &Config,
        now: Instant,
    ) -> Self {
        let mut conn = Self::new(local, peer, iss, config, now);
        (conn.sack, conn.stamps, conn.shift) = (true, true, shift_for(config.receive_window));
        conn.syn_due = true;
        conn
    }

    fn new(local: SocketAddr, peer: SocketAddr, iss: Seq, config: &Config, now: Instant) -> Self {
        let mss = config.mss(peer);
        Self {
            local,
            peer,
            state: State::SynSent,
            signals: Signals::default(),
            broken: None,
            released: false,
            iss,
            sender: Sender::new(iss + 1),
            congestion: Cubic::new(u32::from(mss), config.initial_window),
            rtt: Rtt::default(),
            mss,
            window: 0,
            most_window: 0,
            window_shift: 0,
            window_seq: Seq(0),
            window_ack: Seq(0),
            recovery: None,
            duplicates: 0,
            probe: false,
            probed: false,
            timer: None,
            timeouts: 0,
            syns: 0,
            syn_due: false,
            reset_due: None,
            wants_room: false,
            irs: Seq(0),
            next: Seq(0),
            edge: Seq(0),
            shift: 0,
            limit: config.receive_window,
            receiver: Receiver::default(),
            fin: None,
            ended: false,
            ack: Ack::None,
            unacked: 0,
            quick: QUICK_ACKS,
            wants_data: false,
            reading: false,
            sack: false,
            stamps: false,
            recent: 0,
            recent_at: now,
            born: now,
            linger: None,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// How the opening ended, if it has.
    pub(crate) fn opened(&self) -> Option<Result<(), Broken>> {
        match (self.broken, self.state) {
            (Some(why), _) => Some(Err(why)),
            (None, State::Knocking | State::SynSent | State::SynReceived) => None,
            (None, _) => Some(Ok(())),
        }
    }

    /// Takes over what the peer's SYN says.
    fn take_syn(&mut self, syn: &Segment, config: &Config, now: Instant) {
        let active = self.state == State::SynSent;
        let options = &syn.options;
        self.irs = syn.seq;
        self.next = syn.seq + 1;
        self.edge = self.next;
        self.sack = options.sack_permitted && (!active || self.sack);
        self.stamps = options.timestamps.is_some() && (!active || self.stamps);
        match options.window_scale {
            Some(shift) => {
                self.window_shift = shift;
                self.shift = shift_for(config.receive_window);
            }
            None => {
                (self.window_shift, self.shift) = (0, 0);
                self.limit = self.limit.min(u32::from(u16::MAX));
            }
        }
        if let Some((value, _)) = options.timestamps {
            (self.recent, self.recent_at) = (value, now);
        }
        let peer_mss = options.mss.unwrap_or(DEFAULT_MSS).max(LEAST_MSS);
        // The options of every segment are part of what must fit.
        let stamps = if self.stamps { 12 } else { 0 };
        self.mss = peer_mss.min(config.mss(self.peer)) - stamps;
        self.congestion = Cubic::new(u32::from(self.mss), config.initial_window);
        // The window in a SYN is never scaled.
        self.window = u32::from(syn.window);
        self.most_window = self.window;
        (self.window_seq, self.window_ack) = (syn.seq, syn.ack);
    }

    // Calls of whoever holds the connection.

    /// Answers the SYN.
    pub(crate) fn accept(&mut self) {
        if self.state == State::Knocking {
            self.state = State::SynReceived;
            self.syn_due = true;
        }
    }

    /// Takes what has come.
    pub(crate) fn read(&mut self) -> ReadOutcome {
        if std::mem::take(&mut self.reading) && matches!(self.ack, Ack::Delayed(_)) {
            self.ack_if_worth_it();
        }
        if self.receiver.ready() > 0 {
            let data = self.receiver.take();
            // The window opens only by steps that are worth a segment.
            let free = self.limit - (self.edge - self.next).min(self.limit);
            if free >= (self.limit / 2).min(2 * u32::from(self.mss).max(1)) && self.may_receive() {
                self.update_window();
            }
            return ReadOutcome::Data(data);
        }
        if let Some(broken) = self.broken {
            return ReadOutcome::Broken(broken);
        }
        if self.ended {
            return ReadOutcome::End;
        }
        self.wants_data = true;
        ReadOutcome::Blocked
    }

    /// The peer may have been held back by the window: it is told of the new one.
    fn update_window(&mut self) {
        let shut = (self.edge - self.next) < self.limit / 2;
        if shut {
            self.ack = Ack::Now;
        }
    }

    /// Takes data to be sent, as much as is let wait. Whether all of it was taken; if not, `writable` will follow.
    pub(crate) fn write(&mut self, data: &mut BufChain, limit: usize) -> Result<bool, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        if self.sender.is_ended() || !self.may_send() {
            return Err(Broken::Reset);
        }
        self.sender.push(data, limit);
        self.wants_room = !data.is_empty();
        Ok(data.is_empty())
    }

    /// Ends what is sent, behind what is queued.
    pub(crate) fn shut_down(&mut self) {
        match self.state {
            State::SynReceived | State::SynSent | State::Established => {
                self.state_after_shut_down(State::FinWait1)
            }
            State::CloseWait => self.state_after_shut_down(State::LastAck),
            _ => {}
        }
    }

    fn state_after_shut_down(&mut self, next: State) {
        self.sender.push_end();
        // Before the handshake is over, the end waits like data.
        if matches!(self.state, State::Established | State::CloseWait) {
            self.state = next;
        }
    }

    /// Breaks it: the peer gets a reset.
    pub(crate) fn abort(&mut self) {
        match self.state {
            State::Knocking => {
                let ack = self.irs + 1;
                self.reset_due = Some(self.bare(Seq(0), ack, Flags::RST.and(Flags::ACK)));
            }
            State::SynSent | State::TimeWait | State::Closed => {}
            _ => {
                self.reset_due = Some(self.bare(self.sender.next(), self.next, Flags::RST.and(Flags::ACK)));
            }
        }
        self.close();
    }

    /// Nobody holds it any more. What is queued still goes out, in order; what comes is refused.
    pub(crate) fn release(&mut self, now: Instant) {
        if self.released {
            return;
        }
        self.released = true;
        if self.state != State::TimeWait {
            self.linger = Some(now + ORPHAN);
        }
        let unread = self.receiver.ready() > 0 || self.receiver.has_gap();
        if matches!(self.state, State::Knocking | State::SynSent | State::SynReceived) || unread {
            return self.abort();
        }
        self.shut_down();
    }

    /// Whether nothing is left to do for it.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Closed && self.reset_due.is_none()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// Whether `seq` begins a connection that is younger than this one.
    pub(crate) fn is_new(&self, seq: Seq) -> bool {
        seq.after(self.next) > 0
    }

    /// Writes a SYN like the one that knocked, for an error to quote.
    pub(crate) fn encode_syn(&self, out: &mut [u8]) {
        let syn = Segment {
            source: self.peer.port(),
            target: self.local.port(),
            seq: self.irs,
            flags: Flags::SYN,
            ..Segment::default()
        };
        let mut head = [0; super::segment::MAX_HEAD];
        let len = syn.encode(&mut head);
        out.copy_from_slice(&head[..len]);
    }

    /// A packet to the peer was too long, the one that began at `seq`.
    pub(crate) fn reduce_mss(&mut self, seq: Seq, mtu: u16, now: Instant) {
        // Only one on its way can have been, and whoever cannot see it cannot name it (RFC 5927 section 7.2).
        if seq.is_before(self.sender.una()) || !seq.is_before(self.sender.next()) {
            return;
        }
        let heads = (ip::head_len(self.peer.ip()) + HEAD) as u16 + if self.stamps { 12 } else { 0 };
        let mss = mtu.saturating_sub(heads).max(LEAST_MSS);
        if mss >= self.mss {
            return;
        }
        self.mss = mss;
        self.congestion.set_mss(u32::from(mss));
        // What is on its way in longer packets will not arrive. It is no sign of a full network.
        self.sender.lose_all();
        self.arm(now);
    }

    // What comes.

    fn may_receive(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    fn may_send(&self) -> bool {
        matches!(
            self.state,
            State::Knocking | State::SynSent | State::SynReceived | State::Established | State::CloseWait
        )
    }

    /// Takes in a segment for this connection. `challenges` is asked before an answer that an attacker could call forth.
    pub(crate) fn receive(
        &mut self,
        segment: &Segment,
        payload: Buf,
        config: &Config,
        now: Instant,
        challenge: &mut dyn FnMut() -> bool,
    ) {
        match self.state {
            // The same SYN again, or a peer that has changed its mind.
            State::Knocking => {
                if segment.flags.has(Flags::RST) && segment.seq == self.next {
                    self.fail(Broken::Reset);
                } else if segment.flags == Flags::SYN {
                    self.take_syn(segment, config, now);
                }
            }
            State::SynSent => self.receive_syn_sent(segment, config, now),
            State::Closed => {}
            _ => self.receive_synchronized(segment, payload, config, now, challenge),
        }
    }

    fn receive_syn_sent(&mut self, segment: &Segment, config: &Config, now: Instant) {
        let acks = segment.flags.has(Flags::ACK);
        if acks && segment.ack != self.iss + 1 {
            if !segment.flags.has(Flags::RST) {
                self.reset_due = Some(self.bare(segment.ack, Seq(0), Flags::RST));
            }
            return;
        }
        if segment.flags.has(Flags::RST) {
            if acks {
                self.fail(Broken::Refused);
            }
            return;
        }
        // Both ends opening at once is not for a proxy.
        if !segment.flags.has(Flags::SYN) || !acks {
            return;
        }
        self.take_syn(segment, config, now);
        if self.syns == 1
            && let Some((_, echo)) = segment.options.timestamps
        {
            self.sample_stamp(echo, now);
        }
        self.establish(now);
        self.ack = Ack::Now;
    }

    fn establish(&mut self, now: Instant) {
        self.state = if self.sender.is_ended() { State::FinWait1 } else { State::Established };
        self.signals.connected = true;
        (self.timer, self.timeouts, self.syn_due) = (None, 0, false);
        self.arm(now);
    }

    fn receive_synchronized(
        &mut self,
        segment: &Segment,
        mut payload: Buf,
        config: &Config,
        now: Instant,
        challenge: &mut dyn FnMut() -> bool,
    ) {
        let flags = segment.flags;
        if self.is_old_duplicate(segment, now) && !flags.has(Flags::RST) {
            self.ack = Ack::Now;
            return;
        }
        let window = self.edge - self.next;
        let len = payload.len() as u32 + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
        let ahead = segment.seq.after(self.next);
        let behind = -i64::from(ahead);
        let acceptable = match (len, window) {
            (0, 0) => ahead == 0,
            (0, _) => ahead >= 0 && (ahead as u32) < window || ahead == 0,
            (_, 0) => ahead == 0,
            (..) => ahead < window as i32 && behind < i64::from(len),
        };
        if flags.has(Flags::RST) {
            // Only the exact number is believed (RFC 5961 section 3.2).
            if ahead == 0 {
                self.on_reset();
            } else if acceptable && challenge() {
                self.ack = Ack::Now;
            }
            return;
        }
        if !acceptable {
            if self.state == State::SynReceived && flags.has(Flags::SYN) && segment.seq == self.irs {
                self.syn_due = true; // our answer got lost
            } else if len > 0 || challenge() {
                self.ack = Ack::Now;
            }
            if self.state == State::TimeWait && flags.has(Flags::FIN) {
                self.linger = Some(now + config.time_wait);
            }
            return;
        }
        if flags.has(Flags::SYN) {
            if challenge() {
                self.ack = Ack::Now;
            }
            return;
        }
        if !flags.has(Flags::ACK) {
            return;
        }
        if self.state == State::SynReceived {
            if segment.ack != self.iss + 1 {
                self.reset_due = Some(self.bare(segment.ack, Seq(0), Flags::RST));
                return;
            }
            self.establish(now);
            // The number in the SYN's field for acknowledgements meant nothing.
            (self.window_seq, self.window_ack) = (segment.seq, segment.ack);
        }
        // An acknowledgement of what was never sent, or of what is long past (RFC 5961 section 5.2).
        let early = segment.ack.after(self.sender.next()) > 0;
        let late = self.sender.una().after(segment.ack) > self.most_window.max(1) as i32;
        if early || late {
            if challenge() {
                self.ack = Ack::Now;
            }
            return;
        }
        self.note_stamp(segment, now);
        self.acknowledge(segment, payload.is_empty(), config, now);
        if self.state == State::Closed {
            return;
        }
        if flags.has(Flags::FIN) {
            let fin = segment.seq + payload.len() as u32;
            // An end beyond the window comes again.
            if fin.after(self.edge) <= 0 {
                self.fin.get_or_insert(fin);
            }
            self.ack = Ack::Now;
        }
        if !payload.is_empty() {
            if self.released && self.may_receive() {
                // There is nobody to give it to, and the peer must not believe that there was.
                return self.abort();
            }
            if self.may_receive() {
                let room = (self.edge - segment.seq.max(self.next)) as usize
                    + self.next.after(segment.seq).max(0) as usize;
                payload.truncate(room);
                self.take_in(segment.seq, payload, now);
            } else {
                self.ack = Ack::Now;
            }
        }
        if self.fin == Some(self.next) && self.may_receive() {
            self.next += 1;
            self.edge = self.edge.max(self.next);
            self.ended = true;
            self.signals.readable |= std::mem::take(&mut self.wants_data);
            self.ack = Ack::Now;
            match self.state {
                State::Established => self.state = State::CloseWait,
                State::FinWait1 => self.state = State::Closing,
                _ => self.enter_time_wait(config, now),
            }
        }
    }

    fn take_in(&mut self, seq: Seq, payload: Buf, now: Instant) {
        if payload.is_empty() {
            self.ack = Ack::Now;
            return;
        }
        let len = payload.len() as u32;
        let had_gap = self.receiver.has_gap();
        let next = self.receiver.add(self.next, seq, payload);
        let fresh = next != self.next;
        self.next = next;
        self.unacked += len;
        if fresh && std::mem::take(&mut self.wants_data) {
            (self.signals.readable, self.reading) = (true, true);
        }
        if self.ack == Ack::None {
            self.ack = Ack::Delayed(now + DELAYED_ACK);
        }
        // What is out of order, and what closes a gap, is told at once (RFC 5681 section 4.2). What a reader is about to take
        // is told when it has: one packet then says both that it has come and that there is room again.
        if !fresh || had_gap || self.receiver.has_gap() {
            self.ack = Ack::Now;
        } else if !self.reading || self.unacked >= self.limit / 4 {
            self.ack_if_worth_it();
        }
    }

    /// At the start of a connection, and behind every second segment, an acknowledgement does not wait.
    fn ack_if_worth_it(&mut self) {
        if self.quick > 0 || self.unacked >= 2 * u32::from(self.mss) {
            self.quick = self.quick.saturating_sub(1);
            self.ack = Ack::Now;
        }
    }

    /// Whether a segment's timestamp is older than one that came before (PAWS, RFC 7323 section 5).
    fn is_old_duplicate(&self, segment: &Segment, now: Instant) -> bool {
        let Some((value, _)) = segment.options.timestamps.filter(|_| self.stamps) else { return false };
        (value.wrapping_sub(self.recent) as i32) < 0
            && now.saturating_duration_since(self.recent_at) < OLD_TIMESTAMP
    }

    fn note_stamp(&mut self, segment: &Segment, now: Instant) {
        let Some((value, _)) = segment.options.timestamps.filter(|_| self.stamps) else { return };
        // That of the segment which answers what was acknowledged last (section 4.3).
        if segment.seq.after(self.next) <= 0 && (value.wrapping_sub(self.recent) as i32) >= 0 {
            (self.recent, self.recent_at) = (value, now);
        }
    }

    fn stamp(&self, now: Instant) -> u32 {
        // Begins at 1, since some take 0 for none.
        (now.saturating_duration_since(self.born).as_millis() as u32).wrapping_add(1)
    }

    fn sample_stamp(&mut self, echo: u32, now: Instant) {
        let elapsed = self.stamp(now).wrapping_sub(echo);
        if elapsed < 60_000 {
            self.rtt.sample(Duration::from_millis(elapsed.into()));
        }
    }

    fn on_reset(&mut self) {
        match self.state {
            // Nothing is lost any more.
            State::TimeWait | State::LastAck | State::Closing => self.close(),
            _ => self.fail(Broken::Reset),
        }
    }

    fn fail(&mut self, why: Broken) {
        self.broken = Some(why);
        self.signals.broken = Some(why);
        self.receiver.clear();
        self.close();
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.sender.clear();
        (self.timer, self.linger, self.ack, self.syn_due) = (None, None, Ack::None, false);
        if self.broken.is_none() && !self.ended {
            self.broken = Some(Broken::Reset);
        }
    }

    fn enter_time_wait(&mut self, config: &Config, now: Instant) {
        self.state = State::TimeWait;
        self.timer = None;
        self.linger = Some(now + config.time_wait);
    }

    // Acknowledgements.

    fn acknowledge(&mut self, segment: &Segment, no_payload: bool, config: &Config, now: Instant) {
        let una = self.sender.una();
        let advances = segment.ack.after(una) > 0;
        let old_window = self.window;
        // Only a segment that is not older than the last one that did may set the window.
        let newer = segment.seq.after(self.window_seq) > 0
            || (segment.seq == self.window_seq && segment.ack.after(self.window_ack) >= 0);
        if newer && segment.ack.after(una) >= 0 {
            self.window = u32::from(segment.window) << self.window_shift;
            self.most_window = self.most_window.max(self.window);
            (self.window_seq, self.window_ack) = (segment.seq, segment.ack);
        }
        if segment.ack.is_before(una) {
            return;
        }
        if self.window == 0 {
            // A window may stay closed for as long as its owner answers.
            self.timeouts = 0;
        }
        let blocks: &[(Seq, Seq)] = if self.sack { segment.options.sack.as_slice() } else { &[] };
        let limited = self.sender.flying() + u32::from(self.mss) >= self.congestion.window();
        let acked = self.sender.acknowledge(segment.ack, blocks, now);
        if let Some(rtt) = acked.rtt {
            self.rtt.sample(rtt);
        }
        if advances {
            (self.timeouts, self.duplicates, self.probed) = (0, 0, false);
        }
        let recovering = self.recovery.is_some_and(|end| segment.ack.after(end) < 0);
        if !recovering {
            self.recovery = None;
        }
        let again = if self.sack {
            self.sender.find_lost(self.rtt.min(), recovering, u32::from(self.mss), now)
        } else {
            self.find_lost_without_sack(advances, recovering, no_payload && self.window == old_window);
            None
        };
        if self.sender.has_lost() && self.recovery.is_none() {
            self.recovery = Some(self.sender.next());
            self.congestion.on_loss();
        } else if acked.arrived > 0 && self.recovery.is_none() && limited {
            let rtt = self.rtt.smoothed().unwrap_or_default();
            self.congestion.on_ack(acked.arrived, rtt, now);
        }
        // What brings nothing new must not put off the time-out.
        if acked.arrived > 0 || advances || !self.sender.has_flight() {
            self.arm(now);
        }
        if let Some(again) = again {
            self.timer = Some((again, Timer::Reorder));
        }
        if acked.released > 0 && self.wants_room && self.sender.queued() <= config.send_buffer / 2 {
            self.wants_room = false;
            self.signals.writable = true;
        }
        if self.sender.is_done() {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.released {
                        self.linger = Some(now + ORPHAN);
                    }
                }
                State::Closing => self.enter_time_wait(config, now),
                State::LastAck => self.close(),
                _ => {}
            }
        }
    }

    /// NewReno (RFC 6582): three duplicates mean that the first segment is lost, and so does an acknowledgement of a part
    /// of what was on its way then.
    fn find_lost_without_sack(&mut self, advances: bool, recovering: bool, duplicate: bool) {
        let mss = u32::from(self.mss);
        if advances && recovering {
            self.sender.lose_first(mss);
        } else if !advances && duplicate && self.sender.has_flight() {
            self.duplicates = self.duplicates.saturating_add(1);
            if self.duplicates == DUPLICATE_ACKS && !recovering {
                self.sender.lose_first(mss);
            }
        }
    }

    // Time.

    /// Sets the timer for what is on its way, or for a window that is closed.
    fn arm(&mut self, now: Instant) {
        let timeout = self.rtt.timeout();
        self.timer = if self.sender.has_flight() {
            let smoothed = self.rtt.smoothed().filter(|_| {
                self.sack
                    && !self.probed
                    && self.recovery.is_none()
                    && self.timeouts == 0
                    && !self.sender.has_lost()
            });
            match smoothed {
                Some(smoothed) => {
                    // A single segment may be acknowledged late (RFC 8985 section 7.2).
                    let delay =
                        if self.sender.is_single() { Duration::from_millis(200) } else { Duration::ZERO };
                    let probe = smoothed * 2 + delay;
                    if probe < timeout {
                        Some((now + probe.max(Duration::from_millis(2)), Timer::Probe))
                    } else {
                        Some((now + timeout, Timer::Retransmit))
                    }
                }
                None => Some((now + timeout, Timer::Retransmit)),
            }
        } else if self.sender.unsent() > 0
            && matches!(
                self.state,
                State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck
            )
        {
            Some((now + timeout, Timer::Persist))
        } else {
            None
        };
    }

    /// When [`Conn::on_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let delayed = match self.ack {
            Ack::Delayed(at) => Some(at),
            Ack::None | Ack::Now => None,
        };
        [self.timer.map(|(at, _)| at), delayed, self.linger].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.linger.is_some_and(|at| at <= now) {
            self.linger = None;
            match self.state {
                State::TimeWait => self.close(),
                _ if self.released => return self.abort(),
                _ => {}
            }
        }
        if let Ack::Delayed(at) = self.ack
            && at <= now
        {
            self.ack = Ack::Now;
        }
        let Some((_, timer)) = self.timer.filter(|(at, _)| *at <= now) else { return };
        self.timer = None;
        match timer {
            Timer::Reorder => {
                let again =
                    self.sender.find_lost(self.rtt.min(), self.recovery.is_some(), u32::from(self.mss), now);
                if self.sender.has_lost() && self.recovery.is_none() {
                    self.recovery = Some(self.sender.next());
                    self.congestion.on_loss();
                }
                self.arm(now);
                if let Some(again) = again {
                    self.timer = Some((again, Timer::Reorder));
                }
            }
            Timer::Probe => {
                (self.probe, self.probed) = (true, true);
                self.arm(now);
            }
            Timer::Persist => {
                self.rtt.back_off();
                self.timeouts += 1;
                if self.timeouts > MOST_TIMEOUTS {
                    return self.fail(Broken::TimedOut);
                }
                self.probe = true;
                self.arm(now);
            }
            Timer::Retransmit => {
                self.rtt.back_off();
                if matches!(self.state, State::SynSent | State::SynReceived) {
                    if self.syns >= MOST_SYNS {
                        return self.fail(Broken::TimedOut);
                    }
                    self.syn_due = true;
                    return;
                }
                self.timeouts += 1;
                if self.timeouts > MOST_TIMEOUTS {
                    return self.fail(Broken::TimedOut);
                }
                if self.timeouts == 1 && self.window > 0 {
                    self.congestion.on_timeout();
                }
                self.recovery = Some(self.sender.next());
                self.sender.lose_all();
                self.arm(now);
            }
        }
    }

    // What goes.

    fn bare(&self, seq: Seq, ack: Seq, flags: Flags) -> Segment {
        Segment {
            source: self.local.port(),
            target: self.peer.port(),
            seq,
            ack,
            flags,
            window: 0,
            options: Options::default(),
        }
    }

    /// Sends what is due. `false` if `emit` took no more, so that something is left.
    ///
    /// `most` is the longest payload of a train of segments.
    pub(crate) fn transmit(&mut self, now: Instant, most: u32, config: &Config, emit: &mut Emit<'_>) -> bool {
        if let Some(reset) = self.reset_due {
            if !emit(&reset, &[], 0) {
                return false;
            }
            self.reset_due = None;
        }
        if self.syn_due && !self.transmit_syn(now, config, emit) {
            return false;
        }
        if matches!(self.state, State::Knocking | State::SynSent | State::SynReceived | State::Closed) {
            return true;
        }
        self.transmit_data(now, most, emit) && (self.ack != Ack::Now || self.transmit_ack(now, emit))
    }

    fn transmit_syn(&mut self, now: Instant, config: &Config, emit: &mut Emit<'_>) -> bool {
        let passive = self.state == State::SynReceived;
        let mut segment =
            self.bare(self.iss, self.next, if passive { Flags::SYN.and(Flags::ACK) } else { Flags::SYN });
        if !passive {
            segment.ack = Seq(0);
        }
        let scaled = !passive || self.shift > 0 || self.window_shift > 0;
        segment.options = Options {
            mss: Some(config.mss(self.peer)),
            window_scale: scaled.then_some(self.shift),
            sack_permitted: self.sack,
            timestamps: self.stamps.then(|| (self.stamp(now), if passive { self.recent } else { 0 })),
            sack: Blocks::default(),
        };
        segment.window = u16::try_from(self.limit).unwrap_or(u16::MAX);
        if !emit(&segment, &[], 0) {
            return false;
        }
        if passive {
            self.edge = self.edge.max(self.next + u32::from(segment.window));
        }
        self.syn_due = false;
        self.syns += 1;
        self.timer = Some((now + self.rtt.timeout(), Timer::Retransmit));
        true
    }

    fn transmit_data(&mut self, now: Instant, most: u32, emit: &mut Emit<'_>) -> bool {
        let mss = u32::from(self.mss);
        let most = (most / mss).max(1) * mss;
        loop {
            let budget = self.congestion.window().saturating_sub(self.sender.flying());
            let probing = self.probe;
            if let Some((start, len)) = self.sender.first_lost(most) {
                // The first of a recovery goes out whatever is on its way.
                if budget == 0 && self.sender.flying() > 0 {
                    break;
                }
                let len = len.min(budget.max(mss));
                if !self.emit_run(start, len, now, emit) {
                    return false;
                }
                self.sender.send_lost(len, now);
                self.probe = false;
            } else if let Some(len) = self.next_len(most, budget) {
                if !self.emit_run(self.sender.next(), len, now, emit) {
                    return false;
                }
                self.sender.send_new(len, now);
                self.probe = false;
            } else if probing {
                self.probe = false;
                if let Some((start, len)) = self.sender.tail(mss) {
                    if !self.emit_run(start, len, now, emit) {
                        return false;
                    }
                    self.sender.send_tail(len, now);
                } else {
                    break;
                }
            } else {
                break;
            }
            if !matches!(self.timer, Some((_, Timer::Retransmit | Timer::Probe | Timer::Reorder))) {
                self.arm(now);
            }
        }
        if self.timer.is_none() && self.sender.unsent() > 0 {
            self.arm(now); // the window is closed
        }
        true
    }

    /// How many new bytes may be sent now.
    fn next_len(&self, most: u32, budget: u32) -> Option<u32> {
        let mss = u32::from(self.mss);
        let unsent = self.sender.unsent();
        if unsent == 0 || !self.sender.has_room() {
            return None;
        }
        let sent = self.sender.next() - self.sender.una();
        let room = self.window.saturating_sub(sent);
        let idle = !self.sender.has_flight();
        if room == 0 {
            // One byte into a closed window, or an end that stands alone: it takes no room.
            let only_end = unsent == 1 && self.sender.is_ended();
            return ((self.probe && idle) || only_end).then_some(1);
        }
        let len = unsent.min(most).min(room);
        let len = if budget >= len { len } else { budget / mss * mss };
        if len == 0 {
            return idle.then(|| unsent.min(mss).min(room));
        }
        // A part of a segment is sent if nothing more is there, or if the window never was larger; else it waits for room
        // (silly window syndrome, RFC 9293 section 3.8.6.2.1).
        let partial = len % mss;
        if partial > 0 && len < unsent && len == room {
            let whole = len - partial;
            if whole > 0 {
                return Some(whole);
            }
            return (idle || len >= self.most_window / 2 || self.probe).then_some(len);
        }
        Some(len)
    }

    fn emit_run(&mut self, start: Seq, len: u32, now: Instant, emit: &mut Emit<'_>) -> bool {
        let (window, edge) = self.window_to_tell();
        let mut segment = self.bare(start, self.next, Flags::ACK);
        segment.window = window;
        segment.options.timestamps = self.stamps.then(|| (self.stamp(now), self.recent));
        let mut slices = Vec::with_capacity(8);
        if self.sender.slices(start, len, &mut slices) {
            segment.flags = segment.flags.and(Flags::FIN);
        }
        if start + len == self.sender.end() {
            segment.flags = segment.flags.and(Flags::PSH);
        }
        if !emit(&segment, &slices, self.mss) {
            return false;
        }
        self.edge = edge;
        // With a gap, the acknowledgement has to say more than fits here.
        if !self.receiver.has_gap() {
            self.acked();
        }
        true
    }

    fn transmit_ack(&mut self, now: Instant, emit: &mut Emit<'_>) -> bool {
        let (window, edge) = self.window_to_tell();
        let mut segment = self.bare(self.sender.next(), self.next, Flags::ACK);
        segment.window = window;
        segment.options.timestamps = self.stamps.then(|| (self.stamp(now), self.recent));
        if self.sack && self.receiver.has_gap() {
            segment.options.sack = self.receiver.blocks();
            segment.options.sack.truncate(if self.stamps { 3 } else { 4 });
        }
        if !emit(&segment, &[], 0) {
            return false;
        }
        self.edge = edge;
        self.acked();
        true
    }

    fn acked(&mut self) {
        (self.ack, self.unacked) = (Ack::None, 0);
    }

    /// The window as it stands in a head, and its right edge, which never goes back.
    fn window_to_tell(&self) -> (u16, Seq) {
        let free = self.limit.saturating_sub(self.receiver.ready() as u32);
        let old = self.edge - self.next;
        // A small step is not worth telling; it would only call forth small segments.
        let step = (self.limit / 2).min(u32::from(self.mss));
        let window = if free >= old + step { free } else { old };
        // Rounded down: a peer may see it shrink by less than the scale can say (RFC 7323 section 2.4), and what it sends up
        // to the old edge is taken all the same. Rounded up it would never close.
        let scaled = (window >> self.shift).min(u32::from(u16::MAX));
        let edge = self.edge.max(self.next + (scaled << self.shift));
        (scaled as u16, edge)
    }
}

/// The scale with which 16 bits can say `window`.
fn shift_for(window: u32) -> u8 {
    (0..14).find(|shift| window >> shift <= u32::from(u16::MAX)).unwrap_or(14)
}
