//! Messages of gRPC with a stream's bytes in them.
//!
//! ```text
//! 00 (not compressed)   length of the rest (4 bytes)   0a (field 1, bytes)   length (LEB128)   payload
//! ```
//!
//! A message may have the field several times (Xray's `TunMulti`), or not at all. Messages are a stream of bytes: where they
//! are cut means nothing, and no part of one is held.
//!
//! Sources: gRPC over HTTP/2; Protocol Buffers' encoding; sing-box 1.14.4.

use culvert_wire::{Buf, BufChain, DecodeError};

/// Longest head of a message.
pub(in crate::carrier) const MAX_HEAD: usize = 5 + 1 + 5;

/// Makes one message of all of `data`; its head goes into the room of the first piece if that has it.
pub(in crate::carrier) fn frame(data: &mut BufChain) {
    let Ok(len) = u32::try_from(data.len()) else { return };
    let mut field = [0x0a, 0, 0, 0, 0, 0];
    let (mut rest, mut end) = (len, 1);
    while rest >= 0x80 {
        field[end] = rest as u8 | 0x80;
        rest >>= 7;
        end += 1;
    }
    field[end] = rest as u8;
    let field = &field[..=end];
    let mut head = Buf::new(MAX_HEAD, 0, 0);
    head.append(&[0]);
    head.append(&(len + field.len() as u32).to_be_bytes());
    head.append(field);
    match data.pop_front() {
        Some(mut first) if first.head() >= head.len() => {
            first.prepend(&head);
            data.push_front(first);
        }
        first => {
            first.into_iter().for_each(|first| data.push_front(first));
            data.push_front(head);
        }
    }
}

/// Takes messages apart as they come.
#[derive(Debug, Default)]
pub(in crate::carrier) struct Deframer {
    state: State,
    /// What is left of the message.
    left: u32,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// At the beginning of a message, or so many bytes into its head.
    #[default]
    Start,
    Length {
        seen: u8,
        length: u32,
    },
    /// Between two fields.
    Field,
    FieldLength {
        shift: u8,
        length: u32,
    },
    Payload {
        left: u32,
    },
}

const FIELD: DecodeError = DecodeError::Invalid("gRPC message");

impl Deframer {
    /// Whether a body may end here.
    pub(in crate::carrier) fn is_between(&self) -> bool {
        self.state == State::Start
    }

    /// The next run of payload in `bytes`, of which what was looked at is taken away. `None` at their end.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for what is no such message.
    pub(in crate::carrier) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<&'a [u8]>, DecodeError> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let State::Payload { left } = self.state {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let (payload, rest) = bytes.split_at(count);
                *bytes = rest;
                let left = left - count as u32;
                self.left -= count as u32;
                self.state = if left == 0 { self.between() } else { State::Payload { left } };
                return Ok(Some(payload));
            }
            *bytes = rest;
            self.step(byte)?;
        }
        Ok(None)
    }

    fn between(&self) -> State {
        if self.left == 0 { State::Start } else { State::Field }
    }

    fn step(&mut self, byte: u8) -> Result<(), DecodeError> {
        if matches!(self.state, State::Field | State::FieldLength { .. }) {
            self.left = self.left.checked_sub(1).ok_or(FIELD)?;
        }
        self.state = match self.state {
            State::Start if byte == 0 => State::Length { seen: 0, length: 0 },
            State::Start => return Err(DecodeError::Invalid("gRPC message: compressed")),
            State::Length { seen, length } => {
                let length = length << 8 | u32::from(byte);
                if seen < 3 {
                    State::Length { seen: seen + 1, length }
                } else {
                    self.left = length;
                    self.between()
                }
            }
            State::Field if byte == 0x0a => State::FieldLength { shift: 0, length: 0 },
            State::FieldLength { shift, length } if shift < 28 || (shift == 28 && byte < 0x10) => {
                let length = length | u32::from(byte & 0x7f) << shift;
                match (byte & 0x80, length) {
                    (0x80, _) => State::FieldLength { shift: shift + 7, length },
                    (_, 0) => self.between(),
                    _ if length > self.left => return Err(FIELD),
                    _ => State::Payload { left: length },
                }
            }
            State::Field | State::FieldLength { .. } | State::Payload { .. } => return Err(FIELD),
        };
        Ok(())
    }
}

/// Fed with random bytes: however they are cut, the same payload comes out.
pub(crate) fn fuzz_messages(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let run = |size: usize| {
        let mut deframer = Deframer::default();
        let mut data = Vec::new();
        for mut part in bytes.chunks(size) {
            while let Some(payload) = deframer.next(&mut part)? {
                data.extend_from_slice(payload);
            }
        }
        Ok::<_, DecodeError>((data, deframer.is_between()))
    };
    assert_eq!(run(bytes.len().max(1)), run(usize::from(cut % 13) + 1));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(data: &[u8]) -> Vec<u8> {
        let mut chain = BufChain::copied(data);
        frame(&mut chain);
        chain.to_vec()
    }

    fn deframed(mut bytes: &[u8]) -> Result<(Vec<u8>, bool), DecodeError> {
        let mut deframer = Deframer::default();
        let mut data = Vec::new();
        while let Some(payload) = deframer.next(&mut bytes)? {
            data.extend_from_slice(payload);
        }
        Ok((data, deframer.is_between()))
    }

    #[test]
    fn messages_are_those_of_the_sheet() {
        assert_eq!(framed(b"hello"), b"\0\0\0\0\x07\x0a\x05hello");
        assert_eq!(framed(&[7; 300])[..8], [0, 0, 0, 1, 0x2f, 0x0a, 0xac, 0x02]);
        let mut piece = Buf::new(5, MAX_HEAD, 0);
        piece.append(b"hello");
        let mut chain = BufChain::from(piece);
        frame(&mut chain);
        assert_eq!((chain.pieces(), &chain.to_vec()[..]), (1, &b"\0\0\0\0\x07\x0a\x05hello"[..]));
    }

    #[test]
    fn empty_messages_and_repeated_fields_are_understood() {
        assert_eq!(deframed(b"\0\0\0\0\0\0\0\0\0\x02\x0a\0"), Ok((vec![], true)));
        assert_eq!(deframed(b"\0\0\0\0\x07\x0a\x02ab\x0a\x01c"), Ok((b"abc".to_vec(), true)));
        assert_eq!(deframed(b"\0\0\0\0\x07\x0a\x02ab"), Ok((b"ab".to_vec(), false)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bytes in [
            &b"\x01\0\0\0\x07\x0a\x05hello"[..], // compressed
            b"\0\0\0\0\x07\x12\x05hello",        // another field
            b"\0\0\0\0\x07\x0a\x06hello!",       // longer than the message
            b"\0\0\0\0\x07\x0a\xff\xff\xff\xff\xff",
            b"\0\0\0\0\x01\x0a\x05hello", // a field without room for its length
        ] {
            assert!(deframed(bytes).is_err(), "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_of_messages_gives_the_data(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..6), cut in 1usize..50,
        ) {
            let bytes: Vec<u8> = parts.iter().flat_map(|part| framed(part)).collect();
            let mut deframer = Deframer::default();
            let mut data = Vec::new();
            for mut part in bytes.chunks(cut) {
                while let Some(payload) = deframer.next(&mut part).unwrap() {
                    data.extend_from_slice(payload);
                }
            }
            prop_assert_eq!(data, parts.concat());
            prop_assert!(deframer.is_between());
        }

        #[test]
        fn random_messages_are_cut_alike(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            fuzz_messages(&bytes);
        }
    }
}
