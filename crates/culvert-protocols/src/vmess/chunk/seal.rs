//! Making chunks.

use aws_lc_rs::rand;
use culvert_wire::{Buf, Room};

use super::length::{Field, Lengths};
use super::{Cfb, Guard, MAX_PAYLOAD};
use crate::vmess::keys::fnv;

/// Most bytes of payload, hash, tag and padding together: what a length can say.
const MAX_CHUNK: usize = 0xffff;

/// Makes the chunks of one direction.
pub(crate) struct Sealer {
    lengths: Lengths,
    guard: Guard,
    cfb: Option<Box<Cfb>>,
}

impl Sealer {
    pub(super) fn new(lengths: Lengths, guard: Guard, cfb: Option<Box<Cfb>>) -> Self {
        Self { lengths, guard, cfb }
    }

    /// The space that [`Sealer::seal`] wants around a payload.
    pub(crate) fn room(&self) -> Room {
        Room {
            head: self.lengths.field_len() + self.guard.head(),
            tail: self.guard.tail() + self.lengths.max_padding(),
            max: MAX_PAYLOAD,
        }
    }

    /// The most payload that one chunk can have; a stream's have less.
    pub(crate) fn most(&self) -> usize {
        MAX_CHUNK - self.guard.head() - self.guard.tail() - self.lengths.max_padding()
    }

    /// Makes `piece` one chunk in its own memory. Nothing is allocated or copied. An empty chunk would be the end of the
    /// stream to some.
    ///
    /// # Panics
    /// If the piece has not the [room](Self::room), or is longer than the [most](Self::most) there can be.
    pub(crate) fn seal(&mut self, piece: &mut Buf) {
        match &mut self.guard {
            Guard::Nothing => {}
            Guard::Sum => {
                let sum = fnv(piece);
                piece.prepend(&sum.to_be_bytes());
            }
            Guard::Aead(aead) => {
                let tag = aead.seal(piece);
                piece.append(tag.as_ref());
            }
        }
        let field = self.lengths.encode(piece.len());
        piece.prepend(field.bytes());
        self.finish(piece, &field);
    }

    /// Makes a chunk of `data`, from its memory into a new piece within one pass of the cipher. `around` is left free
    /// around the chunk.
    ///
    /// # Panics
    /// If there is more data than the [most](Self::most) there can be.
    pub(crate) fn seal_copy(&mut self, data: &[u8], around: Room) -> Buf {
        let room = self.room();
        let mut piece = Buf::new(room.head + data.len() + room.tail, around.head, around.tail);
        let field = self.lengths.encode(self.guard.head() + data.len() + self.guard.tail());
        piece.append(field.bytes());
        match &mut self.guard {
            Guard::Nothing => piece.append(data),
            Guard::Sum => {
                piece.append(&fnv(data).to_be_bytes());
                piece.append(data);
            }
            Guard::Aead(aead) => {
                let len = data.len() + super::TAG;
                aead.seal_into(data, &mut piece.spare_mut()[..len]);
                piece.grow(len);
            }
        }
        self.finish(&mut piece, &field);
        piece
    }

    fn finish(&mut self, piece: &mut Buf, field: &Field) {
        if field.padding > 0 {
            rand::fill(&mut piece.spare_mut()[..field.padding]).expect("the system's random numbers");
            piece.grow(field.padding);
        }
        if let Some(cfb) = &mut self.cfb {
            cfb.encrypt(piece);
        }
    }
}
