//! What proves a client: a session id that only our key opens, and that says what it must.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use subtle::ConstantTimeEq;

use super::hello::{ClientHello, SESSION_ID};
use crate::error::SettingsError;
use crate::reality::{AuthKey, SessionId};

/// Hellos that are remembered. Nobody without a short id can add to them.
const REMEMBERED: usize = 16 << 10;

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
        let SessionId { time, short_id, .. } = key.open(&hello.message)?;
        let named = hello.server_name.as_deref().unwrap_or_default() == self.server_name;
        let apart = now.abs_diff(time.into());
        let in_time = self.max_time_difference.is_none_or(|most| Duration::from_secs(apart) <= most);
        let known = self.short_ids.iter().fold(0, |found, id| found | id.ct_eq(&short_id).unwrap_u8()) == 1;
        (hello.offers_tls13 && named && in_time && known && self.is_first(hello)).then_some(key)
    }

    fn auth_key(&self, hello: &ClientHello) -> Option<AuthKey> {
        let share = UnparsedPublicKey::new(&X25519, hello.proof_key()?);
        agree(&self.private_key, share, (), |shared| {
            let shared = shared.try_into().map_err(drop)?;
            Ok(AuthKey::new(shared, &hello.random))
        })
        .ok()
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
