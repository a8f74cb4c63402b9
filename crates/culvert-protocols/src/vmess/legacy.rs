//! The header of clients with an `alterId`, from before the AEAD one. A server takes it only from users who have one.
//!
//! ```text
//! request    HMAC-MD5(key: one of the user's further ids, time)  CFB( header )
//! response   CFB( check  options  0  0 )
//! ```
//!
//! The header has no length and no tag: its FNV hash is all that proves it, so unlike sing-box this demands it, and
//! remembers what has come.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use culvert_wire::{DecodeError, Reader};
use md5::{Digest, Md5};

use super::cfb::Cfb;
use super::codec::{AUTH_ID, MAX_REQUEST, Request};
use super::keys::{BodyKeys, Key, md5};
use super::users::WINDOW;

const NEXT_ID_SALT: &[u8] = b"16167dc8-16b6-4e6d-b8bb-65dd68113a81";
const SAME_ID_SALT: &[u8] = b"533eff8a-4113-4b10-b5ce-0f5d76b98cd2";

/// Most further ids of one user, as v2ray has it.
pub(super) const MAX_ALTER_IDS: usize = 0xffff;

/// Seconds that the table is filled ahead, so that it is not touched with each client.
const AHEAD: u64 = 10;

/// The id that follows `id` in a user's row of further ones.
pub(super) fn next_id(id: &[u8; 16]) -> [u8; 16] {
    let next = md5(&[id, NEXT_ID_SALT]);
    // Nobody has ever seen this happen.
    if next == *id { md5(&[id, NEXT_ID_SALT, SAME_ID_SALT]) } else { next }
}

/// What a client sends first, for a time in Unix seconds.
pub(super) fn auth(alter_id: &[u8; 16], time: u64) -> [u8; AUTH_ID] {
    const BLOCK: usize = 64;
    let padded = |byte: u8| {
        let mut block = [byte; BLOCK];
        block.iter_mut().zip(alter_id).for_each(|(padded, key)| *padded ^= key);
        block
    };
    let inner = md5(&[&padded(0x36), &time.to_be_bytes()]);
    md5(&[&padded(0x5c), &inner])
}

/// The cipher of a request header.
fn header_cipher(command_key: Key, time: u64) -> Cfb {
    let mut iv = Md5::new();
    (0..4).for_each(|_| iv.update(time.to_be_bytes()));
    Cfb::new(&BodyKeys { key: command_key, iv: iv.finalize().into() })
}

/// Makes a request header of its plain form.
pub(super) fn seal_request(command_key: Key, alter_id: &[u8; 16], time: u64, header: &[u8]) -> Vec<u8> {
    let mut out = auth(alter_id, time).to_vec();
    out.extend(header);
    header_cipher(command_key, time).encrypt(&mut out[AUTH_ID..]);
    out
}

/// Reads what follows the auth of a request.
pub(super) fn open_request(r: &mut Reader<'_>, command_key: Key, time: u64) -> Result<Request, DecodeError> {
    let mut header = r.rest()[..r.rest().len().min(MAX_REQUEST)].to_vec();
    header_cipher(command_key, time).decrypt(&mut header);
    let mut plain = Reader::new(&header);
    let request = Request::decode(&mut plain, true)?;
    r.take(plain.position())?;
    Ok(request)
}

/// What the further ids of all users make of the present time, so that a client is found without trying each of them.
pub(super) struct Table {
    /// Whose they are, and the ids.
    ids: Vec<(usize, [u8; 16])>,
    /// The seconds that are filled in.
    filled: RangeInclusive<u64>,
    by_auth: HashMap<[u8; AUTH_ID], (usize, u64)>,
}

impl Table {
    pub(super) fn new(ids: Vec<(usize, [u8; 16])>) -> Self {
        // An empty range, with `start` behind `end`.
        #[expect(clippy::reversed_empty_ranges, reason = "nothing is filled in")]
        let filled = 1..=0;
        Self { ids, filled, by_auth: HashMap::new() }
    }

    /// Whose the auth is and which second it names, if it is one of the present time.
    pub(super) fn find(&mut self, auth: &[u8; AUTH_ID], now: u64) -> Option<(usize, u64)> {
        self.advance(now);
        self.by_auth.get(auth).copied().filter(|(_, time)| time.abs_diff(now) <= WINDOW)
    }

    /// Costs an HMAC per id and second that has passed, whatever clients send.
    fn advance(&mut self, now: u64) {
        let (first, last) = (now.saturating_sub(WINDOW), now.saturating_add(WINDOW));
        if self.filled.contains(&first) && self.filled.contains(&last) {
            return;
        }
        let wanted = first..=last.saturating_add(AHEAD);
        self.by_auth.retain(|_, (_, time)| wanted.contains(time));
        for time in wanted.clone().filter(|time| !self.filled.contains(time)) {
            for (user, id) in &self.ids {
                self.by_auth.entry(auth(id, time)).or_insert((*user, time));
            }
        }
        self.filled = wanted;
    }
}
