//! What a client and a server are made from: plain values, whatever text they came from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::browser::Fingerprint;
use crate::error::SettingsError;
use crate::identity::CertificateSource;
use crate::reality::RealityClient;
use crate::watch::read_text;

/// Text that stands in the configuration or in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// The text itself.
    Inline(String),
    /// A file with the text.
    File(PathBuf),
}

impl Source {
    /// The text.
    ///
    /// # Errors
    /// The file cannot be read; `option` is the key to name.
    pub fn read(&self, option: &'static str) -> Result<String, SettingsError> {
        match self {
            Self::Inline(text) => Ok(text.clone()),
            Self::File(path) => {
                let shown = || path.display().to_string();
                read_text(path).map_err(|source| SettingsError::File { option, path: shown(), source })
            }
        }
    }

    /// The file, if it is one.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Inline(_) => None,
            Self::File(path) => Some(path.clone()),
        }
    }
}

/// A certificate chain and its key, both in PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyPairSource {
    /// The chain, the own certificate first.
    pub certificate: Source,
    /// The key of the first certificate.
    pub key: Source,
}

/// Versions of TLS that are spoken here.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Groups for the key exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// NIST P-521.
    P521,
    /// Curve25519.
    X25519,
    /// Curve25519 together with ML-KEM-768, for the day when quantum computers come.
    X25519MlKem768,
}

/// What both sides agree on with their peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// Application protocols, best first; none if empty.
    pub alpn: Vec<String>,
    /// Lowest version.
    pub min_version: Version,
    /// Highest version.
    pub max_version: Version,
    /// Names of suites as IANA has them, best first; a good choice if empty. They count for TLS 1.2 only, those of
    /// TLS 1.3 are always on, as in Go.
    pub cipher_suites: Vec<String>,
    /// Groups, best first; a good choice if empty.
    pub curves: Vec<Curve>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            alpn: Vec::new(),
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            cipher_suites: Vec::new(),
            curves: Vec::new(),
        }
    }
}

/// A client.
#[derive(Clone, Debug, Default)]
pub struct ClientSettings {
    /// What is agreed on with the server.
    pub parameters: Parameters,
    /// Name to ask for and to verify; what is dialled if absent.
    pub server_name: Option<String>,
    /// Sends no name. It is verified nevertheless.
    pub disable_sni: bool,
    /// How the server is verified.
    pub trust: Trust,
    /// Our certificate, for servers that ask for one.
    pub certificate: Option<KeyPairSource>,
    /// How the first message is taken apart.
    pub fragment: Fragment,
    /// Hides the first message from everybody but the server. TLS 1.3 only.
    pub ech: Option<Ech>,
    /// The browser whose first message is sent. What it says of versions, suites and groups then counts, not what
    /// `parameters` say.
    pub fingerprint: Option<Fingerprint>,
    /// The server proves by REALITY who it is, and [`trust`](Self::trust) counts for nothing.
    pub reality: Option<RealityClient>,
    /// How long a handshake may take; 15 s if absent.
    pub handshake_timeout: Option<Duration>,
}

/// Where the keys for Encrypted Client Hello come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ech {
    /// From this `ECHConfigList`.
    Configs(Vec<u8>),
    /// From the HTTPS record of a name, which somebody else looks up: see
    /// [`Connector::ech_query`](crate::Connector::ech_query).
    FromDns {
        /// The name; that of the server if absent.
        name: Option<String>,
    },
}

/// How a client verifies its server.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// By the authorities of the certificate store.
    #[default]
    Store,
    /// By these authorities, in PEM, and no others. A certificate that is itself among them is accepted too.
    Authorities(Source),
    /// By the SHA-256 of its public key, and by nothing else: neither authority nor name nor date count. This is what
    /// sing-box does, and what a pin of a self-signed certificate needs.
    Pins(Vec<Vec<u8>>),
    /// Not at all: `insecure`.
    Anyone,
}

/// How the first message of a client is taken apart, so that simple filters do not find the server's name in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fragment {
    /// Over TCP segments, each sent after the one before was acknowledged.
    pub segments: bool,
    /// Over TLS records.
    pub records: bool,
    /// How long to wait between segments where acknowledgements cannot be seen, or come so fast that it must have been
    /// something near that sent them; 500 ms if absent.
    pub fallback_delay: Option<Duration>,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// What is agreed on with clients.
    pub parameters: Parameters,
    /// Who we are.
    pub identity: Identity,
    /// Who they are.
    pub clients: ClientAuthentication,
    /// How long a handshake may take, where the table of handshakes is not to decide.
    pub handshake_timeout: Option<Duration>,
}

/// The certificate of a server.
#[derive(Clone, Debug)]
pub enum Identity {
    /// This one, read again when its files change.
    Given(KeyPairSource),
    /// One made up for each name that clients ask for, with a key made up at the start.
    SelfSigned,
    /// What this has at the time. While it is to prove that names are ours, the acceptor also answers the authority.
    Provided(Arc<dyn CertificateSource>),
}

/// What a server asks of its clients.
#[derive(Clone, Debug, Default)]
pub enum ClientAuthentication {
    /// Nothing.
    #[default]
    None,
    /// A certificate, whichever.
    Any {
        /// Whether they may do without.
        optional: bool,
    },
    /// A certificate signed by one of these authorities, in PEM; files are read again when they change.
    Authorities {
        /// Whether they may do without.
        optional: bool,
        /// The authorities.
        authorities: Vec<Source>,
    },
    /// A certificate with a public key that has one of these SHA-256.
    Pins {
        /// Whether they may do without.
        optional: bool,
        /// The hashes.
        sha256: Vec<Vec<u8>>,
    },
}

/// Which authorities are trusted where nothing more special is said: the `certificate` section.
#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// Where to begin.
    pub base: StoreBase,
    /// More authorities, in PEM.
    pub certificates: Vec<String>,
    /// Files with more authorities, read again when they change.
    pub paths: Vec<PathBuf>,
    /// Folders with files with more authorities, read again when they change; they may be missing.
    pub folders: Vec<PathBuf>,
}

/// A list of authorities that somebody keeps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StoreBase {
    /// The one of the system.
    #[default]
    System,
    /// The one of Mozilla, as it was when this program was built.
    Mozilla,
    /// None.
    None,
}
