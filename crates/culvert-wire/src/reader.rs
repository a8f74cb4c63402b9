//! Decoding received bytes without consuming them.

use thiserror::Error;

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum DecodeError {
    /// No fault: read more and ask again.
    #[error("more bytes are needed")]
    Incomplete,
    /// The bytes can never become valid; names the part that is wrong.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// A cursor over bytes that stay with the caller: a decode that fails has taken nothing.
///
/// All integers are big-endian, the order of the protocols here; the few that differ say so in their codec.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// How many bytes have been read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if there are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let taken = self.rest().get(..count).ok_or(DecodeError::Incomplete)?;
        self.position += count;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let taken = self.rest().first_chunk().ok_or(DecodeError::Incomplete)?;
        self.position += N;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] at the end.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if there are fewer.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if there are fewer.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if there are fewer.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Exactly these bytes; a difference is found as soon as it is there, before all of them have come.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] with `what` at the first difference, [`DecodeError::Incomplete`] if there are fewer.
    pub fn expect(&mut self, wanted: &[u8], what: &'static str) -> Result<(), DecodeError> {
        let here = self.rest().len().min(wanted.len());
        if self.rest()[..here] != wanted[..here] {
            return Err(DecodeError::Invalid(what));
        }
        self.take(wanted.len()).map(drop)
    }

    /// The bytes up to `end`, which is read too but not returned.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] with `what` if more than `max` bytes come before it, else [`DecodeError::Incomplete`].
    pub fn until(&mut self, end: u8, max: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let window = &self.rest()[..self.rest().len().min(max + 1)];
        match window.iter().position(|byte| *byte == end) {
            Some(len) => {
                let taken = self.take(len)?;
                self.position += 1;
                Ok(taken)
            }
            None if window.len() > max => Err(DecodeError::Invalid(what)),
            None => Err(DecodeError::Incomplete),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_big_endian() {
        let mut r = Reader::new(&[1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!((r.u8(), r.u16(), r.u32(), r.u64()), (Ok(1), Ok(2), Ok(3), Ok(4)));
        assert_eq!(r.u8(), Err(DecodeError::Incomplete));
    }

    #[test]
    fn a_difference_is_found_before_the_end_has_come() {
        assert_eq!(Reader::new(b"ab").expect(b"abc", "word"), Err(DecodeError::Incomplete));
        assert_eq!(Reader::new(b"ax").expect(b"abc", "word"), Err(DecodeError::Invalid("word")));
    }

    #[test]
    fn until_is_bounded() {
        let mut r = Reader::new(b"ab\0c");
        assert_eq!(r.until(0, 2, "name"), Ok(&b"ab"[..]));
        assert_eq!(r.rest(), b"c");
        assert_eq!(Reader::new(b"abc\0").until(0, 2, "name"), Err(DecodeError::Invalid("name")));
        assert_eq!(Reader::new(b"ab").until(0, 2, "name"), Err(DecodeError::Incomplete));
    }
}
