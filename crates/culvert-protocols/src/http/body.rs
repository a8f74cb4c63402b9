//! Where a message's body ends: what of the bytes at hand belongs to it.
//!
//! Bodies pass as they are, chunk heads and trailers included. Whoever reads them next must find the same end as we do,
//! or one could hide a request inside another; so everything about chunks is read strictly: lines end in CR LF, sizes are
//! hexadecimal digits and nothing else, trailers are not folded.
//!
//! ```text
//! chunk     size in hex [; extension] CR LF  data CR LF
//! end       0 [; extension] CR LF  *(name: value CR LF)  CR LF
//! ```
//!
//! Source: RFC 9112 sections 6 and 7.

use culvert_wire::{BufChain, DecodeError};

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body {
    /// There is none.
    Empty,
    /// It has this many bytes.
    Length(u64),
    /// Chunks say.
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// Follows one body through the bytes it arrives in.
#[derive(Clone, Debug)]
pub struct Framer {
    state: State,
    /// Bytes of chunk extensions and trailers so far, which are of no use and therefore bounded.
    overhead: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Length(u64),
    UntilClose,
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeEnd { size: u64 },
    Data(u64),
    DataEnd { cr: bool },
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerEnd,
    LastEnd,
    Done,
}

/// Most bytes of extensions of one chunk, and of all trailers.
const MAX_OVERHEAD: usize = 16 << 10;

impl Framer {
    /// At the first byte of a body.
    #[must_use]
    pub fn new(body: Body) -> Self {
        let state = match body {
            Body::Empty | Body::Length(0) => State::Done,
            Body::Length(len) => State::Length(len),
            Body::Chunked => State::Size { digits: 0, size: 0 },
            Body::UntilClose => State::UntilClose,
        };
        Self { state, overhead: 0 }
    }

    /// Whether all of it has been taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the end of the connection is its end.
    #[must_use]
    pub fn ends_with_connection(&self) -> bool {
        self.state == State::UntilClose
    }

    /// Takes from the front of `bytes` what belongs to the body.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for a body that is not framed as it should be.
    pub fn take(&mut self, bytes: &mut BufChain) -> Result<BufChain, DecodeError> {
        let mut count = 0;
        for piece in bytes.iter() {
            let here = self.advance(piece)?;
            count += here;
            if here < piece.len() {
                break;
            }
        }
        if count == bytes.len() {
            return Ok(std::mem::take(bytes));
        }
        Ok(bytes.take_front(count))
    }

    /// How many of the first of `bytes` belong to the body: all of them, unless it ends among them.
    fn advance(&mut self, bytes: &[u8]) -> Result<usize, DecodeError> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            // Data in one step, the rest byte by byte.
            match &mut self.state {
                State::Done => return Ok(at),
                State::UntilClose => return Ok(bytes.len()),
                State::Length(left) | State::Data(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    *left -= here as u64;
                    at += here;
                    self.state = match self.state {
                        State::Length(0) => State::Done,
                        State::Data(0) => State::DataEnd { cr: false },
                        other => other,
                    };
                }
                _ => {
                    self.step(byte)?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<(), DecodeError> {
        let invalid = Err(DecodeError::Invalid("chunk"));
        self.overhead += 1;
        self.state = match (self.state, byte) {
            (State::Size { digits, size }, byte) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                if digits >= 16 || size > u64::MAX >> 5 {
                    return invalid;
                }
                State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (State::Size { digits: 0, .. }, _) => return invalid,
            (State::Size { size, .. } | State::Extension { size }, b'\r') => State::SizeEnd { size },
            // Some servers pad the size with spaces.
            (State::Size { size, .. }, b';' | b' ' | b'\t') => State::Extension { size },
            (State::Extension { size }, byte) if is_text(byte) => State::Extension { size },
            (State::SizeEnd { size: 0 }, b'\n') => State::Trailer,
            (State::SizeEnd { size }, b'\n') => {
                self.overhead = 0;
                State::Data(size)
            }
            (State::DataEnd { cr: false }, b'\r') => State::DataEnd { cr: true },
            (State::DataEnd { cr: true }, b'\n') => State::Size { digits: 0, size: 0 },
            (State::Trailer, b'\r') => State::LastEnd,
            (State::Trailer | State::TrailerName, byte) if is_token(byte) => State::TrailerName,
            (State::TrailerName, b':') => State::TrailerValue,
            (State::TrailerValue, b'\r') => State::TrailerEnd,
            (State::TrailerValue, byte) if is_text(byte) => State::TrailerValue,
            (State::TrailerEnd, b'\n') => State::Trailer,
            (State::LastEnd, b'\n') => State::Done,
            _ => return invalid,
        };
        if self.overhead > MAX_OVERHEAD { invalid } else { Ok(()) }
    }
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Fed with random bytes: however they are cut, the same bytes belong to the body.
pub fn fuzz_body(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    for body in [Body::Chunked, Body::Length(u64::from(cut)), Body::UntilClose, Body::Empty] {
        let mut whole = Framer::new(body);
        let at_once = whole.advance(bytes).map(|count| (count, whole.is_done()));
        let mut framer = Framer::new(body);
        let mut in_parts = Ok((0, framer.is_done()));
        for part in bytes.chunks(usize::from(cut % 7) + 1) {
            let Ok((count, false)) = in_parts else { break };
            in_parts = framer.advance(part).map(|more| (count + more, framer.is_done()));
        }
        assert_eq!(at_once, in_parts);
    }
}
