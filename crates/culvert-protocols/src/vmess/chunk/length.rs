//! The length in front of a chunk.

use shake::digest::{ExtendableOutput, Update, XofReader};
use shake::{Shake128, Shake128Reader};

use super::super::codec::{Options, Request, Security};
use super::super::keys::{BodyKeys, derive};
use super::{Aead, Cipher, Fault, TAG};

/// Bytes of a length, and of a sealed one.
const PLAIN: usize = 2;
const SEALED: usize = PLAIN + TAG;

/// Padding is shorter than this.
const PADDING: u16 = 64;

const AUTH_LEN: &[u8] = b"auth_len";

/// Makes the lengths of one direction, or reads them.
pub(super) struct Lengths {
    shake: Option<Box<Shake128Reader>>,
    masks: bool,
    pads: bool,
    sealed: Option<Aead>,
}

/// A length as it is sent.
pub(super) struct Field {
    bytes: [u8; SEALED],
    len: usize,
    /// Bytes of padding that the chunk must have.
    pub(super) padding: usize,
}

impl Field {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Lengths {
    /// `keys` are those of the direction.
    pub(super) fn new(request: &Request, keys: &BodyKeys) -> Self {
        let Request { security, options, .. } = *request;
        let cipher = match security {
            Security::Aes128Gcm | Security::None => Some(Cipher::Aes128Gcm),
            Security::ChaCha20Poly1305 => Some(Cipher::ChaCha20Poly1305),
            Security::Aes128Cfb => None,
        };
        let sealed = cipher.filter(|_| options.has(Options::SEALED_LENGTHS)).map(|cipher| {
            // Both directions use what belongs to the request.
            Aead::new(cipher, &derive(&request.keys.key, &[AUTH_LEN]), &request.keys.iv)
        });
        let pads = options.has(Options::PADDED);
        let masks = options.has(Options::MASKED) && sealed.is_none();
        let shake = (pads || masks).then(|| {
            let mut shake = Shake128::default();
            shake.update(&keys.iv);
            Box::new(shake.finalize_xof())
        });
        Self { shake, masks, pads, sealed }
    }

    /// Bytes of each length.
    pub(super) fn field_len(&self) -> usize {
        if self.sealed.is_some() { SEALED } else { PLAIN }
    }

    /// Most bytes of padding.
    pub(super) fn max_padding(&self) -> usize {
        if self.pads { usize::from(PADDING) - 1 } else { 0 }
    }

    /// The length of the next chunk, whose payload with hash and tag has `body` bytes: fewer than 2^16 with the padding.
    pub(super) fn encode(&mut self, body: usize) -> Field {
        let (padding, mask) = self.draw();
        let total = (body + padding) as u16;
        let mut field = Field { bytes: [0; SEALED], len: self.field_len(), padding };
        match &mut self.sealed {
            None => field.bytes[..PLAIN].copy_from_slice(&(total ^ mask).to_be_bytes()),
            Some(aead) => {
                let (len, tag) = field.bytes.split_at_mut(PLAIN);
                len.copy_from_slice(&total.wrapping_sub(TAG as u16).to_be_bytes());
                tag.copy_from_slice(aead.seal(len).as_ref());
            }
        }
        field
    }

    /// What `field`, which has [`Lengths::field_len`] bytes, says of the chunk behind it: bytes of payload with hash and tag, and
    /// bytes of padding.
    pub(super) fn decode(&mut self, field: &mut [u8]) -> Result<(usize, usize), Fault> {
        let (padding, mask) = self.draw();
        let total = match &mut self.sealed {
            None => number(field) ^ mask,
            Some(aead) => {
                aead.open(field)?;
                number(field).wrapping_add(TAG as u16)
            }
        };
        let body = usize::from(total).checked_sub(padding).ok_or(Fault::Length)?;
        Ok((body, padding))
    }

    /// The next padding and the next mask.
    fn draw(&mut self) -> (usize, u16) {
        let Some(shake) = &mut self.shake else { return (0, 0) };
        let mut next = || {
            let mut bytes = [0; 2];
            shake.read(&mut bytes);
            u16::from_be_bytes(bytes)
        };
        let padding = if self.pads { usize::from(next() % PADDING) } else { 0 };
        (padding, if self.masks { next() } else { 0 })
    }
}

fn number(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}
