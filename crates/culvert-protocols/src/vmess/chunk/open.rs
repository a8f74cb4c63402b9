//! Opening chunks.

use std::ops::Range;

use super::length::Lengths;
use super::{Cfb, Fault, Guard, SUM};
use crate::vmess::keys::fnv;

/// Opens the chunks of one direction. For each: its length is [read](Opener::read_length), then it is opened, then it is
/// [over](Opener::take_padding).
pub(crate) struct Opener {
    lengths: Lengths,
    guard: Guard,
    cfb: Option<Box<Cfb>>,
    next: Option<Next>,
}

/// A chunk whose length has been read.
#[derive(Clone, Copy)]
struct Next {
    body: usize,
    padding: usize,
}

impl Opener {
    pub(super) fn new(lengths: Lengths, guard: Guard, cfb: Option<Box<Cfb>>) -> Self {
        Self { lengths, guard, cfb, next: None }
    }

    /// Takes off the cipher that all of the direction is in, if there is one: what comes, in the order it comes.
    pub(crate) fn decrypt(&mut self, bytes: &mut [u8]) {
        if let Some(cfb) = &mut self.cfb {
            cfb.decrypt(bytes);
        }
    }

    /// Whether [`Opener::decrypt`] does anything.
    pub(crate) fn decrypts(&self) -> bool {
        self.cfb.is_some()
    }

    /// Bytes of each length.
    pub(crate) fn length_len(&self) -> usize {
        self.lengths.field_len()
    }

    /// Bytes around the payload in the body of a chunk.
    pub(crate) fn overhead(&self) -> usize {
        self.guard.head() + self.guard.tail()
    }

    /// Bytes of the body of the chunk whose length was read.
    pub(crate) fn body(&self) -> Option<usize> {
        self.next.map(|next| next.body)
    }

    /// Reads a length and returns the bytes of the body that follows.
    pub(crate) fn read_length(&mut self, field: &mut [u8]) -> Result<usize, Fault> {
        let (body, padding) = self.lengths.decode(field)?;
        if body < self.overhead() {
            return Err(Fault::Length);
        }
        self.next = Some(Next { body, padding });
        Ok(body)
    }

    /// Bytes of padding behind the body of the chunk that has been opened. The next thing to come is a length.
    pub(crate) fn take_padding(&mut self) -> usize {
        self.next.take().map_or(0, |next| next.padding)
    }

    /// Opens a whole body in its own memory and returns where the payload stands in it.
    pub(crate) fn open(&mut self, body: &mut [u8]) -> Result<Range<usize>, Fault> {
        let payload = self.guard.head()..body.len() - self.guard.tail();
        match &mut self.guard {
            Guard::Nothing => {}
            Guard::Sum => check_sum(body)?,
            Guard::Aead(aead) => aead.open(body)?,
        }
        Ok(payload)
    }

    /// Opens a whole body into `to`, which has exactly the length of the payload, within one pass of the cipher.
    pub(crate) fn open_into(&mut self, body: &[u8], to: &mut [u8]) -> Result<(), Fault> {
        match &mut self.guard {
            Guard::Nothing => to.copy_from_slice(body),
            Guard::Sum => {
                check_sum(body)?;
                to.copy_from_slice(&body[SUM..]);
            }
            Guard::Aead(aead) => aead.open_into(body, to)?,
        }
        Ok(())
    }
}

fn check_sum(body: &[u8]) -> Result<(), Fault> {
    let (sum, payload) = body.split_at(SUM);
    if sum == fnv(payload).to_be_bytes() { Ok(()) } else { Err(Fault::Changed) }
}
