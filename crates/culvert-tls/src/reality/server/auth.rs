//! What proves a client: a session id that only our key opens.
//!
//! ```text
//! key         HKDF-SHA256(X25519(client's share, our key), salt random[0..20], "REALITY")
//! session id  AES-256-GCM(key, nonce random[20..32], additional data: the hello with zeros for a session id)
//!             of  version 3  0  unix time 4  short id 8
//! ```

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::hkdf;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::hello::{ClientHello, SESSION_ID};
use crate::error::SettingsError;

/// Hellos that are remembered. Nobody without a short id can add to them.
const REMEMBERED: usize = 16 << 10;

/// What both sides know that are who they say.
pub type AuthKey = Zeroizing<[u8; 32]>;

/// Whom a server takes for a client.
pub struct Policy {
    private_key: PrivateKey,
    server_name: String,
    short_ids: Vec<[u8; 8]>,
    max_time_difference: Option<Duration>,
    seen: Mutex<Seen>,
}

/// Hellos that were accepted, the last ones.
#[derive(Default)]
struct Seen {
    hasher: RandomState,
    order: VecDeque<u64>,
    all: HashSet<u64>,
}

impl Policy {
    /// Those who know the other half of this key, ask for this name and have one of these ids. Without any the only one is
    /// that of zeros.
    ///
    /// # Errors
    /// The key is none.
    pub fn new(
        private_key: &[u8; 32],
        server_name: String,
        mut short_ids: Vec<[u8; 8]>,
        max_time_difference: Option<Duration>,
    ) -> Result<Self, SettingsError> {
        let private_key = PrivateKey::from_private_key(&X25519, private_key)
            .map_err(|error| SettingsError::invalid("reality.private_key", error))?;
        if short_ids.is_empty() {
            short_ids.push([0; 8]);
        }
        Ok(Self { private_key, server_name, short_ids, max_time_difference, seen: Mutex::default() })
    }

    /// What the hello proves at this time, in seconds since 1970; `None` if it is a stranger's.
    #[must_use]
    pub fn admit(&self, hello: &ClientHello, now: u64) -> Option<AuthKey> {
        // The key is worked out first, so that the time it takes says nothing of the name.
        let key = self.auth_key(hello)?;
        let opened = open_session_id(&key, hello)?;
        let named = hello.server_name.as_deref().unwrap_or_default() == self.server_name;
        let [_, _, _, _, a, b, c, d, short_id @ ..] = opened;
        let apart = now.abs_diff(u32::from_be_bytes([a, b, c, d]).into());
        let in_time = self.max_time_difference.is_none_or(|most| Duration::from_secs(apart) <= most);
        let known = self.short_ids.iter().fold(0, |found, id| found | id.ct_eq(&short_id).unwrap_u8()) == 1;
        (hello.offers_tls13 && named && in_time && known && self.is_first(hello)).then_some(key)
    }

    fn auth_key(&self, hello: &ClientHello) -> Option<AuthKey> {
        let share = UnparsedPublicKey::new(&X25519, hello.proof_key()?);
        agree(&self.private_key, share, (), |shared| auth_key(shared, &hello.random).ok_or(())).ok()
    }

    fn is_first(&self, hello: &ClientHello) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = seen.hasher.hash_one(&hello.message[SESSION_ID]);
        if !seen.all.insert(hash) {
            return false;
        }
        seen.order.push_back(hash);
        if seen.order.len() > REMEMBERED
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.all.remove(&oldest);
        }
        true
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// The key that follows from what the two X25519 keys share.
fn auth_key(shared: &[u8], random: &[u8; 32]) -> Option<AuthKey> {
    let mut key = AuthKey::default();
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, &random[..20]).extract(shared);
    prk.expand(&[b"REALITY"], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut *key)).ok()?;
    Some(key)
}

fn open_session_id(key: &AuthKey, hello: &ClientHello) -> Option<[u8; 16]> {
    if !hello.has_session_id {
        return None;
    }
    let mut sealed: [u8; 32] = hello.message[SESSION_ID].try_into().ok()?;
    let mut blank = hello.message.clone();
    blank[SESSION_ID].fill(0);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &**key).ok()?);
    let nonce = Nonce::try_assume_unique_for_key(&hello.random[20..]).ok()?;
    let opened = key.open_in_place(nonce, Aad::from(&blank), &mut sealed).ok()?;
    (&*opened).try_into().ok()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// What a client seals into its hello.
    pub(in crate::reality::server) fn seal(
        ours: &PrivateKey,
        server: &[u8],
        message: &mut [u8],
        plain: [u8; 16],
    ) -> AuthKey {
        let random: [u8; 32] = message[6..38].try_into().unwrap();
        let server = UnparsedPublicKey::new(&X25519, server);
        let key = agree(ours, server, (), |shared| auth_key(shared, &random).ok_or(())).unwrap();
        message[SESSION_ID].fill(0);
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).unwrap());
        let nonce = Nonce::try_assume_unique_for_key(&random[20..]).unwrap();
        let mut sealed = plain.to_vec();
        cipher.seal_in_place_append_tag(nonce, Aad::from(&*message), &mut sealed).unwrap();
        message[SESSION_ID].copy_from_slice(&sealed);
        key
    }
}
