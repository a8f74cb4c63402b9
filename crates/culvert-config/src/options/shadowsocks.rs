//! What both sides of Shadowsocks share: methods and their keys.
//!
//! Source: the Shadowsocks specifications SIP004 (AEAD) and SIP022 (2022 edition).

use crate::value::{choices, decode_base64};

choices! {
    /// How Shadowsocks encrypts.
    pub enum ShadowsocksMethod: "method" {
        /// Not at all.
        None = "none",
        /// AEAD.
        Aes128Gcm = "aes-128-gcm",
        /// AEAD.
        Aes192Gcm = "aes-192-gcm",
        /// AEAD.
        Aes256Gcm = "aes-256-gcm",
        /// AEAD.
        ChaCha20Poly1305 = "chacha20-ietf-poly1305",
        /// AEAD.
        XChaCha20Poly1305 = "xchacha20-ietf-poly1305",
        /// AEAD, 2022 edition.
        Blake3Aes128Gcm = "2022-blake3-aes-128-gcm",
        /// AEAD, 2022 edition.
        Blake3Aes256Gcm = "2022-blake3-aes-256-gcm",
        /// AEAD, 2022 edition.
        Blake3ChaCha20Poly1305 = "2022-blake3-chacha20-poly1305",
        /// Stream cipher, for outbounds only.
        Aes128Ctr = "aes-128-ctr",
        /// Stream cipher, for outbounds only.
        Aes192Ctr = "aes-192-ctr",
        /// Stream cipher, for outbounds only.
        Aes256Ctr = "aes-256-ctr",
        /// Stream cipher, for outbounds only.
        Aes128Cfb = "aes-128-cfb",
        /// Stream cipher, for outbounds only.
        Aes192Cfb = "aes-192-cfb",
        /// Stream cipher, for outbounds only.
        Aes256Cfb = "aes-256-cfb",
        /// Stream cipher, for outbounds only.
        Rc4Md5 = "rc4-md5",
        /// Stream cipher, for outbounds only.
        ChaCha20 = "chacha20-ietf",
        /// Stream cipher, for outbounds only.
        XChaCha20 = "xchacha20",
    }
}

impl ShadowsocksMethod {
    /// Whether the method is one of the 2022 edition, whose passwords are keys in base64.
    #[must_use]
    pub const fn is_2022(self) -> bool {
        self.key_length().is_some()
    }

    /// Whether several users can share a port: with AEAD by trying, in the 2022 edition by an encrypted hint that only
    /// the AES methods have.
    #[must_use]
    pub const fn has_users(self) -> bool {
        !matches!(self, Self::None | Self::Blake3ChaCha20Poly1305) && !self.is_stream()
    }

    /// Whether packets can name the user they are for in a chain of keys.
    #[must_use]
    pub const fn has_key_chains(self) -> bool {
        matches!(self, Self::Blake3Aes128Gcm | Self::Blake3Aes256Gcm)
    }

    /// Whether the method is one of the old stream ciphers.
    #[must_use]
    pub const fn is_stream(self) -> bool {
        matches!(
            self,
            Self::Aes128Ctr
                | Self::Aes192Ctr
                | Self::Aes256Ctr
                | Self::Aes128Cfb
                | Self::Aes192Cfb
                | Self::Aes256Cfb
                | Self::Rc4Md5
                | Self::ChaCha20
                | Self::XChaCha20
        )
    }

    /// Length of a key of the 2022 edition in bytes.
    #[must_use]
    pub const fn key_length(self) -> Option<usize> {
        match self {
            Self::Blake3Aes128Gcm => Some(16),
            Self::Blake3Aes256Gcm | Self::Blake3ChaCha20Poly1305 => Some(32),
            _ => None,
        }
    }

    /// What is wrong with a password on the side of the server. A key of the 2022 edition may be too long there; it is
    /// then hashed down.
    pub(crate) fn server_fault(self, password: &str) -> Option<String> {
        if password.is_empty() {
            return (self != Self::None).then(|| "the password is missing".to_owned());
        }
        let length = self.key_length()?;
        match decode_base64(password) {
            Err(_) => Some(format!("the password of {} must be a key in base64", self.name())),
            Ok(key) if key.len() < length => Some(wrong_length(self, "at least ", length, key.len())),
            Ok(_) => None,
        }
    }

    /// What is wrong with a password on the side of the client: one key, or a chain of keys with colons between them.
    pub(crate) fn client_fault(self, password: &str) -> Option<String> {
        if password.is_empty() {
            return (self != Self::None).then(|| "the password is missing".to_owned());
        }
        let length = self.key_length()?;
        if password.contains(':') && !self.has_key_chains() {
            return Some(format!("{} has no chains of keys, only the AES methods have", self.name()));
        }
        password.split(':').find_map(|key| match decode_base64(key) {
            Err(_) => Some(format!("the password of {} must be a key in base64", self.name())),
            Ok(key) if key.len() != length => Some(wrong_length(self, "", length, key.len())),
            Ok(_) => None,
        })
    }
}

fn wrong_length(method: ShadowsocksMethod, at_least: &str, length: usize, found: usize) -> String {
    format!("a key of {} has {at_least}{length} bytes, this one has {found}", method.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_16: &str = "YWFhYWFhYWFhYWFhYWFhYQ==";
    const KEY_8: &str = "YWFhYWFhYWE=";

    #[test]
    fn clients_need_keys_of_the_exact_length() {
        let fault = |password: &str| ShadowsocksMethod::Blake3Aes128Gcm.client_fault(password);
        assert_eq!(fault(KEY_16), None);
        assert_eq!(fault(&format!("{KEY_16}:{KEY_16}")), None);
        let short = "a key of 2022-blake3-aes-128-gcm has 16 bytes, this one has 8";
        assert_eq!(fault(&format!("{KEY_16}:{KEY_8}")).as_deref(), Some(short));
        assert!(fault("").is_some() && fault("???").is_some());
        assert!(ShadowsocksMethod::Blake3Aes256Gcm.client_fault(KEY_16).is_some());
        let chain =
            "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=:YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
        assert!(ShadowsocksMethod::Blake3ChaCha20Poly1305.client_fault(chain).is_some());
        assert_eq!(ShadowsocksMethod::Blake3Aes256Gcm.client_fault(chain), None);
    }

    #[test]
    fn servers_hash_longer_keys_down() {
        assert!(ShadowsocksMethod::Blake3Aes128Gcm.server_fault(KEY_8).is_some());
        let long = "YWFhYWFhYWFhYWFhYWFhYWFhYWE=";
        assert_eq!(ShadowsocksMethod::Blake3Aes128Gcm.server_fault(long), None);
    }

    #[test]
    fn other_methods_take_any_password() {
        assert_eq!(ShadowsocksMethod::Aes128Gcm.server_fault("x"), None);
        assert!(ShadowsocksMethod::Aes128Gcm.server_fault("").is_some());
        assert_eq!(ShadowsocksMethod::None.client_fault(""), None);
    }
}
