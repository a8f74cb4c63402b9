//! What a provider is made from: plain values, whatever text they came from.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// A provider of certificates by ACME.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names and addresses to have a certificate for, one for each.
    pub names: Vec<Name>,
    /// Where accounts and certificates are kept.
    pub data_directory: PathBuf,
    /// The name whose certificate clients get that ask for none.
    pub default_name: Option<String>,
    /// Address the authority can write to.
    pub email: Option<String>,
    /// URL of the authority's directory.
    pub authority: String,
    /// Key of an account, in PEM; the stored one, or a new one, if absent.
    pub account_key: Option<Secret>,
    /// Port that the authority's requests to port 80 arrive at, if it may ask that way.
    pub http_port: Option<u16>,
    /// Port that the authority's connections to port 443 arrive at, if it may ask that way.
    pub tls_port: Option<u16>,
    /// An account elsewhere that the ACME account belongs to.
    pub external_account: ExternalAccount,
    /// Kind of the certificates' keys.
    pub key_type: KeyType,
    /// Profile of certificates the authority offers.
    pub profile: Option<String>,
}

/// Whom a certificate is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Name {
    /// A domain name in lower case, or a wildcard.
    Domain(String),
    /// An address.
    Ip(IpAddr),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domain(name) => f.write_str(name),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

/// An account elsewhere that an ACME account belongs to.
#[derive(Clone, Debug)]
pub enum ExternalAccount {
    /// None is needed.
    None,
    /// This one.
    Given {
        /// Its id.
        key_id: String,
        /// Its key.
        mac_key: Secret<Vec<u8>>,
    },
    /// One that ZeroSSL makes for an email address.
    ZeroSsl,
}

/// Kind of a certificate's key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KeyType {
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256.
    #[default]
    P256,
    /// ECDSA on P-384.
    P384,
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 4096 bits.
    Rsa4096,
}

/// A value that must not show up in logs.
#[derive(Clone)]
pub struct Secret<T = String>(pub T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
