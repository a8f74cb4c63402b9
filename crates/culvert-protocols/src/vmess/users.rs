//! Who may use an inbound, found by the first 16 bytes of a connection.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aes::Aes128Dec;
use culvert_config::options::users::VmessUser;

use super::codec::{AUTH_ID, auth_id_opener, open_auth_id};
use super::keys::{BodyKeys, Key, command_key};
use super::legacy::{self, MAX_ALTER_IDS, next_id};
use super::replays::{Replays, Verdict};
use crate::BuildError;

/// Seconds that a client's clock may be off, either way.
pub(super) const WINDOW: u64 = 120;

/// The users. To find one costs one block of AES for each, with the key schedules at hand; there is no way around, as the
/// protocol has it.
pub(super) struct Users {
    ciphers: Vec<Aes128Dec>,
    users: Vec<User>,
    /// Where users have further ids.
    legacy: Option<Mutex<legacy::Table>>,
    replays: Mutex<Replays>,
}

struct User {
    name: Arc<str>,
    command_key: Key,
}

/// A client that is one of the users.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) struct Login {
    pub(super) user: usize,
    pub(super) command_key: Key,
    /// What its clock says, in Unix seconds.
    pub(super) time: u64,
    pub(super) legacy: bool,
}

/// Why a client is none, or not to be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    Unknown,
    Time,
    Replay,
    Full,
}

impl Refusal {
    /// In words, for the log.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Unknown => "no user of this server",
            Self::Time => "the client's clock is off by more than two minutes",
            Self::Replay => "a request that has come before",
            Self::Full => "too many connections in two minutes to tell replays",
        }
    }
}

impl Users {
    pub(super) fn new(list: &[VmessUser]) -> Result<Self, BuildError> {
        let (mut ciphers, mut users, mut alter_ids) = (Vec::new(), Vec::new(), Vec::new());
        for (index, user) in list.iter().enumerate() {
            let uuid = user.uuid.uuid();
            let command_key = command_key(uuid);
            let name =
                if user.name.is_empty() { index.to_string().into() } else { user.name.as_str().into() };
            ciphers.push(auth_id_opener(&command_key));
            users.push(User { name, command_key });
            let count = usize::try_from(user.alter_id).unwrap_or(0);
            if count > MAX_ALTER_IDS {
                let reason = format!("user {index} has more than {MAX_ALTER_IDS}");
                return Err(BuildError::Invalid { option: "alterId", reason });
            }
            let ids = std::iter::successors(Some(uuid), |id| Some(next_id(id)));
            alter_ids.extend(ids.skip(1).take(count).map(|id| (index, id)));
        }
        let legacy = (!alter_ids.is_empty()).then(|| Mutex::new(legacy::Table::new(alter_ids)));
        Ok(Self { ciphers, users, legacy, replays: Mutex::new(Replays::new()) })
    }

    /// The user's name in rules and logs.
    pub(super) fn name(&self, login: &Login) -> Arc<str> {
        Arc::clone(&self.users[login.user].name)
    }

    /// What is the same for these users in any run of the program, and for no others.
    pub(super) fn seed(&self) -> u64 {
        let keys: Vec<u8> = self.users.iter().flat_map(|user| user.command_key).collect();
        let hash: [u8; 8] = super::keys::derive(&keys, &[b"behaviour"]);
        u64::from_be_bytes(hash)
    }

    /// Whose connection begins with `id`, at `now` in Unix seconds. An id is good once.
    pub(super) fn identify(&self, id: &[u8; AUTH_ID], now: u64) -> Result<Login, Refusal> {
        let found = self
            .ciphers
            .iter()
            .enumerate()
            .find_map(|(user, cipher)| open_auth_id(cipher, id).map(|time| (user, time)));
        if let Some((user, time)) = found {
            if time.abs_diff(now) > WINDOW {
                return Err(Refusal::Time);
            }
            self.note(id, time, user, now)?;
            return Ok(self.login(user, time, false));
        }
        let table = self.legacy.as_ref().ok_or(Refusal::Unknown)?;
        let found = table.lock().unwrap_or_else(PoisonError::into_inner).find(id, now);
        found.map(|(user, time)| self.login(user, time, true)).ok_or(Refusal::Unknown)
    }

    /// Notes the keys that a client has chosen: they are good once, too. The legacy header has nothing else against replays.
    pub(super) fn note_keys(&self, login: &Login, keys: &BodyKeys, now: u64) -> Result<(), Refusal> {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&keys.key);
        both[16..].copy_from_slice(&keys.iv);
        self.note(&both, login.time, login.user, now)
    }

    fn note(&self, what: &[u8], time: u64, user: usize, now: u64) -> Result<(), Refusal> {
        let mut replays = self.replays.lock().unwrap_or_else(PoisonError::into_inner);
        match replays.note(what, time, user, self.users.len(), now) {
            Verdict::Fresh => Ok(()),
            Verdict::Replayed => Err(Refusal::Replay),
            Verdict::Full => Err(Refusal::Full),
        }
    }

    fn login(&self, user: usize, time: u64, legacy: bool) -> Login {
        Login { user, command_key: self.users[user].command_key, time, legacy }
    }
}

/// Shows how many there are: neither names nor keys reach a log.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.users.len())
    }
}
