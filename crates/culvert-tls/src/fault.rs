//! What is wrong with a certificate.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;
use time::OffsetDateTime;

use crate::der::Certificate;

/// Why a certificate was not accepted. `name` is the name that was to be shown, or for clients the name in it.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum CertificateFault {
    /// Its time is over.
    #[error("certificate for {name} expired on {}", Day(*.on))]
    Expired {
        /// Whom it was to be for.
        name: String,
        /// When, in seconds since 1970.
        on: i64,
    },
    /// Its time has not come.
    #[error("certificate for {name} is not valid before {}", Day(*.until))]
    NotYetValid {
        /// Whom it was to be for.
        name: String,
        /// When, in seconds since 1970.
        until: i64,
    },
    /// It belongs to somebody else.
    #[error("certificate is valid for {}, not {name}", listed(.valid_for))]
    WrongName {
        /// Whom it was to be for.
        name: String,
        /// Whom it is for.
        valid_for: Vec<String>,
    },
    /// Nobody who is trusted has signed it.
    #[error("certificate for {name} is signed by {}, which is not trusted", .issuer.as_deref().unwrap_or("an unknown authority"))]
    UnknownIssuer {
        /// Whom it was to be for.
        name: String,
        /// Who signed it.
        issuer: Option<String>,
    },
    /// It is signed by itself and not among those that are trusted.
    #[error("certificate for {name} is self-signed and not trusted")]
    SelfSigned {
        /// Whom it was to be for.
        name: String,
    },
    /// Its key is not one of the pinned ones.
    #[error("public key {} of {name} is not in {option}", STANDARD.encode(.sha256))]
    NotPinned {
        /// Whom it was to be for.
        name: String,
        /// SHA-256 of the key it has.
        sha256: [u8; 32],
        /// The key of the option with the pins.
        option: &'static str,
    },
    /// It is missing.
    #[error("no certificate was given")]
    Missing,
    /// We have none for this client, for the reason given.
    #[error("{0}")]
    NotThere(String),
    /// Anything else.
    #[error("certificate for {name}: {reason}")]
    Other {
        /// Whom it was to be for.
        name: String,
        /// In the words of the library that checks.
        reason: String,
    },
}

impl CertificateFault {
    /// Says in our words what the TLS library found wrong.
    pub(crate) fn explain(
        error: &CertificateError,
        certificate: &CertificateDer<'_>,
        name: Option<&ServerName<'_>>,
    ) -> Self {
        let parsed = Certificate::parse(certificate);
        let name = match name {
            Some(name) => name.to_str().into_owned(),
            None => parsed.and_then(|parsed| parsed.subject()).unwrap_or_else(|| "the client".to_owned()),
        };
        match error {
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired { name, on: not_after.as_secs() as i64 }
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotYetValid { name, until: not_before.as_secs() as i64 }
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                let valid_for = presented.iter().map(|shown| bare(shown).to_owned()).collect();
                Self::WrongName { name, valid_for }
            }
            CertificateError::UnknownIssuer if parsed.is_some_and(|parsed| parsed.is_self_issued()) => {
                Self::SelfSigned { name }
            }
            CertificateError::UnknownIssuer => {
                Self::UnknownIssuer { name, issuer: parsed.and_then(|parsed| parsed.issuer()) }
            }
            other => Self::Other { name, reason: other.to_string() },
        }
    }
}

/// `DnsName("a.test")`, as the library shows it, without the shell.
fn bare(shown: &str) -> &str {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(shown, |inner| inner.trim_matches('"'))
}

fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    match names.len() {
        0 => "no name".to_owned(),
        count if count > MOST => format!("{} and {} more", names[..MOST].join(", "), count - MOST),
        _ => names.join(", "),
    }
}

/// A day as `2026-01-02`.
struct Day(i64);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match OffsetDateTime::from_unix_timestamp(self.0) {
            Ok(time) => write!(f, "{:04}-{:02}-{:02}", time.year(), u8::from(time.month()), time.day()),
            Err(_) => write!(f, "a day beyond all calendars"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_day_and_names() {
        let name = || "a.test".to_owned();
        let on = 1_767_312_000;
        let expired = CertificateFault::Expired { name: name(), on };
        assert_eq!(expired.to_string(), "certificate for a.test expired on 2026-01-02");
        let wrong = CertificateFault::WrongName { name: name(), valid_for: vec!["b.test".into()] };
        assert_eq!(wrong.to_string(), "certificate is valid for b.test, not a.test");
        let many = (0..7).map(|i| format!("{i}.test")).collect();
        let wrong = CertificateFault::WrongName { name: name(), valid_for: many };
        assert!(wrong.to_string().contains("4.test and 2 more"), "{wrong}");
    }
}
