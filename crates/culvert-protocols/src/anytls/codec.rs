//! The login, frames and settings, from bytes and to bytes.

use aws_lc_rs::digest::{SHA256, digest};
use culvert_wire::{Buf, BufChain, DecodeError, Reader};

/// Length of a key: a SHA-256.
pub const KEY_LEN: usize = 32;

/// What a client proves itself with.
pub type Key = [u8; KEY_LEN];

/// Bytes before the data of a frame.
pub const HEAD: usize = 7;

/// Most data in one frame.
pub const MAX_DATA: usize = u16::MAX as usize;

/// The key that stands for `password`.
#[must_use]
pub fn key(password: &[u8]) -> Key {
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(digest(&SHA256, password).as_ref());
    key
}

/// Writes the login: the key, and `padding` zeros behind their number.
pub fn encode_login(key: &Key, padding: u16, out: &mut Vec<u8>) {
    out.extend(key);
    out.extend(padding.to_be_bytes());
    out.resize(out.len() + usize::from(padding), 0);
}

/// What a frame says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// Nothing; its data is padding.
    Waste,
    /// A stream is opened.
    Open,
    /// Data of a stream.
    Push,
    /// A stream is closed; between two Culverts see [`super::session`].
    Finish,
    /// What the client can do.
    Settings,
    /// Why the server ends the session.
    Alert,
    /// How the client shall pad.
    UpdatePadding,
    /// How the dial for a stream went.
    Opened,
    /// Is anybody there?
    HeartRequest,
    /// Yes.
    HeartResponse,
    /// What the server can do.
    ServerSettings,
    /// Something that no version defines. Its data is skipped.
    Unknown(u8),
}

impl From<u8> for Command {
    fn from(byte: u8) -> Self {
        match byte {
            0 => Self::Waste,
            1 => Self::Open,
            2 => Self::Push,
            3 => Self::Finish,
            4 => Self::Settings,
            5 => Self::Alert,
            6 => Self::UpdatePadding,
            7 => Self::Opened,
            8 => Self::HeartRequest,
            9 => Self::HeartResponse,
            10 => Self::ServerSettings,
            other => Self::Unknown(other),
        }
    }
}

impl From<Command> for u8 {
    fn from(command: Command) -> Self {
        match command {
            Command::Waste => 0,
            Command::Open => 1,
            Command::Push => 2,
            Command::Finish => 3,
            Command::Settings => 4,
            Command::Alert => 5,
            Command::UpdatePadding => 6,
            Command::Opened => 7,
            Command::HeartRequest => 8,
            Command::HeartResponse => 9,
            Command::ServerSettings => 10,
            Command::Unknown(other) => other,
        }
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// What the frame says.
    pub command: Command,
    /// Of which stream; 0 of the session.
    pub stream: u32,
    /// Bytes of data behind the head.
    pub len: u16,
}

impl Head {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] only.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let head = r.array::<HEAD>()?;
        let [command, a, b, c, d, high, low] = head;
        Ok(Self {
            command: command.into(),
            stream: u32::from_be_bytes([a, b, c, d]),
            len: u16::from_be_bytes([high, low]),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD] {
        let [a, b, c, d] = self.stream.to_be_bytes();
        let [high, low] = self.len.to_be_bytes();
        [self.command.into(), a, b, c, d, high, low]
    }
}

/// A frame with this data, of which what is beyond [`MAX_DATA`] is left out: texts of ours are shorter.
pub fn frame(command: Command, stream: u32, data: &[u8], out: &mut Vec<u8>) {
    let data = &data[..data.len().min(MAX_DATA)];
    out.extend(Head { command, stream, len: data.len() as u16 }.encode());
    out.extend(data);
}

/// What comes out of the bytes of a session.
#[derive(Debug)]
pub enum Frame {
    /// Some data of a stream, as soon as it is there; one frame may come in several of these.
    Data {
        /// The stream.
        stream: u32,
        /// At least one byte.
        data: Buf,
    },
    /// Any other frame, whole.
    Control {
        /// Its head.
        head: Head,
        /// Its data.
        data: Vec<u8>,
    },
}

/// Space before and after the data of pieces that had to be copied, for the layers they go on to.
const ROOM: usize = 64;

/// Takes frames out of the bytes of a session.
#[derive(Default)]
pub struct Frames {
    raw: BufChain,
    /// The frame under way, and how much of its data is to come.
    current: Option<(Head, usize)>,
    /// Its data so far, if it is no data of a stream.
    control: Vec<u8>,
}

impl Frames {
    /// Takes in what was read.
    pub fn take_in(&mut self, mut more: BufChain) {
        self.raw.append(&mut more);
    }

    /// The next frame, or part of one. `None` means that more must come.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            let (head, left) = match self.current {
                Some(current) => current,
                None => {
                    let mut bytes = [0; HEAD];
                    let seen = self.raw.peek(&mut bytes);
                    let Ok(head) = Head::decode(&mut Reader::new(&bytes[..seen])) else {
                        self.shrink();
                        return None;
                    };
                    self.raw.advance(HEAD);
                    (head, head.len.into())
                }
            };
            self.current = Some((head, left));
            match head.command {
                Command::Push if left > 0 => {
                    let data = take_piece(&mut self.raw, left)?;
                    self.set_left(head, left - data.len());
                    return Some(Frame::Data { stream: head.stream, data });
                }
                Command::Waste | Command::Push | Command::Unknown(_) => {
                    let skipped = left.min(self.raw.len());
                    self.raw.advance(skipped);
                    self.set_left(head, left - skipped);
                    if skipped < left {
                        return None;
                    }
                }
                _ => {
                    while self.control.len() < usize::from(head.len) {
                        if self.raw.is_empty() {
                            return None;
                        }
                        let front = self.raw.front();
                        let count = front.len().min(usize::from(head.len) - self.control.len());
                        self.control.extend_from_slice(&front[..count]);
                        self.raw.advance(count);
                    }
                    self.current = None;
                    return Some(Frame::Control { head, data: std::mem::take(&mut self.control) });
                }
            }
        }
    }

    /// Whether the last frame has come whole.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.current.is_none()
    }

    fn set_left(&mut self, head: Head, left: usize) {
        self.current = (left > 0).then_some((head, left));
    }

    /// The beginning of a head is not to hold on to the memory of a long read.
    fn shrink(&mut self) {
        if !self.raw.is_empty() {
            self.raw = BufChain::copied(&self.raw.to_vec());
        }
    }
}

/// At most `most` bytes from the front as one piece: the very one they lie in, unless more lies there. Of what is in one
/// piece then, the shorter part is copied.
fn take_piece(raw: &mut BufChain, most: usize) -> Option<Buf> {
    let mut piece = raw.pop_front()?;
    if piece.len() <= most {
        return Some(piece);
    }
    let copied = |bytes: &[u8]| {
        let mut copy = Buf::new(bytes.len(), ROOM, ROOM);
        copy.append(bytes);
        copy
    };
    if most <= piece.len() - most {
        let taken = copied(&piece[..most]);
        piece.advance(most);
        raw.push_front(piece);
        return Some(taken);
    }
    raw.push_front(copied(&piece[most..]));
    piece.truncate(most);
    Some(piece)
}

/// The value of `key` in a text of `key=value` lines.
#[must_use]
pub fn setting<'a>(text: &'a [u8], key: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

/// Fed with random bytes: however they are cut, the same frames come out, and the bytes of frames are those frames.
pub fn fuzz_frames(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let whole = all_frames(bytes, usize::MAX);
    assert_eq!(whole, all_frames(bytes, usize::from(cut).max(1)));
    let mut again = Vec::new();
    whole.iter().for_each(|(command, stream, data)| {
        data.chunks(MAX_DATA).for_each(|data| frame(*command, *stream, data, &mut again));
        if data.is_empty() {
            frame(*command, *stream, data, &mut again);
        }
    });
    assert_eq!(whole, all_frames(&again, usize::MAX));
}

/// What [`Frames`] finds when it is given so many bytes at a time; data that follows data of the same stream is joined.
fn all_frames(bytes: &[u8], at_once: usize) -> Vec<(Command, u32, Vec<u8>)> {
    let (mut frames, mut all) = (Frames::default(), Vec::<(Command, u32, Vec<u8>)>::new());
    for part in bytes.chunks(at_once.min(bytes.len().max(1))) {
        frames.take_in(BufChain::copied(part));
        while let Some(frame) = frames.next_frame() {
            match frame {
                Frame::Data { stream, data } => match all.last_mut() {
                    Some((Command::Push, last, sofar)) if *last == stream => sofar.extend_from_slice(&data),
                    _ => all.push((Command::Push, stream, data.to_vec())),
                },
                Frame::Control { head, data } => all.push((head.command, head.stream, data)),
            }
        }
    }
    all
}

/// Fed with random bytes: settings that are found stand there.
pub fn fuzz_setting(bytes: &[u8]) {
    for key in ["v", "padding-md5", ""] {
        if let Some(value) = setting(bytes, key) {
            let text = String::from_utf8_lossy(bytes);
            assert!(text.contains(&format!("{key}={value}")));
        }
    }
}
