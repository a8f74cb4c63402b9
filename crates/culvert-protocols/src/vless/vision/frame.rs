//! Frames: content among padding.

use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};

use crate::vless::codec::Id;

/// Longest frame with everything around it: what the other programs read at a time.
pub const MAX_FRAME: usize = 8192;
/// Bytes of a frame besides content and padding.
pub const HEAD: usize = 5;
/// The id before the first frame of a direction.
pub const ID: usize = 16;
/// Most content in one frame.
pub const MAX_CONTENT: usize = MAX_FRAME - ID - HEAD;

/// What comes behind a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// Another frame.
    Continue,
    /// Bytes as they are, inside the outer TLS.
    End,
    /// Bytes as they are, on the socket.
    Direct,
}

impl Command {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Continue,
            1 => Self::End,
            2 => Self::Direct,
            _ => return None,
        })
    }

    fn byte(self) -> u8 {
        match self {
            Self::Continue => 0,
            Self::End => 1,
            Self::Direct => 2,
        }
    }
}

/// Takes up to [`MAX_CONTENT`] bytes from the front of `data` and makes them a frame, with `id` before it and `padding`
/// zeros behind, in memory with `room` around it. What is too much padding is left out.
pub fn encode(
    id: Option<Id>,
    command: Command,
    data: &mut BufChain,
    count: usize,
    padding: usize,
    room: Room,
) -> Buf {
    debug_assert!(count <= MAX_CONTENT && count <= data.len());
    let padding = padding.min(MAX_CONTENT - count);
    let mut frame = Buf::new(ID + HEAD + count + padding, room.head, room.tail);
    if let Some(id) = id {
        frame.append(&id.0);
    }
    frame.append(&[command.byte()]);
    frame.append(&(count as u16).to_be_bytes());
    frame.append(&(padding as u16).to_be_bytes());
    let taken = data.peek(&mut frame.spare_mut()[..count]);
    frame.grow(taken);
    data.advance(taken);
    frame.spare_mut()[..padding].fill(0);
    frame.grow(padding);
    frame
}

/// What the reader of a direction is at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing is known yet: the id must come first, or there are no frames at all.
    Start,
    /// A frame's head is to come.
    Head,
    /// Inside of a frame.
    Inside { command: Command, content: usize, padding: usize },
    /// There are no more frames.
    Plain { direct: bool },
}

/// Takes the frames of one direction apart, however they are cut.
#[derive(Debug)]
pub struct Unpadder {
    id: Id,
    state: State,
    /// The beginning of a head or an id.
    held: BufChain,
}

impl Unpadder {
    /// For a direction that begins with this id.
    #[must_use]
    pub fn new(id: Id) -> Self {
        Self { id, state: State::Start, held: BufChain::new() }
    }

    /// Whether bytes now come as they are.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.state, State::Plain { .. })
    }

    /// Whether bytes now come as they are, outside the outer TLS.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.state == State::Plain { direct: true }
    }

    /// Takes bytes in and gives the content among them. An empty chain means that more must come.
    ///
    /// # Errors
    /// They are no frames.
    pub fn take_in(&mut self, mut data: BufChain) -> Result<BufChain, DecodeError> {
        if !self.held.is_empty() {
            self.held.append(&mut data);
            data = std::mem::take(&mut self.held);
        }
        let mut content = BufChain::new();
        loop {
            match &mut self.state {
                State::Start => {
                    let mut seen = [0; ID];
                    let count = data.peek(&mut seen);
                    if seen[..count] != self.id.0[..count] {
                        self.state = State::Plain { direct: false };
                    } else if count < ID {
                        self.held = data;
                        return Ok(content);
                    } else {
                        data.advance(ID);
                        self.state = State::Head;
                    }
                }
                State::Head => {
                    let mut head = [0; HEAD];
                    if data.peek(&mut head) < HEAD {
                        self.held = data;
                        return Ok(content);
                    }
                    let mut r = Reader::new(&head);
                    let command =
                        Command::from_byte(r.u8()?).ok_or(DecodeError::Invalid("Vision command"))?;
                    let (content, padding) = (r.u16()?.into(), r.u16()?.into());
                    data.advance(HEAD);
                    self.state = State::Inside { command, content, padding };
                }
                State::Inside { command, content: rest, padding } => {
                    let count = data.len().min(*rest);
                    content.append(&mut data.take_front(count));
                    *rest -= count;
                    if *rest > 0 {
                        return Ok(content);
                    }
                    let count = data.len().min(*padding);
                    data.advance(count);
                    *padding -= count;
                    if *padding > 0 {
                        return Ok(content);
                    }
                    self.state = match command {
                        Command::Continue => State::Head,
                        Command::End => State::Plain { direct: false },
                        Command::Direct => State::Plain { direct: true },
                    };
                }
                State::Plain { .. } => {
                    content.append(&mut data);
                    return Ok(content);
                }
            }
        }
    }

    /// The stream has ended: what is held, where that can have been the beginning of plain bytes.
    ///
    /// # Errors
    /// It ends inside of a frame.
    pub fn end(&mut self) -> Result<BufChain, DecodeError> {
        match self.state {
            State::Start | State::Plain { .. } => {
                self.state = State::Plain { direct: false };
                Ok(std::mem::take(&mut self.held))
            }
            State::Head if self.held.is_empty() => Ok(BufChain::new()),
            State::Head | State::Inside { .. } => Err(DecodeError::Incomplete),
        }
    }
}

/// Fed with random bytes: however they are cut, the same content comes out.
pub fn fuzz_frames(bytes: &[u8]) {
    let id = Id(bytes.first_chunk().copied().unwrap_or_default());
    let read = |step: usize| {
        let mut unpadder = Unpadder::new(id);
        let mut content = Vec::new();
        for part in bytes.chunks(step) {
            match unpadder.take_in(BufChain::copied(part)) {
                Ok(more) => content.extend(more.to_vec()),
                Err(error) => return (content, Some(error)),
            }
        }
        match unpadder.end() {
            Ok(more) => content.extend(more.to_vec()),
            Err(error) => return (content, Some(error)),
        }
        (content, None)
    };
    let step = 1 + usize::from(bytes.last().copied().unwrap_or_default());
    let (whole, cut) = (read(bytes.len().max(1)), read(step));
    assert_eq!(whole.1, cut.1);
    // Where there is a fault, what came before it may have been given out or not.
    assert!(whole.1.is_some() || whole.0 == cut.0);
}
