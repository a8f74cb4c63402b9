//! Tags, keys and records.
//!
//! ```text
//! session id   28 random bytes | first 4 bytes of HMAC-SHA1(password, the hello with zeros in place of these)
//! random       of the ServerHello, 32 bytes
//! handshake    body XOR SHA-256(password, random), repeated; tag: HMAC-SHA1(password; random, all such bodies)
//! data         tag: HMAC-SHA1(password; random, "C" or "S", all payload and tags before, payload)
//! ```

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use culvert_wire::{DecodeError, Reader};
use subtle::ConstantTimeEq;

/// Bytes of a record before its body.
pub const HEADER: usize = 5;
/// Bytes of a tag in version 3.
pub const TAG: usize = 4;
/// Bytes of the tag of version 2.
pub const FIRST_TAG: usize = 8;
/// Most payload in a record: with its tag no more than a record of TLS carries.
pub const MAX_PAYLOAD: usize = (1 << 14) - TAG;
/// Longest body of a record that is read: what TLS 1.2 allows.
pub const MAX_BODY: usize = (1 << 14) + 2048;

/// The types of records.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
/// See [`CHANGE_CIPHER_SPEC`].
pub const ALERT: u8 = 21;
/// See [`CHANGE_CIPHER_SPEC`].
pub const HANDSHAKE: u8 = 22;
/// See [`CHANGE_CIPHER_SPEC`].
pub const DATA: u8 = 23;

const SERVER_HELLO: u8 = 2;
/// Where things stand in a record with a hello, client's or server's.
const MESSAGE_TYPE: usize = 5;
const RANDOM: std::ops::Range<usize> = 11..43;
/// Where the tag stands in a ClientHello's record, whose session id has 32 bytes.
const HELLO_TAG: std::ops::Range<usize> = 72..76;
const SESSION_ID_LEN: usize = 43;

/// A key made from a password.
#[derive(Clone)]
pub struct Password(Arc<(hmac::Key, Vec<u8>)>);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(***)")
    }
}

impl Password {
    /// The key of this password.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Self(Arc::new((key, text.as_bytes().to_vec())))
    }

    /// A tag that has taken in these bytes.
    #[must_use]
    pub fn tag(&self, seed: &[&[u8]]) -> Tag {
        let mut tag = Tag(Box::new(hmac::Context::with_key(&self.0.0)));
        seed.iter().for_each(|part| tag.take(part));
        tag
    }

    /// What records of the handshake server are changed with.
    #[must_use]
    pub fn mask(&self, random: &[u8; 32]) -> [u8; 32] {
        let mut mask = [0; 32];
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.0.1);
        context.update(random);
        mask.copy_from_slice(context.finish().as_ref());
        mask
    }

    /// Whether the record with a ClientHello has a session id that was signed with this password.
    #[must_use]
    pub fn signed(&self, record: &[u8]) -> bool {
        let is_hello = record.len() >= HELLO_TAG.end
            && record[0] == HANDSHAKE
            && record[MESSAGE_TYPE] == 1
            && record[SESSION_ID_LEN] == 32;
        is_hello && bool::from(self.hello_tag(&record[HEADER..]).ct_eq(&record[HELLO_TAG]))
    }

    /// The tag of a ClientHello, which is a message without a record's header.
    fn hello_tag(&self, message: &[u8]) -> [u8; TAG] {
        let (before, rest) = message.split_at(HELLO_TAG.start - HEADER);
        let mut context = hmac::Context::with_key(&self.0.0);
        for part in [before, &[0; TAG], &rest[TAG..]] {
            context.update(part);
        }
        first(&context.sign())
    }

    /// Signs the session id of a ClientHello's message.
    ///
    /// # Panics
    /// If it has none of 32 bytes.
    pub fn sign(&self, message: &mut [u8]) {
        assert_eq!(message[SESSION_ID_LEN - HEADER], 32, "a session id of 32 bytes");
        let tag = self.hello_tag(message);
        message[HELLO_TAG.start - HEADER..HELLO_TAG.end - HEADER].copy_from_slice(&tag);
    }
}

/// The bytes of a tag that are sent.
fn first<const N: usize>(tag: &hmac::Tag) -> [u8; N] {
    let mut first = [0; N];
    first.copy_from_slice(&tag.as_ref()[..N]);
    first
}

/// A tag over all that was taken in so far.
#[derive(Clone)]
pub struct Tag(Box<hmac::Context>);

impl Tag {
    /// Takes bytes in.
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The first bytes of the tag at this moment.
    #[must_use]
    pub fn now<const N: usize>(&self) -> [u8; N] {
        first(&self.0.clone().sign())
    }

    /// Takes in the payload of a record and then its tag, which is returned.
    pub fn seal(&mut self, payload: &[u8]) -> [u8; TAG] {
        self.take(payload);
        let tag = self.now();
        self.take(&tag);
        tag
    }

    /// The same for a record that came. Whether its tag is right.
    pub fn open(&mut self, body: &[u8]) -> bool {
        let Some((tag, payload)) = body.split_first_chunk::<TAG>() else { return false };
        bool::from(self.seal(payload).ct_eq(tag))
    }
}

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tag")
    }
}

/// Changes the body of a record, or changes it back.
pub fn apply(mask: &[u8; 32], body: &mut [u8]) {
    body.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
}

/// Changes a whole data record of the handshake server, and puts a tag before its body.
#[must_use]
pub fn disguise(mask: &[u8; 32], tag: &mut Tag, record: &[u8]) -> Vec<u8> {
    let (header, body) = record.split_at(HEADER);
    let mut body = body.to_vec();
    apply(mask, &mut body);
    tag.take(&body);
    let len = (TAG + body.len()) as u16;
    [&header[..3], &len.to_be_bytes(), &tag.now::<TAG>(), &body].concat()
}

/// The header of a data record with a body of this length.
#[must_use]
pub fn header(len: usize) -> [u8; HEADER] {
    let [high, low] = (len as u16).to_be_bytes();
    [DATA, 3, 3, high, low]
}

/// The length of the whole record that begins with `bytes`.
///
/// # Errors
/// [`DecodeError::Incomplete`], or it is longer than any.
pub fn record_len(bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut r = Reader::new(bytes);
    r.take(3)?;
    match usize::from(r.u16()?) {
        len if len > MAX_BODY => Err(DecodeError::Invalid("record length")),
        len => Ok(HEADER + len),
    }
}

/// The random of the ServerHello in a record; `None` if there is none.
#[must_use]
pub fn server_random(record: &[u8]) -> Option<[u8; 32]> {
    let is_hello = record[0] == HANDSHAKE && record.get(MESSAGE_TYPE) == Some(&SERVER_HELLO);
    record.get(RANDOM).filter(|_| is_hello)?.try_into().ok()
}

/// Whether the ServerHello in a record chooses TLS 1.3.
#[must_use]
pub fn chooses_tls13(record: &[u8]) -> bool {
    fn find(record: &[u8]) -> Result<bool, DecodeError> {
        let mut r = Reader::new(record);
        r.take(RANDOM.end)?;
        let session_id = r.u8()?;
        r.take(session_id.into())?;
        r.take(2 + 1 + 2)?;
        loop {
            let kind = r.u16()?;
            let len = r.u16()?;
            let body = r.take(len.into())?;
            if kind == 43 {
                return Ok(body == [3, 4]);
            }
        }
    }
    find(record).unwrap_or(false)
}

/// Fed with random bytes: whatever a record is taken for, nothing panics and lengths stay within bounds.
///
/// # Panics
/// If not.
pub fn fuzz_records(bytes: &[u8]) {
    if let Ok(len) = record_len(bytes) {
        assert!(len <= HEADER + MAX_BODY);
        if let Some(record) = bytes.get(..len) {
            let _ = (server_random(record), chooses_tls13(record));
            assert!(!Password::new("password").signed(record));
            let changed = disguise(&[7; 32], &mut Password::new("p").tag(&[]), record);
            assert_eq!(changed.len(), record.len() + TAG);
        }
    }
}
