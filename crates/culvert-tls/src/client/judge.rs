//! Who says whether a server is the right one.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use super::{Refusal, alert};
use crate::error::TlsFault;
use crate::fault::CertificateFault;
use crate::notes::{self, Notes};
use crate::reality;
use crate::verify::{Belief, ServerVerifier};

/// Verifies a server's certificate and its signatures.
pub(crate) struct Judge {
    pub(crate) verifier: Arc<ServerVerifier>,
    pub(crate) name: ServerName<'static>,
    /// What the server has to prove where its certificate says nothing.
    pub(crate) reality: Option<reality::Proof>,
    /// Our own certificate, for servers that ask for one.
    pub(crate) own: Option<Arc<CertifiedKey>>,
}

/// Who the server is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The one we want.
    Accepted,
    /// A site of that name, and nothing else: the server of REALITY behind it did not know us, or there is none.
    RealSite,
}

impl Judge {
    /// One who believes everybody who has the key of a certificate.
    pub(super) fn of_anyone() -> Self {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        Self {
            verifier: Arc::new(ServerVerifier { belief: Belief::Anyone, algorithms }),
            name: ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()),
            reality: None,
            own: None,
        }
    }

    /// Looks at the certificates of a server; `messages` are our hello and the server's.
    pub(super) fn certificates(
        &self,
        chain: &[CertificateDer<'static>],
        messages: [&[u8]; 2],
    ) -> Result<Verdict, Refusal> {
        let (leaf, intermediates) = chain.split_first().ok_or(Refusal {
            alert: Some(alert::DECODE_ERROR),
            fault: TlsFault::Certificate(CertificateFault::Missing),
        })?;
        if let Some(proof) = &self.reality
            && proof.is_given(leaf, messages)
        {
            return Ok(Verdict::Accepted);
        }
        let mut notes = Notes::default();
        let now = UnixTime::now();
        let verified = notes::during(&mut notes, || {
            self.verifier.verify_server_cert(leaf, intermediates, &self.name, &[], now)
        });
        match verified {
            Ok(_) if self.reality.is_some() => Ok(Verdict::RealSite),
            Ok(_) => Ok(Verdict::Accepted),
            Err(_) if self.reality.is_some() => Err(Refusal {
                alert: Some(alert::BAD_CERTIFICATE),
                fault: TlsFault::Protocol(reality::NOT_PROVEN.to_owned()),
            }),
            Err(error) => Err(Refusal {
                alert: Some(alert::BAD_CERTIFICATE),
                fault: notes.fault.map_or_else(|| error.into(), TlsFault::Certificate),
            }),
        }
    }

    /// Whether the server has the key of its certificate. TLS 1.3 leaves no choice of algorithm to a scheme.
    pub(super) fn signature(
        &self,
        leaf: &CertificateDer<'_>,
        scheme: u16,
        message: &[u8],
        signature: &[u8],
        is_tls13: bool,
    ) -> Result<(), Refusal> {
        if is_tls13 && !is_for_tls13(scheme) {
            return Err(Refusal::illegal("a signature of a kind that is too weak"));
        }
        let scheme = SignatureScheme::from(scheme);
        if self.verifier.signature_fits(leaf, scheme, message, signature, is_tls13) {
            return Ok(());
        }
        Err(Refusal::new(alert::DECRYPT_ERROR, "the server has not the key of its certificate"))
    }

    /// Signs with our own key by one of the schemes that the server takes. `None` if it takes none, or we have no
    /// certificate.
    pub(super) fn sign(&self, schemes: &[u16], message: &[u8]) -> Result<Option<(u16, Vec<u8>)>, Refusal> {
        let Some(own) = &self.own else { return Ok(None) };
        let offered: Vec<_> = schemes.iter().map(|scheme| SignatureScheme::from(*scheme)).collect();
        let Some(signer) = own.key.choose_scheme(&offered) else { return Ok(None) };
        let signature = signer.sign(message).map_err(|_| Refusal::internal())?;
        Ok(Some((signer.scheme().into(), signature)))
    }

    /// Our certificates, the own one first.
    pub(super) fn own_chain(&self) -> &[CertificateDer<'static>] {
        self.own.as_ref().map_or(&[], |own| &own.cert)
    }
}

/// PSS, ECDSA with the hash of its curve, Ed25519.
fn is_for_tls13(scheme: u16) -> bool {
    matches!(scheme, 0x0403 | 0x0503 | 0x0603 | 0x0804..=0x0807 | 0x0809..=0x080b)
}
