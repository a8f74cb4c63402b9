//! Heads of segments.
//!
//! ```text
//! source port 2   target port 2   seq 4   ack 4   length/4 in 4 bits, flags 1   window 2   checksum 2   urgent 2   options
//! ```

use super::Seq;

/// Length of a head without options.
pub const HEAD: usize = 20;
/// Longest head.
pub const MAX_HEAD: usize = 60;
/// Most SACK blocks that fit.
pub const MAX_BLOCKS: usize = 4;

/// The flags of a segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// The first of a connection.
    pub const SYN: Self = Self(2);
    /// The connection is broken.
    pub const RST: Self = Self(4);
    /// The sender has nothing more to send right now.
    pub const PSH: Self = Self(8);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(16);

    /// Whether it has all flags of `other`.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The head of a segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Segment {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub target: u16,
    /// Number of the first byte.
    pub seq: Seq,
    /// The byte the sender waits for.
    pub ack: Seq,
    /// Flags.
    pub flags: Flags,
    /// As it stands in the head, not scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
}

/// The options that are understood.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// Longest payload the sender takes; on SYN only.
    pub mss: Option<u16>,
    /// How its windows are scaled; on SYN only.
    pub window_scale: Option<u8>,
    /// It understands SACK; on SYN only.
    pub sack_permitted: bool,
    /// Its clock, and what it last saw of ours.
    pub timestamps: Option<(u32, u32)>,
    /// What it has received out of order.
    pub sack: Blocks,
}

/// SACK blocks: from, up to but not including.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Blocks {
    blocks: [(Seq, Seq); MAX_BLOCKS],
    count: u8,
}

impl Blocks {
    /// Adds one; does nothing if there are as many as fit.
    pub fn push(&mut self, from: Seq, to: Seq) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (from, to);
            self.count += 1;
        }
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Keeps the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.count = self.count.min(most as u8);
    }
}

impl Segment {
    /// Reads a head and says how long it is. `None` if it is too short, or its length is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; HEAD] = bytes.first_chunk()?;
        let len = usize::from(fixed[12] >> 4) * 4;
        if len < HEAD || bytes.len() < len {
            return None;
        }
        let half = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let segment = Self {
            source: half(0),
            target: half(2),
            seq: Seq(word(4)),
            ack: Seq(word(8)),
            flags: Flags(fixed[13] & 0x1f),
            window: half(14),
            options: Options::parse(&bytes[HEAD..len]),
        };
        Some((segment, len))
    }

    /// Writes the head with no checksum to the front of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_HEAD`].
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let len = HEAD + self.options.encode(&mut out[HEAD..MAX_HEAD]);
        out[0..2].copy_from_slice(&self.source.to_be_bytes());
        out[2..4].copy_from_slice(&self.target.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        out[12] = ((len / 4) << 4) as u8;
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..20].fill(0);
        len
    }
}

impl Options {
    /// Reads options; what is unknown or damaged is as if it were not there.
    fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                0 => break,
                1 => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(&len) = rest.first() else { break };
            let len = usize::from(len);
            if len < 2 || bytes.len() < len {
                break;
            }
            let word = |data: &[u8], at: usize| {
                u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
            };
            match (kind, &bytes[2..len]) {
                (2, [high, low]) => options.mss = Some(u16::from_be_bytes([*high, *low])),
                // 14 is the most (RFC 7323 section 2.3).
                (3, [shift]) => options.window_scale = Some((*shift).min(14)),
                (4, []) => options.sack_permitted = true,
                (5, data) if data.len() % 8 == 0 => {
                    for block in data.chunks_exact(8) {
                        options.sack.push(Seq(word(block, 0)), Seq(word(block, 4)));
                    }
                }
                (8, data) if data.len() == 8 => options.timestamps = Some((word(data, 0), word(data, 4))),
                _ => {}
            }
            bytes = &bytes[len..];
        }
        options
    }

    /// How many bytes they take.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.encode(&mut [0; MAX_HEAD - HEAD])
    }

    fn encode(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(room) = out.get_mut(at..at + bytes.len()) {
                room.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put(&[2, 4, high, low]);
        }
        if let Some(shift) = self.window_scale {
            put(&[1, 3, 3, shift]);
        }
        if self.sack_permitted {
            put(&[1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
            put(&[1, 1, 8, 10, a, b, c, d, e, f, g, h]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            put(&[1, 1, 5, (2 + 8 * blocks.len()) as u8]);
            for (from, to) in blocks {
                put(&from.0.to_be_bytes());
                put(&to.0.to_be_bytes());
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut sack = Blocks::default();
        sack.push(Seq(10), Seq(20));
        sack.push(Seq(30), Seq(40));
        let segment = Segment {
            source: 1,
            target: 2,
            seq: Seq(3),
            ack: Seq(4),
            flags: Flags::ACK.and(Flags::PSH),
            window: 5,
            options: Options { timestamps: Some((6, 7)), sack, ..Options::default() },
        };
        let syn = Segment {
            flags: Flags::SYN,
            options: Options {
                mss: Some(1460),
                window_scale: Some(8),
                sack_permitted: true,
                timestamps: Some((1, 0)),
                sack: Blocks::default(),
            },
            ..segment
        };
        for segment in [segment, syn] {
            let mut out = [0; MAX_HEAD];
            let len = segment.encode(&mut out);
            assert_eq!(len % 4, 0);
            assert_eq!(Segment::parse(&out[..len]), Some((segment, len)));
            assert_eq!(len, HEAD + segment.options.encoded_len());
            for cut in 0..len {
                assert_eq!(Segment::parse(&out[..cut]), None, "{cut} bytes");
            }
        }
    }

    #[test]
    fn odd_options_are_as_if_not_there() {
        let parse = |bytes: &[u8]| Options::parse(bytes);
        assert_eq!(parse(&[2, 4, 5]), Options::default());
        assert_eq!(parse(&[2, 0, 5, 5]), Options::default());
        assert_eq!(parse(&[99, 3, 0, 2, 4, 5, 180]).mss, Some(1460));
        assert_eq!(parse(&[0, 2, 4, 5, 180]).mss, None);
        assert_eq!(parse(&[3, 3, 200]).window_scale, Some(14));
    }
}
