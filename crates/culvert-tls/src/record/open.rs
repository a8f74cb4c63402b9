//! Opening records.

use std::ops::Range;

use aws_lc_rs::aead::Aad;

use super::keys::{Form, Keys, additional_data, once};
use super::{ContentType, HEADER, MAX_DATA, RecordError, Secret, TAG};

/// Opens the records of one direction.
pub struct Opener {
    pub(super) keys: Keys,
}

impl Opener {
    /// Goes on after `sequence` records that were opened with the same secret. `None` if the secret does not fit its
    /// cipher.
    #[must_use]
    pub fn new(secret: Secret, sequence: u64) -> Option<Self> {
        Keys::new(secret, sequence).map(|keys| Self { keys })
    }

    /// The length of the whole record that begins with `bytes`; `None` while the header is not complete. A header that
    /// cannot be is found as soon as it is there, before anything is kept for its body.
    ///
    /// # Errors
    /// [`RecordError::TooLong`], [`RecordError::Unexpected`].
    pub fn record_len(&self, bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let Some(&[kind, version, _, high, low]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let body = usize::from(u16::from_be_bytes([high, low]));
        let (kind_fits, overhead) = match self.keys.form {
            Form::Tls13(_) => (kind == ContentType::Data.byte(), 1 + TAG),
            Form::Tls12 { .. } => (ContentType::from_byte(kind).is_some(), self.keys.explicit_nonce() + TAG),
        };
        if !kind_fits || version != 3 {
            return Err(RecordError::Unexpected);
        }
        match body {
            _ if body > MAX_DATA + overhead => Err(RecordError::TooLong),
            // Not even an empty record is that short.
            _ if body < overhead => Err(RecordError::BadTag),
            _ => Ok(Some(HEADER + body)),
        }
    }

    /// How many bytes [`Opener::open_into`] needs to put what a record of `len` bytes holds.
    #[must_use]
    pub fn space_for(&self, len: usize) -> usize {
        len - HEADER - self.keys.explicit_nonce() - TAG
    }

    /// Opens a whole record in its own memory. Returns what it carries and where its data stands in `record`.
    ///
    /// # Errors
    /// The record is not what the peer sealed; its memory is then of no use any more.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(ContentType, Range<usize>), RecordError> {
        let start = HEADER + self.keys.explicit_nonce();
        let sealing = self.sealing(record);
        let (head_and_data, tag) = record.split_at_mut(sealing.end);
        let data = &mut head_and_data[start..];
        let (nonce, aad) = (once(sealing.nonce), Aad::from(sealing.aad()));
        let opened = self.keys.key.open_in_place_separate_tag(nonce, aad, tag, data);
        let opened = opened.map_err(|_| RecordError::BadTag)?;
        let (kind, len) = self.inner(record_kind(sealing.kind)?, opened)?;
        self.keys.advance()?;
        Ok((kind, start..start + len))
    }

    /// Opens a whole record into `to`, which has the [space](Self::space_for), within one pass of the cipher. Returns
    /// what it carries and how many bytes of data are at the front of `to`.
    ///
    /// # Errors
    /// The record is not what the peer sealed. It is unchanged then, and so is this opener: the bytes may be something
    /// else than a record.
    pub fn open_into(&mut self, record: &[u8], to: &mut [u8]) -> Result<(ContentType, usize), RecordError> {
        let start = HEADER + self.keys.explicit_nonce();
        let sealing = self.sealing(record);
        let (head_and_data, tag) = record.split_at(sealing.end);
        let to = &mut to[..sealing.end - start];
        let (nonce, aad) = (once(sealing.nonce), Aad::from(sealing.aad()));
        let opened = self.keys.key.open_separate_gather(nonce, aad, &head_and_data[start..], tag, to);
        opened.map_err(|_| RecordError::BadTag)?;
        let found = self.inner(record_kind(sealing.kind)?, to)?;
        self.keys.advance()?;
        Ok(found)
    }

    /// Whether this is TLS 1.3.
    #[must_use]
    pub fn is_tls13(&self) -> bool {
        matches!(self.keys.form, Form::Tls13(_))
    }

    /// Goes over to the next keys, after the record in which the peer said so.
    pub fn update_keys(&mut self) {
        self.keys.update();
    }

    /// How the record at hand was sealed. Its length has been checked by [`Opener::record_len`].
    fn sealing(&self, record: &[u8]) -> Sealing {
        let explicit = self.keys.explicit_nonce();
        let nonce = match record[HEADER..].first_chunk() {
            Some(chosen) if explicit > 0 => self.keys.nonce_with(chosen),
            _ => self.keys.nonce(),
        };
        let end = record.len() - TAG;
        let mut sealing = Sealing { kind: record[0], end, nonce, aad: [0; 13], aad_len: HEADER };
        match self.keys.form {
            Form::Tls13(_) => sealing.aad[..HEADER].copy_from_slice(&record[..HEADER]),
            Form::Tls12 { .. } => {
                let data = end - HEADER - explicit;
                sealing.aad = additional_data(self.keys.sequence(), record[0], data);
                sealing.aad_len = sealing.aad.len();
            }
        }
        sealing
    }

    /// What the opened bytes carry and how many of them are data: TLS 1.3 hides the content type behind the data and
    /// zeros behind that.
    fn inner(&self, outer: ContentType, opened: &[u8]) -> Result<(ContentType, usize), RecordError> {
        match self.keys.form {
            Form::Tls13(_) => {
                let last = opened.iter().rposition(|byte| *byte != 0).ok_or(RecordError::Unexpected)?;
                let kind = record_kind(opened[last])?;
                Ok((kind, last))
            }
            Form::Tls12 { .. } => Ok((outer, opened.len())),
        }
    }
}

fn record_kind(byte: u8) -> Result<ContentType, RecordError> {
    ContentType::from_byte(byte).ok_or(RecordError::Unexpected)
}

struct Sealing {
    kind: u8,
    /// Where the tag begins.
    end: usize,
    nonce: [u8; 12],
    aad: [u8; 13],
    aad_len: usize,
}

impl Sealing {
    fn aad(&self) -> &[u8] {
        &self.aad[..self.aad_len]
    }
}
