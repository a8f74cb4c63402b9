//! The frames of smux and yamux, from bytes and to bytes.
//!
//! ```text
//! smux    version: 1   command: 1   length: 2 LE   stream: 4 LE   data                        (version 1)
//!         command 0 opens, 1 ends both directions, 2 carries data, 3 means nothing
//!
//! yamux   version: 1   type: 1   flags: 2   stream: 4   length: 4   data                      (version 0)
//!         type 0 carries data, 1 enlarges the window by `length`, 2 asks for a sign of life or gives one, 3 ends all
//!         flag 1 opens, 2 accepts, 4 ends a direction, 8 breaks off
//! ```
//!
//! Both become one [`Header`]. Sources: xtaci/smux (version 1 as in SagerNet/smux), hashicorp/yamux `spec.md`.

use culvert_wire::{DecodeError, Reader};

/// Which of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wire {
    Smux,
    Yamux,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flags: Flags,
    pub(super) stream: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// So many bytes follow.
    Data(u32),
    /// The peer may be sent so many bytes more. smux has it for its flags only, with 0.
    Window(u32),
    Ping(u32),
    GoAway(u32),
    /// Means nothing.
    Nothing,
}

/// What a frame says of its stream besides.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Flags {
    /// It begins.
    pub(super) syn: bool,
    /// It is accepted, or of a ping: this is the answer.
    pub(super) ack: bool,
    /// Nothing more comes; in smux, nothing more is wanted either.
    pub(super) fin: bool,
    /// It breaks off.
    pub(super) rst: bool,
}

impl Flags {
    pub(super) const NONE: Self = Self { syn: false, ack: false, fin: false, rst: false };
    pub(super) const SYN: Self = Self { syn: true, ..Self::NONE };
    pub(super) const ACK: Self = Self { ack: true, ..Self::NONE };
    pub(super) const FIN: Self = Self { fin: true, ..Self::NONE };
    pub(super) const RST: Self = Self { rst: true, ..Self::NONE };

    fn from_bits(bits: u16) -> Self {
        let has = |bit| bits & bit != 0;
        Self { syn: has(1), ack: has(2), fin: has(4), rst: has(8) }
    }

    fn bits(self) -> u16 {
        u16::from(self.syn) | u16::from(self.ack) << 1 | u16::from(self.fin) << 2 | u16::from(self.rst) << 3
    }
}

impl Wire {
    /// Bytes of a head.
    pub(super) const fn head(self) -> usize {
        match self {
            Self::Smux => 8,
            Self::Yamux => 12,
        }
    }

    /// Most bytes of data that go into one frame of ours. The format of smux takes twice as much, and of yamux any amount;
    /// turns should be short.
    pub(super) const MAX_DATA: usize = 32 << 10;

    /// The first stream that a client opens; the next ones are two apart.
    pub(super) const fn first_stream(self) -> u32 {
        match self {
            Self::Smux => 3,
            Self::Yamux => 1,
        }
    }

    pub(super) fn decode(self, r: &mut Reader<'_>) -> Result<Header, DecodeError> {
        match self {
            Self::Smux => {
                r.expect(&[1], "smux version")?;
                let command = r.u8()?;
                let length = r.array().map(u16::from_le_bytes)?;
                let stream = r.array().map(u32::from_le_bytes)?;
                if command != 2 && length != 0 {
                    return Err(DecodeError::Invalid("smux frame length"));
                }
                let (kind, flags) = match command {
                    0 => (Kind::Window(0), Flags::SYN),
                    1 => (Kind::Window(0), Flags::FIN),
                    2 => (Kind::Data(length.into()), Flags::NONE),
                    3 => (Kind::Nothing, Flags::NONE),
                    _ => return Err(DecodeError::Invalid("smux command")),
                };
                Ok(Header { kind, flags, stream })
            }
            Self::Yamux => {
                r.expect(&[0], "yamux version")?;
                let kind = r.u8()?;
                let flags = Flags::from_bits(r.u16()?);
                let stream = r.array().map(u32::from_be_bytes)?;
                let length = r.array().map(u32::from_be_bytes)?;
                let kind = match kind {
                    0 => Kind::Data(length),
                    1 => Kind::Window(length),
                    2 => Kind::Ping(length),
                    3 => Kind::GoAway(length),
                    _ => return Err(DecodeError::Invalid("yamux type")),
                };
                Ok(Header { kind, flags, stream })
            }
        }
    }

    /// Writes a head that this format can say; in smux that is one flag alone, or data.
    pub(super) fn encode(self, header: Header) -> Head {
        let mut head = Head { bytes: [0; 12], len: self.head() };
        let stream = header.stream;
        match self {
            Self::Smux => {
                let (command, length) = match header.kind {
                    Kind::Data(length) => (2, length as u16),
                    Kind::Window(_) if header.flags.syn => (0, 0),
                    Kind::Window(_) => (1, 0),
                    Kind::Ping(_) | Kind::GoAway(_) | Kind::Nothing => (3, 0),
                };
                head.bytes[..2].copy_from_slice(&[1, command]);
                head.bytes[2..4].copy_from_slice(&length.to_le_bytes());
                head.bytes[4..8].copy_from_slice(&stream.to_le_bytes());
            }
            Self::Yamux => {
                let (kind, length) = match header.kind {
                    Kind::Data(length) => (0, length),
                    Kind::Window(delta) => (1, delta),
                    Kind::Ping(value) => (2, value),
                    Kind::GoAway(code) => (3, code),
                    Kind::Nothing => (1, 0),
                };
                head.bytes[1] = kind;
                head.bytes[2..4].copy_from_slice(&header.flags.bits().to_be_bytes());
                head.bytes[4..8].copy_from_slice(&stream.to_be_bytes());
                head.bytes[8..12].copy_from_slice(&length.to_be_bytes());
            }
        }
        head
    }
}

/// An encoded head.
pub(super) struct Head {
    bytes: [u8; 12],
    len: usize,
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Fed with random bytes: what decodes encodes to the same meaning, and cut short is incomplete.
pub(super) fn fuzz_frames(bytes: &[u8]) {
    for wire in [Wire::Smux, Wire::Yamux] {
        let mut r = Reader::new(bytes);
        while let Ok(header) = wire.decode(&mut r) {
            let head = wire.encode(header);
            assert_eq!(head.len(), wire.head());
            if header.kind != Kind::Nothing {
                assert_eq!(wire.decode(&mut Reader::new(&head)), Ok(header));
            }
            assert_eq!(wire.decode(&mut Reader::new(&head[..head.len() - 1])), Err(DecodeError::Incomplete));
            let Kind::Data(len) = header.kind else { continue };
            if r.take(len as usize).is_err() {
                break;
            }
        }
    }
}
