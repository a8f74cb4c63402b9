//! The half of a conn that opens.

use std::io;

use culvert_core::NoBypass;
use culvert_wire::{Buf, BufChain, Room};
use thiserror::Error;
use tokio::io::ReadBuf;

use crate::error::alert_name;
use crate::record::{ContentType, HEADER, MAX_DATA, Opener, RecordError, TAG};
use crate::tickets::Tickets;

/// Records in a row that carry no data: empty ones, warnings, handshake messages. As many as Go allows.
pub(super) const MAX_USELESS: u8 = 16;
/// The longest handshake message: a session ticket with everything in it.
const MAX_MESSAGE: usize = 1 << 16;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const WARNING: u8 = 1;

/// Why reading cannot go on.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub(super) enum Fault {
    #[error("TLS: {0}")]
    Record(#[from] RecordError),
    #[error("TLS: the stream ended inside a record")]
    Cut,
    #[error("TLS: the peer broke off: {}", alert_name(*.0))]
    Alert(u8),
    #[error("TLS: a handshake message that cannot come here")]
    Message,
    #[error("TLS: too many records without data")]
    Useless,
    #[error("TLS: the stream has failed before")]
    Failed,
}

impl Fault {
    /// What the peer is told; nothing if it is gone or said so itself.
    pub(super) fn alert(&self) -> Option<u8> {
        match self {
            Self::Record(error) => Some(error.alert()),
            Self::Message | Self::Useless => Some(10),
            Self::Cut | Self::Alert(_) | Self::Failed => None,
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Cut => io::ErrorKind::UnexpectedEof,
            Fault::Alert(_) => io::ErrorKind::ConnectionAborted,
            Fault::Record(_) | Fault::Message | Fault::Useless => io::ErrorKind::InvalidData,
            Fault::Failed => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, fault)
    }
}

enum State {
    Open(Opener),
    /// The peer has said goodbye, or the lower stream has ended between two records.
    Ended,
    Failed,
    /// Bytes come from the lower stream as they are.
    Bypassed,
}

pub(super) struct Reading {
    state: State,
    /// Read and not opened. After [`Reading::open`] it is empty, or the beginning of a record in one piece, or whatever
    /// stands from a fault on.
    raw: BufChain,
    /// What will be reported once the data in front of it is taken.
    later: Option<Fault>,
    /// Opened and not taken; after a bypass, what was read and never opened.
    plain: BufChain,
    /// The beginning of a handshake message that goes on in another record.
    message: Vec<u8>,
    /// Records without data since the last one with.
    useless: u8,
    /// The peer asks for new keys from us.
    wants_update: bool,
    tickets: Option<Tickets>,
}

impl Reading {
    pub(super) fn new(opener: Opener, raw: BufChain, tickets: Option<Tickets>) -> Self {
        Self {
            state: State::Open(opener),
            raw,
            later: None,
            plain: BufChain::new(),
            message: Vec::new(),
            useless: 0,
            wants_update: false,
            tickets,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.plain.is_empty() && self.message.capacity() == 0
    }

    pub(super) fn into_opener(self) -> Option<Opener> {
        match self.state {
            State::Open(opener) => Some(opener),
            State::Ended | State::Failed | State::Bypassed => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    pub(super) fn is_bypassed(&self) -> bool {
        matches!(self.state, State::Bypassed)
    }

    pub(super) fn holds_plain(&self) -> bool {
        !self.plain.is_empty()
    }

    pub(super) fn take_plain(&mut self) -> BufChain {
        std::mem::take(&mut self.plain)
    }

    pub(super) fn keep_plain(&mut self, opened: BufChain) {
        self.plain = opened;
    }

    pub(super) fn read_plain(&mut self, to: &mut ReadBuf<'_>) {
        while to.remaining() > 0 && !self.plain.is_empty() {
            let front = self.plain.front();
            let count = front.len().min(to.remaining());
            to.put_slice(&front[..count]);
            self.plain.advance(count);
        }
    }

    pub(super) fn take_update_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_update)
    }

    /// From here on bytes come as they are: first what was opened, then what was read and not opened, then the lower
    /// stream. A record that did not open may well be the first bytes of this kind, so it was left as it came.
    pub(super) fn bypass(&mut self) -> Result<(), NoBypass> {
        match self.state {
            State::Open(_) => {
                self.state = State::Bypassed;
                self.plain.append(&mut self.raw);
                self.later = None;
                self.tickets = None;
                Ok(())
            }
            State::Bypassed => Ok(()),
            State::Ended | State::Failed => Err(NoBypass),
        }
    }

    /// The lower stream has ended.
    pub(super) fn end_of_lower(&mut self) -> Result<(), Fault> {
        if self.raw.is_empty() && self.message.is_empty() {
            self.state = State::Ended;
            return Ok(());
        }
        self.state = State::Failed;
        Err(Fault::Cut)
    }

    /// Takes bytes in from the lower stream: first they complete the record of which a part is held.
    pub(super) fn take_in(&mut self, mut more: BufChain) {
        let State::Open(opener) = &self.state else { return };
        if let Some(mut part) = self.raw.pop_front() {
            while let Ok(missing @ 1..) = missing(opener, &part)
                && !more.is_empty()
            {
                if part.spare() < missing {
                    part = moved(&part, part.len() + missing);
                }
                let front = more.front();
                let count = front.len().min(missing);
                part.append(&front[..count]);
                more.advance(count);
            }
            self.raw.push_back(part);
        }
        self.raw.append(&mut more);
    }

    /// Opens the whole records among the raw bytes. An empty chain without an error means that more must come.
    ///
    /// Data in front of a fault comes out first, and the fault with the next call.
    pub(super) fn open(&mut self, room: Room) -> Result<BufChain, Fault> {
        let mut opened = BufChain::new();
        let outcome = match self.later.take() {
            Some(fault) => Err(fault),
            None => self.open_all(room, &mut opened),
        };
        match outcome {
            Ok(()) => Ok(opened),
            Err(fault) if !opened.is_empty() => {
                self.later = Some(fault);
                Ok(opened)
            }
            Err(fault) => {
                self.state = State::Failed;
                self.raw = BufChain::new();
                self.tickets = None;
                Err(fault)
            }
        }
    }

    fn open_all(&mut self, room: Room, opened: &mut BufChain) -> Result<(), Fault> {
        if matches!(self.state, State::Failed) {
            return Err(Fault::Failed);
        }
        while let Some(piece) = self.raw.pop_front() {
            let State::Open(opener) = &self.state else {
                // The peer has said goodbye: what it sent behind that is of no interest.
                self.raw = BufChain::new();
                return Ok(());
            };
            match missing(opener, &piece) {
                // In its own memory a record that does not open is lost, so this is not for one behind others.
                Ok(0) if opened.is_empty() && fills(opener, &piece) && has_room(&piece, room) => {
                    self.open_alone(piece, opened)?;
                }
                Ok(0) => self.open_several(piece, room, opened)?,
                Ok(_) if self.raw.is_empty() => {
                    self.keep_part(piece);
                    return Ok(());
                }
                Ok(_) => {
                    // The lower stream cut the record between two pieces.
                    let rest = std::mem::take(&mut self.raw);
                    self.raw.push_back(piece);
                    self.take_in(rest);
                }
                Err(error) => {
                    self.raw.push_front(piece);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Keeps the beginning of a record, in memory of its own size where it would hold on to that of a long read.
    fn keep_part(&mut self, part: Buf) {
        let memory = part.head() + part.len() + part.spare();
        self.raw.push_back(if memory > 2 * MAX_DATA { moved(&part, part.len()) } else { part });
    }

    /// Opens a piece that is exactly one record in its own memory.
    fn open_alone(&mut self, mut piece: Buf, opened: &mut BufChain) -> Result<(), Fault> {
        let State::Open(opener) = &mut self.state else { return Ok(()) };
        let (kind, data) = opener.open(&mut piece)?;
        piece.truncate(data.end);
        piece.advance(data.start);
        if kind == ContentType::Data {
            self.count_data(piece.len())?;
            opened.push_back(piece);
            return Ok(());
        }
        self.control(kind, &piece)
    }

    /// Opens the whole records of a piece one behind the other into new memory; the rest of the piece goes back. So does
    /// a record that does not open: after a [bypass](Reading::bypass) it may be the first of bytes that are no records.
    fn open_several(&mut self, mut piece: Buf, room: Room, opened: &mut BufChain) -> Result<(), Fault> {
        let mut joined = Joined { room, expected: piece.len(), current: None };
        let outcome = loop {
            let State::Open(opener) = &mut self.state else { break Ok(()) };
            let Ok(Some(len)) = opener.record_len(&piece) else { break Ok(()) };
            if len > piece.len() {
                break Ok(());
            }
            let space = opener.space_for(len);
            let to = joined.with_space(space, opened);
            let (kind, count) = match opener.open_into(&piece[..len], &mut to.spare_mut()[..space]) {
                Ok(found) => found,
                Err(error) => break Err(error.into()),
            };
            piece.advance(len);
            if kind == ContentType::Data {
                if let Err(fault) = self.count_data(count) {
                    break Err(fault);
                }
                to.grow(count);
            } else {
                let content = to.spare_mut()[..count].to_vec();
                if let Err(fault) = self.control(kind, &content) {
                    break Err(fault);
                }
            }
        };
        opened.extend(joined.current);
        self.raw.push_front(piece);
        outcome
    }

    fn count_data(&mut self, count: usize) -> Result<(), Fault> {
        if !self.message.is_empty() {
            return Err(Fault::Message);
        }
        if count == 0 {
            return self.count_useless();
        }
        self.useless = 0;
        // A server that gives tickets does so before its first data.
        self.tickets = None;
        Ok(())
    }

    fn count_useless(&mut self) -> Result<(), Fault> {
        self.useless += 1;
        if self.useless > MAX_USELESS { Err(Fault::Useless) } else { Ok(()) }
    }

    /// Handles a record that carries no data for the holder.
    fn control(&mut self, kind: ContentType, content: &[u8]) -> Result<(), Fault> {
        if kind != ContentType::Handshake && !self.message.is_empty() {
            return Err(Fault::Message);
        }
        match kind {
            ContentType::Alert => self.alert(content),
            ContentType::Handshake => self.handshake(content),
            ContentType::ChangeCipherSpec | ContentType::Data => Err(RecordError::Unexpected.into()),
        }
    }

    fn alert(&mut self, content: &[u8]) -> Result<(), Fault> {
        match *content {
            [_, CLOSE_NOTIFY] => {
                self.state = State::Ended;
                Ok(())
            }
            [_, USER_CANCELED] => self.count_useless(),
            // TLS 1.3 has no other warnings, whatever the level says.
            [WARNING, _] if !self.is_tls13() => self.count_useless(),
            [_, description] => Err(Fault::Alert(description)),
            _ => Err(Fault::Message),
        }
    }

    /// Handshake messages may share records and may be cut by them.
    fn handshake(&mut self, content: &[u8]) -> Result<(), Fault> {
        self.count_useless()?;
        // TLS 1.2 has but one message for this place, the wish to renegotiate, which is never granted.
        if content.is_empty() || !self.is_tls13() {
            return Err(Fault::Message);
        }
        self.message.extend_from_slice(content);
        while let Some(&[kind, high, middle, low]) = self.message.first_chunk::<4>() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if len > MAX_MESSAGE {
                return Err(Fault::Message);
            }
            if self.message.len() < 4 + len {
                return Ok(());
            }
            let rest = self.message.split_off(4 + len);
            let message = std::mem::replace(&mut self.message, rest);
            self.message(kind, &message[4..])?;
        }
        Ok(())
    }

    fn message(&mut self, kind: u8, body: &[u8]) -> Result<(), Fault> {
        match (kind, body) {
            (NEW_SESSION_TICKET, body) => {
                if let Some(tickets) = &mut self.tickets {
                    tickets.keep(body);
                }
                Ok(())
            }
            // The next record is under the next keys, so nothing may follow in this one.
            (KEY_UPDATE, &[request @ 0..=1]) if self.message.is_empty() => {
                if let State::Open(opener) = &mut self.state {
                    opener.update_keys();
                }
                self.wants_update |= request == 1;
                Ok(())
            }
            _ => Err(Fault::Message),
        }
    }

    fn is_tls13(&self) -> bool {
        matches!(&self.state, State::Open(opener) if opener.is_tls13())
    }
}

/// How many bytes the record at the front of `part` still lacks: first for its header, then for all of it.
fn missing(opener: &Opener, part: &[u8]) -> Result<usize, RecordError> {
    Ok(match opener.record_len(part)? {
        None => HEADER - part.len(),
        Some(len) => len.saturating_sub(part.len()),
    })
}

/// Whether `piece` is one whole record and nothing else.
fn fills(opener: &Opener, piece: &[u8]) -> bool {
    opener.record_len(piece) == Ok(Some(piece.len()))
}

/// Whether the data of the record in `piece` will have the room that the holder wants: the header becomes room.
fn has_room(piece: &Buf, room: Room) -> bool {
    piece.head() + HEADER >= room.head && piece.spare() + TAG >= room.tail
}

/// The same bytes in memory for `capacity`.
fn moved(bytes: &[u8], capacity: usize) -> Buf {
    let mut buf = Buf::new(capacity, 0, 0);
    buf.append(bytes);
    buf
}

/// Where the data of several records is put together.
struct Joined {
    room: Room,
    /// At most this many bytes will come in all.
    expected: usize,
    current: Option<Buf>,
}

impl Joined {
    /// A piece whose spare takes `space` bytes and leaves the tail that is wanted. The last of these bytes are not data,
    /// so what fits into a record of `room.max` fits here.
    fn with_space(&mut self, space: usize, opened: &mut BufChain) -> &mut Buf {
        let Room { head, tail, max } = self.room;
        if let Some(full) = self
            .current
            .take_if(|piece| piece.spare() < space + tail || piece.len() + space > max.saturating_add(1))
        {
            opened.push_back(full);
        }
        let capacity = self.expected.min(max.saturating_add(1)).max(space);
        self.current.get_or_insert_with(|| Buf::new(capacity, head, tail))
    }
}
