//! What both sides of TLS check alike.

use super::{CipherSuite, TlsVersion};
use crate::cx::Cx;
use crate::json::{Node, Place};
use crate::options::tls::key_pair::belong_together;
use crate::value::{List, Pem, PemSection, Word};

/// Whether an object can do without TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// It can.
    Optional,
    /// It cannot, so TLS must be switched on.
    Required,
    /// It cannot, and TLS is on whatever `enabled` says.
    Implied,
}

impl Need {
    /// Gives the TLS options if they have an effect. Reports where TLS is missing; `node` is the object around them.
    pub(crate) fn used<'a, T>(
        self,
        tls: Option<&'a T>,
        enabled: impl Fn(&T) -> bool,
        node: &Node,
        cx: &mut Cx<'_>,
    ) -> Option<&'a T> {
        let used = tls.filter(|tls| self == Self::Implied || enabled(tls));
        if used.is_none() && self == Self::Required {
            Self::report_missing(node, cx);
        }
        used
    }

    /// Reports that TLS is missing in the object `node`.
    pub(crate) fn report_missing(node: &Node, cx: &mut Cx<'_>) {
        cx.error(node.place_of("tls"), "TLS is required here; add `\"tls\": {\"enabled\": true}`");
    }
}

/// Options that cannot be used together with something: each that is set is reported with `reason`.
pub(crate) fn check_unused<'a>(
    options: impl IntoIterator<Item = (&'a str, bool)>,
    reason: &str,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    for (key, _) in options.into_iter().filter(|(_, set)| *set) {
        cx.error(node.place_of(key), format!("`{key}` {reason}"));
    }
}

/// Options that only say who does the work are taken without doing it, as what is sent is the same.
pub(super) fn check_kernel(tx: bool, rx: bool, node: &Node, cx: &mut Cx<'_>) {
    for (key, used) in [("kernel_tx", tx), ("kernel_rx", rx)] {
        if used {
            let message =
                format!("`{key}` has no effect: the records of TLS are made and opened in the program");
            cx.warn(node.place_of(key), message);
        }
    }
}

pub(super) fn check_words(
    [min, max]: [&Word<TlsVersion>; 2],
    suites: &List<Word<CipherSuite>>,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    min.check("min_version", node, cx);
    max.check("max_version", node, cx);
    for suite in suites {
        suite.check("cipher_suites", node, cx);
        if suite.get().is_none() && !suite.is_unknown() {
            cx.error(node.place_of("cipher_suites"), "`cipher_suites` has an empty item");
        }
    }
}

/// PEM that stands in the configuration or in a file.
pub(super) struct Source<'a> {
    /// The options: the PEM itself, and the path of a file.
    pub(super) keys: [&'static str; 2],
    pub(super) inline: &'a Pem,
    pub(super) path: &'a str,
}

impl Source<'_> {
    pub(super) fn is_given(&self) -> bool {
        !self.inline.is_empty() || !self.path.is_empty()
    }

    /// Where the PEM, or the path of its file, stands in `node`.
    pub(super) fn place(&self, node: &Node) -> Place {
        let [inline, path] = self.keys;
        node.place_of(if self.inline.is_empty() { path } else { inline })
    }

    /// Gives the first section which `wanted` accepts, or reports that there is none. The file is read only without
    /// PEM in place.
    pub(super) fn check(&self, wanted: Wanted, node: &Node, cx: &mut Cx<'_>) -> Option<PemSection> {
        let place = self.place(node);
        if !self.inline.is_empty() {
            return check_pem(&self.inline.text(), wanted, place, cx);
        }
        if self.path.is_empty() {
            return None;
        }
        let content = cx.read_file(place, self.path)?;
        check_pem(&String::from_utf8_lossy(&content), wanted, place, cx)
    }
}

/// Checks a certificate and its key, of which both are given.
pub(super) fn check_pair(certificate: &Source<'_>, key: &Source<'_>, node: &Node, cx: &mut Cx<'_>) {
    let leaf = certificate.check(Wanted::Certificate, node, cx);
    let private = key.check(Wanted::PrivateKey, node, cx);
    if let (Some(leaf), Some(private)) = (leaf, private)
        && belong_together(&leaf.content, &private.content) == Some(false)
    {
        cx.error(key.place(node), "this key belongs to another certificate");
    }
}

/// What a PEM text is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wanted {
    Certificate,
    PrivateKey,
    EchConfigs,
    EchKeys,
}

impl Wanted {
    fn accepts(self, section: &PemSection) -> bool {
        /// First byte of a DER sequence, which certificates and keys are.
        const SEQUENCE: u8 = 0x30;
        let label = section.label.as_str();
        match self {
            Self::Certificate => label == "CERTIFICATE" && section.content.first() == Some(&SEQUENCE),
            Self::PrivateKey => label.ends_with("PRIVATE KEY") && section.content.first() == Some(&SEQUENCE),
            Self::EchConfigs => label == "ECH CONFIGS",
            Self::EchKeys => label == "ECH KEYS",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Certificate => "certificate (`-----BEGIN CERTIFICATE-----`)",
            Self::PrivateKey => "private key (`-----BEGIN PRIVATE KEY-----`)",
            Self::EchConfigs => "ECH configuration (`-----BEGIN ECH CONFIGS-----`)",
            Self::EchKeys => "ECH key (`-----BEGIN ECH KEYS-----`)",
        }
    }
}

/// Gives the first usable section of a PEM text, or reports that there is none.
pub(super) fn check_pem(text: &str, wanted: Wanted, place: Place, cx: &mut Cx<'_>) -> Option<PemSection> {
    let mut sections = PemSection::all(text);
    if let Some(index) = sections.iter().position(|section| wanted.accepts(section)) {
        return Some(sections.swap_remove(index));
    }
    let found = sections.first().map(|section| format!(", only `{}`", section.label)).unwrap_or_default();
    cx.error(place, format!("no PEM {} found{found}", wanted.noun()));
    None
}
