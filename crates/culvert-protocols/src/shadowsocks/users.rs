//! Who may use an inbound. The table can be put in place of another while the program runs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use culvert_core::inbound::ManagedUsers;

use super::cipher::BLOCK;
use super::key::Secret;

/// A user, or the next server that a relay passes connections on to.
pub(super) struct User {
    /// The name in rules and logs; nobody's where the inbound has one password for all.
    pub(super) name: Option<Arc<str>>,
    pub(super) key: Secret,
}

/// The users of an inbound.
pub(super) struct Users {
    current: RwLock<Arc<Table>>,
    parse: fn(&str, usize) -> Option<Secret>,
    key_len: usize,
}

/// The users at one time.
#[derive(Default)]
pub(super) struct Table {
    all: Vec<Arc<User>>,
    by_hash: HashMap<[u8; BLOCK], Arc<User>>,
}

impl Table {
    pub(super) fn all(&self) -> &[Arc<User>] {
        &self.all
    }

    /// The user whose key has this hash; of several with one key the last.
    pub(super) fn by_hash(&self, hash: &[u8; BLOCK]) -> Option<&Arc<User>> {
        self.by_hash.get(hash)
    }
}

impl Users {
    /// An empty table of users whose keys are `key_len` bytes long and made of their passwords by `parse`.
    pub(super) fn new(parse: fn(&str, usize) -> Option<Secret>, key_len: usize) -> Self {
        Self { current: RwLock::default(), parse, key_len }
    }

    /// One user without a name.
    pub(super) fn one(key: Secret) -> Self {
        let users = Self::new(|_, _| None, key.bytes().len());
        users.put(vec![Arc::new(User { name: None, key })]);
        users
    }

    /// See [`ManagedUsers::replace`].
    pub(super) fn replace<'a>(
        &self,
        users: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), String> {
        let mut all = Vec::new();
        for (name, password) in users {
            let key = (self.parse)(password, self.key_len).ok_or_else(|| name.to_owned())?;
            all.push(Arc::new(User { name: Some(name.into()), key }));
        }
        self.put(all);
        Ok(())
    }

    fn put(&self, all: Vec<Arc<User>>) {
        let by_hash = all.iter().map(|user| (user.key.hash(), Arc::clone(user))).collect();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Table { all, by_hash });
    }

    /// The users there are now.
    pub(super) fn now(&self) -> Arc<Table> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ManagedUsers for Users {
    fn replace(&self, users: &[(&str, &str)]) -> Result<(), String> {
        self.replace(users.iter().copied())
    }
}

/// Shows how many there are: neither names nor keys reach a log.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.now().all.len())
    }
}
