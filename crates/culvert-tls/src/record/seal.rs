//! Making records.

use aws_lc_rs::aead::Aad;
use culvert_wire::{Buf, Room};

use super::keys::{Form, Keys, additional_data, once};
use super::{ContentType, HEADER, MAX_DATA, RecordError, Secret, TAG};

/// Makes the records of one direction.
pub struct Sealer {
    pub(super) keys: Keys,
    /// Most bytes of data in one record.
    max: usize,
}

impl Sealer {
    /// Goes on after `sequence` records that were sealed with the same secret. `None` if the secret does not fit its
    /// cipher.
    #[must_use]
    pub fn new(secret: Secret, sequence: u64) -> Option<Self> {
        Keys::new(secret, sequence).map(|keys| Self { keys, max: MAX_DATA })
    }

    /// Puts at most so many bytes of data into a record, where the peer takes no more.
    pub(crate) fn limit(&mut self, max: usize) {
        self.max = self.max.min(max);
    }

    /// The space that [`Sealer::seal`] wants around data.
    #[must_use]
    pub fn room(&self) -> Room {
        let kind = usize::from(matches!(self.keys.form, Form::Tls13(_)));
        Room { head: HEADER + self.keys.explicit_nonce(), tail: kind + TAG, max: self.max }
    }

    /// Makes `piece` one record in its own memory. Nothing is allocated or copied.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] after 2^64 records.
    ///
    /// # Panics
    /// If the piece has not the [room](Self::room), or is longer than that allows.
    pub fn seal(&mut self, kind: ContentType, piece: &mut Buf) -> Result<(), RecordError> {
        assert!(piece.len() <= MAX_DATA, "more data than a record takes");
        let nonce = self.keys.nonce();
        let header = self.header(kind, piece.len());
        let tag = match self.keys.form {
            Form::Tls13(_) => {
                piece.append(&[kind.byte()]);
                self.keys.key.seal_in_place_separate_tag(once(nonce), Aad::from(header), piece)
            }
            Form::Tls12 { .. } => {
                let aad = additional_data(self.keys.sequence(), kind.byte(), piece.len());
                self.keys.key.seal_in_place_separate_tag(once(nonce), Aad::from(aad), piece)
            }
        };
        let tag = tag.map_err(|_| RecordError::Exhausted)?;
        piece.append(tag.as_ref());
        piece.prepend(&nonce[12 - self.keys.explicit_nonce()..]);
        piece.prepend(&header);
        self.keys.advance()
    }

    /// Makes a record of `data`, from its memory into a new piece within one pass of the cipher. `around` is left free
    /// around the record.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] after 2^64 records.
    ///
    /// # Panics
    /// If there is more data than a record takes.
    pub fn seal_copy(&mut self, kind: ContentType, data: &[u8], around: Room) -> Result<Buf, RecordError> {
        assert!(data.len() <= MAX_DATA, "more data than a record takes");
        let nonce = self.keys.nonce();
        let header = self.header(kind, data.len());
        let room = self.room();
        let mut record = Buf::new(room.head + data.len() + room.tail, around.head, around.tail);
        record.append(&header);
        record.append(&nonce[12 - self.keys.explicit_nonce()..]);
        let body = &mut record.spare_mut()[..data.len() + room.tail];
        let (sealed, end) = body.split_at_mut(data.len());
        let key = &self.keys.key;
        match self.keys.form {
            Form::Tls13(_) => {
                let (aad, inner_kind) = (Aad::from(header), [kind.byte()]);
                key.seal_out_of_place_scatter(once(nonce), aad, data, sealed, &inner_kind, end)
            }
            Form::Tls12 { .. } => {
                let aad = Aad::from(additional_data(self.keys.sequence(), kind.byte(), data.len()));
                key.seal_out_of_place_scatter(once(nonce), aad, data, sealed, &[], end)
            }
        }
        .map_err(|_| RecordError::Exhausted)?;
        record.grow(data.len() + room.tail);
        self.keys.advance()?;
        Ok(record)
    }

    /// Makes a record of TLS 1.3 that is `len` bytes long in all, with zeros behind the data.
    ///
    /// # Errors
    /// [`RecordError::TooLong`] if that is too short for the data, or longer than a record may be.
    pub fn seal_padded(&mut self, kind: ContentType, data: &[u8], len: usize) -> Result<Buf, RecordError> {
        let inner = len.checked_sub(HEADER + TAG).filter(|inner| *inner <= MAX_DATA + 1);
        let inner = inner.filter(|inner| *inner > data.len()).ok_or(RecordError::TooLong)?;
        let [high, low] = ((inner + TAG) as u16).to_be_bytes();
        let header = [ContentType::Data.byte(), 3, 3, high, low];
        let mut record = Buf::new(len, 0, 0);
        record.append(&header);
        record.append(data);
        record.append(&[kind.byte()]);
        record.append(&vec![0; inner - data.len() - 1]);
        let (nonce, body) = (once(self.keys.nonce()), &mut record[HEADER..]);
        let tag = self.keys.key.seal_in_place_separate_tag(nonce, Aad::from(header), body);
        record.append(tag.map_err(|_| RecordError::Exhausted)?.as_ref());
        self.keys.advance()?;
        Ok(record)
    }

    /// Whether the keys have sealed as much as they should: time for a key update.
    #[must_use]
    pub fn is_worn(&self) -> bool {
        self.keys.are_worn()
    }

    /// Whether this is TLS 1.3, where keys can be updated and a content type can be hidden.
    #[must_use]
    pub fn is_tls13(&self) -> bool {
        matches!(self.keys.form, Form::Tls13(_))
    }

    /// Goes over to the next keys, which the peer must have been told with the last record under the old ones.
    pub fn update_keys(&mut self) {
        self.keys.update();
    }

    fn header(&self, kind: ContentType, data: usize) -> [u8; HEADER] {
        let (kind, body) = match self.keys.form {
            Form::Tls13(_) => (ContentType::Data, data + 1 + TAG),
            Form::Tls12 { .. } => (kind, self.keys.explicit_nonce() + data + TAG),
        };
        let [high, low] = (body as u16).to_be_bytes();
        [kind.byte(), 3, 3, high, low]
    }
}
