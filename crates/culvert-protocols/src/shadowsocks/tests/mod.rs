//! Vectors, both ends in memory, strangers, and datagrams over loopback.

mod packets;
mod strangers;
mod streams;
mod vectors;

use std::sync::Arc;

use super::cipher::Cipher;
use super::key::Secret;
use super::outbound::Proof;
use super::server::{Access, Server};
use super::users::Users;
use crate::onward::Onward;

pub(super) const PASSWORD: &str = "test-Password";

/// Bytes `from`, `from + 1`, and so on.
pub(super) fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|at| from + at as u8)
}

pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |digit: &u8| (*digit as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|two| value(&two[0]) << 4 | value(&two[1])).collect()
}

pub(super) fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The key of the 2022 edition that begins with `from`.
pub(super) fn key_of(cipher: Cipher, from: u8) -> Secret {
    let bytes: [u8; 32] = counting(from);
    Secret::of_base64(&base64(&bytes[..cipher.key_len()]), cipher.key_len()).unwrap()
}

/// Every method, as both ends have it.
pub(super) fn methods() -> Vec<(&'static str, Access, Proof)> {
    let mut methods = vec![("none", Access::None, Proof::None)];
    for (name, cipher) in [
        ("aes-128-gcm", Cipher::Aes128Gcm),
        ("aes-192-gcm", Cipher::Aes192Gcm),
        ("aes-256-gcm", Cipher::Aes256Gcm),
        ("chacha20-ietf-poly1305", Cipher::ChaCha20Poly1305),
        ("xchacha20-ietf-poly1305", Cipher::XChaCha20Poly1305),
    ] {
        let key = || Secret::of_password(PASSWORD, cipher.key_len());
        methods.push((name, one(cipher, key()), Proof::Aead(cipher, key())));
        methods.push(("with users", aead_users(cipher), Proof::Aead(cipher, key())));
    }
    for (name, cipher) in [
        ("2022-blake3-aes-128-gcm", Cipher::Aes128Gcm),
        ("2022-blake3-aes-256-gcm", Cipher::Aes256Gcm),
        ("2022-blake3-chacha20-poly1305", Cipher::ChaCha20Poly1305),
    ] {
        let key = key_of(cipher, 1);
        let access = Access::Edition2022 { cipher, key: Arc::new(key.clone()), users: None };
        methods.push((name, access, Proof::Edition2022(cipher, [key].into())));
    }
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm] {
        let keys = [key_of(cipher, 1), key_of(cipher, 40)];
        methods.push(("2022 with users", users_2022(cipher), Proof::Edition2022(cipher, keys.into())));
    }
    methods
}

/// One password of the first AEAD edition.
pub(super) fn one(cipher: Cipher, key: Secret) -> Access {
    Access::Aead { cipher, users: Arc::new(Users::one(key)) }
}

/// Users of the first AEAD edition; the known one is the third.
pub(super) fn aead_users(cipher: Cipher) -> Access {
    let users = Users::new(|password, len| Some(Secret::of_password(password, len)), cipher.key_len());
    users.replace([("a", "one"), ("b", "two"), ("carol", PASSWORD)]).unwrap();
    Access::Aead { cipher, users: Arc::new(users) }
}

/// Users of the 2022 edition; the known one has the key that begins with 40.
pub(super) fn users_2022(cipher: Cipher) -> Access {
    let users = Users::new(Secret::of_base64_or_longer, cipher.key_len());
    let bytes = |from| base64(&counting::<32>(from)[..cipher.key_len()]);
    users.replace([("a", &*bytes(90)), ("carol", &bytes(40))]).unwrap();
    Access::Edition2022 { cipher, key: Arc::new(key_of(cipher, 1)), users: Some(Arc::new(users)) }
}

pub(super) fn server(access: Access) -> Arc<dyn culvert_core::StreamServer> {
    Arc::new(Server::new(Arc::new(access), Onward { mux: None, uot: true }, None))
}
