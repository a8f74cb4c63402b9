//! One hello: from a profile to bytes, and to other bytes when the server wants another key.

use std::fmt;

use zeroize::Zeroizing;

use super::dice;
use super::profiles::{
    ALPS, ALPS_OLD, COMPRESS_CERTIFICATE, COOKIE, DELEGATED_CREDENTIALS, ECH, GREASE, GREASE_2, KEY_SHARE,
    PADDING, POINT_FORMATS, PROTOCOLS, PSK_MODES, RECORD_SIZE_LIMIT, RENEGOTIATION_INFO, SERVER_NAME,
    SIGNATURE_ALGORITHMS, STATUS_REQUEST, SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};
use super::shares::is_known;
use super::{Fingerprint, InnerHello, Profile, Shares};

const CLIENT_HELLO: u8 = 1;
/// Where the 32 bytes of the session id stand in the message, behind type, length, version, random and its length.
const SESSION_ID: usize = 4 + 2 + 32 + 1;

/// A first message, ready to be sent, with the keys that belong to it.
pub struct ClientHello {
    pub(super) message: Vec<u8>,
    random: [u8; 32],
    pub(super) session_id: [u8; 32],
    pub(super) suites: Vec<u16>,
    pub(super) extensions: Vec<(u16, Vec<u8>)>,
    groups: Vec<u16>,
    versions: Vec<u16>,
    protocols: Vec<Vec<u8>>,
    compression: Vec<u16>,
    shares: Shares,
    /// What is encrypted in it.
    pub(super) inner: Option<InnerHello>,
}

impl ClientHello {
    /// A hello of this browser for `server_name`, with a random session id. `None` if the system has no keys for us.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, server_name: Option<&str>, protocols: &[String]) -> Option<Self> {
        Self::build(fingerprint.profile(), server_name, protocols)
    }

    /// The server's name, if one is to be sent; protocols in place of the browser's own, if there are any. A browser that
    /// offers no protocols offers none here too.
    pub(super) fn build(profile: &Profile, server_name: Option<&str>, protocols: &[String]) -> Option<Self> {
        let shares = Shares::new(profile.shares.iter().copied(), profile.one_key)?;
        Some(Draft::new().write(profile, server_name, protocols, shares))
    }

    /// The whole handshake message, without a record around it.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Its random number.
    #[must_use]
    pub fn random(&self) -> &[u8; 32] {
        &self.random
    }

    /// Writes another session id into the message. The server gives it back unless it thinks of a session.
    pub fn set_session_id(&mut self, session_id: [u8; 32]) {
        self.session_id = session_id;
        self.message[SESSION_ID..SESSION_ID + 32].copy_from_slice(&session_id);
    }

    /// Where the session id stands in the message.
    #[must_use]
    pub fn session_id_at() -> std::ops::Range<usize> {
        SESSION_ID..SESSION_ID + 32
    }

    /// What the X25519 key of this hello makes with another public key: the key of its own share, or if there is
    /// none, that of the hybrid share. `None` if there is neither, or the result would be all zeros.
    #[must_use]
    pub fn agree_x25519(&self, peer: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
        let secret = self.shares.agree_x25519(peer)?;
        <[u8; 32]>::try_from(&secret[..]).ok().map(Zeroizing::new)
    }

    pub(crate) fn session_id(&self) -> &[u8; 32] {
        &self.session_id
    }

    /// What is encrypted in it, if that is so.
    pub(crate) fn inner(&self) -> Option<&InnerHello> {
        self.inner.as_ref()
    }

    /// Writes the message anew, after a change.
    pub(super) fn rewrite(&mut self) {
        self.message = encode(&self.random, &self.session_id, &self.suites, &mut self.extensions);
    }

    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    pub(crate) fn offers_suite(&self, suite: u16) -> bool {
        self.suites.contains(&suite)
    }

    pub(crate) fn offers_version(&self, version: u16) -> bool {
        self.versions.contains(&version)
    }

    pub(crate) fn offers_group(&self, group: u16) -> bool {
        self.groups.contains(&group)
    }

    pub(crate) fn offers_protocol(&self, protocol: &[u8]) -> bool {
        self.protocols.iter().any(|offered| offered == protocol)
    }

    pub(crate) fn offers_compression(&self, algorithm: u16) -> bool {
        self.compression.contains(&algorithm)
    }

    pub(crate) fn has_extension(&self, kind: u16) -> bool {
        self.extensions.iter().any(|(other, _)| *other == kind)
    }

    /// Changes this to the second hello that a server asked for: with one key of `group`, and with its cookie. All else
    /// stays as it is. `None` if there can be no such key.
    #[must_use]
    pub(crate) fn retry(&mut self, group: Option<u16>, cookie: Option<&[u8]>) -> Option<()> {
        if let Some(group) = group {
            if !is_known(group) {
                return None;
            }
            self.shares = Shares::new([group], false)?;
            let body = share_list(&[(group, self.shares.public(group)?)]);
            self.extensions.iter_mut().find(|(kind, _)| *kind == KEY_SHARE)?.1 = body;
        }
        if let Some(cookie) = cookie {
            let at = self.extensions.iter().position(|(kind, _)| *kind == SUPPORTED_VERSIONS)?;
            self.extensions.insert(at + 1, (COOKIE, with_len(cookie)));
        }
        self.rewrite();
        Some(())
    }
}

/// Shows no keys.
impl fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientHello({} bytes, shares {:?})", self.message.len(), self.shares)
    }
}

/// The random parts of a hello.
struct Draft {
    random: [u8; 32],
    session_id: [u8; 32],
    /// Reserved values for suites, groups, the two extensions and versions.
    grease: [u16; 5],
}

impl Draft {
    fn new() -> Self {
        let mut grease = dice::bytes::<5>().map(|seed| u16::from(seed & 0xf0 | 0x0a) * 0x0101);
        if grease[2] == grease[3] {
            grease[3] ^= 0x1010;
        }
        Self { random: dice::bytes(), session_id: dice::bytes(), grease }
    }

    fn write(
        self,
        profile: &Profile,
        server_name: Option<&str>,
        protocols: &[String],
        shares: Shares,
    ) -> ClientHello {
        let [for_suites, for_groups, first, last, for_versions] = self.grease;
        let suites = filled(profile.suites, for_suites);
        let groups = filled(profile.groups, for_groups);
        let versions = filled(profile.versions, for_versions);
        let protocols: Vec<Vec<u8>> = if protocols.is_empty() {
            profile.protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
        } else {
            protocols.iter().map(|name| name.clone().into_bytes()).collect()
        };
        let mut kinds: Vec<u16> = profile.extensions.to_vec();
        kinds.retain(|kind| *kind != SERVER_NAME || server_name.is_some());
        if profile.shuffled {
            let inner = kinds.iter().filter(|kind| !is_grease(**kind)).count();
            let start = kinds.iter().position(|kind| !is_grease(*kind)).unwrap_or_default();
            dice::shuffle(&mut kinds[start..start + inner]);
        }
        let body = |kind: u16| -> Vec<u8> {
            match kind {
                SERVER_NAME => name_list(server_name.unwrap_or_default()),
                STATUS_REQUEST => vec![1, 0, 0, 0, 0],
                SUPPORTED_GROUPS => with_len(&numbers(&groups)),
                POINT_FORMATS => vec![1, 0],
                SIGNATURE_ALGORITHMS => with_len(&numbers(profile.schemes)),
                PROTOCOLS => protocol_list(&protocols),
                COMPRESS_CERTIFICATE => with_short_len(&numbers(profile.compression)),
                RECORD_SIZE_LIMIT => vec![0x40, 0x01],
                DELEGATED_CREDENTIALS => with_len(&numbers(&[0x0403, 0x0503, 0x0603, 0x0203])),
                SUPPORTED_VERSIONS => with_short_len(&numbers(&versions)),
                PSK_MODES => vec![1, 1],
                KEY_SHARE => {
                    let shown = profile.shares.iter().filter_map(|group| match *group {
                        GREASE => Some((for_groups, &[0][..])),
                        group => shares.public(group).map(|public| (group, public)),
                    });
                    share_list(&shown.collect::<Vec<_>>())
                }
                ALPS | ALPS_OLD => with_len(&with_short_len(b"h2")),
                ECH => ech(profile.ech),
                RENEGOTIATION_INFO | GREASE_2 => vec![0],
                _ => Vec::new(),
            }
        };
        let mut extensions: Vec<(u16, Vec<u8>)> = kinds
            .into_iter()
            .map(|kind| match kind {
                GREASE => (first, body(kind)),
                GREASE_2 => (last, body(kind)),
                _ => (kind, body(kind)),
            })
            .collect();
        let message = encode(&self.random, &self.session_id, &suites, &mut extensions);
        ClientHello {
            message,
            random: self.random,
            session_id: self.session_id,
            suites,
            extensions,
            groups,
            versions: if versions.is_empty() { vec![0x0303] } else { versions },
            protocols,
            compression: profile.compression.to_vec(),
            shares,
            inner: None,
        }
    }
}

/// Whether a value is a reserved one.
pub(super) fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

/// The list with its reserved value drawn.
fn filled(list: &[u16], grease: u16) -> Vec<u16> {
    list.iter().map(|item| if *item == GREASE { grease } else { *item }).collect()
}

/// The whole message. Padding, where there is some, is made to fit.
pub(super) fn encode(
    random: &[u8; 32],
    session_id: &[u8],
    suites: &[u16],
    extensions: &mut [(u16, Vec<u8>)],
) -> Vec<u8> {
    /// Lengths that some servers of old could not stand, and what is made of them.
    const ODD: std::ops::Range<usize> = 0x100..0x200;
    let mut head = vec![3, 3];
    head.extend(random);
    head.extend(with_short_len(session_id));
    head.extend(with_len(&numbers(suites)));
    head.extend([1, 0]);
    let unpadded: usize =
        extensions.iter().filter(|(kind, _)| *kind != PADDING).map(|(_, body)| 4 + body.len()).sum::<usize>()
            + head.len()
            + 4
            + 2;
    if let Some((_, body)) = extensions.iter_mut().find(|(kind, _)| *kind == PADDING) {
        *body = match ODD.contains(&unpadded) {
            true => vec![0; (ODD.end - unpadded).saturating_sub(4).max(1)],
            false => Vec::new(),
        };
    }
    let mut list = Vec::new();
    for (kind, body) in &*extensions {
        // Padding is left out where it is not needed.
        if *kind != PADDING || !body.is_empty() {
            list.extend(kind.to_be_bytes());
            list.extend(with_len(body));
        }
    }
    head.extend(with_len(&list));
    let mut message = vec![CLIENT_HELLO, 0];
    message.extend(with_len(&head));
    message
}

fn numbers(items: &[u16]) -> Vec<u8> {
    items.iter().flat_map(|item| item.to_be_bytes()).collect()
}

/// Behind its length in two bytes. Nothing in a hello is longer than that allows.
pub(super) fn with_len(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// Behind its length in one byte.
pub(super) fn with_short_len(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

pub(super) fn name_list(name: &str) -> Vec<u8> {
    with_len(&[&[0][..], &with_len(name.as_bytes())].concat())
}

fn protocol_list(protocols: &[Vec<u8>]) -> Vec<u8> {
    with_len(&protocols.iter().flat_map(|name| with_short_len(name)).collect::<Vec<_>>())
}

fn share_list(shares: &[(u16, &[u8])]) -> Vec<u8> {
    let list: Vec<u8> = shares
        .iter()
        .flat_map(|(group, public)| [&group.to_be_bytes()[..], &with_len(public)].concat())
        .collect();
    with_len(&list)
}

/// What looks like an encrypted hello: the kind of hello, KDF, AEAD, a configuration, a key, and noise.
fn ech((aeads, lengths): (&[u16], &[usize])) -> Vec<u8> {
    const HKDF_SHA256: u16 = 1;
    let mut body = vec![0];
    body.extend(HKDF_SHA256.to_be_bytes());
    body.extend(dice::one_of(aeads).to_be_bytes());
    body.push(dice::bytes::<1>()[0]);
    let mut key = dice::bytes::<32>();
    // Points of Curve25519 have no such bit.
    key[31] &= 0x7f;
    body.extend(with_len(&key));
    let mut noise = vec![0; *dice::one_of(lengths)];
    dice::fill(&mut noise);
    body.extend(with_len(&noise));
    body
}

#[cfg(test)]
impl ClientHello {
    /// A hello that is given, with the X25519 key that it shows.
    pub(crate) fn fixed(message: Vec<u8>, private: &[u8; 32]) -> Self {
        let hello = Self::new(Fingerprint::Chrome, None, &[]).unwrap();
        let random = message[6..38].try_into().unwrap();
        Self { random, message, shares: Shares::fixed(private), ..hello }
    }
}
