//! Which frames are sent: where the padding ends, and how.

use std::collections::VecDeque;

use culvert_core::Half;
use culvert_wire::{Buf, BufChain, Room};

use super::filter::Filter;
use super::frame::{self, Command, MAX_CONTENT};
use super::records::Records;
use crate::random::below;
use crate::vless::codec::Id;

/// Content below this many bytes is padded to about as much, where TLS is inside.
const LONG: usize = 900;
const LONG_SPREAD: u32 = 500;
const SHORT_SPREAD: u32 = 256;

/// What becomes of the bytes behind what was framed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// They are framed, too.
    Padding,
    /// They are sent inside the outer TLS as they are.
    Plain,
    /// They are sent on the socket as they are.
    Direct,
}

/// The sender of one direction.
#[derive(Debug)]
pub struct Writer {
    /// Until the first frame is made.
    id: Option<Id>,
    mode: Mode,
    records: Records,
    /// Made and not taken. One frame is one record of the outer TLS, so they are taken one by one.
    frames: VecDeque<Buf>,
}

impl Writer {
    /// One that sends this id first.
    #[must_use]
    pub fn new(id: Id) -> Self {
        Self { id: Some(id), mode: Mode::Padding, records: Records::default(), frames: VecDeque::new() }
    }

    /// What becomes of the bytes behind the frames.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether no frame has been made yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.id.is_some()
    }

    /// The next frame that was made.
    pub fn next_frame(&mut self) -> Option<Buf> {
        self.frames.pop_front()
    }

    /// Whether frames wait to be taken.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Makes a frame without content, which hides how long what goes before it is.
    pub fn pad(&mut self, room: Room) {
        let padding = padding(0, true);
        let frame = frame::encode(self.id.take(), Command::Continue, &mut BufChain::new(), 0, padding, room);
        self.frames.push_back(frame);
    }

    /// Makes frames of a packet. What is left of it comes behind them, as [`Writer::mode`] says.
    pub fn frame(&mut self, filter: &mut Filter, packet: &mut BufChain, room: Room) {
        filter.see(Half::Write, packet);
        let found = self.records.see(packet);
        let (mut rest, last) = match found.last_end {
            // The next byte on the wire begins a record, or those who watch would see a stream that is broken.
            Some(end) if found.begins_with_data && filter.is_tls() && filter.is_tls13() => {
                (end, Command::Direct)
            }
            Some(end) if found.begins_with_data && filter.is_tls() && filter.is_decided() => {
                (end, Command::End)
            }
            _ if filter.gives_up() => (packet.len().min(MAX_CONTENT), Command::End),
            _ => (packet.len(), Command::Continue),
        };
        while rest > 0 {
            let count = rest.min(MAX_CONTENT);
            rest -= count;
            let command = if rest == 0 { last } else { Command::Continue };
            let padding = padding(count, filter.is_tls());
            self.frames.push_back(frame::encode(self.id.take(), command, packet, count, padding, room));
        }
        self.mode = match last {
            Command::Continue => Mode::Padding,
            Command::End => Mode::Plain,
            Command::Direct => Mode::Direct,
        };
    }
}

fn padding(content: usize, long: bool) -> usize {
    if long && content < LONG {
        below(LONG_SPREAD) as usize + LONG - content
    } else {
        below(SHORT_SPREAD) as usize
    }
}
