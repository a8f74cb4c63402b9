//! Streams of sealed chunks, each behind a head that says how long it is: the record layer of protocols that bring their
//! own ciphers.
//!
//! ```text
//! | head | body |   | head | body |   ...
//!   HEAD   what the head says, tag and all
//! ```
//!
//! What heads and bodies look like is a [`Seal`] and an [`Open`]: one direction each, without sockets, working on the
//! memory they are given. [`Reading`] and [`Writing`] are the two halves of a conn around them, the same for all such
//! protocols:
//!
//! - one long read brings several chunks, which are opened one behind the other into one new piece in the pass of the
//!   cipher itself; a chunk that has a piece to itself is opened in its own memory;
//! - data with the room that was asked for is sealed where it lies, and up to 256 KiB leave in one vectored write;
//! - nothing is held while the conn idles, but the beginning of a chunk of which the rest has not come, in memory of its
//!   own size.

mod reading;
mod writing;

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;

use culvert_wire::{Buf, Room};
use thiserror::Error;

pub(crate) use self::reading::Reading;
pub(crate) use self::writing::Writing;

/// Why a stream of chunks cannot go on.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub(crate) enum Fault {
    /// Its bytes were changed on the way, or it was sealed with another key.
    #[error("a chunk does not match its tag")]
    Tag,
    /// A head says something that no head may say.
    #[error("a chunk of a length that cannot be")]
    Length,
    /// The stream ended inside a chunk.
    #[error("the stream ended inside a chunk")]
    Cut,
    /// It has failed before.
    #[error("the stream has failed before")]
    Failed,
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Cut => io::ErrorKind::UnexpectedEof,
            Fault::Tag | Fault::Length => io::ErrorKind::InvalidData,
            Fault::Failed => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, fault)
    }
}

/// Makes the chunks of one direction.
pub(crate) trait Seal {
    /// The space that a chunk wants around its data, and the most data of one.
    fn room(&self) -> Room;

    /// Makes `piece`, which has that room, one chunk in its own memory.
    fn seal(&mut self, piece: &mut Buf);
}

/// Opens the chunks of one direction.
pub(crate) trait Open {
    /// Bytes in front of a body that say how long it is.
    const HEAD: usize;

    /// Reads the head of the next chunk and returns how many bytes its body has.
    fn head(&mut self, head: &mut [u8]) -> Result<usize, Fault>;

    /// Most bytes of data in a body of `len` bytes.
    fn space_for(&self, len: usize) -> usize;

    /// Opens a body in its own memory and returns where its data stands.
    fn open(&mut self, body: &mut [u8]) -> Result<Range<usize>, Fault>;

    /// Opens a body into `to`, which has the [space](Self::space_for), and returns how many bytes are at its front.
    fn open_into(&mut self, body: &mut [u8], to: &mut [u8]) -> Result<usize, Fault>;
}
