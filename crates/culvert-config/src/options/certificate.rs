//! `certificate`

use crate::cx::Cx;
use crate::json::{Node, Place};
use crate::table::options;
use crate::value::{List, Pem, PemSection, choices};

options! {
    /// Which authorities are trusted.
    pub struct CertificateOptions {
        /// The authorities to begin with.
        store: CertificateStore,
        /// Further authorities in PEM, as one text or as lines.
        certificate: Pem,
        /// Files with further authorities, reloaded when they change.
        certificate_path: List<String>,
        /// Directories with further authorities, reloaded when they change; they may be missing.
        certificate_directory_path: List<String>,
    }
    check = CertificateOptions::check_certificates;
    unknown_keys = Warn;
}

choices! {
    /// A list of trusted authorities.
    pub enum CertificateStore: "certificate store" {
        /// The one of the system.
        System = "system" | "",
        /// The one of Firefox.
        Mozilla = "mozilla",
        /// The one of Chrome.
        Chrome = "chrome",
        /// None.
        None = "none",
    }
}

impl CertificateOptions {
    fn check_certificates(&self, node: &Node, cx: &mut Cx<'_>) {
        if !self.certificate.is_empty() {
            check_pem(&self.certificate.text(), node.place_of("certificate"), cx);
        }
        for path in &self.certificate_path {
            if let Some(content) = cx.read_file(node.place_of("certificate_path"), path) {
                check_pem(&String::from_utf8_lossy(&content), node.place_of("certificate_path"), cx);
            }
        }
    }
}

fn check_pem(text: &str, place: Place, cx: &mut Cx<'_>) {
    if !PemSection::all(text).iter().any(|section| section.label == "CERTIFICATE") {
        cx.error(place, "no certificate in PEM form found");
    }
}
