//! Outbound `ssh`: connections that an SSH server opens.

use crate::cx::Cx;
use crate::json::{Node, Place};
use crate::options::dial::{DialOptions, ServerOptions};
use crate::table::options;
use crate::value::{List, Pem, PemSection, Secret, decode_base64};

options! {
    /// Options of an SSH outbound.
    pub struct SshOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server; port 22 when absent.
        server: ServerOptions = ..,
        /// Name to log in with; `root` when absent.
        user: String,
        /// Password.
        password: Secret<String>,
        /// Private key to log in with, as one text or as lines.
        private_key: Secret<Pem>,
        /// File with the private key.
        private_key_path: String,
        /// Passphrase of the private key.
        private_key_passphrase: Secret<String>,
        /// Keys the server may have, as in `known_hosts`; any when absent.
        host_key: List<String>,
        /// Kinds of key the server may have.
        host_key_algorithms: List<String>,
        /// What the client says it is.
        client_version: String,
        /// Ciphers, best first.
        cipher: List<String>,
        /// Message authentication codes, best first.
        mac: List<String>,
        /// Key exchange methods, best first.
        kex_algorithm: List<String>,
    }
    check = SshOutbound::check_keys;
}

impl SshOutbound {
    fn check_keys(&self, node: &Node, cx: &mut Cx<'_>) {
        if !self.private_key.is_empty() {
            self.check_private_key(&self.private_key.text(), node.place_of("private_key"), cx);
        } else if !self.private_key_path.is_empty() {
            let place = node.place_of("private_key_path");
            if let Some(content) = cx.read_file(place, &self.private_key_path) {
                self.check_private_key(&String::from_utf8_lossy(&content), place, cx);
            }
        }
        for key in self.host_key.iter().filter(|key| !is_public_key(key)) {
            let message = format!("`{key}` is not a public key; write for example `ssh-ed25519 AAAAC3Nz...`");
            cx.error(node.place_of("host_key"), message);
        }
    }

    fn check_private_key(&self, text: &str, place: Place, cx: &mut Cx<'_>) {
        let sections = PemSection::all(text);
        let Some(key) = sections.iter().find(|section| section.label.ends_with("PRIVATE KEY")) else {
            cx.error(
                place,
                "no private key found; it begins with a line such as `-----BEGIN OPENSSH PRIVATE KEY-----`",
            );
            return;
        };
        match (is_encrypted(key), self.private_key_passphrase.is_empty()) {
            (true, true) => {
                cx.error(place, "this private key needs its passphrase in `private_key_passphrase`")
            }
            (false, false) => {
                cx.error(place, "this private key has no passphrase, so `private_key_passphrase` must go");
            }
            _ => {}
        }
    }
}

/// Whether a passphrase is needed to read a private key: OpenSSH names the cipher inside, older forms in a header.
fn is_encrypted(key: &PemSection) -> bool {
    const MAGIC: &[u8] = b"openssh-key-v1\0";
    const PLAIN: &[u8] = b"\0\0\0\x04none";
    match key.content.strip_prefix(MAGIC) {
        Some(rest) => !rest.starts_with(PLAIN),
        None => key.has_headers || key.label == "ENCRYPTED PRIVATE KEY",
    }
}

/// Whether a line holds a public key: its kind, then base64 that begins with the same kind. Options may stand before
/// them and a comment behind them.
fn is_public_key(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).any(|pair| {
        let kind = pair[0].as_bytes();
        let Ok(content) = decode_base64(pair[1]) else { return false };
        let Some((length, rest)) = content.split_first_chunk::<4>() else { return false };
        u32::from_be_bytes(*length) as usize == kind.len()
            && rest.starts_with(kind)
            && rest.len() > kind.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_name_their_kind_twice() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@host";
        assert!(is_public_key(key));
        assert!(is_public_key(&format!("[example.org]:22 {key}")));
        assert!(!is_public_key(
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
        ));
        assert!(!is_public_key("ssh-ed25519 AAAA"));
        assert!(!is_public_key("x"));
    }

    #[test]
    fn encrypted_keys_are_recognised() {
        let section = |label: &str, has_headers, content: &[u8]| PemSection {
            label: label.to_owned(),
            has_headers,
            content: content.to_owned(),
        };
        assert!(!is_encrypted(&section("OPENSSH PRIVATE KEY", false, b"openssh-key-v1\0\0\0\0\x04none")));
        assert!(is_encrypted(&section(
            "OPENSSH PRIVATE KEY",
            false,
            b"openssh-key-v1\0\0\0\0\x0aaes256-ctr"
        )));
        assert!(is_encrypted(&section("RSA PRIVATE KEY", true, b"0")));
        assert!(!is_encrypted(&section("PRIVATE KEY", false, b"0")));
    }
}
