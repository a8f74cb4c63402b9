//! Who may use an inbound, found by id in a time that does not depend on how near a guess has come.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use culvert_config::options::users::{VlessFlow, VlessUser};
use subtle::ConstantTimeEq;

use super::codec::Id;

/// The users of an inbound.
pub(super) struct Users {
    /// By a hash with a key of its own: what can be learned of it by time says nothing about ids.
    by_hash: HashMap<u64, Vec<User>>,
    hasher: RandomState,
}

/// One of them.
pub(super) struct User {
    pub(super) id: Id,
    /// The name that rules and logs use.
    pub(super) name: Arc<str>,
    flow: Option<VlessFlow>,
}

impl User {
    /// Whether this is the flow that the user must ask for.
    pub(super) fn has_flow(&self, flow: &[u8]) -> bool {
        flow == self.flow.map_or("", VlessFlow::name).as_bytes()
    }

    /// Whether its connections go by Vision.
    pub(super) fn has_vision(&self) -> bool {
        self.flow == Some(VlessFlow::Vision)
    }
}

impl Users {
    /// The users of a config. Where several have one id the last one counts, as in sing-box.
    pub(super) fn new(users: &[VlessUser]) -> Self {
        let mut all = Self { by_hash: HashMap::new(), hasher: RandomState::new() };
        for (index, options) in users.iter().enumerate() {
            let name = match options.name.as_str() {
                "" => index.to_string().into(),
                name => name.into(),
            };
            let user = User { id: Id(options.uuid.uuid()), name, flow: options.flow.get() };
            let bucket = all.by_hash.entry(all.hasher.hash_one(user.id.0)).or_default();
            bucket.retain(|other| other.id != user.id);
            bucket.push(user);
        }
        all
    }

    /// The user with this id.
    pub(super) fn find(&self, id: &Id) -> Option<&User> {
        let bucket = self.by_hash.get(&self.hasher.hash_one(id.0))?;
        bucket.iter().find(|user| bool::from(user.id.0.ct_eq(&id.0)))
    }
}

/// Shows how many there are: neither names nor ids reach a log.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.by_hash.len())
    }
}
