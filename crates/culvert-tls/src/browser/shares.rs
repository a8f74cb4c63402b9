//! The keys of a hello, and what comes of them and the server's.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::agreement::{
    Algorithm, ECDH_P256, ECDH_P384, ECDH_P521, PrivateKey, UnparsedPublicKey, X25519, agree,
};
use aws_lc_rs::kem::{Ciphertext, DecapsulationKey, ML_KEM_768};
use zeroize::Zeroizing;

pub(crate) const X25519_GROUP: u16 = 0x001d;
pub(crate) const HYBRID_GROUP: u16 = 0x11ec;

/// What a server adds of ML-KEM-768 to its share.
const CIPHERTEXT: usize = 1088;

/// Keys that a hello shows, in its order.
#[derive(Default)]
pub(crate) struct Shares(Vec<Share>);

struct Share {
    group: u16,
    public: Vec<u8>,
    key: Key,
}

enum Key {
    Curve(Arc<PrivateKey>),
    /// X25519MLKEM768: both, and both must be broken.
    Hybrid {
        kem: Box<DecapsulationKey>,
        curve: Arc<PrivateKey>,
    },
}

impl Shares {
    /// A new key for each of these groups; with `one_key` the hybrid one has that of X25519. Groups that are not known
    /// here are left out.
    pub(crate) fn new(groups: impl IntoIterator<Item = u16>, one_key: bool) -> Option<Self> {
        let mut shared = None;
        let mut x25519 = || {
            let key = match &shared {
                Some(key) if one_key => Arc::clone(key),
                _ => Arc::new(PrivateKey::generate(&X25519).ok()?),
            };
            shared = Some(Arc::clone(&key));
            Some(key)
        };
        let mut shares = Vec::new();
        for group in groups {
            let key = match group {
                HYBRID_GROUP => Key::Hybrid {
                    kem: Box::new(DecapsulationKey::generate(&ML_KEM_768).ok()?),
                    curve: x25519()?,
                },
                X25519_GROUP => Key::Curve(x25519()?),
                other => match nist(other) {
                    Some(algorithm) => Key::Curve(Arc::new(PrivateKey::generate(algorithm).ok()?)),
                    None => continue,
                },
            };
            shares.push(Share { group, public: key.public()?, key });
        }
        Some(Self(shares))
    }

    /// Whether a key of this group is shown.
    pub(crate) fn has(&self, group: u16) -> bool {
        self.0.iter().any(|share| share.group == group)
    }

    /// The public part of the key of this group.
    pub(crate) fn public(&self, group: u16) -> Option<&[u8]> {
        self.0.iter().find(|share| share.group == group).map(|share| &*share.public)
    }

    /// The secret that the server's share of this group makes with ours; `None` if it is no share of that group.
    pub(crate) fn agree(&self, group: u16, peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let share = self.0.iter().find(|share| share.group == group)?;
        match &share.key {
            Key::Curve(key) => curve(key, peer),
            Key::Hybrid { kem, curve: key } => {
                let (ciphertext, peer) = peer.split_at_checked(CIPHERTEXT)?;
                let kem = kem.decapsulate(Ciphertext::from(ciphertext)).ok()?;
                let mut secret = Zeroizing::new(kem.as_ref().to_vec());
                secret.extend_from_slice(&curve(key, peer)?);
                Some(secret)
            }
        }
    }

    /// The secret that another X25519 key makes with the first of ours: the plain one, or else the one in a hybrid.
    pub(crate) fn agree_x25519(&self, peer: &[u8; 32]) -> Option<Zeroizing<Vec<u8>>> {
        let plain = self.0.iter().find(|share| share.group == X25519_GROUP);
        let share = plain.or_else(|| self.0.iter().find(|share| share.group == HYBRID_GROUP))?;
        match &share.key {
            Key::Curve(key) | Key::Hybrid { curve: key, .. } => curve(key, peer),
        }
    }
}

impl Key {
    fn public(&self) -> Option<Vec<u8>> {
        Some(match self {
            Self::Curve(key) => key.compute_public_key().ok()?.as_ref().to_vec(),
            Self::Hybrid { kem, curve } => {
                let kem = kem.encapsulation_key().ok()?.key_bytes().ok()?;
                [kem.as_ref(), curve.compute_public_key().ok()?.as_ref()].concat()
            }
        })
    }
}

fn nist(group: u16) -> Option<&'static Algorithm> {
    Some(match group {
        0x0017 => &ECDH_P256,
        0x0018 => &ECDH_P384,
        0x0019 => &ECDH_P521,
        _ => return None,
    })
}

/// Whether a key of this group could be made.
pub(crate) fn is_known(group: u16) -> bool {
    matches!(group, HYBRID_GROUP | X25519_GROUP) || nist(group).is_some()
}

/// The library refuses points that are not on the curve, and secrets that are all zeros.
fn curve(key: &PrivateKey, peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    // TLS allows no other form of a point on a NIST curve.
    const UNCOMPRESSED: u8 = 4;
    if *key.algorithm() != X25519 && peer.first() != Some(&UNCOMPRESSED) {
        return None;
    }
    let peer = UnparsedPublicKey::new(key.algorithm(), peer);
    agree(key, peer, (), |secret| Ok(Zeroizing::new(secret.to_vec()))).ok()
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|share| format!("{:04x}", share.group))).finish()
    }
}

/// The X25519 key `private` in place of one that was made up, for vectors.
#[cfg(test)]
impl Shares {
    pub(crate) fn fixed(private: &[u8; 32]) -> Self {
        let key = Key::Curve(Arc::new(PrivateKey::from_private_key(&X25519, private).unwrap()));
        Self(vec![Share { group: X25519_GROUP, public: key.public().unwrap(), key }])
    }
}
