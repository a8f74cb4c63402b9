//! ClientHellos as browsers send them, byte by byte.
//!
//! ```text
//! message   1 | length 3 | 3 3 | random 32 | 32 | session id 32 | suites 2+ | 1 0 | extensions 2+
//! extension type 2 | length 2 | body
//! ```
//!
//! What a browser says in its first message, and in which order, tells it from every other program. A [`Profile`] is
//! what stands fast for one browser; a [`ClientHello`] is one message of it, with keys, random numbers and everything
//! else that differs each time: reserved values thrown in (GREASE, RFC 8701), the order of extensions in Chrome, an
//! encrypted hello that is none (ECH GREASE).
//!
//! The message is final once it is built but for the session id, into which some protocols write a sign for their
//! server: [`ClientHello::set_session_id`]. An X25519 key of the message can be agreed with another than the server's
//! too: [`ClientHello::agree_x25519`].
//!
//! Sources: hellos captured from browsers and from uTLS 1.8, JA3 and JA4 as published for them; RFC 8446 section 4.1.2,
//! RFC 8701, RFC 8879 (compressed certificates), RFC 9849 (ECH), draft-vvv-tls-alps. Left out on purpose: session tickets,
//! which would tie one connection to another.

mod dice;
mod ech;
mod message;
mod profiles;
mod randomized;
mod shares;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::OnceLock;

pub(crate) use ech::{Config as EchConfig, InnerHello};
pub use message::ClientHello;
pub(crate) use profiles::{
    ALPS, ALPS_OLD, COMPRESS_CERTIFICATE, COOKIE, DELEGATED_CREDENTIALS, ECH, EXTENDED_MASTER_SECRET,
    KEY_SHARE, NEXT_PROTOCOL, PROTOCOLS, Profile, RECORD_SIZE_LIMIT, RENEGOTIATION_INFO, SCT, SERVER_NAME,
    SESSION_TICKET, SIGNATURE_ALGORITHMS, STATUS_REQUEST, SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};
pub(crate) use shares::Shares;

/// A browser to imitate.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Fingerprint {
    /// A recent Chrome: 150 and 151.
    Chrome,
    /// A recent Firefox: 154.
    Firefox,
    /// A recent Safari: 26.3.
    Safari,
    /// Safari on a recent iPhone, which says the same as on a Mac.
    Ios,
    /// A recent Edge, which is Chrome.
    Edge,
    /// A program on Android 11. TLS 1.2 only.
    Android,
    /// 360 Browser 7.5. TLS 1.2 only.
    Browser360,
    /// QQ Browser 11.1.
    Qq,
    /// One of Chrome, Firefox, Edge and Safari, the same as long as the program runs.
    Random,
    /// Made up, the same as long as the program runs.
    Randomized,
    /// Chrome 120, without a key of ML-KEM.
    Chrome120,
    /// Chrome 131.
    Chrome131,
    /// Chrome 133 to 149.
    Chrome133,
    /// Firefox 120, without a key of ML-KEM.
    Firefox120,
    /// Firefox 148 as Xray has it.
    Firefox148,
    /// Safari 16.0, without a key of ML-KEM.
    Safari16,
    /// Safari on iOS 14, without a key of ML-KEM.
    Ios14,
    /// Edge 85, without a key of ML-KEM.
    Edge85,
}

impl Fingerprint {
    /// What is sent under this name.
    pub(crate) fn profile(self) -> &'static Profile {
        match self {
            Self::Chrome | Self::Edge => &profiles::CHROME_150,
            Self::Chrome133 => &profiles::CHROME_133,
            Self::Chrome131 => &profiles::CHROME_131,
            Self::Chrome120 => &profiles::CHROME_120,
            Self::Firefox => &profiles::FIREFOX_154,
            Self::Firefox148 => &profiles::FIREFOX_148,
            Self::Firefox120 => &profiles::FIREFOX_120,
            Self::Safari | Self::Ios => &profiles::SAFARI_26,
            Self::Safari16 => &profiles::SAFARI_16,
            Self::Ios14 => &profiles::IOS_14,
            Self::Edge85 => &profiles::EDGE_85,
            Self::Qq => &profiles::QQ_11,
            Self::Browser360 => &profiles::BROWSER_360,
            Self::Android => &profiles::ANDROID_11,
            Self::Random => {
                static CHOSEN: OnceLock<Fingerprint> = OnceLock::new();
                let choose = || *dice::one_of(&[Self::Chrome, Self::Firefox, Self::Edge, Self::Safari]);
                CHOSEN.get_or_init(choose).profile()
            }
            Self::Randomized => {
                static MADE: OnceLock<Profile> = OnceLock::new();
                MADE.get_or_init(randomized::profile)
            }
        }
    }

    /// Whether servers can be asked for TLS 1.3 under this name.
    #[must_use]
    pub fn has_tls13(self) -> bool {
        !matches!(self, Self::Android | Self::Browser360)
    }

    /// Whether a name can be encrypted in its hello.
    pub(crate) fn has_ech(self) -> bool {
        self == Self::Random || self.profile().extensions.contains(&ECH)
    }

    /// The name of the browser as it tells itself to web sites.
    #[must_use]
    pub(crate) fn family(self) -> Family {
        match self {
            Self::Firefox | Self::Firefox120 | Self::Firefox148 => Family::Firefox,
            Self::Safari | Self::Safari16 | Self::Ios | Self::Ios14 => Family::Safari,
            _ => Family::Chrome,
        }
    }
}

/// Browsers that differ in what they ask of a web site.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Family {
    Chrome,
    Firefox,
    Safari,
}
