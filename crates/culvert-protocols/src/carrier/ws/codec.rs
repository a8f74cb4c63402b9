//! Frames, without I/O: heads written, and payload taken out of what is read in its own memory.
//!
//! ```text
//! fin rsv opcode (1 byte)   mask length (1 byte)   longer length (0, 2 or 8)   key (0 or 4)   payload
//! ```
//!
//! Source: RFC 6455 section 5.

use culvert_wire::{Buf, BufChain, DecodeError};

/// Longest head: with a length of eight bytes and a key.
pub(super) const MAX_HEAD: usize = 14;
/// Longest payload of a control frame.
const MAX_CONTROL: usize = 125;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// A normal end (RFC 6455 section 7.4.1).
pub(super) const NORMAL: u16 = 1000;

/// Masks or unmasks what stands at `offset` of a payload.
pub(super) fn mask(bytes: &mut [u8], key: [u8; 4], offset: usize) {
    let key = [0, 1, 2, 3].map(|at| key[(offset + at) % 4]);
    let wide: [u8; 8] = std::array::from_fn(|at| key[at % 4]);
    let (blocks, rest) = bytes.as_chunks_mut::<8>();
    for block in blocks {
        // The compiler makes this as wide as the CPU is.
        *block = (u64::from_ne_bytes(*block) ^ u64::from_ne_bytes(wide)).to_ne_bytes();
    }
    rest.iter_mut().zip(wide).for_each(|(byte, key)| *byte ^= key);
}

/// A frame's head.
struct Head {
    bytes: [u8; MAX_HEAD],
    len: usize,
}

impl Head {
    fn new(opcode: u8, len: usize, key: Option<[u8; 4]>) -> Self {
        let mut head = Self { bytes: [0; MAX_HEAD], len: 0 };
        let masked = if key.is_some() { MASKED } else { 0 };
        head.push(&[FIN | opcode]);
        match (u8::try_from(len), u16::try_from(len)) {
            (Ok(short @ ..126), _) => head.push(&[masked | short]),
            (_, Ok(long)) => {
                head.push(&[masked | 126]);
                head.push(&long.to_be_bytes());
            }
            _ => {
                head.push(&[masked | 127]);
                head.push(&(len as u64).to_be_bytes());
            }
        }
        head.push(&key.unwrap_or_default()[..if key.is_some() { 4 } else { 0 }]);
        head
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Makes one binary frame of all of `data`, which is masked in place; the head goes into the room of the first piece if
/// that has it.
pub(super) fn frame(data: &mut BufChain, key: Option<[u8; 4]>, out: &mut BufChain) {
    let head = Head::new(BINARY, data.len(), key);
    let mut offset = 0;
    let mut head = Some(&head.bytes[..head.len]);
    while let Some(mut piece) = data.pop_front() {
        if let Some(key) = key {
            mask(&mut piece, key, offset);
        }
        offset += piece.len();
        if let Some(head) = head.take() {
            if piece.head() >= head.len() {
                piece.prepend(head);
            } else {
                out.append_copy(head);
            }
        }
        out.push_back(piece);
    }
}

/// The bytes of a control frame.
fn control(opcode: u8, payload: &[u8], key: Option<[u8; 4]>) -> Buf {
    let head = Head::new(opcode, payload.len(), key);
    let mut frame = Buf::new(payload.len(), head.len, 0);
    frame.append(payload);
    if let Some(key) = key {
        mask(&mut frame, key, 0);
    }
    frame.prepend(&head.bytes[..head.len]);
    frame
}

/// The frame that ends a stream.
pub(super) fn close(code: u16, key: Option<[u8; 4]>) -> Buf {
    control(CLOSE, &code.to_be_bytes(), key)
}

/// The answer to a ping.
pub(super) fn pong(payload: &[u8], key: Option<[u8; 4]>) -> Buf {
    control(PONG, payload, key)
}

/// Takes frames apart as they come, in pieces cut anywhere.
#[derive(Default)]
pub(super) struct Parser {
    state: State,
    /// What the message under way is to become, between fragments too.
    message: Option<Message>,
    /// Payload of the last ping that has not been taken.
    ping: Option<Box<[u8]>>,
    /// The peer has said that nothing more comes, and why.
    closed: Option<Option<u16>>,
    /// Whether plain frames are refused: clients mask all of theirs (RFC 6455 section 5.1).
    wants_masks: bool,
    /// We have said that nothing more comes, and the next word of that kind may be no more than the answer to it.
    answer: Answer,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Answer {
    #[default]
    None,
    Awaited,
    Came,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Message {
    /// Data.
    Taken,
    /// Text, which is none.
    Dropped,
}

enum State {
    Head(Partial),
    Data { left: u64, key: Option<[u8; 4]>, offset: usize, taken: bool },
    Control { opcode: u8, left: usize, key: Option<[u8; 4]>, payload: Vec<u8> },
}

/// A head of which a part has come.
#[derive(Default)]
struct Partial {
    bytes: [u8; MAX_HEAD],
    len: usize,
}

impl Default for State {
    fn default() -> Self {
        Self::Head(Partial::default())
    }
}

impl Partial {
    /// How long the head is, as far as can be told.
    fn needs(&self) -> usize {
        let [_, second, ..] = self.bytes;
        if self.len < 2 {
            return 2;
        }
        let length = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + length + if second & MASKED == 0 { 0 } else { 4 }
    }

    /// Takes what the head still needs from the front of `bytes`, and returns how much that was.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while self.len < self.needs() && used < bytes.len() {
            let count = (self.needs() - self.len).min(bytes.len() - used);
            self.bytes[self.len..self.len + count].copy_from_slice(&bytes[used..used + count]);
            self.len += count;
            used += count;
        }
        used
    }

    fn is_whole(&self) -> bool {
        self.len == self.needs()
    }

    fn length(&self) -> u64 {
        let [_, second, rest @ ..] = self.bytes;
        match (second & 0x7f, rest) {
            (126, [a, b, ..]) => u64::from(u16::from_be_bytes([a, b])),
            (127, [a, b, c, d, e, f, g, h, ..]) => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            (short, _) => u64::from(short),
        }
    }

    fn key(&self) -> Option<[u8; 4]> {
        let key = self.bytes[..self.len].last_chunk().copied();
        key.filter(|_| self.bytes[1] & MASKED != 0)
    }
}

impl Parser {
    /// For the frames of a client.
    pub(super) fn of_server() -> Self {
        Self { wants_masks: true, ..Self::default() }
    }

    /// Whether the peer has ended the stream.
    pub(super) fn has_ended(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether that end is one of its own will, and not a fault's.
    pub(super) fn ended_well(&self) -> bool {
        // Without a code nothing is said of a fault; 1001 is what browsers say when a page is left.
        matches!(self.closed, Some(None | Some(NORMAL | 1001 | 1005)))
    }

    /// Says that our end was sent. The peer may answer it and go on all the same: sing-box does.
    pub(super) fn await_answer(&mut self) {
        self.answer = Answer::Awaited;
    }

    /// Whether our end was answered.
    pub(super) fn is_answered(&self) -> bool {
        self.answer == Answer::Came
    }

    /// The last ping since this was last asked: older ones need no answer (RFC 6455 section 5.5.3).
    pub(super) fn take_ping(&mut self) -> Option<Box<[u8]>> {
        self.ping.take()
    }

    /// Takes the heads out of a piece and leaves the payload of binary messages in it, unmasked. What comes behind the end is
    /// dropped.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for frames that cannot be; the piece is then of no use.
    pub(super) fn take(&mut self, piece: &mut Buf) -> Result<(), DecodeError> {
        // Payload in the piece so far: from `start`, where the first byte of it stood, to `end`.
        let (mut start, mut end) = (0, 0);
        let mut at = 0;
        while at < piece.len() && !self.has_ended() {
            match &mut self.state {
                State::Head(partial) => {
                    at += partial.fill(&piece[at..]);
                    if partial.is_whole() {
                        let whole = std::mem::take(partial);
                        self.begin(&whole)?;
                    }
                }
                State::Data { left, key, offset, taken } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len() - at);
                    if *taken && count > 0 {
                        if let Some(key) = *key {
                            mask(&mut piece[at..at + count], key, *offset);
                        }
                        if end == start {
                            (start, end) = (at, at);
                        } else if end != at {
                            piece.copy_within(at..at + count, end);
                        }
                        end += count;
                    }
                    *left -= count as u64;
                    *offset = (*offset + count) % 4;
                    at += count;
                    if *left == 0 {
                        self.state = State::default();
                    }
                }
                State::Control { left, payload, .. } => {
                    let count = (*left).min(piece.len() - at);
                    payload.extend_from_slice(&piece[at..at + count]);
                    *left -= count;
                    at += count;
                    if *left == 0 {
                        self.end_control()?;
                    }
                }
            }
        }
        piece.truncate(end);
        piece.advance(start);
        Ok(())
    }

    /// Goes on behind a head.
    fn begin(&mut self, head: &Partial) -> Result<(), DecodeError> {
        let [first, ..] = head.bytes;
        let (fin, opcode, length) = (first & FIN != 0, first & 0xf, head.length());
        if first & RESERVED != 0 {
            return Err(DecodeError::Invalid("WebSocket frame: an extension that was not agreed on"));
        }
        if self.wants_masks && head.key().is_none() {
            return Err(DecodeError::Invalid("WebSocket frame: not masked"));
        }
        if length >> 63 != 0 {
            return Err(DecodeError::Invalid("WebSocket frame: length"));
        }
        if opcode & 8 != 0 {
            let left = usize::try_from(length).ok().filter(|length| *length <= MAX_CONTROL);
            let Some(left) = left.filter(|_| fin && opcode <= PONG) else {
                return Err(DecodeError::Invalid("WebSocket frame: control"));
            };
            let payload = Vec::with_capacity(left);
            self.state = State::Control { opcode, left, key: head.key(), payload };
            return if left == 0 { self.end_control() } else { Ok(()) };
        }
        let message = match (opcode, self.message) {
            (0, Some(message)) => message,
            (TEXT, None) => Message::Dropped,
            (BINARY, None) => Message::Taken,
            _ => return Err(DecodeError::Invalid("WebSocket frame: opcode")),
        };
        self.message = Some(message).filter(|_| !fin);
        if length > 0 {
            let taken = message == Message::Taken;
            self.state = State::Data { left: length, key: head.key(), offset: 0, taken };
        }
        Ok(())
    }

    fn end_control(&mut self) -> Result<(), DecodeError> {
        let State::Control { opcode, key, mut payload, .. } = std::mem::take(&mut self.state) else {
            return Ok(());
        };
        if let Some(key) = key {
            mask(&mut payload, key, 0);
        }
        match (opcode, &*payload) {
            (CLOSE, _) if self.answer == Answer::Awaited => self.answer = Answer::Came,
            (CLOSE, []) => self.closed = Some(None),
            (CLOSE, [high, low, ..]) => self.closed = Some(Some(u16::from_be_bytes([*high, *low]))),
            (CLOSE, _) => return Err(DecodeError::Invalid("WebSocket frame: close")),
            (PING, _) => self.ping = Some(payload.into()),
            _ => {}
        }
        Ok(())
    }
}

/// Fed with random bytes: however they are cut, the same payload comes out and the same fault is found.
pub(crate) fn fuzz_frames(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let run = |size: usize| {
        let mut parser = Parser::default();
        let mut data = Vec::new();
        for part in bytes.chunks(size) {
            let mut piece = Buf::copied(part);
            parser.take(&mut piece)?;
            data.extend_from_slice(&piece);
            assert!(data.len() <= bytes.len());
        }
        Ok::<_, DecodeError>((data, parser.closed, parser.ping))
    };
    assert_eq!(run(bytes.len().max(1)), run(usize::from(cut % 17) + 1));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn parsed(bytes: &[u8]) -> Result<(Vec<u8>, Parser), DecodeError> {
        let mut parser = Parser::default();
        let mut piece = Buf::copied(bytes);
        parser.take(&mut piece)?;
        Ok((piece.to_vec(), parser))
    }

    fn framed(data: &[u8], key: Option<[u8; 4]>) -> Vec<u8> {
        let mut out = BufChain::new();
        frame(&mut BufChain::copied(data), key, &mut out);
        out.to_vec()
    }

    #[test]
    fn frames_are_those_of_the_sheet() {
        assert_eq!(framed(b"hello", Some(KEY)), hex("828537fa213d5f9f4d5158"));
        assert_eq!(framed(b"hello", None), hex("820568656c6c6f"));
        assert_eq!(parsed(&hex("828537fa213d5f9f4d5158")).unwrap().0, b"hello");
        assert_eq!(framed(&[0; 125], None)[..3], hex("827d00"));
        assert_eq!(framed(&[0; 126], None)[..5], hex("827e007e00"));
        assert_eq!(framed(&[0; 65_536], None)[..11], hex("827f000000000001000000"));
    }

    #[test]
    fn a_head_goes_into_the_room_of_the_first_piece() {
        let mut piece = Buf::new(5, MAX_HEAD, 0);
        piece.append(b"hello");
        let place = piece.as_ptr();
        let mut data = BufChain::from(piece);
        data.append_copy(&[]);
        let mut out = BufChain::new();
        frame(&mut data, Some(KEY), &mut out);
        assert_eq!((out.pieces(), out.front().as_ptr()), (1, place.wrapping_sub(6)));
    }

    #[test]
    fn several_frames_in_one_piece_leave_their_payload_only() {
        let mut bytes = framed(b"one", Some(KEY));
        bytes.extend(control(PING, b"are you there", Some(KEY)).iter());
        bytes.extend([0x81, 2, b'n', b'o']); // text
        bytes.extend([0x02, 1, b't', 0x89, 0, 0x00, 1, b'w', 0x80, 1, b'o']); // fragments, with a ping between
        bytes.extend(close(NORMAL, None).iter());
        bytes.extend(framed(b"too late", None));
        let (data, mut parser) = parsed(&bytes).unwrap();
        assert_eq!(data, b"onetwo");
        assert_eq!(parser.take_ping().as_deref(), Some(&b""[..]), "the last ping counts");
        assert!(parser.ended_well());
    }

    #[test]
    fn ends_are_told_apart() {
        for (code, well) in [(NORMAL, true), (1001, true), (1006, false), (1011, false)] {
            assert_eq!(parsed(&close(code, Some(KEY))).unwrap().1.ended_well(), well, "{code}");
        }
        assert!(parsed(&[0x88, 0]).unwrap().1.ended_well());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bytes in [
            &[0xc2, 0][..],                          // compressed
            &[0x83, 0],                              // reserved opcode
            &[0x8b, 0],                              // reserved control opcode
            &[0x09, 0],                              // a fragmented ping
            &[0x89, 126, 0, 126],                    // a long ping
            &[0x80, 0],                              // a fragment of nothing
            &[0x02, 0, 0x82, 0],                     // a message within a message
            &[0x88, 1, 0],                           // half a code
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], // a negative length
        ] {
            assert!(parsed(bytes).is_err(), "{bytes:x?}");
        }
        let mut server = Parser::of_server();
        assert!(server.take(&mut Buf::copied(&framed(b"masked", Some(KEY)))).is_ok());
        assert!(server.take(&mut Buf::copied(&framed(b"plain", None))).is_err());
        // A length that will never come costs nothing.
        assert!(parsed(&[0x82, 127, 0x7f, 255, 255, 255, 255, 255, 255, 255, 1, 2]).unwrap().0 == [1, 2]);
    }

    proptest! {
        #[test]
        fn any_cut_of_any_frames_gives_the_data(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<Option<[u8; 4]>>()), 0..8),
            cuts in prop::collection::vec(1usize..100, 1..8),
        ) {
            let bytes: Vec<u8> = parts.iter().flat_map(|(data, key)| {
                if data.is_empty() { vec![0x82, 0] } else { framed(data, *key) }
            }).collect();
            let mut parser = Parser::default();
            let (mut data, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                let mut piece = Buf::copied(now);
                parser.take(&mut piece).unwrap();
                data.extend_from_slice(&piece);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(data, parts.iter().flat_map(|(data, _)| data.clone()).collect::<Vec<_>>());
        }

        #[test]
        fn masking_goes_by_the_place_in_the_payload(
            data in prop::collection::vec(any::<u8>(), 0..200), key: [u8; 4], cut in 0usize..200,
        ) {
            let mut parts = data.clone();
            let cut = cut.min(data.len());
            mask(&mut parts[..cut], key, 0);
            mask(&mut parts[cut..], key, cut);
            let expected: Vec<u8> = data.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
            prop_assert_eq!(parts, expected);
        }

        #[test]
        fn random_frames_are_cut_alike(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_frames(&bytes);
        }
    }
}
