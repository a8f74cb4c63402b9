//! Names and passwords of an inbound, compared in constant time.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use culvert_config::options::users::LoginUser;
use subtle::{Choice, ConstantTimeEq};

/// The first of `items` that `fits` knows, for protocols in which each has to be tried, by cryptography: after every
/// `at_once` of them other tasks have their turn.
pub(crate) async fn find_in_turns<'a, T, R>(
    items: &'a [T],
    at_once: usize,
    mut fits: impl FnMut(&'a T) -> Option<R>,
) -> Option<R> {
    for (turn, some) in items.chunks(at_once).enumerate() {
        if turn > 0 {
            tokio::task::yield_now().await;
        }
        if let Some(found) = some.iter().find_map(&mut fits) {
            return Some(found);
        }
    }
    None
}

/// Who may use an inbound. A name may have several passwords.
#[derive(Default)]
pub struct Users {
    by_name: HashMap<Box<[u8]>, User>,
}

struct User {
    name: Arc<str>,
    passwords: Vec<Box<[u8]>>,
}

impl Users {
    /// The users of a config; without any, nobody needs to log in.
    #[must_use]
    pub fn new(users: &[LoginUser]) -> Self {
        let mut by_name: HashMap<Box<[u8]>, User> = HashMap::new();
        for LoginUser { username, password } in users {
            let user = by_name
                .entry(username.as_bytes().into())
                .or_insert_with(|| User { name: username.as_str().into(), passwords: vec![] });
            user.passwords.push(password.as_bytes().into());
        }
        Self { by_name }
    }

    /// Whether everybody may use the inbound.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The user's name as the config has it, if name and password fit. All passwords of a name are compared, and an
    /// unknown name is compared with something too, so that the time taken does not tell how far a guess has come.
    #[must_use]
    pub fn check(&self, name: &[u8], password: &[u8]) -> Option<Arc<str>> {
        let Some(user) = self.by_name.get(name) else {
            std::hint::black_box(password.ct_eq(password));
            return None;
        };
        let fits = user.passwords.iter().fold(Choice::from(0), |fits, known| fits | known.ct_eq(password));
        bool::from(fits).then(|| Arc::clone(&user.name))
    }
}

/// Shows how many there are: neither names nor passwords reach a log.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.by_name.len())
    }
}

/// Users who prove themselves with nothing but a key of `N` bytes: a digest of a password, say.
///
/// The look-up takes the same time for whoever asks: keys are spread by a hash that is keyed itself, and compared whole.
pub(crate) struct KeyedUsers<const N: usize> {
    by_key: HashMap<UserKey<N>, Known>,
}

/// A user who has proved to be one.
#[derive(Clone)]
pub(crate) struct Known {
    /// The name, if the config gives one.
    pub(crate) name: Option<Arc<str>>,
}

struct UserKey<const N: usize>([u8; N]);

impl<const N: usize> Hash for UserKey<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl<const N: usize> PartialEq for UserKey<N> {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl<const N: usize> Eq for UserKey<N> {}

impl<const N: usize> Default for KeyedUsers<N> {
    fn default() -> Self {
        Self { by_key: HashMap::new() }
    }
}

impl<const N: usize> KeyedUsers<N> {
    /// Adds a user; of two with one key the later one counts.
    pub(crate) fn insert(&mut self, key: [u8; N], name: &str) {
        let name = (!name.is_empty()).then(|| name.into());
        self.by_key.insert(UserKey(key), Known { name });
    }

    /// Whose key it is.
    pub(crate) fn find(&self, key: &[u8; N]) -> Option<Known> {
        self.by_key.get(&UserKey(*key)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use culvert_config::value::Secret;

    use super::*;

    #[test]
    fn a_name_may_have_several_passwords() {
        let user = |name: &str, password: &str| LoginUser {
            username: name.to_owned(),
            password: Secret(password.to_owned()),
        };
        let users = Users::new(&[user("a", "1"), user("a", "2"), user("b", "")]);
        assert_eq!(users.check(b"a", b"1").as_deref(), Some("a"));
        assert_eq!(users.check(b"a", b"2").as_deref(), Some("a"));
        assert_eq!(users.check(b"b", b"").as_deref(), Some("b"));
        for (name, password) in [("a", ""), ("a", "12"), ("b", "1"), ("c", "1"), ("A", "1"), ("", "")] {
            assert_eq!(users.check(name.as_bytes(), password.as_bytes()), None, "{name}:{password}");
        }
        assert!(Users::new(&[]).is_empty());
    }

    #[test]
    fn a_key_is_one_user() {
        let mut users = KeyedUsers::default();
        users.insert(*b"key1", "a");
        users.insert(*b"key2", "");
        let name = |key| users.find(key).map(|known| known.name);
        assert_eq!(name(b"key1"), Some(Some("a".into())));
        assert_eq!((name(b"key2"), name(b"key3")), (Some(None), None));
    }
}
